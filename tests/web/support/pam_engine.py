"""The real libpam with a service folder of the test: `pam_matrix` reads names, passwords and allowed
services from a file. A child process of the check gets the folder by its environment.
"""

import os
import subprocess
from pathlib import Path

import pytest
import supervisor_process

ROOT = Path(__file__).resolve().parents[3]
SERVICE = "jobscribe"
#: Makes libpam read service files from a folder. Everything else is as in the product.
HOOK = """
import ctypes, os, pamela
start = pamela.LIBPAM.pam_start_confdir
start.restype = ctypes.c_int
start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(pamela.PamConv),
                  ctypes.c_char_p, ctypes.POINTER(pamela.PamHandle)]
folder = os.environ["TEST_PAM_FOLDER"].encode()
pamela.PAM_START = lambda service, user, conv, handle: start(service, user, conv, folder, handle)
"""


def pam(folder: Path) -> dict[str, str]:
    """Make services in this folder, and return the environment of a check. `ann` may sign in, and
    the account of `bob` is not for this service. Skips the test without pam_matrix.

    The service `slow` does not answer, and `broken` names a module that does not exist.
    """
    engine = ROOT / "etc/engines/pam_matrix.sh"
    done = subprocess.run([engine, "where"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{done.stderr.strip()} (make engines does it)")
    users = folder / "users"
    users.write_text("ann:Pw7-of-ann-here:jobscribe\nbob:Pw7-of-bob-here:other\n")
    rule = f"required {done.stdout.strip()} passdb={users}"
    services = {
        SERVICE: f"auth {rule}\naccount {rule}\n",
        "slow": f"auth required pam_exec.so /bin/sleep 60\naccount {rule}\n",
        "broken": f"auth required pam_no_such_module.so\naccount {rule}\n",
    }
    for name, text in services.items():
        (folder / name).write_text(text)
    (folder / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join((str(folder), supervisor_process.PYTHON_PATH))
    return {**os.environ, "PYTHONPATH": path, "TEST_PAM_FOLDER": str(folder)}
