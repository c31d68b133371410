"""How the tests of this folder call the scripts that start their engines (etc/engines)."""

import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Five times what the slowest call takes on a busy machine.
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
    """A command ended with another code than it should have; with what it wrote."""


class Script:
    """One of the scripts, with its parameters."""

    def __init__(self, name: str, given: Mapping[str, str]) -> None:
        self.path = ROOT / "etc" / "engines" / f"{name}.sh"
        self.given = dict(given)

    def __call__(self, *args: str, code: int | None = 0, **more: str) -> str:
        """What a verb wrote. code: that it must end with; None: any."""
        env = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("JOBSCRIBE_", "SLURM_", "SBATCH_", "SQUEUE_")) and k not in _OURS
        }
        # not into pipes: a daemon that it leaves behind would hold them open
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
    """Why what this script starts can not be had here; nothing if it can."""
    try:
        Script(name, {})("check")
    except Refused as e:
        return str(e).partition(": ")[2].partition(": ")[2]
    return ""


def free_ports(count: int) -> int:
    """The first of so many ports in a row, all of them free."""
    while True:
        port = random.randrange(29_000, 32_000)
        if not any(_taken(port + n) for n in range(count)):
            return port


def _taken(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
