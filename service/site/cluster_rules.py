"""Semantic checks of a cluster: trust, settings that cannot work, values that do not fit together.
`cluster_file` checks the form of single fields.
"""

import base64
import binascii
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...protocol.clusters.batch import BatchRequest
from ...protocol.ids import EnvName, Uid
from ...protocol.redaction import is_secret
from ...schema.fields import fits
from ...schema.jobs.batch_rules import (
    contradictions,
    directive_name,
    directive_problem,
    setup_problem,
    tasks_of,
)
from ...schema.text.yaml_structs import Part, Wrong
from .secret_files import is_loopback

#: Types of host keys in known_hosts and in the output of ssh-keyscan.
KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
MIN_RSA_BITS = 2048
MAX_SETUP = 65_536
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?", re.ASCII)
_FOLDER = re.compile(
    r"(?:/|~(?=/|\Z)|\$[A-Za-z_][A-Za-z0-9_]*)(?:[A-Za-z0-9_.,:=@%+/-]|\$[A-Za-z_][A-Za-z0-9_]*)*",
    re.ASCII,
)


class ClusterShape(NamedTuple):
    """The fields of one cluster. A host's `via` is a Part in its values."""

    cluster: Part
    login: tuple[Part, ...]
    defaults: Part | None
    limits: Part | None


def check(path: str, whole: Part, shapes: Sequence[ClusterShape], wrong: Wrong) -> None:
    """Check all clusters. path: the file; whole: its top-level fields."""
    if os.stat(path).st_mode & stat.S_IWOTH:
        what = "can be written by everybody: others could add their own host to it and receive passwords"
        wrong(whole, "", f"{path} {what}; run: chmod o-w {path}", "unsafe")
    _check_unique_names([s.cluster for s in shapes], wrong)
    for shape in shapes:
        _check_access(shape, wrong)
        _check_link(shape, wrong)
        for host in shape.login:
            _check_login(host, wrong)
        _check_unique_hosts(shape.login, wrong)
        _check_paths(shape.cluster, wrong)
        _check_environment(shape.cluster, wrong)
        _check_rates(shape.cluster, wrong)
        _check_batch(shape, wrong)


def _check_unique_names(clusters: Sequence[Part], wrong: Wrong) -> None:
    seen: dict[str, Part] = {}
    for cluster in clusters:
        if (name := cluster.values.get("name")) is None:
            continue
        first = seen.setdefault(name.lower(), cluster)
        if first is not cluster:
            what = f"is also that of {first.where} (line {first.line('name')})"
            wrong(cluster, "name", f"{what}: each cluster needs its own name", "badConfig")


# ---- access


def _check_access(shape: ClusterShape, wrong: Wrong) -> None:
    cluster = shape.cluster
    access = cluster.values.get("access", "account")
    if "access" in cluster.given and "access" not in cluster.values:
        return
    if access == "ssh" and "login" not in cluster.given:
        wrong(
            cluster,
            "access",
            "is ssh, which needs login hosts: add them to login, each with its keys",
            "badConfig",
        )
    for name in ("login", "methods"):
        if access != "ssh" and name in cluster.given:
            wrong(
                cluster,
                name,
                f"is only for access ssh, and access is {access}: remove this field",
                "badConfig",
            )
    becomes = access in ("sudo", "runuser")
    if becomes and not cluster.given.get("users"):
        what = f"is missing: access {access} needs the unix user of each user"
        wrong(cluster, "users", f"{what}, as in users: {{EPRSqtUW: ann}}", "badConfig")
    if not becomes and "users" in cluster.given:
        wrong(
            cluster,
            "users",
            f"is only for access sudo and runuser, and access is {access}: remove this field",
            "badConfig",
        )
    for uid, user in cluster.values.get("users", {}).items():
        _check_user(cluster, uid, user, wrong)
    methods = cluster.values.get("methods", ())
    if not methods and "methods" in cluster.values:
        wrong(
            cluster,
            "methods",
            "is empty: nobody could sign in; remove it to allow all methods",
            "badConfig",
        )
    if again := _first_duplicate(methods):
        wrong(cluster, "methods", f"names {again} twice; give each once", "badConfig")


def _check_user(cluster: Part, uid: str, user: str, wrong: Wrong) -> None:
    if not fits(uid, Uid):
        what = f"{ascii(uid)[:40]} is not a user id of 8 letters and digits"
        wrong(cluster, "users", f"{what} ('jobscribe job list --json' shows them)", "badConfig")
    if not _USER.fullmatch(user):
        wrong(cluster, "users", f"{ascii(user)[:60]} is not the name of a unix user", "badConfig")
    elif user == "root":
        wrong(
            cluster,
            "users",
            f"{uid} must not be root: users' jobs would control the machine",
            "unsafe",
        )


def _check_link(shape: ClusterShape, wrong: Wrong) -> None:
    cluster = shape.cluster
    access, link = cluster.values.get("access", "account"), cluster.values.get("link", "direct")
    if link == "ssh" and access != "ssh":
        wrong(
            cluster,
            "link",
            f"is ssh, which needs access ssh, and access is {access}: use direct (on this machine) or tls",
            "badConfig",
        )
    far = [
        host for host in shape.login if not is_loopback(str(host.values.get("host", "localhost")))
    ]
    if link == "direct" and access == "ssh" and far:
        what = f"must be tls or ssh: {far[0].values['host']} is another machine"
        wrong(
            cluster, "link", f"{what}, and direct is only for agents on this machine", "badConfig"
        )
    if (supervisor := cluster.values.get("supervisor")) is not None:
        name, colon, port = supervisor.rpartition(":")
        if link != "tls":
            wrong(
                cluster,
                "supervisor",
                f"is only for link tls, and link is {link}: remove this field",
                "badConfig",
            )
        elif (
            not colon
            or not re.fullmatch(r"[A-Za-z0-9.:\[\]_-]+", name)
            or not port.isdecimal()
            or not 0 < int(port) < 65_536
        ):
            wrong(
                cluster,
                "supervisor",
                f"must be host:port, as in 10.1.2.3:8002; got {ascii(supervisor)[:80]}",
                "badConfig",
            )


def _check_login(host: Part, wrong: Wrong) -> None:
    keys = host.values.get("keys", ())
    for n, key in enumerate(keys):
        if problem := key_problem(key):
            wrong(host, "keys", f"[{n}]: {problem[0]}", problem[1])
    if again := _first_duplicate(" ".join(key.split()[:2]) for key in keys):
        wrong(host, "keys", f"has {again[:40]}... twice; give each once", "badConfig")
    if (via := host.values.get("via")) is not None:
        _check_login(via, wrong)


def _check_unique_hosts(hosts: Sequence[Part], wrong: Wrong) -> None:
    seen: dict[tuple[str, int], Part] = {}
    for host in hosts:
        if (name := host.values.get("host")) is None:
            continue
        first = seen.setdefault((name.lower(), host.values.get("port", 22)), host)
        if first is not host:
            wrong(
                host,
                "host",
                f"is also that of {first.where} (line {first.line('host')}): list all keys under one host",
                "badConfig",
            )


def key_problem(text: str) -> tuple[str, str] | None:
    """Return why a host key is not acceptable, and the error code; None if it is acceptable."""
    words = text.split()
    kind = words[0] if words else ""
    better = "use the host's ssh-ed25519 key"
    if kind.startswith(("SHA256:", "MD5:")):
        return (
            "is the fingerprint of a key: give the key itself, as 'ssh-keyscan HOST' prints it",
            "badConfig",
        )
    if len(words) > 2 and kind not in KEY_TYPES and words[1] in KEY_TYPES:
        return (
            "starts with a host name: remove the name, so that the line starts with the key type",
            "badConfig",
        )
    if kind == "ssh-dss":
        return f"is a DSA key, which is insecure: {better}", "unsafe"
    if len(words) < 2 or kind not in KEY_TYPES:
        what = "must be a key as ssh-keyscan prints it after the host's name, such as 'ssh-ed25519 AAAA...'"
        return f"{what}; got {ascii(text)[:60]}", "badConfig"
    try:
        parts = list(_strings(base64.b64decode(words[1], validate=True)))
    except (binascii.Error, ValueError):
        return f"is not a key: the text after {kind} was cut off, or is not base64", "badConfig"
    if len(parts) < 2 or parts[0] != kind.encode():
        return f"has type {kind}, but the key itself has another type", "badConfig"
    bits = (
        int.from_bytes(parts[2], "big").bit_length()
        if kind == "ssh-rsa" and len(parts) > 2
        else MIN_RSA_BITS
    )
    if bits < MIN_RSA_BITS:
        return (
            f"is an RSA key of {bits} bits, which can be broken: {better}, or one of {MIN_RSA_BITS} bits",
            "unsafe",
        )
    return None


def _strings(blob: bytes) -> Iterator[bytes]:
    """Yield the parts of a key, each encoded as its length and its bytes. Raises ValueError."""
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            raise ValueError("cut off")
        yield blob[4 : 4 + length]
        blob = blob[4 + length :]


# ---- paths


def _check_paths(cluster: Part, wrong: Wrong) -> None:
    folder = cluster.values.get("folder")
    if folder is not None:
        if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
            what = "must be a path of letters, digits and . , : = @ % + / _ -, with variables such as $SCRATCH, without '..'"
            wrong(cluster, "folder", f"{what}; got {ascii(folder)[:80]}", "badConfig")
        elif not folder.strip("/"):
            wrong(
                cluster,
                "folder",
                "must not be /: users' files and agents are stored there",
                "badConfig",
            )
    user_root = cluster.values.get("user_root")
    if user_root is not None and (
        user_root != os.path.normpath(user_root) or user_root.startswith("//") or user_root == "/"
    ):
        what = "must be an absolute path without '..', '.' or '//', and not /"
        wrong(cluster, "userRoot", f"{what}; got {ascii(user_root)[:80]}", "badConfig")
    pythons = cluster.values.get("pythons", ())
    for python in pythons:
        if "/" in python and not python.startswith("/"):
            what = f"{ascii(python)[:60]} is a relative path"
            wrong(
                cluster,
                "pythons",
                f"{what}: use an absolute path, or a command name",
                "badConfig",
            )
    if again := _first_duplicate(pythons):
        wrong(cluster, "pythons", f"names {again} twice; give each once", "badConfig")
    wheels = cluster.values.get("wheels")
    if wheels is not None and not os.path.isdir(wheels):
        wrong(
            cluster,
            "wheels",
            f"folder {wheels} does not exist: create it with 'pip download', or remove this field",
            "badConfig",
        )


def _check_environment(cluster: Part, wrong: Wrong) -> None:
    for name, value in cluster.values.get("environment", {}).items():
        shown = ascii(name)[1:-1][:60]
        if not fits(name, EnvName):
            wrong(
                cluster,
                "environment",
                f"{shown} is not the name of a variable: use letters, digits and _, not starting with a digit",
                "badConfig",
            )
        elif name.startswith(("JOBSCRIBE_", "SLURM_JOB", "SBATCH_")):
            wrong(
                cluster,
                "environment",
                f"{shown} is set by jobscribe or Slurm: remove it",
                "badConfig",
            )
        elif is_secret(name):
            what = "looks like a secret, and all users' jobs would get it"
            wrong(
                cluster,
                "environment",
                f"{shown} {what}: put it into a file that only its users can read",
                "unsafe",
            )
        elif not value.isprintable():
            wrong(cluster, "environment", f"{shown} must be text on one line", "badConfig")


def _check_rates(cluster: Part, wrong: Wrong) -> None:
    values = cluster.values
    least, most = values.get("poll_secs", 2.0), values.get("poll_max_secs", 30.0)
    if least > most:
        field = "pollSecs" if "poll_secs" in values else "pollMaxSecs"
        wrong(
            cluster,
            field,
            f"is wrong: pollSecs is {least:g} and pollMaxSecs is {most:g}, which must not be smaller",
            "badConfig",
        )
    if values.get("runs_per_user", 1) > values.get("runs", 1_000):
        wrong(
            cluster,
            "runsPerUser",
            f"is more than the {values.get('runs', 1_000)} runs of all users (runs)",
            "badConfig",
        )


# ---- batch requests


def _check_batch(shape: ClusterShape, wrong: Wrong) -> None:
    cluster, defaults, limits = shape.cluster, shape.defaults, shape.limits
    for part in (cluster, defaults):
        setup = part.values.get("setup", "") if part is not None else ""
        if part is not None and (problem := setup_problem(setup) or _length_problem(setup)):
            wrong(part, "setup", problem, "badConfig")
    names = cluster.values.get("directives", ())
    for name in names:
        if "=" in name:
            wrong(
                cluster,
                "directives",
                f"{ascii(name)[:60]} must be only the name of an option; runs give the value",
                "badConfig",
            )
        elif problem := directive_problem(name):
            wrong(cluster, "directives", problem, "badConfig")
    if again := _first_duplicate(names):
        wrong(cluster, "directives", f"names {again} twice; give each once", "badConfig")
    for name, limit in (limits.values if limits is not None else {}).items():
        if not limit and limits is not None and name != "gpus":
            wrong(limits, _camel(name), "must be at least 1: no run could start", "badConfig")
    if defaults is not None:
        _check_defaults(defaults, names, limits.values if limits is not None else {}, wrong)


def _check_defaults(
    defaults: Part, allowed: Sequence[str], limits: dict[str, Any], wrong: Wrong
) -> None:
    for directive in defaults.values.get("directives", ()):
        name = directive_name(directive)
        if problem := directive_problem(directive):
            wrong(defaults, "directives", problem, "badConfig")
        elif name not in allowed:
            wrong(
                defaults,
                "directives",
                f"{name} is not in directives of the cluster: add it there",
                "badConfig",
            )
    wishes = BatchRequest(**defaults.values)
    for sentence in contradictions(wishes):
        wrong(defaults, "", sentence, "badConfig")
    for name, value in (
        ("nodes", wishes.nodes),
        ("tasks", tasks_of(wishes)),
        ("cores", tasks_of(wishes) * (wishes.cores or 1)),
        ("memory_mb", wishes.memory_mb),
        ("gpus", wishes.gpus),
    ):
        if value is not None and name in limits and limits[name] and value > limits[name]:
            what = f"{value}{' of all tasks together' if name == 'cores' else ''}"
            wrong(
                defaults,
                _camel(name),
                f"is {what}, above the cluster's limit of {limits[name]}",
                "badConfig",
            )


def _length_problem(setup: str) -> str | None:
    return (
        f"has {len(setup)} characters; the limit is {MAX_SETUP}" if len(setup) > MAX_SETUP else None
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _first_duplicate(values: Any) -> str | None:
    """Return the first duplicate, or None."""
    return next((value for value, count in Counter(values).items() if count > 1), None)
