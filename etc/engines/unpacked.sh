#!/bin/bash
# Programs of a Debian package: unpacked, not installed, so that no service starts. Needs no root.
#
#   unpacked.sh install PACKAGE PROGRAM...   download and unpack, if missing
#   unpacked.sh check PACKAGE PROGRAM...     run them; 1 and a sentence if that fails
#   unpacked.sh where PACKAGE PROGRAM...     the folder with the programs
#
# CACHE   folder of all packages (/var/cache); programs on the PATH take precedence
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }
. "$(dirname "${BASH_SOURCE[0]}")/debian_package.sh"

(($# >= 3)) || fail "unpacked.sh install | check | where PACKAGE PROGRAM..."
command=$1 package=$2
shift 2
CACHE=${CACHE:-/var/cache}/jobscribe-$package

all_in() { local folder=$1 program; shift; for program in "$@"; do [[ -x $folder/$program ]] || return 1; done; }

where() {
    local own folder
    if own=$(command -v "$1") && all_in "$(dirname "$own")" "$@"; then dirname "$own"; return; fi
    for folder in "$CACHE/usr/bin" "$CACHE/usr/sbin"; do
        if all_in "$folder" "$@"; then echo "$folder"; return; fi
    done
    fail "$* of the Debian package $package is missing: run etc/engines/unpacked.sh install $package $*"
}

check() {
    local bin program
    bin=$(where "$@") || exit 1
    for program in "$@"; do
        "$bin/$program" --version >/dev/null 2>&1 || "$bin/$program" -v >/dev/null 2>&1 ||
            fail "$program cannot be run: $("$bin/$program" --version 2>&1 | head -1)"
    done
}

install() {
    if (where "$@") >/dev/null 2>&1; then check "$@"; return; fi
    unpack "$package" "$CACHE"
    check "$@"
}

case $command in
    install | check | where) "$command" "$@" ;;
    *) fail "unpacked.sh install | check | where PACKAGE PROGRAM..." ;;
esac
