"""The resources that an execution used, its limits, and its reaction to a stop. Pure."""

import re
import signal

from ...db.events.state import Run
from ...diagnosis.kill_attribution import NEAR, Classification, facts_of, killed_by, mib, ulimits
from ...protocol.clusters.batch import BatchState, Partition
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo

#: Causes for which used resources and limits are evidence.
_OF_USE = frozenset({"killed", "outOfMemory", "memoryRefused", "cpuLimit"})
_POLICY = re.compile(
    r"\[(?P<role>[^]]+)\]: (?P<word>Succeeded|Failed)TaskCount (?P<n>\d+) has reached Min\w+ (?P<limit>\d+)\."
)


def used_and_limits(run: Run, exit_: ExitInfo, found: Classification, last: str) -> list[str]:
    """Return the used resources and the limits, if memory or SIGKILL ended the execution.

    last: the last exception of its output, or "".
    """
    if exit_.source in ("start", "lost") or (
        found.cause not in _OF_USE
        and killed_by(exit_) != signal.SIGKILL
        and not last.startswith("MemoryError")
    ):
        return []
    facts = facts_of(exit_)
    peak = facts.memory_peak_bytes or exit_.max_rss_bytes
    if peak is None and exit_.user_secs is None:
        return []
    cpu = (
        "CPU time not measured"
        if exit_.user_secs is None or exit_.system_secs is None
        else f"{exit_.user_secs + exit_.system_secs:.1f} s of CPU time"
    )
    ran = (
        ""
        if exit_.started_at is None or exit_.ended_at is None
        else f" in {max(0.0, exit_.ended_at - exit_.started_at):.1f} s"
    )
    memory = "memory peak not measured" if peak is None else f"memory peak {mib(peak)}"
    limits = [f"memory {_memory_limit(run, exit_)}"]
    secs = run.spec.time_limit_secs
    limits.append(f"time {'none' if secs is None else span(secs)}")
    limits += [text for option in ("-t", "-v") for text in ulimits(exit_, option)]
    return [f"used: {cpu}{ran}, {memory}; limits: {', '.join(limits)}"]


def _memory_limit(run: Run, exit_: ExitInfo) -> str:
    limit = facts_of(exit_).memory_limit_bytes
    if limit:
        return mib(limit)
    batch = run.spec.batch
    requested = getattr(batch, "memory_mb", None)
    return "none known" if requested is None else f"{mib(requested * 2**20)} on each node"


def memory_peak(facts: ExitFacts, ran_out: bool) -> str:
    """Return the sentence about the memory peak. ran_out: memory ran out, so a low peak was
    measured before that.
    """
    most, limit = facts.memory_peak_bytes or 0, facts.memory_limit_bytes
    of = f" of the {mib(limit)} that it may have" if limit else ""
    if ran_out and limit and most < NEAR * limit:
        return f"the last measured memory peak is {mib(most)}{of}; its memory use then grew faster than the measurements"
    return f"its memory peaked at {mib(most)}{of}"


def reaction(run: Run, exit_: ExitInfo) -> list[str]:
    """Return how the execution reacted to the signals of a stop by jobscribe.

    It ignored SIGTERM if it lived for the whole grace period and SIGKILL ended it then.
    """
    grace = run.spec.grace_secs if run.stop is None else run.stop.grace_secs
    if (
        exit_.stop_reason is None
        or killed_by(exit_) != signal.SIGKILL
        or exit_.out_of_memory
        or isinstance(exit_.batch, BatchState)
    ):
        return []
    if grace <= 0:
        return ["its grace period is 0 s, so SIGKILL ended it at once"]
    if run.stop is not None and exit_.ended_at is not None and exit_.ended_at < run.stop.at + grace:
        return []
    return [f"ignored SIGTERM for {grace:g} s, then SIGKILL"]


def batch_times(run: Run, partition: Partition | None) -> list[str]:
    """Return the requested time of a Slurm job beside the limit of its partition."""
    secs = run.spec.time_limit_secs
    requested = "none requested" if secs is None else f"{span(secs)} requested"
    if partition is None:
        return (
            []
            if run.active
            else [f"time limit: {requested}; the partition's limit is not known now"]
        )
    most = partition.time_limit_secs
    allowed = "has no limit" if most is None else f"allows {span(most)}"
    usual = (
        f", and gives {span(partition.default_secs)} to jobs that request none"
        if secs is None and partition.default_secs is not None
        else ""
    )
    return [f"time limit: {requested}; partition {partition.name} {allowed}{usual}"]


def policy_sentence(reason: str) -> str:
    """Return the reason of a decided attempt without the terms of OpenPAI."""
    found = _POLICY.fullmatch(reason)
    if found is None:
        return "all its tasks had ended" if reason.startswith("All tasks have ended") else reason
    ends = "completed" if found["word"] == "Succeeded" else "failed"
    key = "minSucceeded" if found["word"] == "Succeeded" else "minFailed"
    one = found["n"] == "1"
    return f"{found['n']} task{'' if one else 's'} of role {found['role']} {ends} ({key} is {found['limit']})"


def span(secs: float) -> str:
    """Format a duration for people: `1 h 30 min`, `2 min`, `1.5 s`."""
    if secs < 60 or secs % 1:
        return f"{secs:g} s"
    hours, rest = divmod(int(secs), 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{n} {unit}" for n, unit in parts if n)
