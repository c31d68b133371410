"""Endpoints of `/api/v2`."""

from collections.abc import Callable
from typing import Any

import msgspec

from ....db.events.events import job_stream
from ....db.events.state import Job, Run, Task
from ....db.records.event_text import data
from ....protocol.api.requests import JobLog
from ....protocol.errors import Refusal
from ..transport.request_handler import Handler
from . import documents, jobs, words
from .job_pages import job_page
from .version1 import log_address, usernames

#: Bytes of a log with `tail-mode`, and without it.
_TAIL, _WHOLE = 16 * 1024, 512 * 1024
_STREAMS = ("stdout", "stderr")
#: words in the types of events that are warnings
_WARNINGS = ("Refused", "Lost", "Failed", "Stop", "Held", "Retry", "Disconnected", "Noticed")


async def create(h: Handler) -> Any:
    """Submit a configuration for the sender."""
    uid = h.principal.uid
    if uid is None:
        raise Refusal("forbidden", "the server secret names no user; use an API token")
    done = await jobs.submitted(h, uid, invalid="InvalidProtocolError")
    message = f"Update job {done.name} for user {uid} successfully."
    h.reply(202, done.body(status=202, message=message))


async def job_list(h: Handler) -> Any:
    """Return jobs, filtered and in pages."""
    chosen, page = _filter(h), job_page(h.argument)
    rows = [
        row
        async for job, run in jobs.listed(h, usernames(h))
        if chosen(row := documents.row2(job, run))
    ]
    return page.answer(rows, len(rows))


def _filter(h: Handler) -> Callable[[dict[str, Any]], bool]:
    """Return the condition of `vc`, `state`, `jobPriority`, `keyword`, and of tags: a job has one of
    `tagsContain` and none of `tagsNotContain`.
    """
    wanted = {
        key: frozenset(text.split(","))
        for name, key in (
            ("vc", "virtualCluster"),
            ("state", "state"),
            ("jobPriority", "jobPriority"),
        )
        if (text := h.argument(name))
    }
    word = h.argument("keyword") or ""
    tags, others = (
        frozenset(text.split(",")) if (text := h.argument(name)) else frozenset[str]()
        for name in ("tagsContain", "tagsNotContain")
    )

    def chosen(row: dict[str, Any]) -> bool:
        return (
            (not tags or not tags.isdisjoint(row["tags"]))
            and others.isdisjoint(row["tags"])
            and all(row[key] in values for key, values in wanted.items())
            and (not word or any(word in row[k] for k in ("name", "username", "virtualCluster")))
        )

    return chosen


async def one(h: Handler) -> Any:
    """Return a job with its tasks."""
    return _detail(h, None)


async def attempt(h: Handler) -> Any:
    """Return an attempt of a job."""
    return _detail(h, _attempt(h))


def _detail(h: Handler, number: int | None) -> dict[str, Any]:
    uid = h.part("uid")
    job, run = jobs.found(h, uid, h.part("job"))
    made = documents.detail2(job, run, number, log_address(h, uid, documents.name_of(job.jid, run)))
    if made is None:
        raise _no_attempt(h)
    return made


def _attempt(h: Handler) -> int:
    text = h.part("attempt")
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise Refusal("badRequest", f"an attempt is a number from 0; got {ascii(text)[:40]}")
    return int(text)


def _no_attempt(h: Handler) -> Refusal:
    return Refusal(
        "notFound",
        f"job {h.part('job')!a} has no attempt {h.part('attempt')!a}",
        {"pai": "NoJobAttemptError"},
    )


async def config(h: Handler) -> Any:
    """Return the configuration with which a job was submitted."""
    h.set_header("Content-Type", "text/yaml; charset=utf-8")
    h.end(jobs.config(h, h.part("uid"), h.part("job")).encode())


async def execution_type(h: Handler) -> Any:
    """Stop a job."""
    await jobs.execution_type(h, h.part("uid"), h.part("job"))
    message = f"Execute job {h.part('job')} for user {h.part('uid')} successfully."
    h.reply(202, {"status": 202, "message": message})


async def add_tag(h: Handler) -> Any:
    """Add a tag to a job."""
    await jobs.tagged(h, h.part("uid"), h.part("job"), adds=True)
    message = f"Add tag for job {h.part('job')} for user {h.part('uid')} successfully."
    h.reply(200, {"status": 200, "message": message})


async def remove_tag(h: Handler) -> Any:
    """Remove a tag of a job."""
    await jobs.tagged(h, h.part("uid"), h.part("job"), adds=False)
    message = f"Delete tag from job {h.part('job')} for user {h.part('uid')} successfully."
    h.reply(200, {"status": 200, "message": message})


async def events(h: Handler) -> Any:
    """List the events of a job, the newest first. While the job waits, the first one is the reason."""
    job, run = jobs.found(h, h.part("uid"), h.part("job"))
    rows = [_event(e) for e in data(h.runs.engine.store.read(job_stream(job.jid)))]
    if (
        waits := h.runs.describe(h.runs.job(h.part("uid"), job.jid))["jobStatusMessage"]
    ) and run.busy:
        at = words.milliseconds(h.runs.now().wall)
        rows.append(_row("Warning", "Waiting", waits, at, None, None))
    if type_ := h.argument("type"):
        rows = [r for r in rows if r["type"] == type_]
    return {"totalCount": len(rows), "data": rows[::-1]}


def _event(line: dict[str, Any]) -> dict[str, Any]:
    name, token = line["type"], line["event"].get("token") or {}
    known = token if isinstance(token, dict) else {}
    warning = any(word in name for word in _WARNINGS)
    return _row(
        "Warning" if warning else "Normal",
        name,
        line["text"],
        words.milliseconds(line["at"]),
        known.get("role"),
        known.get("index"),
    )


def _row(
    type_: str, reason: str, message: str, at: int | None, role: str | None, index: int | None
) -> dict[str, Any]:
    return {
        "taskroleName": role,
        "taskIndex": index,
        "type": type_,
        "reason": reason,
        "message": message,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "sourceComponent": "jobscribe",
    }


async def task_attempts(h: Handler) -> Any:
    """List the executions of one task in an attempt: one, because a retry is a new attempt of all."""
    uid = h.part("uid")
    job, run, task = _task(h)
    log = log_address(h, uid, documents.name_of(job.jid, run))
    return {"taskRoleName": task.token.role, "taskIndex": task.token.index} | {
        "totalCount": 1,
        "data": [documents.execution(task, log)],
    }


def _task(h: Handler) -> tuple[Job, Run, Task]:
    job, run = jobs.found(h, h.part("uid"), h.part("job"))
    number, role, index = _attempt(h), h.part("role"), h.part("index")
    found = next((a for a in run.attempts if a.number == number + 1), None)
    for task in () if found is None else found.tasks:
        if (task.token.role, str(task.token.index)) == (role, index):
            return job, run, task
    raise Refusal(
        "notFound",
        f"attempt {number} of job {h.part('job')!a} has no task {role}-{index}"[:200],
        {"pai": "NoTaskLogError"},
    )


async def logs(h: Handler) -> Any:
    """List the addresses of a task's logs. tail-mode: they give the last 16 KiB."""
    uid = h.part("uid")
    job, run, task = _task(h)
    address = log_address(h, uid, documents.name_of(job.jid, run)).removesuffix("stdout")
    base = documents.filled(address, task)
    mode = "?tail-mode=true" if h.argument("tail-mode") == "true" else ""
    return {"locations": [{"name": s, "uri": f"{base}{s}{mode}"} for s in _STREAMS]}


async def log(h: Handler) -> Any:
    """Answer with the end of a task's log as text."""
    stream = h.part("stream")
    if stream not in _STREAMS:
        raise Refusal("notFound", f"there is no log {stream!a}", {"pai": "NoTaskLogError"})
    job, run, task = _task(h)
    h.owner = h.part("uid")
    request = JobLog(
        uid=h.part("uid"),
        compute_jid=job.jid,
        compute_job_serial=run.serial,
        attempt=task.token.attempt,
        role=task.token.role,
        index=task.token.index,
        stream=msgspec.convert(stream, JobLog.__annotations__["stream"]),
        tail=_TAIL if h.argument("tail-mode") == "true" else _WHOLE,
    )
    chunk, _ = await h.runs.read_log(request)
    h.services.unsent.check(h.owner, len(chunk.data))
    h.set_header("Content-Type", "text/plain; charset=utf-8")
    h.end(chunk.data)
