#!/bin/sh
# Installs what building, testing and the demonstration need, on Debian and its relatives.
# usage: sh tools/setup.sh          as root, or as a user who may use sudo
#
# Packages that are there already are left alone, and nothing is downloaded when all are.
set -eu

packages="gcc g++ binutils make libc6-dev libhwloc-dev libjansson-dev libutf8proc-dev libxxhash-dev
    libedit-dev libevent-dev libssl-dev libcmocka-dev pkgconf xz-utils python3 python3-numpy"
# Off x86, or without these, the tests of the NEON kernels are skipped.
[ "$(uname -m)" = x86_64 ] && packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    cat >&2 <<'LIST'
setup: this system has no apt; please install by its own means:
    gcc 12 or newer, with assembler and linker
    GNU make
    the C library's headers
    hwloc 2.4 or newer, with headers          (processors)
    jansson 2.14 or newer, with headers       (JSON)
    utf8proc 2.8 or newer, with headers       (Unicode normalisation)
    xxHash 0.8 or newer, with headers         (checksums)
    libedit 3.1 or newer, with headers        (line editing of the program)
    libevent 2.1.12 or newer, with headers    (network, of the program)
    OpenSSL 3 or newer, with headers          (TLS, of the program)
    cmocka 1.1.5 or newer, with headers       (only for the tests)
    g++, pkg-config, xz, Python 3 with numpy  (only for the tests)
    a gcc for aarch64 and qemu-aarch64        (only for the tests of the NEON kernels)
Then run: make test
LIST
    exit 1
fi

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    if [ "$state" != installed ]; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    echo "setup: everything is installed already"
    exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null; then
    as_root=sudo
else
    echo "setup: these packages are missing, and installing them needs root or sudo:$missing" >&2
    exit 1
fi

echo "setup: installing$missing"
$as_root apt-get update -q
# shellcheck disable=SC2086 # a list of names
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $missing
echo "setup: done"
