"""What is said of a run that runs, and of what has failed while it goes on. Pure."""

from ...db.events.state import Run
from ...diagnosis.classification import classify_exit
from ...protocol.clusters.batch import BatchState
from . import batch_jobs, containers
from .ended_runs import spoken
from .phrases import Answer, attempts, diagnosed, says, utc


def running(answer: Answer, run: Run, said: BatchState | None) -> None:
    """Where it runs, and since when."""
    jid, live = answer["computeJid"], run.live_tasks
    attempts(answer, run)
    answer["sentence"] = f"it runs since {utc(run.started_at)}"
    if run.spec.roles:
        of_it = sum(t.pid is not None for t in live)
        answer["sentence"] += f", {of_it} of {sum(r.tasks for r in run.spec.roles)} tasks now"
        answer["try"].append(f"jobscribe job tasks {jid}")
    elif live and said is not None and said.queued:
        answer["sentence"] = (
            f"Slurm said that it was started at {utc(run.started_at)}, and has taken it back into its queue"
        )
        answer["sentence"] += f": {said.sentence}" if said.sentence else ""
        answer["try"] += batch_jobs.helps(said) + batch_jobs.commands(said)
    elif live and said is not None:
        on = f"{said.nodes} of " if said.nodes else ""
        answer["sentence"] += f" on {on}{said.cluster}" + (
            f", as Slurm job {said.job_id}" if said.job_id else ""
        )
        answer["try"] += batch_jobs.commands(said)
    elif live:
        answer["sentence"] += f" as pid {live[0].pid} {containers.where(live[0])}"
    answer["try"].append(f"jobscribe job logs -f {jid}")


def failed_before(answer: Answer, run: Run) -> None:
    """It goes on, and something of it has failed: how."""
    if run.exit is not None:
        answer["evidence"].append(says(run, run.exit))
        spoken(answer, run.exit)
        found = classify_exit(run.exit)
        if found.cause not in ("exit", "completed"):
            answer["evidence"].append(f"in a word: {found.cause} ({found.confidence})")
        answer["evidence"] += [line for line in found.evidence if line not in answer["evidence"]]
    commands = answer["try"]
    diagnosed(answer, run)
    answer["try"] = list(dict.fromkeys([*commands, *answer["try"]]))
