"""Job files as text, for pages: what a user may request, all problems of a text with its dry run,
and its submission. The text may be a configuration of OpenPAI. Files that it names are not read.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec

from .....protocol.api.requests import JobCheck, JobOptions, JobTag, RunDescription, RunText
from .....protocol.errors import CODES, Refusal
from .....protocol.jobs.registry_login import RegistryLogin
from .....protocol.jobs.status import PURGED
from .....schema.fields import InvalidDocument, Problem, member
from .....schema.jobs.auth_file import login
from .....schema.jobs.description import JobRuns
from .....schema.jobs.equivalents import command_line, file_command, python_program
from .....schema.jobs.plan_text import plan_lines
from .....schema.openpai.conversion import version_of
from .....schema.openpai.document import Document, parse_document
from .....schema.openpai.draft import Options
from .....schema.text import reader
from .....schema.text.document import Tree
from ....core.runs import user_limits
from ....runs import job_options
from ....runs.groups import gently
from ....runs.service import RunService
from ...transport.request_handler import Handler
from .job_descriptions import checked_jobs, submit
from .run_plans import planner

#: A text of `reader.MAX_BYTES` may take twice as many bytes in JSON.
MAX_BODY = 3 * 2**20
#: Jobs whose plan is in an answer, and lines of all plans: a site may plan thousands of tasks.
MAX_PLANS, MAX_LINES = 50, 5_000
#: Runs that get their tags in one commit.
_TAGGED = 500
_NAME = "the text"
#: reqId of a check, which stores nothing.
_CHECK = "job-check"
_FILE = Problem(
    path="",
    problem="a file with credentials is read where a job is submitted, not from here",
    right="'jobscribe job submit -f', which reads this file",
)


class _Parsed(NamedTuple):
    """A text and its problems. document: None if its jobs have problems."""

    version: int
    document: Document | None
    problems: list[Problem]
    warnings: list[Problem]
    credentials: dict[str, RegistryLogin]


async def options(h: Handler) -> Any:
    request: JobOptions = h.parsed(JobOptions)
    clusters = h.services.clusters
    return {
        "state": "ok",
        "maxTextBytes": reader.MAX_BYTES,
        "clusters": [] if clusters is None else clusters.listing(request.uid),
        **job_options.options(
            h.runs.engine.policy, tuple(h.runs.drivers), request.uid, request.active_plan
        ),
    }


async def job_check(h: Handler) -> Any:
    request: JobCheck = h.parsed(JobCheck, MAX_BODY)
    h.owner = request.uid
    with _slot(h, request.uid):
        return await _checked(h, request)


def _slot(h: Handler, uid: str) -> AbstractContextManager[None]:
    """Hold a slot of the sender; the front end names its user in the request."""
    return h.runs.checks.hold(h.principal.uid or uid)


async def _checked(h: Handler, request: JobCheck) -> dict[str, Any]:
    parsed = await _parse(h.runs, request.text, request.uid, request.no_image)
    jobs: list[dict[str, Any]] = []
    document, problems, warnings = parsed.document, parsed.problems, parsed.warnings
    if document is not None and not problems:
        try:
            runs, _ = await checked_jobs(
                h.runs, _description(_CHECK, request.uid, parsed), request.active_plan
            )
            jobs = await _examined(h.runs, runs, request.plan)
        except InvalidDocument as e:
            problems = document.located(e.problems)
    return {
        "state": "ok",
        "openpai": parsed.version,
        "problems": [_unnamed(p) for p in problems],
        "warnings": [_unnamed(p) for p in warnings],
        "jobs": [] if problems else jobs,
        **({} if document is None or problems else _equivalents(parsed, request)),
    }


async def run_text(h: Handler) -> Any:
    request: RunText = h.parsed(RunText, MAX_BODY)
    h.log = h.log.bound(uid=request.uid)
    h.log("class=ServerReq api=api_runText reqId={}", request.req_id)
    with _slot(h, request.uid):
        parsed = await _parse(h.runs, request.text, request.uid, request.no_image)
    document = parsed.document
    if document is None or parsed.problems:
        raise _refusal(parsed.problems, parsed.warnings)
    try:
        reply = await submit(
            h.runs,
            _description(request.req_id, request.uid, parsed),
            plan=request.active_plan,
        )
    except Refusal as e:
        if (found := e.more.get("problems")) is None:
            raise
        located = document.located(msgspec.convert(found, tuple[Problem, ...]))
        raise _refusal(located, parsed.warnings) from None
    await _tag(h.runs, request, reply["jobs"])
    return {**reply, "warnings": [_unnamed(p) for p in parsed.warnings]}


def container_driver(runs: RunService) -> str:
    """Return the site's first driver with containers; "" if there is none."""
    containers = runs.engine.policy.containers
    return next((d for d in runs.drivers if d in containers), "")


async def _parse(runs: RunService, text: str, uid: str, no_image: bool) -> _Parsed:
    options = Options(uid, not no_image, "" if no_image else container_driver(runs))
    # in a thread: a text may have a megabyte
    return await asyncio.to_thread(_parsed, text, options)


def _parsed(text: str, options: Options) -> _Parsed:
    tree: Tree | None = None
    try:
        tree = reader.parse(text.encode(errors="replace"), _NAME, lenient=True)
        document = parse_document(tree, lambda: options)
    except InvalidDocument as e:
        if tree is None:
            return _Parsed(0, None, list(e.problems), [], {})
        found = sorted([*tree.problems, *tree.located(e.problems)], key=lambda p: p.line or 0)
        return _Parsed(version_of(tree.data), None, found, tree.located(e.warnings), {})
    problems, credentials = _credentials(document)
    return _Parsed(
        version_of(tree.data),
        document,
        [*tree.problems, *tree.located(problems)],
        tree.located(document.warnings),
        credentials,
    )


def _credentials(document: Document) -> tuple[list[Problem], dict[str, RegistryLogin]]:
    """Return the credentials in a configuration of OpenPAI, by their names in its description."""
    problems: list[Problem] = []
    known: dict[str, RegistryLogin] = {}
    if (converted := document.openpai) is None:
        return problems, known
    for source in converted.draft.logins:
        found = login(source.registry, source.username, source.password)
        if source.file:
            problems.append(msgspec.structs.replace(_FILE, path=source.path))
        elif found is None:
            said = "registry, user name or password is empty, too long or has a wrong form"
            right = "registryuri: host or host:port; username and password of that registry"
            problems.append(Problem(path=source.path, problem=said, right=right))
        else:
            known[source.name] = found
    secrets = {path.path for path in converted.paths if path.use == "secret"}
    seen = {p.path for p in problems}
    return [
        *problems,
        *(msgspec.structs.replace(_FILE, path=path) for path in sorted(secrets - seen)),
    ], known


def _description(req_id: str, uid: str, parsed: _Parsed) -> RunDescription:
    assert parsed.document is not None
    return RunDescription(
        req_id=req_id,
        uid=uid,
        description=parsed.document.data,
        credentials=parsed.credentials or msgspec.UNSET,
    )


async def _examined(
    runs: RunService, jobs: tuple[JobRuns, ...], with_plan: bool
) -> list[dict[str, Any]]:
    """Return the jobs, with the lines of their plans. Raises InvalidDocument with the problems that
    a submission would find at the site.
    """
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    left = MAX_LINES
    async for n, job in gently(list(enumerate(jobs))):
        row: dict[str, Any] = {"name": job.job.name, "runs": len(job.specs)}
        row["after"] = [{"job": wait.job, "on": wait.on} for wait in job.job.after]
        try:
            _check_taken(runs, job, problems)
            # the plan shows dependencies by the names of jobs
            spec = runs.checked(msgspec.structs.replace(job.specs[0], after=()))
            user_limits.applied(runs.engine.world, spec, runs.now())
            if (quota := runs.quota_refusal(spec.uid, spec.active_plan)) is not None:
                raise quota
            if with_plan and n < MAX_PLANS:
                plan = await asyncio.to_thread(planner(runs, spec))
                row["lines"] = _cut(plan_lines({**row, "plan": plan}), left)
                left -= len(row["lines"])
        except Refusal as e:
            problems.append(_problem(job, e))
        rows.append(row)
    if problems:
        raise InvalidDocument(problems)
    return rows


def _cut(lines: Iterable[str], most: int) -> list[str]:
    """Return the first lines, and a last one that says so if there are more."""
    found = list(itertools.islice(lines, max(most, 0) + 1))
    if len(found) > most:
        found[-1] = "  There is more: 'jobscribe job submit -f FILE --dry-run' shows all of it."
    return found


def _check_taken(runs: RunService, job: JobRuns, problems: list[Problem]) -> None:
    if not job.job.unique:
        return
    entry = runs.engine.durable(job.jids()[0])
    if entry is not None and (run := entry.job.run) is not None and run.status != PURGED:
        problems.append(job.taken(run.status))


def _problem(job: JobRuns, refusal: Refusal) -> Problem:
    """Return the refusal as a problem of the part of the job that it concerns."""
    roles = "roles" if job.job.spec.roles else ""
    parts = {"queueRefused": "queue", "batchRefused": "batch", "resourceExceeded": roles}
    part = parts.get(refusal.code, "")
    path = member(job.job.path, part) if part else job.job.path
    return Problem(path=path, problem=refusal.sentence, right=CODES[refusal.code].advice)


def _equivalents(parsed: _Parsed, request: JobCheck) -> dict[str, str]:
    """Return the command line and the Python program that do the same."""
    assert parsed.document is not None
    data = parsed.document.data
    assert isinstance(data, Mapping)
    file = "job.json" if request.text.lstrip().startswith("{") else "job.yaml"
    driver = f" --driver {data['driver']}" if "driver" in data else ""
    options = " --no-image" if request.no_image else driver
    command = file_command(file) + options if parsed.version else command_line(data, file)
    return {"command": command, "program": python_program(data)}


async def _tag(runs: RunService, request: RunText, jobs: Mapping[str, list[Any]]) -> None:
    """Add the tags to each run that was accepted."""
    if not request.tags:
        return
    jids = [j for replies in jobs.values() for r in replies if (j := r.get("computeJid"))]
    for begin in range(0, len(jids), _TAGGED):
        await asyncio.gather(
            *(
                runs.tag(JobTag(uid=request.uid, compute_jid=jid, add=request.tags))
                for jid in jids[begin : begin + _TAGGED]
            )
        )


def _refusal(problems: list[Problem], warnings: list[Problem]) -> Refusal:
    sentence = InvalidDocument(problems).sentence
    more = {
        "problems": [_unnamed(p) for p in problems],
        "warnings": [_unnamed(p) for p in warnings],
    }
    return Refusal("badRequest", sentence, more)


def _unnamed(problem: Problem) -> Problem:
    """Return the problem without the name of the text, which is no file."""
    return msgspec.structs.replace(problem, file=None)
