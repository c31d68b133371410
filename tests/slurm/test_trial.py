"""The trial of docs/sbatch.md: each block of commands runs unchanged, in one of two shells with an
empty environment.

Only locations, ports and users differ from the page, so that a real trial on this machine is not
disturbed.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_scripts import CALL_SECS, ROOT, free_ports, why_not
from supervisor_process import until

PAGE = ROOT / "docs" / "sbatch.md"
#: Five times the slowest block on a busy machine.
BLOCK_SECS = 3 * CALL_SECS
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def blocks() -> list[str]:
    """Return the section's blocks of commands, in order."""
    section = (
        PAGE.read_text(encoding="utf-8").partition("\n## Trying it out\n")[2].partition("\n## ")[0]
    )
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


class Terminal:
    """A root shell in the repository, as after `env -i`. The first failing command ends it."""

    def __init__(self, place: Path, name: str) -> None:
        self.said = place / f"{name}.out"
        with self.said.open("wb") as out:
            self.shell = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-s"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
                env={
                    "PATH": PATH,
                    "HOME": str(place / "home"),
                    "TERM": "dumb",
                    "LC_ALL": "C.UTF-8",
                },
            )
        self._read = self._typed = 0

    def type(self, text: str, until: str = "") -> str:
        """Type the text and return the output up to `until`, or until all commands are done."""
        assert self.shell.stdin is not None
        self._typed += 1
        mark = f"typed-to-the-end-of-{self._typed}."
        until = until or mark
        self.shell.stdin.write(f"{text}\necho {mark}\n".encode())
        self.shell.stdin.flush()
        deadline = time.monotonic() + BLOCK_SECS
        while until not in (
            new := self.said.read_text(encoding="utf-8", errors="replace")[self._read :]
        ):
            assert self.shell.poll() is None, (
                f"{text}\nended with {self.shell.returncode}:\n{new[-4000:]}"
            )
            assert time.monotonic() < deadline, f"{text}\nis not done:\n{new[-4000:]}"
            time.sleep(0.05)
        self._read += len(new)
        return new

    def interrupt(self) -> None:
        """Send Ctrl-C to the foreground command."""
        front = subprocess.run(
            ["pgrep", "-P", str(self.shell.pid)], capture_output=True, text=True
        ).stdout.split()
        for pid in front:
            os.kill(int(pid), signal.SIGINT)
        deadline = time.monotonic() + BLOCK_SECS
        while any(Path(f"/proc/{pid}").exists() for pid in front):
            assert time.monotonic() < deadline, "what was in front does not end"
            time.sleep(0.05)

    def close(self) -> None:
        assert self.shell.stdin is not None
        if self.shell.poll() is None:
            self.interrupt()
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.stdin.close()
        self.shell.wait()


class Trial:
    """The page with its own locations, ports and users, and its two terminals."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="jobscribe-trial-", dir="/var/tmp"))
        self.place.chmod(0o755)
        (self.place / "home").mkdir()
        slurm, sshd, self.users = free_ports(5), free_ports(3), f"jt{os.getpid()}"
        self.engines = {
            "etc/engines/slurm.sh": f"DIR={self.place}/slurm PORT={slurm} NODE={self.users}n etc/engines/slurm.sh",
            "etc/engines/sshd.sh": f"DIR={self.place}/sshd PORT={sshd} PREFIX={self.users} etc/engines/sshd.sh",
        }
        self.others = {
            "/var/tmp/jobscribe-slurm": f"{self.place}/slurm",
            "/var/tmp/jobscribe-sshd": f"{self.place}/sshd",
            "/var/tmp/jobscribe-trial": f"{self.place}/trial",
            "16950": str(sshd),
            "js-alice": f"{self.users}-alice",
            "js-two": f"{self.users}-two",
            "jobscribe up ": "jobscribe up --port 0 ",
        }
        self.first, self.second = Terminal(self.place, "first"), Terminal(self.place, "second")

    def typed(self, block: str) -> str:
        ours = self.others | self.engines
        return re.sub("|".join(map(re.escape, ours)), lambda found: ours[found[0]], block)

    def left(self) -> list[str]:
        """Return pid and command line of the processes of this trial."""
        lines = subprocess.run(
            ["ps", "-e", "-o", "pid=,args="], capture_output=True, text=True
        ).stdout.splitlines()
        return [line for line in lines if str(self.place) in line or f"{self.users}-" in line]

    def close(self) -> None:
        for terminal in (self.first, self.second):
            terminal.close()
        for name in ("sshd", "slurm"):
            subprocess.run(
                ["bash", "-c", f"{self.engines[f'etc/engines/{name}.sh']} clean"],
                cwd=ROOT,
                capture_output=True,
                timeout=BLOCK_SECS,
            )
        for (
            line
        ) in self.left():  # agents and keepers on `lab`, if the trial stopped before their end
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture
def trial() -> Iterator[Trial]:
    for name in ("slurm", "sshd", "mpi"):
        if reason := why_not(name):
            pytest.skip(reason)
    made = Trial()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(900)
def test_the_trial_of_the_page_works_as_it_stands(trial: Trial) -> None:
    prepare, describe, on_lab, sign_in, mpi, sign_out, stop, remove = map(trial.typed, blocks())
    said = trial.first.type(prepare)
    assert re.search(r"^batch +up .* 3 +idle", said, re.MULTILINE), said
    said = trial.first.type(describe, until="jobscribe ready at")
    assert "0 problems in 1 cluster" in said, said
    said = trial.second.type(on_lab)
    assert sorted(re.findall(rf"^{trial.users}n[12]$", said, re.MULTILINE)) == [
        f"{trial.users}n1",
        f"{trial.users}n2",
    ], said
    said = trial.second.type(sign_in)
    assert "(sign_in)" in said and f"signed in to far as {trial.users}-alice" in said, said
    assert re.search(rf"^{trial.users}-alice$", said, re.MULTILINE), said
    said = trial.second.type(mpi)
    assert re.search(r"with 2 MPI tasks", said), said
    said = trial.second.type(sign_out)
    assert re.search(rf"^{trial.users}-two$", said, re.MULTILINE), said
    assert "has stopped" in trial.second.type(stop)
    trial.first.interrupt()
    assert not [
        line for line in trial.left() if "jobscribe agent" in line or "jobscribe keeper" in line
    ], "the page says how they are ended"
    trial.first.type(remove)
    until(lambda: trial.left() == [], "nothing of it runs")
    assert [
        str(p) for name in ("slurm", "sshd", "trial") for p in (trial.place / name).rglob("*")
    ] == []
