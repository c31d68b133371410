#!/bin/sh
# Makes sure that a command is on this machine: etc/engines/command.sh COMMAND [DEBIAN-PACKAGE]. Prints where it is.
# Ends with 1, and says what to do, where it cannot be had.
set -eu

command=$1
package=${2:-$1}

if ! command -v "$command" >/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "$command is not here, and this is not Debian: put it on the PATH" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "$command is not here, and only root can install it: sudo apt-get install $package" >&2
        exit 1
    fi
    echo "installing the Debian package $package (once)" >&2
    apt-get update -qq >&2 || echo "the lists of packages could not be brought up to date; trying with those that are here" >&2
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2; then
        echo "the Debian package $package could not be installed; what apt-get said is above" >&2
        exit 1
    fi
fi
command -v "$command"
