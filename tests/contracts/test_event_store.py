"""The event store contract (db/store/contract.py), run against the real store and the in-memory
store, with and without disk failures.
"""

import contextlib
import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import postgres_server
import pytest

from jobscribe.db.events.events import (
    AgentStarted,
    Event,
    RunEnded,
    RunRequested,
    StopRequested,
    SupervisorStarted,
    TaskPlaced,
    TaskStarted,
    agent_stream,
    job_stream,
)
from jobscribe.db.events.usage_row import DAY, HOUR, UsageRow
from jobscribe.db.sql import usage_table
from jobscribe.db.sql.reader import JOBS_NAMED
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import (
    Appended,
    Batch,
    Conflict,
    EventStore,
    IndexRow,
    Name,
    Receipt,
    RowFilter,
    Write,
)
from jobscribe.db.store.failing_store import FailingStore, Faults
from jobscribe.db.store.group_commit import Point
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.runtime.store_address import parsed

DEADLINE = 20.0
JIDS = [f"useraaa{n}-simaaaa{n}-command" for n in range(8)]


class Bed:
    """A store of one kind. `settle` runs its deliveries in this thread, in order."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.path = folder / "db" / "events.sqlite"
        self.faults = Faults()
        self.url = postgres_server.shared().url() if "postgres" in kind else ""
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.results: list[Appended | Refusal] = []
        self.deliveries = 0
        self.store = self._open()

    def _open(self) -> EventStore:
        match self.kind:
            case "sqlite":
                return SqliteStore(self.path, self.calls.put, point=self.faults)
            case "memory":
                return MemoryStore(self.calls.put, point=self.faults)
            case "failing sqlite":
                return FailingStore(
                    lambda point: SqliteStore(self.path, self.calls.put, point=point), self.faults
                )
            case "postgres":
                return self._postgres(self.faults)
            case "failing postgres":
                return FailingStore(self._postgres, self.faults)
            case "failing memory":
                return FailingStore(
                    lambda point: MemoryStore(self.calls.put, point=point), self.faults
                )
        raise AssertionError(self.kind)

    def _postgres(self, point: Point) -> EventStore:
        from jobscribe.db.postgres.opening import Site
        from jobscribe.db.postgres.store import PostgresStore

        site = Site(parsed(self.url), None, self.path.parent, "root")
        return PostgresStore(site, self.calls.put, point=point)

    def append(self, *writes: Write, **rest: tuple) -> None:
        self.store.append(Batch(writes=writes, **rest), self.results.append)

    def settle(self, count: int) -> list[Appended | Refusal]:
        """Run deliveries until there are `count` results; return the results and clear them."""
        while len(self.results) < count:
            self.calls.get(timeout=DEADLINE)()
            self.deliveries += 1
        assert len(self.results) == count
        results, self.results = self.results, []
        return results

    def now(self, *writes: Write, **rest: tuple) -> Appended | Refusal:
        self.append(*writes, **rest)
        return self.settle(1)[0]


@pytest.fixture(
    params=[
        "sqlite",
        "memory",
        "failing sqlite",
        "failing memory",
        pytest.param("postgres", marks=pytest.mark.process),
        pytest.param("failing postgres", marks=pytest.mark.process),
    ]
)
def bed(request: pytest.FixtureRequest, tmp_path: Path):
    bed = Bed(request.param, tmp_path)
    yield bed
    bed.faults.mend()
    bed.store.close()


def event(n: int = 1) -> Event:
    return SupervisorStarted(at=float(n), session=n, pid=n, boot_id="b", version="1")


def write(stream: str, expected: int, *numbers: int) -> Write:
    return Write(stream, expected, tuple(event(n) for n in numbers))


def row(
    jid: str, *, status: str = "pending", busy: bool = True, uid: str | None = None
) -> IndexRow:
    return IndexRow(
        jid=jid,
        uid=uid or jid[:8],
        status=status,
        serial=3,
        simulation_type="command",
        kind="sequential",
        driver="local",
        busy=busy,
        queued_at=1.5,
        started_at=2.5,
        ended_at=None,
        reason=None,
    )


def sessions(stored: list) -> list[int]:
    return [s.event.session for s in stored]


# ---- appending and reading


def test_an_empty_store_has_nothing(bed: Bed) -> None:
    assert bed.store.head() == 0
    assert bed.store.read("job/x") == [] and bed.store.read_all() == []
    assert bed.store.busy_jids() == [] and bed.store.jobs() == [] and bed.store.find_jobs("u") == []
    assert bed.store.tally("u") == [] and bed.store.group("u") == []
    assert bed.store.receipt("useraaa1", "request1") is None


def test_what_no_store_can_have_is_not_found(bed: Bed) -> None:
    bed.now(write("a", 0, 1))
    nul = "a\0"
    assert bed.store.find_jobs(nul) == [] and bed.store.names(nul) == []
    assert bed.store.jobs(uid=nul) == [] and bed.store.receipt(nul, nul) is None
    assert bed.store.read(nul) == [] and bed.store.jobs_named(nul, nul) == []
    assert bed.store.scan_jobs(RowFilter(words=(nul,), users=(nul,)))[0] == []


def test_positions_count_over_all_streams_and_versions_within_one(bed: Bed) -> None:
    assert bed.now(write("a", 0, 1, 2), write("b", 0, 3)) == Appended(1, 3)
    assert bed.now(write("a", 2, 4)) == Appended(4, 4)
    assert [(s.position, s.version, s.event.session) for s in bed.store.read("a")] == [
        (1, 1, 1),
        (2, 2, 2),
        (4, 3, 4),
    ]
    assert [(s.position, s.stream, s.version) for s in bed.store.read_all()] == [
        (1, "a", 1),
        (2, "a", 2),
        (3, "b", 1),
        (4, "a", 3),
    ]
    assert bed.store.head() == 4


def test_reads_begin_after_what_the_reader_has(bed: Bed) -> None:
    bed.now(*(write(s, 0, 1, 2, 3) for s in ("a", "b")))
    assert [s.version for s in bed.store.read("a", after=1)] == [2, 3]
    assert bed.store.read("a", after=3) == []
    assert [s.position for s in bed.store.read_all(after=2, limit=3)] == [3, 4, 5]
    assert [s.position for s in bed.store.read_all(after=5)] == [6]
    assert bed.store.read_all(after=6) == [] and bed.store.read_all(after=99) == []


def test_a_stream_is_read_in_pages_and_knows_its_version(bed: Bed) -> None:
    assert bed.store.version("a") == 0
    bed.now(*(write(s, 0, 1, 2, 3) for s in ("a", "b")))
    assert bed.store.version("a") == 3
    assert [s.version for s in bed.store.read("a", limit=2)] == [1, 2]
    assert [s.version for s in bed.store.read("a", after=2, limit=2)] == [3]
    assert bed.store.read("a", after=3, limit=2) == [] == bed.store.read("a", limit=0)


def test_many_streams_are_read_at_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobscribe.db.sql.reader.STREAMS_AT_ONCE", 2)
    names = ["b", "nothing", "a", f"{'j' * 8}-\u00e9", "c"]
    for name in names[::2] + names[3:4]:
        bed.now(write(name, 0, 1, 2))
    bed.now(write("b", 2, 3))
    found = list(bed.store.read_streams(names))
    assert found == [bed.store.read(name) for name in names]
    assert [len(events) for events in found] == [3, 0, 2, 2, 2]
    assert list(bed.store.read_streams([])) == []


def test_what_is_read_is_what_was_written(bed: Bed) -> None:
    token = Token(JIDS[0], 7, 1, "main", 0)
    written = TaskStarted(
        at=1.25,
        token=token,
        pid=3,
        start_ticks=2**40,
        started_at=1e9,
        host="h",
        boot_id='ä\n"\\\x7f\u2028',
    )
    bed.now(Write("a", 0, (written,)))
    assert bed.store.read("a")[0].event == written


def test_a_batch_may_write_a_stream_twice(bed: Bed) -> None:
    assert bed.now(write("a", 0, 1), write("a", 1, 2)) == Appended(1, 2)
    assert bed.now(write("a", 2, 3), write("a", 2, 4)).code == "conflict"
    assert sessions(bed.store.read("a")) == [1, 2]


# ---- conflicts


def test_a_wrong_version_is_a_conflict_and_nothing_of_the_batch_is_there(bed: Bed) -> None:
    bed.now(write("a", 0, 1))
    for expected in (0, 2, 5):
        result = bed.now(
            write("b", 0, 9),
            write("a", expected, 9),
            receipts=(Receipt(uid="u", req_id="r", jid="j", serial=1, at=1.0),),
        )
        assert isinstance(result, Conflict)
        assert (result.stream, result.expected, result.actual) == ("a", expected, 1)
    assert (
        bed.store.read("b") == [] and bed.store.head() == 1 and bed.store.receipt("u", "r") is None
    )


def test_a_conflict_refuses_that_batch_alone(bed: Bed) -> None:
    for n in range(20):
        bed.append(write(f"s{n}", 0 if n % 3 else 7, n))
    results = bed.settle(20)
    assert [isinstance(r, Conflict) for r in results] == [n % 3 == 0 for n in range(20)]
    assert sessions(bed.store.read_all()) == [n for n in range(20) if n % 3]


def test_of_two_who_decided_on_the_same_version_one_wins(bed: Bed) -> None:
    bed.append(write("a", 0, 1))
    bed.append(write("a", 0, 2))
    first, second = bed.settle(2)
    assert first == Appended(1, 1) and isinstance(second, Conflict)
    assert sessions(bed.store.read("a")) == [1]


def test_batches_may_be_decided_ahead_of_the_disk(bed: Bed) -> None:
    for n in range(300):
        bed.append(write("a", n, n))
    assert [r.first for r in bed.settle(300)] == list(range(1, 301))
    assert sessions(bed.store.read("a")) == list(range(300))


def test_versions_of_more_streams_than_are_remembered_are_still_known(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobscribe.db.sql.commit_thread.VERSIONS_KEPT", 3)
    for n in range(30):
        bed.append(write(f"s{n}", 0, n))
    assert all(isinstance(r, Appended) for r in bed.settle(30))
    for n in range(30):
        assert isinstance(bed.now(write(f"s{n}", 0, n)), Conflict)
        assert isinstance(bed.now(write(f"s{n}", 1, n)), Appended)


# ---- delivery order


def test_done_is_called_once_each_in_the_order_of_the_appends(bed: Bed) -> None:
    order: list[int] = []
    for n in range(200):
        batch = Batch(writes=(write(f"s{n}", 1 if n % 10 == 0 else 0, n),))
        bed.store.append(batch, lambda result, n=n: (order.append(n), bed.results.append(result)))
    bed.settle(200)
    assert order == list(range(200))


def test_listeners_hear_every_event_once_in_order_and_before_its_done(bed: Bed) -> None:
    heard: list[int] = []
    behind: list[int] = []
    bed.store.listen(lambda events: heard.extend(s.position for s in events))

    def done(result: Appended | Refusal) -> None:
        bed.results.append(result)
        if isinstance(result, Appended) and (not heard or heard[-1] < result.last):
            behind.append(result.last)

    for n in range(50):
        bed.store.append(Batch(writes=(write(f"s{n % 7}", n // 7, n),)), done)
    bed.settle(50)
    assert heard == list(range(1, 51)) and behind == []


def test_what_a_listener_hears_is_durable_already(bed: Bed) -> None:
    missing: list[int] = []
    bed.store.listen(
        lambda events: missing.extend(
            s.position for s in events if bed.store.read_all(s.position - 1, 1) != [s]
        )
    )
    for n in range(20):
        bed.append(write("a", n, n))
    bed.settle(20)
    assert missing == [] and bed.store.head() == 20


def test_a_listener_that_has_gone_hears_nothing(bed: Bed) -> None:
    heard: list[int] = []
    stop = bed.store.listen(lambda events: heard.extend(s.position for s in events))
    bed.now(write("a", 0, 1))
    stop()
    stop()
    bed.now(write("a", 1, 2))
    assert heard == [1]


def test_one_who_is_told_and_raises_does_not_keep_the_others_from_being_told(bed: Bed) -> None:
    def raises(_: object) -> None:
        raise LookupError("a bug")

    stop = bed.store.listen(raises)
    bed.append(write("a", 0, 1))
    with pytest.raises(LookupError):
        bed.settle(1)
    assert bed.results == [Appended(1, 1)]
    bed.results.clear()
    stop()
    assert bed.now(write("a", 1, 2)) == Appended(2, 2)


# ---- index and receipts


def test_index_rows_get_the_position_of_the_last_event_of_their_job(bed: Bed) -> None:
    a, b = JIDS[:2]
    bed.now(
        write(job_stream(a), 0, 1),
        write(job_stream(b), 0, 2, 3),
        write("system", 0, 4),
        index=(row(a), row(b)),
    )
    assert {r.jid: r.position for r in bed.store.jobs()} == {a: 1, b: 3}
    bed.now(write(job_stream(a), 1, 5), index=(row(a, status="completed", busy=False),))
    (first, second) = bed.store.jobs()
    assert (first.jid, first.position, first.status, first.busy) == (a, 5, "completed", False)
    assert second == IndexRow(
        jid=b,
        uid=b[:8],
        status="pending",
        serial=3,
        simulation_type="command",
        kind="sequential",
        driver="local",
        busy=True,
        queued_at=1.5,
        started_at=2.5,
        ended_at=None,
        reason=None,
        position=3,
    )


def test_an_index_row_without_an_event_of_its_job_is_refused(bed: Bed) -> None:
    result = bed.now(write("a", 0, 1), index=(row(JIDS[0]),))
    assert isinstance(result, Refusal) and result.code == "internal"
    assert bed.store.head() == 0 and bed.store.jobs() == []


def test_jobs_are_listed_newest_first_by_every_filter(bed: Bed) -> None:
    for n, jid in enumerate(JIDS):
        status = ("pending", "running", "completed", "error")[n % 4]
        bed.append(
            write(job_stream(jid), 0, n),
            index=(row(jid, status=status, busy=n % 2 == 0, uid="even" if n % 2 == 0 else "odd"),),
        )
    bed.settle(len(JIDS))

    def numbers(**by: object) -> list[int]:
        return [JIDS.index(r.jid) for r in bed.store.jobs(**by)]

    assert numbers() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert numbers(uid="even") == [6, 4, 2, 0]
    assert numbers(status="error") == [7, 3]
    assert numbers(active=True) == [5, 4, 1, 0] and numbers(active=False) == [7, 6, 3, 2]
    assert numbers(uid="odd", active=True) == [5, 1]
    assert numbers(limit=3) == [7, 6, 5]
    assert numbers(before=6) == [4, 3, 2, 1, 0] and numbers(before=6, limit=2) == [4, 3]
    assert [JIDS.index(j) for j in bed.store.busy_jids()] == [0, 2, 4, 6]


def test_windows_of_jobs_are_filtered_and_follow_each_other(bed: Bed) -> None:
    for n, jid in enumerate(JIDS):
        fields: dict[str, Any] = {
            "driver": f"d{n % 3}",
            "queued_at": float(n),
            "reason": "exit" if n > 4 else None,
        }
        bed.append(
            write(job_stream(jid), 0, n),
            index=(
                msgspec.structs.replace(
                    row(jid, status="error" if n % 2 else "completed", uid="a" if n < 6 else "b"),
                    simulation_type="heat" if n == 2 else "command",
                    **fields,
                ),
            ),
        )
    bed.settle(len(JIDS))

    def numbers(before: int | None = None, window: int = 100, **by: Any) -> tuple[list[int], Any]:
        rows, left = bed.store.scan_jobs(RowFilter(**by), before=before, window=window)
        return [JIDS.index(r.jid) for r in rows], left

    assert numbers() == ([7, 6, 5, 4, 3, 2, 1, 0], None)
    assert numbers(window=3) == ([7, 6, 5], 6) and numbers(6, 3) == ([4, 3, 2], 3)
    assert numbers(3, 3) == ([1, 0], None) and numbers(1) == ([], None)
    # a window counts the rows of the user, whether they fit or not
    assert numbers(window=2, uid="a", statuses=("completed",)) == ([4], 5)
    assert numbers(drivers=("d0", "d1"), statuses=("error",)) == ([7, 3, 1], None)
    assert numbers(types=("heat",))[0] == [2] and numbers(reasons=("exit",))[0] == [7, 6, 5]
    assert numbers(since=2.0, until=5.0)[0] == [4, 3, 2]
    assert numbers(users=("b", "nobody"))[0] == [7, 6] and numbers(users=("a", "b"))[0][:3] == [
        7,
        6,
        5,
    ]
    assert numbers(users=("b",), uid="a")[0] == [] and numbers(window=2, users=("a",)) == ([], 7)


def test_windows_may_leave_out_jobs_without_the_words(bed: Bed) -> None:
    commands = (("python", "a b.py"), ("sh", "-c", 'echo "x"'))
    for n, command in enumerate(commands):
        spec = RunSpec(
            uid=f"useraaa{n}", simulation_id=f"simaaaa{n}", command=command, queue=f"q{n}"
        )
        requested = RunRequested(at=1.0, serial=1, req_id=f"request{n}", spec=spec, run_dir="/x")
        bed.append(Write(job_stream(JIDS[n]), 0, (requested,)), index=(row(JIDS[n]),))
    bed.settle(len(commands))

    def numbers(*words: str, queues: tuple[str, ...] = ()) -> list[int]:
        rows, _ = bed.store.scan_jobs(RowFilter(words=words, queues=queues))
        return [JIDS.index(r.jid) for r in rows]

    exact = "memory" not in bed.kind
    for words, right in (
        (("PYTHON", "A B"), [0]),
        (('"x"',), [1]),
        (("useraaa1",), [1]),
        (("python", "echo"), []),
        (("pyth%n",), []),
    ):
        assert set(right) <= set(numbers(*words)) and (not exact or numbers(*words) == right)
    assert 0 in numbers(queues=("q0", "q9")) and (not exact or numbers(queues=("q1",)) == [1])


def test_jobs_are_found_by_the_beginning_of_their_jid(bed: Bed) -> None:
    for jid in JIDS:
        bed.append(write(job_stream(jid), 0, 1), index=(row(jid),))
    bed.settle(len(JIDS))
    assert [r.jid for r in bed.store.find_jobs("useraaa3")] == [JIDS[3]]
    assert [r.jid for r in bed.store.find_jobs("useraaa", limit=3)] == JIDS[:3]
    assert (
        bed.store.find_jobs("Useraaa") == []
        and bed.store.find_jobs("%") == []
        and bed.store.find_jobs("useraaa_") == []
    )


def numbered(bed: Bed, *models: str, **fields: str) -> list[str]:
    """Store jobs of one simulation with these models, plus jobs of three neighboring simulations;
    return the job ids of the first.
    """
    jids = [f"useraaa1-simaaaa1-{m}" for m in models]
    for jid in (*jids, "useraaa1-simaaaa0-x_1", "useraaa1-simaaaa2-x_1", "useraaa2-simaaaa1-x_1"):
        bed.append(write(job_stream(jid), 0, 1), index=(row(jid, **fields),))
    bed.settle(len(jids) + 3)
    return jids


def test_a_group_is_in_the_order_of_its_numbers_page_by_page(bed: Bed) -> None:
    jids = numbered(bed, *(f"x_{n}" for n in (11, 2, 100, 0, 10, 1)))
    ordered = [f"useraaa1-simaaaa1-x_{n}" for n in (0, 1, 2, 10, 11, 100)]
    assert sorted(ordered) == sorted(jids)
    assert [r.jid for r in bed.store.group("useraaa1-simaaaa1-")] == ordered
    assert [r.jid for r in bed.store.group("useraaa1-simaaaa1-", limit=4)] == ordered[:4]
    for at, jid in enumerate(ordered):
        assert [
            r.jid for r in bed.store.group("useraaa1-simaaaa1-", after=jid, limit=2)
        ] == ordered[at + 1 : at + 3]
    assert [
        r.jid for r in bed.store.group("useraaa1-simaaaa1-", after="useraaa1-simaaaa1-x_9")
    ] == ordered[3:]
    assert (
        bed.store.group("useraaa1-simaaaa9-") == []
        and bed.store.group("useraaa1-simaaaa1-", limit=0) == []
    )


def test_a_group_is_narrowed_by_status(bed: Bed) -> None:
    numbered(bed, "x_1", "x_2", "x_3")
    done = "useraaa1-simaaaa1-x_2"
    bed.now(write(job_stream(done), 1, 2), index=(row(done, status="error", busy=False),))
    found = {
        s: [r.jid[-1] for r in bed.store.group("useraaa1-simaaaa1-", statuses=s)]
        for s in (("error",), ("pending",), ("error", "pending"), ())
    }
    assert found == {
        ("error",): ["2"],
        ("pending",): ["1", "3"],
        ("error", "pending"): ["1", "2", "3"],
        (): [],
    }
    assert (
        bed.store.group("useraaa1-simaaaa1-", statuses=("error",))[0].position == bed.store.head()
    )
    assert bed.store.group("useraaa1-simaaaa1-", statuses=("error",), after=done) == []


def test_a_group_is_counted_by_what_its_jobs_have_in_common(bed: Bed) -> None:
    assert bed.store.tally("useraaa1-simaaaa1-") == []
    numbered(bed, *(f"x_{n}" for n in range(5)))
    ends = [
        ("completed", False, None),
        ("error", False, "exit"),
        ("error", True, "exit"),
        ("error", False, "exit"),
    ]
    for n, (status, busy, reason) in enumerate(ends):
        jid = f"useraaa1-simaaaa1-x_{n}"
        bed.now(
            write(job_stream(jid), 1, 2),
            index=(msgspec.structs.replace(row(jid, status=status, busy=busy), reason=reason),),
        )
    head = bed.store.head()
    tallies = {
        (t.status, t.reason, t.busy): (t.count, t.position)
        for t in bed.store.tally("useraaa1-simaaaa1-")
    }
    assert tallies == {
        ("pending", None, True): (1, 5),
        ("completed", None, False): (1, head - 3),
        ("error", "exit", False): (2, head),
        ("error", "exit", True): (1, head - 1),
    }


def test_receipts_are_found_by_user_and_request(bed: Bed) -> None:
    receipt = Receipt(uid="useraaa1", req_id="request1", jid=JIDS[1], serial=5, at=9.5)
    bed.now(write("a", 0, 1), receipts=(receipt,))
    assert bed.store.receipt("useraaa1", "request1") == receipt
    assert (
        bed.store.receipt("useraaa2", "request1") is None
        and bed.store.receipt("useraaa1", "request2") is None
    )


def test_a_batch_may_hold_a_receipt_alone(bed: Bed) -> None:
    receipt = Receipt(uid="useraaa1", req_id="request1", jid=JIDS[1], serial=5, at=9.5)
    assert isinstance(bed.now(receipts=(receipt,)), Appended)
    assert bed.store.receipt("useraaa1", "request1") == receipt and bed.store.head() == 0


# ---- names


def asked(req_id: str, n: int = 1) -> StopRequested:
    return StopRequested(
        at=float(n), serial=n, reason="cancel", by="useraaa1", grace_secs=1.0, req_id=req_id
    )


def placed(jid: str, op: str, n: int = 1) -> TaskPlaced:
    return TaskPlaced(
        at=1.0,
        token=Token(jid, n, 1, "main", 0),
        agent_key=AgentKey("local", "sequential", jid[:8], "h"),
        op_id=op * 32,
    )


def test_names_are_found_by_their_beginning_each_once_and_in_order(bed: Bed) -> None:
    a, b = JIDS[1:3]
    bed.now(Write(job_stream(a), 0, (asked("request-1"), placed(a, "x"), asked("request-1"))))
    bed.now(Write(job_stream(b), 0, (asked("request-1"), asked("request-22", 2), placed(b, "X"))))
    there = [
        Name("request-1", "request", job_stream(a)),
        Name("request-1", "request", job_stream(b)),
        Name("request-22", "request", job_stream(b)),
    ]
    assert (
        bed.store.names("request-") == there and bed.store.names("request-", limit=2) == there[:2]
    )
    assert bed.store.names("request-2") == there[2:] and bed.store.names("request-1") == there[:2]
    assert [n.stream for n in bed.store.names("xxxx")] == [job_stream(a)] and [
        n.stream for n in bed.store.names("XXXX")
    ] == [job_stream(b)]
    assert (
        bed.store.names("%") == []
        and bed.store.names("request_") == []
        and bed.store.names("y") == []
    )


def test_names_may_be_those_of_one_user(bed: Bed) -> None:
    key = AgentKey("docker", "parallel", "useraaa2", "h1")
    for jid in JIDS[1:4]:
        bed.now(Write(job_stream(jid), 0, (asked("same-request"),)))
    bed.now(
        Write(
            agent_stream(key),
            0,
            (AgentStarted(at=1.0, agent_key=key, handle={"name": "same-container"}),),
        )
    )
    assert [n.stream for n in bed.store.names("same", "useraaa2")] == [
        agent_stream(key),
        job_stream(JIDS[2]),
    ]
    assert [n.uid for n in bed.store.names("same")] == [
        "useraaa2",
        "useraaa1",
        "useraaa2",
        "useraaa3",
    ]
    assert bed.store.names("same", "useraaa9") == [] and bed.store.names("same", "useraaa") == []


def test_jobs_with_a_name_are_those_of_one_user_without_a_look_at_others(bed: Bed) -> None:
    for jid in JIDS[1:4]:
        bed.now(Write(job_stream(jid), 0, (asked("same-request"),)))
    bed.now(Write(job_stream(JIDS[4]), 0, (asked("same-request-2"),)))
    found = sorted(JIDS[1:4])
    assert bed.store.jobs_named("same-request", "request") == found
    assert bed.store.jobs_named("same-request", "request", limit=2) == found[:2]
    assert bed.store.jobs_named("same-request", "request", "useraaa2") == [JIDS[2]]
    for name, what, uid in (
        ("same-request", "tag", None),
        ("same-reques", "request", None),
        ("same-request", "request", "useraaa"),
    ):
        assert bed.store.jobs_named(name, what, uid) == []
    if isinstance(bed.store, SqliteStore):
        with contextlib.closing(sqlite3.connect(f"file:{bed.path}?mode=ro", uri=True)) as file:
            asked_for = ("a", "b", "c", "d", 1)
            plan = file.execute("EXPLAIN QUERY PLAN " + JOBS_NAMED, asked_for).fetchall()
        assert "name=? AND what=? AND stream>? AND stream<?" in str(plan), plan


def test_agents_are_those_that_the_log_knows(bed: Bed) -> None:
    assert bed.store.agents() == []
    for n in (2, 1, 2):
        key = AgentKey("local", "sequential", f"useraaa{n}", "h")
        bed.now(
            Write(
                agent_stream(key),
                len(bed.store.read(agent_stream(key))),
                (AgentStarted(at=1.0, agent_key=key, handle={}),),
            )
        )
    bed.now(write("agent0", 0, 1), write("agents", 0, 1), write("a", 0, 1))
    assert bed.store.agents() == ["local.sequential.useraaa1@h", "local.sequential.useraaa2@h"]


def test_names_come_with_their_events_or_not_at_all(bed: Bed) -> None:
    jid = JIDS[1]
    assert isinstance(bed.now(Write(job_stream(jid), 7, (asked("conflicting"),))), Conflict)
    bed.faults.fail(1)
    assert bed.now(Write(job_stream(jid), 0, (asked("refused-1"),))).code == "storageUnavailable"
    bed.store.resume()
    assert bed.store.names("conf") == bed.store.names("refu") == []
    bed.now(Write(job_stream(jid), 0, (asked("accepted"),)))
    assert [n.name for n in bed.store.names("acc")] == ["accepted"]


# ---- what cannot be stored


@pytest.mark.parametrize(
    "bad",
    [
        RunEnded(at=float("nan"), serial=1, status="completed", reason="exit"),
        TaskStarted(
            at=1.0,
            token=Token("not a jid", 0, 0, "", -1),
            pid=1,
            start_ticks=1,
            started_at=1.0,
            host="h",
            boot_id="b",
        ),
        RunEnded(at=1.0, serial=1, status="completed", reason="\ud800"),
    ],
)
def test_an_event_that_could_not_be_read_back_is_refused_alone(bed: Bed, bad: Event) -> None:
    bed.append(write("a", 0, 1))
    bed.append(Write("b", 0, (bad,)))
    bed.append(write("c", 0, 2))
    first, second, third = bed.settle(3)
    assert (first, third) == (Appended(1, 1), Appended(2, 2))
    assert isinstance(second, Refusal) and second.code == "internal"
    assert bed.store.read("b") == []


# ---- failed commits


@pytest.mark.parametrize("nth", [1, 2, 3, 7])
def test_a_failed_commit_refuses_everything_until_resumed(bed: Bed, nth: int) -> None:
    bed.faults.fail(nth)
    good = [bed.now(write("a", n, n)) for n in range(nth - 1)]
    bed.append(write("a", nth - 1, 100))
    bed.append(write("a", nth, 101))
    refused = bed.settle(2)
    assert bed.faults.failed == 1
    # the disk works again, but decisions based on a failed write must not be stored
    bed.append(write("other", 0, 102))
    refused += bed.settle(1)
    assert all(isinstance(r, Appended) for r in good)
    assert [r.code for r in refused] == ["storageUnavailable"] * 3
    assert bed.store.head() == nth - 1 and bed.store.read("other") == []
    bed.store.resume()
    assert bed.now(write("a", nth - 1, 103)) == Appended(nth, nth)
    assert sessions(bed.store.read_all()) == [*range(nth - 1), 103]


def test_what_was_appended_before_the_resume_belongs_to_what_failed(bed: Bed) -> None:
    """This holds even before the failure is delivered."""
    bed.faults.fail(1)
    for n in range(50):
        bed.append(write(f"s{n}", 0, n))
    first = bed.calls.get(timeout=DEADLINE)
    bed.store.resume()
    bed.append(write("later", 0, 7))
    first()
    results = bed.settle(51)
    assert [r.code for r in results[:50]] == ["storageUnavailable"] * 50
    assert results[50] == Appended(1, 1)


def test_a_disk_that_stays_full_refuses_after_every_resume(bed: Bed) -> None:
    bed.faults.fail(2, forever=True)
    assert bed.now(write("a", 0, 1)) == Appended(1, 1)
    for _ in range(3):
        assert bed.now(write("a", 1, 2)).code == "storageUnavailable"
        bed.store.resume()
    bed.faults.mend()
    assert bed.now(write("a", 1, 2)) == Appended(2, 2)


def test_resume_without_a_failure_changes_nothing(bed: Bed) -> None:
    bed.store.resume()
    bed.append(write("a", 0, 1))
    bed.store.resume()
    bed.append(write("a", 1, 2))
    assert bed.settle(2) == [Appended(1, 1), Appended(2, 2)]


@pytest.mark.parametrize("at", ["taken", "committed", "witnessed"])
def test_after_a_failed_sync_nothing_is_written_any_more(bed: Bed, at: str) -> None:
    bed.now(write("a", 0, 1), receipts=(Receipt(uid="u", req_id="r", jid="j", serial=1, at=1.0),))
    bed.faults.fail(1, fatal=True, at=at)
    assert bed.now(write("a", 1, 2)).code == "storageUnavailable"
    bed.faults.mend()
    with pytest.raises(Refusal, match="storageUnavailable"):
        bed.store.resume()
    assert bed.now(write("b", 0, 3)).code == "storageUnavailable"
    # the write was never confirmed, so no read returns it
    assert (
        bed.store.head() == 1
        and sessions(bed.store.read_all()) == [1]
        and sessions(bed.store.read("a")) == [1]
    )


def test_listeners_hear_nothing_of_a_failed_commit(bed: Bed) -> None:
    heard: list[int] = []
    bed.store.listen(lambda events: heard.extend(sessions(list(events))))
    bed.faults.fail(1)
    bed.now(write("a", 0, 1))
    bed.store.resume()
    bed.now(write("a", 0, 2))
    assert heard == [2]


# ---- closing


def test_closing_makes_durable_and_tells_what_was_appended(bed: Bed) -> None:
    heard: list[int] = []
    bed.store.listen(lambda events: heard.extend(sessions(list(events))))
    for n in range(100):
        bed.append(write("a", n, n))
    bed.store.close()
    assert [r.last for r in bed.settle(100)] == list(range(1, 101)) and heard == list(range(100))


def test_a_closed_store_refuses(bed: Bed) -> None:
    bed.store.close()
    bed.store.close()
    assert bed.now(write("a", 0, 1)).code == "storageUnavailable"
    reads = (
        lambda: bed.store.read("a"),
        lambda: bed.store.tally("u"),
        lambda: bed.store.group("u"),
        lambda: bed.store.names("u"),
        bed.store.agents,
    )
    for call in (bed.store.resume, bed.store.read_all, bed.store.jobs, bed.store.busy_jids, *reads):
        with pytest.raises(Refusal, match="storageUnavailable"):
            call()


# ---- hooks


def test_faults_strike_at_the_commit_they_were_told(tmp_path: Path) -> None:
    seen: list[str] = []
    faults = Faults()

    def point(name: str) -> None:
        seen.append(name)
        faults(name)

    bed = Bed("memory", tmp_path)
    bed.store = MemoryStore(bed.calls.put, point=point)
    faults.fail(2, forever=True)
    codes = [getattr(bed.now(write("a", n, n)), "code", "ok") for n in (0, 1)]
    bed.store.resume()
    codes.append(getattr(bed.now(write("a", 1, 2)), "code", "ok"))
    assert codes == ["ok", "storageUnavailable", "storageUnavailable"] and faults.failed == 2
    assert seen[:4] == ["taken", "committed", "witnessed", "delivered"]
    with pytest.raises(ValueError, match="no such fault"):
        faults.fail(at="nowhere")


def test_the_points_are_passed_in_order_around_a_commit(tmp_path: Path) -> None:
    seen: list[str] = []
    points: list[Point] = [seen.append]
    bed = Bed("memory", tmp_path)
    bed.store = SqliteStore(tmp_path / "other" / "events.sqlite", bed.calls.put, point=points[0])
    bed.now(write("a", 0, 1))
    bed.store.close()
    assert seen == ["taken", "committed", "witnessed", "delivered"]


def test_a_memory_store_that_holds_loses_what_was_not_committed(tmp_path: Path) -> None:
    bed = Bed("memory", tmp_path)
    store = MemoryStore(bed.calls.put, hold=True)
    for n in range(3):
        store.append(Batch(writes=(write("a", n, n),)), bed.results.append)
    assert store.waiting == 3 and store.head() == 0 and bed.calls.empty()
    store.commit()
    bed.settle(3)
    store.append(Batch(writes=(write("a", 3, 3),)), bed.results.append)
    after = store.crash()
    assert sessions(after.read("a")) == [0, 1, 2] and after.waiting == 0
    with pytest.raises(Refusal):
        store.read("a")
    after.append(Batch(writes=(write("a", 3, 4),)), bed.results.append)
    after.commit()
    assert bed.settle(1) == [Appended(4, 4)]


# ---- usage


def used(start: int = 0, uid: str = "useraaa1", **fields: object) -> UsageRow:
    values = {"span": "hour", "queue": "q", "driver": "local", "kind": "sequential", **fields}
    return UsageRow(start=start, uid=uid, simulation_type="x", **values)


EVER = (0.0, 1e12)


def test_usage_adds_to_the_row_with_the_same_key_and_the_peak_is_the_largest(bed: Bed) -> None:
    assert bed.store.usage(*EVER) == []
    one, two = used(wall_ms=3, peak_bytes=9), used(wall_ms=4, executions=1, peak_bytes=5)
    other = used(queue="r", completed=1)
    # in one batch, in one group, and in two groups
    bed.now(write("a", 0, 1), usage=(one, two, other))
    for n in range(20):
        bed.append(write(f"b{n}", 0, 1), usage=(one,))
    bed.settle(20)
    assert bed.store.usage(*EVER) == [
        used(wall_ms=67, executions=1, peak_bytes=9),
        used(queue="r", completed=1),
    ]


def test_usage_of_a_time_and_of_a_user(bed: Bed) -> None:
    rows = [used(n * HOUR, uid, wall_ms=n) for n in (1, 2, 3) for uid in ("useraaa1", "useraaa2")]
    bed.now(write("a", 0, 1), usage=tuple(reversed(rows)))
    assert bed.store.usage(*EVER) == rows
    assert bed.store.usage(HOUR, 3 * HOUR) == rows[:4]
    assert bed.store.usage(HOUR + 0.5, 1e12, "useraaa2") == [rows[3], rows[5]]


def test_usage_of_a_refused_batch_is_not_added(bed: Bed) -> None:
    bed.now(write("a", 0, 1), usage=(used(wall_ms=1),))
    assert isinstance(bed.now(write("a", 5, 1), usage=(used(wall_ms=2),)), Conflict)
    bed.faults.fail()
    assert isinstance(bed.now(write("a", 1, 2), usage=(used(wall_ms=4),)), Refusal)
    bed.store.resume()
    assert bed.store.usage(*EVER) == [used(wall_ms=1)]
    bed.now(write("a", 1, 2), usage=(used(wall_ms=8),))
    assert bed.store.usage(*EVER) == [used(wall_ms=9)]


def test_old_usage_is_merged_into_longer_periods(bed: Bed) -> None:
    bed.now(write("a", 0, 1), usage=(used(HOUR, wall_ms=1), used(2 * HOUR, wall_ms=2)))
    bed.now(write("a", 1, 2), usage=(used(20 * DAY, wall_ms=4),))
    # the merge follows the answer: it is complete before the next one
    bed.now(write("a", 2, 3))
    assert bed.store.usage(*EVER) == [used(span="day", wall_ms=3), used(20 * DAY, wall_ms=4)]
    bed.now(write("a", 3, 4), usage=(used(200 * DAY, wall_ms=8), used(HOUR, wall_ms=16)))
    bed.now(write("a", 4, 5))
    assert [(r.span, r.start, r.wall_ms) for r in bed.store.usage(*EVER)] == [
        ("month", 0, 23),
        ("hour", 200 * DAY, 8),
    ]


def test_much_old_usage_is_merged_in_parts_that_lose_and_repeat_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_table, "MERGED_AT_ONCE", 3)
    rows = [
        used(day * DAY + hour * HOUR, uid=f"User{n:04d}", wall_ms=2 ** (4 * day + 2 * hour + n))
        for day in (1, 2)
        for hour in (0, 1)
        for n in (0, 1)
    ]
    bed.now(write("a", 0, 1), usage=(*rows, used(20 * DAY)))
    for version in range(1, 6):
        assert sum(r.wall_ms for r in bed.store.usage(*EVER)) == 0x0FF0
        bed.now(write("a", version, version + 1))
    assert [(r.span, r.start // DAY, r.uid, r.wall_ms) for r in bed.store.usage(*EVER)][:-1] == [
        ("day", 1, "User0000", 0x050),
        ("day", 1, "User0001", 0x0A0),
        ("day", 2, "User0000", 0x500),
        ("day", 2, "User0001", 0xA00),
    ]
