"""Retention of evidence: what may go of the folder of one execution. Pure."""

import enum
from typing import NamedTuple

from ....protocol.ids import Token
from ....protocol.jobs.status import PURGED, Status


class Verdict(enum.StrEnum):
    """DROP_CORES: core files go. REDUCE: script and exit files go, the output stays. REMOVE:
    everything goes but the name of the folder, which keeps the token used.
    """

    KEEP = "keep"
    DROP_CORES = "dropCores"
    REDUCE = "reduce"
    REMOVE = "remove"


class EvidenceRules(NamedTuple):
    """Wall times. What ended before goes; None: never. superseded: of earlier runs of a job.
    profiles: in run directories.
    """

    scripts: float | None
    outputs: float | None
    superseded: float | None
    cores: float | None = None
    profiles: float | None = None

    @property
    def newest(self) -> float:
        """Return the time after which nothing goes."""
        return max((t for t in self if t is not None), default=float("-inf"))


class JobFacts(NamedTuple):
    """The durable state of the job of an execution. serial: of its newest run. busy: the run, or
    any process of the job, may live. kept: the user's plan excludes it.
    """

    serial: int
    status: Status
    busy: bool
    ended_at: float | None
    kept: bool = False


def verdict(
    token: Token,
    job: JobFacts | None,
    rules: EvidenceRules,
    *,
    acknowledged: bool,
    changed_at: float,
) -> Verdict:
    """Decide about the evidence of `token`. job: None if the log does not know the job.

    acknowledged: the executor has forgotten the execution, because its end is durable in the log.
    changed_at: wall time of the last change in the folder, at or after the end of the execution.
    """
    if not acknowledged or job is None or job.busy or job.kept or token.serial > job.serial:
        return Verdict.KEEP
    if token.serial < job.serial:
        return _after(changed_at, remove=rules.superseded, reduce=rules.scripts)
    if job.status == PURGED:
        return Verdict.REMOVE
    if job.ended_at is None:
        return Verdict.KEEP
    return _after(job.ended_at, remove=rules.outputs, reduce=rules.scripts)


def cores_expired(
    token: Token,
    job: JobFacts | None,
    rules: EvidenceRules,
    *,
    acknowledged: bool,
    changed_at: float,
) -> bool:
    """Return whether the core files of `token` go, if its evidence stays. Arguments: see `verdict`."""
    of_cores = EvidenceRules(scripts=rules.cores, outputs=None, superseded=None)
    word = verdict(token, job, of_cores, acknowledged=acknowledged, changed_at=changed_at)
    return word is Verdict.REDUCE


def profiles_expired(
    token: Token, job: JobFacts | None, rules: EvidenceRules, *, changed_at: float
) -> bool:
    """Return whether the profiles of this execution go: with a purged run, or by their age. For the
    arguments see `verdict`.
    """
    if rules.profiles is None or job is None or job.busy or job.kept or token.serial > job.serial:
        return False
    if token.serial == job.serial and job.status == PURGED:
        return True
    ended_at = changed_at if token.serial < job.serial else job.ended_at
    return ended_at is not None and ended_at < rules.profiles


def _after(ended_at: float, *, remove: float | None, reduce: float | None) -> Verdict:
    if remove is not None and ended_at < remove:
        return Verdict.REMOVE
    if reduce is not None and ended_at < reduce:
        return Verdict.REDUCE
    return Verdict.KEEP


def too_young(token: Token, rules: EvidenceRules) -> bool:
    """Return whether nothing of this execution can go, by its serial alone: a serial is the time of
    the request in seconds, or later. Saves a look-up for most folders.
    """
    return token.serial > rules.newest


def token_of(name: str) -> Token | None:
    """Return the token whose `name` this is; None for another name."""
    parts = name.split("-")
    if len(parts) != 7 or not all(n.isdecimal() for n in (parts[3], parts[4], parts[6])):
        return None
    jid = "-".join(parts[:3])
    token = Token(jid, int(parts[3]), int(parts[4]), parts[5], int(parts[6]))
    return token if token.name == name else None
