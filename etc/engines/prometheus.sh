#!/bin/bash
# Prometheus and promtool from Debian's package prometheus: unpacked, not installed, so that no service starts. Needs no root.
#
#   prometheus.sh install   download and unpack, if missing
#   prometheus.sh check     run both; 1 and a sentence if that fails
#   prometheus.sh where     the folder with both programs
#
# CACHE   their folder (/var/cache/jobscribe-prometheus); programs on the PATH take precedence
set -euo pipefail
CACHE=${CACHE:-/var/cache/jobscribe-prometheus}

fail() { echo "$*" >&2; exit 1; }

where() {
    local own
    if own=$(command -v promtool) && command -v prometheus >/dev/null; then
        dirname "$own"
    elif [[ -x $CACHE/usr/bin/promtool && -x $CACHE/usr/bin/prometheus ]]; then
        echo "$CACHE/usr/bin"
    else
        fail "prometheus and promtool are missing: run etc/engines/prometheus.sh install"
    fi
}

check() { local bin; bin=$(where) || exit 1; "$bin/promtool" --version >/dev/null 2>&1 || fail "promtool cannot be run: $("$bin/promtool" --version 2>&1 | head -1)"; }

install() {
    if (where) >/dev/null 2>&1; then check; return; fi
    command -v apt-get >/dev/null || fail "prometheus is not installed, and this is not Debian: put prometheus and promtool on the PATH"
    mkdir -p "$CACHE" 2>/dev/null && [[ -w $CACHE ]] || fail "$CACHE is not writable: set CACHE to another folder"
    echo "unpacking the Debian package prometheus into $CACHE (once)" >&2
    [[ $(id -u) != 0 ]] || apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    fresh=$(mktemp -d "$CACHE/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq prometheus >&2 2>apt.log) || { cat "$fresh/apt.log" >&2; fail "the Debian package prometheus could not be fetched"; }
    dpkg-deb -x "$fresh"/prometheus_*.deb "$fresh/x"
    rm -rf "$CACHE/usr"
    mv "$fresh/x/usr" "$CACHE/usr"
    check
}

case ${1:-} in
    install | check | where) "$1" ;;
    *) fail "prometheus.sh install | check | where" ;;
esac
