#!/bin/sh
# Installs LAMMPS and its example decks if they are missing, for the lammps plug-in and its tests.
# Prints its version. Exits with 1 and a remedy if it cannot be installed.
set -eu

binary=lmp
deck=/usr/share/lammps/examples/crack/in.crack
packages="lammps lammps-examples"

there() {
    command -v "$binary" >/dev/null && [ -r "$deck" ]
}

if ! there; then
    if ! command -v apt-get >/dev/null; then
        echo "LAMMPS is not installed, and this is not Debian: put '$binary' on the PATH, and the examples of its source at ${deck%/crack/*}" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "LAMMPS is not installed, and only root can install it: sudo apt-get install $packages" >&2
        exit 1
    fi
    echo "installing the Debian packages $packages (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2; then
        echo "the Debian packages $packages could not be installed; see the output of apt-get above" >&2
        exit 1
    fi
    if ! there; then
        echo "the Debian packages $packages are installed, but '$binary' or $deck is missing" >&2
        exit 1
    fi
fi

# without this variable, the MPI library looks for ssh at its start
OMPI_MCA_ess_singleton_isolated=1 "$binary" -h | sed -n 's/^Large-scale .* Simulator - /LAMMPS /p'
