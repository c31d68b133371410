"""Rules of a pool: network exposure, volumes that would give access to the host, values that do not
fit together. The fields' types have the form of single values.
"""

import ipaddress
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from ...protocol.clusters.container_pool import Pool, PoolHost, Volume
from ...schema.fields import shown
from ...schema.structs import Place
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
ELSEWHERE = "another folder"


def check(pool: Pool, place: Place, own: Sequence[str]) -> None:
    """Add the errors of a pool, whose wrong values are empty or defaults. own: folders of the
    supervisor, which no volume may contain.
    """
    hosts = list(zip(pool.hosts, place.each("hosts"), strict=False))
    for host, at in hosts:
        _check_address(host, at)
        _check_agent_memory(pool, host, at)
    _check_unique(hosts)
    _check_networks(pool, place)
    _check_users(pool, place)
    if pool.registries is not None:
        for found in file_problems(pool.registries):
            place.error("registries", found.problem, found.right, unsafe=found.unsafe)
    targets: dict[str, Place] = {}
    for volume, at in zip(pool.volumes.values(), place.each("volumes"), strict=False):
        _check_volume(volume, at, own)
        if volume.target and (first := targets.setdefault(volume.target, at)) is not at:
            at.error(
                "target", f"it is also that of {first.path}", "another path: a task may use both"
            )


# ---- hosts


def _check_address(host: PoolHost, at: Place) -> None:
    if not host.address:
        return
    right = "tcp://ip:port, or unix:///path for this machine's own daemon"
    try:
        url = urlsplit(host.address)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme == "unix" and not url.netloc and url.path.startswith("/"):
        if at.given("tls"):
            at.error("tls", "a unix socket has no TLS", "remove this field")
    elif (
        url.scheme != "tcp"
        or not url.hostname
        or not port
        or host.address != f"tcp://{url.netloc}"
        or "@" in url.netloc
    ):
        at.error("address", f"it is {shown(host.address)}", right)
    elif host.tls is not None:
        _check_certificates(host.tls, at)
    elif not is_loopback(url.hostname):
        at.error(
            "address",
            "it is plain TCP without TLS off loopback: everybody who reaches the port becomes root on the host",
            "start the daemon with --tlsverify, and name the folder of its certificates in tls (or tlsDir for all hosts)",
            unsafe=True,
        )


def _check_certificates(folder: str, at: Place) -> None:
    """Check that the host can have certificates. `jobscribe pool check` tests whether they work."""
    field = "tls" if at.given("tls") else "address"
    if not os.path.isdir(folder):
        at.error(
            field,
            f"the folder {folder} does not exist",
            "a folder with the certificates of this host: cacert.pem, cert.pem, key.pem",
        )
        return
    key = os.path.join(folder, "key.pem")
    try:
        mode = os.stat(key).st_mode
    except OSError:
        return
    if mode & 0o077:
        at.error(
            field,
            f"{key} is accessible to others (mode {stat.S_IMODE(mode):04o}), and the key gives root access to the host",
            f"mode 0600 (run: chmod 600 {key})",
            unsafe=True,
        )


def _check_unique(hosts: Sequence[tuple[PoolHost, Place]]) -> None:
    for field in ("name", "address"):
        seen: dict[str, Place] = {}
        for host, at in hosts:
            value = getattr(host, field).lower().replace("//localhost:", "//127.0.0.1:")
            if value and (first := seen.setdefault(value, at)) is not at:
                at.error(
                    field, f"it is also that of {first.path}", f"each host has its own {field}"
                )


def _check_agent_memory(pool: Pool, host: PoolHost, at: Place) -> None:
    for kind, limits in (("sequential", pool.sequential), ("parallel", pool.parallel)):
        if host.agents_mb is not None and host.agents_mb < limits.memory_mb:
            at.error(
                "agentsMb",
                f"{host.agents_mb} MiB are too few for one agent of kind {kind}, so no run of that kind could start",
                f"at least {limits.memory_mb} MiB ({kind}.memoryMb)",
            )


# ---- networks and users


def _check_networks(pool: Pool, place: Place) -> None:
    if pool.network == "host":
        place.error(
            "network",
            "it is host: users' code could reach the supervisor, the host and all its services",
            "none, or a separate network",
            unsafe=True,
        )
    if pool.relay_network == "none":
        place.error(
            "relayNetwork",
            "it is none, but the relay connects agents with the supervisor",
            "host, or the name of a network of the hosts",
        )
    text = pool.task_subnets
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as e:
        place.error("taskSubnets", str(e), "an IPv4 network, as in 10.208.0.0/12")
        return
    if not any(network.subnet_of(p) for p in _PRIVATE):
        parts = ", ".join(map(str, _PRIVATE))
        place.error("taskSubnets", f"{text} is not private", f"a part of {parts}")
    if network.prefixlen > GANG_PREFIX:
        place.error("taskSubnets", f"{text} is too small", f"a /{GANG_PREFIX} for each gang")


def _check_users(pool: Pool, place: Place) -> None:
    if pool.unix_users is None:
        return
    first, last = pool.unix_users
    if not FIRST_USER <= first <= last <= LAST_USER:
        place.error(
            "unixUsers",
            f"it is {first}-{last}",
            f"two numbers from {FIRST_USER} (below are root and the system's own) to {LAST_USER}, the lower one first",
        )
        return
    if first < NOBODY.stop and last >= NOBODY.start:
        place.error(
            "unixUsers",
            f"it contains {NOBODY.start}, the user nobody",
            f"start at {NOBODY.stop} or above",
        )
    taken = [p for p in pwd.getpwall() if first <= p.pw_uid <= last and p.pw_uid not in NOBODY]
    if taken:
        place.error(
            "unixUsers",
            f"{taken[0].pw_uid} is the account {taken[0].pw_name} of this machine; containers could read its files",
            "numbers without accounts",
            unsafe=True,
        )


# ---- volumes


def _check_volume(volume: Volume, at: Place, own: Sequence[str]) -> None:
    host, image = "a task could control the host with it", "it would cover files of the image"
    supervisor = "it contains files of the supervisor and its users"
    for field, path, forbidden, why in (
        ("source", volume.source, HOST_PATHS, host),
        ("target", volume.target, IMAGE_PATHS, image),
    ):
        if not path:
            continue
        if path != os.path.normpath(path) or path.startswith("//"):
            right = "an absolute path without '..', '.' or '//'"
            at.error(field, f"it is {shown(path)}", right)
        elif path == "/":
            at.error(field, f"it is /: {why}", "a folder below it", unsafe=True)
        elif hit := next(_overlapping(path, forbidden, both=field == "source"), None):
            at.error(
                field, f"{path} is not allowed because of {hit}: {why}", ELSEWHERE, unsafe=True
            )
        elif hit := next(_overlapping(path, own, both=True), None):
            why = f"{path} is not allowed because of {hit}: {supervisor}"
            at.error(field, why, ELSEWHERE, unsafe=True)


def _overlapping(path: str, others: Sequence[str], *, both: bool) -> Iterator[str]:
    """Yield those of `others` that are this path or contain it; both: also those inside it."""
    for other in others:
        if f"{path}/".startswith(f"{other}/") or (both and f"{other}/".startswith(f"{path}/")):
            yield other
