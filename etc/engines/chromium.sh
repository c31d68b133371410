#!/bin/sh
# Makes sure that Debian's chromium is on this machine, for the tests that use the page as a person does.
# Prints the version that is there. Ends with 1, and says what to do, where it cannot be had.
set -eu

binary=/usr/bin/chromium
# without a font there are no letters in the pictures that the tests leave
packages="chromium fonts-dejavu-core"

if ! [ -x "$binary" ]; then
    if ! command -v apt-get >/dev/null; then
        echo "chromium is not here, and this is not Debian: install it so that it is $binary" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "chromium is not here, and only root can install it: sudo apt-get install $packages" >&2
        exit 1
    fi
    echo "installing the Debian packages $packages (once)" >&2
    apt-get update -qq >&2 || echo "the lists of packages could not be brought up to date; trying with those that are here" >&2
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2; then
        echo "the Debian packages $packages could not be installed; what apt-get said is above" >&2
        exit 1
    fi
    if ! [ -x "$binary" ]; then
        echo "the Debian packages $packages are installed, but $binary is not there" >&2
        exit 1
    fi
fi

"$binary" --version
