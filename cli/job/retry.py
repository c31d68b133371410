"""`jobscribe job retry`: the same request again, as a new run of the job."""

from typing import Any

import click
import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal
from ...protocol.jobs.status import PENDING, RUNNING
from ..session.job_names import resolve_job
from ..session.session import command, session

_REQUESTED = "RunRequested"


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
    job = client.submit(spec_of(client.story(jid)), force_run=True)
    assert job.submitted is not None
    if s.screen.json:
        s.screen.value("jobscribe.job.retry/1", job.submitted.raw)
        return
    s.screen.line(job.jid)
    s.screen.message(f"started again ({job.submitted.sentence()})")


def spec_of(story: dict[str, Any]) -> RunSpec:
    """Return the newest request of a job. story: the answer to `job-story`. Raises Refusal."""
    events = [stored["event"] for stored in story["events"]]
    requests = [event for event in events if event["type"] == _REQUESTED]
    if not requests:
        raise Refusal("notFound", "the request of this job is not stored any more; submit it anew")
    return msgspec.convert(requests[-1]["spec"], RunSpec)
