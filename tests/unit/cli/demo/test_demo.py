"""The demo from end to end, with a real supervisor, agent and keeper, and a short computation
instead of LAMMPS.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import process_search
import psutil
import pytest

pytestmark = pytest.mark.process

SHORT = """
import sys
from jobscribe.cli.demo import command as demo, computations
from jobscribe.cli.main import main
def chosen(say, folder):
    script = 'for i in 1 2 3; do echo "$((i * 300)) 1.5"; sleep %s; done; echo done > result.txt; exit %s'
    return computations.Computation(title="short", command=("/bin/sh", "-c", script), env={}, steps=1000, result="result.txt")
demo.choose = chosen
main(["demo", *sys.argv[1:]])
"""


def command(*args: str, secs: float = 0.05, code: int = 0) -> list[str]:
    return [sys.executable, "-c", SHORT % (secs, code), *args]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return (
        {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
        | {"TMPDIR": str(tmp_path)}
        | more
    )


def of(root: Path) -> list[psutil.Process]:
    """Return the processes whose command line contains this root."""
    out = []
    for pid in process_search.pids_with(str(root)):
        with contextlib.suppress(psutil.NoSuchProcess):
            out.append(psutil.Process(pid))
    return [p for p in out if p.pid != os.getpid()]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    yield root
    for process in of(root):
        process.kill()


def test_everything_is_where_it_says_and_nothing_is_left_running(
    root: Path, tmp_path: Path
) -> None:
    # The demo's supervisor uses the defaults, so this setting, which would break it, must not reach
    # it.
    done = subprocess.run(
        command("--json", "--root", str(root)),
        env=environment(tmp_path, JOBSCRIBE_NO_SUCH_SETTING="1"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert Path(value["result"]).read_text() == "done\n"
    assert json.loads(Path(value["record"]).read_text())["status"] == "completed"
    assert all(Path(path).exists() for path in [value["log"], value["events"], *value["output"]])
    assert "completed" in value["story"][-1]
    assert " 30 % | 300 1.5" in done.stderr
    assert of(root) == []


def test_the_default_root_is_fresh_and_the_code_is_the_jobs(tmp_path: Path) -> None:
    done = subprocess.run(
        command(code=7),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    made = list(tmp_path.glob("jobscribe-demo-*"))
    assert (done.returncode, len(made)) == (7, 1)
    for name in ("result", "record", "output", "log", "events", "story"):
        assert any(line.startswith(name) for line in done.stdout.splitlines()), name
    assert of(made[0]) == []


@pytest.mark.parametrize("how", ["option", "variable"])
def test_what_is_kept_runs_on(root: Path, tmp_path: Path, how: str) -> None:
    args, more = (["--keep"], {}) if how == "option" else ([], {"KEEP": "1"})
    subprocess.run(
        command("--root", str(root), *args),
        env=environment(tmp_path, **more),
        capture_output=True,
        timeout=100,
        check=True,
    )
    supervisor = json.loads((root / "client.json").read_text())["pid"]
    assert supervisor in [p.pid for p in of(root)]
    listed = subprocess.run(
        [sys.executable, "-m", "jobscribe.cli", "job", "list", "--json", "--root", str(root)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {i["status"] for i in json.loads(listed.stdout)["items"]} == {"completed", "error"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_cancels_and_stops_all(
    root: Path, tmp_path: Path, number: signal.Signals
) -> None:
    nap = float(f"300.{os.getpid()}")  # unique on this machine, also among earlier runs
    with subprocess.Popen(
        command("--keep", "--root", str(root), secs=nap),
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(number)
        code = process.wait(60)
    assert b"30 % | 300 1.5" in line
    assert code == 143
    assert process_search.pids_with(f"sleep\0{nap}\0") == []
    records = (root / "supervisor-job").glob("*-command.json")
    statuses = {json.loads(record.read_text())["status"] for record in records}
    assert statuses == {"canceled", "error"}


def test_a_root_that_is_not_empty_is_refused(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (root / "mine").write_text("precious")
    done = subprocess.run(
        command("--root", str(root)),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 125
    assert "is not empty" in done.stderr
    assert [p.name for p in root.iterdir()] == ["mine"]
