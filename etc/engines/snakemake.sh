#!/bin/bash
# Snakemake with the executor plug-in of etc/snakemake, in an environment of its own: the versions of
# etc/requirements/snakemake.lock, and this source tree. Needs no root.
#
#   snakemake.sh install   make or update it (a minute the first time)
#   snakemake.sh where     its Python; 1 and a sentence if it is missing or out of date
#
# PLACE  its folder (build/snakemake)
set -euo pipefail
cd "$(dirname "$0")/../.."
PLACE=${PLACE:-$PWD/build/snakemake}
lock=etc/requirements/snakemake.lock plugin=etc/snakemake
want=$(cat "$lock" "$plugin/pyproject.toml" | sha256sum)

fail() { echo "$*" >&2; exit 1; }

where() {
    [[ $(cat "$PLACE/.made" 2>/dev/null) == "$want" ]] || fail "Snakemake is missing: run etc/engines/snakemake.sh install"
    echo "$PLACE/bin/python"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    echo "installing Snakemake into $PLACE (a minute the first time)" >&2
    local pip=("$PLACE/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps)
    "${PYTHON:-.venv/bin/python}" -m venv --clear "$PLACE"
    "${pip[@]}" --require-hashes --requirement "$lock" >&2 || fail "$lock could not be installed; see the output of pip above"
    # a copy, because a build writes beside its source
    local copy=$PLACE/source
    mkdir "$copy"
    cp -r "$plugin" "$copy/plugin"
    local site
    site=$("$PLACE/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "${pip[@]}" --no-build-isolation "$copy/plugin" >&2 || fail "the plug-in could not be built; see the output of pip above"
    rm -rf "$site/snakemake_executor_plugin_jobscribe" "$copy"
    # the code of this tree, not a copy of it
    ln -s "$PWD/$plugin/snakemake_executor_plugin_jobscribe" "$site/snakemake_executor_plugin_jobscribe"
    mkdir -p "$PLACE/tree"
    ln -sfn "$PWD" "$PLACE/tree/jobscribe"
    echo "$PLACE/tree" >"$site/jobscribe_tree.pth"
    echo "$want" >"$PLACE/.made"
}

case ${1:-} in
    install | where) "$1" ;;
    *) fail "snakemake.sh install | where" ;;
esac
