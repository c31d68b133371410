"""`/live`: updates for one page, authenticated by a ticket that the front end signed for its user, or
by an API token; the output of a shell for the terminal of a page; and the names of changed jobs, for the
front end itself.

The rights of the user are looked up again before each block: a stream ends when its user may not see
all of it any more.
"""

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncGenerator
from typing import Any, Literal

import msgspec
import tornado.iostream

from ....protocol.errors import Refusal
from ....protocol.ids import parse, split_jid
from ....protocol.wire.messages import RelayId
from ....service import tickets
from ...access.audit import Act
from ...access.authentication import token_user
from ...access.principal import (
    Principal,
    check_all_users,
    check_scope,
    check_subject,
    without_group,
)
from ...runs.shells import DISABLED
from ...streams.live_updates import Subscription
from ..transport.request_handler import Handler
from .event_stream import begin_stream

MOST_JOBS = 20
MOST_TAIL = 512 * 1024
MOST_INDEX = 999_999
#: Lifetime of the stream of an administrator by the hook of a site, which only the front end can ask.
HOOK_SECS = 600.0
_NUMBER, _OFFSET = re.compile(r"[0-9]{1,9}\Z"), re.compile(r"[0-9]{1,15}\Z")


class _Viewer:
    """The user who reads a stream, with the rights that the user has now."""

    def __init__(self, h: Handler) -> None:
        self._access, self._until = h.services.access, math.inf
        ticket, now = h.request.headers.get(tickets.HEADER), h.runs.now()
        self._token = h.sender.token if ticket is None and h.sender is not None else None
        #: checked by a router, because another shard has the token
        self._limited = (
            h.sender if ticket is None and h.sender is not None and h.sender.limited else None
        )
        if self._limited is not None and self._limited.uid is not None:
            self.uid, self._admin = self._limited.uid, False
        elif self._token is None:
            self.uid, self._admin = h.services.secret.try_all(
                lambda keys: tickets.verify(keys, ticket or "", now.wall)
            )
            if self._admin:
                self._until = now.mono + HOOK_SECS
        else:
            self.uid, self._admin = self._token.uid, False
        self._users = self._access.users
        self.principal = self._found()
        check_scope(self.principal, "read")

    def _found(self) -> Principal:
        if self._token is not None:
            return self._access.holder(self._token)
        if (limited := self._limited) is not None:
            now = token_user(self._access.users, self.uid, limited.scopes)
            return msgspec.structs.replace(limited, role=now.role, members=now.members)
        if self._admin:
            return Principal(uid=self.uid, role="secretHolder")
        return self._access.person(self.uid)

    def sees(self, uid: str) -> bool:
        return self.principal.may_act_for(uid)

    def may_read(self, subscription: Subscription, mono: float) -> bool:
        """Return whether this subscription is still permitted. Its job of a user whose jobs were never
        seen is no reason against it: that job is missing for this user.
        """
        if self._access.users is not self._users:
            seen = [uid for uid in subscription.owners if self.sees(uid)]
            self._look_up()
            if not all(map(self.sees, seen)):
                self._until = -math.inf
        whole = subscription.of != "all" or self.principal.all_users
        return whole and self._is_admitted(mono)

    def may_use_shell(self, uid: str, mono: float) -> bool:
        """Return whether this user may use shells in the jobs of that one, which administrators of
        groups may not.
        """
        if self._access.users is not self._users:
            self._look_up()
        permitted = "debug" in self.principal.scopes
        return (
            permitted and without_group(self.principal).may_act_for(uid) and self._is_admitted(mono)
        )

    def _look_up(self) -> None:
        self._users = self._access.users
        self.principal = self._found()

    def _is_admitted(self, mono: float) -> bool:
        return mono < self._until and self._access.admits(self.principal)


async def live(h: Handler) -> Any:
    """Stream the changes of jobs, and the output of one, to a page; or the output of a shell."""
    viewer = _Viewer(h)
    if (shell_id := h.argument("shell")) is not None:
        return await _shell(h, viewer, shell_id)
    subscription = await _subscription(h, viewer)
    h.log = h.log.bound(uid=subscription.uid)
    h.authenticated()
    with h.services.live.reader(subscription, viewer.sees) as reader:
        h.on_gone = reader.leave
        begin_stream(h)
        stream = h.services.live.stream(reader)
        async with contextlib.aclosing(stream):
            try:
                async for block in stream:
                    if not viewer.may_read(subscription, h.runs.now().mono):
                        h.log("live updates ended: the rights of the user have changed")
                        break
                    h.write(block)
                    await h.send()
            except tornado.iostream.StreamClosedError:
                return None
            except Refusal as e:
                h.log("live updates ended: {}", e.sentence)
    h.finish()
    return None


async def _shell(h: Handler, viewer: _Viewer, shell_id: str) -> Any:
    """Stream the output of a shell, with the checks of `shell-use`."""
    try:
        msgspec.convert(shell_id, RelayId)
    except msgspec.ValidationError:
        raise Refusal("badRequest", "shell is the shellId of shell-open") from None
    jid = parse("computeJid", h.argument("computeJid") or "")
    owner, offset = split_jid(jid)[0], _offset(h)
    check_scope(viewer.principal, "debug")
    check_subject(without_group(viewer.principal), owner)
    if h.services.shells is None:
        raise Refusal("forbidden", DISABLED)
    h.log = h.log.bound(uid=viewer.uid)
    h.authenticated()
    if owner != viewer.uid:
        act = Act(owner, "shell-use", jid, h.peer, reads=True)
        await h.services.access.audit.record(viewer.principal, act)
    output = h.services.shells.output(owner, jid, shell_id, offset)
    # a refusal of the first part is the answer
    first = await anext(output)
    begin_stream(h)
    sending = asyncio.ensure_future(_send_shell(h, viewer, owner, first, output))
    h.on_gone = sending.cancel
    with contextlib.suppress(asyncio.CancelledError):  # the page is gone
        await sending
    return None


async def _send_shell(
    h: Handler,
    viewer: _Viewer,
    owner: str,
    part: dict[str, Any],
    output: AsyncGenerator[dict[str, Any], None],
) -> None:
    async with contextlib.aclosing(output):
        try:
            while viewer.may_use_shell(owner, h.runs.now().mono):
                h.write(b"event: shell\ndata: " + msgspec.json.encode(part) + b"\n\n")
                await h.send()
                try:
                    part = await anext(output)
                except StopAsyncIteration:
                    return
            h.log("the stream of a shell ended: the rights of the user have changed")
        except tornado.iostream.StreamClosedError:
            return
        except Refusal as e:
            gone = {"lost": e.sentence}
            h.write(b"event: shell\ndata: " + msgspec.json.encode(gone) + b"\n\n")


async def job_changes(h: Handler) -> Any:
    """Stream the names of changed jobs to a front end."""
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


async def _subscription(h: Handler, viewer: _Viewer) -> Subscription:
    """Return what the page asks for; acts for other users are on record. A named job that the user may
    not see is left in: the stream calls it missing, as one that does not exist. Raises Refusal.
    """
    principal, of = viewer.principal, _whose(h)
    if of == "all":
        check_all_users(principal)
    jids = tuple(dict.fromkeys(parse("computeJid", jid) for jid in h.arguments("computeJid")))
    if len(jids) > MOST_JOBS:
        raise Refusal("badRequest", f"a stream takes at most {MOST_JOBS} computeJids")
    logs, role = h.argument("logs"), h.argument("role")
    subscription = Subscription(
        uid=viewer.uid,
        jids=jids,
        of=of,
        users=principal.members if of == "group" else frozenset(),
        logs=None if logs is None else parse("computeJid", logs),
        stream=_stream(h.argument("stream") or "stdout"),
        attempt=_number(h, "attempt", 1_000_000),
        role=None if role is None else parse("role", role),
        index=_number(h, "index", MOST_INDEX),
        tail=_number(h, "tail", MOST_TAIL),
        last_id=h.request.headers.get("Last-Event-ID", ""),
    )
    others = dict.fromkeys(sorted(subscription.users))
    others |= {split_jid(jid)[0]: jid for jid in (*jids, *filter(None, (subscription.logs,)))}
    for uid, jid in others.items():
        if uid != viewer.uid and viewer.sees(uid):
            act = Act(uid, "live", jid, h.peer, reads=True)
            await h.services.access.audit.record(principal, act)
    return subscription


def _whose(h: Handler) -> Literal["own", "group", "all"]:
    match h.argument("of") or "own":
        case "own" | "group" | "all" as of:
            return of
        case other:
            raise Refusal("badRequest", f"of is own, group or all; got {ascii(other)[:40]}")


def _number(h: Handler, name: str, most: int) -> int:
    text = h.argument(name) or "0"
    if not _NUMBER.match(text) or int(text) > most:
        raise Refusal("badRequest", f"{name} is a number, at most {most}; got {ascii(text)[:40]}")
    return int(text)


def _offset(h: Handler) -> int:
    text = h.argument("offset") or "0"
    if not _OFFSET.match(text):
        raise Refusal("badRequest", f"offset is a number; got {ascii(text)[:40]}")
    return int(text)


def _stream(text: str) -> Literal["stdout", "stderr"]:
    match text:
        case "stdout" | "stderr":
            return text
        case _:
            raise Refusal("badRequest", f"stream is stdout or stderr; got {ascii(text)[:40]}")
