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
. "$(dirname "${BASH_SOURCE[0]}")/debian_package.sh"

where() {
    local folder
    for folder in "$own" "$CACHE/usr/lib/python$version/test"; do
        if [[ -e $folder/test_concurrent_futures.py || -d $folder/test_concurrent_futures ]]; then echo "$folder"; return; fi
    done
    fail "CPython's tests are missing: run PYTHON=$PYTHON etc/engines/python_tests.sh install"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    unpack "$package" "$CACHE"
    where >/dev/null
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "python_tests.sh install | where" ;;
esac
