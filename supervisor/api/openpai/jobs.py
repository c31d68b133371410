"""Operations of both versions: find, list, submit, start, stop and delete jobs."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml

from ....db.events.events import job_stream
from ....db.events.job_fold import evolve
from ....db.events.state import Job, Run
from ....db.store.contract import IndexRow
from ....protocol.api.requests import (
    MAX_CONFIG,
    JobTag,
    RunCancel,
    RunDescription,
    RunPurge,
    RunSimulation,
    RunSpec,
    RunStatusRequest,
)
from ....protocol.errors import Refusal
from ....protocol.ids import parse, split_jid
from ....protocol.jobs.registry_login import RegistryLogin
from ....protocol.jobs.roles import TaskRole
from ....protocol.jobs.status import PURGED
from ....protocol.redaction import is_secret
from ....schema.fields import InvalidDocument, quoted
from ....schema.jobs.auth_file import login
from ....schema.jobs.description import named_simulation
from ....schema.openpai.conversion import Converted, convert_configuration, version_of
from ....schema.openpai.draft import Options
from ....schema.text import reader
from ...runs.groups import gently
from ..endpoints.run_purge import purge
from ..endpoints.submission.job_descriptions import submit
from ..endpoints.submission.job_texts import container_driver
from ..transport.request_handler import Handler
from . import clusters

#: Rows that are read at once; rows that a list examines.
_PAGE, MOST_ROWS = 500, 50_000
#: Time that DELETE waits for the end of a job.
_END_SECS = 10.0
_MODEL = "command"
_HIDDEN = "******"


def found(h: Handler, uid: str, name: str) -> tuple[Job, Run]:
    """Return a job of this user by its name or its computeJid. Raises Refusal (notFound, with code
    NoJobError), the same one for an unknown job and for a job of another user.
    """
    missing = Refusal("notFound", f"user {uid} has no job {name!a}", {"pai": "NoJobError"})
    parse("uid", uid)
    try:
        jid = parse("computeJid", name)
    except Refusal:
        jid = parse("computeJid", f"{uid}-{named_simulation(uid, name)}-{_MODEL}")
    if split_jid(jid)[0] != uid or (entry := h.runs.engine.durable(jid)) is None:
        raise missing
    run = entry.job.run
    if run is None or run.status == PURGED:
        raise missing
    return entry.job, run


async def listed(h: Handler, uids: Sequence[str]) -> AsyncIterator[tuple[Job, Run]]:
    """Yield the jobs of these users, or of all; the latest change first."""
    store = h.runs.engine.store
    for uid in uids or (None,):
        before, count = None, 0
        while count < MOST_ROWS:
            rows = store.jobs(uid=uid, before=before, limit=_PAGE)
            async for row in gently(rows):
                if row.status != PURGED and (pair := _folded(h, row)) is not None:
                    yield pair
            count += len(rows)
            if len(rows) < _PAGE:
                break
            before = rows[-1].position


def _folded(h: Handler, row: IndexRow) -> tuple[Job, Run] | None:
    job: Job | None = h.runs.engine.world.jobs.get(row.jid) if row.busy else None
    if job is None:
        job = Job(jid=row.jid)
        for stored in h.runs.engine.store.read(job_stream(row.jid)):
            job = evolve(job, stored.event)  # type: ignore[arg-type]
    return None if job.run is None else (job, job.run)


class Submitted(NamedTuple):
    """A submitted job. warnings: sentences about parts of its configuration without effect."""

    name: str
    warnings: list[str]

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return the body of the answer with these fields."""
        return fields | ({"warnings": self.warnings} if self.warnings else {})


async def submitted(
    h: Handler, uid: str, name: str | None = None, *, invalid: str = "InvalidParametersError"
) -> Submitted:
    """Submit the configuration in the body. name: the one in the path, which must be its own.
    invalid: the code for a configuration with problems. Raises Refusal.
    """
    parse("uid", uid)
    raw = h.raw_body
    try:
        # in a thread: a configuration may have a megabyte
        converted = await asyncio.to_thread(_converted, raw, uid, _options(h, uid))
    except InvalidDocument as e:
        more = {"problems": e.problems, "pai": invalid}
        raise Refusal("badRequest", e.sentence, more) from None
    (job,) = converted.description.jobs
    if name is not None and name != job.name:
        raise Refusal("badRequest", f"the address names {name!a}, the configuration {job.name!a}")
    _check_queue(h, uid, job.spec.queue or "")
    _check_images(h, job.spec.roles)
    _check_storages(h, job.spec)
    request = RunDescription(
        req_id=f"rest-{secrets.token_hex(12)}",
        uid=uid,
        description=converted.data,
        credentials=_credentials(converted) or msgspec.UNSET,
    )
    h.log("class=ServerReq api=openpaiSubmit uid={} name={}", uid, job.name)
    await submit(h.runs, request, _kept(raw))
    return Submitted(job.name, [f"{w.path}: {w.problem}" for w in converted.warnings])


def _options(h: Handler, uid: str) -> Options:
    """Run the tasks in containers, unless the user chose to run them without their images."""
    given = h.argument("noImage")
    if given not in (None, "true", "false"):
        raise Refusal("badRequest", f"noImage must be true or false; got {ascii(given)[:40]}")
    if given == "true":
        return Options(uid, containers=False)
    return Options(uid, driver=container_driver(h.runs))


def _check_images(h: Handler, roles: Sequence[TaskRole]) -> None:
    """Refuse images on a site without containers. The same rule as of `job submit`: commands that
    were written for an image do not run without it unless the user says so.
    """
    image = next((r.image for r in roles if r.image), None)
    if image is not None and not container_driver(h.runs):
        raise Refusal(
            "badRequest",
            f"the configuration names the image {quoted(image)}, and this site runs tasks without containers",
            {
                "advice": "to run its commands without the image, with the programs of the hosts, "
                "add ?noImage=true to the address"
            },
        )


def _check_storages(h: Handler, spec: RunSpec) -> None:
    """Refuse names of storages that are no volumes of the pool."""
    volumes = h.runs.drivers[h.runs.driver(spec.driver)].capabilities.volumes
    for name in (v for role in spec.roles for v in role.volumes):
        if not name.startswith("/") and name not in volumes:
            known = ", ".join(sorted(volumes)) or "none"
            raise Refusal(
                "notFound",
                f"there is no storage {name!a}; there are: {known}",
                {"pai": "NoStorageError", "advice": "name one of these in `extras`"},
            )


def _converted(raw: bytes, uid: str, options: Options) -> Converted:
    tree = reader.parse(raw, "the configuration")
    if not version_of(tree.data):
        raise Refusal("badRequest", "the body is no configuration of OpenPAI, version 1 or 2")
    try:
        converted = convert_configuration(tree.data, options)
    except InvalidDocument as e:
        raise InvalidDocument(tuple(tree.located(e.problems)), e.warnings) from None
    files = [login for login in converted.draft.logins if login.file]
    if files or any(path.use == "secret" for path in converted.paths):
        raise Refusal(
            "badRequest",
            "a file with credentials is read where a job is submitted, not from here",
            {"advice": "submit this configuration with 'jobscribe job submit -f'"},
        )
    return converted


def _credentials(converted: Converted) -> dict[str, RegistryLogin]:
    """Return the credentials for registries in a configuration, by their names in its description."""
    out: dict[str, RegistryLogin] = {}
    for source in converted.draft.logins:
        found = login(source.registry, source.username, source.password)
        if found is None:
            raise Refusal(
                "badRequest", f"{source.path}: registry, user name or password has a wrong form"
            )
        out[source.name] = found
    return out


def _kept(raw: bytes) -> str | msgspec.UnsetType:
    """Return the text that is kept with the job. A configuration with secrets is written anew, without
    their values.
    """
    data = reader.parse(raw, "the configuration").data
    hidden = _hidden(data)
    text = raw.decode("utf-8-sig")
    if hidden != data:
        text = yaml.safe_dump(hidden, sort_keys=False, allow_unicode=True)
    return text if len(text) <= MAX_CONFIG else msgspec.UNSET


def _hidden(value: Any, secret: bool = False) -> Any:
    """Return the data without the values of secrets and passwords."""
    if isinstance(value, dict):
        return {k: _hidden(v, secret or k == "secrets" or is_secret(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_hidden(v, secret) for v in value]
    return _HIDDEN if secret and value is not None else value


def _check_queue(h: Handler, uid: str, name: str) -> None:
    """Refuse an unknown queue, and one of other users. Plans are checked at the submission."""
    queue = h.runs.engine.policy.queues.all.get(name)
    if name and queue is None:
        raise Refusal("notFound", f"there is no virtual cluster {name!a}", clusters.UNKNOWN)
    if queue is not None and not queue.plans and not queue.admits(uid, None):
        raise Refusal("forbidden", f"user {uid} is no member of the virtual cluster {name!a}")


def config(h: Handler, uid: str, name: str) -> str:
    """Return the configuration of a job. Raises Refusal (NoJobError, NoJobConfigError)."""
    _, run = found(h, uid, name)
    text = run.spec.config
    if not isinstance(text, str):
        raise Refusal(
            "notFound",
            f"job {name!a} was not made from a configuration that is kept here",
            {"pai": "NoJobConfigError"},
        )
    return text


async def execution_type(h: Handler, uid: str, name: str) -> None:
    """Start or stop a job. Starting an active job, or stopping an ended one, has no effect."""
    value = _value(h)
    job, run = found(h, uid, name)
    req_id = f"rest-{secrets.token_hex(12)}"
    if value == "STOP":
        if run.busy:
            request = RunCancel(
                req_id=req_id, uid=uid, compute_jid=job.jid, compute_job_serial=run.serial
            )
            await h.runs.cancel(request)
    elif not run.busy:
        await h.runs.submit(RunSimulation(req_id=req_id, run=run.spec, force_run=True))


async def tagged(h: Handler, uid: str, name: str, *, adds: bool) -> None:
    """Add the tag in the body to a job, or remove it. Raises Refusal (NoJobError, NoTagError)."""
    tag = parse("tag", _given(h) or "")
    job, _ = found(h, uid, name)
    if not adds and tag not in job.tags:
        raise Refusal(
            "notFound",
            f"job {name!a} has no tag {tag!a}; it has {', '.join(job.tags) or 'no tags'}",
            {"pai": "NoTagError"},
        )
    change = {"add" if adds else "remove": (tag,)}
    await h.runs.tag(msgspec.convert({"uid": uid, "computeJid": job.jid, **change}, JobTag))


def _given(h: Handler) -> str | None:
    """Return `value` in the body; None if there is none."""
    try:
        return msgspec.json.decode(h.raw_body, type=dict[str, str]).get("value")
    except msgspec.MsgspecError:
        return None


def _value(h: Handler) -> str:
    value = (_given(h) or "").upper()
    if value not in ("START", "STOP"):
        raise Refusal("badRequest", 'the body must be {"value": "START"} or {"value": "STOP"}')
    return value


async def deleted(h: Handler, uid: str, name: str) -> None:
    """Stop a job, and remove its run directory and output. Raises Refusal."""
    job, run = found(h, uid, name)
    if run.spec.driver in h.runs.engine.policy.batch:
        raise Refusal(
            "badRequest", f"the files of job {name!a} are on its cluster; remove them there"
        )
    if run.busy:
        req_id = f"rest-{secrets.token_hex(12)}"
        await h.runs.cancel(
            RunCancel(req_id=req_id, uid=uid, compute_jid=job.jid, compute_job_serial=run.serial)
        )
        reply = await h.runs.status(
            RunStatusRequest(uid=uid, compute_jid=job.jid, wait_secs=_END_SECS)
        )
        if not reply["over"]:
            raise Refusal("notReady", f"job {name!a} is being stopped; delete it again later")
    await purge(h.runs, RunPurge(uid=uid, compute_jid=job.jid, compute_job_serial=run.serial))
