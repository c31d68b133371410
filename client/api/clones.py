"""The operations of clones: a new job from the definition of an earlier one. No I/O.

A definition is a job file as plain data, or the fields of an app's run (`schema.jobs.job_file`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.api.requests import RunSpec
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.jobs.registry_login import RegistryLogin
from ...schema.fields import InvalidDocument
from ...schema.jobs.job_file import Definition, changed, define, parse_definition
from . import random_ids, requests
from .errors import ClientError, refused
from .operations import GetUid, Steps, for_user, submit_description, submit_run
from .replies import RunState
from .run_specs import newest_request


def definition(jid: str) -> Steps[Definition]:
    """Return the definition of the newest run of a job of this user. Raises ClientError."""
    uid: str = yield GetUid()
    owner = split_jid(jid)[0] if jid.count("-") >= 2 else ""
    if owner != uid:
        raise refused("forbidden", f"{jid} is no job of {uid}; only the user of a job can clone it")
    return define(newest_request((yield from for_user(requests.job_story, jid))))


def clone(jid: str, name: str | None, changes: Mapping[str, Any]) -> Steps[RunState]:
    """Submit the definition of a job with these changes. Raises ClientError."""
    found = yield from definition(jid)
    named = {} if name is None else {"simName" if found.app else "name": name}
    try:
        data = changed(found.data, {**changes, **named})
    except Refusal as e:
        raise refused(e.code, e.sentence) from None
    runs = yield from submit_definition(data, found.app, {})
    if isinstance(runs[0], ClientError):
        raise runs[0]
    return runs[0]


def submit_definition(
    data: object, app: bool, credentials: Mapping[str, RegistryLogin]
) -> Steps[list[RunState | ClientError]]:
    """Submit a definition; return its runs, several for an array. Raises ClientError with the
    problems in `more["problems"]`.
    """
    uid: str = yield GetUid()
    try:
        found = parse_definition(data, app)
    except InvalidDocument as e:
        error = refused("badRequest", e.sentence)
        error.more["problems"] = msgspec.to_builtins(e.problems)
        raise error from None
    if not isinstance(found, RunSpec):
        jobs = yield from submit_description(data, None, credentials)
        return [run for runs in jobs.values() for run in runs]
    sid = random_ids.simulation_id()
    inner = found.data or {}
    if "simulationId" in inner:
        inner = {**inner, "simulationId": sid}
    spec = msgspec.structs.replace(found, uid=uid, simulation_id=sid, data=inner)
    return [(yield from submit_run(spec))]
