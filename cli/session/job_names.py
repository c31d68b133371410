"""Resolves job names: the complete computeJid, a unique beginning of it or of its simulation id, or
`last`.
"""

import re
from typing import Any

from ...protocol.errors import Refusal
from .session import Session

_FULL_JID = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}\Z", re.ASCII)
_GROUP = re.compile(
    r"(?:([A-Za-z0-9]{8})-)?([A-Za-z0-9]{8})(?:-[A-Za-z][A-Za-z0-9_]{0,63})?\Z", re.ASCII
)
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,80}\Z", re.ASCII)
#: `last` is searched among this number of most recently changed jobs.
LAST_AMONG = 1000
#: Number of jobs listed if a name is ambiguous.
LISTED_JOBS = 5


def is_full_jid(name: str) -> bool:
    """Return whether this is a complete computeJid."""
    return _FULL_JID.match(name) is not None


def resolve_job(session: Session, name: str) -> str:
    """Return the computeJid for a name. Raises Refusal (badRequest, notFound) or ClientError."""
    if is_full_jid(name):
        return name
    if name == "last":
        return _last(session)
    if not _PREFIX.match(name):
        raise Refusal(
            "badRequest",
            f"not a job name: {ascii(name)[:60]}; give the computeJid, a beginning of it, or 'last'",
        )
    return _resolve_prefix(session, name)


def resolve_group(session: Session, name: str) -> tuple[str, str]:
    """Return (uid, simulation id) of a group. Its name is the simulation id, `<uid>-<simulation
    id>`, a computeJid of the group, or `last`.

    Raises Refusal (badRequest, notFound) or ClientError.
    """
    match = _GROUP.match(_last(session) if name == "last" else name)
    if match is None:
        raise Refusal(
            "badRequest",
            f"not a group name: {ascii(name)[:60]}; give a simulation id (8 letters or digits), a job of the group, or 'last'",
        )
    return match[1] or session.client().uid, match[2]


def _last(session: Session) -> str:
    from ..terminal.quantities import moment
    from .last_refusal import refusal_since

    rows = session.client().jobs(limit=LAST_AMONG).jobs
    newest = max(rows, key=lambda r: (r["queuedAt"], r["serial"]), default=None)
    refused = refusal_since(session, newest["queuedAt"] if newest is not None else 0.0)
    refusal_text = (
        ""
        if refused is None
        else f"your last submission ({moment(refused[0])}) was refused and created no job: {refused[1]}"
    )
    if newest is None:
        raise Refusal(
            "notFound",
            refusal_text or "you have no jobs yet",
            {"advice": "'jobscribe job list --all-users' lists the jobs of other users"},
        )
    if refusal_text:
        session.screen.message(f"{refusal_text}\n'last' is the previous job: {newest['jid']}")
    return str(newest["jid"])


def _resolve_prefix(session: Session, name: str) -> str:
    """Return the job that begins with `name`. The supervisor finds jobs by the beginning of their
    computeJid; users also know the simulation id in it, so their own uid is tried first.
    """
    from ...client.api.errors import ClientError

    client, near = session.client(), ""
    for text in [name] if "-" in name else [f"{client.uid}-{name}", name]:
        try:
            found = _jid(text, client.trace(text))
        except ClientError as e:
            # The supervisor refuses names of fewer than four characters: treat this as not found.
            if e.code != "notFound" and len(text) >= 4:
                raise
            found, near = None, near or e.sentence.partition("; near it: ")[2]
        if found is not None:
            return found
    raise Refusal("notFound", f"no job begins with {name}" + (f"; near it: {near}" if near else ""))


def _jid(name: str, answer: dict[str, Any]) -> str | None:
    """Return the matching job, or None. Raises Refusal if several match."""
    jids = [str(m["jid"]) for m in answer.get("matches") or [] if m.get("jid")]
    if len(jids) > 1:
        more = (
            f" and {len(jids) - LISTED_JOBS} more"
            + (" at least" if answer.get("moreMatches") else "")
            if len(jids) > LISTED_JOBS
            else ""
        )
        several = f"several jobs begin with {name}: {', '.join(jids[:LISTED_JOBS])}{more}"
        raise Refusal("badRequest", several, {"advice": "give more characters of the job's name"})
    job = answer.get("job")
    return str(job["jid"]) if isinstance(job, dict) else None
