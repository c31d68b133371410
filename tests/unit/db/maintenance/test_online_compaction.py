"""The log is compacted while its store is written to: nothing that was appended meanwhile is lost,
readers see one log or the other, and a kill at any step leaves one of the two, complete.
"""

import sqlite3
from pathlib import Path

import pytest
from compaction_fixtures import AGENT, JIDS, NOW, T, fill, rows, starts
from event_strategies import UID, life, placed, requested, started, token
from kill_points import killed_at_every_step
from store_fixtures import Disk

from jobscribe.db.events.events import SYSTEM, SupervisorStarted, SupervisorStopped
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job
from jobscribe.db.events.usage_row import ALL_MONTHS, merged
from jobscribe.db.maintenance import compaction, online_compaction, trimmed_jobs
from jobscribe.db.maintenance.checkpoints import trimmed
from jobscribe.db.maintenance.log_source import opened
from jobscribe.db.maintenance.online_compaction import (
    CompactedLog,
    catch_up,
    discard,
    new_path,
    prepare,
)
from jobscribe.db.maintenance.rebuild import rebuild
from jobscribe.db.maintenance.verification import check
from jobscribe.db.records.job_record import record_bytes
from jobscribe.db.records.record_files import RecordWriter
from jobscribe.db.records.record_files import catch_up as catch_up_records
from jobscribe.db.store.contract import Appended, Receipt
from jobscribe.protocol.errors import Refusal

LATE = f"{UID}-sim00077-command"
#: with more runs than are kept; purged
TRIMMED = JIDS[1:3]


def exchange(disk: Disk, *, keep: bool = False) -> Appended | Refusal:
    results: list[Appended | Refusal] = []
    disk.store.exchange(CompactedLog(disk.root, NOW, keep=keep), results.append)
    while not results:
        disk.calls.get(timeout=20)()
    return results[0]


def go_on(disk: Disk, serial: int) -> None:
    """Append to a folded job, to a live one, to a new one, to the agent and to the system."""
    disk.tell(JIDS[0], *life(serial, NOW + serial, JIDS[0]))
    disk.tell(
        LATE,
        *life(serial, NOW + serial, LATE),
        receipts=(
            Receipt(uid=UID, req_id=f"late-{serial}", jid=LATE, serial=serial, at=NOW + serial),
        ),
    )
    disk.append(AGENT, starts(1, NOW + serial))
    disk.append(
        SYSTEM, [SupervisorStarted(at=NOW, session=2 + serial, pid=1, boot_id="b", version="9")]
    )


def agrees(disk: Disk) -> None:
    """The compacted store has every job as it was built up, without the data that it drops."""
    head = disk.store.head()
    index = {row.jid: row for row in disk.store.jobs()}
    assert index.keys() == disk.jobs.keys()
    for jid, job in disk.jobs.items():
        events = disk.store.read(f"job/{jid}")
        right = trimmed(job, compaction.HISTORY) if jid in TRIMMED else job
        assert disk_fold(jid, events) == right
        assert events[-1].version == disk.versions[f"job/{jid}"] == disk.store.version(f"job/{jid}")
        assert index[jid].position == events[-1].position <= head
    assert disk.store.read_all(0, 10_000)[-1].position == head


def disk_fold(jid, events):
    job = Job(jid=jid)
    for s in events:
        job = evolve(job, s.event)
    return job


def test_the_log_is_compacted_while_events_are_appended(tmp_path: Path) -> None:
    disk = fill(tmp_path / "root")
    heard: list[int] = []
    disk.store.listen(lambda events: heard.extend(s.position for s in events))
    receipts = {r: disk.store.receipt(UID, r) for r in ("request-1", "request-old")}
    before = rows(disk.root)
    go_on(disk, 50)
    done = prepare(disk.root, now=NOW)
    assert done.changed and (done.jobs_folded, done.agents_folded) == (2, 1)
    assert [*trimmed_jobs.read(disk.root).values()] == [TRIMMED]
    go_on(disk, 60)
    assert catch_up(disk.root) == 15
    assert catch_up(disk.root) == 0
    go_on(disk, 70)  # copied by the writer itself
    last = disk.store.head()
    result = exchange(disk)
    assert result == Appended(last + 1, last + 1) and heard[-1] == last + 1
    disk.versions[SYSTEM] += 1
    assert disk.store.head() == last + 1
    agrees(disk)
    # of a kind that only folded events had
    disk.append(SYSTEM, [SupervisorStopped(at=NOW, session=152, reason="x")])
    go_on(disk, 80)
    agrees(disk)
    assert {r: disk.store.receipt(UID, r) for r in receipts} == receipts
    assert disk.store.receipt(UID, "late-70").serial == 70
    assert not [
        p for p in (disk.root / "db").iterdir() if "compacted" in p.name and p.suffix != ".lock"
    ]
    report = check(disk.root)
    assert [p for p in report.problems if p.where != "records"] == []
    assert len(rows(disk.root)) < len(before) + 4 * 15
    # everything derived is what a rebuild makes of the log
    usage = disk.store.usage(0, 2**40)
    disk.store.close()
    records = RecordWriter(disk.root / "supervisor-job", pytest.fail)
    disk.open()
    catch_up_records(disk.store, records)
    records.close()
    disk.store.close()
    assert check(disk.root).ok
    rebuild(disk.root)
    assert check(disk.root).ok
    disk.open()
    assert merged(disk.store.usage(0, 2**40), ALL_MONTHS) == merged(usage, ALL_MONTHS)
    disk.store.close()


def test_a_second_compaction_follows_the_first_and_nothing_is_left_to_fold(tmp_path: Path) -> None:
    disk = fill(tmp_path / "root")
    for _ in range(2):
        prepare(disk.root, now=NOW)
        assert isinstance(exchange(disk, keep=True), Appended)
        disk.versions[SYSTEM] += 1
        go_on(disk, disk.store.head())
        agrees(disk)
        disk.tell(JIDS[5], *life(disk.store.head(), T, JIDS[5]))
    kept = sorted(p.name for p in (disk.root / "db").glob("before-compaction-*"))
    assert kept == ["before-compaction-1", "before-compaction-2"]
    disk.store.close()
    for name in kept:
        assert rows_in(disk.root / "db" / name / "events.sqlite")


def rows_in(path: Path) -> int:
    with sqlite3.connect(path) as c:
        (count,) = c.execute("SELECT count(*) FROM events").fetchone()
    c.close()
    return int(count)


def test_a_new_log_that_does_not_fit_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online_compaction, "MOST_WAITING", 20)
    disk = fill(tmp_path / "root")
    before = rows(disk.root)
    assert exchange(disk).code == "notFound"
    prepare(disk.root, now=NOW)
    reading = opened(disk.root)  # for example a backup, also between two of its queries
    refused = exchange(disk)
    assert refused.code == "conflict" and "being read" in refused.sentence
    reading.close()
    # of another log: its position 5 has another checksum
    other = fill(tmp_path / "other", open_end=False)
    other.tell(JIDS[4], requested(9, T, JIDS[4]), placed(token(9, jid=JIDS[4]), T))
    other.tell(JIDS[4], started(token(9, jid=JIDS[4]), T))
    prepare(other.root, now=NOW)
    for name in (new_path(other.root).name, new_path(other.root).name + ".json"):
        (disk.root / "db" / name).write_bytes((other.root / "db" / name).read_bytes())
    other.store.close()
    assert exchange(disk).code == "badRequest"
    # of a version with events that this one does not know
    prepare(disk.root, now=NOW)
    with sqlite3.connect(new_path(disk.root)) as c:
        c.execute("INSERT INTO kinds VALUES ('JobFolded', 99)")
    c.close()
    assert exchange(disk).code == "unknownEvent"
    # too far behind
    prepare(disk.root, now=NOW)
    for serial in range(online_compaction.MOST_WAITING // 5 + 1):
        disk.tell(LATE, *life(serial + 1, NOW, LATE))
    assert "behind" in exchange(disk).sentence
    catch_up(disk.root)
    assert rows(disk.root)[: len(before)] == before
    assert isinstance(exchange(disk), Appended)
    agrees(disk)
    disk.store.close()


def test_only_one_process_builds_and_an_unfinished_log_is_thrown_away(tmp_path: Path) -> None:
    disk = fill(tmp_path / "root")
    with online_compaction.one_builder(disk.root), pytest.raises(Refusal) as e:
        prepare(disk.root, now=NOW)
    assert e.value.code == "rootBusy"
    new_path(disk.root).write_bytes(b"half a file")
    assert prepare(disk.root, now=NOW).changed
    discard(disk.root)
    assert exchange(disk).code == "notFound"
    assert not prepare(disk.root, now=T).changed and not new_path(disk.root).exists()
    disk.store.close()


@pytest.mark.process
def test_a_kill_at_any_step_leaves_one_of_the_two_logs_complete(tmp_path: Path) -> None:
    template = fill(tmp_path / "template")
    go_on(template, 50)
    prepare(template.root, now=NOW)
    go_on(template, 60)
    template.store.close()
    old = rows(template.root)
    whole = template.jobs

    def command(place: Path) -> None:
        disk = Disk(place)
        disk.versions, disk.jobs = dict(template.versions), dict(template.jobs)
        assert isinstance(exchange(disk), Appended)
        disk.versions[SYSTEM] += 1
        go_on(disk, 70)
        disk.store.close()

    def healed(place: Path) -> None:
        disk = Disk(place)
        found = rows(place)
        new = found[: len(old)] != old
        if new:
            assert found[-1][0] >= old[-1][0] + 1
            assert "LogCompacted" in [r[3] for r in found]
        for jid, job in whole.items():
            events = disk.store.read(f"job/{jid}")
            assert events[-1].version >= template.versions[f"job/{jid}"]
            now = disk_fold(jid, events)
            if events[-1].version == template.versions[f"job/{jid}"]:
                right = trimmed(job, compaction.HISTORY) if new and jid in TRIMMED else job
                assert record_bytes(now, 1, 1.0) == record_bytes(right, 1, 1.0)
        disk.store.close()
        assert [p for p in check(place).problems if p.where != "records"] == []

    assert killed_at_every_step(template.root, tmp_path / "place", command, healed) > 3
