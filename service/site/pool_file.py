"""The file of a pool of container hosts (YAML, `docker.pool`): the parser. All mistakes are
reported together, with their lines.

Field names are those of `protocol.clusters.container_pool` (`memoryMb`), plus `tlsDir`: a folder
with one subfolder `<tlsDir>/<name>` for each host. Times have the forms of the configuration
(`1:30`), ranges are `200000-265535`. Relative paths are relative to the file.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...protocol.clusters.container_pool import Limits, Pool, PoolHost, Volume
from ...protocol.errors import Refusal
from ...schema.fields import InvalidValue
from ...schema.text.yaml_structs import (
    Fields,
    Notes,
    Part,
    Wrong,
    combined_refusal,
    read_mapping,
    texts,
)
from ...schema.text.yaml_subset import LocatedMapping
from ..settings.value_parsers import port_range, seconds
from .pool_rules import Shape, check

TLS_DIR = "tlsDir"

_SPAN = re.compile(r"([0-9]{1,10}) *- *([0-9]{1,10})", re.ASCII)
_GPU = re.compile(r"[0-9]{1,3}|(?:GPU|MIG)-[A-Za-z0-9/-]{1,100}", re.ASCII)
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_CORES, _MIB = "a whole number of cores, at least 1", "a whole number of MiB, at least 1"
#: The expected form of each field, for error messages.
FORMS = {
    "hosts": "a list of 1 to 1000 hosts, each a mapping with name, address, cpu and memoryMb",
    "image": "the name of an image with jobscribe's agent, as built by etc/docker/build.sh",
    "sequential": "a whole number of concurrent runs, from 1 to 10000",
    "parallel": "a whole number of concurrent runs, from 1 to 10000",
    "tasks": "a mapping of limits, such as pids, nofile and tmpMb",
    "network": "none, or the name of a network of the hosts",
    "relayNetwork": "host, or the name of a network of the hosts",
    "supervisor": "host:port by which the hosts reach the supervisor's listener for agents",
    "unixUsers": "the first and last number of unused unix user ids, as in 200000-265535",
    "taskSubnets": "a private IPv4 network of at least a /22, as in 10.208.0.0/12",
    "volumes": "a mapping of names to volumes, each with source and target",
    "pull": "missing, always or never",
    "pullSecs": "more than 0 seconds and at most a day",
    "registries": "the path of a file with credentials that only its owner can read",
    "logDriver": "auto, journald, json-file, local or none",
    "keepFailedSecs": "0 seconds (not at all) to a year",
    "agentIdleSecs": "more than 0 seconds and at most a year",
    "callSecs": "more than 0 seconds and at most an hour",
    "name": "letters, digits, . and -",
    "address": "tcp://ip:port, or unix:///path for this machine's own daemon",
    "tls": "the path of a folder with cacert.pem, cert.pem and key.pem",
    TLS_DIR: "the path of a folder with one folder for each host",
    "cpu": _CORES,
    "cpus": _CORES,
    "memoryMb": _MIB,
    "agentsMb": _MIB,
    "shmMb": _MIB,
    "tmpMb": _MIB,
    "gpus": "a list of numbers or UUIDs of GPUs, each once",
    "ports": "two ports from 1024 to 65535, as in 30000-32767",
    "runs": "a whole number of concurrent runs, from 1 to 10000",
    "labels": "a mapping of words to text",
    "plans": "a list of names of plans",
    "pids": "a whole number from 16 to 1000000",
    "nofile": "a whole number from 64 to 1000000",
    "source": "an absolute path on the hosts, without ':'",
    "target": "an absolute path in containers, without ':'",
    "readOnly": "true or false",
}
_LIMITS = "a mapping of limits, such as cpus, memoryMb and pids"
_PATHS = ("tls", TLS_DIR, "registries")


def load(path: str, own: Sequence[str] = ()) -> Pool:
    """Return the pool in this file. own: folders of the supervisor, which no volume may contain.
    Raises Refusal with all mistakes.
    """
    pool, found = read(path, own)
    if pool is not None:
        return pool
    raise combined_refusal(f"the pool {path}", found)


def read(path: str, own: Sequence[str] = ()) -> tuple[Pool | None, list[Refusal]]:
    """Return the pool, or all mistakes of the file."""
    try:
        given = read_mapping(path, "docker.pool", "hosts and image; etc/pool.example.yml is one")
    except Refusal as e:
        return None, [e]
    notes = Notes(path)
    shape = _Reader(path, notes.wrong).shape(given)
    check(shape, own, notes.wrong)
    found = notes.found()
    return (None, found) if found else (_build_pool(shape), [])


def _build_pool(shape: Shape) -> Pool:
    hosts = tuple(PoolHost(**host.values) for host in shape.hosts)
    volumes = {v.where.partition(".")[2]: Volume(**v.values) for v in shape.volumes}
    return Pool(**{**shape.whole.values, "hosts": hosts, "volumes": volumes})


class _Reader:
    """Reads the file field by field, and records fields with a wrong form."""

    def __init__(self, path: str, wrong: Wrong) -> None:
        self._fields, self._wrong = (
            Fields(path, wrong, forms=FORMS, read=_READ, paths=_PATHS),
            wrong,
        )

    def shape(self, given: LocatedMapping) -> Shape:
        limits = {f.encode_name: f for f in msgspec.structs.fields(Pool) if f.type is Limits}
        whole = self._fields.part(Pool, given, "", (TLS_DIR,), left=("hosts", "volumes", *limits))
        for name, field in limits.items():
            if (part := self._fields.inner(whole, name, Limits, _LIMITS)) is not None:
                whole.values[field.name] = msgspec.structs.replace(field.default, **part.values)
        hosts = tuple(self._hosts(whole, given.get("hosts")))
        volumes = tuple(self._volumes(whole, given.get("volumes")))
        tls_dir = whole.values.pop(TLS_DIR, None)
        for host in hosts:
            if (
                tls_dir is not None
                and "name" in host.values
                and str(host.values.get("address", "")).startswith("tcp:")
            ):
                host.values.setdefault("tls", os.path.join(tls_dir, host.values["name"]))
        return Shape(whole, hosts, volumes)

    def _hosts(self, whole: Part, given: Any) -> list[Part]:
        if "hosts" not in whole.given:
            return []
        if not isinstance(given, list) or not 0 < len(given) <= 1_000:
            self._fields.unfit(whole, "hosts", given)
            return []
        return self._fields.each(
            whole, PoolHost, {f"hosts[{n}]": value for n, value in enumerate(given)}, "hosts"
        )

    def _volumes(self, whole: Part, given: Any) -> list[Part]:
        if given is None:
            return []
        if not isinstance(given, LocatedMapping):
            self._fields.unfit(whole, "volumes", given)
            return []
        for name in given:
            if not _VOLUME.fullmatch(name):
                self._wrong(
                    whole,
                    "volumes",
                    f"the name {ascii(name)[:60]} must be of letters, digits and . _ -, at most 63",
                    "badConfig",
                )
        return self._fields.each(
            whole, Volume, {f"volumes.{name}": value for name, value in given.items()}, "volumes"
        )


# ---- values


def _span(value: Any) -> tuple[int, int]:
    """Parse `first-last`."""
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidValue("")
    return int(match[1]), int(match[2])


def _gpus(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(
        isinstance(v, str | int) and _GPU.fullmatch(str(v)) for v in value
    ):
        raise InvalidValue("")
    given = [str(v) for v in value]
    if len(set(given)) != len(given):
        raise InvalidValue("")
    return given


def _plans(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(
        isinstance(v, str) and re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", v) for v in value
    ):
        raise InvalidValue("")
    return value


def _image(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(
        r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", value
    ):
        raise InvalidValue("")
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "pullSecs": seconds,
    "keepFailedSecs": seconds,
    "agentIdleSecs": seconds,
    "callSecs": seconds,
    "ports": port_range,
    "unixUsers": _span,
    "labels": texts,
    "gpus": _gpus,
    "plans": _plans,
    "image": _image,
}
