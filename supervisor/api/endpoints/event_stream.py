"""The event log as server-sent events for front ends: durable, in order, resumable by position."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import tornado.iostream

from ....db.store.contract import Stored
from ....protocol.errors import Refusal
from ....protocol.ids import parse
from ...engine.event_feed import selector
from ..transport.request_handler import Handler

KEEPALIVE_SECS = 15.0
_POSITION = re.compile(r"-?[0-9]{1,18}\Z")


async def events(h: Handler) -> Any:
    """Stream the event log from a position on."""
    after = _position(h)
    uid, jid = h.argument("uid"), h.argument("computeJid")
    wanted = selector(
        None if uid is None else parse("uid", uid),
        None if jid is None else parse("computeJid", jid),
    )
    begin_stream(h)
    # send the position at once: a client that is cut off before the first event can resume from it
    h.write(f"id: {after}\n\n")
    await h.send()
    sending = asyncio.ensure_future(_send_all(h, h.runs.feed.follow(after, wanted, KEEPALIVE_SECS)))
    h.on_gone = sending.cancel
    try:
        await sending
    except asyncio.CancelledError:
        return None  # the client is gone
    return None


async def _send_all(h: Handler, pages: AsyncIterator[list[Stored]]) -> None:
    try:
        async for page in pages:
            if not h.admitted():
                h.log("an event stream ended: its API token or secret is not valid any more")
                h.cut()
                return
            h.write("".join(map(_sse, page)) or ": nothing new\n\n")
            await h.send()
    except tornado.iostream.StreamClosedError:
        return
    finally:
        await pages.aclose()  # type: ignore[attr-defined]


def begin_stream(h: Handler) -> None:
    h.set_header("Content-Type", "text/event-stream")
    h.set_header("X-Accel-Buffering", "no")


def event_body(stored: Stored) -> dict[str, Any]:
    """Return an event in the form of the API."""
    return {
        "position": stored.position,
        "stream": stored.stream,
        "version": stored.version,
        "event": stored.event,
    }


def _sse(stored: Stored) -> str:
    data = msgspec.json.encode(event_body(stored)).decode()
    return f"id: {stored.position}\nevent: {stored.event.__struct_config__.tag}\ndata: {data}\n\n"


def _position(h: Handler) -> int:
    text = h.request.headers.get("Last-Event-ID") or h.argument("after") or "0"
    if not _POSITION.match(text):
        raise Refusal("badRequest", f"a position is a number; got {ascii(text)[:40]}")
    after = int(text)
    return h.runs.engine.store.head() if after < 0 else after
