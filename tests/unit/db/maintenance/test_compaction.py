"""Compaction stores fewer events with the same meaning. Positions, versions, records and later
events stay unchanged.
"""

import json
import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from compaction_fixtures import AGENT, JIDS, NOW, T, fill, rows, starts, stored
from event_strategies import (
    JID,
    KEY,
    UID,
    ended,
    histories,
    life,
    placed,
    requested,
    started,
    token,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kill_points import killed_at_every_step
from store_fixtures import Disk

from jobscribe.db.events.agent_fold import evolve_agent
from jobscribe.db.events.events import (
    ACCESS,
    AUDIT,
    SYSTEM,
    ActedForUser,
    AgentGone,
    AgentStarted,
    AgentStartRequested,
    LogSetBack,
    RunPurged,
    SupervisorStarted,
    SupervisorStopped,
    TokenCreated,
    agent_stream,
    decode,
    encode,
    job_stream,
)
from jobscribe.db.events.job_fold import evolve, fold
from jobscribe.db.events.state import AgentRecord, Job
from jobscribe.db.maintenance import checkpoints, compaction
from jobscribe.db.maintenance.checkpoints import Rules, checkpoint
from jobscribe.db.maintenance.compaction import compact, estimate
from jobscribe.db.maintenance.rebuild import rebuild
from jobscribe.db.maintenance.verification import check, events_of, export
from jobscribe.db.records.event_text import story
from jobscribe.db.records.job_record import record_bytes
from jobscribe.db.records.record_files import RecordWriter, catch_up, read_marker
from jobscribe.db.sql import log_end
from jobscribe.db.sqlite import opening
from jobscribe.db.store import head_file
from jobscribe.db.store.contract import Receipt, Stored
from jobscribe.protocol.errors import Refusal

SOAK = bool(os.environ.get("SOAK"))


def complain(sentence: str) -> None:
    raise AssertionError(sentence)


def again(event):
    """Return the event as decoded from the log."""
    return decode(type(event).__struct_config__.tag, 1, encode(event))


# ---- pure functions


@pytest.mark.timeout(900)
@settings(max_examples=10_000 if SOAK else 300, deadline=None)
@given(histories, histories, st.integers(0, 5))
def test_what_is_folded_and_goes_on_adds_up_to_what_it_always_did(
    before: list, after: list, history: int
) -> None:
    job = fold(JID, before)
    folded = (
        checkpoint(job_stream(JID), stored(before), Rules(before=1e12, history=history, at=NOW))
        if before
        else None
    )
    if folded is None:
        assert len(before) < 2 or job.busy
        return
    assert not job.busy and folded.count == len(before)
    event = again(folded.row.event)
    assert event == folded.row.event and (event.events, event.since, event.at) == (
        len(before),
        before[0].at,
        before[-1].at,
    )
    assert folded.row.position == folded.row.version == len(before) == event.job.version
    assert evolve(Job(jid=JID), event) == event.job == checkpoints.trimmed(job, history)
    assert (
        checkpoint(job_stream(JID), [folded.row], Rules(before=1e12, history=history, at=NOW))
        is None
    ), "twice is once"
    went_on, whole = evolve(Job(jid=JID), event), job
    for later in after:
        went_on, whole = evolve(went_on, later), evolve(whole, later)
    assert (went_on.version, went_on.busy, went_on.status) == (
        whole.version,
        whole.busy,
        whole.status,
    )
    assert (
        len(went_on.history) + went_on.history_dropped == len(whole.history) + whole.history_dropped
    )
    if event.trimmed:
        assert (
            whole.history[len(whole.history) - len(went_on.history) :] == went_on.history
            or job.status == "job_run_purged"
        )
    else:
        assert went_on == whole and record_bytes(went_on, 9, 1.0) == record_bytes(whole, 9, 1.0)


def test_of_a_purged_job_only_what_it_was_and_how_it_ended_is_kept() -> None:
    secret = requested(7, sim_name="a name", env={"A": "b"}, command=("cat", "x"))
    job = fold(JID, [*life(6), secret, *life(7)[1:], RunPurged(at=T, serial=7)])
    kept = checkpoints.trimmed(job, 10)
    assert kept.run is not None and job.run is not None
    assert (kept.run.serial, kept.run.status, kept.run.reason, kept.run.spec.compute_job_hash) == (
        7,
        "job_run_purged",
        "exit",
        "abc123",
    )
    assert (kept.run.queued_at, kept.run.started_at, kept.run.ended_at) == (
        job.run.queued_at,
        job.run.started_at,
        job.run.ended_at,
    )
    assert (
        kept.run.spec.command,
        kept.run.spec.data,
        kept.run.spec.env,
        kept.run.spec.sim_name,
    ) == ((), None, {}, None)
    assert kept.run.attempts == () and kept.history == () and kept.history_dropped == 1
    assert checkpoints.trimmed(kept, 10) == kept


def test_a_job_that_is_busy_or_young_is_left_event_by_event() -> None:
    rules = Rules(before=T + 100, history=10, at=NOW)
    for events in (
        [requested(1)],
        life(1)[:3],
        life(1, T + 99.5),
        [*life(1)[:3], requested(2), *life(2)[1:]],
    ):
        assert checkpoint(job_stream(JID), stored(events), rules) is None
    assert checkpoint(job_stream(JID), stored(life(1)), rules) is not None


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from([*starts(3), AgentGone(at=T + 5, agent_key=KEY, reason="x")]),
        min_size=2,
        max_size=12,
    ),
    st.floats(T, T + 10),
)
def test_an_agent_is_what_it_was_with_the_tokens_that_may_still_live(
    events: list, before: float
) -> None:
    folded = checkpoint(AGENT, stored(events, AGENT), Rules(before=before, history=1, at=NOW))
    rest = events if folded is None else [again(folded.row.event), *events[folded.count :]]
    whole = went_on = AgentRecord(key=KEY)
    for event in events:
        whole = evolve_agent(whole, event)
    for event in rest:
        went_on = evolve_agent(went_on, event)
    assert went_on == whole
    assert folded is None or all(e.at < before for e in events[: folded.count])


def test_sessions_and_serials_are_counted_on() -> None:
    events = [
        e
        for n in (1, 2, 3)
        for e in (
            SupervisorStarted(at=T + n, session=n, pid=1, boot_id="b", version="1"),
            SupervisorStopped(at=T + n, session=n, reason="x"),
        )
    ]
    events.insert(3, LogSetBack(at=T, position=1, lost_up_to=2, serial_floor=77, reason="restored"))
    rows = stored(events, SYSTEM)
    folded = checkpoint(SYSTEM, rows, Rules(before=T + 3, history=1, at=NOW))
    assert folded is not None and folded.count == 5
    left = [folded.row, *rows[5:]]
    assert (
        (checkpoints.last_session(rows), checkpoints.serial_floor(rows))
        == (checkpoints.last_session(left), checkpoints.serial_floor(left))
        == (3, 77)
    )
    assert checkpoints.last_session([folded.row]) == 2 and checkpoints.last_session([]) == 0


def test_whose_log_it_is_survives_a_compaction() -> None:
    start = SupervisorStarted(at=T, session=1, pid=1, boot_id="b", version="1", root_id="one")
    stop, back = (
        SupervisorStopped(at=T, session=1, reason="x"),
        LogSetBack(at=T, position=1, lost_up_to=2, serial_floor=7, reason="restored"),
    )
    for events, restored in (
        ([start, stop], False),
        ([start, back, start, stop], False),
        ([start, stop, back], True),
    ):
        rows = stored(events, SYSTEM)
        folded = checkpoint(SYSTEM, rows, Rules(before=T + 1, history=1, at=NOW))
        assert folded is not None
        left = [folded.row, *rows[folded.count :]]
        assert (
            checkpoints.identity(rows)
            == checkpoints.identity(left)
            == checkpoints.Identity("one", restored)
        )


def test_that_the_log_was_set_back_is_not_folded_before_a_start_has_seen_to_it() -> None:
    start, stop = (
        SupervisorStarted(at=T, session=1, pid=1, boot_id="b", version="1"),
        SupervisorStopped(at=T, session=1, reason="x"),
    )
    back = LogSetBack(at=T, position=1, lost_up_to=2, serial_floor=7, reason="restored")
    rules = Rules(before=T + 1, history=1, at=NOW)
    for events, owed in (
        ([start, stop, back], True),
        ([start, stop, back, start], True),
        ([start, back, start, stop], False),
    ):
        rows = stored(events, SYSTEM)
        assert checkpoints.is_rolled_back(rows) is owed
        folded = checkpoint(SYSTEM, rows, rules)
        assert (
            checkpoints.is_rolled_back(
                [] if folded is None else [folded.row, *rows[folded.count :]]
            )
            is owed
        )


# ---- a store


def test_api_tokens_and_the_audit_trail_are_kept_event_by_event(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "root")
    tokens = [
        TokenCreated(
            at=T,
            id=f"token{n:03d}",
            uid=UID,
            name="laptop",
            scopes=("read",),
            expires_at=T + 1,
            secret_hash="00",
            by="operator",
        )
        for n in range(5)
    ]
    acts = [
        ActedForUser(
            at=T,
            actor="admin001",
            actor_role="admin",
            subject=UID,
            action="run-cancel",
            jid=JID,
            peer="127.0.0.1",
            outcome="allowed",
        )
    ] * 5
    for stream, events in ((ACCESS, tokens), (AUDIT, acts)):
        assert (
            checkpoint(stream, stored(events, stream), Rules(before=NOW, history=1, at=NOW)) is None
        )
    disk.tell(JIDS[0], *life(1, T, JIDS[0]))
    disk.append(ACCESS, tokens)
    disk.append(AUDIT, acts)
    disk.store.close()
    assert compact(disk.root, now=NOW).changed
    assert check(disk.root).ok
    rebuild(disk.root)
    assert [s.event for s in events_of(disk.root, ACCESS)] == tokens
    assert [s.event for s in events_of(disk.root, AUDIT)] == acts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    disk = fill(tmp_path / "root")
    disk.store.close()
    rebuild(disk.root)
    return disk.root


def files(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (root / "supervisor-job").glob("*.json")}


def test_a_compacted_log_says_the_same_with_fewer_events(root: Path) -> None:
    before, old, size = files(root), rows(root), (root / "db" / "events.sqlite").stat().st_size
    index = Disk(root)
    jobs = index.store.jobs()
    index.store.close()
    done = compact(root, now=NOW)
    assert (done.events_before, done.jobs, done.jobs_folded, done.agents_folded) == (
        len(old),
        5,
        3,
        1,
    )
    new = rows(root)
    assert done.events_after == len(new) < len(old) / 4
    assert set(new[:-1]) - {(p, s, v, t) for p, s, v, t in new if t.endswith("Folded")} <= set(
        old
    ), "what is kept keeps its place"
    assert {(p, s, v) for p, s, v, _ in new[:-1]} <= {(p, s, v) for p, s, v, _ in old}
    assert new[-1][0] == old[-1][0] + 1 and new[-1][3] == "LogCompacted"
    report = check(root)
    assert report.ok and report.records_behind == 0 and report.events == done.events_after, report
    after = files(root)
    assert {n for n in before if after[n] != before[n]} == {f"{JIDS[1]}.json", f"{JIDS[2]}.json"}
    assert [len(json.loads(f[f"{JIDS[1]}.json"])["history"]) for f in (before, after)] == [13, 10]
    assert json.loads(after[f"{JIDS[1]}.json"])["historyDropped"] == 3
    disk = Disk(root)
    assert disk.store.jobs() == jobs and disk.store.busy_jids() == [JIDS[4]]
    assert [disk.store.receipt(UID, r).jid for r in ("request-1", "request-old")] == [
        JIDS[3],
        JIDS[0],
    ]
    assert disk.store.head() == old[-1][0] + 1
    disk.store.close()
    assert read_marker(root / "supervisor-job") == old[-1][0] + 1
    rebuild(root)
    assert files(root) == after and (root / "db" / "events.sqlite").stat().st_size <= size
    lines = [json.loads(line) for line in export(root)]
    assert [(x["position"], x["stream"], x["version"], x["type"]) for x in lines] == new


def test_the_old_log_is_kept_aside_and_is_a_backup(root: Path) -> None:
    old = rows(root)
    done = compact(root, now=NOW)
    assert done.kept_aside is not None
    aside = Path(done.kept_aside)
    assert (
        rows_of(aside / "events.sqlite") == old and (aside / "events.sqlite").stat().st_nlink == 1
    )
    assert {f.stat().st_mode & 0o777 for f in aside.iterdir()} == {
        0o600
    } and aside.stat().st_mode & 0o777 == 0o700
    assert (
        compact(shutil.copytree(root, root.with_name("other")), now=NOW, keep=False).kept_aside
        is None
    )


def rows_of(path: Path) -> list[tuple]:
    with sqlite3.connect(path) as c:
        out = c.execute(
            "SELECT position, stream, version, type FROM events ORDER BY position"
        ).fetchall()
    c.close()
    return out


def test_twice_is_once(root: Path) -> None:
    compact(root, now=NOW)
    before = {
        p: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in root.rglob("*")
        if p.is_file() and p.suffix != ".sqlite-shm"
    }
    again_ = compact(root, now=NOW)
    assert not again_.changed and again_.kept_aside is None
    assert {p.name: p.read_bytes() for p in before} == {p.name: b for p, (b, _) in before.items()}
    # later, and without a minimum age: compacts the jobs that have aged, then nothing again
    assert compact(root, older_than_secs=0.0, now=NOW + 10).jobs_folded == 1
    for _ in range(3):
        assert not compact(root, older_than_secs=0.0, now=NOW + 20).changed
    assert check(root).ok


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(root: Path) -> None:
    store = Disk(root)
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    would = estimate(root, now=NOW)
    assert {p: p.read_bytes() for p in before} == before
    with pytest.raises(Refusal, match=r"rootBusy.*in use.*then compact it"):
        compact(root, now=NOW)
    store.store.close()
    size = sum(len(b) for (b,) in rows(root, "body"))
    done = compact(root, now=NOW)
    done.kept_aside = None
    assert would == done
    assert 0.3 < (size - sum(len(b) for (b,) in rows(root, "body"))) / would.bytes_saved < 1.0


def test_everything_goes_on_after_a_compaction(root: Path) -> None:
    compact(root, now=NOW)
    disk = Disk(root)
    for jid in JIDS[:5]:
        job = fold(jid, [s.event for s in disk.store.read(job_stream(jid))])
        events = [e for serial in (20, 21) for e in life(serial, NOW, jid)]
        if jid == JIDS[4]:
            events = [ended(token(1, jid=jid), NOW), *events]
        disk.jobs[jid], disk.versions[job_stream(jid)] = job, job.version
        disk.tell(jid, *events)
    system = disk.store.read(SYSTEM)
    disk.versions[SYSTEM] = system[-1].version
    disk.append(
        SYSTEM,
        [
            SupervisorStarted(
                at=NOW,
                session=checkpoints.last_session(system) + 1,
                pid=1,
                boot_id="b",
                version="9",
            )
        ],
    )
    assert system[-1].version == 4 and disk.store.read(SYSTEM)[-1].event.session == 3
    # a subscriber that stopped within the compacted part continues after it, in order
    positions = [s.position for s in disk.store.read_all(0, 10_000)]
    for after in (0, 3, 20, 60, positions[-1] - 1, positions[-1], positions[-1] + 5):
        assert [s.position for s in disk.store.read_all(after, 10_000)] == [
            p for p in positions if p > after
        ]
        assert [s.position for s in disk.store.read_all(after, 3)] == [
            p for p in positions if p > after
        ][:3]
    (first, *_) = disk.store.read(job_stream(JIDS[1]), after=30)
    assert first.version == 84 and disk.store.read(job_stream(JIDS[1]), after=84)[0].version == 85
    disk.store.close()
    assert check(root).ok
    assert compact(root, now=NOW + 100 * compaction.DAY).jobs_folded == 5
    report = check(root)
    assert report.ok and report.records_behind == 0, report
    assert len(json.loads(files(root)[f"{JIDS[1]}.json"])["history"]) == 10


def test_the_story_says_that_earlier_events_were_folded_and_when(root: Path) -> None:
    compact(root, now=NOW)
    (line,) = story(events_of(root, job_stream(JIDS[1])))
    assert (
        "run 14 is completed (13 earlier runs); 84 earlier events folded into this one on 2024-02-22"
        in line
    )
    assert "the first from 2023-11-14 22:13:21" in line and "some data was dropped" in line
    (line,) = story(events_of(root, AGENT))
    assert "10 earlier events folded" in line
    assert "the log up to position" in story(events_of(root, SYSTEM))[-1]


def test_a_damaged_log_is_not_compacted(root: Path) -> None:
    for statement in (
        "UPDATE events SET body = replace(body, '1', '2') WHERE position = 40",
        "DELETE FROM events WHERE position = 40",
        "DELETE FROM events WHERE position > 100",
    ):
        place = shutil.copytree(root, root.with_name("spoiled"))
        with sqlite3.connect(place / "db" / "events.sqlite") as c:
            c.execute(statement)
        c.close()
        before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
        with pytest.raises(Refusal, match=r"storeDamaged.*jobscribe db repair"):
            compact(place, now=NOW)
        assert {p: p.read_bytes() for p in before} == before and not list(
            (place / "db").glob("before*")
        )
        shutil.rmtree(place)


@pytest.mark.parametrize("column", ["position", "version", "body", "checksum"])
def test_a_gap_is_vouched_for_by_the_row_behind_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Changed or missing rows of a compacted log are detected, on either side of every gap."""
    monkeypatch.setattr(log_end, "TAIL", 2)
    compact(root, now=NOW)
    positions = [p for p, *_ in rows(root)]
    changes = {
        "position": "position - 1",
        "version": "version + 1000",
        "body": "replace(body, '1', '2')",
        "checksum": "zeroblob(16)",
    }
    for n, position in enumerate(positions):
        for statement in (
            f"UPDATE events SET {column} = {changes[column]} WHERE position = ?",
            "DELETE FROM events WHERE position = ?",
        ):
            if (
                column == "position"
                and statement.startswith("UPDATE")
                and position - 1 in positions
            ):
                continue  # the position is taken by the row before it
            place = shutil.copytree(root, root.with_name("spoiled"))
            with sqlite3.connect(place / "db" / "events.sqlite") as c:
                c.execute(statement, (position,))
            c.close()
            report = check(place)
            assert not report.ok and report.whole_up_to == (positions[n - 1] if n else 0), (
                position,
                report,
            )
            if report.whole_up_to < positions[-2] and statement.startswith("DELETE"):
                assert any(
                    f"the next row in the log is at position {positions[n + 1]}" in p.what
                    for p in report.problems
                ), report
            shutil.rmtree(place)


def test_a_checkpoint_must_be_the_first_of_its_stream_and_of_its_version(root: Path) -> None:
    compact(root, now=NOW)
    disk = Disk(root)
    (row,) = disk.store.read(job_stream(JIDS[0]))
    disk.versions[job_stream(JIDS[0])] = row.version
    disk.append(job_stream(JIDS[0]), [row.event])
    with pytest.raises(Refusal, match=r"storeDamaged.*version 7 of .* instead of version 7 of"):
        disk.store.read(job_stream(JIDS[0]))
    disk.store.close()
    assert any("the checkpoint of" in p.what for p in check(root).problems)


# ---- size


@pytest.mark.timeout(900)
def test_a_job_of_many_runs_becomes_one_small_row(tmp_path: Path) -> None:
    """The stored size does not grow with 10,000 runs."""
    disk = Disk(tmp_path)
    sizes = {}
    serial = 0
    for runs in (50, 10_000 if SOAK else 1000):
        while serial < runs:
            events = [e for n in range(serial + 1, serial + 51) for e in life(n, T + n)]
            serial += 50
            disk.tell(JID, *events)
        disk.store.close()
        place = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{runs}"))
        assert compact(place, now=NOW).jobs_folded == 1
        ((body,),) = [(b,) for t, b in rows(place, "type, body") if t == "JobFolded"]
        sizes[runs] = len(body)
        assert (
            json.loads(body)["job"]["history_dropped"] == runs - 11
            and json.loads(body)["events"] == 6 * runs
        )
        disk.open()
    disk.store.close()
    assert max(sizes.values()) < 6 * 1024 and max(sizes.values()) - min(sizes.values()) < 100, sizes


def test_a_purged_job_becomes_a_tiny_row_whatever_was_in_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    big = requested(
        1, T, command=(), data={"models": {"x" * 100: ["y" * 1000] * 200}}, env={"A": "z" * 5000}
    )
    disk.tell(JID, big, *life(1, T)[1:], RunPurged(at=T + 9, serial=1))
    disk.store.close()
    compact(tmp_path, now=NOW)
    ((body,),) = [(b,) for t, b in rows(tmp_path, "type, body") if t == "JobFolded"]
    assert len(body) < 1200, body


# ---- killed


@pytest.mark.process
@pytest.mark.timeout(900)
def test_a_compaction_killed_at_any_step_leaves_the_old_log_or_the_new_one(tmp_path: Path) -> None:
    """The log is complete and its durable head matches: a supervisor starts on it, no event is
    missing, and the compaction can be repeated.
    """
    disk = fill(tmp_path / "t")
    disk.store.close()
    rebuild(disk.root)
    clean, place = disk.root, tmp_path / "tried"
    disk = Disk(shutil.copytree(clean, tmp_path / "wal"))
    disk.jobs[JIDS[3]], disk.versions[job_stream(JIDS[3])] = (
        fold(JIDS[3], life(1, NOW - compaction.DAY, JIDS[3])),
        6,
    )
    disk.tell(JIDS[3], *life(2, NOW, JIDS[3]))
    template = shutil.copytree(disk.root, tmp_path / "left")
    disk.store.close()
    old = rows(tmp_path / "wal")
    outcomes = set()

    def healed(place: Path) -> None:
        report = check(place)
        assert report.ok, report
        opened = Disk(place)
        found = [
            (s.position, s.stream, s.version, type(s.event).__name__)
            for s in opened.store.read_all(0, 10_000)
        ]
        outcomes.add("old" if found == old else "new")
        assert found == old or found[-1][3] == "LogCompacted"
        assert {r.jid for r in opened.store.jobs()} == set(
            JIDS[:5]
        ) and opened.store.busy_jids() == [JIDS[4]]
        writer = RecordWriter(place / "supervisor-job", complain)
        catch_up(opened.store, writer)
        writer.close()
        opened.store.close()
        report = check(place)
        assert report.ok and report.records_behind == 0, report
        compact(place, now=NOW)
        report = check(place)
        assert report.ok and report.records_behind == 0 and report.events < 30, report
        asides = list((place / "db").glob("before-compaction-*"))
        assert 1 <= len(asides) <= 2
        assert not list((place / "db").glob("*.compacted*"))

    assert killed_at_every_step(template, place, lambda p: compact(p, now=NOW), healed) > 15
    assert outcomes == {"old", "new"}


def test_between_file_and_witness_the_log_says_which_one_it_took_the_place_of(root: Path) -> None:
    before = (root / "db" / "head").read_bytes()
    mark = head_file.read_head(root / "db")
    compact(root, now=NOW)
    (root / "db" / "head").write_bytes(before)
    assert check(root).ok
    Disk(root).store.close()
    assert head_file.read_head(root / "db") != mark and check(root).ok
    # with any other durable head it is a different log
    compact(root, older_than_secs=0.0, now=NOW + 5)
    for other in (b"\x01" * 16, mark.checksum):
        (root / "db" / "head").unlink()
        head = head_file.HeadFile(root / "db")
        head.reset(mark.position - 1, other)
        head.close()
        assert not check(root).ok
        with pytest.raises(Refusal, match=r"storeDamaged.*differs from the head file"):
            Disk(root)


# ---- any history


@pytest.mark.timeout(900)
def test_any_logs_compacted_anywhere_say_the_same_for_ever(tmp_path: Path) -> None:
    """Compare jobs with random histories, compacted from time to time as they grow, with the same
    jobs without compaction.
    """
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for cycle in range(200 if SOAK else 8):
        place = tmp_path / str(cycle)
        plain, folded = Disk(place / "plain"), Disk(place / "folded")
        compactions = 0
        for _ in range(chance.randrange(5, 25)):
            jid = chance.choice(JIDS)
            events = any_events(chance, jid)
            for disk in (plain, folded):
                disk.tell(jid, *events)
            if chance.random() < 0.15:
                folded.store.close()
                # histories are far below this limit, so no event may be missing
                compactions += compact(
                    folded.root, older_than_secs=0.0, history=50, now=2e9, keep=False
                ).changed
                assert check(folded.root).ok, (seed, cycle)
                folded.open()
                folded.versions |= {
                    SYSTEM: (folded.store.read(SYSTEM) or [Stored(0, "", 0, None)])[-1].version
                }
                folded.jobs = {
                    jid: checkpoints.job_of(job_stream(jid), folded.store.read(job_stream(jid)))
                    for jid in folded.jobs
                }
        for jid, job in plain.jobs.items():
            went_on = checkpoints.job_of(job_stream(jid), folded.store.read(job_stream(jid)))
            purged = job.run is not None and "job_run_purged" in (
                job.status,
                *(p.status for p in job.history),
            )
            assert (
                went_on is not None
                and went_on.version == job.version
                and (purged or went_on == job)
            ), (seed, cycle)
        assert [r.jid for r in plain.store.jobs()] == [r.jid for r in folded.store.jobs()], (
            seed,
            cycle,
        )
        for disk in (plain, folded):
            disk.store.close()
        rebuild(folded.root)
        report = check(folded.root)
        assert report.ok and report.records_behind == 0, (seed, cycle, report)
        shutil.rmtree(place)


def any_events(chance: random.Random, jid: str) -> list:
    serial = chance.randrange(1, 5)
    events = life(serial, T + chance.random() * 1e6, jid)
    if chance.random() < 0.3:
        events = events[: chance.randrange(1, 6)]
    if chance.random() < 0.2:
        events.append(RunPurged(at=T, serial=serial))
    if chance.random() < 0.2:
        chance.shuffle(events)
    return events
