"""How our containers, volumes and networks are called on a host, and the labels they are found
again by. Pure.

Two deployments may share a host: what is not labelled with our deployment is never touched,
whatever it is called.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal

from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey, Token, parse_agent_key, parse_token, short_agent, short_op

Part = Literal["agent", "task", "relay", "network"]

DEPLOYMENT: Final = "jobscribe.deployment"
PART: Final = "jobscribe.part"
KEY: Final = "jobscribe.key"
UID: Final = "jobscribe.uid"
KIND: Final = "jobscribe.kind"
AGENT: Final = "jobscribe.agent"
STARTED: Final = "jobscribe.started"
JID: Final = "jobscribe.jid"
TOKEN: Final = "jobscribe.token"
OP: Final = "jobscribe.op"
#: What journald makes fields of: JOBSCRIBE_JID and so on.
LOGGED: Final = (JID, OP, UID, AGENT)

#: Of the names that are digests: two of a host's that live at a time never meet.
_HEX = 12
_KINDS = {"sequential": "s", "parallel": "p"}


def agent(key: AgentKey, of: str | None = None) -> str:
    """of: the deployment, where another one has the plain name."""
    plain = f"srj-{_KINDS[key.kind]}-{key.uid}"
    return plain if of is None else f"{plain}-{of}"


def task(uid: str, token: Token, of: str) -> str:
    return f"srj-t-{uid}-{_digest(f'{token}{of}')}"


def relay(of: str) -> str:
    return f"jobscribe-relay-{of}"


def links(of: str) -> str:
    """The volume with the socket that agents reach the supervisor by."""
    return f"jobscribe-links-{of}"


def network(token: Token, of: str) -> str:
    """The bridge of the gang that this task is one of: every attempt has its own."""
    return f"srj-n-{_digest(f'{token.jid}/{token.serial}/{token.attempt}{of}')}"


def labels(of: str, part: Part) -> dict[str, str]:
    """What everything of a deployment has."""
    return {DEPLOYMENT: of, PART: part}


def agent_labels(of: str, key: AgentKey, agent_id: str, started: float) -> dict[str, str]:
    return labels(of, "agent") | _of_key(key, started) | {AGENT: short_agent(agent_id)}


def task_labels(
    of: str, place: AgentKey, token: Token, op_id: str, started: float
) -> dict[str, str]:
    # of what is not said here an image may say what it likes
    return (
        labels(of, "task")
        | _of_key(place, started)
        | {JID: token.jid, TOKEN: str(token), OP: short_op(op_id), AGENT: ""}
    )


def network_labels(of: str, place: AgentKey, token: Token, started: float) -> dict[str, str]:
    return labels(of, "network") | _of_key(place, started) | {JID: token.jid}


def key_of(labels: Mapping[str, str] | None) -> AgentKey | None:
    """None: they do not say, or not in our words."""
    try:
        return parse_agent_key((labels or {}).get(KEY, ""))
    except Refusal:
        return None


def token_of(labels: Mapping[str, str] | None) -> Token | None:
    """The same for the token of a task."""
    try:
        return parse_token((labels or {}).get(TOKEN, ""))
    except Refusal:
        return None


def is_ours(labels: Mapping[str, str] | None, of: str, part: Part = "agent") -> bool:
    return labels is not None and labels.get(DEPLOYMENT) == of and labels.get(PART) == part


def filters(of: str, part: Part, **more: str) -> dict[str, list[str]]:
    """For the engine's lists: what has these labels; `more` by the last part of their names, as
    `key`.
    """
    wanted = {**labels(of, part), **{f"jobscribe.{k}": v for k, v in more.items()}}
    return {"label": [f"{k}={v}" for k, v in wanted.items()]}


def _of_key(key: AgentKey, started: float) -> dict[str, str]:
    return {KEY: str(key), UID: key.uid, KIND: key.kind, STARTED: str(int(started))}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HEX // 2).hexdigest()
