"""Workflows of real Snakemake with the executor plug-in, and a real supervisor."""

import os
import subprocess
from pathlib import Path

import pytest
from supervisor_process import SupervisorProcess

import jobscribe

SCRIPT = Path(jobscribe.__file__).parent / "etc/engines/snakemake.sh"
END_SECS = 180.0


def program() -> str:
    """Return the path of Snakemake. Skips the test where it is not installed."""
    done = subprocess.run(
        [SCRIPT, "where"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return str(Path(done.stdout.strip()).parent / "snakemake")


class Workflow:
    """A workflow in a folder of its own. site: the supervisor, or the options that name it. user: unix
    ids of Snakemake, if they are not those of this process.
    """

    def __init__(
        self,
        program: str,
        site: SupervisorProcess | tuple[str, ...],
        folder: Path,
        user: tuple[int, int] | None = None,
    ) -> None:
        self._program, self.folder, self._user = program, folder, user
        self._site = site if isinstance(site, tuple) else ("--jobscribe-root", str(site.root))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, text: str, *options: str, **env: str) -> "subprocess.Popen[bytes]":
        """Start Snakemake; its output is in `said`."""
        (self.folder / "Snakefile").write_text(text)
        with self.said.open("wb") as out:
            process = subprocess.Popen(
                [
                    *(self._program, "--executor", "jobscribe", "--jobs", "8"),
                    *(*self._site, "--nocolor"),
                    *("--seconds-between-status-checks", "1", *options),
                ],
                cwd=self.folder,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")},
                    "XDG_CACHE_HOME": str(self.folder / "cache"),
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                user=None if self._user is None else self._user[0],
                group=None if self._user is None else self._user[1],
                extra_groups=None if self._user is None else (),
            )
        self.processes.append(process)
        return process

    @property
    def said(self) -> Path:
        return self.folder / "said"  # written by this process

    def text(self) -> str:
        return self.said.read_text()

    def starts(self) -> list[str]:
        """Return the names of the jobs that started, once for each start."""
        file = self.folder / "starts"
        return sorted(file.read_text().split()) if file.exists() else []

    def end(self) -> None:
        """End all processes of Snakemake."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
