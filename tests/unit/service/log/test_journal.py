"""A server's log records go to a stream and a file, to the journal, or to both, without duplicates."""

import io
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest
from pykern import pkdebug

from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log import journald as journal
from jobscribe.service.log.sink import open_log
from jobscribe.service.settings.settings import LogSettings


class Setting:
    """A stream, a file, and a socket in place of the journal."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.stream: TextIO = (folder / "stream").open("w+")
        self.file = folder / "supervisor.log"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "socket"))
        self.socket.setblocking(False)
        monkeypatch.setattr(journal, "SOCKET", str(folder / "socket"))
        info = os.fstat(self.stream.fileno())
        self.named = f"{info.st_dev}:{info.st_ino}"

    def say(self, how: LogSettings) -> tuple[list[str], list[str], list[bytes]]:
        """Log one message; return lines of the stream, lines of the file, records of the journal."""
        log, sink = open_log("supervisor", how, Redactor(), stream=self.stream, file=str(self.file))
        log("hello {x}", jid="EPRSqtUW-IVh7w74d-model", op="pb5uQ2VrwfCGHEGF")
        sink.close()
        pkdebug.init()
        records = []
        try:
            while True:
                records.append(self.socket.recv(65536))
        except BlockingIOError:
            return (
                (self._folder / "stream").read_text().splitlines(),
                self.file.read_text().splitlines(),
                records,
            )

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    made = Setting(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("journald", "named", "expected"),
    [
        ("auto", lambda s: s.named, (0, 1, 1)),
        ("auto", lambda s: None, (1, 1, 0)),
        ("auto", lambda s: "1:1", (1, 1, 0)),
        ("on", lambda s: None, (1, 1, 1)),
        ("on", lambda s: s.named, (1, 1, 1)),
        ("off", lambda s: s.named, (1, 1, 0)),
    ],
)
def test_what_goes_where(
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    journald: str,
    named: Callable[[Setting], str | None],
    expected: tuple[int, int, int],
) -> None:
    if (said := named(setting)) is not None:
        monkeypatch.setenv("JOURNAL_STREAM", said)
    stream, file, records = setting.say(LogSettings(journald=journald))  # type: ignore[arg-type]
    assert (len(stream), len(file), len(records)) == expected
    for line in stream + file:
        assert line.endswith("hello {x}")
    for record in records:
        fields = record.decode().splitlines()
        assert "SYSLOG_IDENTIFIER=jobscribe-supervisor" in fields
        assert {"JOBSCRIBE_JID=EPRSqtUW-IVh7w74d-model", "JOBSCRIBE_OP=pb5uQ2"} <= set(fields)
        message = next(f for f in fields if f.startswith("MESSAGE="))
        assert file[0].endswith(message.removeprefix("MESSAGE=")), (
            "the line as it is in the file, without time and pid"
        )


def test_a_stream_that_is_no_descriptor_is_never_the_journals(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", setting.named)
    setting.stream.close()
    setting.stream = io.StringIO()
    assert [len(x) for x in setting.say(LogSettings())][1:] == [1, 0]
    assert "hello" in setting.stream.getvalue()


def test_whoever_calls_pkdebug_is_in_the_journal_too(setting: Setting) -> None:
    _, sink = open_log("server", LogSettings(journald="on"), Redactor(), stream=setting.stream)
    pkdebug.pkdlog("from a module of pykern")
    sink.close()
    pkdebug.init()
    said = setting.socket.recv(65536).decode()
    assert "from a module of pykern" in said and "SYSLOG_IDENTIFIER=jobscribe-server" in said
