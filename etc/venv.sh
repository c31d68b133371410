#!/bin/sh
# Makes or brings up to date the virtual environment .venv (VENV=folder: another one), and .types/jobscribe for the type checkers.
# Usage: etc/venv.sh [lock file in etc/requirements, as in server]. A second run with nothing changed takes no time.
set -eu
cd "$(dirname "$0")/.."
name=${1:-development}
lock=etc/requirements/$name.lock
venv=${VENV:-.venv}

# The system's own Python first: whoever jobs run as may read it, where one in somebody's home is closed to them, and it was built to be fast.
python= without=
for candidate in "${PYTHON:-}" /usr/bin/python3.11 /usr/bin/python3 python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        if [ "$candidate" = "${PYTHON:-}" ] || "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            python=$candidate
            break
        fi
        without=${without:-$candidate}
    fi
done
python=${python:-$without}
if [ -z "$python" ]; then
    echo "jobscribe needs Python 3.11 or newer; on Debian 12 an administrator installs it with: apt-get install python3" >&2
    exit 1
fi

mkdir -p .types
[ -e .types/jobscribe/setup.py ] || ln -sfn .. .types/jobscribe

stamp=$venv/.made-for-$name
by="$("$python" -c 'import sys; print(sys.version, sys.base_prefix)' | tr '\n' ' ')$(pwd -P)"
want="$(cat setup.py pyproject.toml protocol/version.py etc/venv.sh etc/editable_finder.py "$lock" | sha256sum | cut -d' ' -f1) $by"
if [ -x $venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$want" ]; then
    exit 0
fi

"$python" etc/requirements/lock.py --check

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing the Debian package python3-venv, which virtual environments need" >&2
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >&2
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python cannot make virtual environments: an administrator must install python3-venv (apt-get install python3-venv)" >&2
        exit 1
    fi
fi

# An environment of another place or Python is made anew; one that is only out of date is brought up to date.
made=$(cat $venv/.made-by 2>/dev/null || true)
if [ "$made" != "$by" ] || ! $venv/bin/python -c 'import pip' 2>/dev/null; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    echo "$by" > $venv/.made-by
fi
echo "installing what jobscribe needs into $venv (a minute or two the first time)" >&2
# what is used of it is compiled when it is used first: that is a small part of it
install="$venv/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps"
$install --require-hashes --requirement "$lock" >&2
# setuptools, which builds it, is one of the locked packages
$install --no-build-isolation --editable . >&2
finder=$(echo $venv/lib/python3.*/site-packages/__editable___jobscribe_*_finder.py)
{ grep '^MAPPING' "$finder"; cat etc/editable_finder.py; } > "$venv/finder.py"
mv "$venv/finder.py" "$finder"
echo "$want" > "$stamp"
