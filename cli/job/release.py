"""`jobscribe job release`: end of the debug hold of failed tasks."""

import click

from ...protocol.jobs.status import TaskStatus
from ..session.job_names import resolve_job
from ..session.session import command, session
from .tasks import task_name


@command()
@click.argument("name", metavar="JOB")
@click.option("--role", metavar="ROLE", help="Only tasks of this role.")
@click.option("--index", type=click.IntRange(0), metavar="I", help="With --role: only this task.")
def release(name: str, role: str | None, index: int | None) -> None:
    """End the debug hold of failed tasks: free their resources. The tasks keep their exits."""
    if index is not None and role is None:
        raise click.UsageError("--index requires --role")
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    before = client.tasks(jid)
    held = [
        t
        for t in before["tasks"]
        if t["state"] == TaskStatus.HELD
        and role in (None, t["role"])
        and index in (None, t["index"])
    ]
    state = client.release(jid, serial=before["computeJobSerial"], role=role, index=index)
    if s.screen.json:
        s.screen.value(
            "jobscribe.job.release/1",
            {"released": [task_name(t) for t in held], "status": state.raw},
        )
        return
    if not held:
        selected = (
            "no task"
            if role is None
            else f"no task of role {role}"
            if index is None
            else f"no task {role}/{index}"
        )
        s.screen.message(f"{jid}: {selected} is held for debugging; nothing was changed")
        return
    s.screen.message(
        f"{jid}: released {', '.join(map(task_name, held))}; the job is {state.sentence()}"
    )
