"""Mapping of an exit to a run status: the truth table of `outcome`, for all sources, with and
without a stop by jobscribe.
"""

import pytest

from jobscribe.db.events.events import RunEnded
from jobscribe.db.events.job_fold import evolve
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.supervisor.core.runs.outcome import LEFTOVER, SHUTDOWN, outcome


def test_what_we_ended_ourselves_was_not_the_scheduler_s_doing():
    exit_ = by_slurm("CANCELLED", code=143, stop_reason="cancel", detail="by unix user me")
    assert exit_.ended_by_scheduler is None and exit_.sentence() == "exit code 143"
    assert by_slurm("CANCELLED", code=143, detail="by unix user me").sentence() == "by unix user me"


def by_slurm(state, **fields):
    return ExitInfo(
        source="scheduler", batch=BatchState(cluster="hpc", job_id="7", state=state), **fields
    )


@pytest.mark.parametrize("source", ["keeper", "script", "start", "lost"])
@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("timeLimit", "timeLimit"),
        ("cancel", "cancel"),
        ("queueLimit", "cancel"),
    ],
)
@pytest.mark.parametrize("fields", [{"code": 0}, {"code": 1}, {"signal": 15}, {}])
def test_our_own_intent_comes_first(source, stop, reason, fields):
    exit_ = ExitInfo(source=source, stop_reason=stop, **fields)
    assert outcome(exit_) == ("canceled", reason, None)


@pytest.mark.parametrize(
    "fields", [{"code": 0}, {"signal": 15}, {"source": "start"}, {"source": "lost"}]
)
def test_what_a_shutdown_ended_was_canceled_by_nobody_and_did_not_complete(fields):
    assert outcome(ExitInfo(stop_reason="shutdown", **fields)) == ("error", "shutdown", SHUTDOWN)


@pytest.mark.parametrize(
    "fields", [{"code": 0}, {"signal": 15}, {"source": "start"}, {"source": "lost"}]
)
def test_what_was_ended_for_being_unknown_was_canceled_by_nobody(fields):
    assert outcome(ExitInfo(stop_reason="lost", **fields)) == ("error", "lost", LEFTOVER)


@pytest.mark.parametrize(
    ("exit_", "expected"),
    [
        (ExitInfo(code=0), ("completed", "exit", None)),
        (ExitInfo(code=0, source="script"), ("completed", "exit", None)),
        (ExitInfo(code=1), ("error", "exit", "exit code 1")),
        (ExitInfo(code=255, source="script"), ("error", "exit", "exit code 255")),
        (ExitInfo(signal=11), ("error", "signal", "ended by signal 11 (SIGSEGV)")),
        (
            ExitInfo(code=0, source="start", detail="d"),
            ("error", "startFailed", "could not be started: d"),
        ),
        (ExitInfo(code=0, source="lost", detail="d"), ("error", "lost", "exit status unknown: d")),
        (ExitInfo(), ("error", "exit", "exit status unknown")),
        (
            ExitInfo(source="scheduler", detail="Slurm reports that it failed"),
            ("error", "exit", "Slurm reports that it failed"),
        ),
        # ended by the scheduler or by somebody there, whatever the exit code of the program
        (
            by_slurm("NODE_FAIL", detail="a node failed (n2)"),
            ("error", "scheduler", "a node failed (n2)"),
        ),
        (
            by_slurm("CANCELLED", code=143, detail="by unix user op"),
            ("error", "scheduler", "by unix user op"),
        ),
        (by_slurm("PREEMPTED"), ("error", "scheduler", "Slurm says PREEMPTED")),
        (
            by_slurm("OUT_OF_MEMORY", detail="memory ran out", out_of_memory=True),
            ("error", "scheduler", "memory ran out"),
        ),
        (by_slurm("NODE_FAIL", code=0, detail="d"), ("completed", "exit", None)),
        (by_slurm("FAILED", code=3), ("error", "exit", "exit code 3")),
        (
            by_slurm("CANCELLED", code=143, stop_reason="cancel", detail="d"),
            ("canceled", "cancel", None),
        ),
        (by_slurm("TIMEOUT", stop_reason="timeLimit"), ("canceled", "timeLimit", None)),
    ],
)
def test_without_intent_the_exit_speaks(exit_, expected):
    assert outcome(exit_) == expected


def test_the_first_end_of_a_run_stands(stage):
    """The fold ignores a second end, independently of the core."""
    stage.submit()
    stage.cancel()
    run = stage.job().run
    again = evolve(
        stage.job(),
        RunEnded(at=stage.wall + 5, serial=run.serial, status="completed", reason="exit"),
    )
    assert again.run == run
