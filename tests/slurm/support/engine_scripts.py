"""Calls of the scripts that start the test engines (etc/engines)."""

import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Five times the slowest call on a busy machine.
CALL_SECS = 100.0
_OURS = (
    "DIR",
    "PORT",
    "NAME",
    "NODE",
    "NODES",
    "CPUS",
    "MEM",
    "GPUS",
    "CGROUP",
    "ENFORCE",
    "FORGET_SECS",
    "EXTRA",
    "PREFIX",
    "SLURM_CONF",
)


class Refused(Exception):
    """A command ended with an unexpected exit code; the message is its output."""


class Script:
    """One of the scripts, with its parameters."""

    def __init__(self, name: str, given: Mapping[str, str]) -> None:
        self.path = ROOT / "etc" / "engines" / f"{name}.sh"
        self.given = dict(given)

    def __call__(self, *args: str, code: int | None = 0, **more: str) -> str:
        """Run a verb and return its output. code: required exit code; None: any."""
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("JOBSCRIBE_", "SLURM_", "SBATCH_", "SQUEUE_")) and k not in _OURS
        }
        # no pipes: the daemons left running would hold them open
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self.path, *args],
                env=env | self.given | more,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=3 * CALL_SECS,
                cwd="/",
            )
            said.seek(0)
            text = said.read().decode(errors="replace")
        if code is not None and done.returncode != code:
            raise Refused(
                f"{self.path.name} {' '.join(args)}: {done.returncode}: {text[-3000:].strip()}"
            )
        return text


def why_not(name: str) -> str:
    """Return why the script cannot start its engine here, or an empty string."""
    try:
        Script(name, {})("check")
    except Refused as e:
        return str(e).partition(": ")[2].partition(": ")[2]
    return ""


#: Ports that were returned before: their servers may not listen yet.
_given: set[int] = set()


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports, which no other caller takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
    while True:
        port = 29_000 + 500 * worker + random.randrange(500 - count)
        some = range(port, port + count)
        if _given.isdisjoint(some) and not any(map(_taken, some)):
            _given.update(some)
            return port


def _taken(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
