"""Exit info of an execution in a batch job, by priority: written by the script, reported by Slurm,
reported by accounting, unknown.

The exit is final only when no process of the execution is left: Slurm reports the job as over or
does not know it, or the step of a gang's task has ended. Blocks.
"""

import contextlib
import os
import pwd
import re
import time

import msgspec

from ...protocol.clusters.batch import BatchState, SlurmState
from ...protocol.execution import table
from ...protocol.jobs.exit_info import KERNEL_SIGNALS, ExitFacts, ExitInfo, signal_number
from ...protocol.jobs.notices import Notice
from ...runtime.cores import marker
from ...runtime.execution.folder import (
    STDERR,
    STDOUT,
    add_messages,
    from_code,
    read,
    written_code,
)
from ...runtime.execution.output_limit import OutputCap
from ..slurm.job_states import StatusKind, ended_before, merge_exit
from ..slurm.output_parser import Used
from ..slurm.script_markers import BATCH_SCRIPT, OVER, SETUP
from .observer import ended_at, take_fence
from .state import BatchJob, Task, state_of

FORGOTTEN = (
    "Slurm's controller and accounting no longer know the job, and its script recorded no exit code"
)
NOT_STARTED = (
    "Slurm reports exit code {}, but the command never started on its node; see its batch.log"
)
SCRIPT_NOT_STARTED = (
    "its batch script had not started there: the node failed earlier, "
    "or the user's login takes longer there than Slurm waits"
)
SHELL_REPLACED = (
    "its set-up on the node replaced or ended the shell ('exec' or 'exit'), "
    "and the command was not run"
)
KERNEL_LOG_UNREADABLE = "the agent cannot read the kernel log of the node"
_MEMORY = re.compile(rb"(?m)^#SBATCH --mem=([0-9]{1,12})M$")
#: srun's exit code for a task that SIGKILL ended.
_KILLED = 137
STEP_ENDED = "its step ended, and its script recorded no exit code"


def build_exit_info(job: BatchJob, task: Task, cap: OutputCap) -> ExitInfo:
    """Return the complete exit info. Raises OSError only if this process lacks resources."""
    cap.apply(task, last=True)
    out = _exit_fields(job, task)
    fields = add_messages(task.folder, out)
    fields |= {
        "stdoutBytes": task.sizes.get(STDOUT),
        "stderrBytes": task.sizes.get(STDERR),
        "droppedBytes": cap.dropped_bytes(task),
    }
    fields.setdefault("endedAt", time.time())
    # a stop is the cause if it sent a signal, or if nothing ran or no exit is known
    ran = out["source"] not in ("start", "lost")
    stop_reason = task.life.stop_reason if ran else task.life.requested_reason
    if ran and stop_reason is not None and ended_before(job.slurm_status, task.stop_at):
        stop_reason = None  # it was sent when Slurm did not answer, and told of the end later
    if stop_reason is not None:
        fields["stopReason"] = stop_reason
    exit_ = msgspec.convert(fields, ExitInfo)
    if (
        exit_.source == "script"
        and job.slurm_status is not None
        and job.slurm_status.kind == StatusKind.OVER
    ):
        exit_ = merge_exit(exit_, job.slurm_status, exited_first=task.exited_first)
    exit_ = _with_usage(exit_, job, task)
    state = state_of(job, task)
    if (
        exit_.source == "script" and state.state == SlurmState.FAILED
    ):  # the exit code is the script's
        state = msgspec.structs.replace(state, sentence="Slurm reports that it failed")
    exit_ = msgspec.structs.replace(exit_, batch=state)
    exit_ = msgspec.structs.replace(exit_, facts=_facts(exit_, job))
    if (notice := _hold_notice(task, state)) is not None:
        told = exit_.notices if isinstance(exit_.notices, tuple) else ()
        exit_ = msgspec.structs.replace(exit_, notices=(*told, notice))
    with contextlib.suppress(OSError):
        core = marker.report_of(task.folder, task.run_dir, exit_, frames=True)
        exit_ = msgspec.structs.replace(exit_, core=core)
    return exit_


def _with_usage(exit_: ExitInfo, job: BatchJob, task: Task) -> ExitInfo:
    """Add processor time and memory from accounting: of the step of a gang's task, else of the whole
    job.
    """
    if job.usage is None or exit_.source == "start":
        return exit_
    step = task.started.step if task.started is not None else ""
    used = job.usage.steps.get(step, Used()) if job.gang else job.usage.total
    peak = exit_.max_rss_bytes if used.peak_bytes is None else used.peak_bytes
    return msgspec.structs.replace(
        exit_, user_secs=used.user_secs, system_secs=used.system_secs, max_rss_bytes=peak
    )


def _hold_notice(task: Task, state: BatchState) -> Notice | None:
    """Return why the allocation that was held for debugging ended before its deadline."""
    if task.held_until is None or task.released or time.time() >= task.held_until - 1.0:
        return None
    why = state.sentence
    if state.state in (SlurmState.FAILED, SlurmState.COMPLETED):
        why = "its batch script got SIGTERM"
    return Notice("holdEnded", f"its allocation, held for debugging, ended early: {why}"[:300])


def _facts(exit_: ExitInfo, job: BatchJob) -> ExitFacts | msgspec.UnsetType:
    """Return exit facts that need no command: peak memory from accounting (of the largest task of
    its steps), and the memory limit per node.
    """
    if exit_.code == 0 or exit_.source == "start":
        return msgspec.UNSET
    facts = exit_.facts if isinstance(exit_.facts, ExitFacts) else ExitFacts()
    limit = _MEMORY.search(read(f"{job.first_task.folder}/{BATCH_SCRIPT}") or b"")
    kernel_log_relevant = (
        exit_.stop_reason is None and signal_number(exit_.code, exit_.signal) in KERNEL_SIGNALS
    )
    if (
        exit_.ended_by_scheduler == "CANCELLED"
        and (by_user := _canceled_by_user(exit_.batch)) is not None
    ):
        facts = msgspec.structs.replace(facts, canceled_by_user=by_user)
    return msgspec.structs.replace(
        facts,
        memory_peak_bytes=exit_.max_rss_bytes,
        memory_limit_bytes=int(limit[1]) << 20 if limit else None,
        kernel_unread=KERNEL_LOG_UNREADABLE if kernel_log_relevant else None,
    )


def _canceled_by_user(state: BatchState | msgspec.UnsetType) -> bool | None:
    """Return whether the agent's own user canceled the job in Slurm. None: unknown, or Slurm
    canceled it because of a dependency.
    """
    if (
        not isinstance(state, BatchState)
        or not state.canceled_by
        or "DependencyNeverSatisfied" in state.reason
    ):
        return None
    names = {str(os.getuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.getuid()).pw_name)
    return state.canceled_by in names


def never_started(
    detail: str, stop_reason: str | None = None, fault: str | None = None
) -> ExitInfo:
    """Return the exit info of an execution that never started."""
    return msgspec.convert(table.never_started(detail, time.time(), stop_reason, fault), ExitInfo)


def _exit_fields(job: BatchJob, task: Task) -> dict[str, object]:
    slurm = job.slurm_status.exit if job.slurm_status is not None else None
    began = task.started.at if task.started is not None and task.started.pid else None
    code = written_code(task.folder)
    if code is not None:
        return _from_script(task, code, began)
    if task.life.barred or (
        began is None and task.life.stopping and (slurm is None or slurm.started_at is None)
    ):
        return {"source": "start", "detail": table.STOPPED_BEFORE}
    if slurm is not None and slurm.code == 0 and os.path.exists(f"{job.first_task.folder}/{SETUP}"):
        return {"source": "start", "detail": SHELL_REPLACED}
    not_started = task.started is None and _fenced(task)
    if slurm is None or (job.gang and slurm.stop_reason is None and slurm.code is not None):
        # the exit of a gang's batch script is not the exit of a task
        detail = FORGOTTEN if slurm is None and task.step_over_mono is None else STEP_ENDED
        return _lost_or_killed(task, detail, began)
    if not_started and slurm.code is not None:
        return {"source": "start", "detail": NOT_STARTED.format(slurm.code)}
    out: dict[str, object] = {
        k: v for k, v in msgspec.to_builtins(slurm).items() if k != "batch" and v is not None
    }
    # with --export=NONE, the node runs a login of the user first
    if not_started and state_of(job, task).state == SlurmState.NODE_FAIL:
        out["detail"] = f"{slurm.detail}; {SCRIPT_NOT_STARTED}"
    return out if began is None else {**out, "startedAt": began}


def _fenced(task: Task) -> bool:
    """Take the fence, so that the task cannot start after its exit is reported. False if it has
    started, or on an I/O error.
    """
    with contextlib.suppress(OSError):
        return take_fence(task.folder)
    return False


def _from_script(task: Task, code: int, began: float | None) -> dict[str, object]:
    return {
        "source": "script",
        "startedAt": began,
        "endedAt": ended_at(task.folder, began),
        **from_code(task.folder, code),
    }


def _lost_or_killed(task: Task, detail: str, began: float | None) -> dict[str, object]:
    fields = (read(f"{task.folder}/{OVER}", 16) or b"").split()
    code = int(fields[0]) if fields and fields[0].isdigit() else 0
    # its shells survive every catchable signal, so code 137 without an exit file means SIGKILL;
    # other codes are exit codes
    if 128 < code <= 192 and code != _KILLED:
        return {"source": "scheduler", "startedAt": began, "code": code}
    if task.life.kills or code == _KILLED:
        return {"source": "scheduler", "startedAt": began, "signal": 9}
    return {"source": "lost", "startedAt": began, "detail": detail}
