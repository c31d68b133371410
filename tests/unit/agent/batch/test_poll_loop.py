"""Changes to Slurm jobs by other users and by the job's own setup. The agent must not confuse them
with its own actions.
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
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Direct, Log

from .test_controller import SECS, Ground, batch_site

pytestmark = pytest.mark.process


@pytest.mark.parametrize("next_agent", [False, True], ids=["", "and the next agent"])
async def test_what_had_started_and_waits_again_is_taken_out_of_the_queue(
    batch_site: Ground, next_agent: bool
) -> None:
    """An operator or a failed node requeued the job. Its token is already used, so a second start
    would do nothing.
    """
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("sleep 60")))
    await batch_site.running(token)
    await batch_site.until(batch_site.starts)
    if next_agent:
        await batch_site.kill(batch)
        batch_site.said.clear()
    job = await batch_site.job()
    process, job.process = job.process, None
    job.state, job.reason, job.restarts = "PENDING", "BeginTime", 1
    assert process is not None
    os.killpg(process.pid, 9)
    process.wait()
    if next_agent:
        await batch_site.agent()
    end = await batch_site.ended(token)
    assert job.state == "CANCELLED" and end.exit is not None
    assert (
        "requeued in Slurm after it had started" in str(end.exit.detail)
        and end.exit.source == "scheduler"
    )
    assert end.batch.canceled_by == "" and "nothing is run a second time" in end.batch.sentence  # type: ignore[union-attr]
    assert batch_site.starts() == [str(token)]


async def test_the_next_agent_knows_why_it_was_taken_out(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping("sleep 60")))
    await batch_site.running(token)
    job, right, taken = await batch_site.job(), batch_site.slurm._scancel, asyncio.Event()

    async def unheard(argv: list[str]) -> CommandResult:
        await right(argv)
        taken.set()
        await asyncio.sleep(SECS)
        return CommandResult(0, "", "")

    with monkeypatch.context() as patched:
        patched.setattr(batch_site.slurm, "_scancel", unheard)
        process, job.process = job.process, None
        job.state, job.reason, job.restarts = "PENDING", "BeginTime", 1
        assert process is not None
        os.killpg(process.pid, 9)
        process.wait()
        await asyncio.wait_for(taken.wait(), SECS)
        await batch_site.kill(batch)
    batch_site.said.clear()
    await batch_site.agent()
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and "requeued in Slurm after it had started" in str(end.exit.detail)
        and end.batch.canceled_by == ""
    )  # type: ignore[union-attr]


async def test_what_is_in_the_queue_when_its_mark_is_seen_is_left_there(batch_site: Ground) -> None:
    """A squeue query from before the start may return PENDING after the start mark exists."""
    batch = await batch_site.agent()
    token = batch_site.token()
    batch_site.slurm.late = 0.3
    batch.launch(token, batch_site.spec(batch_site.stamping("sleep 1")))
    end = await batch_site.ended(token)
    assert end.exit is not None and end.exit.code == 0 and batch_site.slurm.count("scancel") == 0


@pytest.mark.parametrize("hold", [False, True], ids=["running", "waiting"])
async def test_what_this_system_cancels_is_nobody_elses_doing(
    batch_site: Ground, hold: bool
) -> None:
    batch_site.slurm.hold = hold
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("trap '' TERM; sleep 60 & sleep 60 & wait; sleep 60"))
    await (batch_site.job() if hold else batch_site.running(token))
    batch.stop(token, "cancel", 0.2)
    end = await batch_site.ended(token)
    assert (
        end.exit is not None and end.exit.stop_reason == "cancel" and end.batch.state == "CANCELLED"
    )  # type: ignore[union-attr]
    told = msgspec.json.encode(end).decode()
    assert (
        "not by jobscribe" not in told and "unix user" not in told and "canceledBy" not in told
    ), told
    assert "canceled by jobscribe" in end.batch.sentence or hold  # type: ignore[union-attr]


@pytest.mark.parametrize("by", [0, 1])
async def test_who_canceled_it_has_a_name_and_is_its_user_or_not(
    batch_site: Ground, by: int
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("sleep 60"))
    await batch_site.running(token)
    job = await batch_site.job()
    job.by = str(by)
    batch_site.slurm.end(job, "CANCELLED")
    end = await batch_site.ended(token)
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
    token = Token("user0001-sim00001-command", 1, 1, "main", 0)
    task = Task(token, str(tmp_path), "/r", None, 1.0, Log("agent", Redactor(), Direct()))
    told = exit_info._lost_or_killed(task, "nobody knows", None)
    assert {name: told.get(name) for name in ("code", "signal")} == {
        "code": None,
        "signal": None,
    } | {k: v for k, v in expected.items() if k != "source"}
    assert told["source"] == expected.get("source", "scheduler")


async def test_what_would_wait_for_ever_is_not_over_before_slurm_took_it_out(
    batch_site: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_site.slurm.hold = True
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec(batch_site.stamping()))
    job = await batch_site.job()
    right, tries = batch_site.slurm._scancel, list[Any]()

    async def away(argv: list[str]) -> CommandResult:
        tries.append([e.state for e in batch_site.of(token)])
        return CommandResult(1, "", DOWN) if len(tries) < 3 else await right(argv)

    monkeypatch.setattr(batch_site.slurm, "_scancel", away)
    job.reason = "PartitionTimeLimit"
    end = await batch_site.ended(token)
    assert job.state == "CANCELLED" and len(tries) == 3 and all("ended" not in t for t in tries)
    assert (
        end.exit is not None
        and (end.exit.source, end.exit.fault) == ("start", "neverPossible")
        and batch_site.starts() == []
    )


@pytest.mark.parametrize("setup", ["exec true", "trap - EXIT; exit 0"])
async def test_a_setup_that_takes_the_shells_place_is_no_success(
    batch_site: Ground, setup: str
) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        msgspec.structs.replace(
            batch_site.spec(batch_site.stamping()), batch=BatchRequest(setup=setup)
        ),
    )
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.source == "start"
        and "set-up" in str(end.exit.detail)
        and batch_site.starts() == []
    )


async def test_a_setup_that_is_through_leaves_no_mark(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(
        token,
        msgspec.structs.replace(
            batch_site.spec("echo $COLOUR"), batch=BatchRequest(setup="export COLOUR=green")
        ),
    )
    end = await batch_site.ended(token)
    assert (
        end.exit is not None
        and end.exit.code == 0
        and not batch_site.evidence(token, "setup").exists()
    )
    assert batch_site.evidence(token, "stdout.log").read_text() == "green\n"


async def test_a_failure_that_its_script_has_told_has_its_code(batch_site: Ground) -> None:
    batch = await batch_site.agent()
    token = batch_site.token()
    batch.launch(token, batch_site.spec("exit 7"))
    end = await batch_site.ended(token)
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
