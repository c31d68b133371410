"""Fixtures for the fake supervisor and for command lines as a user starts them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_supervisor import FakeSupervisor


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Any]:
    supervisor = FakeSupervisor(tmp_path)
    yield supervisor
    supervisor.close()


class Ended:
    """Result of one command line."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        """Return the standard output as one JSON value; fail if it is anything else."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self) -> str:
        return f"Ended({self.code}\n--- out\n{self.out}\n--- err\n{self.err})"


@pytest.fixture
def run(
    fake: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """`run("job", "list")` runs a command line in this process, with the fake's root in the
    environment.
    """
    for name in [n for n in os.environ if n.startswith("JOBSCRIBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JOBSCRIBE_ROOT", str(fake.root))
    from jobscribe.cli.main import call
    from jobscribe.cli.session import request_progress
    from jobscribe.cli.terminal import screen

    # on a busy machine, quick commands would be slow enough to print progress
    monkeypatch.setattr(screen, "QUIET_SECS", 60.0)
    monkeypatch.setattr(request_progress, "QUIET_SECS", 60.0)

    def run(*args: str) -> Ended:
        capfd.readouterr()
        code = call(list(args))
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def started(fake: Any) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """`started("run", "--", "date")` starts a command line in its own process. The fixture kills it
    at the end of the test if it still runs.
    """
    processes: list[subprocess.Popen[bytes]] = []
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "JOBSCRIBE_ROOT": str(fake.root)
    }

    def started(*args: str, **attributes: Any) -> "subprocess.Popen[bytes]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | attributes
        process = subprocess.Popen(
            [sys.executable, "-m", "jobscribe.cli", *args],
            env=env | attributes.pop("env", {}),
            **pipes,
        )
        processes.append(process)
        return process

    yield started
    for process in processes:
        with process:
            process.kill()
