"""Job files of `job submit -f FILE`: submission, dry run and validation."""

from typing import TYPE_CHECKING, Any

import msgspec

from ...client.api import random_ids
from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ...schema.fields import InvalidDocument, Problem, member
from ...schema.jobs.description import JobDescription, JobRuns, build_runs, parse_description
from ...schema.text import reader
from ..session.session import Session
from .plan_text import show

if TYPE_CHECKING:
    from ...client.sync_client import Job
    from ...schema.text.document import Tree

#: Number of an array's runs that a message lists.
LISTED_RUNS = 3


def submit_file(s: Session, path: str, quiet: bool) -> None:
    """Submit all jobs of the file and print the computeJids, each job after those it waits for."""
    tree, warnings = _checked(s, path, quiet)
    try:
        jobs = s.client().submit_description(tree.data)
    except ClientError as e:
        raise _located(s, tree, e) from None
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
    for name, error in refused:
        s.screen.message(f"{name}: {error.sentence}")
    if refused:
        raise SystemExit(125)


def dry_run(s: Session, path: str, quiet: bool) -> None:
    """Show the plan of each job, as the supervisor would run it. Submits nothing."""
    tree, warnings = _checked(s, path, quiet)
    client = s.client()
    try:
        planned = build_runs(parse_description(tree.data), client.uid, random_ids.simulation_id)
    except InvalidDocument as e:
        raise _refused(s, tree.located(e.problems), tree.name) from None
    items, problems = [], []
    for job in planned:
        try:
            # The plan shows dependencies by job name: computeJids do not exist yet.
            items.append(_item(job, client.plan(msgspec.structs.replace(job.specs[0], after=()))))
        except ClientError as e:
            if e.code not in (
                "badRequest",
                "batchRefused",
                "resourceExceeded",
                "tooLarge",
                "volumeRefused",
            ):
                raise
            part = "batch" if e.code == "batchRefused" else "roles" if job.job.spec.roles else ""
            path = member(job.job.path, part) if part else job.job.path
            problems.append(Problem(path=path, problem=e.sentence, right=e.advice))
    if problems:
        raise _refused(s, tree.located(problems), tree.name)
    if s.screen.json:
        s.screen.value("jobscribe.job.plan/1", {"items": items, "warnings": warnings})
        return
    for item in items:
        show(s.screen, item)


def checked(path: str) -> tuple["Tree | None", list[Problem], list[Problem]]:
    """Read a job file; return its document, its problems and its warnings, each with its line."""
    tree = None
    try:
        tree = reader.read(path, lenient=True)
        return tree, tree.problems, tree.located(parse_description(tree.data).warnings)
    except InvalidDocument as e:
        if tree is None:
            return tree, list(e.problems), []
        return (
            tree,
            sorted([*tree.problems, *tree.located(e.problems)], key=lambda p: p.line or 0),
            tree.located(e.warnings),
        )


def _checked(s: Session, path: str, quiet: bool) -> tuple["Tree", list[Problem]]:
    tree, problems, warnings = checked(path)
    if not quiet and not s.screen.json:
        for warning in warnings:
            s.screen.message(warning.sentence("warning"))
    if problems or tree is None:
        raise _refused(s, problems, path)
    return tree, warnings


def _located(s: Session, tree: "Tree", error: ClientError) -> Refusal | ClientError:
    """Convert a supervisor error with problems to a refusal with lines of the file."""
    try:
        problems = msgspec.convert(error.more.get("problems"), list[Problem])
    except msgspec.ValidationError:
        return error
    return _refused(s, tree.located(problems), tree.name)


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
