"""Where the sites of these tests lie, and as whom they run: as whoever runs the tests, and as an
ordinary user.

SOAK in the environment: unset, a small share of every figure; 1, the whole of it (`make soak`).
SEED: where chance begins.
"""

import os
import random
import subprocess
import sys
import sysconfig
from functools import cache

from supervisor_process import PYTHON_PATH, SupervisorProcess, become

SOAK = os.environ.get("SOAK") == "1"
#: Times the promised seconds in an ordinary run: the machine may be busy.
ROOM = 1 if SOAK else 5
#: The ordinary user that sites run as where the tests run as root.
ORDINARY = 65534


def dice(what: str) -> random.Random:
    """Chance of its own for one test, the same in every run with the same SEED; what it was stands
    in the test's output.
    """
    seed = os.environ.get("SEED", "0")
    print(f"SEED={seed}")
    return random.Random(f"{seed}/{what}")


def share(small: int, whole: int) -> int:
    """How often: in an ordinary run, and in a soak."""
    return whole if SOAK else small


@cache
def everybodys_python() -> tuple[str, str] | None:
    """An interpreter that an ordinary user can start, and where it finds this package and what that
    needs; None where there is none.

    The one of these tests may lie in somebody's closed home; then one of the same version that the
    machine has for everybody will do.
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
        except OSError:  # it may not be executed by that user, or is not there
            continue
        if tried.returncode == 0:
            return python, path
    return None


def new_site(
    who: int | None, *sets: str, modules: dict[str, str] | None = None
) -> SupervisorProcess:
    """A fresh root that no supervisor has yet, for this user (None: whoever runs the tests).
    modules: that its apps are in, by file name.
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
