"""Job descriptions: checked as a whole, then all of their runs are submitted, or none."""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from ....protocol.api.requests import RunDescription, RunMany, RunSpec
from ....protocol.errors import CODES, Refusal
from ....protocol.ids import derived_id
from ....protocol.jobs.status import CANCELED, COMPLETED, ERROR
from ....schema.fields import InvalidDocument, Problem, element, member
from ....schema.jobs.description import (
    DependencyWait,
    JobDescription,
    JobRuns,
    build_runs,
    parse_description,
)
from ...core.resources import gang_allocator
from ...runs.service import RunService
from ..transport.request_handler import Handler

MAX_BYTES = 2**20
_SID_LENGTH = 8


async def run_description(h: Handler) -> Any:
    request: RunDescription = h.parsed(RunDescription, MAX_BYTES)
    h.desk.log("class=ServerReq api=api_runDescription reqId={}", request.req_id, uid=request.uid)
    return await submit(h.desk, request)


async def submit(desk: RunService, request: RunDescription) -> dict[str, Any]:
    """What became of the runs of each job, by its name, durable. Raises Refusal: where anything is
    wrong nothing is stored.
    """
    try:
        # a short text may stand for thousands of runs: the loop serves others meanwhile
        made, warnings = await asyncio.to_thread(_made, request, desk.checked, tuple(desk.drivers))
        if desk.engine.store.receipt(request.uid, f"{request.req_id}.0") is None:
            _check_site(desk, request.uid, made)
    except InvalidDocument as e:
        raise Refusal(
            "badRequest", e.sentence, {"problems": e.problems, "warnings": e.warnings}
        ) from None
    specs = tuple(spec for job in made for spec in job.specs)
    replies = await desk.submit_many(RunMany(req_id=request.req_id, runs=specs))
    _check_replies(replies)
    left = iter(replies)
    return {
        "state": "ok",
        "jobs": {job.job.name: list(itertools.islice(left, len(job.specs))) for job in made},
        "warnings": warnings,
    }


def _made(
    request: RunDescription,
    check: Callable[[RunSpec], object],
    drivers: Collection[str],
) -> tuple[tuple[JobRuns, ...], tuple[Problem, ...]]:
    """Its runs, each of which may be submitted as it is, and what is doubtful. Raises
    InvalidDocument.
    """
    description = parse_description(request.description)
    made = build_runs(description, request.uid, _ids(request))
    problems = []
    for job in made:
        path = job.job.path
        if job.job.driver and job.job.driver not in drivers:
            there = f"one of {', '.join(drivers)}"
            problems.append(
                Problem(
                    path=member(path, "driver"),
                    problem=f"there is no driver {job.job.driver!r}",
                    right=there,
                )
            )
            continue
        for spec in job.specs:
            try:
                check(spec)
            except Refusal as e:
                where = member(path, "batch") if e.code == "batchRefused" else path
                problems.append(Problem(path=where, problem=e.sentence, right=CODES[e.code].advice))
                break
    if problems:
        raise InvalidDocument(problems, description.warnings)
    return made, description.warnings


def _ids(request: RunDescription) -> Callable[[], str]:
    """Simulation ids that nobody has, and the same ones when the very same is asked again."""
    content = hashlib.blake2b(
        msgspec.json.encode(request.description, order="deterministic"), digest_size=16
    ).hexdigest()
    numbers = itertools.count()

    def fresh() -> str:
        what = f"{request.uid}|{request.req_id}|{content}|{next(numbers)}"
        return derived_id(what.encode(), key=b"jobscribe description")[:_SID_LENGTH]

    return fresh


def _check_site(desk: RunService, uid: str, made: Sequence[JobRuns]) -> None:
    """Has this site what they need: machines, and the jobs of earlier submissions that they wait
    for? Raises InvalidDocument.
    """
    ours = {job.job.name for job in made}
    problems = []
    for job, plan in ((j.job, j.specs[0].active_plan) for j in made):
        if job.roles and (lack := _too_much(desk, job, plan)):
            problems.append(
                Problem(
                    path=member(job.path, "roles"),
                    problem=lack,
                    right="what one of the machines has",
                )
            )
        problems += [
            p
            for n, wait in enumerate(job.after)
            if wait.job not in ours and (p := _never(desk, uid, job, n, wait))
        ]
    if problems:
        raise InvalidDocument(problems)


def _too_much(desk: RunService, job: JobDescription, plan: str | None) -> str | None:
    """Why its roles could never have places. What a batch scheduler cannot give was told when its
    runs were checked.
    """
    policy, driver = desk.engine.policy, desk.driver(job.driver)
    return (
        None
        if driver in policy.batch
        else gang_allocator.too_much(policy.nodes.get(driver, ()), job.roles, plan)
    )


def _never(
    desk: RunService, uid: str, job: JobDescription, n: int, wait: DependencyWait
) -> Problem | None:
    """Will what it waits for never come, as far as that is known?"""
    path = element(member(job.path, "after"), n)
    try:
        run = desk.job(uid, wait.job).job.run
    except Refusal as e:
        return Problem(path=path, problem=e.sentence, right="the computeJid of a job that is there")
    wanted = {"ok": (COMPLETED,), "failed": (ERROR, CANCELED)}.get(wait.on)
    if (
        wanted is None
        or run is None
        or run.busy
        or run.status not in (COMPLETED, ERROR, CANCELED)
        or run.status in wanted
    ):
        return None
    return Problem(
        path=path,
        problem=f"{wait.job} has ended already: {run.status}",
        right=f"on: any, or a job that may end {wait.on}",
    )


def _check_replies(replies: Sequence[dict[str, Any]]) -> None:
    """Raises Refusal where the same request is to be sent again (the store fails, we are stopping),
    or all is refused.
    """
    refused = [r for r in replies if "code" in r]
    again = [r for r in refused if CODES[r["code"]].retry] or (
        refused if len(refused) == len(replies) else []
    )
    if again:
        taken = len(replies) - len(refused)
        held = (
            f"{taken} of its {len(replies)} runs are on file; the same reqId does not submit them again"
            if taken
            else "none is on file"
        )
        raise Refusal(again[0]["code"], f"{again[0]['error']} ({held})")
