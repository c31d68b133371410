"""Job files of `job submit -f FILE`: submission, dry run and validation. `job_document` reads them."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...client.api import random_ids
from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ...schema.fields import InvalidDocument, Problem, member
from ...schema.jobs.description import JobDescription, JobRuns, build_runs
from ...schema.jobs.plan_text import plan_lines
from ..session.session import Session
from .job_document import FileOptions, JobDocument, read_document
from .quota_warning import warn_of_quota

if TYPE_CHECKING:
    from ...client.sync_client import Job

#: Number of an array's runs that a message lists.
LISTED_RUNS = 3


def submit_file(s: Session, path: str, quiet: bool, options: FileOptions) -> None:
    """Submit all jobs of the file and print the computeJids, each job after those it waits for."""
    document, warnings = _checked(s, path, quiet, options)
    try:
        jobs = s.client().submit_description(document.data, credentials=document.credentials)
    except ClientError as e:
        raise _located(s, document, e) from None
    refused = [
        (name, r) for name, runs_ in jobs.items() for r in runs_ if isinstance(r, ClientError)
    ]
    if s.screen.json:
        items = [
            {"name": name, "runs": [_as_data(r) for r in runs_]} for name, runs_ in jobs.items()
        ]
        s.screen.value("jobscribe.job.submit-file/1", {"items": items, "warnings": warnings})
    for name, runs_ in jobs.items() if not s.screen.json else ():
        jids = [r.jid for r in runs_ if not isinstance(r, ClientError)]
        for jid in jids:
            s.screen.line(jid)
        if not quiet:
            more = f" and {len(jids) - LISTED_RUNS} more" if len(jids) > LISTED_RUNS else ""
            s.screen.message(f"submitted {name}: {', '.join(jids[:LISTED_RUNS])}{more}")
    for run_ in (r for runs_ in jobs.values() for r in runs_ if not s.screen.json):
        if not isinstance(run_, ClientError) and run_.submitted is not None:
            warn_of_quota(s, run_.submitted.raw)
    for name, error in refused:
        s.screen.message(f"{name}: {error.sentence}")
    if refused:
        raise SystemExit(125)


def dry_run(s: Session, path: str, quiet: bool, options: FileOptions) -> None:
    """Show the plan of each job, as the supervisor would run it. Submits nothing."""
    document, warnings = _checked(s, path, quiet, options)
    client = s.client()
    try:
        planned = build_runs(document.description, client.uid, random_ids.simulation_id)
    except InvalidDocument as e:
        raise _refused(s, document.located(e.problems), document.name) from None
    items: list[dict[str, Any]] = []
    problems = [p for job in planned if job.job.unique and (p := _taken(s, job)) is not None]
    for job in planned:
        try:
            # The plan shows dependencies by job name: computeJids do not exist yet.
            items.append(_item(job, client.plan(msgspec.structs.replace(job.specs[0], after=()))))
        except ClientError as e:
            if (problem := _refused_part(job.job, e)) is None:
                raise
            problems.append(problem)
    if problems:
        raise _refused(s, document.located(problems), document.name)
    if s.screen.json:
        s.screen.value("jobscribe.job.plan/1", {"items": items, "warnings": warnings})
        return
    for line in (line for item in items for line in plan_lines(item)):
        s.screen.line(line)


def _refused_part(job: JobDescription, error: ClientError) -> Problem | None:
    """Return the part of the job that the supervisor refused; None for another error."""
    roles = "roles" if job.spec.roles else ""
    parts = {"batchRefused": "batch", "queueRefused": "queue"} | dict.fromkeys(
        ("badRequest", "resourceExceeded", "tooLarge", "volumeRefused"), roles
    )
    if (part := parts.get(error.code)) is None:
        return None
    path = member(job.path, part) if part else job.path
    return Problem(path=path, problem=error.sentence, right=error.advice)


def _taken(s: Session, job: JobRuns) -> Problem | None:
    """Return a problem if the user has a job with this unique name."""
    jid = job.jids()[0]
    try:
        found = s.client().status(jid)
    except ClientError as e:
        if e.code != "notFound":
            raise
        return None
    return job.taken(found.state)


def _checked(
    s: Session, path: str, quiet: bool, options: FileOptions
) -> tuple[JobDocument, list[Problem]]:
    document, problems, warnings = read_document(
        path, options._replace(user=lambda: s.client().uid)
    )
    if options.for_openpai and document is not None and not document.openpai:
        raise click.UsageError(
            f"{options.for_openpai} with -f is for configurations of OpenPAI: put it into the file"
        )
    if not quiet and not s.screen.json:
        for warning in warnings:
            s.screen.message(warning.sentence("warning"))
    if problems or document is None:
        raise _refused(s, problems, path)
    return document, warnings


def _located(s: Session, document: JobDocument, error: ClientError) -> Refusal | ClientError:
    """Convert a supervisor error with problems to a refusal with lines of the file."""
    try:
        problems = msgspec.convert(error.more.get("problems"), list[Problem])
    except msgspec.ValidationError:
        jobs = document.description.jobs
        found = _refused_part(jobs[0], error) if len(jobs) == 1 else None
        if error.code != "queueRefused" or found is None:
            return error
        problems = [found]
    return _refused(s, document.located(problems), document.name)


def _refused(s: Session, problems: list[Problem], name: str) -> Refusal:
    if not s.screen.json:
        for problem in problems:
            s.screen.message(problem.sentence())
    many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return Refusal("badRequest", f"nothing was submitted: {many} in {name}", {"problems": problems})


def _item(job: JobRuns, plan: dict[str, Any]) -> dict[str, Any]:
    return {"name": job.job.name, "runs": len(job.specs), "after": _after(job.job), "plan": plan}


def _after(job: JobDescription) -> list[dict[str, str]]:
    return [{"job": wait.job, "on": wait.on} for wait in job.after]


def _as_data(run: "Job | ClientError") -> dict[str, Any]:
    if isinstance(run, ClientError):
        return run.body()
    assert run.submitted is not None
    return run.submitted.raw
