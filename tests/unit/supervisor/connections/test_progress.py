"""Progress reports: the newest one of each live execution, bounded, and only from the agent that
owns the execution.
"""

from typing import Any

import pytest
from in_memory_supervisor import OTHER, UID, WALL, Agent, InMemorySupervisor, running

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.jobs.progress_report import MAX_KEYS
from jobscribe.protocol.wire.messages import REPORT_LIMIT, RunReport


def shown(in_memory: InMemorySupervisor, jid: str) -> Any:
    return in_memory.desk.describe(in_memory.desk.job(UID, jid))["parallelStatus"]


async def test_the_newest_report_is_told_with_the_status() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    assert shown(in_memory, jid) is None
    agent.report(token, frameCount=1)
    agent.report(token, frameCount=2, percentComplete=50.0)
    assert shown(in_memory, jid) == {"frameCount": 2, "percentComplete": 50.0}
    reply = await in_memory.desk.status(RunStatusRequest(uid=UID, compute_jid=jid))
    assert reply["parallelStatus"] == {"frameCount": 2, "percentComplete": 50.0}


async def test_an_agents_clock_that_is_set_back_silences_nobody() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    agent.say(
        RunReport(token=token, report={"n": 1}, at=WALL + 3600),
        RunReport(token=token, report={"n": 2}, at=WALL),
    )
    assert shown(in_memory, jid) == {"n": 2}


async def test_a_report_is_no_event() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    _, token = await in_memory.running(agent)
    head = in_memory.store.head()
    agent.report(token, frameCount=1)
    assert in_memory.store.head() == head


async def test_what_came_with_the_exit_takes_over_when_it_is_over() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    agent.report(token, frameCount=2)
    agent.ended(token, report={"frameCount": 9})
    assert shown(in_memory, jid) == {"frameCount": 9}
    assert in_memory.progress._reports == {}, "nothing is kept of what is over"
    agent.report(token, frameCount=3)
    assert shown(in_memory, jid) == {"frameCount": 9}
    assert (in_memory.progress._reports, in_memory.counters.all()["reportOfNothing"]) == ({}, 1)


async def test_a_report_that_comes_between_the_end_and_its_record_is_too_late() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    agent.ended(token, report={"frameCount": 9})
    entry = in_memory.engine.durable(jid)
    assert entry is not None
    in_memory.engine.world.jobs[jid] = entry.job  # as while the end is being written to disk
    agent.report(token, frameCount=3)
    assert (in_memory.progress._reports, in_memory.counters.all()["reportOfNothing"]) == ({}, 1)


async def test_a_newer_run_does_not_show_the_older_ones_progress() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    agent.report(token, frameCount=2)
    agent.ended(token, report={"frameCount": 9})
    await in_memory.submitted()
    assert shown(in_memory, jid) is None
    past = in_memory.desk.describe(in_memory.desk.job(UID, jid), serial=token.serial)
    assert (past["superseded"], past["parallelStatus"]) == (True, None)


async def test_another_users_task_ends_the_connection() -> None:
    in_memory = InMemorySupervisor()
    agent, other = in_memory.agent(), in_memory.agent(OTHER)
    jid, token = await in_memory.running(agent)
    other.report(token, frameCount=666)
    assert shown(in_memory, jid) is None
    assert in_memory.counters.all()["foreignToken"] == 1
    assert other.socket.closed is not None and agent.socket.closed is None
    assert other.key not in in_memory.hub.connections


async def test_another_agent_of_the_same_user_cannot_speak_for_it() -> None:
    in_memory = InMemorySupervisor()
    agent, parallel = in_memory.agent(), in_memory.agent(kind="parallel")
    jid, token = await in_memory.running(agent)
    parallel.report(token, frameCount=1)
    assert (shown(in_memory, jid), in_memory.counters.all()["reportOfNothing"]) == (None, 1)


async def test_an_older_connection_is_not_heard() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    newer = Agent(in_memory, agent.key).synced(running(token))
    newer.report(token, n=2)
    agent.report(token, n=1)
    assert shown(in_memory, jid) == {"n": 2}


@pytest.mark.parametrize(
    ("report", "kept"),
    [
        ({"text": "x" * (REPORT_LIMIT - 20)}, True),
        ({"text": "x" * (REPORT_LIMIT + 1)}, False),
        ({"n": float("nan")}, False),
        ({str(n): n for n in range(MAX_KEYS)}, True),
        ({str(n): n for n in range(MAX_KEYS + 1)}, False),
        ({"a": [[[[[[1]]]]]]}, False),
    ],
    ids=["largest", "too large", "no number", "keys", "too many keys", "too deep"],
)
async def test_a_report_is_bounded(report: dict[str, Any], kept: bool) -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    agent.report(token, **report)
    assert (shown(in_memory, jid) is not None) == kept
    assert in_memory.counters.all().get("reportRefused", 0) == (0 if kept else 1)
    assert agent.socket.closed is None


async def test_only_a_change_is_told_to_those_who_wait_for_one() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)
    heard: list[str] = []
    in_memory.progress.heard = heard.append
    for n in (1, 1, 2):
        agent.report(token, n=n)
    assert heard == [jid, jid]
