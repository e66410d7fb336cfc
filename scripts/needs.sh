#!/bin/sh
# Makes sure that Debian packages are there: installs what is missing as root,
# else says what to run.
set -eu
missing=
for p in "$@"; do
	case $p in
	gcc | git | crun | runc | containerd | cpio | python3 | curl | shellcheck | yamllint | codespell) command -v "$p" >/dev/null 2>&1 && continue ;;
	bubblewrap) command -v bwrap >/dev/null 2>&1 && continue ;;
	e2fsprogs) command -v mkfs.ext4 >/dev/null 2>&1 && continue ;;
	btrfs-progs) command -v mkfs.btrfs >/dev/null 2>&1 && continue ;;
	xfsprogs) command -v mkfs.xfs >/dev/null 2>&1 && continue ;;
	ntfs-3g) command -v mkfs.ntfs >/dev/null 2>&1 && continue ;;
	qemu-system-x86) command -v qemu-system-x86_64 >/dev/null 2>&1 && continue ;;
	xz-utils) command -v xz >/dev/null 2>&1 && continue ;;
	uidmap) command -v newuidmap >/dev/null 2>&1 && continue ;;
	libc6-dev) for f in /usr/lib/*/libc.a /usr/lib/libc.a /usr/lib64/libc.a; do [ -e "$f" ] && continue 2; done ;;
	esac
	missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "these packages are missing, please install them:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "these packages are missing; please run: sudo apt-get install$missing" >&2
	exit 1
fi
echo "installing$missing"
apt-get update -q >/dev/null
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -q $missing >/dev/null
