"""Set the wall clock and the boot id for all processes of a site, and for no other process."""

import os
import shutil
import sys
import time
from pathlib import Path

from supervisor_process import PYTHON_PATH

HOUR, DAY = 3600.0, 86400.0
_HERE = Path(__file__).parent

#: An app whose call takes the requested time.
SLOW_APP = """
import time
from jobscribe.apps.app import App, Model, Prepared

app = App(
    name="slow", title="Slow", version="1", models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("true",)), result=lambda run: {}, stateless={"nap": lambda args: time.sleep(args["secs"]) or args},
)
"""

_WRAPPER = """#!/bin/sh
# the interpreter, on a machine that was booted as the file says
exec unshare --mount sh -c 'mount --bind "{boot}" /proc/sys/kernel/random/boot_id && exec "$0" "$@"' "{python}" "$@"
"""


class SetClock:
    """Clock of one site; pass `env` and `python` to the site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        shutil.copy(_HERE / "wall_clock" / "sitecustomize.py", folder)
        (folder / "slow_app.py").write_text(SLOW_APP)
        self.set(0.0)
        self.env = {"PYTHONPATH": f"{folder}{os.pathsep}{PYTHON_PATH}"}
        self._boot = folder / "boot_id"
        self.boot(1)

    @property
    def wall(self) -> float:
        """Return the wall clock of the site's processes."""
        return time.time() + self.offset

    def set(self, offset: float) -> None:
        """Set the offset from the true time, in seconds, from now on."""
        self.offset = offset
        new = self.folder / "offset.new"
        new.write_text(repr(offset))
        new.rename(self.folder / "offset")

    # ---- boots (root only)

    def boot(self, number: int) -> None:
        """Set the boot of processes that start from now on."""
        self._boot.write_text(f"{number:08x}-0000-4000-8000-000000000000\n")

    @property
    def python(self) -> str:
        path = self.folder / "python-of-this-boot"
        path.write_text(_WRAPPER.format(boot=self._boot, python=sys.executable))
        path.chmod(0o755)
        return str(path)
