#!/bin/sh
# Runs every fuzz target for the given time, and fails where one is found that
# breaks; go keeps the input that did it below testdata/fuzz.
set -eu
time=$1
git ls-files -z '*_test.go' | xargs -0 grep -l '^func Fuzz' | sort | while read -r file; do
	dir=./$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "fuzz $dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzzminimizetime 10x -fuzztime "$time" "$dir" </dev/null
	done
done
