"""Truncated, torn and bit-flipped files: a store opens with all acknowledged events, or reports
that it is damaged.
"""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import life
from store_fixtures import Disk

from jobscribe.db.events.events import RunEnded
from jobscribe.db.maintenance.verification import check
from jobscribe.db.sql import log_end
from jobscribe.db.sqlite import opening
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Stored
from jobscribe.protocol.errors import Refusal

JIDS = [f"EPRSuser-sim{n:05d}-command" for n in range(20)]


def fill(root: Path, jobs: int = 12) -> list[Stored]:
    """Write every event in its own transaction; copy the files as a killed process leaves them to
    `<root>.left`.
    """
    disk = Disk(root)
    for n, jid in enumerate(JIDS[:jobs]):
        for event in life(n + 1, jid=jid):
            disk.tell(jid, event)
    events = disk.store.read_all(limit=10_000)
    shutil.copytree(root, f"{root}.left")
    disk.store.close()
    return events


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stored]]:
    """Create a store whose last commits are only in the WAL."""
    root = tmp_path_factory.mktemp("killed") / "root"
    return Path(f"{root}.left"), fill(root)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stored]]:
    """Create a store that was closed cleanly, without a WAL."""
    root = tmp_path_factory.mktemp("closed") / "root"
    events = fill(root)
    return root, events


def outcome(root: Path, events: list[Stored]) -> str:
    """Return `whole` or `refused`; fail if the store opens with less than the whole log."""
    try:
        store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    except Refusal as e:
        # (the list of kinds and the layout number are not part of the log: a bit flip there looks
        # like a newer version's file)
        assert e.code == "storeDamaged" or (
            e.code == "unknownEvent" and ("db check" in e.sentence or "layout" in e.sentence)
        ), e
        assert e.code == "unknownEvent" or (
            "jobscribe db check" in e.sentence and "jobscribe db repair" in e.sentence
        )
        return "refused"
    try:
        (
            store.jobs(),
            store.busy_jids(),
            store.find_jobs("E"),
            store.tally("E"),
            store.group("E"),
            store.receipt("EPRSuser", "request-1"),
        )
        found = store.read_all(limit=10_000)
        by_stream = [s for jid in JIDS for s in store.read("job/" + jid)]
    except Refusal as e:
        assert e.code == "storeDamaged", e
        return "refused"
    finally:
        store.close()
    assert found == events and sorted(by_stream, key=lambda s: s.position) == events
    return "whole"


def spoiled(template: Path, folder: Path, spoil: Callable[[Path], None]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    (folder / "db" / "events.sqlite-shm").unlink(missing_ok=True)
    spoil(folder / "db")
    return folder


def test_a_killed_store_opens_whole(killed: tuple[Path, list[Stored]], tmp_path: Path) -> None:
    template, events = killed
    assert (template / "db" / "events.sqlite-wal").stat().st_size > 100_000
    assert outcome(spoiled(template, tmp_path / "x", lambda _: None), events) == "whole"


def test_a_wal_cut_anywhere_is_refused(killed: tuple[Path, list[Stored]], tmp_path: Path) -> None:
    template, events = killed
    size = (template / "db" / "events.sqlite-wal").stat().st_size
    # every offset of the last bytes, and many earlier offsets
    offsets = {0, 1, 31, 32, 33, *range(size - 30, size), *range(5, size, size // 60)}
    for offset in sorted(offsets):
        cut = spoiled(
            template, tmp_path / "x", lambda db, o=offset: os.truncate(db / "events.sqlite-wal", o)
        )
        assert outcome(cut, events) == "refused", f"cut at {offset}"


def test_a_wal_that_is_gone_is_refused(killed: tuple[Path, list[Stored]], tmp_path: Path) -> None:
    template, events = killed
    assert (
        outcome(
            spoiled(template, tmp_path / "x", lambda db: (db / "events.sqlite-wal").unlink()),
            events,
        )
        == "refused"
    )


def test_garbage_behind_the_wal_does_no_harm(
    killed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    template, events = killed

    def spoil(db: Path) -> None:
        with open(db / "events.sqlite-wal", "ab") as f:
            f.write(random.Random(1).randbytes(10_000))

    assert outcome(spoiled(template, tmp_path / "x", spoil), events) == "whole"


def test_a_file_cut_anywhere_is_never_opened_with_less(
    closed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    template, events = closed
    size = (template / "db" / "events.sqlite").stat().st_size
    offsets = {0, 1, 100, *range(0, size, 4096), *range(7, size, 9973), size - 1}
    seen = [
        outcome(
            spoiled(template, tmp_path / "x", lambda db, o=o: os.truncate(db / "events.sqlite", o)),
            events,
        )
        for o in sorted(offsets)
    ]
    # no part of the file is dispensable, except unused pages at its end
    assert seen.count("refused") >= len(seen) - 2


@pytest.mark.parametrize("tail", [log_end.TAIL, 3])
@pytest.mark.parametrize("file", ["events.sqlite", "events.sqlite-wal"])
def test_a_flipped_bit_is_never_read_as_something_else(
    killed: tuple[Path, list[Stored]],
    closed: tuple[Path, list[Stored]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    tail: int,
) -> None:
    monkeypatch.setattr(log_end, "TAIL", tail)
    template, events = closed if file == "events.sqlite" else killed
    chance = random.Random(7)
    size = (template / "db" / file).stat().st_size
    seen = []
    for _ in range(150):
        offset, bit = chance.randrange(size), chance.randrange(8)

        def spoil(db: Path, offset: int = offset, bit: int = bit) -> None:
            with open(db / file, "r+b") as f:
                f.seek(offset)
                byte = f.read(1)[0]
                f.seek(offset)
                f.write(bytes([byte ^ 1 << bit]))

        root = spoiled(template, tmp_path / "x", spoil)
        report = check(root)
        seen.append(outcome(root, events))
        if seen[-1] == "refused":
            assert not report.ok, (offset, bit)
    # (a bit flip in the index of jobs, or in an unused page, does not affect the log)
    assert seen.count("refused") > 20


@pytest.mark.parametrize(
    "column", ["position", "stream", "version", "type", "schema", "at", "body", "checksum"]
)
@pytest.mark.parametrize("position", [1, 30, 72])
def test_every_column_of_every_row_is_covered(
    closed: tuple[Path, list[Stored]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    position: int,
) -> None:
    monkeypatch.setattr(log_end, "TAIL", 3)
    template, events = closed
    changes = {
        "position": "1000",
        "stream": "upper(stream)",
        "version": "77",
        "type": "upper(type)",
        "schema": "2",
        "at": "at + 0.001",
        "body": "replace(body, '1', '2')",
        "checksum": "zeroblob(16)",
    }

    def spoil(db: Path) -> None:
        with sqlite3.connect(db / "events.sqlite") as c:
            assert (
                c.execute(
                    f"UPDATE events SET {column} = {changes[column]} WHERE position = ?",
                    (position,),
                ).rowcount
                == 1
            )
        c.close()

    root = spoiled(template, tmp_path / "x", spoil)
    report = check(root)
    assert not report.ok and report.whole_up_to == position - 1, report
    assert outcome(root, events) == "refused"


def test_a_removed_row_is_missed(
    closed: tuple[Path, list[Stored]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "TAIL", 3)
    template, events = closed
    for position in (1, 30, 69, 71, 72):

        def spoil(db: Path, position: int = position) -> None:
            with sqlite3.connect(db / "events.sqlite") as c:
                c.execute("DELETE FROM events WHERE position = ?", (position,))
            c.close()

        root = spoiled(template, tmp_path / "x", spoil)
        assert not check(root).ok
        assert outcome(root, events) == "refused"


def test_a_row_of_another_log_does_not_fit(tmp_path: Path) -> None:
    """Simulates mixed files of two backups: the row itself is valid, but does not fit the rows
    after it.
    """
    rows = []
    for name, note in (("a", "exit"), ("b", "lost")):
        disk = Disk(tmp_path / name)
        for n in range(20):
            disk.append(
                "s",
                [RunEnded(at=1.0, serial=n + 1, status="error", reason=note if n == 9 else "exit")],
            )
        disk.store.close()
        with sqlite3.connect(disk.path) as c:
            rows.append(
                c.execute("SELECT body, checksum FROM events WHERE position = 10").fetchone()
            )
        c.close()
    with sqlite3.connect(tmp_path / "a" / "db" / "events.sqlite") as c:
        c.execute("UPDATE events SET body = ?, checksum = ? WHERE position = 10", rows[1])
    c.close()
    report = check(tmp_path / "a")
    assert not report.ok and report.whole_up_to == 10, report
    with pytest.raises(Refusal, match="damaged at position 11"):
        SqliteStore(tmp_path / "a" / "db" / "events.sqlite", lambda call: call())


# ---- the durable head


def test_a_log_longer_than_its_witness_opens_with_all_of_it(
    killed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    """Simulates a process killed between the commit and the head file update."""
    template, events = killed
    for mark in (head_file.NOTHING, _mark(template, 10), _mark(template, len(events))):
        root = spoiled(template, tmp_path / "x", lambda db, m=mark: _write_head(db, m))
        assert outcome(root, events) == "whole"
        assert head_file.read_head(root / "db") == _mark(template, len(events))


def test_a_log_shorter_than_its_witness_is_refused(
    closed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    template, events = closed
    root = spoiled(
        template,
        tmp_path / "x",
        lambda db: _write_head(db, head_file.DurablePosition(len(events) + 1, bytes(16))),
    )
    with pytest.raises(
        Refusal, match=f"the log ends at position {len(events)}, but {len(events) + 1} was durable"
    ):
        SqliteStore(root / "db" / "events.sqlite", lambda call: call())


def test_another_log_than_the_one_witnessed_is_refused(
    closed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    template, _ = closed
    root = spoiled(
        template,
        tmp_path / "x",
        lambda db: _write_head(db, head_file.DurablePosition(40, bytes(16))),
    )
    with pytest.raises(
        Refusal, match="position 40 of the log has a checksum that differs from the head file"
    ):
        SqliteStore(root / "db" / "events.sqlite", lambda call: call())


def test_a_torn_slot_of_the_witness_leaves_the_one_before(
    closed: tuple[Path, list[Stored]], tmp_path: Path
) -> None:
    template, events = closed
    with open(template / "db" / "head", "rb") as f:
        first, second = head_file._marks(f.fileno())
    assert first and second and max(first, second) == _mark(template, len(events))
    for offset in range(0, 48, 5):
        for slot, left in ((0, second), (4096, first)):

            def spoil(db: Path, at: int = slot + offset) -> None:
                with open(db / "head", "r+b") as f:
                    f.seek(at)
                    f.write(b"\xee" * 3)

            root = spoiled(template, tmp_path / "x", spoil)
            assert head_file.read_head(root / "db") == left
            assert outcome(root, events) == "whole"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda head: head.unlink(),
        lambda head: os.truncate(head, 0),
        lambda head: head.write_bytes(bytes(8192)),
    ],
)
def test_a_log_without_its_witness_is_refused(
    closed: tuple[Path, list[Stored]], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    template, events = closed
    root = spoiled(template, tmp_path / "x", lambda db: spoil(db / "head"))
    assert outcome(root, events) == "refused"
    assert outcome(root, events) == "refused", "refusing it once must not make it right"


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: os.truncate(file, 0)])
def test_a_witness_without_its_log_is_refused(
    closed: tuple[Path, list[Stored]], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    template, events = closed
    root = spoiled(template, tmp_path / "x", lambda db: spoil(db / "events.sqlite"))
    assert outcome(root, events) == "refused"
    assert outcome(root, events) == "refused", "refusing it once must not make it right"


def _mark(template: Path, position: int) -> head_file.DurablePosition:
    with sqlite3.connect(f"file:{template}/db/events.sqlite?mode=ro", uri=True) as c:
        (checksum,) = c.execute(
            "SELECT checksum FROM events WHERE position = ?", (position,)
        ).fetchone()
    c.close()
    return head_file.DurablePosition(position, checksum)


def _write_head(db: Path, mark: head_file.DurablePosition) -> None:
    (db / "head").unlink()
    w = head_file.HeadFile(db)
    w.reset(*mark)
    w.close()
