"""What `job why` says more of runs that a batch scheduler has, or is to have: why it waits there,
who ended it, what to try. Pure.
"""

import datetime
from typing import Any

import msgspec

from ...db.events.state import Run, Task
from ...protocol.clusters.batch import BatchState
from ...protocol.jobs.exit_info import ExitFacts, ExitInfo

#: Beside the evidence of every execution: exactly what was submitted.
SCRIPT = "batch.sh"
#: What one does about Slurm's reasons, by how they begin.
_HELPS = (
    (
        ("Assoc", "QOS"),
        "wait for other jobs of this account or QOS to end, or ask for less; the operators of the cluster set these limits",
    ),
    (
        ("Priority", "Resources"),
        "nothing needs to be done; a smaller or shorter job often starts earlier",
    ),
    (
        ("ReqNodeNotAvail", "Reservation", "PartitionDown", "PartitionInactive"),
        "wait until what it needs is back; the operators of the cluster know when",
    ),
    (
        ("JobHeldAdmin",),
        "ask the operators of the cluster why: one of them holds it back, and 'scontrol release' of theirs lets it go on",
    ),
    (
        ("JobHeldUser",),
        "let it go on with 'scontrol release' there: its user, or somebody for them, holds it back",
    ),
    (
        ("BeginTime",),
        "nothing needs to be done: it goes on when the time has come that it was given",
    ),
    (
        ("Dependency",),
        "look at the other job of Slurm's that it waits for; behind Dependency= stands which",
    ),
    (("Licenses",), "wait until the licences are free"),
)


def evidence(run: Run, said: BatchState | None) -> list[str]:
    """What is known of its job there."""
    if said is None:
        return []
    if said.job_id is None:
        return [
            f"Slurm: it {'is not' if run.active else 'was never'} in the queue of {said.cluster}{' yet' if run.active else ''}"
        ]
    about = [
        f"partition {said.partition}" if said.partition else "",
        f"account {said.account}" if said.account else "",
    ]
    where = ", ".join(
        part for part in (f"Slurm job {said.job_id} on {said.cluster}", *about) if part
    )
    word = said.state + (f" ({said.reason})" if said.reason and said.reason != "None" else "")
    if word and not run.active and run.exit is not None and run.exit.fault == "neverPossible":
        word = f"it was {word} until it was taken back"
    told = [f"{where}: {word}" if word else where]
    if said.nodes:
        told.append(f"nodes: {said.nodes}")
    if said.submitted_at is not None:
        told.append(f"in Slurm's queue since {_utc(said.submitted_at)}")
    if run.active and (run.started_at is None or said.queued) and said.starts_at is not None:
        told.append(f"Slurm expects to start it at {_utc(said.starts_at)}")
    if said.restarts:
        told.append(f"Slurm has put it into its queue again {said.restarts} times")
    if said.canceled_by:
        told.append(f"canceled in Slurm by unix user {said.canceled_by}")
    if run.active and said.unknown_since is not None:
        told.append(f"Slurm does not answer since {_utc(said.unknown_since)}")
    return told


def nobody(status: dict[str, Any], said: BatchState | None) -> str:
    """Who cannot be asked, where something is not known."""
    if (
        said is not None
        and said.unknown_since is not None
        and said.unknown_since == status["since"]
    ):
        return f"the scheduler of {said.cluster}"
    return "its agent"


def words(exit_: ExitInfo | None) -> list[str]:
    """Of its end, as Slurm tells it."""
    if exit_ is None or not isinstance(exit_.batch, BatchState):
        return []
    said = dict.fromkeys(text for text in (exit_.batch.sentence, exit_.detail) if text)
    told = [f"Slurm's side of it: {text}" for text in said if text not in exit_.sentence()]
    if isinstance(exit_.facts, ExitFacts) and exit_.facts.exited_first is True:
        told.append(
            "its command had ended by itself before Slurm ended the job, so its own exit decides"
        )
    return told


def waiting(answer: dict[str, Any], run: Run, said: BatchState | None, message: str | None) -> None:
    """It is in Slurm's queue, or on its way there."""
    answer["sentence"] = (
        f"it has not started: {'it is ' if message and message.startswith('in ') else ''}{message}"
    )
    answer["not"] = ["a fault of the job: it waits"]
    answer["try"] = helps(said) + commands(said)
    answer["try"].append(
        f"jobscribe job cancel {answer['computeJid']}   # to take it out of the queue"
    )


def helps(said: BatchState | None) -> list[str]:
    """What one does about its reason, if there is anything to say."""
    return [text for begins, text in _HELPS if said is not None and said.reason.startswith(begins)][
        :1
    ]


def sign_in(answer: dict[str, Any], host: str, message: str | None) -> None:
    """Nobody is signed in."""
    answer["sentence"] = f"it has not started: {message}"
    answer["not"] = ["a failure: it goes on by itself after the sign-in"]
    answer["try"] = [signing_in(host)]


def signing_in(host: str) -> str:
    return f"jobscribe login {host}   # or sign in on the page; the run goes on by itself then"


def commands(said: BatchState | None) -> list[str]:
    """What can be typed on the cluster to find out more."""
    if said is None or said.job_id is None:
        return []
    return [f"scontrol show job {said.job_id}   # on {said.cluster}: all that Slurm knows of it"]


def after(said: BatchState | None) -> list[str]:
    """The same for one that is over."""
    if said is None or said.job_id is None:
        return []
    return [f"sacct -j {said.job_id}   # on {said.cluster}: what its accounting has"]


def said_of(run: Run, status: dict[str, Any]) -> BatchState | None:
    """The last word: the status has the newest."""
    newest = status.get("batch")
    if newest is not None:
        return msgspec.convert(newest, BatchState)
    task: Task | None = run.telling
    return None if task is None else task.batch_said


def is_command(line: str) -> bool:
    return line.startswith(("scontrol ", "sacct "))


def _utc(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
