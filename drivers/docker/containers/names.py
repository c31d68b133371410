"""Names and labels of our containers, volumes and networks. Pure.

Two deployments may share a host: objects without the label of this deployment are never touched,
whatever their names.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal

from ....protocol.errors import Refusal
from ....protocol.ids import (
    AgentKey,
    AgentKind,
    Token,
    parse_agent_key,
    parse_token,
    short_agent,
    short_op,
)

Part = Literal["agent", "task", "relay", "network", "shell"]

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
#: Labels that journald stores as fields: JOBSCRIBE_JID and so on.
LOGGED: Final = (JID, OP, UID, AGENT)

#: Length of digests in names, in hex digits. Digests of concurrent objects on one host must not
#: collide.
_HEX = 12
_KINDS = {AgentKind.SEQUENTIAL: "s", AgentKind.PARALLEL: "p"}


def agent(key: AgentKey, deployment: str | None = None) -> str:
    """Return the name of an agent's container. deployment: set only if another deployment uses the
    plain name.
    """
    plain = f"srj-{_KINDS[key.kind]}-{key.uid}"
    return plain if deployment is None else f"{plain}-{deployment}"


def task(uid: str, token: Token, deployment: str) -> str:
    return f"srj-t-{uid}-{_digest(f'{token}{deployment}')}"


def shell(uid: str, token: Token, shell_id: str, deployment: str) -> str:
    """Return the name of the container for shells in the files of an ended task. shell_id: of the
    first one.
    """
    return f"srj-x-{uid}-{_digest(f'{token}{shell_id}{deployment}')}"


def relay(deployment: str) -> str:
    return f"jobscribe-relay-{deployment}"


def links(deployment: str) -> str:
    """Return the name of the volume with the socket through which agents reach the supervisor."""
    return f"jobscribe-links-{deployment}"


def network(token: Token, deployment: str) -> str:
    """Return the name of the bridge network of the task's gang. Every attempt has its own."""
    return f"srj-n-{_digest(f'{token.jid}/{token.serial}/{token.attempt}{deployment}')}"


def labels(deployment: str, part: Part) -> dict[str, str]:
    """Return the labels that all objects of a deployment have."""
    return {DEPLOYMENT: deployment, PART: part}


def agent_labels(deployment: str, key: AgentKey, agent_id: str, started: float) -> dict[str, str]:
    return labels(deployment, "agent") | _key_labels(key, started) | {AGENT: short_agent(agent_id)}


def task_labels(
    deployment: str, place: AgentKey, token: Token, op_id: str, started: float
) -> dict[str, str]:
    # A label that is not set here could be set by the image.
    return (
        labels(deployment, "task")
        | _key_labels(place, started)
        | {JID: token.jid, TOKEN: str(token), OP: short_op(op_id), AGENT: ""}
    )


def shell_labels(deployment: str, place: AgentKey, token: Token, started: float) -> dict[str, str]:
    return (
        labels(deployment, "shell")
        | _key_labels(place, started)
        | {JID: token.jid, TOKEN: str(token), OP: "", AGENT: ""}
    )


def network_labels(
    deployment: str, place: AgentKey, token: Token, started: float
) -> dict[str, str]:
    return labels(deployment, "network") | _key_labels(place, started) | {JID: token.jid}


def parse_agent_label(labels: Mapping[str, str] | None) -> AgentKey | None:
    """Return the agent key from the labels, or None if it is missing or malformed."""
    try:
        return parse_agent_key((labels or {}).get(KEY, ""))
    except Refusal:
        return None


def parse_token_label(labels: Mapping[str, str] | None) -> Token | None:
    """Return the token of a task from the labels, or None if it is missing or malformed."""
    try:
        return parse_token((labels or {}).get(TOKEN, ""))
    except Refusal:
        return None


def is_ours(labels: Mapping[str, str] | None, deployment: str, part: Part = "agent") -> bool:
    return labels is not None and labels.get(DEPLOYMENT) == deployment and labels.get(PART) == part


def filters(deployment: str, part: Part, **more: str) -> dict[str, list[str]]:
    """Return a filter for the engine's list calls. `more`: further labels without their common
    prefix, such as `key`.
    """
    wanted = {**labels(deployment, part), **{f"jobscribe.{k}": v for k, v in more.items()}}
    return {"label": [f"{k}={v}" for k, v in wanted.items()]}


def _key_labels(key: AgentKey, started: float) -> dict[str, str]:
    return {KEY: str(key), UID: key.uid, KIND: key.kind, STARTED: str(int(started))}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HEX // 2).hexdigest()
