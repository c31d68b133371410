"""The name index matches the log after every operation on a store, and files of the previous layout
get the index on migration.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import JID, KEY, UID, life, placed, requested, token
from store_fixtures import Disk

from jobscribe.db.events.events import (
    AgentStarted,
    StopRequested,
    TaskEnded,
    TaskSubmitted,
    agent_stream,
    job_stream,
)
from jobscribe.db.maintenance import backup, compaction, rebuild, repair
from jobscribe.db.maintenance.verification import check
from jobscribe.db.sql import name_table
from jobscribe.db.sqlite import migrations, schema
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Batch, Name, Write
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.exit_info import ExitInfo

OTHER = f"{UID}-simAAA02-command"
NOW = 1.7e9 + 90 * 86_400


def batch_state(job_id: str) -> BatchState:
    return BatchState(cluster="hpc", job_id=job_id, state="PENDING")


def history() -> dict[str, list]:
    t = token(7, jid=OTHER)
    return {
        job_stream(JID): [*life(1), *life(2)],
        job_stream(OTHER): [
            requested(7, jid=OTHER),
            placed(t),
            TaskSubmitted(at=1.7e9, token=t, batch=batch_state("4711_3")),
            StopRequested(
                at=1.7e9, serial=7, reason="cancel", by=UID, grace_secs=1.0, req_id="please-stop"
            ),
            TaskEnded(
                at=1.7e9,
                token=t,
                exit=ExitInfo(source="scheduler", detail="x", batch=batch_state("4712")),
            ),
        ],
        agent_stream(KEY): [
            AgentStarted(at=1.7e9, agent_key=KEY, handle={"name": "srj-s-EPRSuser", "id": "abc"})
        ],
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a closed store."""
    disk = Disk(tmp_path / "root")
    for stream, events in history().items():
        if stream.startswith("job/"):
            disk.tell(stream.removeprefix("job/"), *events)
        else:
            disk.append(stream, events)
    disk.store.close()
    return disk.root


def names(root: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
        return sorted(c.execute("SELECT name, what, stream FROM names").fetchall())


def sql(root: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
        for statement in statements:
            c.execute(statement)
        c.commit()


def first_layout(root: Path) -> None:
    """Convert the file to the layout before the name index."""
    sql(root, "DROP TABLE names", "DROP TABLE usage", "PRAGMA user_version = 1")


def test_every_kind_of_name_is_there(root: Path) -> None:
    j, o = job_stream(JID), job_stream(OTHER)
    ops = {
        op: stream
        for stream, events in history().items()
        for e in events
        if (op := getattr(e, "op_id", None))
    }
    assert names(root) == sorted(
        [
            ("request-1", "request", j),
            ("request-2", "request", j),
            ("request-7", "request", o),
            ("please-stop", "request", o),
            ("4711_3", "slurm", o),
            ("4712", "slurm", o),
            ("srj-s-EPRSuser", "container", agent_stream(KEY)),
            *((op, "op", stream) for op, stream in ops.items()),
        ]
    )
    assert len(ops) == 3


def test_the_store_in_memory_has_the_same(root: Path) -> None:
    store = MemoryStore(lambda call: call())
    for stream, events in history().items():
        store.append(Batch(writes=(Write(stream, 0, tuple(events)),)), lambda result: None)
    assert [(n.name, n.what, n.stream) for n in store.names("")] == names(root)
    assert [(n.name, n.what, n.stream) for n in store.crash().names("")] == names(root)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "DELETE FROM names WHERE name = '4712'",
            f"the index lacks the slurm name 4712 of job/{OTHER}",
        ),
        (
            "UPDATE names SET stream = 'job/x' WHERE name = 'request-1'",
            "the index lacks",
        ),
        (
            "INSERT INTO names VALUES ('stranger', 'op', 'job/x')",
            "1 names in the index belong to no event",
        ),
    ],
)
def test_check_reports_a_name_that_is_missing_or_wrong_and_rebuild_mends_it(
    root: Path, statement: str, said: str
) -> None:
    right = names(root)
    assert check(root).ok
    sql(root, statement)
    assert any(said in p.what and p.where == "index" for p in check(root).problems)
    rebuild.rebuild(root)
    assert check(root).ok and names(root) == right


def test_what_is_folded_keeps_the_names_that_the_checkpoint_has(root: Path) -> None:
    before = set(names(root))
    assert compaction.compact(root, now=NOW).jobs_folded == 1
    after = set(names(root))
    assert check(root).problems == []
    # requests and ops of runs before the last run are no longer known
    assert {n for n, _, _ in before - after if not n.startswith("request")} == {
        e.op_id for e in life(1) if hasattr(e, "op_id")
    }
    assert ("request-2", "request", job_stream(JID)) in after and (
        "4712",
        "slurm",
        job_stream(OTHER),
    ) in after
    rebuild.rebuild(root)
    assert set(names(root)) == after


def test_a_backup_that_is_put_back_has_its_names_and_so_has_a_repaired_store(
    root: Path, tmp_path: Path
) -> None:
    right = names(root)
    backup.backup(root, tmp_path / "copy")
    backup.restore(tmp_path / "new", tmp_path / "copy")
    assert names(tmp_path / "new") == right and check(tmp_path / "new").ok
    (root / "db" / "head").unlink()
    repair.repair(root)
    assert names(root) == right and check(root).ok


# ---- migration from the previous layout


def opened(root: Path, **options: Callable) -> SqliteStore:
    return SqliteStore(root / "db" / "events.sqlite", lambda call: call(), **options)


def test_a_store_of_the_first_layout_gets_its_names_when_it_is_opened_for_writing(
    root: Path,
) -> None:
    right = names(root)
    first_layout(root)
    assert check(root).ok, "looking changes nothing, and misses nothing that this layout never had"
    store = opened(root)
    assert [n.name for n in store.names("471")] == ["4711_3", "4712"]
    store.close()
    assert names(root) == right and check(root).ok
    first_layout(root)
    backups_of = rebuild.rebuild(root)
    assert backups_of.jobs == 2 and names(root) == right


@pytest.mark.process
def test_killed_at_any_moment_of_it_the_store_is_whole_and_the_next_opening_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = names(root)
    steps = [(name_table, "insert"), (migrations, "make_tables"), (migrations, "write_names")]
    for owner, name in steps:
        for after in (False, True):
            first_layout(root)
            pid = os.fork()
            if pid == 0:
                real = getattr(owner, name)

                def killed(*arguments: object, real: Callable = real, after: bool = after) -> None:
                    if after:
                        real(*arguments)
                    os._exit(77)

                setattr(owner, name, killed)
                opened(root)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 77
            assert check(root).ok
            with contextlib.closing(sqlite3.connect(root / "db" / "events.sqlite")) as c:
                assert c.execute("PRAGMA user_version").fetchone() == (1,)
                assert c.execute(
                    "SELECT count(*) FROM sqlite_master WHERE name = 'names'"
                ).fetchone() == (0,)
            opened(root).close()
            assert names(root) == right and check(root).ok


def test_the_version_before_refuses_it_as_a_newer_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LAYOUT", 1)
    before = (root / "db" / "events.sqlite").read_bytes()
    with pytest.raises(Refusal, match=r"unknownEvent.*layout 3") as e:
        opened(root)
    assert (
        "knows layouts up to 1" in e.value.sentence
        and (root / "db" / "events.sqlite").read_bytes() == before
    )


def test_what_takes_long_says_how_far_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first_layout(root)
    opened(root, log=said.append).close()
    assert said == [], "nothing is said of what is quick"
    first_layout(root)
    monkeypatch.setattr(name_table, "BATCH", 2)
    monkeypatch.setattr(migrations, "SLOW_SECS", 0.0)
    connection = schema.open_for_writing(root / "db" / "events.sqlite")
    migrations.migrate(connection, 1, said.append)
    connection.close()
    assert said[0] == "migrating the event store of an earlier version: names of 2 of 12 events"
    assert len(said) == 6


def test_a_name_belongs_to_the_user_of_its_stream() -> None:
    assert [Name("n", "op", s).uid for s in (job_stream(JID), agent_stream(KEY), "system")] == [
        UID,
        UID,
        None,
    ]
