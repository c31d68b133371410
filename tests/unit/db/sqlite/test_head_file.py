"""The head file of a store in SQLite: visible after each commit, synced soon after it, and intact
whatever part of an unsynced write arrives.
"""

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import JID, life
from store_fixtures import Disk, append

from jobscribe.db.events.events import SupervisorStarted
from jobscribe.db.sql.commit_thread import GROUP
from jobscribe.db.sqlite import writer
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.head_file import DurablePosition, HeadFile, read_head
from jobscribe.protocol.errors import Refusal

DEADLINE = 20.0
EVENT = SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="v")


class Calls:
    """The calls for head files of this process, in order, and the points of the commits. `fail`:
    the name of a call that fails from now on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.fail = ""
        self.changed = threading.Condition()
        for name in ("pwrite", "fdatasync"):
            monkeypatch.setattr(head_file.os, name, self._watched(name, getattr(os, name)))

    def __call__(self, name: str) -> None:
        with self.changed:
            self.seen.append(name)
            self.changed.notify_all()

    def wait(self, count: int) -> list[str]:
        """Wait until there were this many calls and points, and return all."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, DEADLINE), self.seen
            return list(self.seen)

    def _watched(self, name: str, real: Callable) -> Callable:
        def call(*args: object) -> object:
            self(name)
            if name == self.fail:
                raise OSError(errno.EIO, "planted")
            return real(*args)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def committed(*after: str) -> list[str]:
    return ["taken", "committed", "pwrite", "witnessed", "delivered", *after]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def event(disk: Disk) -> None:
    disk.append("s", [EVENT])


# ---- slots


def test_whatever_arrives_of_unsynced_writes_the_synced_position_is_read(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    file, path = HeadFile(tmp_path), tmp_path / head_file.NAME
    file.reset(*head_file.NOTHING)
    synced, durable = head_file.NOTHING, path.read_bytes()
    for position in range(1, 300):
        mark = DurablePosition(position, chance.randbytes(16))
        file.note(*mark)
        assert read_head(tmp_path) == mark, "visible without a sync"
        now = path.read_bytes()
        arrived = bytes(chance.choice(pair) for pair in zip(durable, now, strict=True))
        (tmp_path / "cut").mkdir(exist_ok=True)
        (tmp_path / "cut" / head_file.NAME).write_bytes(arrived)
        found = read_head(tmp_path / "cut")
        assert found is not None and found in (synced, mark), (seed, position)
        match chance.choice(("more", "more", "sync", "close")):
            case "sync":
                file.sync()
                synced, durable = mark, now
            case "close":  # as a killed process: the next one cannot know what is synced
                file.close()
                file = HeadFile(tmp_path)
                synced, durable = mark, now
    file.close()


def test_opening_syncs_what_a_killed_process_left(tmp_path: Path, calls: Calls) -> None:
    file = HeadFile(tmp_path)
    file.reset(*head_file.NOTHING)
    file.note(1, bytes(16))
    file.close()
    calls.seen.clear()
    HeadFile(tmp_path).close()
    assert calls.seen == ["fdatasync"]


# ---- order and delays


def test_the_sync_follows_the_results_when_the_queue_is_empty(tmp_path: Path, calls: Calls) -> None:
    disk = Disk(tmp_path, point=calls)
    calls.seen.clear()
    event(disk)
    mark = read_head(tmp_path / "db")
    assert mark is not None and mark.position == 1
    assert calls.wait(6) == committed("fdatasync")
    disk.store.close()
    assert calls.seen == committed("fdatasync"), "one sync is enough"


def test_commits_share_a_sync_that_is_due_50_ms_after_the_first(
    tmp_path: Path, calls: Calls
) -> None:
    """The clock moves with the commits, of which the next one waits before each decision."""
    clock = Clock()
    disk = Disk(tmp_path, point=calls, monotonic=clock)
    calls.seen.clear()
    waiting, version = threading.Event(), 0

    def busy(name: str) -> None:
        if name == "taken":
            waiting.wait(DEADLINE)  # until all are in the queue, each a group of its own
        if name == "delivered":
            clock.now += 0.02
        calls(name)

    disk.store._writer._point = busy
    results: list[object] = []
    events = (EVENT,) * GROUP
    for _ in range(6):
        disk.store.append(Batch(writes=(Write("s", version, events),)), results.append)
        version += len(events)
    waiting.set()
    while len(results) < 6:
        disk.calls.get(timeout=DEADLINE)()
    seen = calls.wait(32)
    # written first at 0.00 s; 0.06 s after the third; then again after three more, with an empty queue
    assert seen == committed() * 3 + ["fdatasync"] + committed() * 3 + ["fdatasync"]
    disk.store.close()


def test_with_an_empty_queue_the_sync_does_not_wait_for_50_ms(tmp_path: Path, calls: Calls) -> None:
    clock = Clock()
    disk = Disk(tmp_path, point=calls, monotonic=clock)
    calls.seen.clear()
    event(disk)
    calls.wait(5)
    clock.now += writer.HEAD_SYNC_IDLE
    assert calls.wait(6) == committed("fdatasync")
    assert writer.HEAD_SYNC_IDLE < writer.HEAD_SYNC_BUSY <= 0.05
    disk.store.close()


def test_closing_syncs_before_the_lock_is_released(tmp_path: Path, calls: Calls) -> None:
    disk = Disk(tmp_path, point=calls, monotonic=Clock())
    calls.seen.clear()
    event(disk)
    event(disk)
    assert calls.wait(10) == committed() * 2, "not due by this clock"
    disk.store.close()
    assert calls.seen == committed() * 2 + ["fdatasync"]


def test_an_exchange_of_the_file_begins_with_a_sync(tmp_path: Path, calls: Calls) -> None:
    disk = Disk(tmp_path, point=calls, monotonic=Clock())

    class Exchange:
        def complete(self, old: object, log: DurablePosition) -> None:
            calls("complete")
            raise Refusal("conflict", "planted")

        def replace(self, *args: object) -> None:
            raise AssertionError

    calls.seen.clear()
    event(disk)
    results: list[object] = []
    disk.store.exchange(Exchange(), results.append)  # type: ignore[arg-type]
    while not results:
        disk.calls.get(timeout=DEADLINE)()
    assert calls.wait(8) == committed("fdatasync", "complete", "delivered")
    disk.store.close()


# ---- failures


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_write_or_sync_stops_the_writer_and_is_not_repeated(
    tmp_path: Path, calls: Calls, call: str
) -> None:
    disk = Disk(tmp_path)
    disk.tell(JID, *life(1))
    head = len(disk.store.read_all())  # as a supervisor at its start: the reader has the file open
    until(lambda: calls.seen[-1] == "fdatasync")
    calls.seen.clear()
    calls.fail = call
    batch = Batch(writes=(Write("s", 0, (EVENT,)),))
    if call == "fdatasync":
        event(disk)  # acknowledged: the log has it
        head += 1
        batch = Batch(writes=(Write("s", 1, (EVENT,)),))
        until(lambda: disk.store._writer.dead is not None)
    result = append(disk.store, disk.calls, batch)
    assert isinstance(result, Refusal) and result.code == "storageUnavailable"
    assert "the head file of the event store cannot be written" in result.sentence
    with pytest.raises(Refusal, match="restart the supervisor"):
        disk.store.resume()
    calls.fail = ""
    assert append(disk.store, disk.calls, batch) == result
    assert disk.store.head() == head
    wal = (tmp_path / "db" / "events.sqlite-wal").stat().st_size
    disk.store.close()
    assert calls.seen == (["pwrite"] if call == "pwrite" else ["pwrite", "fdatasync"])
    assert (tmp_path / "db" / "events.sqlite-wal").stat().st_size == wal, "no checkpoint"
    again = disk.open()
    assert again.head() == head + (call == "pwrite"), "the log is the truth"
    again.close()
