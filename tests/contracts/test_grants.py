"""The table of grants in PostgreSQL, and its counterpart in the simulator: the same decisions."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import postgres_server
import pytest
from sim_database import Database
from sim_grants import GrantRows

from jobscribe.db.postgres import lease, opening, shards, supervisors
from jobscribe.db.postgres.connection import connect
from jobscribe.db.postgres.opening import Site
from jobscribe.db.postgres.site_tables.statements import Statements
from jobscribe.db.postgres.site_tables.tables import SiteTables
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.grants import Read, Row, Table, Write
from jobscribe.protocol.shards import Shard
from jobscribe.runtime.store_address import StoreAddress, parsed

LIMIT, RUNS = "slots.local_parallel", "runs.main"
TOTAL = 2


class Simulated:
    def __init__(self) -> None:
        self._leases = [Database(lambda: 0.0, MemoryStore(lambda call: call())) for _ in range(2)]
        self._rows = GrantRows(lambda: 0.0)

    def take(self, shard: int) -> int:
        """Take the next epoch of the shard's lease."""
        self._leases[shard].released = True
        taken = self._leases[shard].take("x")
        assert taken is not None
        return taken.epoch

    def release(self, shard: int, epoch: int) -> None:
        self._leases[shard].release(epoch)

    def read(self, shard: int) -> Table:
        return self._rows.read()

    def write(self, shard: int, step: Write, epoch: int) -> bool:
        return self._rows.write(step, shard, self._leases[shard], epoch)


class Real:
    def __init__(self, urls: list[str], place: Any) -> None:
        self.addresses: list[StoreAddress] = []
        self._raws, self._statements = [], []
        for n, url in enumerate(urls):
            site = Site(parsed(url), None, place / str(n), f"root{n}", shard=Shard(n, TOTAL))
            raw = connect(site.address, None)
            opening.create(site, raw)
            supervisors.create(raw)
            self.addresses.append(site.address)
            self._raws.append(raw)
            self._statements.append(Statements(raw, site.address, Shard(n, TOTAL)))

    def take(self, shard: int) -> int:
        raw = self._raws[shard]
        raw.execute("UPDATE lease SET released = true")
        return lease.take(raw, "x", self.addresses[shard].schema, "db").epoch

    def release(self, shard: int, epoch: int) -> None:
        lease.release(self._raws[shard], epoch)

    def read(self, shard: int) -> Table:
        return self._statements[shard].read()

    def write(self, shard: int, step: Write, epoch: int) -> bool:
        return self._statements[shard].write(step, epoch)

    def close(self) -> None:
        for raw in self._raws:
            raw.close()


@pytest.fixture(params=["simulated", pytest.param("postgres", marks=pytest.mark.process)])
def table(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Simulated | Real]:
    if request.param == "simulated":
        yield Simulated()
        return
    url = postgres_server.shared_durable().url()
    found = Real([f"{url}_{n}" for n in range(TOTAL)], tmp_path)
    assert shards.site_schema(found.addresses[0], Shard(0, TOTAL)) == parsed(url).schema
    yield found
    found.close()


def rows(found: Table) -> dict[str, dict[int, tuple[int, ...]]]:
    return {name: {n: tuple(r)[:4] for n, r in of.items()} for name, of in found.rows.items()}


def test_a_shard_writes_its_own_rows_and_reads_all(table: Simulated | Real) -> None:
    epochs = [table.take(0), table.take(1)]
    first = table.read(0)
    assert rows(first) == {}
    both = {LIMIT: Row(4, 3, 5, 8), RUNS: Row(2, 0, 0, 4)}
    assert table.write(0, Write(first.turn, both), epochs[0])
    second = table.read(1)
    assert second.turn != first.turn
    assert rows(second) == {LIMIT: {0: (4, 3, 5, 8)}, RUNS: {0: (2, 0, 0, 4)}}
    assert table.write(1, Write(second.turn, {LIMIT: Row(4, 0, 0, 8)}), epochs[1])
    found = table.read(0)
    assert table.write(0, Write(found.turn, {LIMIT: Row(3, 3, 3, 8)}), epochs[0])
    found = table.read(1)
    assert rows(found)[LIMIT] == {0: (3, 3, 3, 8), 1: (4, 0, 0, 8)}
    assert found.rows[LIMIT][0].age < 60


def test_a_write_needs_the_rows_that_it_was_decided_on(table: Simulated | Real) -> None:
    epochs = [table.take(0), table.take(1)]
    read = table.read(0)
    assert table.write(1, Write(read.turn, {LIMIT: Row(5, 0, 0, 8)}), epochs[1])
    assert not table.write(0, Write(read.turn, {LIMIT: Row(8, 0, 0, 8)}), epochs[0])
    assert rows(table.read(0)) == {LIMIT: {1: (5, 0, 0, 8)}}


def test_a_write_needs_the_present_epoch_of_its_shard(table: Simulated | Real) -> None:
    old, other = table.take(0), table.take(1)
    read = table.read(0)
    new = table.take(0)
    step = Write(read.turn, {LIMIT: Row(8, 0, 0, 8)})
    assert not table.write(0, step, old), "another supervisor took over"
    assert table.read(0) == read, "nothing has changed, not even the turn"
    assert table.write(0, step, new)
    table.release(0, new)
    step = Write(table.read(0).turn, {LIMIT: Row(1, 0, 0, 8)})
    assert not table.write(0, step, new)
    assert table.write(1, step, other)


@pytest.mark.process
def test_revoked_tokens_are_known_to_all_shards(tmp_path: Any) -> None:
    url = postgres_server.shared_durable().url()
    real = Real([f"{url}_{n}" for n in range(TOTAL)], tmp_path)
    one, other = real._statements
    later = time.time() + 60
    assert one.revoked({}, {"a"}) == frozenset()
    for _ in range(2):
        assert one.revoked({"a": later, "b": later}, {"b", "x"}) == {"b"}
    assert other.revoked({}, {"a", "c"}) == {"a"}
    # what expired long ago has no living descendant
    assert other.revoked({"c": later - 100_000}, {"a", "b", "c"}) == {"a", "b"}
    real.close()


@pytest.mark.process
def test_a_table_answers_again_after_its_connection_was_lost(tmp_path: Any) -> None:
    url = postgres_server.shared_durable().url()
    real = Real([f"{url}_{n}" for n in range(TOTAL)], tmp_path)
    epoch = real.take(0)
    answers, answered = list[Any](), threading.Semaphore(0)

    def done(answer: Any) -> None:
        answers.append(answer)
        answered.release()

    found = SiteTables(real.addresses[0], None, Shard(0, TOTAL), lambda: epoch, lambda call: call())
    for step in (Read(), Write(0, {LIMIT: Row(8, 0, 0, 8)})):
        found.perform(step, done)
        assert answered.acquire(timeout=60)
    assert answers[1:] == [True]
    real._raws[1].execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE %s",
        (f"%{parsed(url).schema}%grant_turn SET turn%",),
    )
    found.perform(Write(1, {LIMIT: Row(7, 0, 0, 8)}), done)
    found.perform(Read(), done)
    assert answered.acquire(timeout=60) and answered.acquire(timeout=60)
    assert answers[2] is None, "the outcome is unknown"
    assert rows(answers[3]) == {LIMIT: {0: (8, 0, 0, 8)}}
    found.close()
    real.close()
