"""Ends of runs that nobody waits for are decided with the next request, and never long after their
arrival.
"""

import asyncio
from typing import Any

import pytest
from in_memory_supervisor import OTHER, UID, Agent, InMemorySupervisor, until

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.supervisor.connections import hub
from jobscribe.supervisor.core.interface.inputs import AgentMessage, Submit


class Site(InMemorySupervisor):
    """decisions: the inputs of each decision."""

    def __init__(self, slots: int = 500) -> None:
        super().__init__(slots=slots)
        self.hub.is_watched = self.desk.is_watched
        self.decisions: list[list[type[Any]]] = []
        self.engine.decided = lambda world, inputs: self.decisions.append([type(i) for i in inputs])

    def state(self, jid: str) -> str:
        entry = self.engine.durable(jid)
        assert entry is not None
        return entry.job.status


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No end is decided because of its time."""
    monkeypatch.setattr(hub, "END_DEFERRED_SECS", 3600.0)


@pytest.mark.usefixtures("late")
async def test_an_end_is_decided_with_the_next_submission_and_behind_it() -> None:
    site = Site()
    agent = site.agent()
    jid, token = await site.running(agent)
    site.decisions.clear()
    agent.ended(token)
    assert site.decisions == [] and site.state(jid) == "running"
    await site.submitted(2)
    assert site.decisions == [[Submit, AgentMessage]] and site.state(jid) == "completed"


async def test_an_end_without_a_request_is_decided_soon() -> None:
    site = Site()
    agent = site.agent()
    jid, token = await site.running(agent)
    agent.ended(token)
    assert site.state(jid) == "running"
    await until(lambda: site.state(jid) == "completed", "the end")


async def test_each_end_waits_for_its_own_time() -> None:
    """Although the timer of an earlier one, which was decided with a request, comes first."""
    site = Site()
    agent = site.agent()
    first, second = [await site.running(agent, n) for n in (1, 2)]
    loop = asyncio.get_running_loop()
    agent.ended(first[1])
    due = loop.time() + hub.END_DEFERRED_SECS
    await site.submitted(3)
    await until(lambda: loop.time() > due - hub.END_DEFERRED_SECS / 4, "most of its time")
    agent.ended(second[1])
    again = loop.time() + hub.END_DEFERRED_SECS
    await until(lambda: site.state(second[0]) == "completed", "the end")
    assert loop.time() >= again


@pytest.mark.usefixtures("late")
async def test_an_end_that_a_client_waits_for_is_decided_at_once() -> None:
    site = Site()
    agent = site.agent()
    jid, token = await site.running(agent)
    status = asyncio.create_task(
        site.desk.status(RunStatusRequest(uid=UID, compute_jid=jid, wait_secs=60))
    )
    await until(lambda: site.desk.is_watched(jid), "the client waits")
    agent.ended(token)
    assert site.state(jid) == "completed"
    assert (await status)["state"] == "completed"


@pytest.mark.usefixtures("late")
async def test_a_client_that_begins_to_wait_gets_the_end() -> None:
    site = Site()
    agent = site.agent()
    jid, token = await site.running(agent)
    agent.ended(token)
    reply = await site.desk.status(RunStatusRequest(uid=UID, compute_jid=jid, wait_secs=60))
    assert reply["state"] == "completed"


@pytest.mark.usefixtures("late")
async def test_an_end_whose_slot_another_run_needs_is_decided_at_once() -> None:
    site = Site(slots=1)
    agent = site.agent()
    jid, token = await site.running(agent)
    next_ = await site.submitted(2)
    agent.ended(token)
    assert site.state(jid) == "completed" and site.launched[-1].jid == next_


@pytest.mark.usefixtures("late")
async def test_messages_of_agents_keep_their_order() -> None:
    site = Site()
    agent, other = site.agent(), site.agent(OTHER)
    jid, token = await site.running(agent)
    site.decisions.clear()
    agent.ended(token)
    other.gone()
    assert site.state(jid) == "completed"
    assert [[t.__name__ for t in d] for d in site.decisions] == [
        ["AgentMessage", "AgentDisconnected"]
    ]


@pytest.mark.usefixtures("late")
async def test_a_new_run_of_a_job_is_decided_behind_the_end_of_its_last_one() -> None:
    site = Site()
    agent = site.agent()
    jid, token = await site.running(agent)
    site.decisions.clear()
    agent.ended(token)
    assert await site.submitted(1) == jid
    assert site.decisions == [[AgentMessage, Submit]]
    assert site.serial(jid) > token.serial


async def test_nothing_is_decided_after_the_connections_are_closed() -> None:
    site = Site()
    agent = site.agent()
    _, token = await site.running(agent)
    agent.ended(token)
    site.decisions.clear()
    await site.hub.close()
    await asyncio.sleep(2 * hub.END_DEFERRED_SECS)
    assert site.decisions == []


@pytest.mark.usefixtures("late")
async def test_an_end_of_a_lost_connection_counts() -> None:
    site = Site()
    agent: Agent = site.agent()
    jid, token = await site.running(agent)
    agent.ended(token)
    agent.gone()
    assert site.state(jid) == "completed"
