"""Repair after `storeDamaged`: report the losses, keep the intact events, and continue from them."""

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from event_strategies import UID, ended, life, placed, requested, started, token
from kill_points import killed_at_every_step
from store_fixtures import Disk

from jobscribe.db.events.events import (
    ACCESS,
    SYSTEM,
    AgentStarted,
    AgentStartRequested,
    AttemptEnded,
    RunEnded,
    SupervisorStarted,
    TokenRevoked,
    agent_stream,
)
from jobscribe.db.maintenance import checkpoints, salvage
from jobscribe.db.maintenance.compaction import compact
from jobscribe.db.maintenance.log_source import open_file
from jobscribe.db.maintenance.rebuild import rebuild
from jobscribe.db.maintenance.repair import examine, repair
from jobscribe.db.maintenance.verification import check
from jobscribe.db.records.record_files import read_marker
from jobscribe.db.store import head_file
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import parse_agent_key

JIDS = [f"{UID}-sim{n:05d}-command" for n in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create 25 events: the system's, then four jobs one after the other."""
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


def destroy_page(root: Path, position: int = 20) -> None:
    path = root / "db" / "events.sqlite"
    with sqlite3.connect(path) as c:
        (body,) = c.execute("SELECT body FROM events WHERE position = ?", (position,)).fetchone()
    c.close()
    with open(path, "r+b") as f:
        f.seek(path.read_bytes().index(body.encode()) // 4096 * 4096)
        f.write(b"\xff" * 4096)


#: description, damage, number of kept events, position up to which nothing is lost, jobs that lose
#: events
DAMAGE: list[tuple[str, Callable[[Path], object], int | None, int | None, list[int] | None]] = [
    (
        "a row was changed",
        lambda r: sql(r, "UPDATE events SET at = at + 1 WHERE position = 16"),
        20,
        15,
        [2],
    ),
    ("a row is gone", lambda r: sql(r, "DELETE FROM events WHERE position = 16"), 20, 15, [2]),
    (
        "a checksum was changed",
        lambda r: sql(r, "UPDATE events SET checksum = zeroblob(16) WHERE position = 16"),
        25,
        15,
        [],
    ),
    (
        "the last checksum was changed",
        lambda r: sql(r, "UPDATE events SET checksum = zeroblob(16) WHERE position = 25"),
        25,
        24,
        [],
    ),
    (
        "the first row was changed",
        lambda r: sql(r, "UPDATE events SET at = at + 1 WHERE position = 1"),
        24,
        0,
        [],
    ),
    ("the end is gone", lambda r: sql(r, "DELETE FROM events WHERE position > 20"), 20, 20, [3]),
    ("a page is destroyed", destroy_page, None, None, None),
    (
        "the file is cut",
        lambda r: os.truncate(r / "db" / "events.sqlite", 20_000),
        None,
        None,
        None,
    ),
    (
        "the file is something else",
        lambda r: (r / "db" / "events.sqlite").write_text("nonsense" * 5000),
        0,
        0,
        [],
    ),
    ("the file is empty", lambda r: os.truncate(r / "db" / "events.sqlite", 0), 0, 0, []),
    ("the file is gone", lambda r: (r / "db" / "events.sqlite").unlink(), 0, 0, []),
    ("the witness is gone", lambda r: (r / "db" / "head").unlink(), 25, 25, []),
    (
        "the witness is destroyed",
        lambda r: (r / "db" / "head").write_bytes(bytes(8192)),
        25,
        25,
        [],
    ),
    (
        "the witness is another log's",
        lambda r: shutil.copy(other(r) / "db" / "head", r / "db" / "head"),
        25,
        25,
        [],
    ),
]


def other(root: Path) -> Path:
    disk = Disk(root.with_name("other"))
    disk.tell(JIDS[0], *life(1, jid=JIDS[0]))
    disk.store.close()
    return disk.root


@pytest.mark.parametrize(
    ("what", "spoil", "kept", "up_to", "jobs"), DAMAGE, ids=[d[0] for d in DAMAGE]
)
def test_the_command_that_a_refusal_names_works(
    root: Path,
    what: str,
    spoil: Callable[[Path], object],
    kept: int | None,
    up_to: int | None,
    jobs: list[int] | None,
) -> None:
    spoil(root)
    with pytest.raises(Refusal, match="storeDamaged") as refused:
        Disk(root)
    assert re.search(rf"'jobscribe db repair --root {root}'", refused.value.sentence), refused.value
    before = {
        p.name: p.read_bytes()
        for p in (root / "db").iterdir()
        if p.name in ("events.sqlite", "head")
    }
    damage = examine(root)
    assert (
        damage.cut
        and damage.reasons
        and (kept is None or (damage.kept_events, damage.kept_up_to) == (kept, up_to))
    ), damage
    assert {p.name: p.read_bytes() for p in (root / "db").iterdir() if p.name in before} == before
    assert jobs is None or (damage.jobs_lost, damage.named) == (
        len(jobs),
        [JIDS[n] for n in jobs],
    ), damage
    done = repair(root, now=1.8e9)
    assert done.events == damage.kept_events and done.kept_aside is not None
    assert {n: (Path(done.kept_aside) / n).read_bytes() for n in before} == before
    assert {p.stat().st_mode & 0o777 for p in Path(done.kept_aside).iterdir()} <= {0o600}
    report = check(root)
    assert report.ok and report.records_behind == 0 and report.events == done.events + 1, report
    assert len(list((root / "supervisor-job").glob("*.json"))) == report.jobs == done.jobs
    disk = Disk(root)
    system = disk.store.read(SYSTEM)
    assert checkpoints.is_rolled_back(system)
    last = system[-1]
    if (Path(done.kept_aside) / "head").exists() and what != "the witness is destroyed":
        assert last.position >= (26 if "another" not in what else 7)
    assert last.event.position == damage.kept_up_to and last.event.reason == "repaired"
    if what in ("a row was changed", "a row is gone"):
        assert checkpoints.serial_floor(system) == 14
    disk.versions = {SYSTEM: last.version}
    disk.append(SYSTEM, [SupervisorStarted(at=1.0, session=2, pid=1, boot_id="b", version="9")])
    disk.store.close()
    assert check(root).ok and examine(root).nothing


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: sql(r, "UPDATE jobs SET status = 'running'"),
        lambda r: sql(r, "DELETE FROM kinds"),
        lambda r: (r / "supervisor-job" / f"{JIDS[0]}.json").write_text('{"position": '),
    ],
)
def test_where_only_what_is_derived_is_wrong_nothing_is_cut(
    root: Path, spoil: Callable[[Path], object]
) -> None:
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
    for statement in (
        "PRAGMA user_version = 4",
        "INSERT INTO kinds VALUES ('JobPromoted', 1)",
        "INSERT INTO kinds VALUES ('RunEnded', 9)",
    ):
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
    assert (damage.kept_up_to, damage.kept_events, damage.named) == (25, 6, []), (
        damage
    )  # only the event of the compaction is lost
    assert repair(root).jobs == 5
    assert check(root).ok


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_repair_killed_at_any_step_can_be_done_again(root: Path) -> None:
    sql(root, "UPDATE events SET at = at + 1 WHERE position = 16")

    def healed(place: Path) -> None:
        repair(place)
        report = check(place)
        assert report.ok and report.records_behind == 0 and report.events == 21, report
        assert read_marker(place / "supervisor-job") == 26
        aside = place / "db" / "before-repair-1" / "events.sqlite"
        assert (
            not aside.exists()
            or aside.stat().st_size == 0
            or aside.stat().st_size == (root / "db" / "events.sqlite").stat().st_size
        )

    assert killed_at_every_step(root, root.with_name("place"), repair, healed) > 10


# ---- which events of a stream can be kept


def history(root: Path) -> Disk:
    """Create interleaved jobs, as decisions write them: many streams in one transaction, several
    events of a stream at the same time.
    """
    disk = Disk(root)
    key = parse_agent_key("local.sequential.EPRSuser@localhost")
    agent = [
        AgentStartRequested(at=1.0, agent_key=key, token_hash="h", attempt=1),
        AgentStarted(at=1.5, agent_key=key, handle={"pid": 1}),
    ]
    stories = {jid: life(n + 10, at=1000.0, jid=jid) for n, jid in enumerate(JIDS)}
    gang = [token(14, index=n, jid=GANG) for n in range(3)]
    stories[GANG] = [
        requested(14, 1000.0, GANG),
        *(placed(t, 1001.0) for t in gang),
        *(started(t, 1002.0 + n) for n, t in enumerate(gang)),
        *(ended(t, 1010.0) for t in gang),
        AttemptEnded(at=1010.0, serial=14, attempt=1, reason="exit"),
        RunEnded(at=1010.0, serial=14, status="completed", reason="exit"),
    ]
    times = sorted({e.at for story in stories.values() for e in story})
    disk.append(SYSTEM, [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")])
    for event in agent:
        disk.append(agent_stream(key), [event])
    for at in times:
        disk.tell_all({jid: [e for e in story if e.at == at] for jid, story in stories.items()})
    disk.store.close()
    return disk


GANG = f"{UID}-sim00009-command"


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE events SET body = replace(body, ':', ';') WHERE position = {}",
        "UPDATE events SET at = at + 1, body = '?' WHERE position = {}",
        "UPDATE events SET stream = 'job/x' WHERE position = {}",
        "DELETE FROM events WHERE position = {}",
        "DELETE FROM events WHERE position BETWEEN {0} AND {0} + 6",
    ],
)
def test_only_streams_that_lose_an_event_are_set_back_and_never_by_half_a_transaction(
    tmp_path: Path, harm: str
) -> None:
    disk = history(tmp_path / "root")
    path, mark = disk.path, head_file.read_head(disk.path.parent)
    with contextlib.closing(sqlite3.connect(path)) as c:
        rows = c.execute(
            "SELECT position, stream, version, at, type FROM events ORDER BY position"
        ).fetchall()
    original = path.read_bytes()
    for position in range(1, len(rows) + 1):
        path.write_bytes(original)
        with contextlib.closing(sqlite3.connect(path)) as c, c:
            c.execute(harm.format(position))
        with contextlib.closing(open_file(path)) as c:
            found = salvage.survey(c, mark)
            kept = [(r.position, r.stream, r.version) for r in salvage.kept(c, mark, found)]
        gone = range(
            position, position + (8 if "BETWEEN" in harm else 2 if "DELETE" in harm else 1)
        )
        hit = {stream for p, stream, *_ in rows if p in gone}
        beside = {stream for p, stream, *_ in rows if p == position - 1}
        lost = {x.stream for x in found.losses}
        assert lost <= hit | beside and found.events == len(kept)
        assert {s for s in hit if s.startswith("job/")} <= lost | (
            {rows[gone[-1] - 1][1]} if gone[-1] <= len(rows) else set()
        )
        for stream in {s for _, s, *_ in rows}:
            there = [(p, version, at, type_) for p, s, version, at, type_ in rows if s == stream]
            left = [p for p, s, _ in kept if s == stream]
            assert [v for _, s, v in kept if s == stream] == list(range(1, len(left) + 1))
            assert stream in lost or left == [p for p, *_ in there] or not stream.startswith("job/")
            if stream.startswith("job/") and left:
                n = len(left)
                assert left == [p for p, *_ in there[:n]], "a beginning"
                assert (
                    n == len(there)
                    or there[n - 1][2] != there[n][2]
                    or there[n - 1][3] == "RunRequested"
                ), (position, stream, n)


def test_of_api_tokens_every_intact_event_is_kept(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "root")
    disk.tell(JIDS[0], *life(1, jid=JIDS[0]))
    disk.append(ACCESS, [TokenRevoked(at=1.0, id=f"token{n:03d}", by="operator") for n in range(3)])
    disk.store.close()
    sql(disk.root, "UPDATE events SET at = 2 WHERE stream = 'access' AND version = 2")
    mark = head_file.read_head(disk.path.parent)
    with contextlib.closing(open_file(disk.path)) as c:
        found = salvage.survey(c, mark)
        kept = [r for r in salvage.kept(c, mark, found) if r.stream == ACCESS]
    assert [(x.stream, x.lost) for x in found.losses] == [(ACCESS, 1)]
    assert [r.version for r in kept] == [1, 2]
    assert ["token000" in kept[0].body, "token002" in kept[1].body] == [True, True]


def test_a_flipped_byte_costs_one_job_its_later_events_and_nobody_else_anything(
    tmp_path: Path,
) -> None:
    """Damage event 37 of 345."""
    disk = Disk(tmp_path / "root")
    jids = [f"{UID}-sim{n:05d}-command" for n in range(57)]
    disk.append(
        SYSTEM,
        [SupervisorStarted(at=1.0, session=n, pid=1, boot_id="b", version="9") for n in (1, 2, 3)],
    )
    for at in range(6):
        for n, jid in enumerate(jids):
            disk.tell(jid, life(n + 1, jid=jid)[at])
    disk.store.close()
    rebuild(disk.root)
    with contextlib.closing(sqlite3.connect(disk.path)) as c, c:
        (stream, body) = c.execute("SELECT stream, body FROM events WHERE position = 37").fetchone()
        c.execute(
            "UPDATE events SET body = ? WHERE position = 37", (chr(ord(body[0]) ^ 1) + body[1:],)
        )
    damage = examine(disk.root)
    assert (damage.kept_events, damage.jobs_lost, damage.named) == (
        339,
        1,
        [stream.removeprefix("job/")],
    )
    destroy_page(disk.root, 200)
    damage = examine(disk.root)
    assert 250 < damage.kept_events < 339 and damage.kept_up_to == 36, (
        "what lies behind the page is read as well"
    )
    assert repair(disk.root, now=2e9).events == damage.kept_events
    report = check(disk.root)
    assert report.ok and report.jobs == 56
