"""Hostile days: the agent is killed at any moment, Slurm is away, late, forgetful, loses requests
and answers. No token starts twice, and each ends with what its script wrote down.
"""

import asyncio
import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from fake_slurm import PaperSlurm

from jobscribe.protocol.clusters.batch import BatchState

from .test_controller import Ground, ground

ROUNDS = 40 if os.environ.get("SOAK") else 2
RUNS = 12


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(300)
async def test_every_token_starts_at_most_once_and_its_end_is_told_right(
    ground: Ground, seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    slurm = ground.slurm
    batch = await ground.agent()
    tokens = [ground.token() for _ in range(RUNS)]
    stopped = set(dice.sample(tokens, 3))
    for n, token in enumerate(tokens):
        batch.launch(token, ground.spec(ground.stamping(f"sleep {dice.random():.2f}; exit {n}")))
        if token in stopped and dice.random() < 0.7:
            batch.stop(token, "cancel", 0.2)
        await _trouble(dice, slurm)
        if dice.random() < 0.4:
            await ground.kill(batch)
            batch = await ground.agent()
            for again in tokens[
                : n + 1
            ]:  # the supervisor asks again for whatever it has no word of
                if not ground.of(again):
                    batch.launch(again, ground.spec(ground.stamping("exit 99")))
    _well(slurm)
    for n, token in enumerate(tokens):
        end = await ground.ended(token)
        assert end.exit is not None
        if end.exit.source == "script" and end.exit.stop_reason is None:
            assert end.exit.code in (n, 99), (token, end)
        elif end.exit.source == "start":
            assert str(token) not in ground.starts(), end
        else:
            assert token in stopped or end.exit.source == "lost", end
    assert len(ground.starts()) == len(set(ground.starts())), "a token was started twice"
    for token in tokens:
        ends = {e.exit.code for e in ground.of(token) if e.exit is not None}
        assert len(ends) == 1, f"two ends of {token}: {ends}"


async def _trouble(dice: random.Random, slurm: PaperSlurm) -> None:
    slurm.down, slurm.accounting_down = dice.random() < 0.2, dice.random() < 0.2
    slurm.lost_answers, slurm.lost_requests = int(dice.random() < 0.3), int(dice.random() < 0.3)
    slurm.late = dice.choice((0.0, 0.0, 0.05, 0.3))
    slurm.hold, slurm.hidden = dice.random() < 0.2, dice.random() < 0.1
    await asyncio.sleep(dice.random() * 0.3)
    _seen(slurm)


def _well(slurm: PaperSlurm) -> None:
    slurm.down = slurm.accounting_down = slurm.hold = slurm.hidden = False
    slurm.lost_answers = slurm.lost_requests = 0
    slurm.late = 0.0
    _seen(slurm)


def _seen(slurm: PaperSlurm) -> None:
    """What waits begins, what was hidden shows up."""
    if not slurm.hold:
        for job in [j for j in slurm.jobs.values() if j.state == "PENDING"]:
            slurm.begin(job)
    if not slurm.hidden:
        for job in slurm.jobs.values():
            job.in_queue = job.in_accounting = True


async def test_an_id_that_slurm_gives_anew_is_another_jobs(ground: Ground) -> None:
    """A controller that came back without its newest books: the first job is lost, and nothing is
    said of it, or done to it, by its id.
    """
    batch = await ground.agent()
    first, second = ground.token(), ground.token()
    batch.launch(first, ground.spec(ground.stamping("sleep 60")))
    await ground.running(first)
    lost = await ground.job()
    ground.slurm.jobs.clear()
    ground.slurm.numbers = itertools.count(int(lost.job_id))
    assert lost.process is not None
    os.killpg(lost.process.pid, signal.SIGKILL)
    batch.launch(
        second,
        ground.spec(ground.stamping(f"until [ -e {ground.root}/go ]; do sleep 0.05; done; exit 4")),
    )
    running = await ground.running(second)
    assert isinstance(running.batch, BatchState) and running.batch.job_id == lost.job_id
    await ground.until(lambda: "does not know this job" in ground.of(first)[-1].batch.sentence)  # type: ignore[union-attr]
    batch.stop(first, "cancel", 0.0)
    one = await ground.ended(first)
    assert one.exit is not None and (one.exit.code, one.exit.stop_reason) == (None, "cancel")
    (ground.root / "go").touch()
    two = await ground.ended(second)
    assert two.exit is not None and (two.exit.code, two.exit.source, two.exit.stop_reason) == (
        4,
        "script",
        None,
    )
    assert ground.slurm.count("scancel") == 0


async def test_a_code_of_slurms_is_nobodys_where_nothing_began_and_nothing_begins_afterwards(
    ground: Ground,
) -> None:
    ground.slurm.hold = True
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec(ground.stamping()))
    job = await ground.job()
    ground.slurm.end(job, "FAILED", "5:0")
    end = await ground.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (None, "start")
    assert "exit code 5" in (end.exit.detail or "") and "never started" in (end.exit.detail or "")
    ground.slurm.begin(job)  # its node heard of the start later than the controller of its end
    await ground.until(lambda: job.process is not None and job.process.poll() is not None)
    assert ground.starts() == [] and job.process is not None and job.process.returncode == 97


async def test_a_node_that_failed_before_the_script_began_is_told_from_one_that_failed_under_it(
    ground: Ground,
) -> None:
    batch = await ground.agent()
    under, before = ground.token(), ground.token()
    batch.launch(under, ground.spec("sleep 60"))
    await ground.running(under)
    ground.slurm.end(await ground.job(), "NODE_FAIL", "0:0", "NodeDown")
    assert "had not started there" not in ((await ground.ended(under)).exit.detail or "")  # type: ignore[union-attr]
    ground.slurm.hold = True
    batch.launch(before, ground.spec(ground.stamping()))
    job = await ground.job(2)
    ground.slurm.end(job, "NODE_FAIL", "0:1", "None")
    end = await ground.ended(before)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (None, "scheduler")
    assert "a node that it ran on failed" in (
        end.exit.detail or ""
    ) and "its batch script had not started there" in (end.exit.detail or "")
    ground.slurm.begin(job)  # it comes back with what it was to do
    await ground.until(lambda: job.process is not None and job.process.poll() is not None)
    assert ground.starts() == []
