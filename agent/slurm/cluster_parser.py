"""What a cluster has, by the words of scontrol, sinfo and sacctmgr: partitions with their limits
and nodes, accounts, QOS, its version.
"""

import re

from ...protocol.clusters.batch import Partition
from .command_lines import NODE_FIELDS, SEPARATOR
from .value_formats import seconds

_PAIR = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]*)=(\S*)")
_GPU = re.compile(r"(?:^|,)gpu(?::[^,:()]+)?:([0-9]{1,6})(?=[(,]|\Z)", re.IGNORECASE)
_VERSION = re.compile(r"(?:^|\n)\s*slurm(?:-wlm)?\s+([0-9][0-9A-Za-z.~+-]{0,40})", re.IGNORECASE)
_WORD = 256
#: Partitions, accounts or QOS beyond this are not told.
_MOST = 500


class _Kinds:
    """What the kinds of nodes of one partition have, the most of each."""

    def __init__(self) -> None:
        self.nodes = 0
        self.cores: int | None = None
        self.memory_mb: int | None = None
        self.gpus: int | None = None


def parse_partitions(shown: str, kinds: str) -> tuple[Partition, ...]:
    """shown: of `scontrol -o show partition`; kinds: of sinfo in our format."""
    have = _kinds(kinds)
    found: dict[str, Partition] = {}
    for line in shown.split("\n"):
        said: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            said.setdefault(key, value)
        name = said.get("PartitionName", "")
        if name and len(name) <= _WORD:
            found.setdefault(name, _partition(name, said, have.get(name, _Kinds())))
    if not found:
        found = {
            name: _seen(name, have[name], up=up, default=default)
            for name, (up, default) in _only_seen(kinds).items()
        }
    return tuple(found.values())[:_MOST]


def _partition(name: str, said: dict[str, str], kind: _Kinds) -> Partition:
    return Partition(
        name=name,
        default=said.get("Default", "").upper() == "YES",
        up=said.get("State", "UP").upper() == "UP",
        nodes=_count(said.get("TotalNodes", "")) if "TotalNodes" in said else kind.nodes or None,
        max_nodes=_count(said.get("MaxNodes", "")),
        min_nodes=_count(said.get("MinNodes", "")) or None,
        cores_per_node=_least(kind.cores, _count(said.get("MaxCPUsPerNode", ""))),
        memory_mb_per_node=_least(kind.memory_mb, _count(said.get("MaxMemPerNode", "")) or None),
        gpus_per_node=kind.gpus,
        time_limit_secs=seconds(said.get("MaxTime", "")),
        default_secs=seconds(said.get("DefaultTime", "")),
        accounts=_names(said.get("AllowAccounts", "")),
        qos=_names(said.get("AllowQos", "")),
    )


def _seen(name: str, kind: _Kinds, *, up: bool, default: bool) -> Partition:
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


def _kinds(text: str) -> dict[str, _Kinds]:
    found: dict[str, _Kinds] = {}
    for name, nodes, cores, memory, gres, _ in _lines(text):
        kind = found.setdefault(name.rstrip("*"), _Kinds())
        kind.nodes += _count(nodes) or 0
        kind.cores = _most(kind.cores, _count(cores))
        kind.memory_mb = _most(kind.memory_mb, _count(memory))
        kind.gpus = _most(kind.gpus, sum(int(n) for n in _GPU.findall(gres)))
    return found


def _only_seen(text: str) -> dict[str, tuple[bool, bool]]:
    """(is it up, is it the default one) of what sinfo shows: where scontrol said nothing at all."""
    return {f[0].rstrip("*"): (f[5] == "up", f[0].endswith("*")) for f in _lines(text)}


def _count(text: str) -> int | None:
    """`4`, `4+` (of unlike nodes the least); None: `UNLIMITED`, nothing."""
    text = text.removesuffix("+")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def _most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _names(text: str) -> tuple[str, ...]:
    """Nothing where all are allowed."""
    if text.upper() in ("", "ALL", "N/A", "(NULL)", "NONE"):
        return ()
    return tuple(dict.fromkeys(n[:_WORD] for n in text.split(",") if n))[:_MOST]


def parse_associations(
    out: str, cluster: str | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(accounts, QOS) of `associations(user)`, as they come. cluster: Slurm's own name, where one
    database has several.
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
    """`22.05.8`; nothing where it is not said."""
    match = _VERSION.search(out)
    return match[1] if match else ""
