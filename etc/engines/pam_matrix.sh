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
. "$(dirname "${BASH_SOURCE[0]}")/debian_package.sh"
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
    unpack libpam-wrapper "$CACHE"
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "pam_matrix.sh install | where" ;;
esac
