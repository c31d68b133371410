"""Interpretation of one job's rows in squeue and accounting: waiting, running or over, its exit
info, and a sentence for the user.

An unknown state word is passed on unchanged and never counts as an end. The end is known when Slurm
reports a known state or forgets the job.
"""

import enum
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from ...protocol.clusters.batch import BatchState, SlurmState
from ...protocol.ids import printable
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo
from .output_parser import Account, Row
from .pending_reasons import describe_wait, impossible_reason
from .script_markers import FENCED


class StatusKind(enum.StrEnum):
    """Step of a job in Slurm. impossible: it waits and can never start. absent: Slurm does not know
    it.
    """

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"
    IMPOSSIBLE = "impossible"
    ABSENT = "absent"


_WAITS = {
    "PENDING": "",
    "REQUEUED": "Slurm requeues it",
    "REQUEUE_FED": "Slurm moves it to another cluster",
    "REQUEUE_HOLD": "it was requeued and is held",
    "SPECIAL_EXIT": "it was requeued and is held",
    "RESV_DEL_HOLD": "its reservation was deleted, and it is held",
}
_RUNS = {
    "RUNNING": "it runs",
    "CONFIGURING": "its nodes are being prepared",
    "COMPLETING": "it is ending",
    "SUSPENDED": "it is suspended",
    "STOPPED": "it is stopped, and keeps its nodes",
    "SIGNALING": "it gets a signal",
    "RESIZING": "its nodes are changing",
    "STAGE_OUT": "its burst buffer is being read out",
    "POWER_UP_NODE": "its nodes are being switched on",
    "UPDATE_DB": "Slurm updates its accounting",
    "EXPEDITING": "Slurm checks whether to start it again",
}
_OVER = {
    "COMPLETED": "it ended by itself",
    "FAILED": "it failed",
    "CANCELLED": "it was canceled",
    "TIMEOUT": "Slurm ended it at its time limit",
    "OUT_OF_MEMORY": "it exceeded its memory limit, and one of its processes was killed",
    "NODE_FAIL": "a node that it ran on failed",
    "PREEMPTED": "Slurm preempted it for a job with higher priority",
    "BOOT_FAIL": "its nodes could not be booted",
    "DEADLINE": "it could not end before its deadline, and Slurm removed it",
    "REVOKED": "Slurm moved it to another cluster or revoked it",
    "LAUNCH_FAILED": "Slurm could not start it on its node",
    "RECONFIG_FAIL": "its nodes could not be set up as it needs them",
}


class SlurmStatus(NamedTuple):
    """Status of a job according to Slurm. exit: set for `over` and `impossible`. stale: slurmctld
    has forgotten the job, and accounting has no end for it.
    """

    kind: StatusKind
    state: BatchState
    exit: ExitInfo | None = None
    stale: bool = False


def job_status(
    cluster: str, row: Row | None, account: Account | None, *, now: float
) -> SlurmStatus:
    """Combine the rows of squeue and accounting for one job.

    slurmctld's row has priority, because accounting lags behind. Accounting adds the fields that
    only it has. `absent`: neither has a row; the caller knows whether both could be queried.
    `impossible`: the caller cancels the job and ends it with the sentence.
    """
    if row is None and account is None:
        return SlurmStatus(
            StatusKind.ABSENT, BatchState(cluster=cluster, sentence="Slurm does not know this job")
        )
    state_word = row.state if row is not None else account.state if account is not None else ""
    kind = _kind(state_word, row, account)
    same = account if row is None or _is_same_start(row, account) else None
    state = replace(_state(cluster, state_word, row, same), restarts=_restarts(row, account, same))
    if state.starts_at is not None and state.starts_at <= now:
        # for a job without reserved resources, slurmctld reports the time of its last check
        state = replace(state, starts_at=None)
    match kind:
        case StatusKind.OVER:
            exit_ = _exit(state_word, state, row, same, now)
            return SlurmStatus(
                StatusKind.OVER,
                replace(state, sentence=_limited(_ended(state_word, state, exit_))),
                exit_,
            )
        case StatusKind.WAITING:
            why = impossible_reason(state.reason) if state_word == SlurmState.PENDING else None
            if why is not None:
                state = replace(
                    state,
                    sentence=_limited(f"it can never start: {why} (Slurm: {state.reason})"),
                )
                return SlurmStatus(
                    StatusKind.IMPOSSIBLE,
                    state,
                    ExitInfo(
                        source="start", fault="neverPossible", detail=state.sentence, batch=state
                    ),
                )
            return SlurmStatus(
                StatusKind.WAITING,
                replace(state, sentence=_limited(_waiting(state_word, state))),
                stale=row is None,
            )
        case StatusKind.RUNNING:
            return SlurmStatus(
                StatusKind.RUNNING,
                replace(state, sentence=_limited(_running(state_word, state, stale=row is None))),
                stale=row is None,
            )
        case StatusKind.ABSENT | StatusKind.IMPOSSIBLE:
            raise AssertionError(kind)
        case _:
            assert_never(kind)


def _kind(state_word: str, row: Row | None, account: Account | None) -> StatusKind:
    if state_word in _OVER:
        return StatusKind.OVER
    if state_word in _WAITS:
        return StatusKind.WAITING
    started = (
        row.started_at if row is not None else account.started_at if account is not None else None
    )
    runs = state_word in _RUNS or started is not None
    return StatusKind.RUNNING if runs else StatusKind.WAITING


def _is_same_start(row: Row, account: Account | None) -> bool:
    """Return whether both rows describe the same start. Accounting may have an older start of a
    requeued job.
    """
    if account is None or account.state.startswith("REQUEUE"):
        return False
    return (row.state in _OVER) == (account.state in _OVER) and not _is_earlier_start(account, row)


def _is_earlier_start(account: Account, row: Row) -> bool:
    """Return whether accounting describes a start that ended before this one was queued."""
    if row.submitted_at is None or account.submitted_at is None or account.ended_at is None:
        return False
    return account.submitted_at < row.submitted_at and account.ended_at <= row.submitted_at


def _restarts(row: Row | None, account: Account | None, same: Account | None) -> int:
    """Return the number of restarts. Accounting has one record per past start, and later one for
    the current start.
    """
    behind = (
        row is not None and account is not None and same is None and _is_earlier_start(account, row)
    )
    return max(
        row.restarts if row is not None else 0,
        account.restarts + behind if account is not None else 0,
    )


def _state(cluster: str, state_word: str, row: Row | None, account: Account | None) -> BatchState:
    first, second = row or account, account or row
    assert first is not None and second is not None
    job_id = first.job_id if "[" not in first.job_id else None
    nodes, partition, charged = (
        (a or b)[:2048]
        for a, b in (
            (first.nodes, second.nodes),
            (first.partition, second.partition),
            (first.account, second.account),
        )
    )
    return BatchState(
        cluster=cluster,
        job_id=job_id,
        state=printable(state_word)[:256],
        reason=printable(first.reason or second.reason)[:256],
        partition=printable(partition)[:256],
        account=printable(charged)[:256],
        nodes=printable(nodes),
        submitted_at=first.submitted_at or second.submitted_at,
        starts_at=row.starts_at if row is not None else None,
        canceled_by=printable(account.canceled_by)[:256] if account is not None else "",
    )


# ---- sentences


def _waiting(state_word: str, state: BatchState) -> str:
    if state_word == SlurmState.PENDING:
        sentence = describe_wait(state.reason)
        return f"{sentence} (Slurm: {state.reason})" if state.reason else sentence
    return _WAITS.get(state_word) or f"Slurm reports the state {state.state}, unknown to jobscribe"


def _running(state_word: str, state: BatchState, *, stale: bool) -> str:
    sentence = (
        _RUNS.get(state_word) or f"Slurm reports the state {state.state}, unknown to jobscribe"
    )
    suffix = f" on {state.nodes}" if state.nodes and state_word in _RUNS else ""
    return f"{sentence}{suffix}" + (
        " according to accounting; the scheduler has forgotten it" if stale else ""
    )


def _ended(state_word: str, state: BatchState, exit_: ExitInfo) -> str:
    suffix = (
        f" ({state.nodes})"
        if state.nodes and state_word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")
        else ""
    )
    if exit_.detail and state_word in ("FAILED", "COMPLETED", "CANCELLED"):
        return exit_.detail
    sentence = _OVER[state_word] + suffix
    if state_word == SlurmState.FAILED and exit_.signal is not None:
        return f"{sentence}: signal {exit_.signal}"
    return (
        f"{sentence} with exit code {exit_.code}"
        if state_word in ("FAILED", "COMPLETED") and exit_.code is not None
        else sentence
    )


def _limited(text: str) -> str:
    return text if len(text) <= 2048 else text[:2045] + "..."


# ---- exit info


def _exit(
    state_word: str, state: BatchState, row: Row | None, account: Account | None, now: float
) -> ExitInfo:
    """Return the exit info from Slurm alone, for a script that wrote no exit code."""
    code, signal = _code(state_word, row, account)
    started, ended = _moments(row, account, now)
    known = ExitInfo(
        source="scheduler",
        code=code,
        signal=signal,
        started_at=started,
        ended_at=ended,
        batch=state,
        max_rss_bytes=account.max_rss_bytes if account is not None else None,
        stop_reason="timeLimit" if state_word == SlurmState.TIMEOUT else None,
        out_of_memory=True if state_word == SlurmState.OUT_OF_MEMORY else None,
    )
    sentence = _detail(state_word, state, known, ran=started is not None)
    if code == FENCED and state_word == SlurmState.FAILED:
        return replace(known, source="lost", code=None, detail=sentence)
    if state_word == SlurmState.FAILED and _never_ran(state, known):
        return replace(known, source="start", code=None, signal=None, detail=sentence)
    return replace(known, detail=sentence)


def _code(
    state_word: str, row: Row | None, account: Account | None
) -> tuple[int | None, int | None]:
    both = [(s.exit_code, s.signal) for s in (account, row) if s is not None]
    reported = next((b for b in both if b != (None, None)), (None, None))
    match state_word:
        case "COMPLETED":
            return 0, None
        case "FAILED":
            # a 0 would claim a success that Slurm does not report
            return (None, None) if reported == (0, None) else reported
        case _:
            # Slurm ended the job: 0:0 and 0:15 say nothing about the program. The program's own
            # exit code is in its own file.
            return None, reported[1]


def _moments(
    row: Row | None, account: Account | None, now: float
) -> tuple[float | None, float | None]:
    starts = [s.started_at for s in (account, row) if s is not None and s.started_at is not None]
    ends = [s.ended_at for s in (account, row) if s is not None and s.ended_at is not None]
    # a job canceled in the queue never started, even if Slurm reports a start time
    elapsed = account.elapsed_secs if account is not None else None
    nodes = (account.nodes if account is not None else "") or (row.nodes if row is not None else "")
    return (starts[0] if starts and (elapsed or nodes) else None), min(
        ends[0], now
    ) if ends else None


def _never_ran(state: BatchState, known: ExitInfo) -> bool:
    """Return whether the batch script did not start. No user program ends with these values."""
    if known.signal is not None:
        return known.signal == _NO_OUTPUT
    return known.code is None and state.reason.startswith("JobLaunchFailure")


#: Slurm reports this signal if the node could not open the job's output or enter its directory.
_NO_OUTPUT = 53


def _detail(state_word: str, state: BatchState, known: ExitInfo, *, ran: bool) -> str:
    match state_word:
        case "COMPLETED":
            return "Slurm reports that it completed"
        case "CANCELLED":
            by = f" by unix user {state.canceled_by}" if state.canceled_by else ""
            if "DependencyNeverSatisfied" in state.reason:
                return "Slurm canceled it because its dependency can never be satisfied"
            return f"it was canceled{by} (not by jobscribe)" + (
                "" if ran else ", before it had started"
            )
        case "FAILED" if known.code == FENCED:
            return (
                "Slurm started its script a second time, which did nothing; "
                "exit status of the first start unknown"
            )
        case "FAILED" if known.signal == _NO_OUTPUT:
            return (
                f"Slurm could not open its output file on its node{_node_suffix(state)}: "
                "the node may not mount that file system"
            )
        case "FAILED" if known.code is None and known.signal is None:
            if state.reason.startswith("JobLaunchFailure"):
                return f"Slurm could not start it on its node{_node_suffix(state)}"
            return (
                "Slurm reports that it failed"
                + (f" ({state.reason})" if state.reason else "")
                + ", without an exit code"
            )
        case "FAILED":
            return "Slurm reports that it failed"
        case _:
            return _OVER[state_word] + (
                _node_suffix(state)
                if state_word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")
                else ""
            )


def _node_suffix(state: BatchState) -> str:
    return f" ({state.nodes})" if state.nodes else ""


#: States in which the whole job was ended. A program that exited earlier did not exit because of
#: them.
_JOB_ENDED = frozenset(("TIMEOUT", "CANCELLED", "NODE_FAIL", "DEADLINE"))
#: The script's exit counts as first if it precedes the job's end in accounting by more than this
#: (seconds), and the job's end as first if it precedes the signal of a stop so. Clocks may differ.
_CLOCKS_SECS = 30.0
#: States in which Slurm ended the job. A program that exited with 143 before SIGKILL did so because
#: of Slurm.
_ENDED_BY_SLURM = frozenset(
    ("TIMEOUT", "PREEMPTED", "CANCELLED", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)


def exited_before_slurm(own: ExitInfo, slurm_status: SlurmStatus) -> bool:
    """Return whether the script exited by itself before Slurm ended the job, by the clocks of the
    cluster.
    """
    slurm_exit = slurm_status.exit
    if (
        slurm_exit is None
        or slurm_exit.ended_at is None
        or own.ended_at is None
        or slurm_status.state.state not in _JOB_ENDED
    ):
        return False
    return own.ended_at < slurm_exit.ended_at - _CLOCKS_SECS


def ended_before(slurm_status: SlurmStatus | None, at: float) -> bool:
    """Return whether Slurm had ended the job before this wall time of the agent."""
    slurm_exit = None if slurm_status is None else slurm_status.exit
    if slurm_exit is None or slurm_exit.ended_at is None:
        return False
    return slurm_exit.ended_at < at - _CLOCKS_SECS


def merge_exit(own: ExitInfo, slurm_status: SlurmStatus, *, exited_first: bool = False) -> ExitInfo:
    """Merge the script's own exit with Slurm's facts: last state, memory, stop reason. The exit
    code stays the script's.

    exited_first: the script exited while Slurm still reported the job as running. A later end of
    the job is then not the cause of the exit.
    """
    slurm_exit = slurm_status.exit
    if slurm_exit is None:
        return replace(own, batch=slurm_status.state)
    state_word, succeeded = slurm_status.state.state, own.code == 0
    own_end = state_word in _JOB_ENDED and (exited_first or exited_before_slurm(own, slurm_status))
    return replace(
        own,
        batch=slurm_status.state,
        stop_reason=own.stop_reason or (None if own_end else slurm_exit.stop_reason),
        out_of_memory=True if slurm_exit.out_of_memory else own.out_of_memory,
        max_rss_bytes=own.max_rss_bytes
        if own.max_rss_bytes is not None
        else slurm_exit.max_rss_bytes,
        detail=own.detail
        or (
            slurm_exit.detail
            if state_word in _ENDED_BY_SLURM and not succeeded and not own_end
            else None
        ),
        facts=replace(
            own.facts if isinstance(own.facts, ExitFacts) else ExitFacts(), exited_first=True
        )
        if own_end
        else own.facts,
    )
