#!/bin/sh
# Installs Debian's chromium-headless-shell if it is missing, for the browser tests: Chromium without
# its own windows, which takes a third less processor time.
# Prints its version. Exits with 1 and a remedy if it cannot be installed.
set -eu

binary=/usr/bin/chromium-headless-shell
# without a font, screenshots of the tests have no text
packages="chromium-headless-shell fonts-dejavu-core"

if ! [ -x "$binary" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "chromium-headless-shell is not installed, and this is not Debian: install it as $binary" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "chromium-headless-shell is not installed, and only root can install it: sudo apt-get install $packages" >&2
        exit 1
    fi
    echo "installing the Debian packages $packages (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2; then
        echo "the Debian packages $packages could not be installed; see the output of apt-get above" >&2
        exit 1
    fi
    if ! [ -x "$binary" ]; then
        echo "the Debian packages $packages are installed, but $binary does not exist" >&2
        exit 1
    fi
fi

"$binary" --version
