#!/bin/bash
# MPI for the tests: Debian's OpenMPI without a compiler. Test programs load its library (etc/examples/openpai/code/ring.py).
#
#   mpi.sh install   install openmpi-bin if it is missing (together with Slurm: slurm.sh install slurm mpi)
#   mpi.sh check     1 and a sentence if it is not installed
#   mpi.sh env       variables of a job whose nodes are all on this machine, so that ranks use loopback
set -euo pipefail
fail() { echo "$*" >&2; exit 1; }

lacks() { command -v mpirun >/dev/null && compgen -G "/usr/lib/*/libmpi.so.40" >/dev/null || echo openmpi-bin; }
check() { [[ -z $(lacks) ]] || fail "mpirun is not installed: run etc/engines/mpi.sh install"; }
install() { "$(dirname "$(readlink -f "$0")")/slurm.sh" install mpi; }

env() {  # the nodes have different names and one address; MPI ignores loopback by default
    printf 'export %s\n' OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1 \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

case ${1:-} in
    install | check | lacks | env) "$1" ;;
    *) fail "mpi.sh install | check | env" ;;
esac
