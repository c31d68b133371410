"""Parsers for the output of squeue, sacct, scontrol and sbatch. An unreadable line is skipped: it
is never an error of a job.

Numbers and times are None if missing (`N/A`, `Unknown`, empty). State words are kept as Slurm
writes them.
"""

import math
import re
from typing import NamedTuple

from .cluster_parser import parse_associations, parse_partitions, version
from .command_errors import outage, query_error, submission_error, unknown_job_error
from .command_lines import (
    ACCOUNT_NAMES,
    ROW_FIELDS,
    SEPARATOR,
    USAGE_NAMES,
    associations,
    cancel,
    node_states,
    nodes,
    partitions,
    sacct,
    sacct_usage,
    show_job,
    slurm_version,
    squeue,
    submit,
)
from .value_formats import (
    parse_bytes,
    parse_cpu_secs,
    parse_duration,
    parse_exit,
    parse_seconds,
    parse_time,
)

__all__ = [
    "Account",
    "Row",
    "associations",
    "cancel",
    "node_states",
    "nodes",
    "outage",
    "parse_associations",
    "parse_job",
    "parse_partitions",
    "parse_sacct",
    "parse_squeue",
    "parse_submitted",
    "parse_usage",
    "partitions",
    "query_error",
    "sacct",
    "sacct_usage",
    "show_job",
    "slurm_version",
    "squeue",
    "submission_error",
    "submit",
    "unknown_job_error",
    "version",
]

#: A job, an array task, or a component of a heterogeneous job. A step follows a dot.
_JOB = re.compile(
    r"(?P<job>[0-9]{1,20}(?:_[0-9]{1,10}|_\[[^\]]{0,200}\]|\+[0-9]{1,10})?)(?:\.(?P<step>[A-Za-z0-9+]{1,32}))?\Z"
)
_STATE = re.compile(r"[A-Z][A-Z0-9_]{0,63}\+?\Z")
_SUBMITTED = re.compile(r"([0-9]{1,20})(?:;[^\s;]{1,256})?\Z")
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*)=(\S*)")
_NOTHING = frozenset(("", "None", "N/A", "(null)", "Unknown", "None assigned", "none"))


class Row(NamedTuple):
    """One job in slurmctld. Only `scontrol show job` has exit_code, signal and restarts."""

    job_id: str
    user: str
    state: str
    submitted_at: float | None = None
    #: expected start of a waiting job
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
    """One job in accounting: its newest start. canceled_by: uid, user name or ""."""

    job_id: str
    user: str
    state: str
    canceled_by: str = ""
    exit_code: int | None = None
    signal: int | None = None
    #: maximum over its steps
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


class Used(NamedTuple):
    """Processor time in seconds, and peak memory of a process in bytes. None: unknown."""

    user_secs: float | None = None
    system_secs: float | None = None
    peak_bytes: int | None = None


class JobUsage(NamedTuple):
    """Usage of a job by accounting. total: of all its steps. steps: by the number or name of each."""

    name: str
    total: Used
    steps: dict[str, Used]


#: States in squeue before the job starts. Its start time is an estimate.
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
#: Final states.
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


def _split_fields(line: str, fields: int) -> list[str] | None:
    """Split a line into its fields. A line break in a job name, the last field but one, loses only
    the comment.
    """
    found = line.split(SEPARATOR, fields - 1)
    return [*found, *[""] * (fields - len(found))] if len(found) >= fields - 1 else None


def parse_squeue(out: str) -> list[Row]:
    """Parse squeue output. The first line of a job counts: a later line can only be part of a name
    with a line break.
    """
    rows: dict[str, Row] = {}
    for line in out.split("\n"):
        fields = _split_fields(line, ROW_FIELDS)
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
                parse_time(submitted),
                parse_time(start) if before else None,
                None if before else parse_time(start),
                parse_time(end) if state in _OVER else None,
                parse_duration(limit),
                _clean(partition),
                _clean(account),
                _clean(nodes_),
                _clean(reason),
                name,
                _clean(comment),
            ),
        )
    return list(rows.values())


def parse_sacct(out: str) -> list[Account]:
    """Return the newest start of every job, with the maximum memory over its steps and the number
    of restarts.
    """
    found: dict[str, list[Account]] = {}
    memory: dict[str, int] = {}
    for line in out.split("\n"):
        fields = _split_fields(line, len(ACCOUNT_NAMES))
        match = _JOB.match(fields[0].strip()) if fields is not None else None
        if fields is None or match is None:
            continue
        pairs = dict(zip(ACCOUNT_NAMES, (f.strip() for f in fields), strict=True))
        job = match["job"]
        if (rss := parse_bytes(pairs["MaxRSS"])) is not None:
            memory[job] = max(rss, memory.get(job, 0))
        if match["step"] is None and (account := _account(job, pairs)) is not None:
            found.setdefault(job, []).append(account)
    return [
        starts[_newest(starts)]._replace(max_rss_bytes=memory.get(job), restarts=len(starts) - 1)
        for job, starts in found.items()
    ]


def parse_usage(out: str) -> dict[str, JobUsage]:
    """Return the usage of each job. Without steps, the job's own line counts."""
    jobs: dict[str, JobUsage] = {}
    for line in out.split("\n"):
        fields = line.split(SEPARATOR, len(USAGE_NAMES) - 1)
        match = _JOB.match(fields[0].strip()) if len(fields) == len(USAGE_NAMES) else None
        if match is None:
            continue
        user, system, peak, name = (f.strip() for f in fields[1:])
        used = _measured(Used(parse_cpu_secs(user), parse_cpu_secs(system), parse_bytes(peak)))
        if match["step"] is None:
            jobs[match["job"]] = JobUsage(name, used, {})
        elif match["job"] in jobs:
            jobs[match["job"]].steps[match["step"]] = used
    return {id_: u._replace(total=_sum(list(u.steps.values()), u.total)) for id_, u in jobs.items()}


def _measured(used: Used) -> Used:
    """Return the usage without the zeros that Slurm reports where it has not measured."""
    if not used.user_secs and not used.system_secs:
        used = used._replace(user_secs=None, system_secs=None)
    return used._replace(peak_bytes=used.peak_bytes or None)


def _sum(steps: list[Used], job: Used) -> Used:
    """Return the usage of all steps."""
    user = [s.user_secs for s in steps if s.user_secs is not None]
    system = [s.system_secs for s in steps if s.system_secs is not None]
    peaks = [s.peak_bytes for s in (*steps, job) if s.peak_bytes is not None]
    in_user, in_system = job.user_secs, job.system_secs
    if user and system:
        in_user, in_system = sum(user), sum(system)
    return Used(in_user, in_system, max(peaks, default=None))


def _newest(starts: list[Account]) -> int:
    """Return the index of the start that was submitted last. Of equal ones, the last counts."""
    return max(
        range(len(starts)),
        key=lambda n: (starts[n].submitted_at or 0.0, starts[n].started_at or math.inf, n),
    )


def _account(job: str, pairs: dict[str, str]) -> Account | None:
    state, _, by = pairs["State"].partition(" by ")
    state = state.split(" ")[0].removesuffix("+")
    if _STATE.match(state) is None:
        return None
    code, signal = parse_exit(pairs["ExitCode"])
    return Account(
        job,
        pairs["User"],
        state,
        _clean(by)[:64],
        code,
        signal,
        parse_exit(pairs["DerivedExitCode"])[0],
        parse_time(pairs["Submit"]),
        parse_time(pairs["Start"]),
        parse_time(pairs["End"]),
        parse_seconds(pairs["ElapsedRaw"]),
        None,
        _clean(pairs["Partition"]),
        _clean(pairs["Account"]),
        _clean(pairs["NodeList"]),
        _clean(pairs["Reason"]),
        pairs["JobName"],
        _clean(pairs["Comment"]),
    )


def parse_job(out: str) -> Row | None:
    """Parse `scontrol -o show job ID`. None if the job is missing or unreadable."""
    for line in out.split("\n"):
        pairs: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            pairs.setdefault(key, value)
        job_id, state = pairs.get("JobId", ""), pairs.get("JobState", "")
        if _JOB.match(job_id) is None or "." in job_id or _STATE.match(state) is None:
            continue
        before = state in _BEFORE
        start, (code, signal) = (
            parse_time(pairs.get("StartTime", "")),
            parse_exit(pairs.get("ExitCode", "")),
        )
        over = state in _OVER
        return Row(
            job_id,
            pairs.get("UserId", "").split("(")[0],
            state,
            parse_time(pairs.get("SubmitTime", "")),
            start if before else None,
            None if before else start,
            parse_time(pairs.get("EndTime", "")) if over else None,
            parse_duration(pairs.get("TimeLimit", "")),
            partition=_clean(pairs.get("Partition", "")),
            account=_clean(pairs.get("Account", "")),
            nodes=_clean(pairs.get("NodeList", "")),
            reason=_clean(pairs.get("Reason", "")),
            name=pairs.get("JobName", ""),
            comment=_comment(line),
            exit_code=code if over else None,
            signal=signal if over else None,
            restarts=_number(pairs.get("Restarts", "")),
        )
    return None


def _comment(line: str) -> str:
    """Return the comment, which may contain blanks and ends before the next key."""
    match = re.search(r" Comment=(.*?)(?= [A-Z][A-Za-z/:]*=|\s*\Z)", line)
    return _clean(match[1]) if match else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _clean(text: str) -> str:
    """Return "" for Slurm's placeholders for a missing value."""
    text = text.strip()
    return "" if text in _NOTHING else text


def parse_submitted(out: str) -> str | None:
    """Return the job id from `sbatch --parsable`, or None. Output of a site's plugin before it is
    skipped.
    """
    lines = [line.strip() for line in out.split("\n") if line.strip()]
    match = _SUBMITTED.match(lines[-1]) if lines else None
    return match[1] if match and match[1].strip("0") else None
