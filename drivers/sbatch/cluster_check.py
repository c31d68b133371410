"""Check of one cluster, step by step in the way a run uses it. Each step reports a result, or a
problem with advice.

Nothing is submitted. The check leaves only files that an agent would leave: the folder of this
deployment, and the sent code.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from ...protocol.clusters.cluster import Cluster
from ...protocol.errors import Refusal
from .agent_address import link
from .login_node.channel import Channel, ChannelError
from .login_node.site import CodeCache, LoginNode, call, prepare
from .login_node.socket_folder import remove_socket, socket_path

_CONTROLLER = (
    "check slurmctld ('scontrol ping' there); if no configuration is found, "
    "set SLURM_CONF in `environment`"
)
#: Advice by step.
ADVICE = {
    "sign-in": "read the host's message; check `login`, `keys` and `methods` in the clusters file",
    "become": (
        "let the supervisor's unix user become these users: see the sudoers rule in docs/sbatch.md"
    ),
    "python": "name a Python of the cluster in `pythons`, or put wheels for it into `wheels`",
    "folder": "choose another `folder` that this user may write to and that has free space",
    "user directories": "mount the supervisor's users' directories there, or remove `userRoot`",
    "clock": "synchronize both clocks (chrony, systemd-timesyncd)",
    "commands of Slurm": (
        "add them to the PATH of login shells there, or set PATH in the cluster's `environment`"
    ),
    "sinfo": _CONTROLLER,
    "squeue": _CONTROLLER,
    "sacct": (
        "check slurmdbd; without accounting, exit codes are unknown once Slurm forgets the jobs"
    ),
    "sbatch": "correct `defaults` of the cluster: partition, account, QOS",
    "link": (
        "check that the supervisor runs; if it does, check firewalls, and `link` and `supervisor` "
        "of the cluster"
    ),
}
_GOOD = {
    "folder": "is writable",
    "user directories": "is writable",
    "clock": "agrees with this machine's clock",
    "commands of Slurm": "all found",
    "sinfo": "Slurm's controller lists its partitions",
    "squeue": "Slurm's controller lists its jobs",
    "sacct": "Slurm's accounting answers",
    "sbatch": "--test-only accepts a job with the defaults",
}
#: Program that runs on the login node: connects as an agent would, and prints the result. Reads the
#: address, one line of JSON, from stdin.
_DIAL_PROGRAM = """
import json, socket, ssl, sys
a = json.loads(sys.stdin.readline())
try:
    if a["path"]:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(a["secs"])
        s.connect(a["path"])
        said = s.recv(64)
        if said != a["hello"].encode():
            raise OSError("the socket answers, but not from the supervisor's machine")
    else:
        s = socket.create_connection((a["host"], a["port"]), a["secs"])
        if a["tls"]:
            c = ssl.create_default_context(cadata=a["ca"])
            c.wrap_socket(s, server_hostname=a["host"])
    print(json.dumps({"ok": True}))
except Exception as e:
    print(json.dumps({"ok": False, "said": str(e) or type(e).__name__}))
"""
_HELLO = "jobscribe"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of one step. ok: None if the step could not be checked; `said` has the reason."""

    cluster: str
    what: str
    ok: bool | None
    said: str
    advice: str = ""


async def check_cluster(
    cluster: Cluster, channel: Channel, deployment: str, address: Mapping[str, Any] | None
) -> AsyncIterator[CheckResult]:
    """Check a cluster through this channel. address: content of the supervisor's agents.json, or
    None if it does not run. Never raises for a problem of the cluster.
    """
    try:
        site = await prepare(channel, cluster, deployment, CodeCache())
    except (Refusal, ChannelError) as e:
        become = cluster.access in ("sudo", "runuser") and "become" in e.sentence
        yield explain_failure(
            cluster, "become" if become else "python", _without_prefix(cluster, e.sentence)
        )
        return
    code_note = (
        f"; the code {site.code} is there" if site.code is not None else ", the supervisor's own"
    )
    yield CheckResult(
        cluster=cluster.name, what="python", ok=True, said=f"{site.python}{code_note}"
    )
    async for line in _check_remote(cluster, channel, site):
        yield line
    yield await _check_link(cluster, channel, site, address)


def explain_failure(cluster: Cluster, what: str, said: str) -> CheckResult:
    return CheckResult(
        cluster=cluster.name, what=what, ok=False, said=said, advice=ADVICE.get(what, "")
    )


def _without_prefix(cluster: Cluster, sentence: str) -> str:
    return sentence.removeprefix(f"cluster {cluster.name}: ")


async def _check_remote(
    cluster: Cluster, channel: Channel, site: LoginNode
) -> AsyncIterator[CheckResult]:
    defaults = cluster.defaults
    named = {
        "partition": defaults.partition,
        "account": defaults.account,
        "qos": defaults.qos,
        "constraint": defaults.constraint,
        "licenses": defaults.licenses,
    }
    request = {
        "base": site.base,
        "userRoot": cluster.user_root,
        "environment": cluster.environment,
        "now": time.time(),
        "options": [f"--{name}={value}" for name, value in named.items() if value is not None],
        "secs": cluster.call_secs,
    }
    try:
        found = (await call(channel, cluster, site, "check", request, 6 * cluster.call_secs))[
            "found"
        ]
        network = (await call(channel, cluster, site, "probe", {"base": site.base}))["network"]
    except (Refusal, ChannelError) as e:
        yield explain_failure(cluster, "folder", _without_prefix(cluster, e.sentence))
        return
    for what, sentences in found:
        if what == "user directories" and cluster.user_root is None:
            continue
        about = {"folder": f"{site.base} ", "user directories": f"{cluster.user_root} "}.get(
            what, ""
        )
        for sentence in sentences:
            yield explain_failure(cluster, what, sentence)
        if not sentences:
            yield CheckResult(
                cluster=cluster.name,
                what=what,
                ok=True,
                said=f"{about}{_GOOD.get(what, 'ok')}",
            )
        if what == "folder" and not sentences:
            yield _check_shared_folder(cluster, site, network)


def _check_shared_folder(cluster: Cluster, site: LoginNode, network: str | None) -> CheckResult:
    if network is not None:
        return CheckResult(
            cluster=cluster.name,
            what="shared",
            ok=True,
            said=f"{site.base} is on a network file system ({network})",
        )
    what = f"{site.base} seems to be on a local disk: all nodes must see it under this path"
    return CheckResult(
        cluster=cluster.name,
        what="shared",
        ok=None,
        said=what,
        advice="try 'srun ls' on it; choose another `folder` if they do not",
    )


async def _check_link(
    cluster: Cluster, channel: Channel, site: LoginNode, address: Mapping[str, Any] | None
) -> CheckResult:
    if address is None and cluster.link != "ssh":
        return CheckResult(
            cluster=cluster.name,
            what="link",
            ok=None,
            said="the supervisor is not running, so nothing listens for agents",
            advice="start it, then check again",
        )
    try:
        address_link = link(cluster, address or {"agentsUrl": "ws://127.0.0.1:1/agent"})
        if not address_link.through:
            target = await _dial_target(address_link.address, address_link.ca)
            said = await _dial(cluster, channel, site, target)
        else:
            said = await _through_ssh(cluster, channel, site)
    except (Refusal, ChannelError) as e:
        return explain_failure(cluster, "link", _without_prefix(cluster, e.sentence))
    except OSError as e:
        return explain_failure(cluster, "link", str(e))
    route = (
        "through the ssh connection"
        if cluster.link == "ssh"
        else f"at {(address or {}).get('agentsUrl', '')}"
    )
    if said is None:
        return CheckResult(
            cluster=cluster.name,
            what="link",
            ok=True,
            said=f"agents there can reach the supervisor {route}",
        )
    return explain_failure(
        cluster, "link", f"agents there cannot reach the supervisor {route}: {said}"
    )


async def _dial_target(said: Mapping[str, Any], ca: str | None) -> dict[str, Any]:
    from urllib.parse import urlsplit

    parts = urlsplit(str(said["agentsUrl"]))
    text = await asyncio.to_thread(_read, ca) if ca is not None else None
    return {
        "path": None,
        "host": parts.hostname,
        "port": parts.port or 443,
        "tls": parts.scheme == "wss",
        "ca": text,
    }


def _read(path: str) -> str:
    with open(path, encoding="ascii") as f:
        return f.read()


async def _through_ssh(cluster: Cluster, channel: Channel, site: LoginNode) -> str | None:
    """Check a forwarded socket with a temporary local listener. The supervisor need not run."""
    folder = f"{site.base}/agent/check-{os.getpid()}"

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_HELLO.encode())
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    try:
        path = await socket_path(channel, folder, cluster.call_secs)
        await channel.forward(path, "127.0.0.1", server.sockets[0].getsockname()[1])
        return await _dial(cluster, channel, site, {"path": path, "hello": _HELLO})
    finally:
        server.close()
        with contextlib.suppress(ChannelError):
            await remove_socket(channel, folder, cluster.call_secs)


async def _dial(
    cluster: Cluster, channel: Channel, site: LoginNode, target: Mapping[str, Any]
) -> str | None:
    """Return why the address cannot be reached from the login node, or None."""
    secs = max(1.0, cluster.call_secs / 2)
    result = await channel.run(
        [site.python, "-I", "-c", _DIAL_PROGRAM],
        json.dumps({**target, "secs": secs}).encode() + b"\n",
        cluster.call_secs,
    )
    try:
        answer: dict[str, Any] = json.loads(
            result.out.decode("utf-8", "replace").strip().split("\n")[-1]
        )
    except ValueError:
        words = result.err.decode("utf-8", "replace").strip().split("\n")[-1]
        return f"the test program failed: {words or f'exit code {result.code}'}"
    return None if answer["ok"] else str(answer["said"])
