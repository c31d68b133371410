"""One cluster, used as a run would use it, step by step: what was found, or what is wrong and who
does what about it.

Nothing is submitted. What it leaves there is what an agent would leave: the folder of this
deployment, and the code that is sent.
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
from .login_node.site import CodeCache, LoginNode, ask, look
from .login_node.socket_folder import socket_path, take_away

_CONTROLLER = "look at slurmctld ('scontrol ping' there); where no configuration is found, name it by SLURM_CONF in `environment`"
#: What was wrong, by the step: what to do about it.
ADVICE = {
    "sign-in": "look at the words of the host; `login`, `keys` and `methods` of the cluster's file say how and where",
    "become": "let the supervisor's unix user become these users: see the sudoers rule in docs/sbatch.md",
    "python": "name a Python of the cluster in `pythons`, or lay wheels for it into `wheels`",
    "folder": "take another `folder`, one that this user may write to and that has room",
    "user directories": "mount the supervisor's users' directories there, or leave `userRoot` out",
    "clock": "keep both clocks right (chrony, systemd-timesyncd)",
    "commands of Slurm": "put them into the PATH of login shells there, or set PATH in the cluster's `environment`",
    "sinfo": _CONTROLLER,
    "squeue": _CONTROLLER,
    "sacct": "look at slurmdbd; without accounting how jobs ended is not known once Slurm has forgotten them",
    "sbatch": "correct `defaults` of the cluster: partition, account, QOS",
    "link": "look whether the supervisor runs; if it does, see `link` and `supervisor` of the cluster; a firewall may stand between",
}
_SAID = {
    "folder": "can be written to",
    "user directories": "can be written to",
    "clock": "agrees with this machine's",
    "commands of Slurm": "are all there",
    "sinfo": "Slurm's controller tells its partitions",
    "squeue": "Slurm's controller tells its jobs",
    "sacct": "Slurm's accounting answers",
    "sbatch": "--test-only takes a job with the defaults",
}
#: Executed there: connects as an agent would, and says what came of it. The address, a line of
#: JSON, comes in by stdin.
_DIAL = """
import json, socket, ssl, sys
a = json.loads(sys.stdin.readline())
try:
    if a["path"]:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(a["secs"])
        s.connect(a["path"])
        said = s.recv(64)
        if said != a["hello"].encode():
            raise OSError("it is taken up, and what answers is not the supervisor's machine")
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


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that was looked at. ok None: it could not be, for the reason that is said."""

    cluster: str
    what: str
    ok: bool | None
    said: str
    advice: str = ""


async def lines(
    cluster: Cluster, channel: Channel, deployment: str, address: Mapping[str, Any] | None
) -> AsyncIterator[Line]:
    """From a channel on. address: what the supervisor's agents.json says; None: it does not run.
    Never raises for what is wrong there.
    """
    try:
        site = await look(channel, cluster, deployment, CodeCache())
    except (Refusal, ChannelError) as e:
        become = cluster.access in ("sudo", "runuser") and "become" in e.sentence
        yield wrong(cluster, "become" if become else "python", _without(cluster, e.sentence))
        return
    sent = (
        f"; the code {site.code} lies there" if site.code is not None else ", the supervisor's own"
    )
    yield Line(cluster=cluster.name, what="python", ok=True, said=f"{site.python}{sent}")
    async for line in _remote(cluster, channel, site):
        yield line
    yield await _link(cluster, channel, site, address)


def wrong(cluster: Cluster, what: str, said: str) -> Line:
    return Line(cluster=cluster.name, what=what, ok=False, said=said, advice=ADVICE.get(what, ""))


def _without(cluster: Cluster, sentence: str) -> str:
    return sentence.removeprefix(f"cluster {cluster.name}: ")


async def _remote(cluster: Cluster, channel: Channel, site: LoginNode) -> AsyncIterator[Line]:
    d = cluster.defaults
    named = {
        "partition": d.partition,
        "account": d.account,
        "qos": d.qos,
        "constraint": d.constraint,
        "licenses": d.licenses,
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
        found = (await ask(channel, cluster, site, "check", request, 6 * cluster.call_secs))[
            "found"
        ]
        network = (await ask(channel, cluster, site, "probe", {"base": site.base}))["network"]
    except (Refusal, ChannelError) as e:
        yield wrong(cluster, "folder", _without(cluster, e.sentence))
        return
    for what, sentences in found:
        if what == "user directories" and cluster.user_root is None:
            continue
        about = {"folder": f"{site.base} ", "user directories": f"{cluster.user_root} "}.get(
            what, ""
        )
        for sentence in sentences:
            yield wrong(cluster, what, sentence)
        if not sentences:
            yield Line(
                cluster=cluster.name,
                what=what,
                ok=True,
                said=f"{about}{_SAID.get(what, 'in order')}",
            )
        if what == "folder" and not sentences:
            yield _shared(cluster, site, network)


def _shared(cluster: Cluster, site: LoginNode, network: str | None) -> Line:
    if network is not None:
        return Line(
            cluster=cluster.name,
            what="shared",
            ok=True,
            said=f"{site.base} is on a file system of the network ({network})",
        )
    what = f"{site.base} is on a disk that looks local: all nodes must see it under this path"
    return Line(
        cluster=cluster.name,
        what="shared",
        ok=None,
        said=what,
        advice="try 'srun ls' of it; take another `folder` if they do not",
    )


async def _link(
    cluster: Cluster, channel: Channel, site: LoginNode, address: Mapping[str, Any] | None
) -> Line:
    if address is None and cluster.link != "ssh":
        return Line(
            cluster=cluster.name,
            what="link",
            ok=None,
            said="the supervisor does not run, so nothing listens for agents",
            advice="start it, then check again",
        )
    try:
        how = link(cluster, address or {"agentsUrl": "ws://127.0.0.1:1/agent"})
        if not how.through:
            asked = await _far_end(how.said, how.ca)
            said = await _dialed(cluster, channel, site, asked)
        else:
            said = await _through_ssh(cluster, channel, site)
    except (Refusal, ChannelError) as e:
        return wrong(cluster, "link", _without(cluster, e.sentence))
    except OSError as e:
        return wrong(cluster, "link", str(e))
    there = (
        "through the ssh connection"
        if cluster.link == "ssh"
        else f"at {(address or {}).get('agentsUrl', '')}"
    )
    if said is None:
        return Line(
            cluster=cluster.name,
            what="link",
            ok=True,
            said=f"agents there reach the supervisor {there}",
        )
    return wrong(cluster, "link", f"agents there do not reach the supervisor {there}: {said}")


async def _far_end(said: Mapping[str, Any], ca: str | None) -> dict[str, Any]:
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
    """A socket of its own there, and a listener of its own here: the supervisor need not run."""
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
        return await _dialed(cluster, channel, site, {"path": path, "hello": _HELLO})
    finally:
        server.close()
        with contextlib.suppress(ChannelError):
            await take_away(channel, folder, cluster.call_secs)


async def _dialed(
    cluster: Cluster, channel: Channel, site: LoginNode, asked: Mapping[str, Any]
) -> str | None:
    """Why it cannot be reached; None: it can be."""
    secs = max(1.0, cluster.call_secs / 2)
    ran = await channel.run(
        [site.python, "-I", "-c", _DIAL],
        json.dumps({**asked, "secs": secs}).encode() + b"\n",
        cluster.call_secs,
    )
    try:
        answer: dict[str, Any] = json.loads(
            ran.out.decode("utf-8", "replace").strip().split("\n")[-1]
        )
    except ValueError:
        words = ran.err.decode("utf-8", "replace").strip().split("\n")[-1]
        return f"it could not be tried: {words or f'exit code {ran.code}'}"
    return None if answer["ok"] else str(answer["said"])
