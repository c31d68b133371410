"""Queues and the state of a site over the API: totals and turns for everybody, waits and limits for
whom they concern, drains that survive a restart.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from access_kit import Clock, access
from in_memory_supervisor import InMemorySupervisor

from jobscribe.db.events.events import AUDIT
from jobscribe.protocol.api import site_requests
from jobscribe.protocol.api.requests import QueueReport, RunStatusRequest
from jobscribe.protocol.api.site_requests import (
    DrainChange,
    Exchange,
    Sweep,
    TargetName,
    TokenFilter,
)
from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings import loader
from jobscribe.service.site.users_file import Users
from jobscribe.supervisor.access.principal import OPERATOR
from jobscribe.supervisor.api.endpoints import site, upkeep
from jobscribe.supervisor.core.interface.drains import Drain
from jobscribe.supervisor.process.event_log import SupervisorSeen
from jobscribe.supervisor.process.handover import Handover
from jobscribe.supervisor.runs import site_drains
from jobscribe.supervisor.runs.site_drains import SiteDrains

ANN, BOB, ADMIN = "user0001", "user0002", "admin001"
Ask = Callable[..., Any]


class Site:
    """An in-memory supervisor with queues, and the services that these requests use."""

    def __init__(self, folder: Path) -> None:
        self.in_memory = InMemorySupervisor()
        engine = self.in_memory.engine
        engine.policy = engine.world.policy = msgspec.structs.replace(
            engine.policy,
            queues=Queues(
                queues={"physics": Queue(share=3, users=(ANN,), borrow=False)},
                limits=UserLimits(running=1, queued=10),
                users={BOB: UserLimits(running=5)},
            ),
        )
        engine.world.slots.fair.rules = engine.policy.shares
        self.file = folder / "drains.json"
        self.drains = SiteDrains(engine, self.file, {}, lambda: 1_700_000_000.0)
        self.access = access("secret", on=engine, users=Users(admins=(ADMIN,)), clock=Clock())
        settings = loader.load({"root": str(folder)}, env={})
        self.services = SimpleNamespace(
            access=self.access, drains=self.drains, settings_rows=lambda: loader.show(settings)
        )

    async def ask(self, action: Any, request: Any = None) -> dict[str, Any]:
        h = SimpleNamespace(
            parsed=lambda type_: request,
            runs=self.in_memory.desk,
            services=self.services,
            principal=OPERATOR,
            log=self.in_memory.log,
            peer="127.0.0.1",
        )
        reply: dict[str, Any] = json.loads(msgspec.json.encode(await action(h)))
        return reply


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Site]:
    yield Site(tmp_path)


async def test_who_waits_for_what_is_said_as_the_status_of_each_run_says_it(made: Site) -> None:
    ann = made.in_memory.agent(ANN)
    await made.in_memory.running(ann, 1, sim_name="first")
    waits = await made.in_memory.submitted(2, ANN, priority=5, command=("sleep", "60"))
    other = await made.in_memory.submitted(3, BOB)
    reply = await made.ask(site.queues, QueueReport())
    assert (reply["all"], reply["waiting"]) == (True, 2)
    assert [(w["computeJid"], w["title"], w["queue"]) for w in reply["waits"]] == [
        (waits, "sleep 60", "physics"),
        (other, "true", "default"),
    ]
    for wait in reply["waits"]:
        asked = RunStatusRequest(uid=wait["uid"], compute_jid=wait["computeJid"])
        status = made.in_memory.desk.status_now(asked)
        assert (wait["queueState"], wait["sentence"]) == (
            status["queueState"],
            status["jobStatusMessage"],
        )
        assert wait["sentence"] in made.in_memory.desk.why(asked)["sentence"]
    assert reply["waits"][0]["queueState"] == "user_limit"
    rows = {q["queue"]: q for q in reply["queues"]}
    assert (
        rows["physics"] | {"part": 0.75, "running": 1, "waiting": 1, "users": [ANN]}
        == rows["physics"]
    )
    assert (rows["default"]["waiting"], rows["default"]["open"]) == (1, True)
    accounts = {(a["queue"], a["uid"]): a for a in reply["accounts"]}
    assert accounts["physics", ANN]["cores"] == 1 and accounts["default", BOB]["waiting"] == 1
    local = next(s for s in reply["slots"] if s["kind"] == "sequential")
    assert (local["used"], local["total"]) == (1, 500)
    assert len((await made.ask(site.queues, QueueReport(limit=1)))["waits"]) == 1


async def test_a_user_sees_own_waits_and_limits_and_totals_of_queues(made: Site) -> None:
    await made.in_memory.running(made.in_memory.agent(ANN), 1, sim_name="of ann")
    await made.in_memory.submitted(2, ANN)
    await made.in_memory.submitted(3, BOB)
    reply = await made.ask(site.queues, QueueReport(uid=BOB))
    assert ANN not in json.dumps(reply) and "of ann" not in json.dumps(reply)
    assert [w["uid"] for w in reply["waits"]] == [BOB]
    assert {q["queue"]: (q["mine"], q["running"]) for q in reply["queues"]} == {
        "default": (True, 0),
        "physics": (False, 1),
    }
    assert {row["limit"]: (row["used"], row["most"]) for row in reply["limits"]} == {
        "running": (0, 5),
        "queued": (1, 10),
    }


async def test_tokens_and_users_of_all_are_listed_without_secrets(made: Site) -> None:
    text, token = await made.access.tokens.create(OPERATOR, ANN, "laptop", ["read"], 100.0)
    _, gone = await made.access.tokens.create(OPERATOR, BOB, "old", ["read"], 100.0)
    await made.access.tokens.revoke(OPERATOR, BOB, gone.id, "lost")
    await made.in_memory.submitted(1, BOB)
    live = await made.ask(site.tokens, TokenFilter(live=True))
    assert [(t["id"], t["uid"], t["status"]) for t in live["tokens"]] == [(token.id, ANN, "live")]
    assert text.secret not in json.dumps(live) and "secret" not in json.dumps(live).lower()
    assert (await made.ask(site.tokens, TokenFilter()))["total"] == 2
    users = (await made.ask(site.users))["users"]
    assert [(u["uid"], u["role"], u["active"], u["tokens"]) for u in users] == [
        (BOB, "user", 1, 0),
        (ADMIN, "admin", 0, 0),
        (ANN, "user", 0, 1),
    ]


async def test_settings_have_values_and_origins_and_no_secret(made: Site, tmp_path: Path) -> None:
    made.in_memory.log.redactor.add(str(tmp_path))  # as if it were one
    reply = await made.ask(site.configuration)
    rows = {row["setting"]: row for row in reply["settings"]}
    assert rows["root"]["origin"] == "option --root" and str(tmp_path) not in json.dumps(reply)
    assert rows["supervisor.ip"]["origin"] == "default"
    assert [(row["of"], row["name"]) for row in reply["limits"]] == [
        ("everybody", ""),
        ("user", BOB),
    ]
    assert reply["limits"][1]["running"] == 5


async def test_a_drain_is_recorded_stored_and_ended(made: Site) -> None:
    begin = DrainChange(drain=True, reason="new disks")
    assert (await made.ask(site.drain, begin))["drains"] == [
        {"driver": "", "host": "", "by": "operator", "at": 1_700_000_000.0, "reason": "new disks"}
    ]
    made.in_memory.agent(ANN)
    await made.in_memory.submitted(1, ANN)
    (wait,) = (await made.ask(site.queues, QueueReport(uid=ANN)))["waits"]
    assert wait["queueState"] == "drained" and wait["sentence"].endswith(": new disks")
    again = site_drains.read(made.file)
    assert again == made.drains.drains and len(again) == 1
    events = [s.event for s in made.in_memory.store.read(AUDIT)]
    assert [(e.action, e.subject) for e in events] == [("site-drain begin", "site")]  # type: ignore[union-attr]
    for n in range(3):
        await made.ask(site.drain, DrainChange(drain=True, reason=str(n)))
    trail = made.access.audit
    newest, before = trail.page(0, 3, None, None, before=0)
    assert ([s.version for s in newest], before) == ([4, 3, 2], 2)
    rest, before = trail.page(0, 3, None, None, before=before)
    assert ([s.version for s in rest], before) == ([1], None)
    assert trail.page(0, 3, None, "nobody01", before=0) == ([], 2)
    end = DrainChange(drain=False)
    for _ in range(2):  # repeating it is harmless
        assert (await made.ask(site.drain, end))["drains"] == []
    assert made.in_memory.launched and site_drains.read(made.file) == {}
    for other in (
        DrainChange(drain=True, driver="docker", host="a"),
        DrainChange(drain=True, host="b"),
    ):
        with pytest.raises(Refusal, match="there is no host"):
            await made.ask(site.drain, other)
    assert (await made.ask(site.drained))["drains"] == []
    # a host that the site no longer has
    made.drains.drains[("docker", "a")] = Drain(by=ADMIN, at=1.0, reason="")
    gone = DrainChange(drain=False, driver="docker", host="a")
    assert (await made.ask(site.drain, gone))["drains"] == []


async def test_acts_of_upkeep_are_on_record_before_they_happen(made: Site) -> None:
    done: list[str] = []

    def act(name: str) -> Any:
        async def work(*_: Any, **__: Any) -> Any:
            done.append(name)
            events = [s.event for s in made.in_memory.store.read(AUDIT)]
            assert name in [e.action for e in events] or name == "dry run"  # type: ignore[union-attr]
            return {}

        return work

    made.services.retention = SimpleNamespace(
        sweep=lambda dry_run, at_once: act("dry run" if dry_run else "retention-sweep")()
    )
    made.services.log_compaction = SimpleNamespace(exchange=act("log-exchange"))
    made.services.notifications = SimpleNamespace(
        status=lambda: {"targets": [{"name": "ops"}]},
        test=act("notify-test"),
        retry=lambda name: {},
    )
    for dry_run in (True, False):
        await made.ask(upkeep.retention_sweep, Sweep(dry_run=dry_run))
    await made.ask(upkeep.log_exchange, Exchange())
    for name in ("ops", "unknown"):
        await made.ask(upkeep.notify_retry, TargetName(name=name))
    await made.ask(upkeep.notify_test, TargetName(name="ops"))
    assert done == ["dry run", "retention-sweep", "log-exchange", "notify-test"]
    events = [s.event for s in made.in_memory.store.read(AUDIT)]
    assert [(e.action, e.subject, e.actor) for e in events] == [  # type: ignore[union-attr]
        ("retention-sweep", "site", "operator"),
        ("log-exchange", "site", "operator"),
        ("notify-retry", "ops", "operator"),
        ("notify-test", "ops", "operator"),
    ]


def test_a_damaged_file_of_drains_stops_the_start(tmp_path: Path) -> None:
    assert site_drains.read(tmp_path / "none.json") == {}
    (tmp_path / "drains.json").write_text("[{}")
    with pytest.raises(Refusal, match="cannot be read") as refused:
        site_drains.read(tmp_path / "drains.json")
    assert refused.value.code == "badConfig"


async def test_a_supervisor_hands_over_only_if_it_serves_and_another_one_stands_by(
    made: Site,
) -> None:
    stopped: list[bool] = []
    rows = [SupervisorSeen("serving", socket.gethostname(), os.getpid(), 0.1, 0.0)]
    handover = Handover(lambda: rows, lambda: stopped.append(True))
    made.services.handover = handover
    body = site_requests.Handover(supervisor=handover.name)
    with pytest.raises(Refusal, match="no other supervisor stands by"):
        await made.ask(site.hand_over, body)
    rows.append(SupervisorSeen("standby", "other", 7, 0.1, 0.0))
    with pytest.raises(Refusal, match="has the name nobody"):
        await made.ask(site.hand_over, site_requests.Handover(supervisor="nobody"))
    # a repetition that reaches the one that took over
    answer = await made.ask(site.hand_over, site_requests.Handover(supervisor="other"))
    assert (answer["begun"], stopped, handover.begun) == (False, [], False)
    assert made.in_memory.store.read(AUDIT) == []
    listed = await made.ask(site.supervisors)
    assert [s["name"] for s in listed["supervisors"]] == [handover.name, "other:7"]
    for _ in range(2):
        assert (await made.ask(site.hand_over, body))["begun"]
    await asyncio.sleep(0)
    events = [s.event for s in made.in_memory.store.read(AUDIT)]
    assert [e.action for e in events] == ["site-handover", "site-handover"]  # type: ignore[union-attr]
    deadline = time.monotonic() + 30
    while not stopped:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert stopped == [True]
    rows.append(SupervisorSeen("standby", "other", 8, 0.1, 0.0))
    with pytest.raises(Refusal, match="several supervisors: name other:7 and other:8"):
        await made.ask(site.hand_over, site_requests.Handover(supervisor="other"))
    made.services.handover = None
    assert (await made.ask(site.supervisors))["supervisors"] == []
