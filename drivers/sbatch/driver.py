"""Agents on login nodes of clusters: one per user and cluster, under a keeper that lives on
whatever becomes of this process or of ssh.

What is done there is done by `agent/remote` (a line of JSON in, a line out), through a channel: of
this machine's own, or a user's ssh connection, which there is only after the user has signed in.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.clusters.cluster import Cluster, Clusters
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, parse_agent_key
from ...protocol.redaction import Redactor
from ...runtime.log.logger import Log
from .. import untrusted_files
from ..contracts import AgentSpec, Capabilities, Capacity, Found, Handle
from . import agent_address, log_archive
from .login_node.channel import Channel, ChannelError, local_channel
from .login_node.site import (
    CodeCache,
    LoginNode,
    Logs,
    Looked,
    Piece,
    Started,
    ask,
    look,
    read_as,
    told,
)
from .login_node.socket_folder import socket_path

if TYPE_CHECKING:
    from .ssh.sign_in import Credentials

#: How often a lease is counted up, and when it counts as left (see agent/lease).
_RENEW_SECS, _LEFT_SECS = 5.0, 30.0
#: Code that lay there so lately is not looked for again (seconds): a sign-in is followed by a
#: start.
_LOOKED_SECS = 60.0
#: An agent has nothing to clean up: what it knows of jobs is on disk.
_SIGN_OUT_GRACE_SECS = 2.0
#: Besides the grace itself, for an end on another login node.
_END_SECS = 45.0


class SbatchDriver:
    """The `sbatch` AgentDriver; see drivers.driver for what its methods promise."""

    name = "sbatch"
    capabilities = Capabilities(tasks="keeper", same_machine=False)

    def __init__(
        self,
        clusters: Clusters,
        root: Path,
        user_root: str,
        *,
        deployment: str,
        address: Callable[[], Mapping[str, Any]],
        log: Log,
        redactor: Redactor,
        agent_settings: dict[str, Any] | None = None,
        keeper_settings: dict[str, Any] | None = None,
        signed_in: Callable[[AgentKey], None] = lambda key: None,
    ) -> None:
        """address: what the supervisor's agents.json says. signed_in: called when a user's sign-in
        at a cluster has succeeded.
        """
        self._clusters, self._root, self._user_root, self._deployment = (
            clusters,
            root,
            user_root,
            deployment,
        )
        self._read_address, self._log, self._redactor, self._signed_in = (
            address,
            log,
            redactor,
            signed_in,
        )
        self._agent_settings = agent_settings or {}
        self._keeper_settings = keeper_settings or {}
        self._lease = {
            "renewSecs": _RENEW_SECS,
            "leftSecs": _LEFT_SECS,
        } | self._keeper_settings.get("lease", {})
        self._codes = CodeCache()
        self._channels: dict[tuple[str, str], Channel] = {}
        #: by uid and cluster: through which channel what was seen there, and when (monotonic)
        self._sites: dict[tuple[str, str], tuple[Channel, LoginNode, float]] = {}
        self._forwards: dict[AgentKey, tuple[Channel, str, int, str]] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    # ---- the contract

    async def start(self, spec: AgentSpec) -> Handle:
        key = spec.key
        cluster = self._cluster(key.host)
        async with self._locks[key.uid, key.host]:
            channel = self._channel(key.uid, cluster)
            try:
                site = await self._site(key.uid, cluster, channel, secs=_LOOKED_SECS)
                request = await self._request(spec, cluster, channel, site)
                left = self._lease["leftSecs"]
                answer = await ask(
                    channel,
                    cluster,
                    site,
                    "start",
                    request,
                    cluster.start_secs + 3 * left + _END_SECS,
                )
            except (Refusal, ChannelError) as e:
                self._forget(key)
                if isinstance(e, Refusal):
                    raise
                raise Refusal("agentUnavailable", f"cluster {cluster.name}: {e.sentence}") from None
            if "error" in answer:
                self._forget(key)
        await self._keep_logs(key, answer)
        if "error" in answer:
            raise Refusal(
                "agentUnavailable",
                self._redactor.text(f"cluster {cluster.name}: {answer['error']}"),
            )
        there = read_as(Started, answer, cluster)
        self._log(
            "agent {}: keeper pid {} on {}, {}",
            str(key),
            there.pid,
            told(there.host),
            "started" if there.started else "which was there already",
            uid=key.uid,
        )
        handle = {k: v for k, v in msgspec.to_builtins(there).items() if k != "started"}
        return {"folder": site.folder(key), **handle, "key": str(key), "user": channel.user}

    async def find(self, handle: Handle) -> Found:
        try:
            key, cluster, channel = self._way(handle)
        except Refusal as e:
            return Found(state="unknown", detail=e.sentence, sign_in=e.code == "signInNeeded")
        if handle.get("user") not in (None, channel.user):
            sentence = f"it runs as {handle['user']}, and signed in was {channel.user}"
            if cluster.access == "ssh":
                await self._sign_out(key.uid, cluster, channel)
                sentence += f"; sign in as {handle['user']}"
            return Found(state="unknown", detail=sentence, sign_in=cluster.access == "ssh")
        try:
            site = await self._site(key.uid, cluster, channel)
            request: dict[str, Any] = {
                "folder": site.folder(key),
                "handle": handle,
                "leftSecs": self._lease["leftSecs"],
                "move": cluster.link == "ssh",
            }
            with contextlib.suppress(
                Refusal, OSError, ValueError
            ):  # an address that is not known now changes nothing there
                request |= await self._addressed(cluster, channel, site, key)
            answer = await ask(
                channel, cluster, site, "find", request, cluster.call_secs + self._lease["leftSecs"]
            )
            said = read_as(Looked, answer, cluster)
        except (Refusal, ChannelError) as e:
            return Found(
                state="unknown",
                detail=e.sentence,
                sign_in=cluster.access == "ssh" and channel.closed,
            )
        return Found(state=said.state, detail=told(said.detail))

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        if "key" not in handle:
            return
        try:
            await self._stop(handle, grace_secs, *self._way(handle))
        except (Refusal, ChannelError) as e:
            raise Refusal("agentUnavailable", e.sentence) from None

    async def _stop(
        self, handle: Handle, grace_secs: float, key: AgentKey, cluster: Cluster, channel: Channel
    ) -> None:
        site = await self._site(key.uid, cluster, channel)
        request = {
            "folder": site.folder(key),
            "handle": handle,
            "grace": grace_secs,
            "leftSecs": self._lease["leftSecs"],
        }
        await ask(
            channel,
            cluster,
            site,
            "stop",
            request,
            cluster.call_secs + grace_secs + self._lease["leftSecs"] + _END_SECS,
        )

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        cluster = self._cluster(key.host)
        try:
            channel = self._channel(key.uid, cluster)
            site = await self._site(key.uid, cluster, channel)
            if cluster.access == "account":
                parts = ("run", *name.split("/"))
                return await asyncio.to_thread(
                    untrusted_files.read, Path(site.folder(key)), parts, offset, limit
                )
            request = {
                "folder": site.folder(key),
                "name": f"run/{name}",
                "offset": offset,
                "limit": limit,
            }
            piece = read_as(Piece, await ask(channel, cluster, site, "tail", request), cluster)
        except Refusal as e:
            raise Refusal(
                e.code if e.code == "signInNeeded" else "agentUnavailable", e.sentence
            ) from None
        except ChannelError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        return piece.data[:limit], piece.size

    def capacity(self) -> Capacity:
        """All clusters together: what runs there at once is Slurm's to say, and a limit of each
        cluster's own.
        """
        return Capacity(sequential=0, parallel=sum(c.runs for c in self._clusters.clusters))

    async def check(self) -> list[str]:
        """Of clusters that can be looked at without anybody's password."""
        out = []
        for cluster in self._clusters.clusters:
            uid = next(iter(self._known(cluster)), None)
            if cluster.access == "account" or uid is not None:
                out += await self.check_cluster(cluster.name, uid)
        return out

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._sites.clear()
        self._forwards.clear()

    # ---- sign-in

    def needs_sign_in(self, key: AgentKey) -> str | None:
        """The sentence that says so; None where nobody has to sign in now."""
        cluster = self._clusters.named(key.host)
        if cluster is None or cluster.access != "ssh" or self._live(key.uid, cluster) is not None:
            return None
        return f"sign in to the cluster {cluster.name} with your account there"

    def signed_in_as(self, key: AgentKey) -> str | None:
        """The unix user whose connection there is; of clusters without sign-in, who the agent runs
        as.
        """
        cluster = self._clusters.named(key.host)
        if cluster is None:
            return None
        try:
            return self._channel(key.uid, cluster).user
        except Refusal:
            return None

    async def sign_in(self, uid: str, cluster: str | None, credentials: "Credentials") -> None:
        """Raises Refusal("signInRefused" | "signInUnreachable" | "badRequest")."""
        there = self._clusters.named(cluster)
        if there is None:
            raise Refusal(
                "badRequest",
                f"there is no cluster {cluster}; there are: {', '.join(c.name for c in self._clusters.clusters)}",
            )
        if there.access != "ssh":
            raise Refusal(
                "badRequest",
                f"nobody signs in to the cluster {there.name}: its runs are started without",
            )
        try:
            from .ssh.sign_in import connect
        except ImportError as e:
            raise Refusal(
                "signInUnreachable",
                f"sign-in needs a package that is not installed here ({e.name}): "
                "pip install 'jobscribe[sbatch]'",
            ) from None
        async with self._locks[uid, there.name]:
            channel = await connect(there, credentials, self._log)
            before = self._channels.pop((uid, there.name), None)
            self._channels[uid, there.name] = channel
        if before is not None:
            await before.close()
        key = AgentKey(self.name, "parallel", uid, there.name)
        self._log("{} has signed in to {} as {}", uid, there.name, channel.user, uid=uid)
        if there.link == "ssh":
            await self._linked_again(key, there, channel)
        self._signed_in(key)

    async def sign_out(
        self, key: AgentKey, handle: Handle | None, dismiss: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Forget the user's connection and end the agent; what Slurm has goes on. Is nothing of the
        agent left, as far as is known?

        dismiss: asks an agent that is connected to end, and says whether it has gone.
        """
        cluster = self._cluster(key.host)
        async with self._locks[key.uid, key.host]:
            # from now on nobody finds a way there: else a run that waits would have the agent
            # started again
            channel = self._channels.pop((key.uid, key.host), None)
            try:
                if await dismiss() or handle is None:
                    return True
                if channel is None or channel.closed:
                    return False
                await self._stop(handle, _SIGN_OUT_GRACE_SECS, key, cluster, channel)
                return True
            except (Refusal, ChannelError) as e:
                self._log("{} cannot be ended: {}", str(key), e.sentence, uid=key.uid)
                return False
            finally:
                self._sites.pop((key.uid, key.host), None)
                self._forwards.pop(key, None)
                if channel is not None:
                    await channel.close()

    async def _sign_out(self, uid: str, cluster: Cluster, channel: Channel) -> None:
        """What this connection could do nobody needs: the user is to come as somebody else."""
        if self._channels.get((uid, cluster.name)) is channel:
            del self._channels[uid, cluster.name]
        await channel.close()

    async def _linked_again(self, key: AgentKey, cluster: Cluster, channel: Channel) -> None:
        """An agent that is there waits for its way here. Where that cannot be made, its start will
        say why.
        """
        try:
            site = await self._site(key.uid, cluster, channel)
            address = await self._addressed(cluster, channel, site, key)
            await ask(channel, cluster, site, "reach", {"folder": site.folder(key), **address})
        except (Refusal, ChannelError, OSError, ValueError) as e:
            self._log(
                "no link to {} yet: {}",
                str(key),
                e.sentence if isinstance(e, Refusal | ChannelError) else e,
                uid=key.uid,
            )

    # ---- operators

    async def check_cluster(self, cluster: str, uid: str | None = None) -> list[str]:
        """Sentences about what would keep this cluster from working, seen as this user (None: any
        that can be).
        """
        there = self._clusters.named(cluster)
        if there is None:
            return [f"there is no cluster {cluster}"]
        who = uid if uid is not None else next(iter(self._known(there)), "")
        try:
            channel = self._channel(who, there)
            site = await self._site(who, there, channel, secs=0.0)
            said = await ask(
                channel,
                there,
                site,
                "check",
                {
                    "base": site.base,
                    "userRoot": there.user_root,
                    "environment": there.environment,
                    "now": time.time(),
                    "options": _options(there),
                    "secs": there.call_secs,
                },
                6 * there.call_secs,
            )
        except Refusal as e:
            return [e.sentence]
        except ChannelError as e:
            return [f"cluster {there.name}: {e.sentence}"]
        return [f"cluster {there.name}: {told(sentence)}" for sentence in said.get("sentences", [])]

    # ---- ways there

    def _cluster(self, name: str) -> Cluster:
        cluster = self._clusters.named(name)
        if cluster is None:
            raise Refusal(
                "agentUnavailable", f"the cluster {name} is not in the clusters' file any more"
            )
        return cluster

    def _known(self, cluster: Cluster) -> list[str]:
        """Users as whom something can be executed there now."""
        match cluster.access:
            case "account":
                return [""]
            case "ssh":
                return [
                    uid
                    for uid, name in self._channels
                    if name == cluster.name and self._live(uid, cluster) is not None
                ]
            case _:
                return sorted(cluster.users)

    def _live(self, uid: str, cluster: Cluster) -> Channel | None:
        channel = self._channels.get((uid, cluster.name))
        return None if channel is None or channel.closed else channel

    def _channel(self, uid: str, cluster: Cluster) -> Channel:
        """Raises Refusal("signInNeeded" | "agentUnavailable")."""
        live = self._live(uid, cluster)
        if live is not None:
            return live
        if cluster.access == "ssh":
            raise Refusal(
                "signInNeeded", f"nobody is signed in to the cluster {cluster.name} as this user"
            )
        channel = self._channels[uid, cluster.name] = local_channel(cluster, uid)
        return channel

    def _way(self, handle: Handle) -> tuple[AgentKey, Cluster, Channel]:
        if "key" not in handle:
            raise Refusal("agentUnavailable", "its handle does not say whose it is")
        key = parse_agent_key(handle["key"])
        cluster = self._cluster(key.host)
        return key, cluster, self._channel(key.uid, cluster)

    async def _site(
        self, uid: str, cluster: Cluster, channel: Channel, *, secs: float = float("inf")
    ) -> LoginNode:
        """secs: code that was sent may have been taken away since; it was seen no longer ago."""
        known = self._sites.get((uid, cluster.name))
        if (
            known is not None
            and known[0] is channel
            and (known[1].code is None or time.monotonic() - known[2] < secs)
        ):
            return known[1]
        site = await look(channel, cluster, self._deployment, self._codes)
        self._sites[uid, cluster.name] = channel, site, time.monotonic()
        return site

    def _forget(self, key: AgentKey) -> None:
        """Something is wrong there: the next try looks at all of it again."""
        self._sites.pop((key.uid, key.host), None)
        self._codes.tried.clear()

    # ---- what a start is told

    async def _request(
        self, spec: AgentSpec, cluster: Cluster, channel: Channel, site: LoginNode
    ) -> dict[str, Any]:
        key, folder = spec.key, site.folder(spec.key)
        for secret in (spec.token, spec.agent_id):
            self._redactor.add(secret)
        own_file = cluster.access == "account" and cluster.link == "direct"
        agent = {
            **self._agent_settings,
            "agentKey": str(key),
            "agentId": spec.agent_id,
            "token": spec.token,
            "cacheDir": f"{site.base}/agent",
            "addressFile": str(self._root / "agents.json") if own_file else f"{folder}/agents.json",
            "batch": {
                "cluster": msgspec.to_builtins(_for_agents(cluster)),
                "deployment": self._deployment,
            },
            "paths": [[self._user_root, cluster.user_root or f"{site.base}/user"]],
        }
        keeper = {k: v for k, v in self._keeper_settings.items() if k != "lease"}
        return {
            "base": site.base,
            "key": str(key),
            "python": site.python,
            "secs": cluster.start_secs,
            "leftSecs": self._lease["leftSecs"],
            "move": cluster.link == "ssh",
            "code": site.code,
            "config": {**keeper, "agent": agent, "lease": {"renewSecs": self._lease["renewSecs"]}},
            **await self._addressed(cluster, channel, site, key),
        }

    async def _addressed(
        self, cluster: Cluster, channel: Channel, site: LoginNode, key: AgentKey
    ) -> dict[str, Any]:
        """The address for the agent; a link through the connection is made."""
        link = agent_address.link(cluster, await asyncio.to_thread(self._read_address))
        if link.through:
            made = self._forwards.get(key)
            if made is None or made[:3] != (channel, link.host, link.port):
                path = await socket_path(channel, site.folder(key), cluster.call_secs)
                await channel.forward(path, link.host, link.port)
                made = self._forwards[key] = channel, link.host, link.port, path
            link.said["link"] = made[3]
        return {
            "address": link.said,
            "ca": None if link.ca is None else await asyncio.to_thread(Path(link.ca).read_text),
        }

    async def _keep_logs(self, key: AgentKey, answer: dict[str, Any]) -> None:
        if "before" not in answer:
            return
        how = answer.get("error") or (
            "started" if answer.get("started") else "another start was faster"
        )
        try:
            said = read_as(Logs, answer, self._cluster(key.host))
            before, output = said.before, said.output + f"{how}\n".encode()
            await asyncio.to_thread(
                log_archive.keep,
                self._user_root,
                key.uid,
                key.host,
                before,
                output,
                self._redactor,
                now=time.time(),
            )
        except (Refusal, OSError) as e:
            self._log("the logs of {} cannot be kept: {}", str(key), e, uid=key.uid)


def _for_agents(cluster: Cluster) -> Cluster:
    """Without what is nobody's business there: other users' names, and how one signs in."""
    return msgspec.structs.replace(cluster, users={}, login=())


def _options(cluster: Cluster) -> list[str]:
    """The defaults of a cluster, as options of sbatch."""
    d = cluster.defaults
    named = {
        "partition": d.partition,
        "account": d.account,
        "qos": d.qos,
        "constraint": d.constraint,
    }
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
