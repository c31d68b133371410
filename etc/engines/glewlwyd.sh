#!/bin/bash
# glewlwyd, an OpenID Connect provider, from Debian: unpacked, not installed, so that no service
# starts. Only root can install its libraries.
#
#   glewlwyd.sh install   download and unpack it, and install its libraries, if missing
#   glewlwyd.sh where     the folder with bin/glewlwyd and lib/glewlwyd; 1 and a sentence if it is missing
#
# CACHE   folder of all packages (/var/cache)
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }
unpacked=$(dirname "$0")/unpacked.sh

where() {
    local bin
    bin=$("$unpacked" where glewlwyd glewlwyd) || exit 1
    "$bin/glewlwyd" --version >/dev/null 2>&1 ||
        fail "glewlwyd cannot be run, a library is missing: run etc/engines/glewlwyd.sh install as root"
    dirname "$bin"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "glewlwyd is not installed, and this is not Debian: put it on the PATH"
    [[ $(id -u) == 0 ]] || fail "only root can install the libraries of glewlwyd"
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    libraries=$(apt-cache depends glewlwyd | awk '$1 == "Depends:" && $2 ~ /^lib/ {print $2}')
    [[ $libraries ]] || fail "Debian's package lists have no glewlwyd"
    echo "installing the libraries of glewlwyd (once)" >&2
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $libraries >&2 ||
        fail "the libraries of glewlwyd could not be installed; see the output of apt-get above"
    "$unpacked" install glewlwyd glewlwyd
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "glewlwyd.sh install | where" ;;
esac
