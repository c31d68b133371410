"""Lines logged through pykern's pkdebug have the agents' format, and continue to arrive when
pkdebug fails or is reconfigured.
"""

import json
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pykern import pkdebug

from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.runtime.log.logger import Direct, Record
from jobscribe.service.log.sink import PkdebugSink, open_log
from jobscribe.service.settings.settings import LogSettings

CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"


class Lines:
    """An output that records its lines and can block."""

    def __init__(self) -> None:
        self.text = ""
        self.may = threading.Event()
        self.may.set()

    def put(self, text: str) -> None:
        assert self.may.wait(30)
        self.text += text


@pytest.fixture
def out() -> Lines:
    return Lines()


@pytest.fixture
def sink(out: Lines) -> Iterator[PkdebugSink]:
    sink = PkdebugSink(out, redactor=Redactor([CANARY]))
    yield sink
    out.may.set()
    sink.close()
    pkdebug.init()


def record(
    message: str,
    where: str = "supervisor/connections/hub.py:173:receive",
    trace: str = "",
    **ids: str,
) -> Record:
    return Record(1_582_580_351.0, 14458, 0, "supervisor", where, message, ids, trace)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(
    "message",
    [
        "LocalDriver(a=WUt4 k=sequential u=EPRS [_Op(run, pb5uQ2)]) opName=alive o=None",
        "{braces} {0} {{}}",
        "{",
        r"a\nb \x41 \u0041 \\",
        "größer \u65e5\u672c",
        "",
        "100 %s %d",
        "quotes \" ' ".strip(),
    ],
)
def test_a_line_is_the_same_as_an_agents(out: Lines, sink: PkdebugSink, message: str) -> None:
    agents = Lines()
    Direct(agents).write(record(message))
    sink.write(record(message))
    assert sink.flush()
    assert out.text.rstrip() == agents.text.rstrip()
    assert out.text.count("\n") == 1
    assert sink.revived == 0, "it did not come through pkdebug"


def test_the_cause_of_an_effect_is_at_the_end_of_its_line(out: Lines, sink: PkdebugSink) -> None:
    agents = Lines()
    for trace in ("", "Traceback (most recent call last):\nValueError: y\n"):
        shown = record("sent", trace=trace, cause="TaskPlaced@7", jid="j")
        Direct(agents).write(shown)
        sink.write(shown)
    assert sink.flush()
    assert out.text == agents.text and out.text.count(" sent cause=TaskPlaced@7\n") == 2


def test_it_comes_through_pkdebug(
    out: Lines, sink: PkdebugSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = pkdebug.pkdlog
    monkeypatch.setattr(pkdebug, "pkdlog", lambda *a, **kw: (seen.append(a), real(*a, **kw)))
    sink.write(record("hello"))
    assert sink.flush() and len(seen) == 1 and out.text.endswith("hello\n")


def test_a_line_keeps_the_time_and_place_of_its_call_and_tracebacks_are_indented(
    out: Lines, sink: PkdebugSink
) -> None:
    sink.write(
        record("failed", trace="Traceback (most recent call last):\n  File x\nValueError: y\n")
    )
    assert sink.flush()
    assert out.text == (
        "Feb 24 21:39:11 14458     0 supervisor/connections/hub.py:173:receive failed\n"
        "  Traceback (most recent call last):\n    File x\n  ValueError: y\n"
    )


def test_a_place_in_any_directory_is_shown_as_it_is(
    out: Lines, sink: PkdebugSink, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (pathlib.Path("/"), tmp_path, pathlib.Path.cwd().parent):
        monkeypatch.chdir(folder)
        sink.write(record("m"))
        assert sink.flush()
    assert (
        out.text == "Feb 24 21:39:11 14458     0 supervisor/connections/hub.py:173:receive m\n" * 3
    )


def test_pkdebugs_silence_after_five_errors_is_noticed_and_ended(
    out: Lines, sink: PkdebugSink
) -> None:
    class Broken:
        def pkdebug_str(self) -> str:
            raise RuntimeError("no")

    for _ in range(6):
        pkdebug.pkdlog("{} {}", Broken())
    out.text = ""
    pkdebug.pkdlog("pkdebug says nothing any more")
    assert out.text == ""
    sink.write(record("after"))
    sink.write(record("again"))
    assert sink.flush()
    assert out.text.splitlines() == [
        f"Feb 24 21:39:11 14458     0 supervisor/connections/hub.py:173:receive {m}"
        for m in ("after", "again")
    ]
    assert sink.revived == 1
    pkdebug.pkdlog("pkdebug speaks again")
    assert "pkdebug speaks again" in out.text


def test_a_pkdebug_that_raises_stops_nothing(
    out: Lines, sink: PkdebugSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(pkdebug, "pkdlog", broken)
    sink.write(record("one"))
    sink.write(record("two"))
    assert sink.flush()
    assert out.text.count("receive one\n") == out.text.count("receive two\n") == 1
    assert "pkdebug failed: RuntimeError: broken" in out.text


def test_what_pykerns_modules_say_is_redacted_and_one_line(out: Lines, sink: PkdebugSink) -> None:
    pkdebug.pkdlog("their line {} {}", CANARY, {"password": "hunter2"})
    pkdebug.pkdlog("two\nlines {}", 1)
    assert CANARY not in out.text and "hunter2" not in out.text and REDACTED in out.text
    assert out.text.count("\n") == 2 and r"two\nlines 1" in out.text


def test_a_flood_is_bounded_counted_and_said(out: Lines) -> None:
    sink = PkdebugSink(out, max_queued=5)
    out.may.clear()
    sink.write(record("first"))
    eventually(lambda: not sink._queue)
    for n in range(25):
        sink.write(record(f"n={n}"))
    assert sink.dropped == 20
    out.may.set()
    assert sink.flush()
    sink.close()
    pkdebug.init()
    assert [n for n in range(25) if f"n={n}\n" in out.text] == [0, 1, 2, 3, 4]
    assert "20 log lines were dropped here" in out.text


def test_the_caller_does_not_wait_for_a_slow_output(out: Lines, sink: PkdebugSink) -> None:
    out.may.clear()
    for n in range(100):
        sink.write(record(f"n={n}"))
    assert out.text == "" and not sink.flush(0.01)
    out.may.set()
    assert sink.flush()
    assert out.text.count("\n") == 100


def test_many_threads_lose_nothing(out: Lines, sink: PkdebugSink) -> None:
    threads = [
        threading.Thread(target=lambda k=k: [sink.write(record(f"<{k}.{n}>")) for n in range(200)])
        for k in range(5)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sink.flush()
    lines = out.text.splitlines()
    for k in range(5):
        assert [line.rpartition(" ")[2] for line in lines if f"<{k}." in line] == [
            f"<{k}.{n}>" for n in range(200)
        ]


def test_closing_writes_what_was_taken_and_then_takes_no_more(out: Lines) -> None:
    sink = PkdebugSink(out)
    for n in range(50):
        sink.write(record(f"n={n}"))
    sink.close()
    sink.close()
    sink.write(record("late"))
    pkdebug.init()
    assert out.text.count("n=") == 50 and "late" not in out.text
    assert sink.dropped == 1


def test_a_server_process_opens_its_log_from_its_settings(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "supervisor.log"
    log, sink = open_log(
        "supervisor", LogSettings(format="json", trace="HUB"), Redactor([CANARY]), file=str(path)
    )
    log("hello {}", CANARY, jid="EPRSqtUW-IVh7w74d-m")
    log.trace("not traced")
    log.trace("the hub")
    sink.close()
    pkdebug.init()
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["level"], r["msg"]) for r in rows] == [
        ("info", f"hello {REDACTED}"),
        ("debug", "the hub"),
    ]
    assert rows[0]["component"] == "supervisor" and rows[0]["jid"] == "EPRSqtUW-IVh7w74d-m"
    assert shown.err == path.read_text() and shown.out == ""


@pytest.mark.process
def test_a_process_that_logs_has_no_pytest_in_it() -> None:
    """pykern depends on pytest, which a supervisor does not need. Importing pytest would take a
    fifth of its CPU time until it is ready.
    """
    text = """
import sys
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.runtime.log.destinations import Stream
from jobscribe.service.log.sink import PkdebugSink
sink = PkdebugSink(Stream(sys.stdout, 5.0))
Log("supervisor", Redactor(), sink)("said")
sink.close()
import jobscribe.supervisor.app, jobscribe.web.server.processes
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("pytest", "_pytest")))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", text], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" said") and lines[-1] == "[]"
