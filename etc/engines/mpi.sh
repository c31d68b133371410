#!/bin/bash
# MPI for the tests: Debian's OpenMPI as it is, without a compiler. Programs of tests load its library (tests/slurm/support/mpi_ring.py).
#
#   mpi.sh install   the Debian package openmpi-bin, where it is missing (together with Slurm's: slurm.sh install slurm mpi)
#   mpi.sh check     1 and a sentence if it is not here
#   mpi.sh env       what a job needs so that ranks on nodes that are all this machine talk over loopback
set -euo pipefail
fail() { echo "$*" >&2; exit 1; }

lacks() { command -v mpirun >/dev/null && compgen -G "/usr/lib/*/libmpi.so.40" >/dev/null || echo openmpi-bin; }
check() { [[ -z $(lacks) ]] || fail "there is no mpirun here: etc/engines/mpi.sh install"; }
install() { "$(dirname "$(readlink -f "$0")")/slurm.sh" install mpi; }

env() {  # the nodes have names of their own, and one address: what is on loopback is left out of account unless one says so
    printf 'export %s\n' OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

case ${1:-} in
    install | check | lacks | env) "$1" ;;
    *) fail "mpi.sh install | check | env" ;;
esac
