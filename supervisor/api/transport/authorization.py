"""Authorization of requests: which users a request names, and whether its sender may act for them.

Each route declares where its requests name their users (`Subject`). The server secret without an
actor may name any user, so its requests are not examined here.
"""

import asyncio
import enum
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from ....protocol.errors import Refusal
from ....protocol.ids import parse
from ...access.audit import Act
from ...access.authentication import Access
from ...access.principal import (
    Principal,
    RouteScope,
    check_all_users,
    check_scope,
    without_group,
)
from ...access.principal import check_subject as check_user

T = TypeVar("T")

#: Largest body that is examined in the event loop, in bytes.
_SMALL = 64 * 1024


class Subject(enum.Enum):
    """The place where a request names the users whom it concerns."""

    #: nowhere: it concerns no user
    NOBODY = enum.auto()
    #: it concerns all users or the site: administrators only
    ALL = enum.auto()
    #: the field `uid` of the body
    BODY = enum.auto()
    #: the same; without it, administrators get data of all users, and others their own
    BODY_OR_ALL = enum.auto()
    #: the same; without it, group admins get the data of their members and their own
    BODY_OR_MEMBERS = enum.auto()
    #: the field `run.uid`, or `uid` of each of `runs`
    RUN = enum.auto()
    RUNS = enum.auto()
    #: the query argument `uid`
    QUERY = enum.auto()
    #: the query arguments `uid` and `computeJid`; without both as in BODY_OR_ALL
    QUERY_OR_ALL = enum.auto()
    #: the part `{uid}` of the path
    PATH = enum.auto()
    #: the query argument `username`, which may list several; without it as in BODY_OR_ALL
    USERNAMES_OR_ALL = enum.auto()


class Rights(NamedTuple):
    """The rights that a route demands of its sender. name: in the audit trail."""

    name: str
    scope: RouteScope
    subject: Subject
    #: it is sent again and again, and recorded as a read is
    polls: bool = False
    #: it acts as the user, which administrators of a group may not
    as_user: bool = False
    #: a site may let all users read it
    shared: bool = False


class _Named(msgspec.Struct, rename="camel"):
    uid: str | None = None
    compute_jid: str | None = None


class _Run(msgspec.Struct, rename="camel"):
    uid: str | None = None
    simulation_id: str | None = None
    compute_model: str = "command"

    @property
    def jid(self) -> str:
        return f"{self.uid}-{self.simulation_id}-{self.compute_model}"


class _RunBody(msgspec.Struct):
    run: _Run


class _RunsBody(msgspec.Struct):
    runs: list[_Run]


class Found(NamedTuple):
    """The users and jobs that a request names. body: with the sender's uid if it had none. given: False
    for the members of the sender's groups, whom it does not name.
    """

    named: Iterable[tuple[str, str | None]]
    body: bytes
    given: bool = True


def check_route(principal: Principal, rights: Rights) -> None:
    """Check the part of the rights that needs no body. Raises Refusal: scopeMissing, forbidden."""
    check_scope(principal, rights.scope)
    if rights.subject is Subject.ALL:
        check_all_users(principal)


async def check_subjects(
    access: Access,
    principal: Principal,
    rights: Rights,
    peer: str,
    body: bytes,
    query: Callable[[str], str | None],
) -> bytes:
    """Return the body of the request, with its user. When this returns, acts for other users are
    on record. query: returns an argument of the query, or for PATH a part of the path. Raises Refusal.
    """
    if rights.as_user:
        principal = without_group(principal)
    found = await found_users(principal, rights.subject, body, query)
    others: dict[str, str | None] = {}
    for uid, jid in found.named:
        parse("uid", uid)
        if found.given:
            access.check_shard(uid)
        if principal.uid is None:
            continue  # the server secret names any user
        if rights.shared and access.open_lists and not principal.may_act_for(uid):
            continue
        check_user(principal, uid)
        if uid != principal.uid:
            others.setdefault(uid, jid)
    for uid, jid in others.items():
        act = Act(uid, rights.name, _valid_jid(jid), peer, rights.polls or rights.scope == "read")
        await access.audit.record(principal, act)
    return found.body


async def found_users(
    principal: Principal, subject: Subject, body: bytes, query: Callable[[str], str | None]
) -> Found:
    """Return the users whom a request names. query: see `check_subjects`. Raises Refusal."""
    match subject:
        case Subject.NOBODY | Subject.ALL:
            return Found((), body)
        case Subject.USERNAMES_OR_ALL:
            names = [n for n in (query("username") or "").split(",") if n]
            return Found([(name, None) for name in names], body)
        case Subject.QUERY | Subject.PATH:
            return Found(_one(query("uid"), None), body)
        case Subject.QUERY_OR_ALL:
            jid = query("computeJid")
            owner = () if jid is None else ((jid.partition("-")[0], jid),)
            return Found((*_one(query("uid"), None), *owner), body)
        case Subject.BODY | Subject.BODY_OR_ALL | Subject.BODY_OR_MEMBERS:
            named = _decoded(body, _Named)
            own = principal.uid
            if named.uid is None and own is not None:
                if subject is not Subject.BODY and principal.all_users:
                    return Found((), body)
                if subject is Subject.BODY_OR_MEMBERS and principal.role == "groupAdmin":
                    return Found([(uid, None) for uid in sorted(principal.members)], body, False)
                named.uid, body = own, _with_uid(body, own)
            return Found(_one(named.uid, named.compute_jid), body)
        case Subject.RUN:
            run = _decoded(body, _RunBody).run
            if run.uid is None and principal.uid is not None:
                run.uid = principal.uid
                body = _with_uid(body, principal.uid, "run")
            return Found(_one(run.uid, run.jid), body)
        case Subject.RUNS:
            large = len(body) > _SMALL
            runs = (
                await asyncio.to_thread(_decoded, body, _RunsBody)
                if large
                else _decoded(body, _RunsBody)
            ).runs
            return Found([(r.uid, r.jid) for r in runs if r.uid is not None], body)


def _one(uid: str | None, jid: str | None) -> tuple[tuple[str, str | None], ...]:
    return () if uid is None else ((uid, jid),)


def _decoded(body: bytes, type_: type[T]) -> T:
    """Return the named users of a request. Its other fields are skipped here and checked later, and
    so is that no field occurs twice.
    """
    try:
        return msgspec.json.decode(body, type=type_)
    except RecursionError:
        raise Refusal("tooDeep", "the request is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as e:
        raise Refusal("badRequest", f"invalid request: {str(e)[:200]}") from None


def _with_uid(body: bytes, uid: str, inner: str | None = None) -> bytes:
    """Return the JSON object with this uid, or with it in the object of the field `inner`."""
    fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if inner is None:
        fields["uid"] = uid
    else:
        fields[inner] = {
            **msgspec.json.decode(fields[inner], type=dict[str, msgspec.Raw]),
            "uid": uid,
        }
    return msgspec.json.encode(fields)


def _valid_jid(jid: str | None) -> str | None:
    """Return the id if it is one: an event has no other text of a request."""
    try:
        return None if jid is None else parse("computeJid", jid)
    except Refusal:
        return None
