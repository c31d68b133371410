#!/bin/bash
# The systems that `make bench` compares jobscribe with, in an environment of their own: the versions of etc/requirements/bench.lock, and
# redis-server from Debian's packages, unpacked and not installed, so that no service starts. Needs no root.
#
#   peers.sh install   make or update both; names on stderr what is missing, and why
#   peers.sh redis     command line of redis-server
#
# PEERS   their folder (build/bench-peers); a redis-server on the PATH takes precedence
set -euo pipefail
cd "$(dirname "$0")/../.."
PEERS=${PEERS:-build/bench-peers}
redis=$PWD/$PEERS/redis

fail() { echo "$*" >&2; exit 1; }

redis() {
    if command -v redis-server; then return; fi
    [[ -x $redis/usr/bin/redis-server ]] || fail "redis-server is missing: run etc/engines/peers.sh install"
    local libraries=("$redis"/usr/lib/*-linux-*)
    echo "env LD_LIBRARY_PATH=${libraries[0]} $redis/usr/bin/redis-server"
}

install_python() {
    local lock=etc/requirements/bench.lock stamp=$PEERS/.made want
    want=$(sha256sum <"$lock")
    [[ $(cat "$stamp" 2>/dev/null) != "$want" ]] || return 0
    echo "installing the peers of jobscribe into $PEERS (a minute the first time)" >&2
    "${PYTHON:-.venv/bin/python}" -m venv "$PEERS" &&
        "$PEERS/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement "$lock" >&2 ||
        fail "$lock could not be installed; see the output of pip above"
    echo "$want" >"$stamp"
}

install_redis() {
    if (redis) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "redis-server is not installed, and this is not Debian: put it on the PATH"
    echo "unpacking the Debian package redis-server into $PEERS (once)" >&2
    [[ $(id -u) != 0 ]] || apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    fresh=$(mktemp -d "$PEERS/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq redis-server redis-tools libatomic1 libjemalloc2 liblzf1 >&2 2>apt.log) ||
        { cat "$fresh/apt.log" >&2; fail "the Debian package redis-server could not be fetched"; }
    for package in "$fresh"/*.deb; do dpkg-deb -x "$package" "$fresh/x"; done
    rm -rf "$redis"
    mv "$fresh/x" "$redis"
    # shellcheck disable=SC2046
    $(redis) --version >/dev/null || fail "redis-server cannot be run; see its message above"
}

case ${1:-} in
    install) mkdir -p "$PEERS"; status=0; (install_python) || status=1; (install_redis) || status=1; exit $status ;;
    redis) redis ;;
    *) fail "peers.sh install | redis" ;;
esac
