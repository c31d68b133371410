"""Semantic checks of a pool: network exposure, volumes that would give access to the host, values
that do not fit together. `pool_file` checks the form of single fields.
"""

import ipaddress
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from ...protocol.clusters.container_pool import Limits, Pool
from ...schema.text.yaml_structs import Part, Wrong
from .secret_files import file_problems, is_loopback

#: Prefix length of a gang's network; `taskSubnets` must fit at least one.
GANG_PREFIX = 22
_PRIVATE = tuple(
    map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
)
#: Folders of the host that give control over it. A volume must not contain them, be inside them, or
#: be one of them.
HOST_PATHS = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/cache",
    "/var/lib/containerd",
    "/var/lib/docker",
    "/var/log",
    "/var/run",
    "/var/spool",
)
#: Folders of an image that a volume must not cover.
IMAGE_PATHS = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
)
#: Below: Debian's system and user accounts. NOBODY: excluded ids.
FIRST_USER, NOBODY, LAST_USER = 1_000, range(65_534, 65_536), 2**31 - 2


class Shape(NamedTuple):
    """The fields of a pool file. Parts that are not mappings are omitted."""

    whole: Part
    hosts: tuple[Part, ...]
    volumes: tuple[Part, ...]


def check(shape: Shape, own: Sequence[str], wrong: Wrong) -> None:
    for host in shape.hosts:
        _check_address(host, wrong)
    _check_unique(shape.hosts, wrong)
    _check_networks(shape.whole, wrong)
    _check_users(shape.whole, wrong)
    _check_agent_memory(shape, wrong)
    if "registries" in shape.whole.values:
        for problem in file_problems("registries", shape.whole.values["registries"]):
            wrong(
                shape.whole,
                "registries",
                problem.sentence.removeprefix("registries: "),
                problem.code,
            )
    for volume in shape.volumes:
        _check_volume(volume, own, wrong)
    _check_unique_targets(shape.volumes, wrong)


# ---- hosts


def _check_address(host: Part, wrong: Wrong) -> None:
    address = host.values.get("address")
    if address is None:
        return
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme == "unix" and not url.netloc and url.path.startswith("/"):
        if "tls" in host.given:
            wrong(host, "tls", "a unix socket has no TLS: remove this field", "badConfig")
        return
    if (
        url.scheme != "tcp"
        or not url.hostname
        or not port
        or address != f"tcp://{url.netloc}"
        or "@" in url.netloc
    ):
        form = "must be tcp://ip:port, or unix:///path for this machine's own daemon"
        wrong(host, "address", f"{form}; got {ascii(address)[:80]}", "badConfig")
    elif host.values.get("tls") is not None:
        _check_certificates(host, wrong)
    elif not is_loopback(url.hostname):
        what = "is plain TCP without TLS off loopback: everybody who reaches the port becomes root on the host"
        advice = "start the daemon with --tlsverify, and name the folder of its certificates in tls (or tlsDir for all hosts)"
        wrong(host, "address", f"{what}; {advice}", "unsafe")


def _check_certificates(host: Part, wrong: Wrong) -> None:
    """Check that the host can have certificates. `jobscribe pool check` tests whether they work."""
    folder = host.values["tls"]
    field = "tls" if "tls" in host.given else "address"
    if not os.path.isdir(folder):
        wrong(
            host,
            field,
            f"folder {folder} with the certificates of this host (cacert.pem, cert.pem, key.pem) does not exist",
            "badConfig",
        )
        return
    key = os.path.join(folder, "key.pem")
    try:
        mode = os.stat(key).st_mode
    except OSError:
        return
    if mode & 0o077:
        what = f"{key} is accessible to others (mode {stat.S_IMODE(mode):04o}), and the key gives root access to the host"
        wrong(host, field, f"{what}; run: chmod 600 {key}", "unsafe")


def _check_unique(hosts: Sequence[Part], wrong: Wrong) -> None:
    for field in ("name", "address"):
        seen: dict[str, Part] = {}
        for host in hosts:
            if (value := host.values.get(field)) is None:
                continue
            first = seen.setdefault(value.lower().replace("//localhost:", "//127.0.0.1:"), host)
            if first is not host:
                other = f"{first.where} (line {first.line(field)})"
                wrong(
                    host,
                    field,
                    f"is also that of {other}: each host needs its own {field}",
                    "badConfig",
                )


def _check_agent_memory(shape: Shape, wrong: Wrong) -> None:
    defaults = {f.name: f.default for f in msgspec.structs.fields(Pool) if f.type is Limits}
    limits: dict[str, Limits] = {
        name: shape.whole.values.get(name, default) for name, default in defaults.items()
    }
    for host in shape.hosts:
        room = host.values.get("agents_mb")
        for kind in ("sequential", "parallel"):
            needed = limits[kind].memory_mb
            if room is not None and room < needed:
                what = f"{room} MiB are too few for one agent of kind {kind}, which needs {needed} MiB ({kind}.memoryMb)"
                wrong(
                    host,
                    "agentsMb",
                    f"{what}: no run of that kind could start there",
                    "badConfig",
                )


# ---- networks and users


def _check_networks(whole: Part, wrong: Wrong) -> None:
    if whole.values.get("network") == "host":
        what = "must not be host: users' code could reach the supervisor, the host and all its services"
        wrong(whole, "network", f"{what}; use none, or a separate network", "unsafe")
    if whole.values.get("relay_network") == "none":
        wrong(
            whole,
            "relayNetwork",
            "must not be none: the relay connects agents with the supervisor",
            "badConfig",
        )
    _check_subnets(whole, wrong)
    if (supervisor := whole.values.get("supervisor")) is not None:
        name, colon, port = supervisor.rpartition(":")
        if (
            not colon
            or not name
            or not port.isdecimal()
            or not 0 < int(port) < 65_536
            or "/" in name
        ):
            wrong(
                whole,
                "supervisor",
                f"must be host:port, as in 10.1.2.3:8002; got {ascii(supervisor)[:80]}",
                "badConfig",
            )


def _check_subnets(whole: Part, wrong: Wrong) -> None:
    if (text := whole.values.get("task_subnets")) is None:
        return
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as e:
        wrong(
            whole, "taskSubnets", f"must be an IPv4 network, as in 10.208.0.0/12: {e}", "badConfig"
        )
        return
    if not any(network.subnet_of(p) for p in _PRIVATE):
        wrong(
            whole,
            "taskSubnets",
            f"{text} is not private: use a part of {', '.join(map(str, _PRIVATE))}",
            "badConfig",
        )
    if network.prefixlen > GANG_PREFIX:
        wrong(
            whole,
            "taskSubnets",
            f"{text} is too small: each gang needs a /{GANG_PREFIX}",
            "badConfig",
        )


def _check_users(whole: Part, wrong: Wrong) -> None:
    if whole.values.get("unix_users") is None:
        return
    first, last = whole.values["unix_users"]
    if not FIRST_USER <= first <= last <= LAST_USER:
        what = f"must be two numbers from {FIRST_USER} (below are root and the system's own) to {LAST_USER}, the lower one first"
        wrong(whole, "unixUsers", f"{what}; got {first}-{last}", "badConfig")
        return
    if first < NOBODY.stop and last >= NOBODY.start:
        wrong(
            whole,
            "unixUsers",
            f"must not contain {NOBODY.start}, the user nobody; start above {NOBODY.stop}",
            "badConfig",
        )
    taken = [p for p in pwd.getpwall() if first <= p.pw_uid <= last and p.pw_uid not in NOBODY]
    if taken:
        what = f"{taken[0].pw_uid} is the account {taken[0].pw_name} of this machine; containers could read its files"
        wrong(whole, "unixUsers", f"{what}; use numbers without accounts", "unsafe")


# ---- volumes


def _check_volume(volume: Part, own: Sequence[str], wrong: Wrong) -> None:
    kinds = (
        ("source", HOST_PATHS, "a task could control the host with it"),
        ("target", IMAGE_PATHS, "it would cover files of the image"),
    )
    for field, forbidden, why in kinds:
        if (path := volume.values.get(field)) is None:
            continue
        if path != os.path.normpath(path) or path.startswith("//"):
            wrong(
                volume,
                field,
                f"must be an absolute path without '..', '.' or '//'; got {ascii(path)[:80]}",
                "badConfig",
            )
        elif path == "/":
            wrong(volume, field, f"must not be /: {why}", "unsafe")
        elif (hit := next(_overlapping(path, forbidden, both=field == "source"), None)) is not None:
            wrong(volume, field, f"{path} must not be a volume, because of {hit}: {why}", "unsafe")
        elif (hit := next(_overlapping(path, own, both=True), None)) is not None:
            wrong(
                volume,
                field,
                f"{path} must not be a volume, because of {hit}: it contains files of the supervisor and its users",
                "unsafe",
            )


def _overlapping(path: str, others: Sequence[str], *, both: bool) -> Iterator[str]:
    """Yield those of `others` that are this path or contain it; both: also those inside it."""
    for other in others:
        if f"{path}/".startswith(f"{other}/") or (both and f"{other}/".startswith(f"{path}/")):
            yield other


def _check_unique_targets(volumes: Sequence[Part], wrong: Wrong) -> None:
    seen: dict[str, Part] = {}
    for volume in volumes:
        if (target := volume.values.get("target")) is not None:
            first = seen.setdefault(target, volume)
            if first is not volume:
                wrong(
                    volume,
                    "target",
                    f"is also that of {first.where} (line {first.line('target')}): a task may use both",
                    "badConfig",
                )
