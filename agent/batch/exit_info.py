"""How an execution of a batch job ended: in the script's own hand, else by Slurm's word, else by
its accounting's; else nobody knows.

An end is only said when nothing of it is left: Slurm calls the job over, or knows nothing of it;
for a task of a gang, its step has ended. Blocks.
"""

import contextlib
import os
import pwd
import re
import time

import msgspec

from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import OF_THE_KERNEL, ExitFacts, ExitInfo, number_of_signal
from ...runtime.execution.folder import STDERR, STDOUT, add_messages, from_code, read, written_code
from ...runtime.execution.output_limit import OutputCap
from ..slurm.job_states import together
from ..slurm.script_markers import BATCH_SCRIPT, OVER, SETUP
from .observer import ended_at, take_fence
from .state import BatchJob, Task, state_of

NEVER_TO_START = "stopped before it started"
FORGOTTEN = "neither Slurm's controller nor its accounting knows the job any more, and its script did not write down how it ended"
NEVER_BEGAN = "Slurm says that it ended with exit code {}, but what it was to run never began on its node; its batch.log may say why"
NOT_BEGUN = "its batch script had not begun there: the node was gone before, or a login of its user takes longer there than Slurm waits"
IN_ITS_PLACE = "its set-up on the node took the place of the shell ('exec', or an end of its own), and the command was not run"
NOT_FROM_HERE = "the kernel log of its node cannot be seen from here"
_MEMORY = re.compile(rb"(?m)^#SBATCH --mem=([0-9]{1,12})M$")
#: As srun tells of a task that SIGKILL ended.
_KILLED = 137
STEP_ENDED = "its step ended, and its script did not write down how"


def exit_of(job: BatchJob, task: Task, cap: OutputCap) -> ExitInfo:
    """Everything that is known of its end. Raises OSError only where this process is short of
    something.
    """
    cap.apply(task, last=True)
    out = _told(job, task)
    words = add_messages(task.folder, out)
    words |= {
        "stdoutBytes": task.sizes.get(STDOUT),
        "stderrBytes": task.sizes.get(STDERR),
        "droppedBytes": cap.dropped_bytes(task),
    }
    words.setdefault("endedAt", time.time())
    if task.stop_reason is not None:
        words["stopReason"] = task.stop_reason
    exit_ = msgspec.convert(words, ExitInfo)
    if exit_.source == "script" and job.verdict is not None and job.verdict.kind == "over":
        exit_ = together(exit_, job.verdict, exited_first=task.exited_first)
    state = state_of(job, task)
    if (
        exit_.source == "script" and state.state == "FAILED"
    ):  # with which code it knows better than Slurm
        state = msgspec.structs.replace(state, sentence="Slurm says that it failed")
    exit_ = msgspec.structs.replace(exit_, batch=state)
    return msgspec.structs.replace(exit_, facts=_facts(exit_, job))


def _facts(exit_: ExitInfo, job: BatchJob) -> ExitFacts | msgspec.UnsetType:
    """As far as they cost no command: what accounting said of memory (of the largest task of its
    steps), and what each node may have.
    """
    if exit_.code == 0 or exit_.source == "start":
        return msgspec.UNSET
    known = exit_.facts if isinstance(exit_.facts, ExitFacts) else ExitFacts()
    limit = _MEMORY.search(read(f"{job.lead.folder}/{BATCH_SCRIPT}") or b"")
    asked = (
        exit_.stop_reason is None and number_of_signal(exit_.code, exit_.signal) in OF_THE_KERNEL
    )
    if (
        exit_.ended_by_scheduler == "CANCELLED"
        and (mine := _canceled_by_user(exit_.batch)) is not None
    ):
        known = msgspec.structs.replace(known, canceled_by_user=mine)
    return msgspec.structs.replace(
        known,
        memory_peak_bytes=exit_.max_rss_bytes,
        memory_limit_bytes=int(limit[1]) << 20 if limit else None,
        kernel_unread=NOT_FROM_HERE if asked else None,
    )


def _canceled_by_user(state: BatchState | msgspec.UnsetType) -> bool | None:
    """Was it the user of this agent who canceled it in Slurm? None: nobody says who, or Slurm did
    it for a dependency.
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


def never(
    detail: str,
    job: BatchJob | None = None,
    *,
    stop_reason: str | None = None,
    fault: str | None = None,
) -> ExitInfo:
    """The end of an execution that never began."""
    return ExitInfo(
        source="start",
        detail=detail,
        stop_reason=stop_reason,
        fault=fault,
        ended_at=time.time(),
        batch=msgspec.UNSET if job is None else job.state,
    )


def _told(job: BatchJob, task: Task) -> dict[str, object]:
    slurm = job.verdict.exit if job.verdict is not None else None
    began = task.started.at if task.started is not None and task.started.pid else None
    code = written_code(task.folder)
    if code is not None:
        return _in_its_own_hand(task, code, began)
    if task.fenced or (
        began is None
        and task.stop_reason is not None
        and (slurm is None or slurm.started_at is None)
    ):
        return {"source": "start", "detail": NEVER_TO_START}
    if slurm is not None and slurm.code == 0 and os.path.exists(f"{job.lead.folder}/{SETUP}"):
        return {"source": "start", "detail": IN_ITS_PLACE}
    never_began = task.started is None and _fenced(task)
    if slurm is None or (job.gang and slurm.stop_reason is None and slurm.code is not None):
        # what a gang's batch script ended with is no task's exit
        detail = FORGOTTEN if slurm is None and task.step_over_mono is None else STEP_ENDED
        return _lost_or_killed(task, detail, began)
    if never_began and slurm.code is not None:
        return {"source": "start", "detail": NEVER_BEGAN.format(slurm.code)}
    out: dict[str, object] = {
        k: v for k, v in msgspec.to_builtins(slurm).items() if k != "batch" and v is not None
    }
    if (
        never_began and state_of(job, task).state == "NODE_FAIL"
    ):  # with --export=NONE the node lets the user log in first
        out["detail"] = f"{slurm.detail}; {NOT_BEGUN}"
    return out if began is None else {**out, "startedAt": began}


def _fenced(task: Task) -> bool:
    """Once its end is told nothing of it starts. False where it has started, or that cannot be made
    sure of now.
    """
    with contextlib.suppress(OSError):
        return take_fence(task.folder)
    return False


def _in_its_own_hand(task: Task, code: int, began: float | None) -> dict[str, object]:
    return {
        "source": "script",
        "startedAt": began,
        "endedAt": ended_at(task.folder, began),
        **from_code(task.folder, code),
    }


def _lost_or_killed(task: Task, detail: str, began: float | None) -> dict[str, object]:
    words = (read(f"{task.folder}/{OVER}", 16) or b"").split()
    code = int(words[0]) if words and words[0].isdigit() else 0
    # its shells outlive every signal that can be caught, so a code of 137 without their word is
    # SIGKILL; other codes are codes
    if 128 < code <= 192 and code != _KILLED:
        return {"source": "scheduler", "startedAt": began, "code": code}
    if task.killed or code == _KILLED:
        return {"source": "scheduler", "startedAt": began, "signal": 9}
    return {"source": "lost", "startedAt": began, "detail": detail}
