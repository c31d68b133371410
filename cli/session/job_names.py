"""How a person names a job: the whole computeJid, a unique beginning of it or of its simulation id,
or `last`.
"""

import re
from typing import Any

from ...protocol.errors import Refusal
from .session import Session

_WHOLE = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}\Z", re.ASCII)
_GROUP = re.compile(
    r"(?:([A-Za-z0-9]{8})-)?([A-Za-z0-9]{8})(?:-[A-Za-z][A-Za-z0-9_]{0,63})?\Z", re.ASCII
)
_BEGINNING = re.compile(r"[A-Za-z0-9_-]{1,80}\Z", re.ASCII)
#: `last` is looked for among so many jobs that changed last.
LAST_AMONG = 1000
#: So many are named where several are meant.
NAMED = 5


def is_whole(name: str) -> bool:
    """Is this a computeJid in full?"""
    return _WHOLE.match(name) is not None


def whole(session: Session, name: str) -> str:
    """The computeJid that this name stands for. Raises Refusal (badRequest, notFound) or
    ClientError.
    """
    if is_whole(name):
        return name
    if name == "last":
        return _last(session)
    if not _BEGINNING.match(name):
        raise Refusal(
            "badRequest",
            f"a job is named by its computeJid, a beginning of it, or 'last'; got {ascii(name)[:60]}",
        )
    return _beginning(session, name)


def group_named(session: Session, name: str) -> tuple[str, str]:
    """(uid, simulation id) of a group: its simulation id, `<uid>-<simulation id>`, a computeJid of
    it, or `last`.

    Raises Refusal (badRequest, notFound) or ClientError.
    """
    match = _GROUP.match(_last(session) if name == "last" else name)
    if match is None:
        what = "a group is named by its simulation id (8 letters or digits), as it was printed, by one of its jobs, or by 'last'"
        raise Refusal("badRequest", f"{what}; got {ascii(name)[:60]}")
    return match[1] or session.client().uid, match[2]


def _last(session: Session) -> str:
    from ..terminal.quantities import moment
    from .last_refusal import since

    rows = session.client().jobs(limit=LAST_AMONG).jobs
    newest = max(rows, key=lambda r: (r["queuedAt"], r["serial"]), default=None)
    refused = since(session, newest["queuedAt"] if newest is not None else 0.0)
    told = (
        ""
        if refused is None
        else f"your last submission ({moment(refused[0])}) was refused, so there is no job of it: {refused[1]}"
    )
    if newest is None:
        raise Refusal(
            "notFound",
            told or "there is no job yet",
            {"advice": "those of others: 'jobscribe job list --all-users'"},
        )
    if told:
        session.screen.say(f"{told}\n'last' is the job before it: {newest['jid']}")
    return str(newest["jid"])


def _beginning(session: Session, name: str) -> str:
    """The supervisor finds jobs by the beginning of their computeJid; people know jobs by the
    simulation id, after their own uid.
    """
    from ...client.api.errors import ClientError

    client, near = session.client(), ""
    for text in [name] if "-" in name else [f"{client.uid}-{name}", name]:
        try:
            found = _jid(text, client.trace(text))
        except ClientError as e:
            # Less than four characters cannot be asked for; that is no answer but "no".
            if e.code != "notFound" and len(text) >= 4:
                raise
            found, near = None, near or e.sentence.partition("; near it: ")[2]
        if found is not None:
            return found
    raise Refusal("notFound", f"no job begins with {name}" + (f"; near it: {near}" if near else ""))


def _jid(name: str, answer: dict[str, Any]) -> str | None:
    """The job that is meant. Raises Refusal where it may be one of several."""
    jids = [str(m["jid"]) for m in answer.get("matches") or [] if m.get("jid")]
    if len(jids) > 1:
        more = (
            f" and {len(jids) - NAMED} more" + (" at least" if answer.get("moreMatches") else "")
            if len(jids) > NAMED
            else ""
        )
        several = f"{name} is the beginning of several jobs: {', '.join(jids[:NAMED])}{more}"
        raise Refusal("badRequest", several, {"advice": "give more of the one that is meant"})
    job = answer.get("job")
    return str(job["jid"]) if isinstance(job, dict) else None
