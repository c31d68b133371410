"""Explain a running run, and the failures of its earlier attempts. Pure."""

from ...db.events.state import Run
from ...diagnosis.classification import classify_exit
from ...protocol.clusters.batch import BatchState
from . import batch_jobs, containers
from .ended_runs import add_last_output
from .phrases import Answer, add_attempts, add_diagnosis, exit_evidence, utc


def explain(answer: Answer, run: Run, batch: BatchState | None) -> None:
    """Fill the answer with the place where the run runs, and its start time."""
    jid, live = answer["computeJid"], run.live_tasks
    add_attempts(answer, run)
    answer["sentence"] = f"running since {utc(run.started_at)}"
    if run.spec.roles:
        started = sum(t.pid is not None for t in live)
        answer["sentence"] += f", {started} of {sum(r.tasks for r in run.spec.roles)} tasks now"
        answer["try"].append(f"jobscribe job tasks {jid}")
    elif live and batch is not None and batch.queued:
        answer["sentence"] = (
            f"started at {utc(run.started_at)}, then returned to its queue by Slurm"
        )
        answer["sentence"] += f": {batch.sentence}" if batch.sentence else ""
        answer["try"] += batch_jobs.queue_advice(batch) + batch_jobs.queue_commands(batch)
    elif live and batch is not None:
        nodes = f"{batch.nodes} of " if batch.nodes else ""
        answer["sentence"] += f" on {nodes}{batch.cluster}" + (
            f", as Slurm job {batch.job_id}" if batch.job_id else ""
        )
        answer["try"] += batch_jobs.queue_commands(batch)
    elif live:
        answer["sentence"] += f" as pid {live[0].pid} {containers.location(live[0])}"
    answer["try"].append(f"jobscribe job logs -f {jid}")


def add_earlier_failure(answer: Answer, run: Run) -> None:
    """Add the exit of the failed attempt or task of a live run."""
    if run.exit is not None:
        answer["evidence"].append(exit_evidence(run, run.exit))
        add_last_output(answer, run.exit)
        found = classify_exit(run.exit)
        if found.cause not in ("exit", "completed"):
            answer["evidence"].append(f"cause: {found.cause} ({found.confidence})")
        answer["evidence"] += [line for line in found.evidence if line not in answer["evidence"]]
    commands = answer["try"]
    add_diagnosis(answer, run)
    answer["try"] = list(dict.fromkeys([*commands, *answer["try"]]))
