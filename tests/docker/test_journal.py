"""The real systemd journal, in an instance of its own: log records are found by their fields, are
complete, and survive a journal restart.
"""

import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, spec

from jobscribe.runtime.log.journald import Journal
from jobscribe.runtime.log.logger import Record

JOURNALD = "/lib/systemd/systemd-journald"
CONFIG = "[Journal]\nStorage=volatile\nRuntimeMaxUse=64M\nRateLimitBurst=0\nReadKMsg=no\nAudit=no\n"
JID = "EPRSqtUW-IVh7w74d-model"
pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0,
        reason="a journal of its own can be started by root only: run the tests as root",
    ),
    pytest.mark.skipif(
        not (os.path.exists(JOURNALD) and shutil.which("journalctl")),
        reason="systemd-journald and journalctl are missing: install systemd",
    ),
]

SERVER = """
import os, sys
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log import journald as journal
from jobscribe.service.log.sink import open_log
from jobscribe.service.settings.settings import LogSettings
journal.SOCKET = sys.argv[1]
info = os.fstat(1)
os.environ["JOURNAL_STREAM"] = f"{info.st_dev}:{info.st_ino}"
log, sink = open_log("supervisor", LogSettings(), Redactor(["k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"]), stream=sys.stdout, file=sys.argv[2])
print("said by print", flush=True)
log("opName=run k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6", jid="EPRSqtUW-IVh7w74d-model", op="pb5uQ2VrwfCGHEGF", agent="WUt4wfCG")
try:
    raise ValueError("k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6")
except ValueError as e:
    log.exception("it failed: {}", e, jid="EPRSqtUW-IVh7w74d-model")
log("of another job", jid="EPRSqtUW-IVh7w74d-other")
sink.close()
"""


_NUMBERS = itertools.count()


class Journald:
    """A journal instance with a unique name."""

    def __init__(self, log: Path) -> None:
        self.name = f"jobscribe-test-{os.getpid()}-{next(_NUMBERS)}"
        self.folder = Path(f"/run/systemd/journal.{self.name}")
        self._config = Path(f"/run/systemd/journald@{self.name}.conf.d/test.conf")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(CONFIG)
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [JOURNALD, self.name], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        eventually(self._listens)

    def down(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def clear(self) -> None:
        self.down()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._config.parent, ignore_errors=True)
        for folder in Path("/run/log/journal").glob(f"*.{self.name}"):
            shutil.rmtree(folder)

    def found(self, *about: str) -> list[dict[str, Any]]:
        command = ["journalctl", f"--namespace={self.name}", "--all", "-o", "json", *about]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def shown(self, *about: str) -> str:
        command = ["journalctl", f"--namespace={self.name}", "--no-pager", "--utc", *about]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    def stream(self) -> socket.socket:
        """Return a socket like a service's stdout."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.connect(str(self.folder / "stdout"))
        made.sendall(b"jobscribe-supervisor\n\n6\n1\n0\n0\n0\n")
        return made

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            try:
                s.connect(str(self.folder / "socket"))
            except OSError:
                return False
        return True


def eventually(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (result := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    made = Journald(tmp_path / "journald.log")
    try:
        made.up()
        yield made
    finally:
        made.clear()


def record(message: str, trace: str = "", jid: str = JID) -> Record:
    return Record(
        time.time(),
        os.getpid(),
        0,
        "supervisor",
        "supervisor/connections/hub.py:173:receive",
        message,
        {"jid": jid},
        trace,
    )


@pytest.mark.timeout(120)
def test_a_servers_log_is_in_the_journal_once_and_found_by_its_job(
    journald: Journald, tmp_path: Path
) -> None:
    """With `auto`, in a process whose stdout is the journal's, like a service."""
    file = tmp_path / "supervisor.log"
    with journald.stream() as stdout:
        script = tmp_path / "server.py"
        script.write_text(SERVER)
        command = [sys.executable, str(script), str(journald.folder / "socket"), str(file)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout, check=True, timeout=60
        )
    first, second = eventually(
        lambda: found if len(found := journald.found(f"JOBSCRIBE_JID={JID}")) == 2 else None
    )
    assert (first["_TRANSPORT"], first["PRIORITY"], first["SYSLOG_IDENTIFIER"]) == (
        "journal",
        "6",
        "jobscribe-supervisor",
    )
    assert (first["JOBSCRIBE_OP"], first["JOBSCRIBE_AGENT"]) == ("pb5uQ2", "WUt4")
    assert first["MESSAGE"].endswith("opName=run <REDACTED>") and first["CODE_FUNC"] == "<module>"
    assert second["PRIORITY"] == "3" and "ValueError: <REDACTED>" in second["JOBSCRIBE_TRACEBACK"]
    eventually(lambda: journald.found("_TRANSPORT=stdout"))
    everything = [r["MESSAGE"] for r in journald.found("SYSLOG_IDENTIFIER=jobscribe-supervisor")]
    assert sorted(m.rsplit(" ", 3)[-1] for m in everything) == [
        "<REDACTED>",
        "<REDACTED>",
        "job",
        "print",
    ], "each once"
    assert "k9TqCanary" not in journald.shown("-o", "verbose")
    lines = [line for line in file.read_text().splitlines() if not line.startswith("  ")]
    shown = journald.shown(f"JOBSCRIBE_JID={JID}").splitlines()
    assert [s.split(": ", 1)[1] for s in shown] == [
        line.split(maxsplit=5)[5] for line in lines[:2]
    ], "the same line, without time and pid"


@pytest.mark.timeout(120)
def test_a_large_record_is_whole_there(journald: Journald) -> None:
    journal = Journal(
        "jobscribe-supervisor", path=str(journald.folder / "socket"), patience_secs=10.0
    )
    message, trace = "größer " * 60_000, "Traceback\n" + "  line\n" * 20_000
    journal.put(record(message, trace))
    (found,) = eventually(lambda: journald.found(f"JOBSCRIBE_JID={JID}"))
    assert (
        found["MESSAGE"] == f"supervisor/connections/hub.py:173:receive {message}"
        and found["JOBSCRIBE_TRACEBACK"] == trace
    )
    journal.close()


@pytest.mark.timeout(240)
def test_a_journal_that_is_killed_and_comes_back_is_told_what_it_missed(journald: Journald) -> None:
    journal = Journal(
        "jobscribe-supervisor", path=str(journald.folder / "socket"), patience_secs=10.0
    )
    journal.put(record("before"))
    eventually(lambda: journald.found(f"JOBSCRIBE_JID={JID}"))
    journald.down()
    for _ in range(3):
        journal.put(record("nobody hears this"))
    assert journal.lost == 3
    journald.up()
    journal.put(record("after"))
    eventually(lambda: len(journald.found(f"JOBSCRIBE_JID={JID}")) == 2)
    said = [r["MESSAGE"] for r in journald.found("SYSLOG_IDENTIFIER=jobscribe-supervisor")]
    where = "supervisor/connections/hub.py:173:receive "
    assert said == [
        where + "before",
        "(3 log lines before this one could not be written)",
        where + "after",
    ]
    journal.close()


@pytest.mark.timeout(240)
def test_a_burst_of_records_is_all_there(journald: Journald) -> None:
    """The socket buffer is small: a record waits a moment for space."""
    count = 50_000 if os.environ.get("SOAK") == "1" else 2_000
    journal = Journal(
        "jobscribe-supervisor", path=str(journald.folder / "socket"), patience_secs=10.0
    )
    for n in range(count):
        journal.put(record(str(n)))
    assert journal.lost == 0
    eventually(lambda: len(journald.found(f"JOBSCRIBE_JID={JID}", f"--lines={count}")) == count)
    assert [int(r["MESSAGE"].split()[-1]) for r in journald.found(f"JOBSCRIBE_JID={JID}")] == list(
        range(count)
    )
    journal.close()


@pytest.mark.timeout(120)
def test_the_way_of_one_job_through_a_supervisor_is_one_question(journald: Journald) -> None:
    """The supervisor runs like a service, with this journal as the machine's."""
    site = SupervisorProcess(sets=["log.journald=on"], disk=True)
    private = site.place / "private"
    Path("/run/systemd/journal").mkdir(parents=True, exist_ok=True)
    private.write_text(
        f'#!/bin/sh\nset -e\nmount --bind {journald.folder} /run/systemd/journal\nexec {shlex.quote(sys.executable)} "$@"\n',
    )
    private.chmod(0o700)
    arguments = site.arguments()
    site.arguments = lambda: [
        "unshare",
        "--mount",
        "--propagation=private",
        str(private),
        *arguments[1:],
    ]  # type: ignore[method-assign]
    try:
        site.start()
        run, other = spec(["true"]), spec(["true"])
        for r in (run, other):
            site.submit(r)
            assert site.wait(r)["state"] == "completed"
        assert site.stop() == 0
    finally:
        site.end()
    found = eventually(lambda: journald.found(f"JOBSCRIBE_JID={jid_of(run)}"))
    said = [r["MESSAGE"] for r in found]
    for what in ("ServerReq(api_runSimulation", "_Op(run, ", "opName=run_status_update o="):
        assert any(what in m for m in said), (what, said)
    assert not any(jid_of(other) in m for m in said) and {
        r["SYSLOG_IDENTIFIER"] for r in found
    } == {"jobscribe-supervisor", "jobscribe-agent"}
    by_op = journald.found(
        f"JOBSCRIBE_OP={next(r['JOBSCRIBE_OP'] for r in found if 'JOBSCRIBE_OP' in r)}"
    )
    assert len(by_op) >= 2, "what was sent, and what came back"
