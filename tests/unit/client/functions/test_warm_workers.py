"""Warm workers: cut and damaged files, restarts, private files, and the assignment of calls."""

import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.functions import runner
from jobscribe.client.functions.future import FunctionFuture
from jobscribe.client.functions.warm_queue import CallQueue
from jobscribe.client.functions.warm_worker import FIRST_CALLS, WarmCall, WarmWorker
from jobscribe.client.functions.worker import (
    call_files,
)
from jobscribe.client.functions.worker import (
    journal as worker_journal,
)
from jobscribe.client.functions.worker import (
    loop as worker_loop,
)

DIGEST = "ab" * 32
_OPEN: list[worker_loop.Worker] = []
_Frames = list[tuple[dict[str, Any], bytes]]


def batch(first: int, count: int, **more: Any) -> bytes:
    rows = [[first + n, DIGEST, 1] for n in range(count)]
    functions = [[DIGEST, 2]] if first == 1 else []
    return runner.pack(
        {"functions": functions, "calls": rows, **more}, b"fn" * len(functions) + b"x" * count
    )


def put(place: Path, number: int, data: bytes) -> None:
    place.joinpath(call_files.INBOX).mkdir(exist_ok=True)
    (place / call_files.INBOX / call_files.batch_name(number)).write_bytes(data)


def worker(place: Path, idle_secs: float = 60.0) -> worker_loop.Worker:
    found = worker_loop.Worker("", str(place), idle_secs)
    _OPEN.append(found)
    return found


def outcomes(place: Path, *, over: bool = False) -> _Frames:
    return call_files.parse((place / call_files.OUTCOMES).read_bytes(), over=over)[0]


def waiting(found: worker_loop.Worker) -> list[int]:
    return [call.number for call in found._waiting]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory, without a mask for modes, and without the threads that sync."""
    threads = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(worker_journal, "threading", threads)
    mask = os.umask(0)
    yield tmp_path
    os.umask(mask)
    while _OPEN:
        found = _OPEN.pop()
        found._selector.close()
        journal = found._journal
        for fd in (found._begun, journal._fd, journal.wake, journal._done):
            os.close(fd)


def journal(place: Path) -> tuple[bytes, list[int]]:
    """Return the outcomes of four calls in three groups, and where each group counts from."""
    put(place, 1, batch(1, 4))
    groups = [
        [({"kind": "accepted", "batch": 1, "last": 4}, b""), ({"kind": "grant", "to": 4}, b"")],
        [({"kind": "value", "call": 1}, b"one\n"), ({"kind": "late", "call": 2}, b"")],
        [({"kind": "value", "call": 2}, b""), ({"kind": "crashed", "call": 3}, b"")],
    ]
    data, ends = b"", []
    for frames in groups:
        data += call_files.group(frames)
        ends.append(len(data))
        data += call_files.COMMIT
    return data, ends


def test_a_restart_continues_after_each_cut_of_the_outcomes(place: Path) -> None:
    data, ends = journal(place)
    (place / call_files.BEGUN).write_bytes(call_files.begun(0, worker_loop._boot_id()))
    for cut in range(len(data) + 1):
        (place / call_files.OUTCOMES).write_bytes(data[:cut])
        groups = sum(cut >= end for end in ends)
        found = call_files.recovered(data[:cut])
        done = [set(), set(), {1}, {1, 2, 3}][groups]
        assert found.done == done and found.accepted == (4 if groups else 0)
        if cut in (0, len(data)) or any(cut - end in (-1, 0, 5, 13) for end in ends):
            again = worker(place)
            assert waiting(again) == ([n for n in range(1, 5) if n not in done] if groups else [])
            again._store_now()
            # clients, which read groups with a commit line alone, see each outcome and the new group
            calls = [h["call"] for h, _ in outcomes(place) if h["kind"] in ("value", "crashed")]
            assert calls == sorted(done) and outcomes(place)[-1][0]["kind"] == "grant"


def test_a_client_takes_only_groups_that_are_committed_until_the_run_is_over(place: Path) -> None:
    data, ends = journal(place)
    for cut in range(len(data) + 1):
        committed = sum(cut >= end + len(call_files.COMMIT) for end in ends)
        frames, size = call_files.parse(data[:cut], over=False)
        assert len(frames) == 2 * committed and size <= cut
        assert len(call_files.parse(data[:cut], over=True)[0]) == 2 * sum(cut >= e for e in ends)


def test_damage_before_a_commit_line_is_found_and_damage_at_the_end_is_ignored(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, ends = journal(place)
    for at in (3, ends[0] - 3):
        changed = data[:at] + b"\0" + data[at + 1 :]
        for over in (False, True):
            with pytest.raises(call_files.Damaged):
                call_files.parse(changed, over=over)
    start = ends[1] + len(call_files.COMMIT)
    tail = data[:start] + b"\0" * 40 + b"\n" + b"\0" * 10
    assert len(call_files.parse(tail, over=True)[0]) == 4
    wrong = data[: ends[2] - 3] + b"\0" + data[ends[2] - 2 : ends[2]]
    assert len(call_files.parse(wrong, over=True)[0]) == 4

    (place / call_files.OUTCOMES).write_bytes(b"no group\n" + data)
    monkeypatch.setenv("JOBSCRIBE_RUN_DIR", str(place))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", ""])
    words = ["{}.{}".format(*sys.version_info), __import__("cloudpickle").__version__, "1"]
    assert worker_loop.main(words) == worker_loop.EXIT_DISK
    assert "damaged" in capsys.readouterr().err


def test_a_call_that_may_have_begun_is_lost_after_a_restart(place: Path) -> None:
    put(place, 1, batch(1, 100))
    first = worker(place)
    first._look()
    first._store_now()
    assert first._grant_stored == 1 + call_files.GRANT
    os.pwrite(first._begun, call_files.begun(1, worker_loop._boot_id()), 0)

    def lost(found: worker_loop.Worker) -> list[int]:
        return [h["call"] for h, _ in found._frames if h["kind"] == "lost"]

    # the kernel went on: exactly the begun call
    again = worker(place)
    assert lost(again) == [1] and waiting(again) == list(range(2, 101))
    # after a power cut: all calls that had permission
    os.pwrite(again._begun, call_files.begun(1, "another boot"), 0)
    again = worker(place)
    assert lost(again) == list(range(1, 66)) and waiting(again) == list(range(66, 101))
    # a batch that is not there: no call disappears without an outcome
    shutil.rmtree(place / call_files.INBOX)
    assert sorted(lost(worker(place))) == list(range(1, 101))


def test_acceptance_is_durable_in_order(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bytes]] = []
    found = worker(place)

    def fsync(fd: int) -> None:
        written = (place / call_files.OUTCOMES).read_bytes()
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), written))

    monkeypatch.setattr(os, "fsync", fsync)
    put(place, 1, batch(1, 2))
    found._look()
    found._store_now()
    (names, before), (file, group) = synced
    assert (names, file) == (call_files.INBOX, call_files.OUTCOMES)
    # the commit line follows the sync of its group
    assert before == b"" and b'"accepted"' in group and call_files.COMMIT not in group
    assert outcomes(place)[0][0] == {"kind": "accepted", "batch": 1, "last": 2, "size": 0}
    found._look()
    assert len(synced) == 2


def test_a_write_in_parts_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, outer = os.pipe()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:3])))
    worker_journal.write_all(outer, b"0123456789")
    assert os.read(inner, 64) == b"0123456789"
    os.close(inner)
    os.close(outer)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a file of a function call"),
        (batch(1, 3)[:-1], "of"),
        (batch(1, 3)[:-1] + b"y", "checksum"),
        (runner.pack({"calls": [[1, DIGEST, 0]]}, b""), "function of call 1 is missing"),
        (runner.pack({"calls": [[1, DIGEST]]}, b""), "unpack"),
        (runner.pack({"calls": 5}, b""), "malformed"),
        (runner.pack([], b""), "malformed"),  # type: ignore[arg-type]
        (runner.pack({"functions": [[DIGEST, -1]]}, b""), "no size"),
        (runner.pack({"functions": [["zz", 0]]}, b""), "hexadecimal"),
        (runner.pack({"cancel": [None]}, b""), "malformed"),
        (runner.pack({}, b"rest"), "0 of 4 bytes"),
    ],
)
def test_a_damaged_batch_is_refused_and_changes_nothing(
    place: Path, data: bytes, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(place, 1, data)
    put(place, 2, batch(1, 2))
    found = worker(place)
    found._look()
    assert waiting(found) == [1, 2]
    refused, accepted = found._frames[0][0], found._frames[1][0]
    assert refused["kind"] == "refused" and refused["batch"] == 1 and text in refused["text"]
    assert accepted == {"kind": "accepted", "batch": 1, "last": 0}
    assert "batch 1 of calls is damaged" in capsys.readouterr().err


def test_files_of_a_worker_are_private(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / call_files.INBOX).mkdir(mode=0o777)
    for name in (call_files.OUTCOMES, call_files.BEGUN):
        (place / name).touch(mode=0o666)
    for _ in range(2):
        put(place, 1, batch(1, 2))
        found = worker(place)
        found._look()
        found._store_now()
        modes = {
            str(path.relative_to(place)): stat.S_IMODE(path.stat().st_mode)
            for path in place.rglob("*")
        }
        assert modes == {
            "calls": 0o700,
            "calls/00000001.bin": 0o600,
            "calls.out": 0o600,
            "calls.begun": 0o600,
        }
        for name in (call_files.OUTCOMES, call_files.BEGUN):
            (place / name).unlink()
    monkeypatch.setenv("JOBSCRIBE_RUN_DIR", str(place))
    assert worker_loop.main(["2.7", "0.1", "1"]) == runner.REFUSED
    assert stat.S_IMODE((place / call_files.OUTCOMES).stat().st_mode) == 0o600
    assert outcomes(place)[0][0]["kind"] == "refused" and "2.7" in outcomes(place)[0][0]["text"]


def test_a_worker_ends_when_it_is_idle_or_told_to(place: Path) -> None:
    found = worker(place, idle_secs=50.0)
    assert not found._idle()
    found._last -= 51
    assert found._idle()
    put(place, 1, batch(1, 1, end=True))
    found._look()
    assert not found._idle()  # it has a call
    found._settle(found._waiting.popleft(), {"kind": "value"}, b"")
    assert not found._idle()  # its outcome is not durable
    found._store_now()
    assert found._idle()


class Files:
    """The files of one run, and refusals of the next requests to store one."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.refusals: list[ClientError] = []

    def open_file(self, jid: str, name: str, *, serial: int = 0, offset: int = 0) -> io.BytesIO:
        if name not in self.files:
            raise ClientError("notFound", "no such file")
        return io.BytesIO(self.files[name][offset:])

    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None:
        self.files[name] = data
        if self.refusals:
            raise self.refusals.pop()


def call() -> WarmCall:
    return WarmCall(b"fn", DIGEST, b"x", FunctionFuture[Any](lambda _: False), 0)


def test_a_call_may_have_begun_if_it_was_granted_or_is_the_newest_begun() -> None:
    files = Files()
    found, calls = WarmWorker(files, "j", 0), [call() for _ in range(4)]
    found.add(calls, 0.0)
    frames: _Frames = [({"kind": "accepted", "batch": 1, "last": 4}, b"")]
    group = call_files.group([*frames, ({"kind": "grant", "to": 3}, b"")])
    files.files[call_files.OUTCOMES] = group
    found.read()
    assert (found.stored, found.granted) == (0, 0)  # the group has no commit line
    files.files[call_files.OUTCOMES] = group + call_files.COMMIT
    found.read()
    assert (found.stored, found.granted) == (4, 3)

    def begun(known: bool) -> list[bool]:
        return [found.may_have_begun(c.number, exit_known=known) for c in calls]

    assert begun(False) == [True, True, True, False]
    assert begun(True) == [False] * 4
    files.files[call_files.BEGUN] = call_files.begun(2, "boot")
    assert begun(True) == [False, True, False, False]


def test_a_batch_is_sent_again_after_a_lost_answer_and_functions_after_a_refusal() -> None:
    files = Files()
    found = WarmWorker(files, "j", 0)
    files.refusals = [
        ClientError("conflict", "the file exists"),
        ClientError("unavailable", "no answer"),
    ]
    with pytest.raises(ClientError):
        found.add([call()], 0.0)
    found.resend()
    found.add([call()], 0.0)
    names = [f"calls/{call_files.batch_name(n)}" for n in (1, 2)]
    assert list(files.files) == names
    first = call_files.read_batch(files.files[names[0]], 1, set())
    assert [c.number for c in first.calls] == [1] and list(first.functions.values()) == [b"fn"]
    with pytest.raises(ValueError, match="function of call 2"):
        call_files.read_batch(files.files[names[1]], 2, set())
    assert [c.number for c in found.refused(1)] == [1] and list(found.calls) == [2]
    found.add([call()], 0.0)
    third = call_files.read_batch(files.files[f"calls/{call_files.batch_name(3)}"], 3, set())
    assert list(third.functions.values()) == [b"fn"]


def test_a_worker_gets_more_calls_while_they_are_short() -> None:
    found = WarmWorker(Files(), "j", 0)
    found.add([call() for _ in range(FIRST_CALLS)], 10.0)
    found.adapt(0, 10.5)
    assert found.limit == FIRST_CALLS
    found.adapt(0, 11.5)  # a long call
    assert found.limit == FIRST_CALLS // 2
    found.calls.clear()
    found.adapt(FIRST_CALLS, 12.0)
    assert found.limit == FIRST_CALLS


def test_calls_count_as_stored_only_when_their_worker_says_so() -> None:
    files, queue, calls = Files(), CallQueue(), [call(), call()]
    found = WarmWorker(files, "j", 0)
    for one in calls:
        one.retries = 1
        queue.live[one.future] = one
    assert not queue.all_stored()  # the thread has taken them, but not sent them
    found.add(calls, 0.0)
    for last, stored in ((1, False), (2, True)):
        frames: _Frames = [({"kind": "accepted", "batch": 1, "last": last}, b"")]
        data = files.files.get(call_files.OUTCOMES, b"") + call_files.group(frames)
        files.files[call_files.OUTCOMES] = data + call_files.COMMIT
        found.read()
        assert queue.all_stored() is stored
    assert queue.again(calls[0]) and not queue.all_stored()
    assert not queue.again(calls[0])
