"""Rules of a cluster: trust, settings that cannot work, values that do not fit together. The fields'
types have the form of single values.
"""

import base64
import binascii
import os
import re
import stat
from collections.abc import Iterator, Sequence

from ...protocol.clusters.batch import BatchRequest
from ...protocol.clusters.cluster import Cluster, Clusters, Limits, LoginHost
from ...protocol.redaction import is_secret
from ...schema.fields import quoted, shown
from ...schema.jobs.batch_rules import (
    contradictions,
    directive_name,
    directive_problem,
    setup_problem,
    tasks_of,
)
from ...schema.structs import Place
from .secret_files import FileProblem, is_loopback

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
_FOLDER = re.compile(
    r"(?:/|~(?=/|\Z)|\$[A-Za-z_][A-Za-z0-9_]*)(?:[A-Za-z0-9_.,:=@%+/-]|\$[A-Za-z_][A-Za-z0-9_]*)*",
    re.ASCII,
)
_REMOVE = "remove this field"


def check_file(path: str, place: Place) -> None:
    """Add an error if everybody can write the file."""
    if os.stat(path).st_mode & stat.S_IWOTH:
        place.error(
            "",
            "the file can be written by everybody: others could add their own host to it and receive passwords",
            f"run: chmod o-w {path}",
            unsafe=True,
        )


def check(clusters: Clusters, place: Place) -> None:
    """Add the errors of all clusters, whose wrong values are empty or defaults."""
    names: dict[str, Place] = {}
    for cluster, at in zip(clusters.clusters, place.each("clusters"), strict=False):
        name = cluster.name.lower()
        if name and (first := names.setdefault(name, at)) is not at:
            at.error("name", f"it is also that of {first.path}", "each cluster has its own name")
        if at.valid("access"):
            _check_access(cluster, at)
            _check_link(cluster, at)
        _check_hosts(cluster.login, at)
        _check_paths(cluster, at)
        _check_environment(cluster, at)
        _check_rates(cluster, at)
        _check_batch(cluster, at)


# ---- access


def _check_access(cluster: Cluster, at: Place) -> None:
    access = cluster.access
    if access == "ssh" and not cluster.login and at.valid("login"):
        at.error("access", "it is ssh, which needs login hosts", "`login`, each host with its keys")
    for key in ("login", "methods"):
        if access != "ssh" and at.given(key):
            at.error(key, f"it is only for access ssh, and access is {access}", _REMOVE)
    becomes = access in ("sudo", "runuser")
    if becomes and not cluster.users and at.valid("users"):
        at.error(
            "users",
            f"it is missing: access {access} needs the unix user of each user",
            "an object, as in {EPRSqtUW: ann}",
        )
    if not becomes and at.given("users"):
        at.error(
            "users", f"it is only for access sudo and runuser, and access is {access}", _REMOVE
        )
    for uid, user in cluster.users.items():
        if user == "root":
            at.within("users").error(
                uid,
                "it is root: users' jobs would control the machine",
                "another unix user",
                unsafe=True,
            )


def _check_link(cluster: Cluster, at: Place) -> None:
    access, link = cluster.access, cluster.link
    if link == "ssh" and access != "ssh":
        at.error(
            "link",
            f"it is ssh, which needs access ssh, and access is {access}",
            "direct (on this machine) or tls",
        )
    far = next((h.host for h in cluster.login if h.host and not is_loopback(h.host)), None)
    if link == "direct" and access == "ssh" and far is not None:
        at.error(
            "link",
            f"{far} is another machine, and direct is only for agents on this machine",
            "tls or ssh",
        )
    if at.given("supervisor") and link != "tls" and at.valid("link"):
        at.error("supervisor", f"it is only for link tls, and link is {link}", _REMOVE)


def _check_hosts(hosts: Sequence[LoginHost], at: Place) -> None:
    seen: dict[tuple[str, int], Place] = {}
    for host, here in zip(hosts, at.each("login"), strict=False):
        _check_keys(host, here)
        if (
            host.host
            and (first := seen.setdefault((host.host.lower(), host.port), here)) is not here
        ):
            here.error(
                "host", f"it is also that of {first.path}", "all keys of a host under one entry"
            )


def _check_keys(host: LoginHost, at: Place) -> None:
    seen = set()
    for key, place in zip(host.keys, at.each("keys"), strict=False):
        if problem := key_problem(key):
            place.error("", problem.problem, problem.right, unsafe=problem.unsafe)
        if (plain := " ".join(key.split()[:2])) in seen:
            place.error("", f"{quoted(plain)} occurs twice", "each once")
        seen.add(plain)
    if host.via is not None:
        _check_keys(host.via, at.within("via"))


def key_problem(text: str) -> FileProblem | None:
    """Return why a host key is not acceptable; None if it is acceptable."""
    words = text.split()
    kind = words[0] if words else ""
    right = "a key as ssh-keyscan prints it after the host's name, such as 'ssh-ed25519 AAAA...'"
    better = "the host's ssh-ed25519 key"
    if kind.startswith(("SHA256:", "MD5:")):
        return FileProblem("it is the fingerprint of a key", right, False)
    if len(words) > 2 and kind not in KEY_TYPES and words[1] in KEY_TYPES:
        return FileProblem("it starts with a host name", right, False)
    if kind == "ssh-dss":
        return FileProblem("it is a DSA key, which is insecure", better)
    if len(words) < 2 or kind not in KEY_TYPES:
        return FileProblem(f"it is {shown(text)}", right, False)
    try:
        parts = list(_strings(base64.b64decode(words[1], validate=True)))
    except (binascii.Error, ValueError):
        why = f"the text after {kind} was cut off, or is not base64"
        return FileProblem(why, right, False)
    if len(parts) < 2 or parts[0] != kind.encode():
        return FileProblem(f"it has type {kind}, but the key itself has another type", right, False)
    bits = (
        int.from_bytes(parts[2], "big").bit_length()
        if kind == "ssh-rsa" and len(parts) > 2
        else MIN_RSA_BITS
    )
    if bits < MIN_RSA_BITS:
        why = f"it is an RSA key of {bits} bits, which can be broken"
        return FileProblem(why, f"{better}, or one of {MIN_RSA_BITS} bits")
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


def _check_paths(cluster: Cluster, at: Place) -> None:
    folder = cluster.folder
    if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
        right = "a path of letters, digits and . , : = @ % + / _ -, with variables such as $SCRATCH, without '..'"
        at.error("folder", f"it is {shown(folder)}", right)
    elif not folder.strip("/"):
        at.error("folder", "it is /", "another folder: users' files and agents are stored there")
    root = cluster.user_root
    if root is not None and (
        root != os.path.normpath(root) or root.startswith("//") or root == "/"
    ):
        right = "an absolute path without '..', '.' or '//', and not /"
        at.error("userRoot", f"it is {shown(root)}", right)
    if cluster.wheels is not None and not os.path.isdir(cluster.wheels):
        at.error(
            "wheels",
            f"the folder {cluster.wheels} does not exist",
            "a folder that 'pip download' filled, or no such field",
        )


def _check_environment(cluster: Cluster, at: Place) -> None:
    here = at.within("environment")
    for name, value in cluster.environment.items():
        if name.startswith(("JOBSCRIBE_", "SLURM_JOB", "SBATCH_")):
            here.error(name, "jobscribe or Slurm sets this variable", "another name")
        elif is_secret(name):
            here.error(
                name,
                "it looks like a secret, and all users' jobs would get it",
                "a file that only its users can read",
                unsafe=True,
            )
        elif not value.isprintable():
            here.error(name, f"it is {shown(value)}", "text on one line")


def _check_rates(cluster: Cluster, at: Place) -> None:
    least, most = cluster.poll_secs, cluster.poll_max_secs
    if least > most:
        at.error(
            "pollSecs" if at.given("pollSecs") else "pollMaxSecs",
            f"pollSecs is {least:g} and pollMaxSecs is {most:g}",
            "pollSecs at most pollMaxSecs",
        )
    if cluster.runs_per_user > cluster.runs:
        at.error(
            "runsPerUser",
            f"it is {cluster.runs_per_user}, more than the {cluster.runs} runs of all users",
            "at most `runs`",
        )


# ---- batch requests


def _check_batch(cluster: Cluster, at: Place) -> None:
    for name, place in zip(cluster.directives, at.each("directives"), strict=False):
        if problem := directive_problem(name):
            place.error("", problem, "another option")
    defaults = at.within("defaults")
    for setup, place in ((cluster.setup, at), (cluster.defaults.setup, defaults)):
        if problem := setup_problem(setup):
            place.error("setup", problem, "lines of sh")
    if defaults.given("cluster"):
        defaults.error("cluster", "the defaults are those of this cluster", _REMOVE)
    _check_defaults(cluster.defaults, cluster, defaults)


def _check_defaults(wishes: BatchRequest, cluster: Cluster, at: Place) -> None:
    for directive, place in zip(wishes.directives, at.each("directives"), strict=False):
        name = directive_name(directive)
        if problem := directive_problem(directive):
            place.error("", problem, "another option")
        elif name not in cluster.directives:
            place.error("", f"the cluster does not allow {name}", "add it to its `directives`")
    for sentence in contradictions(wishes):
        at.error("", sentence, "sizes that fit together")
    limits: Limits = cluster.limits
    for key, value, limit in (
        ("nodes", wishes.nodes, limits.nodes),
        ("tasks", tasks_of(wishes), limits.tasks),
        ("cores", tasks_of(wishes) * (wishes.cores or 1), limits.cores),
        ("memoryMb", wishes.memory_mb, limits.memory_mb),
        ("gpus", wishes.gpus, limits.gpus),
    ):
        if value is not None and limit is not None and value > limit:
            what = f"{value}{' of all tasks together' if key == 'cores' else ''}"
            at.error(key, f"it is {what}", f"at most {limit}, the cluster's limit")
