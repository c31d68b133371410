"""What an operator types after `storeDamaged`: told what is lost, then keeping what is whole, and going on from it."""

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from db_histories import UID, life, requested
from db_kills import killed_at_every_step
from db_stores import Disk
from jobscribe.db import folding
from jobscribe.db.compaction import compact
from jobscribe.db.events import SYSTEM, SupervisorStarted
from jobscribe.db.inspection import check
from jobscribe.db.rebuilding import rebuild
from jobscribe.db.records import read_marker
from jobscribe.db.repairing import examine, repair
from jobscribe.protocol.errors import Refusal

JIDS = [f"{UID}-sim{n:05d}-command" for n in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """25 events: the system's, then four jobs one after the other."""
    disk = Disk(tmp_path / "root")
    disk.append(SYSTEM, [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")])
    for n, jid in enumerate(JIDS):
        disk.tell(jid, *life(n + 10, jid=jid))
    disk.store.close()
    rebuild(disk.root)
    return disk.root


def sql(root: Path, statement: str) -> None:
    with sqlite3.connect(root / "db" / "events.sqlite") as c:
        c.execute(statement)
    c.close()


def destroy_page(root: Path) -> None:
    path = root / "db" / "events.sqlite"
    with sqlite3.connect(path) as c:
        (body,) = c.execute("SELECT body FROM events WHERE position = 20").fetchone()
    c.close()
    with open(path, "r+b") as f:
        f.seek(path.read_bytes().index(body.encode()) // 4096 * 4096)
        f.write(b"\xff" * 4096)


DAMAGE: list[tuple[str, Callable[[Path], object], int | None]] = [
    ("a row was changed", lambda r: sql(r, "UPDATE events SET at = at + 1 WHERE position = 16"), 15),
    ("a row is gone", lambda r: sql(r, "DELETE FROM events WHERE position = 16"), 15),
    ("the first row was changed", lambda r: sql(r, "UPDATE events SET at = at + 1 WHERE position = 1"), 0),
    ("the end is gone", lambda r: sql(r, "DELETE FROM events WHERE position > 20"), 20),
    ("a page is destroyed", destroy_page, None),
    ("the file is cut", lambda r: os.truncate(r / "db" / "events.sqlite", 20_000), None),
    ("the file is something else", lambda r: (r / "db" / "events.sqlite").write_text("nonsense" * 5000), 0),
    ("the file is empty", lambda r: os.truncate(r / "db" / "events.sqlite", 0), 0),
    ("the file is gone", lambda r: (r / "db" / "events.sqlite").unlink(), 0),
    ("the witness is gone", lambda r: (r / "db" / "head").unlink(), 25),
    ("the witness is destroyed", lambda r: (r / "db" / "head").write_bytes(bytes(8192)), 25),
    ("the witness is another log's", lambda r: shutil.copy(other(r) / "db" / "head", r / "db" / "head"), 25),
]


def other(root: Path) -> Path:
    disk = Disk(root.with_name("other"))
    disk.tell(JIDS[0], *life(1, jid=JIDS[0]))
    disk.store.close()
    return disk.root


@pytest.mark.parametrize(("what", "spoil", "whole"), DAMAGE, ids=[d[0] for d in DAMAGE])
def test_the_command_that_a_refusal_names_works(root: Path, what: str, spoil: Callable[[Path], object], whole: int | None) -> None:
    spoil(root)
    with pytest.raises(Refusal, match="storeDamaged") as refused:
        Disk(root)
    assert re.search(rf"'jobscribe db repair --root {root}'", refused.value.sentence), refused.value
    before = {p.name: p.read_bytes() for p in (root / "db").iterdir() if p.name in ("events.sqlite", "head")}
    damage = examine(root)
    assert damage.cut and damage.reasons and (whole is None or (damage.kept_events, damage.kept_up_to) == (whole, whole)), damage
    assert {p.name: p.read_bytes() for p in (root / "db").iterdir() if p.name in before} == before
    if what in ("a row was changed", "a row is gone"):
        assert (damage.jobs_lost, set(damage.named), damage.lost_up_to) == (2, {JIDS[2], JIDS[3]}, 25)
    done = repair(root, now=1.8e9)
    assert done.events == damage.kept_events and done.kept_aside is not None
    assert {n: (Path(done.kept_aside) / n).read_bytes() for n in before} == before
    assert {p.stat().st_mode & 0o777 for p in Path(done.kept_aside).iterdir()} <= {0o600}
    report = check(root)
    assert report.ok and report.records_behind == 0 and report.events == done.events + 1, report
    assert len(list((root / "supervisor-job").glob("*.json"))) == report.jobs == done.jobs
    disk = Disk(root)
    system = disk.store.read(SYSTEM)
    assert folding.set_back(system)
    last = system[-1]
    if (Path(done.kept_aside) / "head").exists() and what != "the witness is destroyed":
        assert last.position >= (26 if "another" not in what else 7)
    assert last.event.position == done.events and last.event.reason == "repaired"
    if what in ("a row was changed", "a row is gone"):
        assert folding.serial_floor(system) == 14
    disk.versions = {SYSTEM: last.version}
    disk.append(SYSTEM, [SupervisorStarted(at=1.0, session=2, pid=1, boot_id="b", version="9")])
    disk.store.close()
    assert check(root).ok and examine(root).nothing


@pytest.mark.parametrize("spoil", [
    lambda r: sql(r, "UPDATE jobs SET status = 'running'"), lambda r: sql(r, "DELETE FROM kinds"),
    lambda r: (r / "supervisor-job" / f"{JIDS[0]}.json").write_text('{"position": '),
])
def test_where_only_what_is_derived_is_wrong_nothing_is_cut(root: Path, spoil: Callable[[Path], object]) -> None:
    spoil(root)
    damage = examine(root)
    assert not damage.cut and damage.reasons and damage.kept_events == 25
    assert repair(root).kept_aside is None
    report = check(root)
    assert report.ok and report.events == 25 and report.records_behind == 0


def test_a_whole_store_has_nothing_to_repair(root: Path) -> None:
    assert examine(root).nothing
    with pytest.raises(Refusal, match="notFound"):
        examine(root.with_name("none"))


def test_a_store_of_a_newer_version_is_not_called_damaged(root: Path) -> None:
    for statement in ("PRAGMA user_version = 3", "INSERT INTO kinds VALUES ('JobPromoted', 1)", "INSERT INTO kinds VALUES ('RunEnded', 9)"):
        place = shutil.copytree(root, root.with_name("place"))
        sql(place, statement)
        for verb in (examine, repair):
            with pytest.raises(Refusal, match="unknownEvent"):
                verb(place)
        assert not list((place / "db").glob("before-*"))
        shutil.rmtree(place)


def test_a_store_in_use_is_not_repaired(root: Path) -> None:
    disk = Disk(root)
    with pytest.raises(Refusal, match="rootBusy"):
        repair(root)
    disk.store.close()


def test_a_compacted_log_is_repaired_like_any_other(root: Path) -> None:
    compact(root, now=3e9)
    disk = Disk(root)
    disk.tell("EPRSuser-simZZZZZ-command", requested(1, jid="EPRSuser-simZZZZZ-command"))
    disk.store.close()
    sql(root, "UPDATE events SET at = at + 1 WHERE position = 26")
    damage = examine(root)
    assert (damage.kept_up_to, damage.kept_events, damage.named) == (25, 5, ["EPRSuser-simZZZZZ-command"]), damage
    assert repair(root).jobs == 4
    assert check(root).ok


@pytest.mark.timeout(900)
def test_a_repair_killed_at_any_step_can_be_done_again(root: Path) -> None:
    sql(root, "UPDATE events SET at = at + 1 WHERE position = 16")

    def healed(place: Path) -> None:
        repair(place)
        report = check(place)
        assert report.ok and report.records_behind == 0 and report.events == 16, report
        assert read_marker(place / "supervisor-job") == 26
        aside = place / "db" / "before-repair-1" / "events.sqlite"
        assert not aside.exists() or aside.stat().st_size == 0 or aside.stat().st_size == (root / "db" / "events.sqlite").stat().st_size

    assert killed_at_every_step(root, root.with_name("place"), repair, healed) > 10
