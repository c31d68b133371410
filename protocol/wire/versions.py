"""Versions of the protocol between supervisor and agent: the range that this version speaks, the
choice for one connection, and fields that older versions do not know. docs/compatibility.md has the
rules.

Version 1: a message with an unknown field ends the connection; no negotiation (jobscribe 0.1).
Version 2: unknown fields are ignored.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

#: The first version whose receivers ignore unknown fields.
TOLERANT = 2
_RANGE = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})\Z")


class Protocols(NamedTuple):
    """A range of protocol versions, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest}-{self.newest}"


#: What this version speaks. The newest version of the previous release stays in the range.
SPOKEN = Protocols(1, 2)
#: What a peer speaks that states no range.
UNSTATED = Protocols(1, 1)

#: Path of a field, its message's op first, in names of the wire -> the first protocol version that
#: has it. Such a field has the default `msgspec.UNSET`. A path leads through lists without an index.
LATER_FIELDS: Mapping[tuple[str, ...], int] = {
    ("run", "spec", "box", "login"): 2,
    ("run_tasks", "tasks", "spec", "box", "login"): 2,
    ("run_status_update", "execution", "exit", "core"): 2,
    ("snapshot", "executions", "exit", "core"): 2,
    ("run", "spec", "profile"): 2,
    ("run_tasks", "tasks", "spec", "profile"): 2,
    ("run_status_update", "execution", "notices"): 2,
    ("snapshot", "executions", "notices"): 2,
    ("run_status_update", "execution", "exit", "notices"): 2,
    ("snapshot", "executions", "exit", "notices"): 2,
    ("run", "spec", "box", "sshPort"): 2,
    ("run_tasks", "tasks", "spec", "box", "sshPort"): 2,
    ("run", "spec", "debugSecs"): 2,
    ("run_tasks", "tasks", "spec", "debugSecs"): 2,
    ("run_status_update", "execution", "heldUntil"): 2,
    ("snapshot", "executions", "heldUntil"): 2,
    ("alive", "debugHolds"): 2,
    ("cluster_report", "news", "partitions", "state"): 2,
    ("cluster_report", "news", "partitions", "nodeGroups"): 2,
}

#: Op of a request -> the first protocol version that has it. An older agent never answers it.
LATER_REQUESTS: Mapping[str, int] = {
    "digest_file": 2,
    "store_file": 2,
    "list_stops": 2,
    "attach_debugger": 2,
    "debugger_io": 2,
    "open_shell": 2,
    "shell_io": 2,
    "release_hold": 2,
}


def common(own: Protocols, other: Protocols) -> int | None:
    """Return the highest version that both ranges contain; None if there is none."""
    highest = min(own.newest, other.newest)
    return highest if highest >= max(own.oldest, other.oldest) else None


def parse_range(text: str | None) -> Protocols:
    """Return the range of a peer's header; UNSTATED if it sent none or an unknown format."""
    match = None if text is None else _RANGE.match(text)
    if match is None:
        return UNSTATED
    stated = Protocols(int(match[1]), int(match[2]))
    return stated if stated.oldest <= stated.newest else UNSTATED


def refusal(own_side: str, own: Protocols, peer_side: str, peer: Protocols) -> str:
    """Return the sentence about two ranges without a common version, with the remedy."""
    older, newer = (peer_side, own_side) if peer.newest < own.oldest else (own_side, peer_side)
    return (
        f"{peer_side} speaks protocol versions {peer}, {own_side} speaks {own}: none in common."
        f" Jobs keep running. Upgrade {older}, or go back to an older version for {newer}: the"
        " page compatibility.md of the documentation says how"
    )


def omit_later_fields(
    plain: dict[str, Any],
    protocol: int,
    later: Mapping[tuple[str, ...], int],
) -> None:
    """Remove the fields that this protocol version does not have from a message, in place."""
    for (op, *path), since in later.items():
        if since > protocol and plain.get("op") == op:
            remove_field(plain, path)


def remove_field(plain: Any, path: list[str]) -> bool:
    """Remove the field at `path` in all elements of lists on the way. Return whether there was
    one.
    """
    if isinstance(plain, list | tuple):
        return sum(remove_field(item, path) for item in plain) > 0
    if not isinstance(plain, dict) or path[0] not in plain:
        return False
    if len(path) > 1:
        return remove_field(plain[path[0]], path[1:])
    del plain[path[0]]
    return True
