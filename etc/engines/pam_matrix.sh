#!/bin/bash
# pam_matrix, a PAM module that reads names and passwords from a file, from Debian's libpam-wrapper:
# unpacked, not installed. Needs no root.
#
#   pam_matrix.sh install   download and unpack it, if missing
#   pam_matrix.sh where     the path of the module; 1 and a sentence if it is missing
#
# CACHE   folder of all packages (/var/cache)
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }
CACHE=${CACHE:-/var/cache}/jobscribe-libpam-wrapper

where() {
    local found
    for found in "$CACHE"/usr/lib/*/pam_wrapper/pam_matrix.so /usr/lib/*/pam_wrapper/pam_matrix.so; do
        if [[ -r $found ]]; then echo "$found"; return; fi
    done
    fail "pam_matrix is missing: run etc/engines/pam_matrix.sh install"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "libpam-wrapper is not installed, and this is not Debian"
    mkdir -p "$CACHE" 2>/dev/null && [[ -w $CACHE ]] || fail "$CACHE is not writable: set CACHE to another folder"
    echo "unpacking the Debian package libpam-wrapper into $CACHE (once)" >&2
    [[ $(id -u) != 0 ]] || apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    fresh=$(mktemp -d "$CACHE/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq libpam-wrapper >&2) || fail "the Debian package libpam-wrapper could not be fetched"
    dpkg-deb -x "$fresh"/libpam-wrapper_*.deb "$fresh/x"
    rm -rf "$CACHE/usr"
    mv "$fresh/x/usr" "$CACHE/usr"
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "pam_matrix.sh install | where" ;;
esac
