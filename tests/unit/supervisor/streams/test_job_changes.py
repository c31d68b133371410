"""Names of jobs for front ends: every change of a status that may be kept names its job, and changes
without an event name only jobs whose status was answered.
"""

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from in_memory_supervisor import OTHER, UID, Agent, InMemorySupervisor, running

from jobscribe.protocol.api.requests import RunStatusRequest
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import KeeperReport, Snapshot
from jobscribe.supervisor.streams.job_changes import ChangeReader


class Scene:
    """A running run, and a front end that keeps its status."""

    def __init__(
        self, supervisor: InMemorySupervisor, reader: ChangeReader, agent: Agent, token: Token
    ) -> None:
        self.supervisor, self.reader = supervisor, reader
        self.agent, self.jid, self.token = agent, token.jid, token

    def status(self, jid: str = "") -> dict[str, object]:
        request = RunStatusRequest(uid=(jid or self.jid)[:8], compute_jid=jid or self.jid)
        return self.supervisor.desk.status_now(request)

    async def names(self) -> list[str]:
        return (await self.reader.lines(0)).decode().split()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    supervisor = InMemorySupervisor()
    with supervisor.live.changes.reader() as reader:
        agent = supervisor.agent()
        jid, token = await supervisor.running(agent)
        made = Scene(supervisor, reader, agent, token)
        assert await made.names() == [jid]
        yield made


async def test_the_status_of_a_running_run_may_be_kept(scene: Scene) -> None:
    reply = scene.status()
    assert (reply["state"], reply["cacheable"]) == ("running", True)
    assert reply["elapsedTime"] == 0.0
    scene.supervisor.mono += 5
    assert scene.status() == {**reply, "elapsedTime": 5.0}
    assert await scene.names() == []


def _lost(scene: Scene) -> None:
    scene.agent.gone()


def _replaced(scene: Scene) -> None:
    Agent(scene.supervisor, scene.agent.key)


def _keeper_silent(scene: Scene) -> None:
    scene.agent.say(KeeperReport(answers=False, since=1.0))


def _reported_again(scene: Scene) -> None:
    scene.agent.synced(msgspec.structs.replace(running(scene.token), elapsed_secs=3.0))


def _progressed(scene: Scene) -> None:
    scene.agent.report(scene.token, percentComplete=10.0)


def _folded(scene: Scene) -> None:
    scene.supervisor.engine._suspect = True
    scene.supervisor.connections = list  # type: ignore[method-assign]
    scene.supervisor.engine.poke()


@pytest.mark.parametrize(
    "change", [_lost, _replaced, _keeper_silent, _reported_again, _progressed, _folded]
)
async def test_a_change_without_an_event_names_the_job_whose_status_was_answered(
    scene: Scene, change: Callable[[Scene], None]
) -> None:
    before = scene.status()
    change(scene)
    assert await scene.names() == [scene.jid]
    assert scene.status() != before


async def test_a_job_is_named_once_until_it_is_asked_for_again(scene: Scene) -> None:
    _progressed(scene)
    assert await scene.names() == [], "nobody has its status"
    for percent in (20.0, 30.0):
        scene.status()
        scene.agent.report(scene.token, percentComplete=percent)
        assert await scene.names() == [scene.jid]
        scene.agent.report(scene.token, percentComplete=percent + 5)
        assert await scene.names() == []
    scene.status()
    scene.agent.report(scene.token, percentComplete=35.0)
    assert await scene.names() == [], "the same report"


async def test_an_end_names_the_job_and_it_is_not_watched_any_more(scene: Scene) -> None:
    scene.status()
    scene.agent.ended(scene.token)
    assert await scene.names() == [scene.jid]
    assert scene.status()["state"] == "completed"
    assert "cacheable" not in scene.status() and scene.supervisor.live.changes._watched == {}


async def test_the_agent_of_another_user_names_nothing(scene: Scene) -> None:
    theirs = scene.supervisor.agent(OTHER)
    other, _ = await scene.supervisor.running(theirs)
    await scene.names()
    assert scene.status()["cacheable"] and scene.status(other)["cacheable"]
    theirs.gone()
    assert await scene.names() == [other]
    assert scene.jid.startswith(UID)


async def test_the_last_page_of_a_snapshot_names_the_jobs_of_all_pages(scene: Scene) -> None:
    """A page is applied with the last one: what is answered in between changes then."""
    number = next(scene.supervisor.numbers)
    page = (running(scene.token),)
    scene.agent.say(Snapshot(number=number, page=0, last=False, executions=page))
    scene.status()
    scene.agent.say(Snapshot(number=number, page=1, last=True, executions=()))
    assert await scene.names() == [scene.jid]


async def test_what_other_jobs_or_reports_change_must_not_be_kept(scene: Scene) -> None:
    waiting = await scene.supervisor.submitted(2)
    assert scene.status(waiting)["state"] == "pending" and "cacheable" not in scene.status(waiting)
    scene.agent.gone()
    assert scene.status()["known"] is False and "cacheable" not in scene.status()
    again = Agent(scene.supervisor, scene.agent.key)
    assert "cacheable" not in scene.status(), "its agent has not reported yet"
    again.synced(running(scene.token))
    assert scene.status()["cacheable"] is True
    world = scene.supervisor.engine.world
    policy = world.policy
    world.policy = msgspec.structs.replace(policy, batch=frozenset({"local"}))
    assert "cacheable" not in scene.status(), "its scheduler reports without an event"
    world.policy = policy
    assert scene.status()["cacheable"] is True
    world.began.clear()
    assert "cacheable" not in scene.status(), "its time comes from the wall clock"
