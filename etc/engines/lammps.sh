#!/bin/sh
# Makes sure that the real LAMMPS and its example decks are on this machine, for the lammps plug-in and its tests.
# Prints the version that is there. Ends with 1, and says what to do, where it cannot be had.
set -eu

binary=lmp
deck=/usr/share/lammps/examples/crack/in.crack
packages="lammps lammps-examples"

there() {
    command -v "$binary" >/dev/null && [ -r "$deck" ]
}

if ! there; then
    if ! command -v apt-get >/dev/null; then
        echo "LAMMPS is not here, and this is not Debian: put '$binary' on the PATH, and the examples of its source at ${deck%/crack/*}" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "LAMMPS is not here, and only root can install it: sudo apt-get install $packages" >&2
        exit 1
    fi
    echo "installing the Debian packages $packages (once)" >&2
    apt-get update -qq >&2 || echo "the lists of packages could not be brought up to date; trying with those that are here" >&2
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2; then
        echo "the Debian packages $packages could not be installed; what apt-get said is above" >&2
        exit 1
    fi
    if ! there; then
        echo "the Debian packages $packages are installed, but '$binary' or $deck is not there" >&2
        exit 1
    fi
fi

# the MPI it was built with otherwise looks for ssh at its start
OMPI_MCA_ess_singleton_isolated=1 "$binary" -h | sed -n 's/^Large-scale .* Simulator - /LAMMPS /p'
