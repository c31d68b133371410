"""The addresses of OpenPAI's REST interface. `{uid}` is OpenPAI's user name."""

import functools
from typing import Any

from ....protocol.errors import Refusal
from ..transport import shard_rules as rules
from ..transport.authorization import Subject
from ..transport.request_handler import Handler, QueryField, Route
from . import version1, version2, words

_Route = functools.partial(Route, errors=words.error)
_OF_USER, _JOB2 = "/api/v1/user/{uid}/jobs", "/api/v2/jobs/{uid}~{job}"
_JOB, _OWN = f"{_OF_USER}/{{job}}", Subject.PATH
_TASK = f"{_JOB2}/attempts/{{attempt}}/taskRoles/{{role}}/taskIndex/{{index}}/attempts"
_IMAGE = (
    QueryField(
        "noImage",
        "run the commands without their images",
        {"type": "string", "enum": ["true", "false"]},
    ),
)
_ALL = Subject.USERNAMES_OR_ALL


def _clusters(version: str) -> tuple[Route, Route]:
    """Return the addresses of virtual clusters, which the queues file defines."""
    path = f"{version}/virtual-clusters"
    one = f"{path}/{{name}}"
    return (
        _Route(path, version1.virtual_clusters, "read", Subject.NOBODY, ("GET",)),
        _Route(one, version1.virtual_cluster, "read", Subject.NOBODY, ("GET",)),
    )


ROUTES = (
    _Route("/api/v1/token", version1.token, "any", Subject.NOBODY),
    _Route(
        "/api/v1/jobs", version1.job_list, "read", _ALL, ("GET",), shared=True, merge=rules.PAI_JOBS
    ),
    _Route(_OF_USER, version1.user_job_list, "read", _OWN, ("GET",), shared=True),
    _Route(_OF_USER, version1.create, "control", _OWN, query=_IMAGE),
    _Route(_JOB, version1.one, "read", _OWN, ("GET",), shared=True),
    _Route(_JOB, version1.update, "control", _OWN, ("PUT",), query=_IMAGE),
    _Route(_JOB, version1.delete, "control", _OWN, ("DELETE",)),
    _Route(f"{_JOB}/config", version1.config, "read", _OWN, ("GET",)),
    _Route(f"{_JOB}/ssh", version1.ssh, "read", _OWN, ("GET",)),
    _Route(f"{_JOB}/executionType", version1.execution_type, "control", _OWN, ("PUT",)),
    *_clusters("/api/v1"),
    _Route("/api/v2/jobs", version2.job_list, "read", _ALL, ("GET",), merge=rules.PAI_JOBS2),
    _Route("/api/v2/jobs", version2.create, "control", Subject.NOBODY, query=_IMAGE),
    _Route(_JOB2, version2.one, "read", _OWN, ("GET",)),
    _Route(f"{_JOB2}/attempts/{{attempt}}", version2.attempt, "read", _OWN, ("GET",)),
    _Route(f"{_JOB2}/config", version2.config, "read", _OWN, ("GET",)),
    _Route(f"{_JOB2}/executionType", version2.execution_type, "control", _OWN, ("PUT",)),
    _Route(f"{_JOB2}/tag", version2.add_tag, "control", _OWN, ("PUT",)),
    _Route(f"{_JOB2}/tag", version2.remove_tag, "control", _OWN, ("DELETE",)),
    _Route(f"{_JOB2}/events", version2.events, "read", _OWN, ("GET",)),
    _Route(_TASK, version2.task_attempts, "read", _OWN, ("GET",)),
    _Route(f"{_TASK}/0/logs", version2.logs, "read", _OWN, ("GET",)),
    _Route(f"{_TASK}/0/logs/{{stream}}", version2.log, "read", _OWN, ("GET",)),
    *_clusters("/api/v2"),
)


async def _other(h: Handler) -> Any:
    raise Refusal(
        "notFound",
        f"there is nothing at {ascii(h.request.path)[:80]}",
        {"pai": "NoApiError", "advice": "docs/openpai.md lists the addresses"},
    )


#: All other addresses below those of OpenPAI.
OTHER = _Route("/api/v[12]/.*", _other, None, Subject.NOBODY, ("GET", "POST", "PUT", "DELETE"))
