"""Each record is one line of the known format, in time order and redacted, for all content and
destinations.
"""

import asyncio
import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.runtime.log.destinations import RotatingFile, Stream
from jobscribe.runtime.log.logger import Direct, Log, Record, capture_logging, log_uncaught

CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"
LINE = re.compile(r"[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d [ \d]{5} [ \d]{5} \S+:\d+:\S+ .*\n")


class Lines:
    """An output that records its lines."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, text: str) -> None:
        self.text += text


class Driver:
    def pkdebug_str(self) -> str:
        return "LocalDriver(a=WUt4 k=sequential u=EPRS [_Op(run, pb5uQ2)])"


@pytest.fixture
def out() -> Lines:
    return Lines()


@pytest.fixture
def log(out: Lines) -> Log:
    return Log("supervisor", Redactor([CANARY]), Direct(out), wall=lambda: 1_582_580_351.9)


def test_a_line_reads_like_the_debugging_guides(out: Lines, log: Log) -> None:
    log("{} opName={} o={}", Driver(), "alive", None)
    pid = f"{os.getpid():5d}"
    assert re.fullmatch(
        rf"Feb 24 21:39:11 {pid}     0 (tests/unit/)?runtime/log/test_logger.py:\d+:test_a_line_reads_like_the_debugging_guides "
        r"LocalDriver\(a=WUt4 k=sequential u=EPRS \[_Op\(run, pb5uQ2\)\]\) opName=alive o=None\n",
        out.text,
    )
    assert LINE.fullmatch(out.text)


def test_the_path_of_the_product_is_relative_to_the_package(out: Lines, log: Log) -> None:
    log.adopt(
        logging.LogRecord(
            "n",
            logging.INFO,
            sys.modules["jobscribe.runtime.log.logger"].__file__ or "",
            7,
            "m",
            (),
            None,
            "f",
        )
    )
    assert " runtime/log/logger.py:7:f INFO:n:m\n" in out.text


@pytest.mark.parametrize(
    "nasty",
    [
        "a\nFeb 24 21:39:11     1     0 x:1:f forged",
        "a\r\nb",
        "a\x00b",
        "\x1b[2J\x1b[31mred",
        "a\x85b",
        "a\u2028b\u2029c",
        "\u202eevil",
        "lone \udcff",
        "tab\there",
        "\x7f",
        "\x0b\x0c",
    ],
)
def test_no_message_can_look_like_two_lines_or_upset_a_terminal(
    out: Lines, log: Log, nasty: str
) -> None:
    for args in [
        (nasty,),
        ([nasty],),
        ({nasty: nasty},),
        (ValueError(nasty),),
        (nasty.encode("utf-8", "surrogatepass"),),
    ]:
        log("{}", *args)
    log(nasty)
    lines = out.text.splitlines(keepends=True)
    assert len(lines) == 6
    assert all(LINE.fullmatch(line) and line[:-1].isprintable() and line.encode() for line in lines)


def test_a_traceback_follows_on_lines_that_cannot_be_taken_for_records(
    out: Lines, log: Log
) -> None:
    try:
        raise ValueError(f"no\nFeb 24 21:39:11     1     0 x:1:f forged {CANARY}")
    except ValueError as e:
        log.exception("{} failed", "it")
        inside = out.text
        out.text = ""
        caught = e
    log.exception("{} failed", "it", error=caught)
    for text in (inside, out.text):
        first, *rest = text.splitlines()
        assert first.endswith(" it failed")
        assert rest and all(line.startswith("  ") for line in rest)
        assert "Traceback" in rest[0] and CANARY not in text and REDACTED in text


def test_secrets_are_gone_from_message_arguments_format_ids_and_what_objects_say(
    out: Lines,
) -> None:
    class Teller:
        def pkdebug_str(self) -> str:
            return CANARY

    for form in ("text", "json"):
        one = Log("supervisor", Redactor([CANARY]), Direct(out, form=form), trace=re.compile("."))
        one(
            f"{CANARY} {{}} {{}} {{}}",
            CANARY,
            {"a": [CANARY], "serverSecret": "hunter2"},
            Teller(),
            jid=CANARY,
        )
        one.trace("{}", CANARY)
    assert out.text.count("\n") == 4
    assert CANARY not in out.text and "hunter2" not in out.text
    assert (
        f"{REDACTED} {REDACTED} {{'a': [{REDACTED}], 'serverSecret': {REDACTED}}} {REDACTED}\n"
        in out.text
    )


def test_a_wrong_format_or_object_is_said_in_its_place_and_raises_nothing(
    out: Lines, log: Log
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("cannot show myself")

    log("{} {}", 1)
    log("{:d}", "x")
    log("{}", Broken())
    log("braces {without} arguments")
    lines = out.text.splitlines()
    assert len(lines) == 4
    assert "cannot be formatted with 1 arguments: IndexError" in lines[0]
    assert "cannot be formatted with 1 arguments: ValueError" in lines[1]
    assert "cannot show myself" in lines[2]
    assert lines[3].endswith("braces {without} arguments")


def test_numbers_keep_their_format(out: Lines, log: Log) -> None:
    log("{:.2f} {:03d} {}", 1.239, 7, True)
    assert out.text.endswith(" 1.24 007 True\n")


def test_trace_lines_show_where_the_pattern_matches(out: Lines) -> None:
    log = Log("agent", Redactor(), Direct(out), trace=re.compile("test_trace.*opName=run"))
    log.trace("opName={}", "run")
    log.trace("opName={}", "cancel")
    assert out.text.count("\n") == 1 and "opName=run" in out.text


def test_json_has_the_same_and_ids_as_fields(out: Lines) -> None:
    log = Log("agent", Redactor(), Direct(out, form="json"), wall=lambda: 1_582_580_351.5)
    bound = log.bound(agent="WUt4" + "b" * 28)
    bound("{} started\n", Driver(), jid="EPRSqtUW-IVh7w74d-m", op="pb5uQ2" + "a" * 26, uid=None)
    record = json.loads(out.text)
    where = record.pop("where")
    assert record == {
        "ts": "2020-02-24T21:39:11.500000000Z",
        "level": "info",
        "pid": os.getpid(),
        "thread": 0,
        "component": "agent",
        "agent": "WUt4",
        "op": "pb5uQ2",
        "jid": "EPRSqtUW-IVh7w74d-m",
        "msg": Driver().pkdebug_str() + r" started\n",
    }
    assert re.fullmatch(
        r"(tests/unit/)?runtime/log/test_logger.py:\d+:test_json_has_the_same_and_ids_as_fields",
        where,
    )
    assert out.text.count("\n") == 1


def test_a_text_line_ends_with_the_cause_and_shows_no_other_id(out: Lines, log: Log) -> None:
    log("sent", cause="TaskPlaced@7", jid="EPRSqtUW-IVh7w74d-m")
    assert out.text.endswith("_shows_no_other_id sent cause=TaskPlaced@7\n")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed", cause="AgentDisconnected")
    assert " failed cause=AgentDisconnected\n  Traceback" in out.text


async def test_bound_ids_of_interleaved_tasks_and_threads_do_not_mix(log: Log, out: Lines) -> None:
    log._sink = Direct(out, form="json")
    turn = asyncio.Barrier(2)

    async def work(uid: str) -> None:
        mine = log.bound(uid=uid)
        for step in ("a", "b"):
            await turn.wait()
            mine("{} {}", uid, step)
            await asyncio.to_thread(mine, "{} in a thread", uid, op=uid)

    await asyncio.gather(work("user1"), work("user2"))
    log("neither")
    lines = [json.loads(line) for line in out.text.splitlines()]
    assert {line["msg"].split()[0]: line.get("uid") for line in lines} == {
        "user1": "user1",
        "user2": "user2",
        "neither": None,
    }
    assert all(line.get("uid") == line.get("op", line.get("uid")) for line in lines)
    assert len(lines) == 9


def test_threads_are_told_apart(out: Lines, log: Log) -> None:
    thread = threading.Thread(target=lambda: log("from a thread"), name="Thread-17 (work)")
    thread.start()
    thread.join()
    assert f" {os.getpid():5d}    17 " in out.text


def test_the_standard_librarys_logging_is_taken_over_and_given_back(out: Lines, log: Log) -> None:
    before = logging.getLogger().handlers[:]
    undo = capture_logging(log)
    try:
        logging.getLogger("tornado.access").warning("%s refused %s", "GET", CANARY)
        logging.getLogger("tornado.access").debug("not shown")
        logging.getLogger("x").error("%d", "not a number")
        try:
            raise KeyError(CANARY)
        except KeyError:
            logging.getLogger("asyncio").exception("task failed")
    finally:
        undo()
    assert logging.getLogger().handlers == before
    assert f"WARNING:tornado.access:GET refused {REDACTED}\n" in out.text
    assert "cannot be formatted" in out.text and "not shown" not in out.text
    assert "ERROR:asyncio:task failed\n  Traceback" in out.text and CANARY not in out.text


def test_what_ends_a_thread_is_logged(
    out: Lines, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    log_uncaught(log)

    def fail() -> None:
        raise RuntimeError("gone")

    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    error = RuntimeError("main gone")
    sys.excepthook(RuntimeError, error, None)
    assert "uncaught in thread worker: gone\n  Traceback" in out.text
    assert "uncaught: main gone\n" in out.text


@pytest.mark.process
def test_it_needs_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import jobscribe.runtime.log.logger, jobscribe.runtime.log.destinations, jobscribe.runtime.clock\n"
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )
    assert done.stdout == "['jobscribe']\n", done.stdout + done.stderr


# ---- outputs


class Full(io.StringIO):
    """A stream on a disk that is temporarily full."""

    full = True

    def flush(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")


def test_a_broken_stream_raises_nothing_and_is_counted() -> None:
    read, write = os.pipe()
    os.close(read)
    broken = os.fdopen(write, "w")
    output = Stream(broken)
    output.put("lost\n")
    assert output.lost == 1
    with pytest.raises(BrokenPipeError):
        broken.close()
    closed = io.StringIO()
    closed.close()
    output = Stream(closed)
    output.put("lost\n")
    assert output.lost == 1
    full = Full()
    output = Stream(full)
    output.put("one\n")
    full.full = False
    output.put("two\n")
    assert output.lost == 1 and full.getvalue().endswith("two\n")


def test_a_file_is_rotated_at_its_size_and_old_ones_go(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.log"
    output = RotatingFile(str(path), max_bytes=100, keep=2)
    for n in range(10):
        output.put(f"{n:02d} {'x' * 36}\n")  # 40 bytes: two to a file
    output.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    texts = [p.read_text() for p in (tmp_path / "a.log.2", tmp_path / "a.log.1", path)]
    lines = [line for text in texts for line in text.splitlines()]
    assert [line[:2] for line in lines if line[0] != "["] == ["04", "05", "06", "07", "08", "09"]
    marker = "[jobscribe: goes on from a.log.1; 80 bytes of older lines were dropped]"
    assert lines[-3] == marker and texts[1].count("goes on from") == 1 and "goes on" not in texts[0]
    assert path.stat().st_mode & 0o777 == 0o600
    output.put("more\n")
    assert path.read_text().endswith("more\n") and output.lost == 0
    output.close()


def test_a_line_over_the_limit_stands_alone(tmp_path: pathlib.Path) -> None:
    output = RotatingFile(str(tmp_path / "a.log"), max_bytes=100, keep=1)
    output.put("x" * 500 + "\n")
    output.put("y\n")
    output.close()
    assert (tmp_path / "a.log").read_text() == "y\n" and (
        tmp_path / "a.log.1"
    ).stat().st_size == 501


def test_a_file_that_cannot_be_written_is_counted_and_said_when_it_can(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = RotatingFile(str(tmp_path / "missing" / "a.log"))
    output.put("lost\n")
    output.put("lost\n")
    assert output.lost == 2
    (tmp_path / "missing").mkdir()
    output.put("written\n")
    real = os.write

    def half(fd: int, data: bytes) -> int:
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    output.put("torn line\n")
    monkeypatch.setattr(os, "write", real)
    output.put("after\n")
    output.close()
    assert (tmp_path / "missing/a.log").read_text().splitlines() == [
        "(2 log lines before this one could not be written)",
        "written",
        "torn ",
        "(1 log lines before this one could not be written)",
        "after",
    ]
    assert output.lost == 3


def test_a_record_is_plain_data() -> None:
    seen: list[Record] = []

    class Keep:
        def write(self, record: Record) -> None:
            seen.append(record)

    sink: Any = Keep()
    Log("c", Redactor(), sink)("{}", Driver(), jid="j")
    assert all(isinstance(v, str | int | float | dict) for v in seen[0])
