"""Faults of a real PostgreSQL server (etc/engines/postgres.sh): what the store reports is what the log
has, a supervisor without the lease writes nothing, and a store is resumed without a restart.
"""

import contextlib
import os
import queue
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import postgres_server
import psycopg
import pytest
from watched_store import DEADLINE, Disk, in_log, wait

from jobscribe.db.events.events import SupervisorStarted
from jobscribe.db.postgres import (
    connection,
    lease,
    lease_protocol,
    opening,
    reader,
    supervisors,
    writer,
)
from jobscribe.db.postgres.arrays import array, columns
from jobscribe.db.postgres.connection import connect
from jobscribe.db.postgres.opening import Site
from jobscribe.db.postgres.store import PostgresStore
from jobscribe.db.store.contract import Appended, Batch, StoreUnreachable, Write
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.store_address import parsed

#: Kills in the middle of commits.
ROUNDS = 60 if os.environ.get("SOAK") == "1" else 3


@pytest.fixture(scope="module")
def server() -> postgres_server.Server:
    return postgres_server.shared_durable()


def _is_ended(connection: Any) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return True
    return False


def _answers(server: postgres_server.Server) -> bool:
    try:
        server.connect().close()
    except psycopg.Error:
        return False
    return True


def test_each_commit_that_loses_its_connection_or_server_is_reported_as_it_ended(
    server: postgres_server.Server, tmp_path: Path
) -> None:
    disk = Disk(server.url(), tmp_path)
    number = 0
    with closing(disk.store):
        for round_ in range(ROUNDS):
            stop = threading.Event()

            def strike(round_: int = round_, stop: threading.Event = stop) -> None:
                pid = disk.store._writer._raw.info.backend_pid
                if round_ % 3 == 0:  # the backend of the writer, in the middle of what it does
                    postgres_server.kill(pid, signal.SIGTERM)
                elif round_ % 3 == 1:  # the server then ends all others, and recovers
                    with server.connect() as other:
                        postgres_server.kill(pid, signal.SIGKILL)
                        wait(lambda: _is_ended(other))
                else:
                    server.kill()
                    server.start_again()
                wait(lambda: _answers(server))
                stop.set()

            first = number
            striker = threading.Thread(target=strike)
            while not stop.is_set():
                number += 1
                disk.append(number)
                if number == first + 20:
                    striker.start()
                if number > first + 20:
                    time.sleep(0.002)
            striker.join()
            disk.settle(*range(first + 1, number + 1))
            number = disk.appended(number + 1)
            in_log(disk)
        refused = [r for r in disk.results.values() if isinstance(r, Refusal)]
        assert {r.code for r in refused} <= {"storageUnavailable"}


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_was_lost_is_reported_as_it_ended(
    server: postgres_server.Server, tmp_path: Path, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(server.url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)
        send = disk.store._writer._send

        def lose(raw: Any, group: Any, kinds: Any) -> None:
            if committed:
                send(raw, group, kinds)
            raw.execute(b"SELECT pg_terminate_backend(pg_backend_pid())")

        monkeypatch.setattr(disk.store._writer, "_send", lose)
        result = disk.now(2)
        monkeypatch.undo()
        assert isinstance(result, Appended) == committed
        if not committed:
            disk.resume()
        assert isinstance(disk.now(3), Appended)
        in_log(disk)


def test_a_holder_that_lost_its_lease_writes_nothing(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url()
    frozen = Disk(url, tmp_path / "a")
    with closing(frozen.store):
        assert isinstance(frozen.now(1), Appended)
        monkeypatch.setattr(opening, "TAKE_SECS", 0.0)
        with pytest.raises(Refusal, match="another supervisor serves the site") as busy:
            Disk(url, tmp_path / "b")
        assert busy.value.code == "rootBusy"
        thawed, at = threading.Event(), threading.Event()

        def freeze(point: str) -> None:
            if point == "taken":
                at.set()
                assert thawed.wait(DEADLINE)

        frozen.point = freeze
        frozen.append(2)
        assert at.wait(DEADLINE)
        with server.connect() as c:
            c.execute(f"UPDATE {frozen.site.address.schema}.lease SET expires = clock_timestamp()")
        other = Disk(url, tmp_path / "b")
        with closing(other.store):
            thawed.set()
            frozen.settle(2)
            assert other.logged() == [1]
            assert isinstance(other.now(3), Appended)
            result = frozen.results[2]
            assert isinstance(result, Refusal) and "another supervisor serves" in result.sentence
            with pytest.raises(Refusal) as dead:
                frozen.store.resume()
            assert not isinstance(dead.value, StoreUnreachable)
            assert isinstance(other.now(4), Appended) and other.logged() == [1, 3, 4]


def test_maintenance_without_the_lease_or_a_lock_changes_nothing(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(server.url(), tmp_path)
    schema = disk.site.address.schema
    with closing(disk.store), server.connect() as c:
        writer_ = disk.store._writer
        c.execute(
            f"INSERT INTO {schema}.receipts (uid, req_id, jid, serial, at) VALUES ('u', 'r', 'j', 1, 1.0)"
        )

        def blocked() -> None:
            writer_._ages._connection.execute("BEGIN IMMEDIATE")

        # the row of the lease is locked for longer than the limit
        monkeypatch.setattr(writer_._ages, "prune", blocked)
        writer_._raw.execute("SET lock_timeout = 50")
        with c.transaction():
            c.execute(f"SELECT 1 FROM {schema}.lease FOR UPDATE")
            writer_._maintain()
        monkeypatch.undo()
        assert isinstance(disk.now(1), Appended)
        c.execute(f"UPDATE {schema}.lease SET epoch = epoch + 1, holder = 'other'")
        with pytest.raises(psycopg.errors.DivisionByZero):
            writer_._ages._connection.execute("DELETE FROM receipts WHERE number > ?", (0,))
        assert c.execute(f"SELECT count(*) FROM {schema}.receipts").fetchone() == (1,)


def test_refused_by_name_while_nothing_can_be_written_and_resumed_without_a_restart(
    server: postgres_server.Server, tmp_path: Path
) -> None:
    disk = Disk(server.url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)
        server.stop()
        # the writer sees the end of the connection before it sends anything
        result = disk.now(2)
        assert isinstance(result, Refusal) and result.code == "storageUnavailable"
        with pytest.raises(Refusal, match="storageUnavailable"):
            disk.store.read_all()
        server.start("default_transaction_read_only=on")
        wait(lambda: "read-only" in str(_tried(disk)))
        server.stop()
        server.start()
        disk.resume()
        assert isinstance(disk.now(9), Appended)
        in_log(disk)


def _tried(disk: Disk) -> Appended | Refusal:
    """Append an event that is refused."""
    disk.results.pop(3, None)
    result = disk.now(3)
    assert isinstance(result, Refusal) and result.code == "storageUnavailable"
    era = disk.store._writer.resumed(disk.store._era)
    disk.store._era = era
    return result


def test_a_start_is_refused_by_name_and_changes_nothing(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url()
    first = Disk(url, tmp_path / "a")
    schema = first.site.address.schema
    with closing(first.store):
        for number in range(1, 6):
            first.now(number)

    def refused(root: Path = tmp_path / "a", root_id: str = "root", at: str = url) -> Refusal:
        with pytest.raises(Refusal) as e:
            Disk(at, root, root_id)
        return e.value

    assert refused(tmp_path / "b", "other").code == "foreignParts"
    assert refused(at=server.url(user="nobody-there")).code in ("badConfig", "storageUnavailable")
    with server.connect() as c:
        c.execute(f"UPDATE {schema}.site SET layout = 99, compatible = 99")
        assert refused().code == "unknownEvent"
        c.execute(f"UPDATE {schema}.site SET layout = 1, compatible = 1")
        monkeypatch.setattr(opening.time, "time", lambda: 0.0)
        assert "clock" in refused().sentence
        monkeypatch.undo()
        # a backup, or a replica, that lacks what was durable
        checksum = c.execute(f"SELECT checksum FROM {schema}.events WHERE position = 3").fetchone()
        c.execute(f"DELETE FROM {schema}.events WHERE position > 3")
        c.execute(f"UPDATE {schema}.lease SET position = 3, checksum = %s", checksum)
        behind = refused()
        assert behind.code == "storeDamaged" and "position 3, but 5 was durable" in behind.sentence
        assert c.execute(f"SELECT released FROM {schema}.lease").fetchone() == (True,)
        c.execute(f"UPDATE {schema}.events SET body = '{{}}' WHERE position = 2")
        assert refused(tmp_path / "c").code == "storeDamaged"
        c.execute(f"DROP SCHEMA {schema} CASCADE")
    assert "has no event store" in refused().sentence


def test_a_role_needs_its_password_its_rights_and_a_connection(
    server: postgres_server.Server, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("a secret word\n")
    schema = parsed(server.url()).schema
    url = server.url(schema, user="clerk")
    hba = server.folder / "data/pg_hba.conf"
    with server.connect() as c:
        c.execute("CREATE ROLE clerk LOGIN PASSWORD 'a secret word'")
        hba.write_text("local all clerk scram-sha-256\n" + hba.read_text())
        c.execute("SELECT pg_reload_conf()")

        def refused(file: Path | None) -> Refusal:
            site = Site(parsed(url), None if file is None else str(file), tmp_path / "db", "root")
            with pytest.raises(Refusal) as e:
                PostgresStore(site, lambda _: None)
            assert "secret word" not in str(e.value)
            return e.value

        wait(lambda: "no password" in refused(None).sentence)  # the reload takes a moment
        wrong = tmp_path / "wrong"
        wrong.write_text("a wrong secret word")
        assert "authentication failed" in refused(wrong).sentence
        assert "GRANT CREATE ON DATABASE" in refused(secret).sentence
        c.execute("GRANT CREATE ON DATABASE postgres TO clerk")
        disk = Disk(url, tmp_path, password_file=str(secret))
        with closing(disk.store):
            assert isinstance(disk.now(1), Appended)
            c.execute("ALTER ROLE clerk CONNECTION LIMIT 0")
            c.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'"
            )
            wait(lambda: "too many connections" in str(_tried(disk)))
            c.execute("ALTER ROLE clerk CONNECTION LIMIT -1")
            disk.resume()
            assert isinstance(disk.now(9), Appended)
            in_log(disk)
            # a replica that took over without the last commits
            c.execute(f"UPDATE {schema}.lease SET position = 1")
            result = disk.now(10)
            assert isinstance(result, Refusal) and "lacks commits" in result.sentence


def test_a_server_process_that_hangs_delays_reads_and_commits_for_a_limited_time(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(server.url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)
        hung = [disk.store._reader._own.raw, disk.store._writer._raw]
        pids = [raw.info.backend_pid for raw in hung]
        continued = threading.Timer(DEADLINE, _continue, pids)
        try:
            for pid in pids:
                postgres_server.kill(pid, signal.SIGSTOP)
            continued.start()
            with monkeypatch.context() as m:
                m.setattr(connection, "WAIT_SECS", 0.5)
                disk.append(2)
                wait(lambda: hung[1].closed)
                _continue(pids[1])  # it may hold the row of the lease
                disk.settle(2)
                wait(disk._resumed)
            assert all(raw.closed for raw in hung)
        finally:
            continued.cancel()
            _continue(*pids)
        assert isinstance(disk.now(3), Appended)
        in_log(disk)

        def away(*_: Any, **__: Any) -> Any:
            raise psycopg.OperationalError("away")

        waited: list[str] = []

        def unwanted(*_: Any, **__: Any) -> Any:
            waited.append("a read waits for a connection")
            raise psycopg.OperationalError("away")

        # without the writer's connection, no read waits for one of its own
        monkeypatch.setattr(writer, "connect", away)
        monkeypatch.setattr(reader, "connect", unwanted)
        with server.connect() as c:
            for raw in (disk.store._reader._own.raw, disk.store._writer._raw):
                c.execute("SELECT pg_terminate_backend(%s)", (raw.info.backend_pid,))
        disk.append(4)
        wait(lambda: not disk.store._writer.connected)
        with pytest.raises(Refusal, match="storageUnavailable"):
            disk.store.read_all()
        assert not waited
        monkeypatch.undo()
        disk.appended(5)

        # another thread makes a new connection, and reads are refused until it has one
        allowed = threading.Event()

        def slowly(*args: Any, **options: Any) -> Any:
            assert allowed.wait(DEADLINE)
            return connection.connect(*args, **options)

        monkeypatch.setattr(reader, "connect", slowly)
        disk.store._reader._own.raw.close()
        for _ in range(2):
            with pytest.raises(StoreUnreachable, match="a new one is being made"):
                disk.store.read_all()
        allowed.set()
        wait(disk._resumed)
        in_log(disk)

        # a commit without an answer is known to be one
        assert not disk.store.stalled()
        monkeypatch.setattr(writer, "STALL_SECS", 0.0)
        with server.connect() as c, c.transaction():
            c.execute(f"SELECT 1 FROM {disk.site.address.schema}.lease FOR UPDATE")
            disk.append(100)
            wait(disk.store.stalled)
        disk.settle(100)
        assert not disk.store.stalled() and isinstance(disk.results[100], Appended)


def _continue(*pids: int) -> None:
    for pid in pids:
        postgres_server.kill(pid, signal.SIGCONT)


def test_the_environment_leads_no_connection_elsewhere(
    server: postgres_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = tmp_path / "services"
    services.write_text("[other]\nhostaddr=127.0.0.1\nport=9\nsslmode=require\n")
    for name, value in {
        "PGHOSTADDR": "127.0.0.1",
        "PGOPTIONS": "-c nonsense=1",
        "PGSSLMODE": "verify-full",
        "PGSERVICE": "other",
        "PGSERVICEFILE": str(services),
        "PGPORT": "9",
        "PGUSER": "nobody-there",
        "PGDATABASE": "nothing",
        "PGPASSWORD": "wrong",
        "PGPASSFILE": str(services),
        "PGSSLROOTCERT": "/nothing",
        "PGSSLCERT": "/nothing",
        "PGREQUIREPEER": "nobody-there",
        "PGTARGETSESSIONATTRS": "standby",
        "PGGSSENCMODE": "require",
        "PGCHANNELBINDING": "require",
    }.items():
        monkeypatch.setenv(name, value)
    disk = Disk(server.url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)


def test_columns_arrive_as_they_were_sent(server: postgres_server.Server) -> None:
    sent = {
        "text": ['a"b\\c{},', "", "NULL", None, "\t\n ", "\u00e9\U0001f600", "'"],
        "bigint": [0, -1, 2**62, None],
        "float8": [0.1, 1e300, 5e-324, float("inf"), None],
        "bytea": [b"", b"\0\xff\\", None],
    }
    with server.connect() as c:
        for kind, values in sent.items():
            assert c.execute(f"SELECT %s::{kind}[]", [array(values)]).fetchone() == (values,)
    assert columns([], 2) == ["{}", "{}"] and columns([(1, "a"), (2, "b")], 2) == [
        "{1,2}",
        '{"a","b"}',
    ]


def test_supervisors_that_begin_at_once_create_their_table_once(
    server: postgres_server.Server, tmp_path: Path
) -> None:
    disk = Disk(server.url(), tmp_path)
    disk.store.close()
    address, start = disk.site.address, threading.Barrier(8)

    def create(_: int) -> None:
        with connect(address, None) as raw:
            start.wait(60)
            supervisors.create(raw)

    with connect(address, None) as raw, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            raw.execute("DROP TABLE supervisors")
            list(pool.map(create, range(8)))


def test_times_of_the_lease_are_shorter_than_its_end() -> None:
    assert (
        lease_protocol.RENEW_SECS * 3 < lease_protocol.LEASE_SECS
        and writer.RECONNECT_SECS < lease_protocol.RENEW_SECS
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_of_the_server_refuses_by_name_until_there_is_room(
    server: postgres_server.Server, tmp_path: Path
) -> None:
    small = server.folder / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700,uid=postgres", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not allow a mount")
    try:
        with server.connect() as c:
            c.execute("CREATE ROLE squeezed LOGIN")
            c.execute(f"CREATE TABLESPACE small OWNER squeezed LOCATION '{small}'")
            c.execute("ALTER ROLE squeezed SET default_tablespace = small")
            c.execute("GRANT CREATE ON DATABASE postgres TO squeezed")
            disk = Disk(server.url(user="squeezed"), tmp_path)
            schema = disk.site.address.schema
            with closing(disk.store):
                number = 1
                while isinstance(disk.now(number, random.randbytes(20_000).hex()), Appended):
                    number += 1
                result = disk.results[number]
                assert isinstance(result, Refusal) and result.code == "storageUnavailable"
                assert number > 5 and "No space left on device (53100)" in result.sentence
                in_log(disk)  # reads work, and later appends are refused in the same way
                again = disk.now(number + 1, random.randbytes(20_000).hex())
                assert isinstance(again, Refusal) and "53100" in again.sentence
                subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
                disk.resume()
                assert isinstance(disk.now(number + 2, random.randbytes(20_000).hex()), Appended)
                in_log(disk)
            c.execute(f"DROP SCHEMA {schema} CASCADE")
            c.execute("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.soak("the test above")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_server_that_has_no_room_for_its_wal_is_refused_by_name_until_it_runs_again(
    tmp_path: Path,
) -> None:
    own = postgres_server.Server()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100m,mode=0755", "tmpfs", str(own.folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not allow a mount")
    try:
        own.start()
        disk = Disk(own.url(), tmp_path)
        with closing(disk.store):
            assert isinstance(disk.now(1), Appended)
            ballast = own.folder / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as f:
                while True:
                    f.write(bytes(65536))
            number = 2
            while isinstance(disk.now(number, random.randbytes(50_000).hex()), Appended):
                number += 1
            result = disk.results[number]
            assert isinstance(result, Refusal) and result.code == "storageUnavailable", result
            ballast.unlink()
            own.start_again()
            disk.appended(number + 1)
            in_log(disk)
        own.stop()
    finally:
        subprocess.run(["umount", "--lazy", str(own.folder)], check=True)
