#!/bin/sh
# Makes a small repository with one clean change and one that leaks a key, and
# runs the gate on both.
set -eu
bin=$(cd "$1" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
export ASPIS_STATE_DIR="$dir/state"
repo=$dir/shop
git_() { git -C "$repo" -c user.name=demo -c user.email=demo@example.org -c commit.gpgsign=false "$@"; }
run() {
	echo "\$ aspis $*"
	code=0
	"$bin/aspis" --repo "$repo" "$@" || code=$?
	echo "exit code $code"
	echo
}

git init -q -b main "$repo"
cat >"$repo/shop.py" <<'PY'
import os

def connect():
    return Client(key=os.environ["SHOP_KEY"])
PY
git_ add -A
git_ commit -q -m "Start the shop"

echo "A clean change: a timeout is added."
echo
sed -i 's/SHOP_KEY"\]/SHOP_KEY"], timeout=5/' "$repo/shop.py"
git_ commit -q -am "Add a timeout"
run check --base HEAD~1

echo "A change that leaks: the key is written into the file, for a quick test."
echo
# The key is made up anew here, so that none lies in this file.
key=AKIA$(od -An -N40 -tx1 /dev/urandom | tr -d ' \n' | tr 'a-f0-9' 'Q-V2-7A-D' | cut -c1-16)
sed -i "s/os.environ\\[\"SHOP_KEY\"\\]/\"$key\"/" "$repo/shop.py"
git_ commit -q -am "Try it out"
run check --base HEAD~1

echo "What confined the checker, as the kernel showed it before it ran:"
echo
run receipt show --evidence

echo "On your own repository:"
echo
echo "  $bin/aspis check --repo /path/to/repository --base origin/main"
