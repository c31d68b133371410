"""The `db` commands on a real PostgreSQL server, with a log that has jobs, agents and system events of
different ages: the same results as with a SQLite file, and one owner of the log after each kill.
"""

import itertools
import json
import queue
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from compaction_fixtures import JIDS, NOW, fill
from event_strategies import life
from kill_points import killed_at_every_step
from store_fixtures import append, evolved

from jobscribe.db.events.events import LogCompacted, LogSetBack, job_stream
from jobscribe.db.events.state import Job
from jobscribe.db.maintenance import backup as backups
from jobscribe.db.maintenance import compaction, trimmed_jobs
from jobscribe.db.maintenance.compaction import DAY
from jobscribe.db.maintenance.database import compaction as database_compaction
from jobscribe.db.maintenance.database.compaction import DatabaseExchange
from jobscribe.db.maintenance.log_source import log_source, store_path
from jobscribe.db.maintenance.move import move_to_file, move_to_postgres
from jobscribe.db.maintenance.rebuild import rebuild
from jobscribe.db.maintenance.repair import examine, repair
from jobscribe.db.maintenance.verification import check, check_file, events_of, export
from jobscribe.db.postgres.opening import Site
from jobscribe.db.postgres.store import PostgresStore
from jobscribe.db.sqlite.store import SqliteStore
from jobscribe.db.store.contract import Appended, Batch, Stored, Write
from jobscribe.db.store.database_marker import name_database, named_database
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.store_address import parsed
from jobscribe.supervisor.process.event_log import EventLog, PostgresLog

ROOT_ID = "abcdefghijkl"


@pytest.fixture
def server() -> postgres_server.Server:
    return postgres_server.shared_durable()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped root with its log in a file."""
    root = tmp_path_factory.mktemp("template") / "root"
    fill(root).store.close()
    (root / "root.json").write_text(json.dumps({"id": ROOT_ID}))
    rebuild(root)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "root")
    return tmp_path / "root"


def moved(root: Path, url: str) -> Site:
    site = Site(parsed(url), None, root / "db", ROOT_ID)
    move_to_postgres(root, site, lambda: name_database(root, url, None))
    return site


def ok(root: Path) -> list[str]:
    """Return the log, after a check."""
    report = check(root)
    assert report.ok and not report.records_behind, report
    return list(export(root))


def test_commands_on_a_log_in_postgres_do_what_they_do_on_a_file(
    server: postgres_server.Server, root: Path, tmp_path: Path
) -> None:
    log = ok(root)
    shutil.copytree(root, tmp_path / "file")
    url = server.url()
    site = moved(root, url)
    schema = site.address.schema
    assert ok(root) == log and check(root).path == site.address.name
    with log_source(root).reader() as reader:
        assert [r.jid for r in reader.find_jobs(JIDS[0], 2)] == [JIDS[0]]
    story = events_of(root, job_stream(JIDS[1]))
    assert story == events_of(tmp_path / "file", job_stream(JIDS[1])) and len(story) > 50

    # backups, also while a supervisor serves the site
    with closing(PostgresStore(site, lambda _: None)):
        assert check(root).in_use and ok(root) == log
        done = backups.backup(root, tmp_path / "backup")
        assert done.events == len(log)
        with pytest.raises(Refusal) as busy:
            rebuild(root)
        assert busy.value.code == "rootBusy"

    # index and records
    with server.connect() as c:
        c.execute(f"UPDATE {schema}.jobs SET status = 'pending'")
        c.execute(f"DELETE FROM {schema}.names")
        (root / "supervisor-job" / f"{JIDS[0]}.json").write_text("{")
        assert {p.where for p in check(root).problems} == {"index", "record"}

        def taken(*_: object) -> None:
            c.execute(f"UPDATE {schema}.lease SET epoch = epoch + 1")

        with pytest.raises(Refusal, match="another supervisor took"):
            rebuild(root, taken)
        assert {p.where for p in check(root).problems} >= {"index"}, "nothing was changed"
        assert rebuild(root).events == len(log)
        assert ok(root) == log

        # compaction
        planned = compaction.estimate(root, now=NOW)
        assert planned == compaction.estimate(tmp_path / "file", now=NOW) and planned.changed
        compacted = compaction.compact(root, now=NOW)
        assert compaction.compact(tmp_path / "file", now=NOW).events_after == compacted.events_after
        assert compacted.kept_aside == str(root / "db/before-compaction-1")
        short = ok(root)
        assert short == ok(tmp_path / "file") and len(short) < len(log)
        assert not compaction.compact(root, now=NOW).changed
        with closing(PostgresStore(site, lambda _: None)) as store:
            assert store.head() == json.loads(short[-1])["position"]

        # a replica that took over without the last commits
        last = json.loads(short[-2])
        c.execute(f"DELETE FROM {schema}.events WHERE position > {last['position']}")
        checksum = bytes.fromhex(last["checksum"])
        c.execute(
            f"UPDATE {schema}.lease SET position = {last['position']}, checksum = %s", [checksum]
        )
    with pytest.raises(Refusal, match="db repair") as behind:
        PostgresStore(site, lambda _: None)
    assert behind.value.code == "storeDamaged"
    damage = examine(root)
    assert damage.cut and damage.path == site.address.name
    assert damage.lost_up_to == json.loads(short[-1])["position"]
    repaired = repair(root)
    assert repaired.kept_aside == str(root / "db/before-repair-1")
    with closing(PostgresStore(site, lambda _: None)) as store:
        (event,) = (s.event for s in store.read_all(last["position"]))
        assert isinstance(event, LogSetBack) and event.lost_up_to == damage.lost_up_to
    ok(root)

    # a backup, also after the database was lost
    with server.connect() as c:
        c.execute(f"DROP SCHEMA {schema} CASCADE")
    assert check(root).problems[0].what.startswith(site.address.name)
    restored = backups.restore(root, tmp_path / "backup", replace=True)
    assert restored.lost_up_to > damage.lost_up_to and ok(root)[: len(log)] == log
    with closing(PostgresStore(site, lambda _: None)) as store:
        assert store.head() == restored.lost_up_to + 1


def test_a_compaction_beside_a_supervisor_exchanges_the_log_between_two_commits(
    server: postgres_server.Server, root: Path, tmp_path: Path
) -> None:
    log = ok(root)
    site = moved(root, server.url())
    calls: queue.Queue[Callable[[], None]] = queue.Queue()
    store = PostgresStore(site, calls.put)
    numbers = itertools.count()

    def appended() -> None:
        jid = f"{JIDS[0].partition('-')[0]}-later{next(numbers):03d}-command"
        events = tuple(life(1, NOW, jid))
        job, used = evolved(Job(jid=jid), events)
        batch = Batch(
            writes=(Write(job_stream(jid), 0, events),), index=(index_row(job),), usage=used
        )
        assert isinstance(append(store, calls, batch), Appended)

    def exchanged(with_: DatabaseExchange) -> Appended | Refusal:
        results: list[Appended | Refusal] = []
        store.exchange(with_, results.append)
        while not results:
            calls.get(timeout=60)()
        return results[0]

    class Lost(DatabaseExchange):
        """Loses the connection at the end, before or after its COMMIT."""

        def __init__(self, committed: bool) -> None:
            super().__init__(NOW)
            self._committed = committed

        def replace(self, connection: Any, *rest: Any) -> Any:
            new = super().replace(connection, *rest)
            if self._committed:
                connection.raw.execute(b"COMMIT")
            pid = connection.raw.info.backend_pid
            with server.connect() as c:
                c.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
            return new

    with closing(store):
        appended()
        jobs, usage = store.jobs(limit=100), store.usage(0, 2e9)
        prepared = database_compaction.prepare(root, older_than_secs=NOW - 1.7e9 - DAY)
        assert prepared.changed and prepared.kept_aside == str(root / "db/before-compaction-1")
        assert check_file(Path(prepared.kept_aside, "events.sqlite"), None).ok
        appended()
        with log_source(root).snapshot() as reading:
            reading.execute("SELECT count(*) FROM events").fetchone()
            busy = exchanged(DatabaseExchange(NOW))
        assert isinstance(busy, Refusal) and busy.code == "conflict"
        assert database_compaction.catch_up(root) == 6 and not database_compaction.catch_up(root)
        appended()
        lost = exchanged(Lost(committed=False))
        assert isinstance(lost, Refusal) and lost.code == "storageUnavailable"
        appended()
        listened: list[Stored] = []
        store.listen(listened.extend)
        done = exchanged(Lost(committed=True))
        assert isinstance(done, Appended) and done.last == store.head() == listened[-1].position
        assert isinstance(listened[-1].event, LogCompacted)
        appended()
        short = [json.loads(line)["position"] for line in export(root)]
        (trimmed,) = trimmed_jobs.read(root).values()  # a supervisor writes their records
        problems = check(root).problems
        assert len(short) < len(log) and {p.where for p in problems} == {"record"}
        assert {p.what.split(".json")[0] for p in problems} == set(trimmed)
        assert [j for j in store.jobs(limit=100) if "later" not in j.jid] == jobs[1:]
        assert store.usage(0, NOW - 10 * DAY) == [u for u in usage if u.start < NOW - 10 * DAY]
        missing = exchanged(DatabaseExchange(NOW))
        assert isinstance(missing, Refusal) and missing.code == "notFound"
        assert not store.stalled()
    PostgresStore(site, calls.put).close()
    rebuild(root)
    assert len(ok(root)) == len(short)


def test_a_move_back_that_is_killed_leaves_one_owner_with_the_whole_log(
    server: postgres_server.Server, root: Path, tmp_path: Path
) -> None:
    log, url = ok(root), server.url()
    site = moved(root, url)
    shutil.rmtree(root / "db/before-move-1")
    owners = []
    with server.connect() as c:
        table = f"{site.address.schema}.events"
        right = c.execute(f"SELECT body FROM {table} WHERE position = 9").fetchone()
        c.execute(f"UPDATE {table} SET body = '{{}}' WHERE position = 9")
        with pytest.raises(Refusal, match=r"position 9|checksum") as damaged:
            move_to_file(root)
        assert damaged.value.code == "storeDamaged" and named_database(root)
        assert not store_path(root).exists() and not check(root).ok
        c.execute(f"UPDATE {table} SET body = %s WHERE position = 9", right)

    def healed(place: Path) -> None:
        in_file, in_database = EventLog(place), PostgresLog(place, url, None)
        refused = []
        for one in (in_file, in_database):
            try:
                one.check()
            except Refusal as e:
                refused.append((one, e))
        ((other, why),) = refused
        owners.append("database" if other is in_file else "file")
        assert list(export(place)) == log
        if other is in_file:
            PostgresStore(site._replace(folder=place / "db"), lambda _: None).close()
            assert "store.url is not set" in why.sentence
            move_to_file(place)
        assert ok(place) == log and named_database(place) is None
        SqliteStore(store_path(place), lambda _: None).close()
        with pytest.raises(Refusal, match=r"remove store\.url"):
            in_database.check()
        with server.connect() as c:
            c.execute(f"UPDATE {site.address.schema}.site SET root_id = %s", [ROOT_ID])

    assert killed_at_every_step(root, tmp_path / "place", move_to_file, healed) > 3
    assert {"database", "file"} == set(owners)

    # the database refuses by name what it lost, and takes the log again
    move_to_file(root)
    with pytest.raises(Refusal, match="was moved to the file of its root") as old:
        PostgresStore(site, lambda _: None)
    assert old.value.code == "foreignParts"
    assert moved(root, url) == site and ok(root) == log
