"""An MPI program without a compiler: the ranks pass a number in a ring and print their rank and
node. Run as `mpirun python3 ring.py`.
"""

import ctypes
import socket

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
#: OpenMPI's handles are addresses of objects in its library
world, integer = (
    ctypes.addressof(ctypes.c_char.in_dll(mpi, name))
    for name in ("ompi_mpi_comm_world", "ompi_mpi_int")
)
world, integer = ctypes.c_void_p(world), ctypes.c_void_p(integer)
status = ctypes.create_string_buffer(256)

assert mpi.MPI_Init(None, None) == 0
rank, size, given = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(1)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
after, before = (rank.value + 1) % size.value, (rank.value - 1) % size.value
if rank.value:
    mpi.MPI_Recv(ctypes.byref(given), 1, integer, before, 0, world, status)
    given.value *= 2
mpi.MPI_Send(ctypes.byref(given), 1, integer, after, 0, world)
if not rank.value:
    mpi.MPI_Recv(ctypes.byref(given), 1, integer, before, 0, world, status)
print(f"rank {rank.value} of {size.value} on {socket.gethostname()} had {given.value}", flush=True)
mpi.MPI_Finalize()
