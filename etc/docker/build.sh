#!/bin/bash
# Builds the image for a pool of Docker hosts: a base image with Python, the agent's part of jobscribe, and its three dependencies.
#
#   build.sh --base IMAGE --tag TAG [--host unix:///path | tcp://...] [--pull] [--python COMMAND]
#
# --base    image with Python 3.11 or newer as `python3`, /bin/sh, env and the programs of simulations; must be on the host, or use --pull
# --host    Docker host (as in `docker -H`); default: DOCKER_HOST or the current context
# --python  Python whose pip downloads the packages (python3); they match the Python of the image
#
# The image has only agent, apps, protocol and runtime, no server code. Only the three packages are
# downloaded, in the versions of etc/requirements/agent.lock, and their hashes are checked.
set -euo pipefail
parts=(agent apps protocol runtime)
# runs in the base image; prints its Python version, machine and C library
question='import sys, platform, ctypes, ssl, sqlite3, asyncio
kind, libc = platform.libc_ver()
if not kind:
    import glob
    kind = "musl" if glob.glob("/lib/ld-musl-*") else ""
print("%d.%d" % sys.version_info[:2], platform.machine(), kind or "unknown", libc or "0")'

fail() { echo "build.sh: $*" >&2; exit 1; }
say() { echo "build.sh: $*"; }

base='' tag='' pull='' python=python3 docker=(docker)
while (($#)); do
    case $1 in
    --base | --tag | --host | --python)
        [[ ${2:-} ]] || fail "$1 needs a value"
        case $1 in --base) base=$2 ;; --tag) tag=$2 ;; --host) docker=(docker -H "$2") ;; --python) python=$2 ;; esac
        shift 2 ;;
    --pull) pull=yes; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "unknown option '$1'; see --help" ;;
    esac
done
[[ $base ]] || fail "--base is missing: an image with Python 3.11 or newer"
[[ $tag ]] || fail "--tag is missing: the name of the new image"

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
source=$(cd "$here/../.." && pwd)
lock=$source/etc/requirements/agent.lock
for part in "${parts[@]}"; do [[ -d $source/$part ]] || fail "$source is not a source tree of jobscribe: $part is missing"; done
[[ -f $lock ]] || fail "$lock is missing"
command -v docker >/dev/null || fail "the docker command is missing: install Debian's docker.io or docker-cli"
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: pass another Python with --python"
"${docker[@]}" version >/dev/null 2>&1 || fail "no Docker daemon answers${DOCKER_HOST:+ at $DOCKER_HOST}: $("${docker[@]}" version 2>&1 | tail -1)"

if ! "${docker[@]}" image inspect "$base" >/dev/null 2>&1; then
    [[ $pull ]] || fail "$base is not on that host: pull it there first, or use --pull"
    say "pulling $base"
    "${docker[@]}" pull "$base" || fail "$base cannot be pulled"
fi

say "checking the Python of $base"
answer=$("${docker[@]}" run --rm --network none --user 65534:65534 --entrypoint python3 "$base" -c "$question" 2>&1) ||
    fail "$base has no usable Python: $answer"
read -r version machine kind libc <<<"$answer"
[[ $version == 3.* ]] && ((${version#3.} >= 11)) || fail "$base has Python $version; 3.11 or newer is needed"
"${docker[@]}" run --rm --network none --user 65534:65534 --entrypoint /bin/sh "$base" -c 'env >/dev/null' >/dev/null 2>&1 ||
    fail "$base has no /bin/sh, or no env"

platforms=()
case $kind in
glibc) for ((minor = ${libc#2.}; minor >= 17; minor--)); do platforms+=(--platform "manylinux_2_${minor}_$machine"); done
    platforms+=(--platform "manylinux2014_$machine") ;;
musl) for minor in 2 1; do platforms+=(--platform "musllinux_1_${minor}_$machine"); done ;;
*) fail "there are no packages for the C library of $base" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
lib=$work/app/lib
mkdir -p "$lib/jobscribe"
say "downloading $(sed -n 's/^\([a-z][a-z0-9._-]*==[^ ]*\).*/\1/p' "$lock" | xargs) for Python $version on $machine ($kind)"
"$python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile --only-binary :all: --no-deps --target "$lib" \
    --python-version "$version" --implementation cp "${platforms[@]}" --require-hashes --requirement "$lock" || fail "the packages cannot be downloaded"
rm -rf "$lib"/bin "$lib"/*/tests "$lib"/tornado/test
cp "$source/__init__.py" "$lib/jobscribe/"
for part in "${parts[@]}"; do cp -r "$source/$part" "$lib/jobscribe/"; done
find "$work/app" -name __pycache__ -prune -exec rm -rf {} +
cp "$here/start" "$work/app/start"
cp "$here/Dockerfile" "$work/Dockerfile"
chmod -R u=rwX,go=rX "$work/app"
chmod 755 "$work/app/start"

number=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' "$source/protocol/version.py")
[[ $number ]] || fail "$source/protocol/version.py has no version"
say "building $tag from $base, jobscribe $number"
if "${docker[@]}" buildx version >/dev/null 2>&1; then export DOCKER_BUILDKIT=1; else export DOCKER_BUILDKIT=0; fi
"${docker[@]}" build --network none --build-arg "BASE=$base" --build-arg "VERSION=$number" --tag "$tag" "$work" 2>&1 |
    sed -e '/DEPRECATED/,+2d' -e 's/^/    /' || fail "the image cannot be built"
"${docker[@]}" run --rm --network none --read-only --entrypoint /bin/sh "$tag" -c \
    'PYTHONPATH=/opt/jobscribe/lib exec python3 -P -c "import jobscribe.agent.process, jobscribe.agent.relay, jobscribe.agent.keeper.process"' ||
    fail "the modules in $tag cannot be imported"
say "$tag is built: $(("$("${docker[@]}" image inspect -f '{{.Size}}' "$tag")" / 1000000)) MB, $("${docker[@]}" image inspect -f '{{.Id}}' "$tag")"
