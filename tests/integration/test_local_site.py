"""`jobscribe run --local`: a private supervisor, of which nothing remains."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from supervisor_process import open_files, until

from jobscribe.cli.session.session import Session
from jobscribe.cli.submission import local_runs
from jobscribe.client import Client
from jobscribe.runtime import processes

#: The tasks of the second job leave a file each, and ignore SIGTERM.
JOBS = """
jobs:
- name: prep
  driver: sbatch
  batch: {{partition: long, nodes: 4}}
  command: [sh, -c, "echo prepared; exit 0"]
- name: train
  after: [prep]
  roles:
    worker:
      tasks: 2
      image: pytorch/pytorch:2
      cpu: 500
      command: "trap '' TERM; echo $$ > {folder}/pids-$$; while :; do sleep 1; done"
"""


def _listening(pids: list[int]) -> list[str]:
    """Return the TCP sockets at which these processes listen."""
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in lines.splitlines()]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    return [file for pid in pids for file in open_files(pid) if file in inodes]


def _of(root: str) -> list[int]:
    """Return all processes with this root in their arguments or environment."""
    found = []
    for process in processes.table().values():
        texts = b"".join(
            processes._read(f"/proc/{process.pid}/{name}") for name in ("cmdline", "environ")
        )
        if not process.over and process.pid != os.getpid() and root.encode() in texts:
            found.append(process.pid)
    return found


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a temporary folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="l-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _start(folder: Path, temporary: Path, *words: str) -> "subprocess.Popen[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "jobscribe.cli", "run", "--local", *words],
        cwd=folder,
        env={**kept, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # the shell of the tests may ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGKILL, marks=pytest.mark.soak("the same test with SIGINT")),
    ],
)
def test_jobs_for_clusters_and_containers_run_here_and_leave_nothing(
    number: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS.format(folder=tmp_path))
    process = _start(tmp_path, temporary, "-f", str(file))
    try:
        until(
            lambda: process.poll() is not None or len(list(tmp_path.glob("pids-*"))) == 2,
            "both tasks run",
            60,
        )
        assert process.poll() is None, process.communicate()
        (root,) = temporary.iterdir()
        assert root.stat().st_mode & 0o777 == 0o700
        assert {p.name for p in (root / "sockets").iterdir()} == {"agents", "api"}
        assert {p.stat().st_mode & 0o777 for p in (root / "sockets").iterdir()} == {0o600}
        everybody = [*_of(str(root)), process.pid]
        assert len(everybody) >= 6  # guard, supervisor, keeper, agent, two tasks
        assert _listening(everybody) == []
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if number == signal.SIGINT:
        assert out == "prepared\n"
        assert process.returncode == 137, err
        assert "`partition` (long) of the request to the cluster has no effect here" in err
        assert "`nodes` (4) of the request to the cluster is not honoured" in err
        assert "the image pytorch/pytorch:2 is not used" in err
        assert "canceled: " in err
    until(lambda: _of(str(root)) == [], "no process is left", 60)
    until(lambda: not root.exists(), "no file is left", 60)


def test_an_interrupt_just_after_the_end_of_a_run_is_about_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Client(local=True) as client, contextlib.closing(Session({})) as session:
        session.use_private(client)
        ended, waiting, last = (client.run(words) for words in (["true"], ["sleep", "999"], ["id"]))
        ended.wait(60)
        wait = mock.Mock(side_effect=[KeyboardInterrupt, ended.wait()])
        monkeypatch.setattr(ended, "wait", wait)
        code = local_runs._follow_all(session, [ended, waiting, last])
        assert code == waiting.wait().shell_code != 0
    err = capfd.readouterr().err
    assert f"canceling {ended.jid}; Ctrl-C again exits without waiting for its end" in err
    assert err.count("canceled: ") == 1 and f"{waiting.jid} canceled: " in err


def test_a_local_client_has_the_same_states_and_reasons() -> None:
    with Client(local=True) as client, pytest.warns(UserWarning, match="the image a/b is not used"):
        job = client.run(["sh", "-c", "echo out; exit 3"], driver="docker", task={"image": "a/b"})
        state: Any = job.wait(60)
        assert (state.state, state.shell_code) == ("error", 3)
        assert b"".join(part.data for part in job.logs()) == b"out\n"
        assert "exit code 3" in job.why()["sentence"]
        with client.copy() as other:
            assert other.status(job.jid).state == "error"
        root = client._site.root if client._site is not None else ""
        assert Path(root).is_dir()
    assert not Path(root).exists()
    assert _of(root) == []
