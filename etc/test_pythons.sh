#!/bin/sh
# Runs the fast tests under each of the Pythons PYTHONS (default: 3.11 to 3.14) that is on PATH or below PYENV_ROOT, each in an environment of its
# own, and says which ones are not installed. Arguments go to pytest. Fails if a test fails under one of them.
set -u
cd "$(dirname "$0")/.."
versions=${PYTHONS:-3.11 3.12 3.13 3.14}
fast="tests/unit/protocol tests/unit/db tests/unit/schema tests/unit/diagnosis tests/unit/client tests/unit/service tests/unit/supervisor"

tested= failed= missing=
for version in $versions; do
    python=
    for candidate in "/usr/bin/python$version" "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        # a shim of pyenv may be there without its Python
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            python=$("$candidate" -c 'import sys; print(sys.executable)')
            break
        fi
    done
    if [ -z "$python" ]; then
        missing="$missing $version"
        continue
    fi
    echo "Python $version: $python"
    if VENV=build/pythons/$version PYTHON=$python etc/venv.sh &&
        "build/pythons/$version/bin/python" -m pytest -q -p no:cacheprovider $fast "$@"; then
        tested="$tested $version"
    else
        failed="$failed $version"
    fi
done
echo "passed under:${tested:- none}; failed under:${failed:- none}; not installed:${missing:- none}"
[ -z "$failed" ] && [ -n "$tested" ]
