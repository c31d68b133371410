"""The row of a lease in PostgreSQL, and its counterpart in the simulator: the same decisions."""

import time
from collections.abc import Iterator
from typing import Any

import postgres_server
import psycopg
import pytest
from sim_database import Database

from jobscribe.db.postgres import lease, opening, supervisors
from jobscribe.db.postgres.connection import FENCED, IDLE_MS, Raw, connect, is_lost
from jobscribe.db.postgres.lease_protocol import LEASE_SECS, Lease
from jobscribe.db.postgres.opening import Site
from jobscribe.db.store.checksum_chain import START
from jobscribe.db.store.group_commit import CommitGroup
from jobscribe.db.store.head_file import DurablePosition
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.store_address import parsed

#: A head of the log other than its beginning.
NEXT = DurablePosition(1, b"c" * 16)


class Simulated:
    def __init__(self) -> None:
        self._late = 0.0
        self._database = Database(lambda: 1000.0 + self._late, MemoryStore(lambda call: call()))

    def take(self, by: str, dead: str | None = None) -> Lease | None:
        return self._database.take(by, dead)

    def take_again(self, by: str) -> Lease | None:
        return self._database.take_again(by)

    def renew(self, epoch: int) -> bool:
        return self._database.renew(epoch)

    def release(self, epoch: int) -> None:
        self._database.release(epoch)

    def commit(self, epoch: int, head: DurablePosition) -> bool:
        """Commit without a change of the log."""
        return self._database.commit(epoch, head, CommitGroup(*head, lambda stream: 0))

    def wait(self, secs: float) -> None:
        self._late += secs

    @property
    def free(self) -> bool:
        return self._database.free


class Real:
    """Holders stand by, so that only their leases count."""

    def __init__(self, raw: Raw, schema: str) -> None:
        self._raw, self._schema = raw, schema

    def take(self, by: str, dead: str | None = None) -> Lease | None:
        supervisors.beat(self._raw, by, supervisors.About("a", 1, "b", "1", {}, "/r"))
        try:
            return lease.take(self._raw, by, self._schema, "db", dead)
        except Refusal as e:
            assert e.code == "rootBusy"
            return None

    def take_again(self, by: str) -> Lease | None:
        return lease.take_again(self._raw, by, self._schema)

    def renew(self, epoch: int) -> bool:
        return lease.renew(self._raw, epoch)

    def release(self, epoch: int) -> None:
        lease.release(self._raw, epoch)

    def commit(self, epoch: int, head: DurablePosition) -> bool:
        try:
            self._raw.execute(lease.FENCE, (*head, LEASE_SECS, epoch, *head))
        except psycopg.Error as e:
            assert e.sqlstate == FENCED
            return False
        return True

    def wait(self, secs: float) -> None:
        """Let the lease end earlier instead."""
        self._raw.execute("UPDATE lease SET expires = expires - %s * interval '1 s'", (secs,))

    @property
    def free(self) -> bool:
        return supervisors.look(self._raw).free


@pytest.fixture(params=["simulated", pytest.param("postgres", marks=pytest.mark.process)])
def row(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Simulated | Real]:
    if request.param == "simulated":
        yield Simulated()
        return
    site = Site(parsed(postgres_server.shared_durable().url()), None, tmp_path / "db", "root")
    with connect(site.address, None) as raw:
        opening.create(site, raw)
        supervisors.create(raw)
        yield Real(raw, site.address.schema)


Row = Simulated | Real
BEGIN = DurablePosition(0, START)


def test_one_at_a_time_has_the_lease_until_it_ends(row: Row) -> None:
    assert row.free and row.take("first") == Lease(1, BEGIN)
    assert not row.free and row.take("second") is None and row.take("second", "third") is None
    row.wait(LEASE_SECS - 1)
    assert row.renew(1) and not row.free
    row.wait(LEASE_SECS - 1)
    assert row.take("second") is None
    row.wait(1.5)
    assert row.free and row.take("second") == Lease(2, BEGIN)


def test_a_released_lease_and_that_of_a_dead_holder_are_free(row: Row) -> None:
    assert row.take("first") == Lease(1, BEGIN)
    row.release(1)
    assert row.free and row.take_again("first") is None
    assert row.take("second") == Lease(2, BEGIN)
    row.release(1)
    assert not row.free, "only its own epoch releases it"
    assert row.take("third", dead="second") == Lease(3, BEGIN)


def test_a_holder_takes_its_own_lease_again_and_not_that_of_another(row: Row) -> None:
    assert row.take("first") == Lease(1, BEGIN)
    assert row.take_again("first") == Lease(2, BEGIN) and row.take_again("second") is None
    assert row.take("first") == Lease(3, BEGIN)
    row.wait(LEASE_SECS + 1)
    assert row.take_again("first") == Lease(4, BEGIN), "nobody took it meanwhile"
    row.wait(LEASE_SECS + 1)
    assert row.take("second") == Lease(5, BEGIN) and row.take_again("first") is None


def test_a_commit_needs_the_present_epoch_and_head_and_renews(row: Row) -> None:
    assert row.take("first") == Lease(1, BEGIN)
    assert row.commit(1, BEGIN) and not row.commit(0, BEGIN) and not row.commit(2, BEGIN)
    assert not row.commit(1, NEXT), "the log does not end there"
    row.wait(LEASE_SECS - 1)
    assert row.commit(1, BEGIN)
    row.wait(LEASE_SECS - 1)
    assert not row.free
    assert row.take_again("first") == Lease(2, BEGIN)
    assert not row.commit(1, BEGIN) and not row.renew(1) and row.commit(2, BEGIN)
    row.wait(LEASE_SECS + 1)
    assert row.commit(2, BEGIN) and not row.free, "it ended, and nobody took it"


@pytest.mark.process
def test_a_holder_that_is_frozen_in_a_transaction_keeps_no_lock(tmp_path: Any) -> None:
    site = Site(parsed(postgres_server.shared_durable().url()), None, tmp_path / "db", "root")
    schema = site.address.schema
    with connect(site.address, None) as frozen, connect(site.address, None) as other:
        opening.create(site, frozen)
        supervisors.create(frozen)
        first = lease.take(frozen, "frozen", schema, "db")
        frozen.execute("BEGIN")
        frozen.execute(lease.FENCE, (*BEGIN, LEASE_SECS, first.epoch, *BEGIN))
        began = time.monotonic()
        assert lease.take(other, "other", schema, "db", dead="frozen").epoch == first.epoch + 1
        assert time.monotonic() - began < 5 * IDLE_MS / 1000
        with pytest.raises(psycopg.Error) as error:
            frozen.execute("SELECT 1")
        assert is_lost(frozen, error.value)
