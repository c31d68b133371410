"""`/live`: updates for one page, authenticated by a ticket that the front end signed for its user;
and the names of changed jobs, for the front end itself.
"""

import contextlib
import re
from typing import Any, Literal

import tornado.iostream

from ....protocol.errors import Refusal
from ....protocol.ids import parse
from ....service import tickets
from ...streams.live_updates import Subscription
from ..transport.request_handler import Handler
from .event_stream import begin_stream

MOST_JOBS = 20
MOST_TAIL = 512 * 1024
MOST_INDEX = 999_999
_NUMBER = re.compile(r"[0-9]{1,9}\Z")


async def live(h: Handler) -> Any:
    subscription = _subscription(h)
    h.log = h.log.bound(uid=subscription.uid)
    h.authenticated()
    with h.services.live.reader(subscription) as reader:
        h.on_gone = reader.leave
        begin_stream(h)
        stream = h.services.live.stream(reader)
        async with contextlib.aclosing(stream):
            try:
                async for block in stream:
                    h.write(block)
                    await h.send()
            except tornado.iostream.StreamClosedError:
                return None
            except Refusal as e:
                h.log("live updates ended: {}", e.sentence)
    h.finish()
    return None


async def job_changes(h: Handler) -> Any:
    with h.services.live.changes.reader() as reader:
        h.on_gone = reader.end
        h.set_header("Content-Type", "text/plain")
        stream = h.services.live.changes.stream(reader)
        async with contextlib.aclosing(stream):
            try:
                async for lines in stream:
                    if not h.admitted():
                        h.log("a stream of changes ended: its secret is not valid any more")
                        h.cut()
                        return None
                    h.write(lines)
                    await h.send()
            except tornado.iostream.StreamClosedError:
                return None
    h.finish()
    return None


def _subscription(h: Handler) -> Subscription:
    ticket, now = h.request.headers.get(tickets.HEADER, ""), h.runs.now().wall
    uid = h.services.secret.try_all(lambda keys: tickets.verify(keys, ticket, now))
    jids = tuple(dict.fromkeys(parse("computeJid", jid) for jid in h.arguments("computeJid")))
    if len(jids) > MOST_JOBS:
        raise Refusal("badRequest", f"a stream takes at most {MOST_JOBS} computeJids")
    logs = h.argument("logs")
    role = h.argument("role")
    return Subscription(
        uid=uid,
        jids=jids,
        logs=None if logs is None else parse("computeJid", logs),
        stream=_stream(h.argument("stream") or "stdout"),
        attempt=_number(h, "attempt", 1_000_000),
        role=None if role is None else parse("role", role),
        index=_number(h, "index", MOST_INDEX),
        tail=_number(h, "tail", MOST_TAIL),
        last_id=h.request.headers.get("Last-Event-ID", ""),
    )


def _number(h: Handler, name: str, most: int) -> int:
    text = h.argument(name) or "0"
    if not _NUMBER.match(text) or int(text) > most:
        raise Refusal("badRequest", f"{name} is a number, at most {most}; got {ascii(text)[:40]}")
    return int(text)


def _stream(text: str) -> Literal["stdout", "stderr"]:
    match text:
        case "stdout" | "stderr":
            return text
        case _:
            raise Refusal("badRequest", f"stream is stdout or stderr; got {ascii(text)[:40]}")
