"""A bug in a decision fails only its request: the world is folded again before the next one."""

import pytest

from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.requests import RunSimulation
from jobscribe.supervisor.core.interface.effects import ReplyRefusal, ReplyStatus
from jobscribe.supervisor.core.interface.inputs import Now, Submit
from jobscribe.supervisor.core.runs import admission
from jobscribe.supervisor.core.state.configuration import CoreConfig
from jobscribe.supervisor.engine.decision_loop import Engine


class Ports:
    def __init__(self) -> None:
        self.performed: list = []
        self.errors: list[Exception] = []

    def now(self) -> Now:
        return Now(wall=1_700_000_000.0, mono=1000.0, boot_id="b", entropy=bytes(32))

    def perform(self, effect, cause) -> None:
        self.performed.append(effect)

    def projected(self, job, position, at) -> None:
        return None

    def connections(self) -> list:
        return []

    def fatal(self, refusal) -> None:
        raise refusal

    def noticed(self, what, detail) -> None:
        raise AssertionError((what, detail))

    def broken(self, error) -> None:
        self.errors.append(error)


def test_a_decision_that_fails_half_way_leaves_no_trace_in_the_world(
    kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = Ports()
    store = MemoryStore(lambda call: call())
    engine = Engine(CoreConfig(), store, ports)
    engine.start()
    head = store.head()

    def bug(*args) -> None:
        raise RuntimeError("a planted bug")

    with monkeypatch.context() as broken:
        broken.setattr(admission.placement, "enqueue", bug)  # at this point the run is in the world
        engine.tell(Submit(1, RunSimulation(req_id="request-1", run=kit.spec(1)), "/d"))
    assert [str(e) for e in ports.errors] == ["a planted bug"]
    assert [e.refusal.code for e in ports.performed if isinstance(e, ReplyRefusal)] == ["internal"]
    assert store.head() == head
    engine.tell(Submit(2, RunSimulation(req_id="request-1", run=kit.spec(1)), "/d"))
    assert [e.handle for e in ports.performed if isinstance(e, ReplyStatus)] == [2]
    (job,) = engine.world.jobs.values()
    assert engine.durable(job.jid).job == job
    assert job.version == 1
