"""What one job's last rows mean: does it wait, run, or is it over; how it ended; and what to say of
it to a person.

A word that is not known here is shown as it is, and is never an end: what it was is seen when Slurm
says something else, or nothing any more.
"""

from typing import Literal, NamedTuple, assert_never

from msgspec.structs import replace

from ...protocol.clusters.batch import BatchState
from ...protocol.ids import printable
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo
from .output_parser import Account, Row
from .pending_reasons import never, waits_for
from .script_markers import FENCED

Kind = Literal["waiting", "running", "over", "impossible", "absent"]

_WAITS = {
    "PENDING": "",
    "REQUEUED": "Slurm puts it into its queue again",
    "REQUEUE_FED": "Slurm moves it to another cluster",
    "REQUEUE_HOLD": "it was put into the queue again, and is held back there",
    "SPECIAL_EXIT": "it was put into the queue again, and is held back there",
    "RESV_DEL_HOLD": "its reservation was deleted, and it is held back",
}
_RUNS = {
    "RUNNING": "it runs",
    "CONFIGURING": "its nodes are being made ready",
    "COMPLETING": "it is ending",
    "SUSPENDED": "it is suspended",
    "STOPPED": "it is stopped, and keeps its nodes",
    "SIGNALING": "it gets a signal",
    "RESIZING": "its nodes are changing",
    "STAGE_OUT": "its burst buffer is being read out",
    "POWER_UP_NODE": "its nodes are being switched on",
    "UPDATE_DB": "Slurm writes it into its accounting",
    "EXPEDITING": "Slurm looks whether it is to be started again",
}
_OVER = {
    "COMPLETED": "it ended by itself",
    "FAILED": "it failed",
    "CANCELLED": "it was canceled",
    "TIMEOUT": "Slurm ended it at its time limit",
    "OUT_OF_MEMORY": "memory that it may have ran out, and a process of it was killed",
    "NODE_FAIL": "a node that it ran on failed",
    "PREEMPTED": "Slurm took its nodes away for a job that goes before it",
    "BOOT_FAIL": "its nodes could not be made ready",
    "DEADLINE": "it could not have been over before its deadline, and Slurm removed it",
    "REVOKED": "Slurm moved it to another cluster, or took it back",
    "LAUNCH_FAILED": "Slurm could not start it on its node",
    "RECONFIG_FAIL": "its nodes could not be set up as it needs them",
}


class Verdict(NamedTuple):
    """exit: of one that is over or impossible. stale: slurmctld has forgotten it, and the
    accounting has not got its end.
    """

    kind: Kind
    state: BatchState
    exit: ExitInfo | None = None
    stale: bool = False


def judge(cluster: str, row: Row | None, account: Account | None, *, now: float) -> Verdict:
    """What squeue and the accounting say of one job, together.

    slurmctld counts while it has the job, because the accounting lags behind; the accounting adds
    what only it knows. `absent`: neither knows it; whether both could be asked knows the caller.
    `impossible`: it should be canceled and ended with that sentence.
    """
    if row is None and account is None:
        return Verdict("absent", BatchState(cluster=cluster, sentence="Slurm knows no such job"))
    word = row.state if row is not None else account.state if account is not None else ""
    kind = _kind(word, row, account)
    same = account if row is None or _same(row, account) else None
    state = replace(_state(cluster, word, row, same), restarts=_restarts(row, account, same))
    if state.starts_at is not None and state.starts_at <= now:
        # of what it has no place for yet, slurmctld says the moment at which it looked
        state = replace(state, starts_at=None)
    match kind:
        case "over":
            exit_ = _exit(word, state, row, same, now)
            return Verdict(
                "over", replace(state, sentence=_limited(_ended(word, state, exit_))), exit_
            )
        case "waiting":
            why = never(state.reason) if word == "PENDING" else None
            if why is not None:
                state = replace(
                    state,
                    sentence=_limited(f"it would wait for ever: {why} (Slurm: {state.reason})"),
                )
                return Verdict(
                    "impossible",
                    state,
                    ExitInfo(
                        source="start", fault="neverPossible", detail=state.sentence, batch=state
                    ),
                )
            return Verdict(
                "waiting",
                replace(state, sentence=_limited(_waiting(word, state))),
                stale=row is None,
            )
        case "running":
            return Verdict(
                "running",
                replace(state, sentence=_limited(_running(word, state, stale=row is None))),
                stale=row is None,
            )
        case "absent" | "impossible":
            raise AssertionError(kind)
        case _:
            assert_never(kind)


def _kind(word: str, row: Row | None, account: Account | None) -> Kind:
    if word in _OVER:
        return "over"
    if word in _WAITS:
        return "waiting"
    started = (
        row.started_at if row is not None else account.started_at if account is not None else None
    )
    return "running" if word in _RUNS or started is not None else "waiting"


def _same(row: Row, account: Account | None) -> bool:
    """Do both speak of the same start? A job that was put into the queue again has an older one in
    the accounting.
    """
    if account is None or account.state.startswith("REQUEUE"):
        return False
    return (row.state in _OVER) == (account.state in _OVER) and not _earlier(account, row)


def _earlier(account: Account, row: Row) -> bool:
    """A start that was over when this one was put into the queue."""
    if row.submitted_at is None or account.submitted_at is None or account.ended_at is None:
        return False
    return account.submitted_at < row.submitted_at and account.ended_at <= row.submitted_at


def _restarts(row: Row | None, account: Account | None, same: Account | None) -> int:
    """The accounting has a record of every start that is over, and of this one when it gets to it."""
    behind = row is not None and account is not None and same is None and _earlier(account, row)
    return max(
        row.restarts if row is not None else 0,
        account.restarts + behind if account is not None else 0,
    )


def _state(cluster: str, word: str, row: Row | None, account: Account | None) -> BatchState:
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
        state=printable(word)[:256],
        reason=printable(first.reason or second.reason)[:256],
        partition=printable(partition)[:256],
        account=printable(charged)[:256],
        nodes=printable(nodes),
        submitted_at=first.submitted_at or second.submitted_at,
        starts_at=row.starts_at if row is not None else None,
        canceled_by=printable(account.canceled_by)[:256] if account is not None else "",
    )


# ---- what is said


def _waiting(word: str, state: BatchState) -> str:
    if word == "PENDING":
        told = waits_for(state.reason)
        return f"{told} (Slurm: {state.reason})" if state.reason else told
    return _WAITS.get(word) or f"Slurm says {state.state}, which is not known here"


def _running(word: str, state: BatchState, *, stale: bool) -> str:
    told = _RUNS.get(word) or f"Slurm says {state.state}, which is not known here"
    on = f" on {state.nodes}" if state.nodes and word in _RUNS else ""
    return f"{told}{on}" + (
        "; that is what its accounting has, and the scheduler has forgotten it" if stale else ""
    )


def _ended(word: str, state: BatchState, exit_: ExitInfo) -> str:
    on = (
        f" ({state.nodes})"
        if state.nodes and word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED")
        else ""
    )
    if exit_.detail and word in ("FAILED", "COMPLETED", "CANCELLED"):
        return exit_.detail
    told = _OVER[word] + on
    if word == "FAILED" and exit_.signal is not None:
        return f"{told}: signal {exit_.signal}"
    return (
        f"{told} with exit code {exit_.code}"
        if word in ("FAILED", "COMPLETED") and exit_.code is not None
        else told
    )


def _limited(text: str) -> str:
    return text if len(text) <= 2048 else text[:2045] + "..."


# ---- how it ended


def _exit(
    word: str, state: BatchState, row: Row | None, account: Account | None, now: float
) -> ExitInfo:
    """By Slurm's word alone: for where the script could not write down its own."""
    code, signal = _code(word, row, account)
    started, ended = _moments(row, account, now)
    known = ExitInfo(
        source="scheduler",
        code=code,
        signal=signal,
        started_at=started,
        ended_at=ended,
        batch=state,
        max_rss_bytes=account.max_rss_bytes if account is not None else None,
        stop_reason="timeLimit" if word == "TIMEOUT" else None,
        out_of_memory=True if word == "OUT_OF_MEMORY" else None,
    )
    told = _detail(word, state, known, ran=started is not None)
    if code == FENCED and word == "FAILED":
        return replace(known, source="lost", code=None, detail=told)
    if word == "FAILED" and _never_ran(state, known):
        return replace(known, source="start", code=None, signal=None, detail=told)
    return replace(known, detail=told)


def _code(word: str, row: Row | None, account: Account | None) -> tuple[int | None, int | None]:
    both = [(s.exit_code, s.signal) for s in (account, row) if s is not None]
    said = next((b for b in both if b != (None, None)), (None, None))
    match word:
        case "COMPLETED":
            return 0, None
        case "FAILED":
            # a 0 would be a success that nobody has seen
            return (None, None) if said == (0, None) else said
        case _:
            # Slurm's own doing: 0:0 and 0:15 say nothing of the program; what the program said of
            # itself is in its own file
            return None, said[1]


def _moments(
    row: Row | None, account: Account | None, now: float
) -> tuple[float | None, float | None]:
    starts = [s.started_at for s in (account, row) if s is not None and s.started_at is not None]
    ends = [s.ended_at for s in (account, row) if s is not None and s.ended_at is not None]
    # what was canceled in the queue never started, whatever Slurm puts there
    elapsed = account.elapsed_secs if account is not None else None
    nodes = (account.nodes if account is not None else "") or (row.nodes if row is not None else "")
    return (starts[0] if starts and (elapsed or nodes) else None), min(
        ends[0], now
    ) if ends else None


def _never_ran(state: BatchState, known: ExitInfo) -> bool:
    """Its script did not begin: no program of a user's ends like this."""
    if known.signal is not None:
        return known.signal == _NO_OUTPUT
    return known.code is None and state.reason.startswith("JobLaunchFailure")


#: With this signal Slurm says that it could not open a job's output, or go to its directory, on the
#: node.
_NO_OUTPUT = 53


def _detail(word: str, state: BatchState, known: ExitInfo, *, ran: bool) -> str:
    match word:
        case "COMPLETED":
            return "Slurm says that it completed"
        case "CANCELLED":
            by = f" by unix user {state.canceled_by}" if state.canceled_by else ""
            if "DependencyNeverSatisfied" in state.reason:
                return "what it depends on did not end as it had to, and Slurm canceled it"
            return f"it was canceled{by}, outside this system" + (
                "" if ran else ", before it had started"
            )
        case "FAILED" if known.code == FENCED:
            return "Slurm ran its script once more, which did nothing then: it had been started before, and how that ended is not known"
        case "FAILED" if known.signal == _NO_OUTPUT:
            return f"Slurm could not open its output on its node{_on(state)}: the node may not see that file system"
        case "FAILED" if known.code is None and known.signal is None:
            if state.reason.startswith("JobLaunchFailure"):
                return f"Slurm could not start it on its node{_on(state)}"
            return (
                "Slurm says that it failed"
                + (f" ({state.reason})" if state.reason else "")
                + ", and not with which exit code"
            )
        case "FAILED":
            return "Slurm says that it failed"
        case _:
            return _OVER[word] + (
                _on(state) if word in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED") else ""
            )


def _on(state: BatchState) -> str:
    return f" ({state.nodes})" if state.nodes else ""


#: Ends of a whole job: a program that had exited before did not exit because of them.
_STOPPED = frozenset(("TIMEOUT", "CANCELLED", "NODE_FAIL", "DEADLINE"))
#: Where accounting says that the job was ended so much later than its script wrote its exit code,
#: that came first. Their clocks may differ (seconds).
_CLOCKS_SECS = 30.0
#: Ends that Slurm makes itself: a program that said 143 before it was killed did so because of
#: them.
_SLURMS_DOING = frozenset(
    ("TIMEOUT", "PREEMPTED", "CANCELLED", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)


def first(own: ExitInfo, verdict: Verdict) -> bool:
    """By the clocks of the cluster: had the script exited by itself before Slurm ended the job?"""
    told = verdict.exit
    if (
        told is None
        or told.ended_at is None
        or own.ended_at is None
        or verdict.state.state not in _STOPPED
    ):
        return False
    return own.ended_at < told.ended_at - _CLOCKS_SECS


def together(own: ExitInfo, verdict: Verdict, *, exited_first: bool = False) -> ExitInfo:
    """The end that the script wrote down, with what Slurm knows: last state, memory, why it was
    ended. The code stays the script's.

    exited_first: the script had exited while Slurm still let the job run. Then a later end of the
    job is not the end of the script.
    """
    told = verdict.exit
    if told is None:
        return replace(own, batch=verdict.state)
    word, succeeded = verdict.state.state, own.code == 0
    own_end = word in _STOPPED and (exited_first or first(own, verdict))
    return replace(
        own,
        batch=verdict.state,
        stop_reason=own.stop_reason or (None if own_end else told.stop_reason),
        out_of_memory=True if told.out_of_memory else own.out_of_memory,
        max_rss_bytes=own.max_rss_bytes if own.max_rss_bytes is not None else told.max_rss_bytes,
        detail=own.detail
        or (told.detail if word in _SLURMS_DOING and not succeeded and not own_end else None),
        facts=replace(
            own.facts if isinstance(own.facts, ExitFacts) else ExitFacts(), exited_first=True
        )
        if own_end
        else own.facts,
    )
