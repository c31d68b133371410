"""How far executions have come: the newest word of each live one, bounded, and never anybody
else's.
"""

from typing import Any

import pytest
from in_memory_supervisor import OTHER, UID, WALL, Agent, Office, running

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.jobs.progress_report import MAX_KEYS
from jobscribe.protocol.wire.messages import REPORT_LIMIT, RunReport


def shown(office: Office, jid: str) -> Any:
    return office.desk.describe(office.desk.job(UID, jid))["parallelStatus"]


async def test_the_newest_report_is_told_with_the_status() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    assert shown(office, jid) is None
    agent.report(token, frameCount=1)
    agent.report(token, frameCount=2, percentComplete=50.0)
    assert shown(office, jid) == {"frameCount": 2, "percentComplete": 50.0}
    reply = await office.desk.status(RunStatusRequest(uid=UID, compute_jid=jid))
    assert reply["parallelStatus"] == {"frameCount": 2, "percentComplete": 50.0}


async def test_an_agents_clock_that_is_set_back_silences_nobody() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    agent.say(
        RunReport(token=token, report={"n": 1}, at=WALL + 3600),
        RunReport(token=token, report={"n": 2}, at=WALL),
    )
    assert shown(office, jid) == {"n": 2}


async def test_a_report_is_no_event() -> None:
    office = Office()
    agent = office.agent()
    _, token = await office.running(agent)
    head = office.store.head()
    agent.report(token, frameCount=1)
    assert office.store.head() == head


async def test_what_came_with_the_exit_takes_over_when_it_is_over() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    agent.report(token, frameCount=2)
    agent.ended(token, report={"frameCount": 9})
    assert shown(office, jid) == {"frameCount": 9}
    assert office.progress._reports == {}, "nothing is kept of what is over"
    agent.report(token, frameCount=3)
    assert shown(office, jid) == {"frameCount": 9}
    assert (office.progress._reports, office.counters.all()["reportOfNothing"]) == ({}, 1)


async def test_a_report_that_comes_between_the_end_and_its_record_is_too_late() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    agent.ended(token, report={"frameCount": 9})
    entry = office.engine.durable(jid)
    assert entry is not None
    office.engine.world.jobs[jid] = entry.job  # as it is while the end is on its way to the disk
    agent.report(token, frameCount=3)
    assert (office.progress._reports, office.counters.all()["reportOfNothing"]) == ({}, 1)


async def test_a_newer_run_does_not_show_the_older_ones_progress() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    agent.report(token, frameCount=2)
    agent.ended(token, report={"frameCount": 9})
    await office.submitted()
    assert shown(office, jid) is None
    past = office.desk.describe(office.desk.job(UID, jid), serial=token.serial)
    assert (past["superseded"], past["parallelStatus"]) == (True, None)


async def test_another_users_task_ends_the_connection() -> None:
    office = Office()
    agent, other = office.agent(), office.agent(OTHER)
    jid, token = await office.running(agent)
    other.report(token, frameCount=666)
    assert shown(office, jid) is None
    assert office.counters.all()["foreignToken"] == 1
    assert other.socket.closed is not None and agent.socket.closed is None
    assert other.key not in office.hub.connections


async def test_another_agent_of_the_same_user_cannot_speak_for_it() -> None:
    office = Office()
    agent, parallel = office.agent(), office.agent(kind="parallel")
    jid, token = await office.running(agent)
    parallel.report(token, frameCount=1)
    assert (shown(office, jid), office.counters.all()["reportOfNothing"]) == (None, 1)


async def test_an_older_connection_is_not_heard() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    newer = Agent(office, agent.key).synced(running(token))
    newer.report(token, n=2)
    agent.report(token, n=1)
    assert shown(office, jid) == {"n": 2}


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
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    agent.report(token, **report)
    assert (shown(office, jid) is not None) == kept
    assert office.counters.all().get("reportRefused", 0) == (0 if kept else 1)
    assert agent.socket.closed is None


async def test_only_a_change_is_told_to_those_who_wait_for_one() -> None:
    office = Office()
    agent = office.agent()
    jid, token = await office.running(agent)
    heard: list[str] = []
    office.progress.heard = heard.append
    for n in (1, 1, 2):
        agent.report(token, n=n)
    assert heard == [jid, jid]
