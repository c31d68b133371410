"""Facts about Slurm jobs for `job why`: why they wait, who ended them, commands. Pure."""

import datetime
from typing import Any

import msgspec

from ...db.events.state import Run, Task
from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo

#: Evidence file with the submitted batch script.
SCRIPT = "batch.sh"
#: Advice for Slurm's pending reasons, by their prefixes.
_ADVICE = (
    (
        ("Assoc", "QOS"),
        "wait for other jobs of this account or QOS to end, or ask for less; the operators of the cluster set these limits",
    ),
    (
        ("Priority", "Resources"),
        "no action is needed; a smaller or shorter job often starts earlier",
    ),
    (
        ("ReqNodeNotAvail", "Reservation", "PartitionDown", "PartitionInactive"),
        "wait until its nodes are available again; the operators of the cluster know when",
    ),
    (
        ("JobHeldAdmin",),
        "ask the operators of the cluster: one of them holds the job, and only they can run 'scontrol release'",
    ),
    (
        ("JobHeldUser",),
        "run 'scontrol release' on the cluster: the user, or somebody on their behalf, holds the job",
    ),
    (
        ("BeginTime",),
        "no action is needed; the job starts after its requested begin time",
    ),
    (
        ("Dependency",),
        "inspect the Slurm job that it waits for: the line Dependency= names that job",
    ),
    (("Licenses",), "wait until the licences are free"),
)


def evidence(run: Run, batch: BatchState | None) -> list[str]:
    """Return the facts about the run's Slurm job."""
    if batch is None:
        return []
    if batch.job_id is None:
        return [
            f"Slurm: it {'is not yet' if run.active else 'was never'} in the queue of {batch.cluster}"
        ]
    about = [
        f"partition {batch.partition}" if batch.partition else "",
        f"account {batch.account}" if batch.account else "",
    ]
    job = ", ".join(
        part for part in (f"Slurm job {batch.job_id} on {batch.cluster}", *about) if part
    )
    state = batch.state + (f" ({batch.reason})" if batch.reason and batch.reason != "None" else "")
    if state and not run.active and run.exit is not None and run.exit.fault == "neverPossible":
        state = f"{state} until jobscribe canceled it"
    lines = [f"{job}: {state}" if state else job]
    if batch.nodes:
        lines.append(f"nodes: {batch.nodes}")
    if batch.submitted_at is not None:
        lines.append(f"in Slurm's queue since {_utc(batch.submitted_at)}")
    if run.active and (run.started_at is None or batch.queued) and batch.starts_at is not None:
        lines.append(f"Slurm expects to start it at {_utc(batch.starts_at)}")
    if batch.restarts:
        lines.append(f"Slurm has requeued it {batch.restarts} times")
    if batch.canceled_by:
        lines.append(f"canceled in Slurm by unix user {batch.canceled_by}")
    if run.active and batch.unknown_since is not None:
        lines.append(f"Slurm has not answered since {_utc(batch.unknown_since)}")
    return lines


def silent_party(status: dict[str, Any], batch: BatchState | None) -> str:
    """Return the component that cannot be reached, so that the state is not known."""
    if (
        batch is not None
        and batch.unknown_since is not None
        and batch.unknown_since == status["since"]
    ):
        return f"the scheduler of {batch.cluster}"
    return "its agent"


def exit_evidence(exit_: ExitInfo | None) -> list[str]:
    """Return Slurm's statements about the end of the job."""
    if exit_ is None or not isinstance(exit_.batch, BatchState):
        return []
    statements = dict.fromkeys(text for text in (exit_.batch.sentence, exit_.detail) if text)
    lines = [
        text if text.startswith("Slurm ") else f"Slurm reports: {text}"
        for text in statements
        if text not in exit_.sentence()
    ]
    if isinstance(exit_.facts, ExitFacts) and exit_.facts.exited_first is True:
        lines.append(
            "its command ended by itself before Slurm ended the job, so its own exit counts"
        )
    return lines


def explain_queued(answer: dict[str, Any], batch: BatchState | None, message: str | None) -> None:
    """Fill the answer for a run that is in Slurm's queue or is being submitted."""
    answer["sentence"] = f"not started: {message}"
    answer["not"] = ["a fault of the job: it waits"]
    answer["try"] = queue_advice(batch) + queue_commands(batch)
    answer["try"].append(
        f"jobscribe job cancel {answer['computeJid']}   # removes it from the queue"
    )


def queue_advice(batch: BatchState | None) -> list[str]:
    """Return the advice for Slurm's pending reason: one line at most."""
    if batch is None:
        return []
    return [text for prefixes, text in _ADVICE if batch.reason.startswith(prefixes)][:1]


def explain_sign_in(answer: dict[str, Any], host: str, message: str | None) -> None:
    """Fill the answer for a run that waits for its user's sign-in to the cluster."""
    answer["sentence"] = f"not started: {message}"
    answer["not"] = ["a failure: it continues automatically after the sign-in"]
    answer["try"] = [login_command(host)]


def login_command(host: str) -> str:
    return (
        f"jobscribe login {host}   # or sign in on the page; the run then continues automatically"
    )


def queue_commands(batch: BatchState | None) -> list[str]:
    """Return the command that shows an active job on the cluster."""
    if batch is None or batch.job_id is None:
        return []
    return [f"scontrol show job {batch.job_id}   # on {batch.cluster}: shows the job in Slurm"]


def accounting_commands(batch: BatchState | None) -> list[str]:
    """Return the command that shows an ended job on the cluster."""
    if batch is None or batch.job_id is None:
        return []
    return [f"sacct -j {batch.job_id}   # on {batch.cluster}: shows Slurm's accounting of the job"]


def latest_state(run: Run, status: dict[str, Any]) -> BatchState | None:
    """Return the newest known state of the Slurm job: from the status, else from the task."""
    newest = status.get("batch")
    if newest is not None:
        return msgspec.convert(newest, BatchState)
    task: Task | None = run.telling
    return None if task is None else task.batch_said


def is_command(line: str) -> bool:
    return line.startswith(("scontrol ", "sacct "))


def _utc(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
