"""How a person names a job: the whole computeJid, a unique beginning of it or of its simulation id, or `last`."""

import re
from typing import Any

from ..protocol.errors import Refusal
from .session import Session

_WHOLE = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}\Z", re.ASCII)
_GROUP = re.compile(r"(?:([A-Za-z0-9]{8})-)?([A-Za-z0-9]{8})(?:-[A-Za-z][A-Za-z0-9_]{0,63})?\Z", re.ASCII)
_BEGINNING = re.compile(r"[A-Za-z0-9_-]{1,80}\Z", re.ASCII)
#: `last` is looked for among so many jobs that changed last.
LAST_AMONG = 1000


def is_whole(name: str) -> bool:
    """Is this a computeJid in full?"""
    return _WHOLE.match(name) is not None


def whole(session: Session, name: str) -> str:
    """The computeJid that this name stands for. Raises Refusal (badRequest, notFound) or ClientError."""
    if is_whole(name):
        return name
    if name == "last":
        return _last(session)
    if not _BEGINNING.match(name):
        raise Refusal("badRequest", f"a job is named by its computeJid, a beginning of it, or 'last'; got {ascii(name)[:60]}")
    return _beginning(session, name)


def group_named(session: Session, name: str) -> tuple[str, str]:
    """(uid, simulation id) of a group: its simulation id, `<uid>-<simulation id>`, a computeJid of it, or `last`.

    Raises Refusal (badRequest, notFound) or ClientError.
    """
    match = _GROUP.match(_last(session) if name == "last" else name)
    if match is None:
        what = "a group is named by its simulation id (8 letters or digits), as it was printed, by one of its jobs, or by 'last'"
        raise Refusal("badRequest", f"{what}; got {ascii(name)[:60]}")
    return match[1] or session.client().uid, match[2]


def _last(session: Session) -> str:
    rows = session.client().jobs(limit=LAST_AMONG).jobs
    if not rows:
        raise Refusal("notFound", "there is no job yet")
    return str(max(rows, key=lambda r: (r["queuedAt"], r["serial"]))["jid"])


def _beginning(session: Session, name: str) -> str:
    """The supervisor finds jobs by the beginning of their computeJid; people know jobs by the simulation id, after their own uid."""
    from ..client.errors import ClientError

    client = session.client()
    for text in [name] if "-" in name else [f"{client.uid}-{name}", name]:
        try:
            found = _jid(client.trace(text))
        except ClientError as e:
            # Less than four characters cannot be asked for; that is no answer but "no".
            if e.code != "notFound" and len(text) >= 4:
                raise
            found = None
        if found is not None:
            return found
    raise Refusal("notFound", f"no job begins with {name}")


def _jid(answer: dict[str, Any]) -> str | None:
    job = answer.get("job")
    return str(job["jid"]) if isinstance(job, dict) else None
