"""Records: their content, their completeness at every moment, and their rebuild from the log alone."""

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import JID, ended, histories, life, placed, requested, started, token
from hypothesis import given
from store_fixtures import Disk, append

from jobscribe.db.events.events import (
    RunEnded,
    StopRequested,
    decode,
    encode,
    job_stream,
    schema_of,
    type_of,
)
from jobscribe.db.events.job_fold import evolve, fold
from jobscribe.db.events.state import Job
from jobscribe.db.records import record_files as records_module
from jobscribe.db.records.record_files import (
    RecordWriter,
    catch_up,
    read_marker,
    record,
    record_bytes,
    record_path,
    write_marker,
)
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.runtime import filesystems

DEADLINE = 20.0


def complain(sentence: str) -> None:
    raise AssertionError(sentence)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


# ---- the projection


def test_a_record_has_the_fields_operators_know() -> None:
    out = record(fold(JID, [*life(7), *life(8)]), 12, 1.7e9 + 1)
    expected = {
        "computeJid": JID,
        "uid": "EPRSuser",
        "simulationId": "simAAA01",
        "simulationType": "command",
        "computeModel": "command",
        "status": "completed",
        "computeJobSerial": 8,
        "computeJobHash": "abc123",
        "computeJobQueued": 1.7e9,
        "isParallel": False,
        "jobRunMode": "sequential",
        "error": None,
        "alert": None,
        "canceledAfterSecs": None,
        "queueState": None,
        "runDir": "/r/8",
        "dbUpdateTime": 1.7e9 + 1,
        "lastUpdateTime": 1_700_000_001,
        "position": 12,
        "historyDropped": 0,
        "reason": "exit",
        "stop": None,
        "simName": None,
        "driverDetails": {"type": "local", "host": "node1"},
        "jobStatusMessage": "completed",
    }
    assert {k: out[k] for k in expected} == expected
    assert out["computeJobStart"] == pytest.approx(1.7e9 - 0.498)
    (attempt,) = out["attempts"]
    (task,) = attempt["tasks"]
    assert (
        task["token"] == f"{JID}/8/1/main/0"
        and len(task["opId"]) == 32
        and task["pid"] == 77
        and task["exit"]["code"] == 0
    )
    assert (
        task["agentKey"] == "local.sequential.EPRSuser@node1"
        and task["exit"]["maxRssBytes"] is None
    )
    assert [(p["computeJobSerial"], p["status"], p["exitCode"]) for p in out["history"]] == [
        (7, "completed", 0)
    ]


@pytest.mark.parametrize(
    ("events", "status", "state", "message", "after"),
    [
        ([], "pending", "queued", "waiting to be placed", None),
        ([placed(token(1))], "pending", "starting", "being started", None),
        ([placed(token(1)), started(token(1))], "running", None, "running", None),
        (
            [
                placed(token(1)),
                started(token(1)),
                StopRequested(
                    at=2.0, serial=1, reason="timeLimit", by="supervisor", grace_secs=1.0
                ),
                RunEnded(at=2.0, serial=1, status="canceled", reason="timeLimit"),
            ],
            "canceled",
            "stopping",
            "canceled (timeLimit); its processes are being ended",
            5.0,
        ),
        (
            [
                StopRequested(
                    at=2.0, serial=1, reason="queueLimit", by="supervisor", grace_secs=1.0
                ),
                RunEnded(at=2.0, serial=1, status="canceled", reason="queueLimit"),
            ],
            "canceled",
            None,
            "canceled (queueLimit)",
            9.0,
        ),
        (
            [RunEnded(at=2.0, serial=1, status="error", reason="lost", error="x")],
            "error",
            None,
            "error (lost)",
            None,
        ),
    ],
)
def test_a_record_says_what_the_run_does_now(
    events: list, status: str, state: str, message: str, after: float
) -> None:
    out = record(
        fold(JID, [requested(1, time_limit_secs=5.0, queue_limit_secs=9.0), *events]), 1, 1.0
    )
    assert (
        out["status"],
        out["queueState"],
        out["jobStatusMessage"],
        out["canceledAfterSecs"],
    ) == (status, state, message, after)


def test_a_record_holds_neither_environment_nor_command() -> None:
    data = record_bytes(
        fold(JID, [requested(1, env={"API": "canary-secret"}, command=("run", "canary-secret"))]),
        1,
        1.0,
    )
    assert b"canary" not in data and json.loads(data)["status"] == "pending"


@given(histories)
def test_a_record_made_from_the_log_is_the_same_byte_for_byte(history: list) -> None:
    live = Job(jid=JID)
    for event in history:
        live = evolve(live, event)
    again = fold(JID, [decode(type_of(e), schema_of(e), encode(e)) for e in history])
    data = record_bytes(live, len(history), 1.5)
    assert record_bytes(again, len(history), 1.5) == data
    assert json.loads(data) == record(live, len(history), 1.5)


# ---- writing


def test_marked_jobs_are_on_file_within_a_second(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "r", complain)
    job = fold(JID, life(1))
    writer.mark(job, 6, 1.5)
    wait_for(lambda: record_path(writer.folder, JID).exists())
    assert record_path(writer.folder, JID).read_bytes() == record_bytes(job, 6, 1.5)
    assert (
        record_path(writer.folder, JID).stat().st_mode & 0o777 == 0o600
        and writer.folder.stat().st_mode & 0o777 == 0o700
    )
    writer.close()


def test_a_short_job_is_written_once_as_it_ended(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, complain, every=3600.0)
    job = Job(jid=JID)
    for position, event in enumerate(life(1), 1):
        job = evolve(job, event)
        writer.mark(job, position, event.at)
    writer.close()
    assert (
        writer.written == 1 and json.loads(record_path(tmp_path, JID).read_bytes())["position"] == 6
    )


def test_the_record_of_a_run_that_waits_is_written_later_and_the_marker_stays_before_it(
    tmp_path: Path,
) -> None:
    other = JID.replace("simAAA01", "simBBB01")
    now = [1000.0]
    writer = RecordWriter(tmp_path, complain, every=0.005, monotonic=lambda: now[0])
    writer.mark(fold(other, life(1)[:1]), 3, 1.5)
    writer.mark(fold(JID, life(1)), 9, 1.5)
    wait_for(lambda: writer.written == 1)
    now[0] += records_module.WAITING_SECS / 2
    writer.mark(fold(other, life(1)[:1]), 10, 1.5)  # another event does not put it off
    assert record_path(tmp_path, JID).exists() and not record_path(tmp_path, other).exists()
    now[0] += records_module.SETTLED_SECS - records_module.WAITING_SECS / 2
    writer.mark(fold(JID, life(1)), 11, 1.5)
    wait_for(lambda: read_marker(tmp_path) == 2)
    wait_for(lambda: record_path(tmp_path, other).exists())
    writer.close()
    assert read_marker(tmp_path) == 11


def test_a_record_that_cannot_be_written_is_counted_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    full = threading.Event()
    full.set()

    def write(path: str, data: bytes, *args: object, **options: object) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        filesystems.write_atomically(path, data, *args, **options)

    monkeypatch.setattr(records_module, "write_atomically", write)
    writer = RecordWriter(tmp_path, said.append, every=0.01, retry=0.01)
    writer.mark(fold(JID, life(1)[:3]), 3, 1.5)
    wait_for(lambda: writer.failures >= 2)
    writer.mark(fold(JID, life(1)), 6, 1.5)
    full.clear()
    wait_for(lambda: writer.written)
    assert "No space left" in said[0] and JID in said[0]
    writer.close()
    assert json.loads(record_path(tmp_path, JID).read_bytes())["position"] == 6
    assert read_marker(tmp_path) == 6


def test_the_marker_does_not_pass_a_record_that_is_not_on_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = JID.replace("simAAA01", "simBBB01")
    said: list[str] = []

    def write(path: str, data: bytes, *args: object, **options: object) -> None:
        if other in path:
            raise OSError(28, "No space left on device")
        filesystems.write_atomically(path, data, *args, **options)

    monkeypatch.setattr(records_module, "write_atomically", write)
    writer = RecordWriter(tmp_path, said.append, every=3600.0)
    writer.mark(fold(JID, life(1)), 6, 1.5)
    writer.mark(fold(other, []), 9, 1.5)
    writer.mark(fold(JID, [*life(1), *life(2)]), 15, 1.5)
    writer.close()
    assert said and read_marker(tmp_path) == 8


def test_the_marker_lags_a_minute_behind_what_is_not_synced(tmp_path: Path) -> None:
    now = [1000.0]
    writer = RecordWriter(tmp_path, complain, every=0.005, monotonic=lambda: now[0])
    writer.mark(fold(JID, life(1)), 6, 1.5)
    wait_for(lambda: writer.written == 1)
    now[0] += records_module.SETTLED_SECS / 2
    writer.mark(fold(JID, [*life(1), *life(2)]), 12, 1.5)
    wait_for(lambda: writer.written == 2)
    assert read_marker(tmp_path) == 0
    now[0] += records_module.SETTLED_SECS / 2 + 1
    writer.mark(fold(JID, [*life(1), *life(2)]), 13, 1.5)
    wait_for(lambda: read_marker(tmp_path) == 6)
    writer.close()
    assert read_marker(tmp_path) == 13


@pytest.mark.parametrize("content", ["", "nonsense\n", "-5\n", "\x00\x00"])
def test_a_marker_without_sense_means_nothing_is_known_to_be_on_file(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / records_module.MARKER).write_text(content)
    assert read_marker(tmp_path) == 0


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    left = tmp_path / f"{JID}.json.1.new"
    left.write_text("half")
    (tmp_path / "notes.txt").write_text("an operator's")
    RecordWriter(tmp_path, complain).close()
    wait_for(lambda: not left.exists())
    assert (tmp_path / "notes.txt").exists()


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("call", ["open", "write", "close", "rename"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_of_the_write_the_record_is_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    path = record_path(tmp_path, JID)
    old, new = (
        record_bytes(fold(JID, life(1)), 6, 1.5),
        record_bytes(fold(JID, [*life(1), *life(2)]), 12, 2.5),
    )
    path.write_bytes(old)
    real = getattr(os, call)

    def killed(*args: object, **options: object) -> object:
        if after:
            real(*args, **options)
        raise Killed

    monkeypatch.setattr(os, "unlink", lambda *_: None)  # a killed process does not clean up
    monkeypatch.setattr(os, call, killed)
    with pytest.raises(Killed):
        filesystems.write_atomically(str(path), new)
    monkeypatch.undo()
    assert path.read_bytes() == (new if call == "rename" and after else old)


# ---- catching up


def memory_of(jobs: dict[str, list]) -> MemoryStore:
    calls: queue.Queue = queue.Queue()
    store = MemoryStore(calls.put)
    for jid, events in jobs.items():
        append(
            store,
            calls,
            Batch(
                writes=(Write(job_stream(jid), 0, tuple(events)),),
                index=(index_row(fold(jid, events)),),
            ),
        )
    return store


def jids(count: int) -> list[str]:
    return [f"EPRSuser-sim{n:05d}-command" for n in range(count)]


def test_the_first_start_makes_all_records_and_the_next_none(tmp_path: Path) -> None:
    store = memory_of({jid: life(1, jid=jid) for jid in jids(5)})
    writer = RecordWriter(tmp_path, complain)
    assert catch_up(store, writer) == 5
    writer.close()
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == jids(5)
    assert read_marker(tmp_path) == store.head() == 30
    again = RecordWriter(tmp_path, complain)
    assert catch_up(store, again) == 0
    again.close()


def test_after_a_crash_only_what_changed_since_the_marker_is_made_again(tmp_path: Path) -> None:
    store = memory_of({jid: life(1, jid=jid) for jid in jids(5)})
    write_marker(tmp_path, 13)
    writer = RecordWriter(tmp_path, complain, every=3600.0)
    assert catch_up(store, writer) == 3
    writer.close()
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == jids(5)[2:]


def test_a_marker_ahead_of_the_log_makes_all_records_again(tmp_path: Path) -> None:
    store = memory_of({jid: life(1, jid=jid) for jid in jids(3)})
    write_marker(tmp_path, 1000)
    writer = RecordWriter(tmp_path, complain)
    assert catch_up(store, writer) == 3
    writer.close()
    assert read_marker(tmp_path) == 18


def test_more_jobs_than_a_page_are_caught_up(tmp_path: Path) -> None:
    store = memory_of({jid: [requested(1, jid=jid)] for jid in jids(2500)})
    writer = RecordWriter(tmp_path, complain, every=3600.0)
    assert catch_up(store, writer) == 2500
    assert set(writer._dirty) == set(jids(2500))
    writer._dirty.clear()
    writer.close()


def test_a_record_is_never_newer_than_the_log(tmp_path: Path) -> None:
    """Read a record while it is written: it is always complete, never goes back, and is never
    behind the marker written at a close.
    """
    disk = Disk(tmp_path)
    writer = RecordWriter(tmp_path / "supervisor-job", complain, every=0.001)
    path = record_path(writer.folder, JID)
    seen = 0
    for serial in range(1, 15):
        for event in life(serial):
            last = disk.tell(JID, event).last
            writer.mark(disk.jobs[JID], last, event.at)
            if path.exists():
                position = json.loads(path.read_bytes())["position"]
                assert seen <= position <= disk.store.head()
                seen = position
    writer.close()
    assert path.read_bytes() == record_bytes(disk.jobs[JID], disk.store.head(), life(14)[-1].at)
    assert seen > 0
    disk.store.close()


def test_what_ended_late_is_in_the_history_of_the_record() -> None:
    job = fold(JID, [requested(1), placed(token(1)), requested(2)])
    assert [t["token"] for t in record(job, 1, 1.0)["history"][0]["liveTasks"]] == [
        f"{JID}/1/1/main/0"
    ]
    assert record(evolve(job, ended(token(1))), 1, 1.0)["history"][0]["liveTasks"] == []
