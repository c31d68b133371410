"""The file of clusters of the driver sbatch (YAML, `sbatch.clusters`): the parser. All mistakes are
reported together, with their lines.

Field names are those of `protocol.clusters.cluster` and, in `defaults`, of
`protocol.clusters.batch.BatchRequest`. Times have the forms of the configuration (`1:30`). Relative
paths are relative to the file.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from ...protocol.clusters.batch import BatchRequest
from ...protocol.clusters.cluster import Cluster, Clusters, Limits, LoginHost
from ...protocol.errors import Refusal
from ...schema.fields import InvalidValue
from ...schema.text.yaml_structs import (
    Fields,
    Notes,
    Part,
    Wrong,
    combined_refusal,
    matching,
    read_mapping,
    texts,
)
from ...schema.text.yaml_subset import LocatedMapping
from ..settings.value_parsers import seconds
from .cluster_rules import ClusterShape, check

MAX_CLUSTERS, MAX_LOGIN = 100, 50

_COUNT = "a whole number, at least 1"
_MIB = "a whole number of MiB, at least 1"
_TIME = "more than 0 seconds and at most a day"
#: The expected form of each field, for error messages.
FORMS = {
    "clusters": f"a list of 1 to {MAX_CLUSTERS} clusters, each a mapping with a name",
    "name": "letters, digits and -, at most 63",
    "access": "account, sudo, runuser or ssh",
    "login": f"a list of 1 to {MAX_LOGIN} hosts, each a mapping with host and keys",
    "methods": "a list of password, keyboard-interactive and publickey, each once",
    "users": "a mapping of user ids to unix users",
    "folder": "a path that starts with /, ~ or $, as in $SCRATCH or $HOME/work",
    "userRoot": "an absolute path on the cluster",
    "pythons": "a list of commands, such as python3.12 or /opt/python/bin/python3",
    "wheels": "the path of a folder with wheels",
    "link": "tls, ssh or direct",
    "supervisor": "host:port by which the cluster reaches the supervisor's listener for agents",
    "environment": "a mapping of names of variables to text",
    "runs": "a whole number of concurrent runs, from 1 to 100000",
    "runsPerUser": "a whole number of concurrent runs, from 1 to 10000",
    "pollSecs": _TIME,
    "pollMaxSecs": _TIME,
    "callSecs": _TIME,
    "startSecs": _TIME,
    "limitSlackSecs": _TIME,
    "defaults": "a mapping of default values of runs, such as partition, account and cores",
    "limits": "a mapping of limits, such as nodes, cores and timeLimitSecs",
    "setup": "lines of sh",
    "directives": "a list of sbatch options, such as [exclusive, reservation]",
    "host": "the name of a host, or an IP address",
    "port": "a port, from 1 to 65535",
    "keys": "a list of 1 to 50 host keys as ssh-keyscan prints them after the host's name, such as 'ssh-ed25519 AAAA...'",
    "via": "another host of the same form, as jump host",
    "timeLimitSecs": "more than 0 seconds and at most 366 days",
    "cluster": "left out",
    "partition": "the name of a partition",
    "account": "the name of an account",
    "qos": "the name of a QOS",
    "constraint": "features as sbatch accepts them, without blanks, as in 'cpu&amd'",
    "licenses": "licences, as in matlab:2",
    "nodes": _COUNT,
    "tasks": _COUNT,
    "tasksPerNode": _COUNT,
    "cores": _COUNT,
    "memoryMb": _MIB,
    "gpus": "a whole number, from 0 to 1000",
    "modules": "a list of names of modules, as in [gcc/12.2, openmpi]",
    "signalSecs": "a whole number of seconds, from 1 to 65535",
}


def load(path: str) -> Clusters:
    """Return the clusters in this file. Raises Refusal with all mistakes."""
    clusters, found = read(path)
    if clusters is not None:
        return clusters
    raise combined_refusal(f"the file of clusters {path}", found)


def read(path: str) -> tuple[Clusters | None, list[Refusal]]:
    """Return the clusters, or all mistakes of the file."""
    try:
        given = read_mapping(path, "sbatch.clusters", "clusters; etc/clusters.example.yml is one")
    except Refusal as e:
        return None, [e]
    notes = Notes(path)
    whole, shapes = _Reader(path, notes.wrong).shapes(given)
    check(path, whole, shapes, notes.wrong)
    found = notes.found()
    return (None, found) if found else (Clusters(clusters=tuple(map(_build_cluster, shapes))), [])


def _build_cluster(shape: ClusterShape) -> Cluster:
    values = dict(shape.cluster.values)
    if "runs" in values:
        values.setdefault("runs_per_user", min(values["runs"], 100))
    if shape.login:
        values["login"] = tuple(_build_host(host) for host in shape.login)
    if shape.defaults is not None:
        values["defaults"] = BatchRequest(**shape.defaults.values)
    if shape.limits is not None:
        values["limits"] = Limits(**shape.limits.values)
    return Cluster(**values)


def _build_host(host: Part) -> LoginHost:
    via = host.values.get("via")
    return LoginHost(**{**host.values, "via": None if via is None else _build_host(via)})


class _Reader:
    """Reads the file field by field, and records fields with a wrong form."""

    def __init__(self, path: str, wrong: Wrong) -> None:
        self._fields, self._wrong = (
            Fields(path, wrong, forms=FORMS, read=_READ, paths=("wheels",)),
            wrong,
        )

    def shapes(self, given: LocatedMapping) -> tuple[Part, list[ClusterShape]]:
        whole = self._fields.part(Clusters, given, "", left=("clusters",))
        parts = self._list(
            whole, "clusters", Cluster, MAX_CLUSTERS, ("login", "defaults", "limits")
        )
        return whole, [self._cluster(part) for part in parts]

    def _cluster(self, part: Part) -> ClusterShape:
        login = tuple(self._list(part, "login", LoginHost, MAX_LOGIN, ("via",)))
        for host in login:
            self._via(host)
        defaults = self._fields.inner(part, "defaults", BatchRequest, FORMS["defaults"])
        return ClusterShape(
            part, login, defaults, self._fields.inner(part, "limits", Limits, FORMS["limits"])
        )

    def _via(self, host: Part) -> None:
        """Read the jump host of a host, and its own jump host."""
        if host.given.get("via") is None:
            return
        via = self._fields.inner(host, "via", LoginHost, FORMS["via"], left=("via",))
        if via is not None:
            self._via(via)
            host.values["via"] = via

    def _list(
        self, whole: Part, name: str, type_: type[Any], most: int, left: Sequence[str]
    ) -> list[Part]:
        if name not in whole.given:
            return []
        value = whole.given[name]
        if not isinstance(value, list) or not 0 < len(value) <= most:
            self._fields.unfit(whole, name, value)
            return []
        prefix = f"{whole.where}." if whole.where else ""
        return self._fields.each(
            whole, type_, {f"{prefix}{name}[{n}]": each for n, each in enumerate(value)}, name, left
        )


# ---- values


def _long_seconds(value: Any) -> float:
    secs = seconds(value)
    if not 0 < secs <= 366 * 86400:
        raise InvalidValue("")
    return secs


def _count(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidValue("")
    return value


def _each(pattern: str) -> Callable[[Any], list[str]]:
    """Return a reader of a list of texts of this form, with at least one item."""
    form = re.compile(pattern, re.ASCII)

    def read(value: Any) -> list[str]:
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(v, str) and form.fullmatch(v) for v in value)
        ):
            raise InvalidValue("")
        return value

    return read


def _reject(value: Any) -> Any:
    raise InvalidValue("")


_READ: dict[str, Callable[[Any], Any]] = {
    "pollSecs": seconds,
    "pollMaxSecs": seconds,
    "callSecs": seconds,
    "startSecs": seconds,
    "limitSlackSecs": seconds,
    "timeLimitSecs": _long_seconds,
    "environment": texts,
    "pythons": _each(r"/?[A-Za-z0-9_.+][A-Za-z0-9_.+/-]{0,1023}"),
    "userRoot": matching(r"/[^\0-\x1f\x7f]{0,1023}"),
    "host": matching(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"
    ),
    "cluster": _reject,
    "gpus": _count,
    "nodes": _count,
    "tasks": _count,
    "cores": _count,
    "memoryMb": _count,
}
