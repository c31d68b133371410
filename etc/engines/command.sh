#!/bin/sh
# Installs a command if it is missing: etc/engines/command.sh COMMAND [DEBIAN-PACKAGE]. Prints its path.
# Exits with 1 and a remedy if it cannot be installed.
set -eu

command=$1
package=${2:-$1}

if ! command -v "$command" >/dev/null; then
    if ! command -v apt-get >/dev/null; then
        echo "$command is not installed, and this is not Debian: put it on the PATH" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "$command is not installed, and only root can install it: sudo apt-get install $package" >&2
        exit 1
    fi
    echo "installing the Debian package $package (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2; then
        echo "the Debian package $package could not be installed; see the output of apt-get above" >&2
        exit 1
    fi
fi
command -v "$command"
