"""Jobs per second through a keeper, with and without cgroups, next to the limits of the machine:
`python tests/bench/keeper_bench.py [jobs]`. Where no cgroups can be created, both figures are
equal.

Both sides run `/bin/true`, two at a time. The floors are posix_spawn of `/bin/true` alone, and of
`sh` running it, which is a job's process tree.
"""

import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from jobscribe.agent.keeper import process
from jobscribe.protocol.ids import Token
from jobscribe.protocol.launch.job_script import script
from jobscribe.protocol.launch.keeper_messages import StartOrder
from jobscribe.protocol.launch.message_fields import encode
from jobscribe.protocol.wire.messages import TaskSpec

AT_ONCE = 2


def main() -> int:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    alone = jobs / _spawned(jobs, lambda: ("/bin/true", ["true"]))
    with_shell = jobs / _spawned(
        jobs, lambda: ("/bin/sh", ["sh", "-c", "( exec /bin/true ); exit $?"])
    )
    print(f"{jobs} x /bin/true, {AT_ONCE} at a time")
    print(f"  posix_spawn alone           {alone:8.0f} a second")
    print(f"  posix_spawn of sh + it      {with_shell:8.0f} a second")
    for use in ("off", "v1", "v2"):
        found = _through_keeper(jobs, use)
        print(
            f"  through the keeper, cgroups {use:3}: {jobs / found.secs:5.0f} a second  ({jobs / found.secs / with_shell:.2f} of sh + it),"
            f" CPU a job: {1000 * found.keeper_cpu / jobs:.2f} ms of the keeper, {1000 * found.job_cpu / jobs:.2f} ms of the job;"
            f" {found.inodes / jobs:.1f} inodes, {found.blocks / 2 / jobs:.0f} KiB a job; {found.rss / 1024:.1f} MiB at the end"
        )
    return 0


class Found(NamedTuple):
    """Times in seconds; rss: of the keeper at its end, in KiB; blocks: of 512 bytes."""

    secs: float
    keeper_cpu: float
    job_cpu: float
    rss: int
    inodes: int
    blocks: int


def _spawned(jobs: int, program: Callable[[], tuple[str, list[str]]]) -> float:
    begin = time.perf_counter()
    left = jobs
    running = 0
    while left or running:
        while left and running < AT_ONCE:
            path, args = program()
            os.posix_spawn(path, args, {})
            left -= 1
            running += 1
        os.wait()
        running -= 1
    return time.perf_counter() - begin


def _through_keeper(jobs: int, cgroups: str) -> Found:
    """Run the jobs. CPU seconds of the keeper are those without its children."""
    with tempfile.TemporaryDirectory(prefix="keeper-bench-") as place:
        ours, theirs = socket.socketpair()
        report_from, report_to = os.pipe()
        pid = os.fork()
        if pid == 0:
            ours.close()
            process.run(
                {
                    "root": place,
                    "folder": f"{place}/agent",
                    "agent": {},
                    "cgroups": {"use": cgroups},
                },
                lambda sock: _relay(sock, theirs),
            )
            usage = resource.getrusage(resource.RUSAGE_SELF)
            os.write(report_to, json.dumps([usage.ru_utime + usage.ru_stime, _resident()]).encode())
            os._exit(0)
        theirs.close()
        os.close(report_to)
        secs, job_cpu = _drive(ours, Path(place), jobs)
        cpu, rss = json.loads(os.read(report_from, 1000))
        os.waitpid(pid, 0)
        entries = [os.lstat(p) for where in ("run-*", "agent/run/*") for p in _tree(place, where)]
        return Found(secs, cpu, job_cpu, rss, len(entries), sum(e.st_blocks for e in entries))


def _tree(place: str, pattern: str) -> list[Path]:
    tops = list(Path(place).glob(pattern))
    return [*tops, *(p for top in tops for p in top.rglob("*"))]


def _relay(sock: socket.socket, test_side: socket.socket) -> int:
    """Stand in for the agent: a process that relays bytes between the two sockets, so that its CPU
    time is not counted as the keeper's.
    """
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    sock.setblocking(True)
    if os.fork() == 0:
        while data := sock.recv(65536):
            test_side.sendall(data)
        os._exit(0)
    while data := test_side.recv(65536):
        sock.sendall(data)
    os._exit(0)


def _drive(sock: socket.socket, place: Path, jobs: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds of the jobs' own processes)."""
    lines = _lines(sock)
    hello = json.loads(next(lines))
    folder = hello["folder"]
    tokens = [Token("user1234-sim12345-command", n, 1, "main", 0) for n in range(1, jobs + 1)]
    orders = []
    for token in tokens:
        run_dir = f"{place}/run-{token.serial}"
        text = script(
            token,
            TaskSpec(command=("/bin/true",), run_dir=run_dir),
            {"PATH": "/usr/bin:/bin", "HOME": "/"},
            f"{folder}/run/{token.name}",
        )
        command = StartOrder(
            name=token.name,
            token=str(token),
            run_dir=run_dir,
            command=["/bin/true"],
            env={"PATH": "/usr/bin:/bin", "HOME": "/"},
            script=(text, ""),
        )
        orders.append(encode(command))
    begin = time.perf_counter()
    for order in orders[:AT_ONCE]:
        sock.sendall(json.dumps(order).encode() + b"\n")
    ended = 0
    job_cpu = 0.0
    sent = AT_ONCE
    for line in lines:
        said = json.loads(line)
        if said["is"] != "ended":
            continue
        assert said["exit"]["code"] == 0, said
        ended += 1
        job_cpu += said["exit"]["userSecs"] + said["exit"]["systemSecs"]
        sock.sendall(json.dumps({"do": "forget", "names": [said["name"]]}).encode() + b"\n")
        if sent < jobs:
            sock.sendall(json.dumps(orders[sent]).encode() + b"\n")
            sent += 1
        if ended == jobs:
            break
    secs = time.perf_counter() - begin
    sock.sendall(b'{"do": "quit", "stopJobs": true, "grace": 1}\n')
    return secs, job_cpu


def _lines(sock: socket.socket) -> Iterator[bytes]:
    rest = b""
    while data := sock.recv(65536):
        *whole, rest = (rest + data).split(b"\n")
        yield from whole


def _resident() -> int:
    with open("/proc/self/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1])


if __name__ == "__main__":
    sys.exit(main())
