#!/bin/sh
# Makes a small repository with one clean change and one that leaks keys, and
# runs the gate on both. Nothing of it is left afterwards.
set -eu
bin=$(cd "$1" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
export ASPIS_STATE_DIR="$dir/state"
repo=$dir/shop
# Without the configuration of whoever runs this, which may sign or run hooks.
git_() {
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git -C "$repo" -c user.name=demo -c user.email=demo@example.org "$@"
}
run() { # the expected exit code, what it means, the command
	want=$1 meaning=$2
	shift 2
	echo "\$ aspis $*"
	code=0
	"$bin/aspis" --repo "$repo" "$@" || code=$?
	echo "exit code $code ($meaning)"
	echo
	if [ "$code" != "$want" ]; then
		echo "the demo expected exit code $want; aspis doctor tells what this machine lacks" >&2
		exit 1
	fi
}
letters() { od -An -N400 -tx1 /dev/urandom | tr -d ' \n' | tr 'a-f0-9' 'Q-V2-7A-D' | cut -c"1-$1"; }

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
run 0 allow check --base HEAD~1

echo "A change that leaks: the cloud key is written into the file, for a quick test,"
echo "and the server's private key comes along."
echo
# Both are made up anew each time and open nothing; none lies in this file.
sed -i "s/os.environ\\[\"SHOP_KEY\"\\]/\"AKIA$(letters 16)\"/" "$repo/shop.py"
{
	printf -- '-----BEGIN %s-----\n' 'RSA PRIVATE KEY'
	for _ in 1 2 3 4 5 6 7 8; do letters 64; done
	printf -- '-----END %s-----\n' 'RSA PRIVATE KEY'
} >"$repo/server.pem"
git_ add -A
git_ commit -q -m "Try it out"
run 1 deny check --base HEAD~1

echo "What confined the checker, as the kernel showed it before it ran:"
echo
run 0 done receipt show --evidence

echo "A command that must not be trusted works on the project. Nothing happens to it:"
echo
git_ reset -q --hard HEAD~1
run 0 "the command's" run --name demo -- sh -c 'echo "import log" >>shop.py; cat ~/.ssh/id_ed25519 2>&1; ls ~; true'
git_ status --short
run 0 done session diff demo

echo "What it did goes through the gate, and then every file of it is written, or none:"
echo
run 0 published session apply demo
git_ status --short
run 0 "taken back" undo

echo "On your own repository:"
echo
echo "  $bin/aspis check --repo /path/to/repository --base origin/main"
echo "  cd /path/to/repository && $bin/aspis run -- your-agent"
