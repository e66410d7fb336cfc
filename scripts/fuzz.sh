#!/bin/sh
# Runs every fuzz target for the given time, and fails where one is found that
# breaks; go keeps the input that did it below testdata/fuzz.
set -eu
time=$1
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# An input that breaks a target is always written down. The end of the time alone
# is sometimes told as a failure too: a run that ends by its own deadline while a
# worker is at an input says "context deadline exceeded" and names no input.
fuzz() { # directory, target
	code=0
	go test -run '^$' -fuzz "^$2\$" -fuzzminimizetime 10x -fuzztime "$time" "$1" </dev/null >"$said" 2>&1 || code=$?
	cat "$said"
	if [ "$code" != 0 ] && grep -q '^    context deadline exceeded$' "$said" && ! grep -q 'Failing input written' "$said"; then
		echo "the time was over in the middle of an input; nothing was found"
		code=0
	fi
	return "$code"
}

git ls-files -z '*_test.go' | xargs -0 grep -l '^func Fuzz' | sort | while read -r file; do
	dir=./$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "fuzz $dir $target"
		fuzz "$dir" "$target"
	done
done
