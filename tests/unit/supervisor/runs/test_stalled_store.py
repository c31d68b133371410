"""Requests while the store does not say whether a commit is in the log."""

import pytest
from in_memory_supervisor import UID, InMemorySupervisor

from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.runs import service


async def test_requests_to_a_stalled_store_are_answered_by_name_and_repeated_without_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_memory = InMemorySupervisor()
    spec = RunSpec(uid=UID, simulation_id="sim00001", command=("true",))
    request = RunSimulation(req_id="request-1", run=spec, force_run=True)
    store, desk = in_memory.store, in_memory.desk
    with monkeypatch.context() as m:
        m.setattr(service, "ANSWER_SECS", 0.02)
        m.setattr(store, "_hold", True)
        m.setattr(
            store, "stalled", lambda: bool(in_memory.engine._pending) and bool(store._waiting)
        )
        # the first one waits for a commit; the others are refused before anything is decided
        for sentence in ("outcome is not known; send the same request", "try again"):
            with pytest.raises(Refusal, match=sentence) as refused:
                await desk.submit(request)
            assert refused.value.code == "storageUnavailable"
        assert len(in_memory.engine._pending) == 1
        store.commit()
    # the first one is in the log after all: the repeated request is the same run
    reply = await desk.submit(request)
    assert reply["computeJid"] == f"{UID}-sim00001-command"
    assert in_memory.launched == [] and len(store.jobs()) == 1
    assert reply["computeJobSerial"] == in_memory.serial(reply["computeJid"])
