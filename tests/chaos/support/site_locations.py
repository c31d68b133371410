"""Locations and users of the test sites: the user who runs the tests, and an ordinary user.

Environment: SOAK unset means a small share of every figure, SOAK=1 the whole (`make soak`). SEED is
the random seed.
"""

import os
import random
import subprocess
import sys
import sysconfig
from functools import cache

from supervisor_process import PYTHON_PATH, SupervisorProcess, become

SOAK = os.environ.get("SOAK") == "1"
#: Factor for promised times in an ordinary run: the machine may be busy.
ROOM = int(os.environ.get("ROOM", 1 if SOAK else 5))
#: The uid of ordinary sites if the tests run as root.
ORDINARY = 65534


def dice(what: str) -> random.Random:
    """Return a random generator for one test, the same in every run with the same SEED. The seed is
    printed in the test's output.
    """
    seed = os.environ.get("SEED", "0")
    print(f"SEED={seed}")
    return random.Random(f"{seed}/{what}")


def share(small: int, whole: int) -> int:
    """Return the number of repetitions: `small` in an ordinary run, `whole` in a soak run."""
    return whole if SOAK else small


@cache
def everybodys_python() -> tuple[str, str] | None:
    """Return an interpreter that an ordinary user can start, and its search path for this package
    and the dependencies; None if there is none.

    The interpreter of the tests may lie in a private home. Then a system-wide one of the same
    version is used.
    """
    packages = os.pathsep.join(filter(None, (PYTHON_PATH, sysconfig.get_path("purelib"))))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python, path in (
        (sys.executable, PYTHON_PATH),
        (f"/usr/bin/python{version}", packages),
        (f"/usr/local/bin/python{version}", packages),
    ):
        try:
            tried = subprocess.run(
                [
                    python,
                    "-P",
                    "-c",
                    "import jobscribe.supervisor.app, jobscribe.cli, jobscribe.agent.process",
                ],
                capture_output=True,
                cwd="/",
                env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                preexec_fn=lambda: become(ORDINARY),
                check=False,
            )
        except OSError:  # missing, or not executable for that user
            continue
        if tried.returncode == 0:
            return python, path
    return None


def new_site(
    who: int | None, *sets: str, modules: dict[str, str] | None = None
) -> SupervisorProcess:
    """Return a new root without a supervisor, for this user (None: the user who runs the tests).
    modules: Python modules of its apps, by file name.
    """
    python, packages = sys.executable, PYTHON_PATH
    if who is not None:
        found = everybodys_python()
        assert found is not None
        python, packages = found
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    site = SupervisorProcess(sets, python=python, who=who, env=environment)
    folder = site.place / "modules"
    folder.mkdir(mode=0o755)
    for name, text in (modules or {}).items():
        (folder / name).write_text(text)
    site.add_environment(PYTHONPATH=f"{packages}{os.pathsep}{folder}")
    return site
