"""A program of Python for tests of stacks and profiles, and the py-spy of this environment for it."""

import os
import shutil
import sysconfig
from pathlib import Path

#: Computes a little until the file of its first argument is there, and ends with code 3. A child has
#: made itself unreadable, so only CAP_SYS_PTRACE may look into it.
PROGRAM = """
import ctypes, os, signal, sys, time
child = os.fork()
if child == 0:
    ctypes.CDLL(None).prctl(4, 0)
    while True:
        time.sleep(1000)
def computes():
    while not os.path.exists(sys.argv[1]):
        sum(range(60000))
        time.sleep(0.004)
print("begun", flush=True)
computes()
os.kill(child, signal.SIGKILL)
os._exit(3)
"""
#: The command of a task: run it with a py-spy in the folder of the run.
COMMAND = f"""until [ -e ../../py-spy ]; do sleep 0.1; done
PATH=$(cd ../..; pwd):$PATH; export PATH
exec python3 -c '{PROGRAM}' ../../go"""


def give_pyspy(folder: Path) -> None:
    """Put py-spy into a folder, under its name at once. It is linked statically."""
    shutil.copy(Path(sysconfig.get_path("scripts")) / "py-spy", folder / "py-spy.new")
    (folder / "py-spy.new").chmod(0o755)
    os.rename(folder / "py-spy.new", folder / "py-spy")


class Recorders:
    """The processes of py-spy that record, with this word in their command line, seen so far."""

    def __init__(self, word: object) -> None:
        self._word, self.seen = str(word).encode(), set[int]()

    def __call__(self) -> int:
        """Return their number."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"record" in words and self._word in words:
                self.seen.add(int(folder.name))
        return len(self.seen)
