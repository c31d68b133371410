"""Failover of a real PostgreSQL to its streaming replica: a synchronous one has everything that was
acknowledged, and the supervisor goes on without a restart; lost commits of an asynchronous one are
found, named and handled.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import patroni_cluster
import postgres_server
import pytest
import strace_calls
from supervisor_process import SupervisorProcess, jid_of, req_id, shell, until
from watched_store import Disk, in_log, wait

from jobscribe.db.postgres import server_identity, writer
from jobscribe.db.postgres.lease_protocol import LEASE_SECS, Timeline
from jobscribe.db.store.contract import Appended
from jobscribe.protocol.errors import Refusal

pytestmark = pytest.mark.process

Make = Callable[..., SupervisorProcess]


class Pair:
    """A server and its streaming replica, which follows synchronously or not."""

    def __init__(self, *, synchronous: bool) -> None:
        self.first, self.second = postgres_server.Server(), postgres_server.Server()
        self.first.start()
        self.second.follow(self.first)
        if synchronous:
            with self.first.connect() as c:
                c.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                c.execute("SELECT pg_reload_conf()")
        self.wait_for("sync" if synchronous else "async")
        self.url = self.first.url_of_both(self.second)

    def wait_for(self, state: str) -> None:
        with self.first.connect() as c:
            wait(lambda: c.execute(STATE).fetchone() == ("streaming", state))

    def sender(self) -> int:
        """Return the pid of the process that sends the log to the replica."""
        with self.first.connect() as c:
            (pid,) = c.execute("SELECT pid FROM pg_stat_replication").fetchone()
        return int(pid)

    def fail_over(self) -> None:
        self.first.kill()
        self.second.promote()

    def remove(self) -> None:
        for server in (self.first, self.second):
            server.remove()


#: Each sync of the process takes 0.4 s more.
STRACE = ("strace", "-qq", "-o/dev/null", "-einject=fdatasync,fsync:delay_enter=400000")
STATE = "SELECT state, sync_state FROM pg_stat_replication"


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**options: bool) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.mark.timeout(300)
def test_a_synchronous_replica_has_what_was_acknowledged_and_no_restart_is_needed(
    pair: Callable[..., Pair], make_site: Make
) -> None:
    servers = pair(synchronous=True)
    site = make_site(f"store.url={servers.url}", "slots.local_sequential=4").start()
    gate, runs = site.place / "gate", site.place / "runs"
    run = shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.05; done; exit 3")
    site.submit(run)
    site.running(run)
    acknowledged: list[dict[str, Any]] = []
    stop = threading.Event()

    def submit() -> None:
        while not stop.is_set():
            one = shell("exit 0")
            with suppress(AssertionError, OSError):
                site.submit(one)
                acknowledged.append(one)

    client = threading.Thread(target=submit)
    client.start()
    try:
        wait(lambda: len(acknowledged) > 5)
        servers.fail_over()
        before = len(acknowledged)
        wait(lambda: len(acknowledged) > before + 5)
    finally:
        stop.set()
        client.join()
    gate.touch()
    said = site.wait(run)
    assert (said["state"], said["exit"]["code"]) == ("error", 3) and runs.read_text() == "x\n"
    for one in acknowledged:
        assert site.wait(one)["state"] == "completed"
    assert site.process is not None and site.process.poll() is None
    assert site.story(run).count("RunRequested") == site.story(run).count("RunEnded") == 1
    # the former primary runs again and takes writes: its log is refused by name, also where it has the same events
    site.stop()
    servers.first.start_again()
    done = site.command("up", "--no-web", "--port", "0", "--set", f"store.url={servers.url}")
    said = "on timeline 1, but this site was served on timeline 2"
    assert done.returncode == 78 and said in done.stderr, done.stderr
    servers.first.stop()
    site.start()
    assert site.wait(run)["exit"]["code"] == 3


def test_a_holder_ends_when_the_root_is_served_from_a_later_timeline(tmp_path: Path) -> None:
    disk = Disk(postgres_server.shared_durable().url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)
        folder = next(tmp_path.rglob(server_identity.FILE)).parent
        mine = server_identity.known(folder)
        assert mine is not None
        # as another supervisor records it that serves from a promoted replica
        server_identity.record(folder, server_identity.Server(mine.system, mine.timeline + 1))
        refused: list[Any] = []

        def is_refused() -> bool:
            refused.append(disk.now(1 + len(refused)))
            return not isinstance(refused[-1], Appended)

        wait(is_refused)
        assert f"on timeline {mine.timeline}," in str(refused[-1]), refused[-1]


def test_a_commit_whose_wait_for_the_replica_is_canceled_is_not_acknowledged(
    pair: Callable[..., Pair], tmp_path: Path
) -> None:
    servers = pair(synchronous=True)
    disk = Disk(servers.url, tmp_path)
    with closing(disk.store), servers.first.connect() as c:
        c.execute("SET synchronous_commit = local")
        assert isinstance(disk.now(1), Appended)
        sender = servers.sender()
        postgres_server.kill(sender, signal.SIGSTOP)
        try:
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            disk.append(2)
            wait(lambda: c.execute(waits).fetchall())
            (stuck,) = c.execute(waits).fetchone()
            # the server then reports success, with a warning
            c.execute("SELECT pg_cancel_backend(%s)", [stuck])
            wait(lambda: [p for (p,) in c.execute(waits).fetchall() if p != stuck])
            while not disk.calls.empty():
                disk.calls.get()()
            assert 2 not in disk.results, "the replica lacks it"
        finally:
            postgres_server.kill(sender, signal.SIGCONT)
        disk.settle(2)
        assert isinstance(disk.results[2], Appended)
        servers.fail_over()
        disk.appended(3)
        in_log(disk)


@pytest.mark.timeout(300)
def test_lost_commits_of_an_asynchronous_replica_are_named_and_accepted_by_repair(
    pair: Callable[..., Pair], make_site: Make
) -> None:
    servers = pair(synchronous=False)
    site = make_site(f"store.url={servers.url}", "slots.local_sequential=4").start()
    gate, runs = site.place / "gate", site.place / "runs"
    run = shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.05; done; exit 3")
    site.submit(run)
    site.running(run)
    with servers.first.connect() as c:
        caught_up = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication"
        wait(lambda: c.execute(caught_up).fetchone() == (True,))
    sender = servers.sender()
    postgres_server.kill(sender, signal.SIGSTOP)
    lost = shell("exit 0")
    assert site.finished(lost)["state"] == "completed"
    servers.fail_over()
    # a stopped process does not see that its server has ended
    postgres_server.kill(sender, signal.SIGKILL)
    assert site.process is not None
    assert site.process.wait(60) == 78, "the supervisor ends: it cannot go on"
    assert site.process.stdout is not None
    site.process.stdout.close()
    site.process = None
    assert "the log in the database lacks commits: it ends at position" in site.log()
    health = site.command("--json", "health")
    assert health.returncode != 0 and "lacks commits" in health.stdout + health.stderr, health
    # a standby neither serves nor ends, and names the reason
    site.process = site.fork_or_launch("--set", "store.standby=true")
    assert site.process.stdout is not None
    site.url = site.process.stdout.readline().decode().split()[3]
    report = site.ask("GET", "/health").json()
    assert (report["state"], report["role"]) == ("failing", "standby"), report
    assert "lacks commits" in report["reasons"][0]["sentence"]
    assert site.stop() == 0
    repaired = site.command("db", "repair", "--yes")
    assert repaired.returncode == 0, repaired
    site.start()
    gate.touch()
    said = site.wait(run)
    assert (said["state"], said["exit"]["code"]) == ("error", 3) and runs.read_text() == "x\n"
    assert site.command("job", "status", jid_of(lost)).returncode != 0, "it is unknown"
    assert site.finished(shell("exit 0"))["state"] == "completed"
    assert json.loads(site.command("--json", "db", "check").stdout)["problems"] == []


@pytest.mark.soak("the tests above")
@pytest.mark.timeout(400)
def test_patroni_fails_over_and_switches_over_and_no_restart_is_needed(make_site: Make) -> None:
    with patroni_cluster.running() as cluster:
        site = make_site(f"store.url={cluster.url}", "slots.local_sequential=4").start()
        gate, runs = site.place / "gate", site.place / "runs"
        run = shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.05; done; exit 3")
        site.submit(run)
        site.running(run)
        acknowledged: list[dict[str, Any]] = []
        for change in (cluster.switch_over, cluster.kill_primary):
            for _ in range(5):
                acknowledged.append(shell("exit 0"))
                site.submit(acknowledged[-1])
            began = time.monotonic()
            change()
            one, request = shell("exit 0"), req_id()

            def taken(one: Any = one, request: str = request) -> bool:
                with suppress(AssertionError, OSError):
                    return bool(site.submit(one, request))
                return False

            until(taken, "requests are accepted again", 120.0)
            print(f"{change.__name__}: {time.monotonic() - began:.1f} s")
            acknowledged.append(one)
        gate.touch()
        assert site.wait(run)["exit"]["code"] == 3 and runs.read_text() == "x\n"
        for one in acknowledged:
            assert site.wait(one)["state"] == "completed"
        assert site.process is not None and site.process.poll() is None


def test_a_lease_on_a_replica_that_took_over_waits_for_the_holder() -> None:
    seen = Timeline()
    assert seen.settled("1", released=True, now=100.0)
    assert seen.settled("1", released=False, now=101.0)
    # the row is older than the holder knows: it may act until the end of its lease
    assert not seen.settled("2", released=True, now=102.0)
    assert not seen.settled("2", released=False, now=102.0 + LEASE_SECS - 0.1)
    assert seen.settled("2", released=False, now=102.0 + LEASE_SECS)
    started_after = Timeline()
    assert not started_after.settled("2", released=False, now=100.0)


def test_a_slow_disk_of_the_server_delays_commits_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strace_calls.required()
    server = postgres_server.shared_durable()
    disk = Disk(server.url(), tmp_path)
    with closing(disk.store):
        assert isinstance(disk.now(1), Appended)
        monkeypatch.setattr(writer, "STALL_SECS", 0.1)
        pid = disk.store._writer._raw.info.backend_pid
        slow = subprocess.Popen(
            [*STRACE, "-p", str(pid)],
            stderr=subprocess.DEVNULL,
        )
        try:
            wait(lambda: strace_calls.tracer_of(pid) == slow.pid)
            began = time.monotonic()
            for number in range(2, 6):
                disk.append(number)
            wait(disk.store.stalled)
            disk.settle(*range(2, 6))
            assert time.monotonic() - began > 0.4, "the disk was slow"
        finally:
            os.kill(slow.pid, signal.SIGTERM)
            slow.wait()
        assert all(isinstance(r, Appended) for r in disk.results.values())
        assert isinstance(disk.now(6), Appended) and not disk.store.stalled()
        in_log(disk)
