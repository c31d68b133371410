#!/bin/bash
# Patroni and etcd for tests: Debian's packages with the Python packages that they need, unpacked and not
# installed. Needs no root.
#
#   patroni.sh install    download and unpack, if missing
#   patroni.sh where      the folder with usr/bin and usr/lib/python3; 1 and a sentence if it is missing
#
# CACHE   folder of all packages (/var/cache)
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

CACHE=${CACHE:-/var/cache}/jobscribe-patroni
PACKAGES=(patroni etcd-server python3-etcd python3-psycopg2 python3-cdiff python3-click python3-colorama
    python3-dateutil python3-dnspython python3-prettytable python3-psutil python3-urllib3 python3-wcwidth)

where() {
    [[ -x $CACHE/usr/bin/etcd ]] && patroni --version >/dev/null 2>&1 ||
        fail "patroni and etcd are missing: run etc/engines/patroni.sh install"
    echo "$CACHE"
}

# Debian's modules are for Debian's Python.
patroni() { PYTHONPATH=$CACHE/usr/lib/python3/dist-packages /usr/bin/python3 "$CACHE/usr/bin/patroni" "$@"; }

install() {
    if (where) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "patroni is missing, and this is not Debian"
    mkdir -p "$CACHE" 2>/dev/null && [[ -w $CACHE ]] || fail "$CACHE is not writable: set CACHE to another folder"
    echo "unpacking the Debian packages patroni and etcd-server into $CACHE (once)" >&2
    fresh=$(mktemp -d "$CACHE/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq "${PACKAGES[@]}" >&2 2>apt.log) ||
        { cat "$fresh/apt.log" >&2; fail "the packages of patroni could not be fetched"; }
    for package in "$fresh"/*.deb; do dpkg-deb -x "$package" "$fresh/x"; done
    rm -rf "$CACHE/usr"
    mv "$fresh/x/usr" "$CACHE/usr"
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "patroni.sh install | where" ;;
esac
