"""What squeue, sacct, scontrol and sbatch print, as values. A line that cannot be read is left out:
it is never an error of a job.

All numbers and times may be missing (`N/A`, `Unknown`, nothing at all): None. Words are kept as
Slurm says them.
"""

import math
import re
from typing import NamedTuple

from .cluster_parser import parse_associations, parse_partitions, version
from .command_errors import asked_in_vain, never_there, outage, refused
from .command_lines import (
    ACCOUNT_NAMES,
    ROW_FIELDS,
    SEPARATOR,
    associations,
    cancel,
    nodes,
    partitions,
    sacct,
    show_job,
    slurm_version,
    squeue,
    submit,
)
from .value_formats import bytes_of, exit_of, instant, seconds, span

__all__ = [
    "Account",
    "Row",
    "asked_in_vain",
    "associations",
    "cancel",
    "never_there",
    "nodes",
    "outage",
    "parse_associations",
    "parse_job",
    "parse_partitions",
    "parse_sacct",
    "parse_squeue",
    "parse_submitted",
    "partitions",
    "refused",
    "sacct",
    "show_job",
    "slurm_version",
    "squeue",
    "submit",
    "version",
]

#: A job, a task of an array, a part of a heterogeneous job; a step of it comes behind a point.
_JOB = re.compile(
    r"(?P<job>[0-9]{1,20}(?:_[0-9]{1,10}|_\[[^\]]{0,200}\]|\+[0-9]{1,10})?)(?:\.(?P<step>[A-Za-z0-9+]{1,32}))?\Z"
)
_STATE = re.compile(r"[A-Z][A-Z0-9_]{0,63}\+?\Z")
_SUBMITTED = re.compile(r"([0-9]{1,20})(?:;[^\s;]{1,256})?\Z")
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=(\S*)")
_NOTHING = frozenset(("", "None", "N/A", "(null)", "Unknown", "None assigned", "none"))


class Row(NamedTuple):
    """One job as slurmctld has it now. exit_code, signal and restarts: only `scontrol show job`
    says them.
    """

    job_id: str
    user: str
    state: str
    submitted_at: float | None = None
    #: it was started then; of one that waits, when Slurm thinks that it will be
    starts_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    time_limit_secs: float | None = None
    partition: str = ""
    account: str = ""
    nodes: str = ""
    reason: str = ""
    name: str = ""
    comment: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0


class Account(NamedTuple):
    """One job as the accounting has it: its newest start. canceled_by: a number or name, or
    nothing.
    """

    job_id: str
    user: str
    state: str
    canceled_by: str = ""
    exit_code: int | None = None
    signal: int | None = None
    #: the highest of its steps
    derived_exit_code: int | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    elapsed_secs: float | None = None
    max_rss_bytes: int | None = None
    partition: str = ""
    account: str = ""
    nodes: str = ""
    reason: str = ""
    name: str = ""
    comment: str = ""
    restarts: int = 0


#: States of squeue in which a job has not begun: its start is an expectation.
_BEFORE = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    )
)
#: States that last.
_OVER = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    )
)


def _whole(line: str, fields: int) -> list[str] | None:
    """A name with a line break in it, the last field but one, takes only the comment from its job."""
    found = line.split(SEPARATOR, fields - 1)
    return [*found, *[""] * (fields - len(found))] if len(found) >= fields - 1 else None


def parse_squeue(out: str) -> list[Row]:
    """Of several lines for one job the first: what follows can only be somebody's name with a line
    break in it.
    """
    rows: dict[str, Row] = {}
    for line in out.split("\n"):
        fields = _whole(line, ROW_FIELDS)
        if fields is None:
            continue
        (
            job_id,
            user,
            state,
            submitted,
            start,
            end,
            limit,
            partition,
            account,
            nodes_,
            reason,
            name,
            comment,
        ) = (f.strip() for f in fields)
        if _JOB.match(job_id) is None or "." in job_id or _STATE.match(state) is None:
            continue
        before = state in _BEFORE
        rows.setdefault(
            job_id,
            Row(
                job_id,
                user,
                state,
                instant(submitted),
                instant(start) if before else None,
                None if before else instant(start),
                instant(end) if state in _OVER else None,
                seconds(limit),
                _said(partition),
                _said(account),
                _said(nodes_),
                _said(reason),
                name,
                _said(comment),
            ),
        )
    return list(rows.values())


def parse_sacct(out: str) -> list[Account]:
    """The newest start of every job, with the most memory that any of its steps had, and how often
    it was started again.
    """
    found: dict[str, list[Account]] = {}
    memory: dict[str, int] = {}
    for line in out.split("\n"):
        fields = _whole(line, len(ACCOUNT_NAMES))
        match = _JOB.match(fields[0].strip()) if fields is not None else None
        if fields is None or match is None:
            continue
        said = dict(zip(ACCOUNT_NAMES, (f.strip() for f in fields), strict=True))
        job = match["job"]
        if (rss := bytes_of(said["MaxRSS"])) is not None:
            memory[job] = max(rss, memory.get(job, 0))
        if match["step"] is None and (account := _account(job, said)) is not None:
            found.setdefault(job, []).append(account)
    return [
        starts[_newest(starts)]._replace(max_rss_bytes=memory.get(job), restarts=len(starts) - 1)
        for job, starts in found.items()
    ]


def _newest(starts: list[Account]) -> int:
    """The one submitted last; of equal ones the one that comes last."""
    return max(
        range(len(starts)),
        key=lambda n: (starts[n].submitted_at or 0.0, starts[n].started_at or math.inf, n),
    )


def _account(job: str, said: dict[str, str]) -> Account | None:
    state, _, by = said["State"].partition(" by ")
    state = state.split(" ")[0].removesuffix("+")
    if _STATE.match(state) is None:
        return None
    code, signal = exit_of(said["ExitCode"])
    return Account(
        job,
        said["User"],
        state,
        _said(by)[:64],
        code,
        signal,
        exit_of(said["DerivedExitCode"])[0],
        instant(said["Submit"]),
        instant(said["Start"]),
        instant(said["End"]),
        span(said["ElapsedRaw"]),
        None,
        _said(said["Partition"]),
        _said(said["Account"]),
        _said(said["NodeList"]),
        _said(said["Reason"]),
        said["JobName"],
        _said(said["Comment"]),
    )


def parse_job(out: str) -> Row | None:
    """`scontrol -o show job ID`; None where it is not there or cannot be read."""
    for line in out.split("\n"):
        said: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            said.setdefault(key, value)
        job_id, state = said.get("JobId", ""), said.get("JobState", "")
        if _JOB.match(job_id) is None or "." in job_id or _STATE.match(state) is None:
            continue
        before = state in _BEFORE
        start, (code, signal) = (
            instant(said.get("StartTime", "")),
            exit_of(said.get("ExitCode", "")),
        )
        over = state in _OVER
        return Row(
            job_id,
            said.get("UserId", "").split("(")[0],
            state,
            instant(said.get("SubmitTime", "")),
            start if before else None,
            None if before else start,
            instant(said.get("EndTime", "")) if over else None,
            seconds(said.get("TimeLimit", "")),
            partition=_said(said.get("Partition", "")),
            account=_said(said.get("Account", "")),
            nodes=_said(said.get("NodeList", "")),
            reason=_said(said.get("Reason", "")),
            name=said.get("JobName", ""),
            comment=_comment(line),
            exit_code=code if over else None,
            signal=signal if over else None,
            restarts=_number(said.get("Restarts", "")),
        )
    return None


def _comment(line: str) -> str:
    """It has blanks in it, and ends where the next key begins."""
    match = re.search(r" Comment=(.*?)(?= [A-Z][A-Za-z/:]*=|\s*\Z)", line)
    return _said(match[1]) if match else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _said(text: str) -> str:
    """Nothing where Slurm has a word for nothing."""
    text = text.strip()
    return "" if text in _NOTHING else text


def parse_submitted(out: str) -> str | None:
    """The id that `sbatch --parsable` prints, behind whatever a site's plugin says before it; None
    where there is none.
    """
    lines = [line.strip() for line in out.split("\n") if line.strip()]
    match = _SUBMITTED.match(lines[-1]) if lines else None
    return match[1] if match and match[1].strip("0") else None
