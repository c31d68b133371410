"""Job descriptions: check the whole description, then submit all of its runs or none."""

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .....protocol.api.requests import RunDescription, RunSimulation, RunSpec
from .....protocol.errors import CODES, Refusal
from .....protocol.ids import derived_id
from .....protocol.jobs.registry_login import LoginRef
from .....protocol.jobs.status import CANCELED, COMPLETED, ERROR
from .....schema.fields import InvalidDocument, Problem, element, member
from .....schema.jobs.description import (
    Description,
    JobDescription,
    JobRuns,
    build_runs,
    parse_description,
)
from .....schema.jobs.keys import Dependency
from ....core.resources import gang_allocator
from ....runs.registry_logins import login_id
from ....runs.service import RunService
from ...transport.request_handler import Handler

MAX_BYTES = 2**20
_SID_LENGTH = 8


async def run_description(h: Handler) -> Any:
    request: RunDescription = h.parsed(RunDescription, MAX_BYTES)
    h.log = h.log.bound(uid=request.uid)
    h.log("class=ServerReq api=api_runDescription reqId={}", request.req_id)
    return await submit(h.runs, request)


async def submit(
    service: RunService,
    request: RunDescription,
    config: str | msgspec.UnsetType = msgspec.UNSET,
    plan: str | None = None,
) -> dict[str, Any]:
    """Submit a job description. Return the replies of the runs by job name when they are durable.
    config: the text from which it was made, kept with its runs. plan: of the user's account.

    Raises Refusal; if the description has any problem, nothing is stored.
    """
    try:
        jobs, warnings = await checked_jobs(service, request, plan)
    except InvalidDocument as e:
        raise Refusal(
            "badRequest", e.sentence, {"problems": e.problems, "warnings": e.warnings}
        ) from None
    with _held(service, request, jobs) as refs:
        replies = await service.submit_each(_requests(request.req_id, jobs, config, refs))
    _check_replies(replies)
    left = iter(replies)
    return {
        "state": "ok",
        "jobs": {job.job.name: list(itertools.islice(left, len(job.specs))) for job in jobs},
        "warnings": warnings,
    }


async def checked_jobs(
    service: RunService, request: RunDescription, plan: str | None = None
) -> tuple[tuple[JobRuns, ...], tuple[Problem, ...]]:
    """Return the runs of each job, and warnings. A request whose runs are stored already is not
    checked against the site again. Raises InvalidDocument.
    """
    # in a thread: a short text may describe thousands of runs
    jobs, warnings = await asyncio.to_thread(
        _job_runs, request, service.checked, tuple(service.drivers), plan
    )
    if service.engine.store.receipt(request.uid, f"{request.req_id}.0") is None:
        _check_site(service, request.uid, jobs)
    return jobs, warnings


@contextlib.contextmanager
def _held(
    service: RunService, request: RunDescription, jobs: Sequence[JobRuns]
) -> Iterator[dict[str, LoginRef]]:
    """Hold the credentials of the request while its runs are submitted, and then for those that have
    not ended. Yield the references by the name of the job.
    """
    sent = request.credentials or {}
    refs: dict[str, LoginRef] = {}
    jids: dict[str, list[str]] = {}
    for n, job in enumerate(jobs):
        if job.job.logins:
            id_ = login_id(request.uid, f"{request.req_id}.{n}")
            jids[id_] = list(job.jids())
            logins = [sent[name] for name in job.job.logins]
            refs[job.job.name] = service.logins.hold(request.uid, id_, logins, jids[id_])
    try:
        yield refs
    finally:
        for id_, all_ in jids.items():
            ended = [jid for jid in all_ if not _is_busy(service, jid)]
            service.logins.submitted(request.uid, id_, ended)


def _is_busy(service: RunService, jid: str) -> bool:
    entry = service.engine.durable(jid)
    return entry is not None and entry.job.run is not None and entry.job.run.busy


def _requests(
    req_id: str,
    jobs: Sequence[JobRuns],
    config: str | msgspec.UnsetType,
    refs: Mapping[str, LoginRef],
) -> Iterator[RunSimulation]:
    runs = ((job.job, spec) for job in jobs for spec in job.specs)
    for n, (job, spec) in enumerate(runs):
        login = refs.get(job.name, msgspec.UNSET)
        spec = msgspec.structs.replace(spec, config=config, registry_login=login)
        only_new = job.unique or msgspec.UNSET
        yield RunSimulation(req_id=f"{req_id}.{n}", run=spec, only_new=only_new)


def _job_runs(
    request: RunDescription,
    check: Callable[[RunSpec], object],
    drivers: Collection[str],
    plan: str | None,
) -> tuple[tuple[JobRuns, ...], tuple[Problem, ...]]:
    """Return the checked runs of each job, and warnings. Raises InvalidDocument."""
    description = _with_plan(parse_description(request.description), plan)
    jobs = build_runs(description, request.uid, _ids(request))
    problems = []
    for job in jobs:
        path = job.job.path
        driver = job.job.spec.driver
        if driver and driver not in drivers:
            problems.append(
                Problem(
                    path=member(path, "driver"),
                    problem=f"unknown driver {driver!r}",
                    right=f"one of {', '.join(drivers)}",
                )
            )
            continue
        problems += _missing_logins(job.job, request.credentials or {})
        for spec in job.specs:
            try:
                check(spec)
            except Refusal as e:
                place = member(path, "batch") if e.code == "batchRefused" else path
                problems.append(Problem(path=place, problem=e.sentence, right=CODES[e.code].advice))
                break
    if problems:
        raise InvalidDocument(problems, description.warnings)
    return jobs, description.warnings


def _with_plan(description: Description, plan: str | None) -> Description:
    if plan is None:
        return description
    jobs = tuple(
        msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, active_plan=plan))
        for job in description.jobs
    )
    return msgspec.structs.replace(description, jobs=jobs)


def _missing_logins(job: JobDescription, sent: Collection[str]) -> list[Problem]:
    """Return a problem for each reference to credentials that the request does not have."""
    return [
        Problem(
            path=member(job.path, "registryAuth"),
            problem=f"the credentials in {name} were not sent with the job",
            right="'jobscribe job submit -f', which reads this file, or a client that sends them",
        )
        for name in job.logins
        if name not in sent
    ]


def _ids(request: RunDescription) -> Callable[[], str]:
    """Return a generator of new simulation ids, the same ones if the request is repeated."""
    content = hashlib.blake2b(
        msgspec.json.encode(request.description, order="deterministic"), digest_size=16
    ).hexdigest()
    numbers = itertools.count()

    def next_id() -> str:
        source = f"{request.uid}|{request.req_id}|{content}|{next(numbers)}"
        return derived_id(source.encode(), key=b"jobscribe description")[:_SID_LENGTH]

    return next_id


def _check_site(service: RunService, uid: str, jobs: Sequence[JobRuns]) -> None:
    """Check that the site has hosts for the jobs, and that earlier jobs they depend on exist.

    Raises InvalidDocument.
    """
    ours = {job.job.name for job in jobs}
    problems = []
    for job, plan in ((j.job, j.specs[0].active_plan) for j in jobs):
        if job.spec.roles and (lack := _too_much(service, job, plan)):
            problems.append(
                Problem(
                    path=member(job.path, "roles"),
                    problem=lack,
                    right="at most the resources of one host",
                )
            )
        problems += [
            p
            for n, wait in enumerate(job.after)
            if wait.job not in ours and (p := _never_fulfilled(service, uid, job, n, wait))
        ]
    if problems:
        raise InvalidDocument(problems)


def _too_much(service: RunService, job: JobDescription, plan: str | None) -> str | None:
    """Return why no host can fit its roles, if so. Runs on clusters were checked before."""
    policy, driver = service.engine.policy, service.driver(job.spec.driver)
    return (
        None
        if driver in policy.batch
        else gang_allocator.too_much(policy.nodes.get(driver, ()), job.spec.roles, plan)
    )


def _never_fulfilled(
    service: RunService, uid: str, job: JobDescription, n: int, wait: Dependency
) -> Problem | None:
    """Return a problem if the dependency can never be fulfilled."""
    path = element(member(job.path, "after"), n)
    try:
        run = service.job(uid, wait.job).job.run
    except Refusal as e:
        return Problem(path=path, problem=e.sentence, right="the computeJid of an existing job")
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
        problem=f"{wait.job} has already ended: {run.status}",
        right=f"on: any, or a job that can still end {wait.on}",
    )


def _check_replies(replies: Sequence[dict[str, Any]]) -> None:
    """Raise Refusal if a retry of the request may succeed, or if all runs were refused."""
    refused = [r for r in replies if "code" in r]
    again = [r for r in refused if CODES[r["code"]].retry] or (
        refused if len(refused) == len(replies) else []
    )
    if again:
        accepted = len(replies) - len(refused)
        result = (
            f"{accepted} of its {len(replies)} runs are stored; the same reqId does not submit them again"
            if accepted
            else "no run is stored"
        )
        raise Refusal(again[0]["code"], f"{again[0]['error']} ({result})")
