"""Endpoints of `/api/v1`."""

import re
from typing import Any

from ....protocol.errors import Refusal
from ....protocol.wire.handshake import PUBLIC_URL
from ..transport.request_handler import Handler
from . import clusters, documents, jobs

_BEARER = "Bearer "
#: An address in the header PUBLIC_URL. Only links in the answer to its sender begin with it.
_PUBLIC_URL = re.compile(
    r"https?://[A-Za-z0-9_.:\[\]-]{1,300}(/[A-Za-z0-9_./~-]{0,300})?", re.ASCII
)


async def token(h: Handler) -> Any:
    """Answer with the API token of the sender. The front end answers requests with a name and a
    password: the supervisor never reads the body of an unknown sender.
    """
    sender = h.principal
    if sender.token is None:
        raise Refusal("forbidden", "the sender has no API token")
    text = h.request.headers.get("Authorization", "").removeprefix(_BEARER)
    return {"token": text, "user": sender.uid, "admin": sender.role == "admin"}


async def job_list(h: Handler) -> Any:
    """List the jobs of the users in `username`; without it, all jobs that the sender may see."""
    return await _list(h, usernames(h))


async def user_job_list(h: Handler) -> Any:
    """Return the jobs of a user."""
    return await _list(h, [h.part("uid")])


async def _list(h: Handler, uids: list[str]) -> list[dict[str, Any]]:
    rows = [documents.row(job, run) async for job, run in jobs.listed(h, uids)]
    return sorted(rows, key=lambda r: -r["createdTime"])


def usernames(h: Handler) -> list[str]:
    """Return the users of a list; empty for all."""
    given = [name for name in (h.argument("username") or "").split(",") if name]
    everybody = h.route.shared and h.services.access.open_lists
    if given or everybody or h.principal.all_users or h.principal.uid is None:
        return given
    return [h.principal.uid]


async def create(h: Handler) -> Any:
    """Submit a job in the form of version 1."""
    return await _update(h, h.part("uid"), None)


async def update(h: Handler) -> Any:
    """Replace a job that is over."""
    return await _update(h, h.part("uid"), h.part("job"))


async def _update(h: Handler, uid: str, name: str | None) -> None:
    done = await jobs.submitted(h, uid, name)
    h.reply(202, done.body(message=f"update job {done.name} successfully"))


async def one(h: Handler) -> Any:
    """Return a job."""
    uid = h.part("uid")
    job, run = jobs.found(h, uid, h.part("job"))
    return documents.detail(job, run, log_address(h, uid, documents.name_of(job.jid, run)))


def log_address(h: Handler, uid: str, name: str) -> str:
    """Return the address of the standard output of a task, with {role}, {index} and {attempt}."""
    given = h.request.headers.get(PUBLIC_URL, "")
    site = given if _PUBLIC_URL.fullmatch(given) else f"{h.request.protocol}://{h.request.host}"
    path = f"/api/v2/jobs/{uid}~{name}/attempts/{{attempt}}/taskRoles/{{role}}/taskIndex/{{index}}"
    return f"{site}{path}/attempts/0/logs/stdout"


async def config(h: Handler) -> Any:
    """Answer with the configuration as it was submitted; as an object if it is JSON."""
    text = jobs.config(h, h.part("uid"), h.part("job"))
    h.set_header("Content-Type", "application/json")
    if not text.lstrip().startswith("{"):
        h.set_header("Content-Type", "text/yaml; charset=utf-8")
    h.end(text.encode())


async def ssh(h: Handler) -> Any:
    """Answer with the running tasks that accept ssh. Only `jobscribe job ssh` reaches them."""
    uid, name = h.part("uid"), h.part("job")
    job, run = jobs.found(h, uid, name)
    if not run.spec.ssh:
        why = (
            f"job {name!a} has no ssh ('ssh: true'); 'jobscribe job shell {job.jid}' opens a shell"
        )
    elif not documents.ssh_tasks(run):
        why = f"no task of job {name!a} runs now; 'jobscribe job why {job.jid}' says why"
    else:
        return documents.ssh(job, run)
    raise Refusal("notFound", why, {"pai": "NoJobSshInfoError"})


async def execution_type(h: Handler) -> Any:
    """Stop a job."""
    await jobs.execution_type(h, h.part("uid"), h.part("job"))
    h.reply(202, {"message": f"execute job {h.part('job')} successfully"})


async def delete(h: Handler) -> Any:
    """Stop a job, and remove its run directory and output."""
    await jobs.deleted(h, h.part("uid"), h.part("job"))
    h.reply(202, {"message": f"deleted job {h.part('job')} successfully"})


async def virtual_clusters(h: Handler) -> Any:
    """Return the queues as virtual clusters."""
    return clusters.all_clusters(h)


async def virtual_cluster(h: Handler) -> Any:
    """Return a queue as a virtual cluster."""
    return clusters.one_cluster(h, h.part("name"))
