"""`jobscribe job retry`: the same request again, as a new run of the job."""

import click

from ...client.api.run_specs import newest_request
from ...protocol.errors import Refusal
from ...protocol.jobs.status import PENDING, RUNNING
from ..session.job_names import resolve_job
from ..session.session import command, session


@command()
@click.argument("name", metavar="JOB")
def retry(name: str) -> None:
    """Start a job again: the same request, as a new run of the job.

    Refused while the job waits or runs. The earlier run stays in the job's history.
    """
    s = session()
    jid = resolve_job(s, name)
    client = s.client_for(jid)
    state = client.status(jid)
    if state.state in (PENDING, RUNNING):
        raise Refusal(
            "conflict",
            f"{jid} is {state.state}; wait for its end ('jobscribe job wait {jid}'), "
            f"or cancel it first ('jobscribe job cancel {jid}')",
        )
    job = client.submit(newest_request(client.story(jid)), force_run=True)
    assert job.submitted is not None
    if s.screen.json:
        s.screen.value("jobscribe.job.retry/1", job.submitted.raw)
        return
    s.screen.line(job.jid)
    s.screen.message(f"started again ({job.submitted.sentence()})")
