"""Tasks in containers, with a fake daemon: each is launched at most once and never lost, whatever
fails.
"""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from docker_tasks import KEY, Life, token_of
from fake_docker import Container, FakeDocker

from jobscribe.drivers.docker.host import engine
from jobscribe.drivers.docker.tasks import networks, poll_loop, start, state, stop
from jobscribe.drivers.docker.tasks.init_script import init_script
from jobscribe.drivers.docker.tasks.ledger import ContainerLedger, make_folders_below, replace_file
from jobscribe.drivers.docker.tasks.sampler import Sampling, memory_peak, sample
from jobscribe.protocol.ids import Token, agent_log_ids, execution_log_ids, op_id
from jobscribe.protocol.jobs.exit_info import ExitFacts
from jobscribe.protocol.wire.messages import PortsProbed, Shared, Snapshot, TaskRun

New = Callable[..., Coroutine[Any, Any, Life]]
CREATED, STARTED = r"POST /containers/create", r"POST /containers/[^/]+/start"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry and poll intervals."""
    monkeypatch.setattr(start, "_AGAIN_SECS", 0.02)
    monkeypatch.setattr(networks, "PAUSES", (0.01,) * 5)
    monkeypatch.setattr(stop, "AGAIN_SECS", 0.1)
    monkeypatch.setattr(poll_loop, "TICK_SECS", 0.05)
    monkeypatch.setattr(engine, "PING_SECS", 0.3)
    monkeypatch.setattr(engine, "FIRST_RETRY_SECS", 0.05)


@pytest.fixture
async def new_life(fake: FakeDocker) -> AsyncIterator[New]:
    root = Path(tempfile.mkdtemp(prefix="dtasks-", dir="/tmp"))
    lives: list[Life] = []

    async def new(**pool: Any) -> Life:
        """Close the previous supervisor life and start a new one."""
        while lives:
            await lives.pop().close()
        lives.append(Life(root, fake.address, **pool))
        return await lives[-1].open()

    try:
        yield new
    finally:
        for life in lives:
            await life.close()
        shutil.rmtree(root)


@pytest.fixture
async def life(new_life: New) -> Life:
    return await new_life()


def container_of(fake: FakeDocker, token: Token) -> Container:
    (found,) = [c for c in fake.containers.values() if c.labels["jobscribe.token"] == str(token)]
    return found


def end(fake: FakeDocker, life: Life, token: Token, code: int = 0, **more: Any) -> None:
    """End the task in the same way as its init script."""
    (life.evidence(token) / "exit-code").write_text(f"{code}\n")
    fake.finish(container_of(fake, token).id, code, **more)


async def settled(life: Life, *tokens: Token) -> None:
    life.tasks.settle(KEY, tokens)
    for token in tokens:
        await life.until(
            lambda t=token: not life.ledger(t).exists(), f"{token} is out of the ledger"
        )


# ---- launches


async def test_a_launch_makes_one_container_and_starts_it_once(
    life: Life, fake: FakeDocker
) -> None:
    token = token_of()
    for _ in range(3):
        life.launch(token=token)
    running = await life.reported(token, "running")
    assert life.executions(token)[0].state == "starting" and (
        running.pid,
        running.elapsed_secs is not None,
    ) == (4242, True)
    assert len(fake.called(CREATED)) == len(fake.called(STARTED)) == 1
    config = container_of(fake, token).config
    assert (config["Entrypoint"], config["Cmd"]) == (
        ["/bin/sh"],
        [f"{life.evidence(token)}/wrapper.sh"],
    )
    assert (
        json.loads((life.ledger(token) / "container.json").read_text())["id"]
        == container_of(fake, token).id
    )
    (said,) = [line for line in life.lines if f"{token} running: docker " in line]
    assert said.endswith(f"{life.evidence(token)}/wrapper.sh")
    end(fake, life, token, 7)
    exit_ = await life.end_of(token)
    assert (exit_.code, exit_.source) == (7, "script")
    assert json.loads((life.evidence(token) / "exit.json").read_text())["code"] == 7


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to other users: run this as root"
)
async def test_the_evidence_is_the_users_and_the_ledger_is_not(life: Life) -> None:
    token = life.launch()
    await life.reported(token, "running")
    assert {os.stat(life.evidence(token) / n).st_uid for n in (".", "script.sh", "wrapper.sh")} == {
        200_000
    }
    assert os.stat(life.evidence(token)).st_mode & 0o777 == 0o700
    assert os.stat(life.root / "user" / KEY.uid / token.jid / "main" / "0").st_uid == 200_000
    place = life.root / "agent" / str(KEY)
    assert all(
        os.stat(p).st_uid == 0 and os.stat(p).st_mode & 0o077 == 0
        for p in (place, place / "run", place / "ledger", life.ledger(token))
    )


@pytest.mark.parametrize("kind", ["lost", "disconnect"])
@pytest.mark.parametrize("call", [CREATED, STARTED, r"GET /containers/[^/]+/json"])
async def test_a_call_whose_answer_does_not_come_is_asked_again_and_nothing_is_made_twice(
    life: Life, fake: FakeDocker, call: str, kind: str
) -> None:
    fake.trouble(call, kind, times=2)
    token = life.launch()
    await life.reported(token, "running")
    assert len(fake.containers) == 1
    started = [e for e in fake.events if e["Action"] == "start"]
    assert len(started) == 1
    end(fake, life, token)
    assert (await life.end_of(token)).code == 0


async def test_one_that_ran_before_the_answer_to_its_start_came_is_not_started_again(
    life: Life, fake: FakeDocker
) -> None:
    """The task ended at once, and the only answer to the start was a broken connection."""
    fake.on_start = lambda c: (
        (Path(c.config["Cmd"][0]).parent / "exit-code").write_text("5\n"),
        fake.finish(c.id, 5),
    )
    fake.trouble(STARTED, "lost", times=1)
    token = life.launch()
    assert (await life.end_of(token)).code == 5
    assert len([e for e in fake.events if e["Action"] == "start"]) == 1


INIT_DIED = "failed to create shim task: OCI runtime create failed: error during container init: write init-p: broken pipe: unknown"


@pytest.mark.parametrize(
    ("said", "times", "calls"),
    [
        (INIT_DIED, 2, 3),
        (INIT_DIED, 3, 3),
        ("driver failed programming external connectivity", 1, 1),
    ],
)
async def test_a_runtime_that_fails_before_there_is_a_process_is_asked_again(
    life: Life,
    fake: FakeDocker,
    said: str,
    times: int,
    calls: int,
) -> None:
    """The runtime itself may have been killed. The command has not run, so no second container is
    created.
    """
    fake.trouble(STARTED, "fail", times=times, said=said)
    token = life.launch()
    if times < calls:
        await life.reported(token, "running")
        end(fake, life, token)
        assert (await life.end_of(token)).code == 0
    else:
        exit_ = await life.end_of(token)
        assert (exit_.source, exit_.code) == ("start", None) and said in (exit_.detail or "")
    assert len(fake.called(STARTED)) == calls and len(fake.called(CREATED)) == 1


async def test_a_container_of_somebody_else_with_its_name_is_left_alone(
    life: Life, fake: FakeDocker
) -> None:
    token = token_of()
    from jobscribe.drivers.docker.containers import names

    with fake.lock:
        fake.made(names.task(KEY.uid, token, life.deployment), {"Image": "lab:1", "Labels": {}})
    life.launch(token=token)
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.fault) == ("start", "engineRefused") and not fake.called(STARTED)


async def test_a_settled_token_is_not_launched_again_in_this_life_or_the_next(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    token = life.launch()
    await life.reported(token, "running")
    end(fake, life, token)
    await life.end_of(token)
    await settled(life, token)
    await life.until(lambda: not fake.containers, "its container is removed")
    for _ in range(2):
        life.heard.clear()
        life.launch(token=token)
        exit_ = await life.end_of(token)
        assert (exit_.source, exit_.detail) == ("start", "the task was started before")
        life.tasks.settle(KEY, (token,))
        life = await new_life()
    assert len(fake.called(CREATED)) == 1 and (life.evidence(token) / "exit.json").exists()


async def test_all_images_of_a_gang_are_there_before_its_first_container(
    life: Life, fake: FakeDocker
) -> None:
    fake.images["slow:1"] = "sha256:" + "2" * 64
    fake.trouble(r"GET /images/slow", "slow", secs=0.3)
    tokens = [Token(f"{KEY.uid}-gang0001-command", 1, 1, "w", n) for n in range(3)]
    boxes = [{}, {"image": "slow:1"}, {"image": "none:1"}]
    runs = [
        TaskRun(op_id=op_id(t, "run"), token=t, spec=life.spec(t, box=b))
        for t, b in zip(tokens, boxes, strict=True)
    ]
    life.tasks.launch_gang(KEY, Shared(env={"A": "x"}, job="{}\n"), runs)
    for token in tokens[:2]:
        await life.reported(token, "running")
    missing = await life.end_of(tokens[2])
    assert (missing.source, missing.fault) == ("start", "imageMissing")
    asked = [n for n, c in enumerate(fake.calls) if c.startswith("GET /images/")]
    assert max(asked) < min(
        n for n, c in enumerate(fake.calls) if c.startswith("POST /containers/create")
    )
    assert (
        "export A='x'" in (life.evidence(tokens[0]) / "script.sh").read_text()
        and (life.evidence(tokens[1]) / "job.json").read_text() == "{}\n"
    )


async def test_the_first_task_with_an_image_tells_of_its_pull(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life(pull="missing")
    fake.pullable = {"team/sim:2": "sha256:" + "3" * 64}
    tokens = [Token(f"{KEY.uid}-gang0003-command", 1, 1, "w", n) for n in range(2)]
    runs = [
        TaskRun(op_id=op_id(t, "run"), token=t, spec=life.spec(t, box={"image": "team/sim:2"}))
        for t in tokens
    ]
    life.tasks.launch_gang(KEY, Shared(env={}, job="{}\n"), runs)
    for token in tokens:
        await life.reported(token, "running")
    told = [[[n.code for n in e.notices or ()] for e in life.executions(token)] for token in tokens]
    assert [] in told[0] and ["imagePulling"] in told[0]
    assert told[0][-1] == ["imagePulling", "imagePulled"] and not any(told[1])
    assert life.executions(tokens[0])[-1].notices[0].text == "team/sim:2"  # type: ignore[index]
    # an image that is there is not pulled
    again = life.launch(box={"image": "team/sim:2"})
    assert not (await life.reported(again, "running")).notices


async def test_a_gang_has_one_network_until_its_last_task_is_over(
    life: Life, fake: FakeDocker
) -> None:
    tokens = [Token(f"{KEY.uid}-gang0002-command", 1, 1, "w", n) for n in range(3)]
    runs = [
        TaskRun(
            op_id=op_id(t, "run"),
            token=t,
            spec=life.spec(t, box={"subnet": "10.208.4.0/22", "address": f"10.208.4.{2 + n}"}),
        )
        for n, t in enumerate(tokens)
    ]
    life.tasks.launch_gang(KEY, Shared(env={}, job="{}"), runs)
    for token in tokens:
        await life.reported(token, "running")
    assert len(fake.called("POST /networks/create")) == 1 and len(fake.networks) == 1
    (network,) = fake.networks.values()
    assert network["Internal"] and network["IPAM"]["Config"][0]["Subnet"] == "10.208.4.0/22"
    assert {c.config["HostConfig"]["NetworkMode"] for c in fake.containers.values()} == {
        network["Name"]
    }
    for token in tokens:
        assert fake.networks
        end(fake, life, token)
        await life.end_of(token)
    await life.until(lambda: not fake.networks, "the network is gone")


async def test_a_subnet_that_something_else_has_is_said(life: Life, fake: FakeDocker) -> None:
    fake.trouble(
        "POST /networks/create",
        "fail",
        status=403,
        said="Pool overlaps with other one on this address space",
    )
    token = life.launch(box={"subnet": "10.208.8.0/22"})
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.fault) == ("start", "subnetTaken") and "10.208.8.0/22" in (
        exit_.detail or ""
    )
    assert not fake.called(CREATED)


IN_USE = "error while removing network: network x has active endpoints"


async def over(life: Life, fake: FakeDocker, **box: Any) -> str:
    """Run a task to its end, and return its network."""
    token = life.launch(box={"subnet": "10.208.8.0/22", **box})
    await life.reported(token, "running")
    (network,) = fake.networks
    end(fake, life, token)
    await life.end_of(token)
    return network


async def test_a_network_that_is_in_use_for_a_moment_more_is_removed_all_the_same(
    life: Life, fake: FakeDocker
) -> None:
    fake.trouble("DELETE /networks", "fail", times=3, status=403, said=IN_USE)
    await over(life, fake)
    await life.until(lambda: not fake.networks, "the network is gone")
    assert not fake.called("POST /networks/[^/]+/disconnect")


async def test_who_is_in_a_network_and_has_no_container_is_taken_out(
    life: Life, fake: FakeDocker
) -> None:
    token = life.launch(box={"subnet": "10.208.8.0/22"})
    await life.reported(token, "running")
    (network,) = fake.networks
    fake.left_ends[network] = ["ghost"]
    end(fake, life, token)
    await life.until(lambda: not fake.networks, "the network is gone")
    assert [b["Container"] for c, b in fake.bodies if c.endswith("/disconnect")] == ["ghost"]
    assert any(
        "ghost is a member of network" in line and "disconnected" in line for line in life.lines
    )


async def test_a_network_that_is_left_in_the_way_of_the_next_gang_is_removed(
    life: Life, fake: FakeDocker
) -> None:
    fake.trouble("DELETE /networks", "fail", status=403, said=IN_USE)
    left = await over(life, fake)
    await life.until(
        lambda: len(fake.called("DELETE /networks")) > len(networks.PAUSES),
        "it could not be removed",
    )
    fake.relent()
    token = life.launch(box={"subnet": "10.208.8.0/22"})
    await life.reported(token, "running")
    assert len(fake.networks) == 1 and left not in fake.networks
    assert any(
        f"network {left} on host a belongs to an ended gang and blocks a subnet" in line
        for line in life.lines
    )


async def test_a_network_that_goes_while_the_next_one_is_made_costs_nothing(
    life: Life, fake: FakeDocker
) -> None:
    fake.trouble(
        "POST /networks/create",
        "fail",
        times=1,
        status=403,
        said="Pool overlaps with other one on this address space",
    )
    await life.reported(life.launch(box={"subnet": "10.208.8.0/22"}), "running")


@pytest.mark.parametrize("whose", ["a stranger's", "one of ours in which somebody runs"])
async def test_a_network_of_somebody_else_stays(life: Life, fake: FakeDocker, whose: str) -> None:
    if whose == "a stranger's":
        fake.networks["other"] = {
            "Name": "other",
            "Id": "other",
            "Containers": {},
            "IPAM": {"Config": [{"Subnet": "10.208.8.0/22"}]},
        }
    else:
        first = life.launch(box={"subnet": "10.208.8.0/22"})
        await life.reported(first, "running")
    before = list(fake.networks)
    exit_ = await life.end_of(life.launch(box={"subnet": "10.208.8.0/22"}))
    assert (exit_.source, exit_.fault) == ("start", "subnetTaken") and list(fake.networks) == before
    assert not fake.called("POST /networks/[^/]+/disconnect")


@pytest.mark.parametrize(
    ("volume", "good"),
    [("data", True), ("/etc", False), ("{user}/x", True), ("{user}/../Other", False), ("x", False)],
)
async def test_volumes_are_the_pools_or_the_users_own(
    new_life: New, fake: FakeDocker, volume: str, good: bool
) -> None:
    from jobscribe.protocol.clusters.container_pool import Volume

    life = await new_life(volumes={"data": Volume(source="/srv/data", target="/data")})
    token = life.launch(box={"volumes": (volume.format(user=life.root / "user" / KEY.uid),)})
    if good:
        await life.reported(token, "running")
    else:
        exit_ = await life.end_of(token)
        assert (exit_.source, exit_.fault) == ("start", "volumeRefused") and not fake.called(
            CREATED
        )


# ---- stops


async def test_a_stop_while_its_image_is_pulled_ends_it_at_once_and_for_good(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    fake.trouble(r"GET /images/", "hang")
    token = life.launch()
    await life.until(lambda: fake.called("GET /images/"), "the image is looked for")
    life.tasks.stop(KEY, token, "cancel", 3.0)
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.stop_reason) == ("start", "cancel")
    fake.relent()
    assert (await life.snapshot())[token].state == "ended" and not fake.called(CREATED)
    life = await new_life()
    assert (await life.snapshot())[token].exit.stop_reason == "cancel"  # type: ignore[union-attr]
    assert json.loads((life.ledger(token) / "stop.json").read_text())["reason"] == "cancel"


async def test_a_stop_while_its_container_is_made_never_starts_it(
    life: Life, fake: FakeDocker
) -> None:
    fake.trouble(CREATED, "slow", secs=0.3)
    token = life.launch()
    await life.until(lambda: fake.called(CREATED), "its container is made")
    life.tasks.stop(KEY, token, "cancel", 3.0)
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.stop_reason) == ("start", "cancel")
    assert not fake.called(STARTED) and not fake.containers


async def test_a_stop_is_on_record_before_its_signal_and_gets_rough_after_its_grace(
    life: Life, fake: FakeDocker
) -> None:
    token = life.launch()
    await life.reported(token, "running")
    seen: list[tuple[int, bool, bool]] = []
    fake.trouble(r"POST /containers/[^/]+/kill", "slow", secs=0.05)
    life.tasks.stop(KEY, token, "cancel", 0.3)
    container = container_of(fake, token)
    await life.until(lambda: container.signals, "it is told")
    seen.append(
        (
            container.signals[0],
            (life.ledger(token) / "stop.json").exists(),
            (life.evidence(token) / "stop").exists(),
        )
    )
    exit_ = await life.end_of(token)
    assert seen == [(15, True, True)] and container.signals[:2] == [15, 9]
    assert (exit_.signal, exit_.stop_reason, exit_.source) == (9, "cancel", "engine")


async def test_a_stop_that_is_asked_for_while_the_host_is_away_is_carried_out_when_it_is_back(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    token = life.launch()
    await life.reported(token, "running")
    container = container_of(fake, token)
    fake.close()
    await life.until(lambda: not life.is_up, "the place is down")
    life.tasks.stop(KEY, token, "cancel", 0.2)
    await life.until(lambda: (life.ledger(token) / "stop.json").exists(), "it is on record")
    assert not container.signals and life.executions(token)[-1].state == "running"
    fake.reopen()
    assert (await life.end_of(token)).stop_reason == "cancel"
    assert container.signals


async def test_the_time_limit_holds(life: Life, fake: FakeDocker) -> None:
    token = life.launch(time_limit_secs=0.2)
    await life.until(
        lambda: container_of(fake, token).signals if fake.containers else None, "it is told"
    )
    assert (await life.end_of(token)).stop_reason == "timeLimit"


async def test_what_the_wrapper_ended_at_its_limit_says_so(life: Life, fake: FakeDocker) -> None:
    token = life.launch()
    await life.reported(token, "running")
    (life.evidence(token) / "limit").write_text("3\n")
    (life.evidence(token) / "signal").write_text("Terminated\n")
    (life.evidence(token) / "survivors").write_text("2\n")
    end(fake, life, token, 143)
    exit_ = await life.end_of(token)
    assert (exit_.signal, exit_.stop_reason, exit_.survivors_killed) == (15, "timeLimit", 2)


# ---- exit or stop, whichever comes first


def exits(life: Life, token: Token, code: int) -> None:
    """Write the command's exit code while the container runs on."""
    (life.evidence(token) / "exit-code").write_text(f"{code}\n")


async def test_an_exit_is_told_while_the_engine_does_not_say_that_its_container_ended_and_no_stop_changes_it(
    life: Life,
    fake: FakeDocker,
) -> None:
    token = life.launch(time_limit_secs=1.0)
    await life.reported(token, "running")
    fake.trouble(r"GET /containers/[^/]+/json", "hang")
    end(fake, life, token, 3)
    said = await life.until(lambda: [e for e in life.executions(token) if e.ending], "it is ending")
    assert (said[0].exit.code, said[0].exit.stop_reason, said[0].exit.source) == (3, None, "script")
    assert said[0].started_at <= said[0].exit.ended_at <= time.time()
    assert (await life.snapshot())[token].ending
    life.tasks.stop(KEY, token, "cancel", 0.0)
    await life.until(lambda: time.time() > said[0].started_at + 1.5, "its limit has passed")
    fake.relent()
    exit_ = await life.end_of(token)
    assert (exit_.code, exit_.stop_reason) == (3, None)
    assert not container_of(fake, token).signals and not (life.ledger(token) / "stop.json").exists()


async def test_a_stop_that_finds_the_exit_sends_no_signal(
    new_life: New, fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the stop itself looks for the exit: no poll comes before."""
    monkeypatch.setattr(poll_loop, "TICK_SECS", 60.0)
    life = await new_life()
    token = life.launch()
    await life.reported(token, "running")
    exits(life, token, 3)
    life.tasks.stop(KEY, token, "cancel", 5.0)
    task = life.tasks._places[KEY].tasks[token]
    await life.until(lambda: task.life.exiting and not task.life.stopping, "it is withdrawn")
    await life.until(
        lambda: not (life.ledger(token) / "stop.json").exists(), "the record is removed"
    )
    end(fake, life, token, 3)
    exit_ = await life.end_of(token)
    assert (exit_.code, exit_.stop_reason) == (3, None)
    assert not container_of(fake, token).signals


@pytest.mark.parametrize("ran", [True, False])
async def test_a_stop_after_a_start_without_an_answer_ends_it_as_what_it_was(
    life: Life, fake: FakeDocker, monkeypatch: pytest.MonkeyPatch, ran: bool
) -> None:
    """A container that was started in spite of a broken connection did run; another one is
    removed and never starts.
    """
    monkeypatch.setattr(start, "_AGAIN_SECS", 60.0)
    fake.trouble(STARTED, "lost" if ran else "disconnect", times=1)
    token = life.launch()
    await life.until(lambda: fake.called(STARTED), "it was to be started")
    life.tasks.stop(KEY, token, "cancel", 0.2)
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.stop_reason) == ("engine" if ran else "start", "cancel")
    assert len(fake.called(STARTED)) == 1
    assert [bool(c.signals) for c in fake.containers.values()] == ([True] if ran else [])


async def test_a_stop_on_record_ends_what_was_made_and_never_started_in_the_next_life(
    new_life: New, fake: FakeDocker
) -> None:
    """The record is one of an older version, which does not say that no signal was sent."""
    life = await new_life()
    fake.trouble(STARTED, "disconnect")
    token = life.launch()
    await life.until(lambda: fake.called(STARTED), "it was to be started")
    await life.close()
    fake.relent()
    (life.ledger(token) / "stop.json").write_text('{"reason": "cancel", "grace": 0.2}')
    life = await new_life()
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.stop_reason) == ("start", "cancel")
    assert not [e for e in fake.events if e["Action"] == "start"] and not fake.containers


async def test_a_stop_before_the_start_is_told_even_if_the_disk_cannot_be_written(
    life: Life, fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ContainerLedger, "take_token", full)
    fake.trouble(r"GET /images/", "hang")
    token = life.launch()
    await life.until(lambda: fake.called("GET /images/"), "the image is looked for")
    life.tasks.stop(KEY, token, "cancel", 0.2)
    exit_ = await life.end_of(token)
    assert (exit_.source, exit_.stop_reason) == ("start", "cancel")
    fake.relent()
    assert (await life.snapshot())[token].state == "ended" and not fake.called(CREATED)


async def test_a_stop_that_waits_for_its_host_is_too_late_when_its_command_ends_before(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    first, second = life.launch(), life.launch()
    for token in (first, second):
        await life.reported(token, "running")
    fake.close()
    await life.until(lambda: not life.is_up, "the place is down")
    for token in (first, second):
        life.tasks.stop(KEY, token, "cancel", 0.2)
        await life.until(lambda t=token: (life.ledger(t) / "stop.json").exists(), "it is on record")
        assert json.loads((life.ledger(token) / "stop.json").read_text())["signaled"] is False
    exits(life, first, 4)
    await life.close()
    end(fake, life, first, 4)
    fake.reopen()
    life = await new_life()
    exit_ = await life.end_of(first)
    assert (exit_.code, exit_.stop_reason) == (4, None)
    assert (await life.end_of(second)).stop_reason == "cancel" and container_of(
        fake, second
    ).signals


async def test_a_container_that_runs_on_after_its_command_is_killed(
    life: Life, fake: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that writes its own exit code does not escape its time limit."""
    monkeypatch.setattr(state.POLICY, "leftover", 0.3)
    token = life.launch()
    await life.reported(token, "running")
    exits(life, token, 0)
    exit_ = await life.end_of(token)
    assert container_of(fake, token).signals[0] == 9 and (exit_.code, exit_.stop_reason) == (
        0,
        None,
    )


# ---- hosts and restarts


async def test_nothing_is_called_gone_while_its_host_is_away_and_its_end_is_told_when_it_is_back(
    life: Life, fake: FakeDocker
) -> None:
    token = life.launch()
    await life.reported(token, "running")
    fake.close()
    await life.until(lambda: not life.is_up, "the place is down")
    end(fake, life, token, 3)
    heard = len(life.heard)
    life.tasks.find(KEY)
    life.launch()
    await asyncio.sleep(0.2)  # nothing may happen in this time
    assert len(life.heard) == heard
    fake.reopen()
    assert (await life.end_of(token)).code == 3
    assert isinstance(life.heard[heard], Snapshot)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_new_supervisor_finds_what_runs_and_what_has_ended(
    new_life: New, fake: FakeDocker, ended: bool
) -> None:
    life = await new_life()
    token = life.launch()
    first = await life.reported(token, "running")
    if ended:
        end(fake, life, token, 4)
        await life.end_of(token)
    life = await new_life()
    if not ended:
        again = await life.reported(token, "running")
        assert (again.pid, again.start_ticks) == (first.pid, first.start_ticks)
        end(fake, life, token, 4)
    assert (await life.end_of(token)).code == 4
    assert len(fake.called(STARTED)) == 1
    await settled(life, token)
    assert token not in await life.snapshot()


async def test_what_ended_while_nobody_was_there_is_told(new_life: New, fake: FakeDocker) -> None:
    life = await new_life()
    token = life.launch()
    await life.reported(token, "running")
    await life.close()
    end(fake, life, token, 0)
    life = await new_life()
    assert (await life.end_of(token)).ok


async def test_one_that_was_made_and_not_started_is_started_by_the_next_life(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    fake.trouble(STARTED, "disconnect")
    token = life.launch()
    await life.until(lambda: fake.called(STARTED), "it was to be started")
    await life.close()
    fake.relent()
    life = await new_life()
    await life.reported(token, "running")
    assert (
        len(fake.containers) == 1 and len([e for e in fake.events if e["Action"] == "start"]) == 1
    )


async def test_a_token_of_which_no_container_was_made_is_launched_again(
    new_life: New, fake: FakeDocker
) -> None:
    """The command never ran, so the supervisor's end at that moment does not fail the run."""
    life = await new_life()
    fake.trouble(CREATED, "disconnect")
    token = life.launch()
    await life.until(lambda: fake.called(CREATED), "it was to be made")
    await life.close()
    fake.relent()
    life = await new_life()
    life.launch(token=token)
    await life.reported(token, "running")
    assert len(fake.containers) == 1


async def test_one_that_somebody_removed_is_lost_and_not_made_again(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    tokens = [life.launch() for _ in range(2)]
    for token in tokens:
        await life.reported(token, "running")
    fake.vanish(container_of(fake, tokens[0]).id)
    assert (await life.end_of(tokens[0])).source == "lost"
    await life.close()
    fake.vanish(container_of(fake, tokens[1]).id)
    life = await new_life()
    assert (await life.end_of(tokens[1])).source == "lost"
    assert len(fake.called(CREATED)) == 2


async def test_a_container_that_no_ledger_knows_is_removed_and_another_deployments_is_not(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life()
    token = life.launch()
    await life.reported(token, "running")
    labels = dict(container_of(fake, token).labels)
    await life.close()
    shutil.rmtree(life.ledger(token))
    with fake.lock:
        fake.made(
            "theirs", {"Image": "lab:1", "Labels": labels | {"jobscribe.deployment": "another1"}}
        )
    life = await new_life()
    assert token not in await life.snapshot()
    assert [c.name for c in fake.containers.values()] == ["theirs"]


# ---- after the end


async def test_a_failed_one_is_kept_as_long_as_the_pool_says_also_over_a_restart(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life(keep_failed_secs=1.5)
    good, bad = life.launch(), life.launch()
    for token, code in ((good, 0), (bad, 1)):
        await life.reported(token, "running")
        end(fake, life, token, code)
        await life.end_of(token)
    life.tasks.settle(KEY, (good, bad))
    await life.until(lambda: not life.ledger(good).exists(), "the good one is forgotten")
    assert [c.labels["jobscribe.token"] for c in fake.containers.values()] == [str(bad)]
    life = await new_life(keep_failed_secs=1.5)
    assert bad not in await life.snapshot(), "it is settled"
    await life.until(
        lambda: (life.tasks.on_sync("a"), not fake.containers)[1], "the bad one goes, too"
    )


async def test_one_that_is_kept_to_be_looked_at_goes_when_it_is_released_also_after_a_restart(
    new_life: New, fake: FakeDocker
) -> None:
    life = await new_life(keep_failed_secs=0.1)
    box = {"keep": True}
    at_once, held, forgotten = (life.launch(box=box) for _ in range(3))
    for token in (at_once, held, forgotten):
        await life.reported(token, "running")
        end(fake, life, token, 1)
        await life.end_of(token)
    life.tasks.release(KEY, at_once)  # it failed, and no hold applies
    life.tasks.settle(KEY, (at_once, held, forgotten))
    await life.until(
        lambda: life.tasks.on_sync("a") or not life.ledger(at_once).exists(), "it goes as others do"
    )
    assert len(fake.containers) == 2
    life.tasks.release(KEY, held)
    await life.until(
        lambda: life.tasks.on_sync("a") or not life.ledger(held).exists(), "it was released"
    )
    assert [c.labels["jobscribe.token"] for c in fake.containers.values()] == [str(forgotten)]
    life = await new_life(keep_failed_secs=0.1)
    await life.snapshot()
    life.tasks.on_sync("a")
    assert [c.labels["jobscribe.token"] for c in fake.containers.values()] == [str(forgotten)]
    life.tasks.release(KEY, forgotten)
    await life.until(
        lambda: life.tasks.on_sync("a") or not fake.containers, "it was released after the restart"
    )


async def test_an_entry_stays_until_its_container_is_gone(life: Life, fake: FakeDocker) -> None:
    token = life.launch()
    await life.reported(token, "running")
    end(fake, life, token)
    await life.end_of(token)
    said = "removal of container x is already in progress"
    fake.trouble("DELETE /containers", "fail", times=1, status=409, said=said)
    life.tasks.settle(KEY, (token,))
    await life.until(lambda: fake.called("DELETE /containers"), "the first removal is refused")
    await life.until(
        lambda: life.tasks.on_sync("a") or not life.ledger(token).exists(), "it is removed"
    )
    assert not fake.containers


async def test_its_words_memory_and_output_are_in_the_exit(life: Life, fake: FakeDocker) -> None:
    token = life.launch()
    await life.reported(token, "running")
    (life.evidence(token) / "stdout.log").write_bytes(b"x" * 300_000)
    (life.evidence(token) / "stderr.log").write_text("one\ntwo\n")
    (life.evidence(token) / "termination-message").write_text("I give up")
    end(fake, life, token, 3, oom=True)
    exit_ = await life.end_of(token)
    assert (exit_.code, exit_.last_lines, exit_.termination_message, exit_.out_of_memory) == (
        3,
        "one\ntwo",
        "I give up",
        True,
    )
    assert (exit_.stdout_bytes, exit_.stderr_bytes) == (
        300_000,
        8,
    ) and exit_.dropped_bytes > 100_000
    limit = fake.containers[life.tasks._places[KEY].tasks[token].container].config["HostConfig"][
        "Memory"
    ]
    assert isinstance(exit_.facts, ExitFacts) and limit > 0
    assert (exit_.facts.memory_limit_bytes, exit_.facts.memory_kills, exit_.facts.via_shell) == (
        limit,
        1,
        None,
    )


async def test_the_most_memory_that_was_seen_is_in_the_exit_and_whether_a_shell_made_its_code(
    life: Life, fake: FakeDocker
) -> None:
    token = life.launch()
    await life.reported(token, "running")
    task = life.tasks._places[KEY].tasks[token]
    engine = life.tasks._driver.engines["a"]
    for _ in range(2):
        await Sampling().sample(engine, [task])
    (life.evidence(token) / "stderr.log").write_text("run.sh: line 3: 17 Killed sim\n")
    end(fake, life, token, 137)
    exit_ = await life.end_of(token)
    assert isinstance(exit_.facts, ExitFacts) and (exit_.code, exit_.signal) == (137, None)
    assert (exit_.facts.memory_peak_bytes, exit_.facts.memory_kills, exit_.facts.via_shell) == (
        63 << 20,
        0,
        True,
    )
    assert exit_.facts.kernel_unread == "the kernel log of its host cannot be read from here"


async def test_a_snapshot_has_pages_and_a_probe_is_answered_with_nothing(life: Life) -> None:
    tokens = [token_of() for _ in range(105)]
    for token in tokens:
        life.tasks.stop(KEY, token, "cancel", 1.0)
    for token in tokens:
        await life.reported(token, "ended")
    assert set(await life.snapshot()) == set(tokens)
    assert [len(m.executions) for m in life.heard if isinstance(m, Snapshot)][-2:] == [100, 5]
    life.tasks.probe(KEY, "p" * 32, (1, 2))
    probed = await life.until(
        lambda: [m for m in life.heard if isinstance(m, PortsProbed)], "an answer"
    )
    assert probed == [PortsProbed(op_id="p" * 32, busy=())]


# ---- single functions


def test_what_is_put_into_a_users_folder_goes_through_nothing_that_lies_there(
    tmp_path: Path,
) -> None:
    secret, folder = tmp_path / "secret", tmp_path / "evidence"
    secret.write_text("mine")
    folder.mkdir()
    (folder / "exit.json").symlink_to(secret)
    os.mkfifo(folder / "stop")
    replace_file(str(folder), "exit.json", b"{}")
    replace_file(str(folder), "stop", b"")
    assert (
        secret.read_text() == "mine"
        and (folder / "exit.json").read_text() == "{}"
        and not (folder / "exit.json").is_symlink()
    )
    assert sorted(os.listdir(folder)) == ["exit.json", "stop"]
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError):
        replace_file(str(tmp_path / "link"), "x", b"")


def test_a_run_directory_is_never_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "user" / "run").symlink_to(tmp_path / "etc")
    with pytest.raises(OSError):
        make_folders_below(
            str(tmp_path / "user"),
            str(tmp_path / "user" / "run" / "x"),
            (os.geteuid(), os.getegid()),
        )
    assert not list((tmp_path / "etc").iterdir())


def test_an_entry_of_the_ledger_that_was_half_made_was_never_launched(tmp_path: Path) -> None:
    files = ContainerLedger(str(tmp_path / "place"))
    files.make()
    (tmp_path / "place" / "ledger" / "x").mkdir()
    assert files.entries() == [] and not (tmp_path / "place" / "ledger" / "x").exists()


def test_the_wrapper_runs_as_process_1_only(tmp_path: Path) -> None:
    """Started manually, the init script would signal unrelated processes. The test does not run it:
    it checks that the guard comes first.
    """
    lines = [
        line
        for line in init_script(str(tmp_path), "/r", limit_secs=3.0, grace_secs=1.0).splitlines()
        if not line.startswith("#")
    ]
    assert lines[0].startswith('[ "$$" -eq 1 ] || {') and lines[0].endswith("exit 125; }")
    assert not any("kill" in line for line in lines[:2])


def test_a_sample_is_in_the_words_of_the_wire() -> None:
    said = {
        "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}},
        "memory_stats": {"usage": 100, "stats": {"total_inactive_file": 30}},
        "pids_stats": {"current": 4},
        "blkio_stats": {
            "io_service_bytes_recursive": [
                {"op": "Read", "value": 5},
                {"op": "Write", "value": 7},
                {"op": "read", "value": 1},
            ]
        },
    }
    s = sample(token_of(), said, 12.34)
    assert (
        s.cpu_percent,
        s.cpu_secs,
        s.memory_bytes,
        s.processes,
        s.read_bytes,
        s.written_bytes,
    ) == (12.3, 2.5, 70, 4, 6, 7)
    empty = sample(
        token_of(),
        {
            "cpu_stats": {"cpu_usage": {}},
            "memory_stats": {},
            "blkio_stats": {"io_service_bytes_recursive": None},
        },
        None,
    )
    assert (empty.memory_bytes, empty.read_bytes, empty.processes, empty.cpu_percent) == (
        None,
        None,
        None,
        None,
    )
    assert (
        memory_peak(said),
        memory_peak({"memory_stats": {"usage": 100, "max_usage": 900}}),
        memory_peak({}),
    ) == (70, 900, None)


async def test_lines_about_a_task_carry_its_ids(life: Life, fake: FakeDocker) -> None:
    token = token_of()
    life.tasks.launch(KEY, token, life.spec(token, "true"))
    await life.until(lambda: any("runs in container" in line for line in life.lines), "it runs")
    end(fake, life, token)
    await life.until(lambda: any("has ended" in line for line in life.lines), "it has ended")
    found = [r for r in life.records if str(token) in r.message]
    assert len(found) >= 2
    for record in found:
        assert (agent_log_ids(KEY) | execution_log_ids(token)).items() <= record.ids.items()
