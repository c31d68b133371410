"""Released versions of jobscribe for tests: wheels in tests/releases, each in a virtual environment
of its own that shares the other packages of the tests' environment.

    python released_version.py VERSION FOLDER              make the environment by hand
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

RELEASES = Path(__file__).parents[2] / "releases"
PREVIOUS = "0.1.0"


class Released:
    """A released version. python: its interpreter."""

    def __init__(self, version: str, python: Path) -> None:
        self.version, self.python = version, str(python)

    def run(self, *words: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run this interpreter with these arguments, without the tree on its path."""
        env = {
            k: v for k, v in os.environ.items() if not k.startswith(("JOBSCRIBE_", "PYTHONPATH"))
        }
        return subprocess.run(
            [self.python, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=env,
            cwd="/",
        )

    def command(self, root: Path, *words: str) -> str:
        """Return the output of a command of this version on `root`, which must succeed."""
        done = self.run("-m", "jobscribe.cli", "--root", str(root), *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


def install(version: str, folder: Path) -> Released:
    """Install the wheel of a released version into a new environment in `folder`."""
    wheel = RELEASES / f"jobscribe-{version}-py3-none-any.whl"
    digest, _, name = wheel.with_suffix(".whl.sha256").read_text("ascii").strip().partition("  ")
    assert (digest, name) == (hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.name)
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A line of a .pth file adds a folder, but not the .pth files in it, which lead to the tree.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Released(version, folder / "bin" / "python")


if __name__ == "__main__":
    print(install(sys.argv[1], Path(sys.argv[2])).python)
