"""Parsers for cluster facts from scontrol, sinfo and sacctmgr: partitions with limits and nodes,
accounts, QOS, Slurm version.
"""

import re

import msgspec
from msgspec import UNSET

from ...protocol.clusters.batch import NodeGroup, Partition
from ...protocol.ids import printable
from .command_lines import NODE_FIELDS, NODE_STATE_FIELDS, SEPARATOR
from .value_formats import parse_duration

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=(\S*)")
_GPU = re.compile(r"(?:^|,)gpu(?::[^,:()]+)?:([0-9]{1,6})(?=[(,]|\Z)", re.IGNORECASE)
_VERSION = re.compile(r"(?:^|\n)\s*slurm(?:-wlm)?\s+([0-9][0-9A-Za-z.~+-]{0,40})", re.IGNORECASE)
_WORD = 256
#: Upper limit for partitions, accounts and QOS that are reported.
_MOST = 500
#: Upper limits for the states of nodes in one partition, and for the length of a reason.
_GROUPS, _REASON = 20, 300


class _NodeKinds:
    """Node resources of one partition: the maximum over its kinds of nodes."""

    def __init__(self) -> None:
        self.nodes = 0
        self.cores: int | None = None
        self.memory_mb: int | None = None
        self.gpus: int | None = None


def parse_partitions(shown: str, kinds: str, states: str = "") -> tuple[Partition, ...]:
    """Parse partitions. shown: output of `scontrol -o show partition`. kinds, states: output of
    sinfo in our two formats.

    If scontrol lists no partition, the result comes from sinfo alone.
    """
    have = _parse_node_kinds(kinds)
    found: dict[str, Partition] = {}
    for line in shown.split("\n"):
        pairs: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            pairs.setdefault(key, value)
        name = pairs.get("PartitionName", "")
        if name and len(name) <= _WORD:
            found.setdefault(name, _partition(name, pairs, have.get(name, _NodeKinds())))
    if not found:
        found = {
            name: _partition_from_sinfo(name, have[name], up=up, default=default)
            for name, (up, default) in _sinfo_states(kinds).items()
        }
    groups = _parse_node_states(states)
    return tuple(
        msgspec.structs.replace(p, node_groups=groups.get(p.name, UNSET))
        for p in tuple(found.values())[:_MOST]
    )


def _parse_node_states(text: str) -> dict[str, tuple[NodeGroup, ...]]:
    found: dict[str, dict[tuple[str, str], int]] = {}
    for line in text.split("\n"):
        fields = [f.strip() for f in line.split(SEPARATOR, NODE_STATE_FIELDS - 1)]
        if len(fields) < NODE_STATE_FIELDS or not (count := _count(fields[1])):
            continue
        name, state, reason = fields[0].rstrip("*"), fields[2].lower()[:_WORD], fields[3]
        reason = "" if reason.lower() in ("none", "(null)") else printable(reason)[:_REASON]
        groups = found.setdefault(name, {})
        groups[state, reason] = groups.get((state, reason), 0) + count
    return {
        name: tuple(
            NodeGroup(state=state, nodes=count, reason=reason)
            for (state, reason), count in groups.items()
        )[:_GROUPS]
        for name, groups in found.items()
    }


def _partition(name: str, pairs: dict[str, str], kind: _NodeKinds) -> Partition:
    return Partition(
        name=name,
        default=pairs.get("Default", "").upper() == "YES",
        up=pairs.get("State", "UP").upper() == "UP",
        state=UNSET if (state := pairs.get("State", "UP").upper()) == "UP" else state[:_WORD],
        nodes=_count(pairs.get("TotalNodes", "")) if "TotalNodes" in pairs else kind.nodes or None,
        max_nodes=_count(pairs.get("MaxNodes", "")),
        min_nodes=_count(pairs.get("MinNodes", "")) or None,
        cores_per_node=_least(kind.cores, _count(pairs.get("MaxCPUsPerNode", ""))),
        memory_mb_per_node=_least(kind.memory_mb, _count(pairs.get("MaxMemPerNode", "")) or None),
        gpus_per_node=kind.gpus,
        time_limit_secs=parse_duration(pairs.get("MaxTime", "")),
        default_secs=parse_duration(pairs.get("DefaultTime", "")),
        accounts=_names(pairs.get("AllowAccounts", "")),
        qos=_names(pairs.get("AllowQos", "")),
    )


def _partition_from_sinfo(name: str, kind: _NodeKinds, *, up: bool, default: bool) -> Partition:
    return Partition(
        name=name,
        default=default,
        up=up,
        nodes=kind.nodes or None,
        cores_per_node=kind.cores,
        memory_mb_per_node=kind.memory_mb,
        gpus_per_node=kind.gpus,
    )


def _lines(text: str) -> list[list[str]]:
    lines = ([f.strip() for f in line.split(SEPARATOR)] for line in text.split("\n"))
    return [f for f in lines if len(f) == NODE_FIELDS and f[0].rstrip("*") and len(f[0]) <= _WORD]


def _parse_node_kinds(text: str) -> dict[str, _NodeKinds]:
    found: dict[str, _NodeKinds] = {}
    for name, nodes, cores, memory, gres, _ in _lines(text):
        kind = found.setdefault(name.rstrip("*"), _NodeKinds())
        kind.nodes += _count(nodes) or 0
        kind.cores = _most(kind.cores, _count(cores))
        kind.memory_mb = _most(kind.memory_mb, _count(memory))
        kind.gpus = _most(kind.gpus, sum(int(n) for n in _GPU.findall(gres)))
    return found


def _sinfo_states(text: str) -> dict[str, tuple[bool, bool]]:
    """Return (is up, is default) by partition name from sinfo output, for use without scontrol
    output.
    """
    return {f[0].rstrip("*"): (f[5] == "up", f[0].endswith("*")) for f in _lines(text)}


def _count(text: str) -> int | None:
    """Parse `4` or `4+` (the minimum over unlike nodes). None for `UNLIMITED` and empty text."""
    text = text.removesuffix("+")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list. An empty result means that all names are allowed."""
    if text.upper() in ("", "ALL", "N/A", "(NULL)", "NONE"):
        return ()
    return tuple(dict.fromkeys(n[:_WORD] for n in text.split(",") if n))[:_MOST]


def parse_associations(
    out: str, cluster: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (accounts, QOS) from the output of `associations(user)`, in order of appearance.

    cluster: Slurm's cluster name, to filter an accounting database shared by several clusters.
    """
    accounts: dict[str, None] = {}
    qos: dict[str, None] = {}
    for line in out.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 3 or (cluster is not None and fields[0] != cluster):
            continue
        if fields[1]:
            accounts[fields[1][:_WORD]] = None
        qos.update(dict.fromkeys(q[:_WORD] for q in fields[2].split(",") if q))
    return tuple(accounts)[:_MOST], tuple(qos)[:_MOST]


def version(out: str) -> str:
    """Return the version, for example `22.05.8`, or "" if the output has none."""
    match = _VERSION.search(out)
    return match[1] if match else ""
