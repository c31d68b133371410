"""Attacks of another unix user on the login node and the nodes, executed as that user. Prints the
results as one line of JSON: an errno, or the data obtained.

argv: base of the victim, folder of the link's socket, pids, job ids, ports.
"""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable

GIVEN = json.loads(sys.argv[1])
said: dict[str, str] = {}


def tries(what: str, doing: Callable[[], object]) -> None:
    try:
        got = doing()
    except OSError as e:
        said[what] = errno.errorcode.get(e.errno or 0, type(e).__name__)
    else:
        said[what] = f"GOT {got!r}"[:300]


def read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read(1000)


def mem(pid: int) -> bytes:
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            if mode.startswith("rw"):
                with open(f"/proc/{pid}/mem", "rb") as memory:
                    memory.seek(int(span.split("-")[0], 16))
                    return memory.read(16)
    raise PermissionError(errno.EACCES, "no map")


def connect(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        return "connected"


def write(path: str) -> str:
    with open(path, "ab") as f:
        f.write(b"x")
    return "written"


def slurm(*argv: str) -> str:
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if ran.returncode != 0 or "denied" in ran.stderr or "Invalid user" in ran.stderr:
        raise PermissionError(errno.EPERM, ran.stderr)
    return ran.stdout


def everything() -> None:
    for pid in GIVEN["pids"]:
        for name in ("environ", "maps", "io", "auxv"):
            tries(f"{name} of {pid}", lambda pid=pid, name=name: read(f"/proc/{pid}/{name}"))  # type: ignore[misc]
        for name in ("cwd", "exe", "root", "fd/0"):
            tries(f"{name} of {pid}", lambda pid=pid, name=name: os.readlink(f"/proc/{pid}/{name}"))  # type: ignore[misc]
        tries(f"fd of {pid}", lambda pid=pid: os.listdir(f"/proc/{pid}/fd"))  # type: ignore[misc]
        tries(f"mem of {pid}", lambda pid=pid: mem(pid))  # type: ignore[misc]
        tries(f"signal to {pid}", lambda pid=pid: os.kill(pid, 0))  # type: ignore[misc]
    for path in GIVEN["folders"]:
        tries(f"list {path}", lambda path=path: os.listdir(path))  # type: ignore[misc]
        tries(f"make in {path}", lambda path=path: os.mkdir(f"{path}/mine"))  # type: ignore[misc]
        tries(f"take {path}", lambda path=path: os.rename(path, f"{path}.mine"))  # type: ignore[misc]
    for path in GIVEN["files"]:
        tries(f"read {path}", lambda path=path: read(path))  # type: ignore[misc]
        tries(f"write {path}", lambda path=path: write(path))  # type: ignore[misc]
    for path in GIVEN["sockets"]:
        tries(f"connect {path}", lambda path=path: connect(path))  # type: ignore[misc]
    for job in GIVEN["jobs"]:
        tries(
            f"script of {job}", lambda job=job: slurm("scontrol", "write", "batch_script", job, "-")
        )  # type: ignore[misc]
        for verb in ("hold", "requeue", "suspend", "release"):
            tries(f"{verb} {job}", lambda job=job, verb=verb: slurm("scontrol", verb, job))  # type: ignore[misc]
        tries(f"cancel {job}", lambda job=job: slurm("scancel", "-v", job))  # type: ignore[misc]
        tries(
            f"comment of {job}",
            lambda job=job: slurm("scontrol", "update", f"jobid={job}", "comment=mine"),
        )  # type: ignore[misc]
        tries(
            f"attach to {job}", lambda job=job: slurm("srun", "--overlap", f"--jobid={job}", "id")
        )  # type: ignore[misc]


everything()
shown = [
    subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    for argv in (
        ["squeue", "-t", "all", "-o", "%all"],
        ["scontrol", "show", "job", "-dd"],
        ["sacct", "-aP", "-o", "all"],
        ["ps", "axwweo", "user,pid,args"],
    )
]
print(json.dumps({"said": said, "shown": shown}))
