"""Batch executions under faults: the agent is killed at any moment; Slurm is down, slow, or loses
requests, answers and jobs. No token starts twice, and each ends with the result of its script.
"""

import asyncio
import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from jobscribe.protocol.clusters.batch import BatchState

from .test_controller import Ground, batch_site

pytestmark = pytest.mark.process

ROUNDS = 40 if os.environ.get("SOAK") else 2
RUNS = 12


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(300)
async def test_every_token_starts_at_most_once_and_its_end_is_told_right(
    batch_site: Ground, seed: int, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    slurm = batch_site.slurm
    batch = await batch_site.agent()
    tokens = [batch_site.token() for _ in range(RUNS)]
    stopped = set(dice.sample(tokens, 3))
    for n, token in enumerate(tokens):
        batch.launch(
            token, batch_site.spec(batch_site.stamping(f"sleep {dice.random():.2f}; exit {n}"))
        )
        if token in stopped and dice.random() < 0.7:
            batch.stop(token, "cancel", 0.2)
        await _trouble(dice, slurm)
        if dice.random() < 0.4:
            await batch_site.kill(batch)
            batch = await batch_site.agent()
            for again in tokens[: n + 1]:  # the supervisor repeats every unconfirmed task
                if not batch_site.of(again):
                    batch.launch(again, batch_site.spec(batch_site.stamping("exit 99")))
    _well(slurm)
    for n, token in enumerate(tokens):
        end = await batch_site.ended(token)
        assert end.exit is not None
        if end.exit.source == "script" and end.exit.stop_reason is None:
            assert end.exit.code in (n, 99), (token, end)
        elif end.exit.source == "start":
            assert str(token) not in batch_site.starts(), end
        else:
            assert token in stopped or end.exit.source == "lost", end
    assert len(batch_site.starts()) == len(set(batch_site.starts())), "a token was started twice"
    for token in tokens:
        ends = {e.exit.code for e in batch_site.of(token) if e.exit is not None}
        assert len(ends) == 1, f"two ends of {token}: {ends}"


async def _trouble(dice: random.Random, slurm: FakeSlurm) -> None:
    slurm.down, slurm.accounting_down = dice.random() < 0.2, dice.random() < 0.2
    slurm.lost_answers, slurm.lost_requests = int(dice.random() < 0.3), int(dice.random() < 0.3)
    slurm.late = dice.choice((0.0, 0.0, 0.05, 0.3))
    slurm.hold, slurm.hidden = dice.random() < 0.2, dice.random() < 0.1
    await asyncio.sleep(dice.random() * 0.3)
    _seen(slurm)


def _well(slurm: FakeSlurm) -> None:
    slurm.down = slurm.accounting_down = slurm.hold = slurm.hidden = False
    slurm.lost_answers = slurm.lost_requests = 0
    slurm.late = 0.0
    _seen(slurm)


def _seen(slurm: FakeSlurm) -> None:
    """Start pending jobs and show hidden ones."""
    if not slurm.hold:
        for job in [j for j in slurm.jobs.values() if j.state == "PENDING"]:
            slurm.begin(job)
    if not slurm.hidden:
        for job in slurm.jobs.values():
            job.in_queue = job.in_accounting = True


async def test_an_id_that_slurm_gives_anew_is_another_jobs(batch_site: Ground) -> None:
    """Slurm's controller restarts without its latest state and reuses a job id. The first job is
    lost; the second job's status is not reported for it, and the second job is not canceled in its
    place.
    """
    batch = await batch_site.agent()
    first, second = batch_site.token(), batch_site.token()
    batch.launch(first, batch_site.spec(batch_site.stamping("sleep 60")))
    await batch_site.running(first)
    lost = await batch_site.job()
    batch_site.slurm.jobs.clear()
    batch_site.slurm.numbers = itertools.count(int(lost.job_id))
    assert lost.process is not None
    os.killpg(lost.process.pid, signal.SIGKILL)
    batch.launch(
        second,
        batch_site.spec(
            batch_site.stamping(f"until [ -e {batch_site.root}/go ]; do sleep 0.05; done; exit 4")
        ),
    )
    running = await batch_site.running(second)
    assert isinstance(running.batch, BatchState) and running.batch.job_id == lost.job_id
    await batch_site.until(
        lambda: "does not know this job" in batch_site.of(first)[-1].batch.sentence
    )  # type: ignore[union-attr]
    batch.stop(first, "cancel", 0.0)
    one = await batch_site.ended(first)
    assert one.exit is not None and (one.exit.code, one.exit.stop_reason) == (None, "cancel")
    (batch_site.root / "go").touch()
    two = await batch_site.ended(second)
    assert two.exit is not None and (two.exit.code, two.exit.source, two.exit.stop_reason) == (
        4,
        "script",
        None,
    )
    assert batch_site.slurm.count("scancel") == 0


async def test_a_code_of_slurms_is_nobodys_where_nothing_began_and_nothing_begins_afterwards(
    batch_site: Ground,
) -> None:
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    job = await batch_site.job()
    batch_site.slurm.end(job, "FAILED", "5:0")
    end = await batch_site.ended(token)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (None, "start")
    assert "exit code 5" in (end.exit.detail or "") and "never started" in (end.exit.detail or "")
    batch_site.slurm.begin(job)  # the node starts the job after the controller has ended it
    await batch_site.until(lambda: job.process is not None and job.process.poll() is not None)
    assert batch_site.starts() == [] and job.process is not None and job.process.returncode == 97


async def test_a_node_that_failed_before_the_script_began_is_told_from_one_that_failed_under_it(
    batch_site: Ground,
) -> None:
    batch = await batch_site.agent()
    under, before = batch_site.token(), batch_site.token()
    batch.launch(under, batch_site.spec("sleep 60"))
    await batch_site.running(under)
    batch_site.slurm.end(await batch_site.job(), "NODE_FAIL", "0:0", "NodeDown")
    assert "had not started there" not in ((await batch_site.ended(under)).exit.detail or "")  # type: ignore[union-attr]
    batch_site.slurm.hold = True
    batch.launch(before, batch_site.spec(batch_site.stamping()))
    job = await batch_site.job(2)
    batch_site.slurm.end(job, "NODE_FAIL", "0:1", "None")
    end = await batch_site.ended(before)
    assert end.exit is not None and (end.exit.code, end.exit.source) == (None, "scheduler")
    assert "a node that it ran on failed" in (
        end.exit.detail or ""
    ) and "its batch script had not started there" in (end.exit.detail or "")
    batch_site.slurm.begin(job)  # the requeued job starts again with the same script
    await batch_site.until(lambda: job.process is not None and job.process.poll() is not None)
    assert batch_site.starts() == []
