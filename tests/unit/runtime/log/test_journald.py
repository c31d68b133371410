"""Records in the journal's native protocol, received by a socket in place of the journal. Tests in
tests/docker use the real journal.
"""

import array
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.runtime.log.journald import Journal, is_journal
from jobscribe.runtime.log.logger import Log, Record

JID = "EPRSqtUW-IVh7w74d-model"
CANARY = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"


class Place:
    """A fake journal's socket, which can be opened and closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket: socket.socket | None = None
        self.files: list[int] = []
        self.journals: list[Journal] = []

    def up(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)

    def down(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None
            self.path.unlink()

    def taken(self) -> list[dict[str, str]]:
        """Return all pending records. Keep descriptors of records sent as files in `files`."""
        assert self.socket is not None
        out = []
        while True:
            try:
                data, rest, _, _ = self.socket.recvmsg(
                    1 << 20, socket.CMSG_SPACE(struct.calcsize("i"))
                )
            except BlockingIOError:
                return out
            if rest:
                fd = array.array("i", rest[0][2])[0]
                self.files.append(fd)
                assert data == b""
                data = os.pread(fd, os.fstat(fd).st_size, 0)
            out.append(parsed(data))


def parsed(data: bytes) -> dict[str, str]:
    """Return the fields of a protocol message; fail on a duplicate."""
    fields: dict[str, str] = {}
    while data:
        head, data = data.split(b"\n", 1)
        if b"=" in head:
            name, value = head.split(b"=", 1)
        else:
            name, size = head, int.from_bytes(data[:8], "little")
            value, end, data = data[8 : 8 + size], data[8 + size : 9 + size], data[9 + size :]
            assert end == b"\n"
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "socket")
    made.up()
    yield made
    made.down()
    for fd in made.files:
        os.close(fd)
    for journal in made.journals:
        journal.close()


def journal_at(place: Place, patience_secs: float = 0.0) -> Journal:
    place.journals.append(
        Journal("jobscribe-supervisor", path=str(place.path), patience_secs=patience_secs)
    )
    return place.journals[-1]


def record(message: str, trace: str = "", **ids: str) -> Record:
    return Record(
        1_582_580_351.0,
        14458,
        0,
        "supervisor",
        "supervisor/connections/hub.py:173:receive",
        message,
        ids,
        trace,
    )


def messages(place: Place) -> list[str]:
    return [
        r["MESSAGE"].removeprefix("supervisor/connections/hub.py:173:receive ")
        for r in place.taken()
    ]


def test_a_record_has_fields_that_it_is_found_by(place: Place) -> None:
    journal_at(place).put(
        record("opName=run = {x}", jid=JID, op="pb5uQ2", agent="WUt4", uid="EPRSqtUW")
    )
    assert place.taken() == [
        {
            "MESSAGE": "supervisor/connections/hub.py:173:receive opName=run = {x}",
            "PRIORITY": "6",
            "SYSLOG_IDENTIFIER": "jobscribe-supervisor",
            "CODE_FILE": "supervisor/connections/hub.py",
            "CODE_LINE": "173",
            "CODE_FUNC": "receive",
            "JOBSCRIBE_JID": JID,
            "JOBSCRIBE_OP": "pb5uQ2",
            "JOBSCRIBE_AGENT": "WUt4",
            "JOBSCRIBE_UID": "EPRSqtUW",
        }
    ]


def test_an_exception_is_an_error_and_its_traceback_a_field_of_its_own(place: Place) -> None:
    trace = "Traceback (most recent call last):\n  File x\nMESSAGE=forged\nValueError: größer\n"
    journal_at(place).put(record("failed", trace))
    (said,) = place.taken()
    assert (said["PRIORITY"], said["JOBSCRIBE_TRACEBACK"], said["MESSAGE"]) == (
        "3",
        trace,
        "supervisor/connections/hub.py:173:receive failed",
    )


def test_what_a_log_says_is_cut_and_redacted_as_in_its_lines(place: Place) -> None:
    class ToJournal:
        def __init__(self) -> None:
            self.journal = journal_at(place)

        def write(self, record: Record) -> None:
            self.journal.put(record)

    log = Log("supervisor", Redactor([CANARY]), ToJournal())
    log(
        "hello {}\nJOBSCRIBE_JID=forged",
        CANARY,
        jid=f"a\nb{CANARY}",
        op="pb5uQ2VrwfCGHEGFf9mHdIEwYKsTmVy1",
        agent="WUt4wfCGHEGFf9mHdIEwYKsTmVy1XSBq",
    )
    (said,) = place.taken()
    assert CANARY not in str(said) and f"hello {REDACTED}\\nJOBSCRIBE_JID=forged" in said["MESSAGE"]
    assert (said["JOBSCRIBE_JID"], said["JOBSCRIBE_OP"], said["JOBSCRIBE_AGENT"]) == (
        rf"a\nb{REDACTED}",
        "pb5uQ2",
        "WUt4",
    )
    assert (
        said["CODE_FILE"].endswith("runtime/log/test_journald.py")
        and said["CODE_FUNC"] == "test_what_a_log_says_is_cut_and_redacted_as_in_its_lines"
    )


@pytest.mark.parametrize("key", ["a=b", "x\ny", "_PID", "", "Ä", "UPPER"])
def test_an_id_that_cannot_be_a_field_is_left_out(place: Place, key: str) -> None:
    journal_at(place).put(record("m", **{key: "v", "jid": JID}))
    (said,) = place.taken()
    assert [k for k in said if k.startswith("JOBSCRIBE_")] == ["JOBSCRIBE_JID"]


def test_a_record_too_large_for_a_datagram_goes_as_a_sealed_file(place: Place) -> None:
    journal = journal_at(place)
    open_before = len(os.listdir("/proc/self/fd"))
    journal.put(record("x" * 500_000, jid=JID))
    journal.put(record("after"))
    large, after = place.taken()
    assert (
        large["MESSAGE"].endswith("x" * 500_000)
        and large["JOBSCRIBE_JID"] == JID
        and after["MESSAGE"].endswith("after")
    )
    (fd,) = place.files
    assert (
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    journal.close()
    assert (journal.lost, len(os.listdir("/proc/self/fd"))) == (0, open_before + 1), (
        "the file is open here, and nowhere else"
    )


def test_a_journal_that_is_away_costs_records_which_are_counted_and_said(place: Place) -> None:
    journal = journal_at(place)
    place.down()
    for _ in range(3):
        journal.put(record("nobody hears this"))
    assert journal.lost == 3
    place.up()
    journal.put(record("back"))
    journal.put(record("again"))
    assert messages(place) == [
        "(3 log lines before this one could not be written)",
        "back",
        "again",
    ]


def test_a_journal_that_was_restarted_is_found_again_and_nothing_is_lost(place: Place) -> None:
    journal = journal_at(place)
    journal.put(record("one"))
    assert messages(place) == ["one"]
    for n in range(3):
        place.down()
        place.up()
        journal.put(record(f"after restart {n}"))
        assert messages(place) == [f"after restart {n}"]
    assert journal.lost == 0


@pytest.mark.timeout(20)
def test_a_journal_that_does_not_read_costs_records_not_time(place: Place) -> None:
    journal = journal_at(place)
    put = 0
    while not journal.lost:
        journal.put(record(f"{put}"))
        put += 1
    for _ in range(100):
        journal.put(record("lost"))
    assert journal.lost == 101
    assert messages(place) == [f"{n}" for n in range(put - 1)]
    journal.put(record("next"))
    assert messages(place) == ["(101 log lines before this one could not be written)", "next"]


@pytest.mark.timeout(60)
def test_one_record_waits_for_a_slow_journal_and_the_others_do_not(place: Place) -> None:
    journal = journal_at(place, patience_secs=0.5)
    began = time.monotonic()
    while not journal.lost:
        journal.put(record("filling"))
    assert time.monotonic() - began >= 0.5
    began = time.monotonic()
    for _ in range(1000):
        journal.put(record("lost"))
    assert time.monotonic() - began < 5 * 0.5, "a thousand that waited would take 500 s"


def test_who_is_connected_to_the_journal_knows_it(tmp_path: Path) -> None:
    with open(tmp_path / "a", "w") as a, open(tmp_path / "b", "w") as b:
        info = os.fstat(a.fileno())
        named = f"{info.st_dev}:{info.st_ino}"
        assert is_journal(a.fileno(), named) and not is_journal(b.fileno(), named)
        assert not any(
            is_journal(a.fileno(), n)
            for n in (None, "", "x", f"{info.st_dev}:", f"{info.st_dev}:{info.st_ino + 1}")
        )
    assert not is_journal(10**6, named), "no such descriptor"
