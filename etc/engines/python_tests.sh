#!/bin/bash
# CPython's own tests of concurrent.futures, for the Python of the tests: those of the interpreter, or
# those of Debian's testsuite package, unpacked and not installed. Needs no root.
#
#   python_tests.sh install   download and unpack, if missing
#   python_tests.sh where     the folder with test_concurrent_futures; 1 and a sentence if there is none
#
# PYTHON  the interpreter (python3)     CACHE  folder of all packages (/var/cache)
set -euo pipefail
PYTHON=${PYTHON:-python3}
version=$("$PYTHON" -c 'import sys; print("{}.{}".format(*sys.version_info))')
own=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/test
package=libpython$version-testsuite
CACHE=${CACHE:-/var/cache}/jobscribe-$package

fail() { echo "$*" >&2; exit 1; }

where() {
    local folder
    for folder in "$own" "$CACHE/usr/lib/python$version/test"; do
        if [[ -e $folder/test_concurrent_futures.py || -d $folder/test_concurrent_futures ]]; then echo "$folder"; return; fi
    done
    fail "CPython's tests are missing: run PYTHON=$PYTHON etc/engines/python_tests.sh install"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "this Python has no tests, and this is not Debian"
    mkdir -p "$CACHE" 2>/dev/null && [[ -w $CACHE ]] || fail "$CACHE is not writable: set CACHE to another folder"
    echo "unpacking the Debian package $package into $CACHE (once)" >&2
    [[ $(id -u) != 0 ]] || apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    fresh=$(mktemp -d "$CACHE/fresh.XXXXXX")
    trap 'rm -rf "$fresh"' EXIT
    (cd "$fresh" && apt-get download -qq "$package" >&2 2>apt.log) || { cat "$fresh/apt.log" >&2; fail "the Debian package $package could not be fetched"; }
    dpkg-deb -x "$fresh/${package}"_*.deb "$fresh/x"
    rm -rf "$CACHE/usr"
    mv "$fresh/x/usr" "$CACHE/usr"
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "python_tests.sh install | where" ;;
esac
