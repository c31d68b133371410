"""Check, rebuild, export and job history of a store without a supervisor."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from event_strategies import JID, life, requested
from kill_points import killed_at_every_step
from store_fixtures import Disk

from jobscribe.db.events.events import SupervisorStarted, encode, job_stream
from jobscribe.db.maintenance.rebuild import rebuild
from jobscribe.db.maintenance.verification import check, events_of, export
from jobscribe.db.records.record_files import RecordWriter, catch_up, read_marker
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Receipt
from jobscribe.protocol.errors import Refusal

JIDS = [f"EPRSuser-sim{n:05d}-command" for n in range(5)]


def complain(sentence: str) -> None:
    raise AssertionError(sentence)


def sql(root: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(root / "db" / "events.sqlite") as c:
        assert c.execute(statement, values).rowcount > 0
    c.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create a cleanly closed store with records: five jobs of two runs each, 63 events."""
    disk = Disk(tmp_path / "root")
    writer = RecordWriter(disk.root / "supervisor-job", complain)
    disk.append("system", [SupervisorStarted(at=1.0, session=1, pid=1, boot_id="b", version="9")])
    for serial in (1, 2):
        for jid in JIDS:
            for event in life(serial, 1.7e9 + serial, jid):
                receipt = Receipt(
                    uid="EPRSuser", req_id=f"request-{serial}", jid=jid, serial=serial, at=event.at
                )
                disk.tell(jid, event, receipts=(receipt,) if event.at == 1.7e9 + serial else ())
    disk.append("system", [SupervisorStarted(at=2.0, session=2, pid=1, boot_id="b", version="9")])
    disk.tell(JIDS[0], requested(3, 1.7e9 + 3, JIDS[0]))
    catch_up(disk.store, writer)
    writer.close()
    disk.store.close()
    return disk.root


def records(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (root / "supervisor-job").glob("*.json")}


# ---- check


def test_a_healthy_store(root: Path) -> None:
    said: list[tuple[str, int, int]] = []
    report = check(root, lambda *what: said.append(what))
    assert report.ok and not report.in_use and report.records_behind == 0, report
    assert (report.events, report.whole_up_to, report.witness, report.jobs) == (63, 63, 63, 5)
    assert said[-1] == ("jobs", 5, 5) and ("events", 63, 63) in said


def test_a_store_in_use_is_checked_and_that_is_said(root: Path) -> None:
    store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    report = check(root)
    assert report.ok and report.in_use
    with pytest.raises(Refusal, match=r"rootBusy.*is in use"):
        rebuild(root)
    assert len(list(export(root))) == 63
    store.close()


def test_check_changes_nothing(root: Path) -> None:
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    check(root)
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize(
    ("statement", "where", "what"),
    [
        (
            "UPDATE jobs SET status = 'error' WHERE jid LIKE '%00002-%'",
            "index",
            "the row of EPRSuser-sim00002-command",
        ),
        ("UPDATE jobs SET busy = 0 WHERE jid LIKE '%00000-%'", "index", "0 busy jobs"),
        (
            "UPDATE jobs SET position = position + 1 WHERE jid LIKE '%00002-%'",
            "index",
            "the row of EPRSuser-sim00002-command",
        ),
        (
            "DELETE FROM jobs WHERE jid LIKE '%00002-%'",
            "index",
            "the index has 4 jobs, the log has 5",
        ),
        (
            "UPDATE jobs SET jid = 'EPRSuser-simXXXXX-command' WHERE jid LIKE '%00002-%'",
            "index",
            "the row of",
        ),
        ("DELETE FROM kinds WHERE type = 'TaskEnded'", "index", "lacks TaskEnded 1"),
        (
            "UPDATE events SET body = replace(body, 'node1', 'node2') WHERE position = 4",
            "log",
            "checksum",
        ),
        (
            "DELETE FROM events WHERE position = 20",
            "log",
            "the next row in the log is at position 21",
        ),
        (
            "DELETE FROM events WHERE position = 63",
            "witness",
            "position 63 was durable, but the log ends at 62",
        ),
    ],
)
def test_check_finds(root: Path, statement: str, where: str, what: str) -> None:
    sql(root, statement)
    report = check(root)
    assert not report.ok
    assert any(p.where == where and what in p.what for p in report.problems), report.problems


def test_check_finds_versions_that_are_not_continuous(root: Path) -> None:
    """Written with valid checksums, as only a bug of jobscribe could."""
    disk = Disk(root)
    disk.store._writer._versions["system"] = 5
    disk.versions["system"] = 5
    disk.append("system", [SupervisorStarted(at=2.0, session=2, pid=1, boot_id="b", version="9")])
    disk.store.close()
    report = check(root)
    assert any(
        p.where == "stream" and "system has version 6 instead of 3" in p.what
        for p in report.problems
    ), report.problems


def test_check_looks_at_the_witness(root: Path) -> None:
    (root / "db" / "head").write_bytes(bytes(8192))
    assert [p.where for p in check(root).problems] == ["witness"]


def test_check_tells_a_record_that_lags_from_one_that_lies(root: Path) -> None:
    folder = root / "supervisor-job"
    (folder / f"{JIDS[1]}.json").unlink()
    (folder / f"{JIDS[2]}.json").write_text(json.dumps({"position": 3}))
    report = check(root)
    assert report.ok and report.records_behind == 2
    (folder / f"{JIDS[3]}.json").write_text(json.dumps({"position": 1000}))
    (folder / f"{JIDS[4]}.json").write_text('{"position": ')
    problems = {p.what.split(".json")[0]: p.where for p in check(root).problems}
    assert problems == {JIDS[3]: "record", JIDS[4]: "record"}


def test_no_store_is_said_and_none_is_made(tmp_path: Path) -> None:
    for call in (
        check,
        rebuild,
        lambda root: list(export(root)),
        lambda root: events_of(root, "system"),
    ):
        with pytest.raises(Refusal, match="notFound"):
            call(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- export and job history


def test_export_has_every_event_as_it_lies_in_the_log(root: Path) -> None:
    lines = [json.loads(line) for line in export(root)]
    store = SqliteStore(root / "db" / "events.sqlite", lambda call: call())
    assert [(x["position"], x["stream"], x["version"], x["event"]) for x in lines] == [
        (s.position, s.stream, s.version, json.loads(encode(s.event))) for s in store.read_all()
    ]
    store.close()
    assert [json.loads(line)["position"] for line in export(root, after=60)] == [61, 62, 63]


def test_export_stops_where_the_log_is_damaged(root: Path) -> None:
    sql(root, "UPDATE events SET at = at + 1 WHERE position = 30")
    lines = export(root)
    assert [json.loads(next(lines))["position"] for _ in range(29)] == list(range(1, 30))
    with pytest.raises(Refusal, match="storeDamaged"):
        next(lines)


def test_events_of_a_stream(root: Path) -> None:
    assert [s.version for s in events_of(root, job_stream(JIDS[0]))] == list(range(1, 14))
    assert events_of(root, job_stream(JID)) == []


# ---- rebuild


def spoil_derived(root: Path) -> None:
    sql(root, "DELETE FROM jobs WHERE jid LIKE '%00001-%'")
    sql(root, "UPDATE jobs SET status = 'running', busy = 1")
    sql(root, "DELETE FROM receipts WHERE req_id = 'request-2'")
    sql(root, "DELETE FROM kinds")
    folder = root / "supervisor-job"
    (folder / f"{JIDS[1]}.json").unlink()
    (folder / f"{JIDS[2]}.json").write_text("{}")
    (folder / f"{JID}.json").write_text("{}")
    (folder / "notes.json").write_text("an operator's")


def test_rebuild_makes_index_receipts_and_records_as_they_were(root: Path) -> None:
    right = records(root)
    spoil_derived(root)
    assert not check(root).ok
    rebuilt = rebuild(root)
    assert (rebuilt.events, rebuilt.jobs, rebuilt.records_removed) == (63, 5, 1)
    report = check(root)
    assert report.ok and report.records_behind == 0, report
    found = records(root)
    assert found.pop("notes.json") == b"an operator's"
    assert found == right
    assert read_marker(root / "supervisor-job") == 63
    disk = Disk(root)
    assert disk.store.busy_jids() == [JIDS[0]]
    # each job got request-1 in turn, and request-2 was lost: the log has both
    assert [
        r and r.serial
        for r in (disk.store.receipt("EPRSuser", f"request-{n}") for n in (1, 2, 3, 4))
    ] == [1, 2, 3, None]
    disk.store.close()


def with_wal(root: Path) -> Path:
    """Return a copy of the root with six more events that are only in the WAL, as a killed process
    leaves it.
    """
    disk = Disk(root)
    disk.tell(JID, *life(1))
    left = root.with_name("left")
    shutil.copytree(root, left)
    disk.store.close()
    return left


def test_rebuild_reads_what_is_in_the_wal(root: Path) -> None:
    left = with_wal(root)
    assert rebuild(left).events == 69
    assert check(left).ok


def test_a_log_that_is_not_whole_is_not_rebuilt(root: Path) -> None:
    sql(root, "UPDATE events SET at = at + 1 WHERE position = 31")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(Refusal, match=r"damaged at position 31.*'jobscribe db repair'"):
        rebuild(root)
    assert {p: p.read_bytes() for p in before} == before


def test_a_log_shorter_than_its_witness_is_not_rebuilt(root: Path) -> None:
    sql(root, "DELETE FROM events WHERE position > 60")
    with pytest.raises(Refusal, match="but 63 was durable"):
        rebuild(root)


def test_a_log_without_its_witness_is_not_rebuilt(root: Path) -> None:
    (root / "db" / "head").unlink()
    with pytest.raises(Refusal, match="head file is missing"):
        rebuild(root)


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_rebuild_that_was_killed_at_any_step_can_be_done_again(root: Path) -> None:
    spoil_derived(root)
    (root / "supervisor-job" / "notes.json").unlink()
    template = with_wal(root)

    def healed(place: Path) -> None:
        assert rebuild(place).events == 69
        report = check(place)
        assert report.ok and report.records_behind == 0, report

    assert killed_at_every_step(template, root.with_name("tried"), rebuild, healed) > 15
