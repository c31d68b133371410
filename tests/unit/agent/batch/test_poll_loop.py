"""What others do with a job in Slurm, and what its own set-up does with its shell: nothing is told
of somebody that this system did, or the other way round.
"""

import asyncio
import os
import pwd
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_slurm import DOWN

from jobscribe.agent.batch import exit_info
from jobscribe.agent.batch.command_runner import CommandResult
from jobscribe.agent.batch.state import Task
from jobscribe.agent.slurm.pending_reasons import impossible_reason
from jobscribe.agent.slurm.script_markers import OVER
from jobscribe.diagnosis.classification import classify_by_facts
from jobscribe.protocol.api.requests import Trace
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.ids import Token

from .test_controller import SECS, Ground, ground


@pytest.mark.parametrize("next_agent", [False, True], ids=["", "and the next agent"])
async def test_what_had_started_and_waits_again_is_taken_out_of_the_queue(
    ground: Ground, next_agent: bool
) -> None:
    """By an operator, or because its node failed: its token is used up, so that it would wait to do
    nothing.
    """
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec(ground.stamping("sleep 60")))
    await ground.running(token)
    await ground.until(ground.starts)
    if next_agent:
        await ground.kill(batch)
        ground.said.clear()
    job = await ground.job()
    process, job.process = job.process, None
    job.state, job.reason, job.restarts = "PENDING", "BeginTime", 1
    assert process is not None
    os.killpg(process.pid, 9)
    process.wait()
    if next_agent:
        await ground.agent()
    end = await ground.ended(token)
    assert job.state == "CANCELLED" and end.exit is not None
    assert (
        "requeued in Slurm after it had started" in str(end.exit.detail)
        and end.exit.source == "scheduler"
    )
    assert end.batch.canceled_by == "" and "nothing is run a second time" in end.batch.sentence  # type: ignore[union-attr]
    assert ground.starts() == [str(token)]


async def test_the_next_agent_knows_why_it_was_taken_out(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec(ground.stamping("sleep 60")))
    await ground.running(token)
    job, right, taken = await ground.job(), ground.slurm._scancel, asyncio.Event()

    async def unheard(argv: list[str]) -> CommandResult:
        await right(argv)
        taken.set()
        await asyncio.sleep(SECS)
        return CommandResult(0, "", "")

    with monkeypatch.context() as patched:
        patched.setattr(ground.slurm, "_scancel", unheard)
        process, job.process = job.process, None
        job.state, job.reason, job.restarts = "PENDING", "BeginTime", 1
        assert process is not None
        os.killpg(process.pid, 9)
        process.wait()
        await asyncio.wait_for(taken.wait(), SECS)
        await ground.kill(batch)
    ground.said.clear()
    await ground.agent()
    end = await ground.ended(token)
    assert (
        end.exit is not None
        and "requeued in Slurm after it had started" in str(end.exit.detail)
        and end.batch.canceled_by == ""
    )  # type: ignore[union-attr]


async def test_what_is_in_the_queue_when_its_mark_is_seen_is_left_there(ground: Ground) -> None:
    """A squeue that was asked before the start says PENDING of what has a mark by now."""
    batch = await ground.agent()
    token = ground.token()
    ground.slurm.late = 0.3
    batch.launch(token, ground.spec(ground.stamping("sleep 1")))
    end = await ground.ended(token)
    assert end.exit is not None and end.exit.code == 0 and ground.slurm.count("scancel") == 0


@pytest.mark.parametrize("hold", [False, True], ids=["running", "waiting"])
async def test_what_this_system_cancels_is_nobody_elses_doing(ground: Ground, hold: bool) -> None:
    ground.slurm.hold = hold
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec("trap '' TERM; sleep 60 & sleep 60 & wait; sleep 60"))
    await (ground.job() if hold else ground.running(token))
    batch.stop(token, "cancel", 0.2)
    end = await ground.ended(token)
    assert (
        end.exit is not None and end.exit.stop_reason == "cancel" and end.batch.state == "CANCELLED"
    )  # type: ignore[union-attr]
    told = msgspec.json.encode(end).decode()
    assert (
        "not by jobscribe" not in told and "unix user" not in told and "canceledBy" not in told
    ), told
    assert "canceled by jobscribe" in end.batch.sentence or hold  # type: ignore[union-attr]


@pytest.mark.parametrize("by", [0, 1])
async def test_who_canceled_it_has_a_name_and_is_its_user_or_not(ground: Ground, by: int) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec("sleep 60"))
    await ground.running(token)
    job = await ground.job()
    job.by = str(by)
    ground.slurm.end(job, "CANCELLED")
    end = await ground.ended(token)
    name = pwd.getpwuid(by).pw_name
    assert end.exit is not None and f"by unix user {name} (not by jobscribe)" in str(
        end.exit.detail
    )
    assert end.batch.canceled_by == name  # type: ignore[union-attr]
    mine = by == os.getuid()
    assert end.exit.facts.canceled_by_user is mine  # type: ignore[union-attr]
    assert classify_by_facts(end.exit).cause == (
        "slurmCanceledByUser" if mine else "slurmCanceledByOther"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [(137, {"signal": 9}), (130, {"code": 130}), (141, {"code": 141}), (3, {"source": "lost"})],
)
def test_what_srun_says_of_a_step_is_a_code_unless_only_a_signal_can_have_been_it(
    tmp_path: Path, code: int, expected: dict[str, Any]
) -> None:
    (tmp_path / OVER).write_text(f"{code}\n")
    task = Task(Token("user0001-sim00001-command", 1, 1, "main", 0), str(tmp_path), "/r", None, 1.0)
    told = exit_info._lost_or_killed(task, "nobody knows", None)
    assert {name: told.get(name) for name in ("code", "signal")} == {
        "code": None,
        "signal": None,
    } | {k: v for k, v in expected.items() if k != "source"}
    assert told["source"] == expected.get("source", "scheduler")


async def test_what_would_wait_for_ever_is_not_over_before_slurm_took_it_out(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.slurm.hold = True
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec(ground.stamping()))
    job = await ground.job()
    right, tries = ground.slurm._scancel, list[Any]()

    async def away(argv: list[str]) -> CommandResult:
        tries.append([e.state for e in ground.of(token)])
        return CommandResult(1, "", DOWN) if len(tries) < 3 else await right(argv)

    monkeypatch.setattr(ground.slurm, "_scancel", away)
    job.reason = "PartitionTimeLimit"
    end = await ground.ended(token)
    assert job.state == "CANCELLED" and len(tries) == 3 and all("ended" not in t for t in tries)
    assert (
        end.exit is not None
        and (end.exit.source, end.exit.fault) == ("start", "neverPossible")
        and ground.starts() == []
    )


@pytest.mark.parametrize("setup", ["exec true", "trap - EXIT; exit 0"])
async def test_a_setup_that_takes_the_shells_place_is_no_success(
    ground: Ground, setup: str
) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(
        token,
        msgspec.structs.replace(ground.spec(ground.stamping()), batch=BatchRequest(setup=setup)),
    )
    end = await ground.ended(token)
    assert (
        end.exit is not None
        and end.exit.source == "start"
        and "set-up" in str(end.exit.detail)
        and ground.starts() == []
    )


async def test_a_setup_that_is_through_leaves_no_mark(ground: Ground) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(
        token,
        msgspec.structs.replace(
            ground.spec("echo $COLOUR"), batch=BatchRequest(setup="export COLOUR=green")
        ),
    )
    end = await ground.ended(token)
    assert (
        end.exit is not None and end.exit.code == 0 and not ground.evidence(token, "setup").exists()
    )
    assert ground.evidence(token, "stdout.log").read_text() == "green\n"


async def test_a_failure_that_its_script_has_told_has_its_code(ground: Ground) -> None:
    batch = await ground.agent()
    token = ground.token()
    batch.launch(token, ground.spec("exit 7"))
    end = await ground.ended(token)
    assert (
        end.exit is not None
        and end.exit.code == 7
        and "not with which" not in msgspec.json.encode(end).decode()
    )


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (
            "Job's account not permitted to use this partition (barred allows chem not research)",
            "account",
        ),
        (
            "Job's account not permitted to use this partition (barred denies a,b including a)",
            "account",
        ),
        ("Job's QOS not permitted to use this partition (barred allows high not normal)", "QOS"),
    ],
)
def test_what_the_partition_never_takes(reason: str, word: str) -> None:
    assert word in str(impossible_reason(reason))


@pytest.mark.parametrize(
    ("id_", "taken"),
    [("7", True), ("123", True), ("1234", True), ("abc", False), ("", False), ("12_", False)],
)
def test_the_first_jobs_of_a_cluster_have_short_numbers(id_: str, taken: bool) -> None:
    try:
        assert msgspec.convert({"id": id_}, Trace).id == id_ and taken
    except msgspec.ValidationError:
        assert not taken
