"""Agents on login nodes of clusters: one per user and cluster, with a keeper that outlives this
process and the ssh connection.

On the login node, `agent/login_node` does the work (one line of JSON in, one line out), through a
channel: a local process, or a user's ssh connection, which exists only after the user has signed
in.
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
from ...protocol.ids import AgentKey, AgentKind, agent_log_ids, parse_agent_key
from ...protocol.redaction import Redactor
from ...runtime.log.logger import Log
from .. import untrusted_files
from ..contracts import AgentSpec, Capabilities, Capacity, Found, FoundState, Handle
from . import agent_address, log_archive
from .login_node.channel import Channel, ChannelError, local_channel
from .login_node.site import (
    CodeCache,
    FileChunk,
    FindResult,
    LoginNode,
    StartLogs,
    StartResult,
    call,
    error_text,
    parse_answer,
    prepare,
)
from .login_node.socket_folder import socket_path

if TYPE_CHECKING:
    from .ssh.credentials import Credentials

#: Renewal interval of a lease, and the age after which it counts as abandoned (see
#: agent/keeper/lease; seconds).
_RENEW_SECS, _ABANDONED_SECS = 5.0, 30.0
#: Code that was checked less than this time ago is not checked again (seconds): a start follows
#: soon after a sign-in.
_CODE_CHECK_SECS = 60.0
#: Grace for an agent after a sign-out (seconds). An agent needs no cleanup: its knowledge of jobs
#: is on disk.
_SIGN_OUT_GRACE_SECS = 2.0
#: Additional time for a stop on another login node (seconds).
_STOP_EXTRA_SECS = 45.0


class SbatchDriver:
    """The `sbatch` `AgentDriver` (see drivers.contracts)."""

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
        """address: reads the supervisor's agents.json. signed_in: called after a user's successful
        sign-in to a cluster.
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
            "leftSecs": _ABANDONED_SECS,
        } | self._keeper_settings.get("lease", {})
        self._codes = CodeCache()
        self._channels: dict[tuple[str, str], Channel] = {}
        #: by uid and cluster: the channel, its login node, and the time of the last check
        #: (monotonic)
        self._login_nodes: dict[tuple[str, str], tuple[Channel, LoginNode, float]] = {}
        self._forwards: dict[AgentKey, tuple[Channel, str, int, str]] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def _log_of(self, key: AgentKey) -> Log:
        """Return the log of the work on one agent."""
        return self._log.bound(**agent_log_ids(key))

    # ---- the AgentDriver contract

    async def start(self, spec: AgentSpec) -> Handle:
        key = spec.key
        cluster = self._cluster(key.host)
        async with self._locks[key.uid, key.host]:
            channel = self._channel(key.uid, cluster)
            try:
                site = await self._login_node(key.uid, cluster, channel, secs=_CODE_CHECK_SECS)
                request = await self._start_request(spec, cluster, channel, site)
                left = self._lease["leftSecs"]
                answer = await call(
                    channel,
                    cluster,
                    site,
                    "start",
                    request,
                    cluster.start_secs + 3 * left + _STOP_EXTRA_SECS,
                )
            except (Refusal, ChannelError) as e:
                self._forget_login_node(key)
                if isinstance(e, Refusal):
                    raise
                raise Refusal("agentUnavailable", f"cluster {cluster.name}: {e.sentence}") from None
            if "error" in answer:
                self._forget_login_node(key)
        await self._store_logs(key, answer)
        if "error" in answer:
            raise Refusal(
                "agentUnavailable",
                self._redactor.text(f"cluster {cluster.name}: {answer['error']}"),
            )
        keeper = parse_answer(StartResult, answer, cluster)
        self._log_of(key)(
            "agent {}: keeper pid {} on {}, {}",
            str(key),
            keeper.pid,
            error_text(keeper.host),
            "started" if keeper.started else "already running",
        )
        handle = {k: v for k, v in msgspec.to_builtins(keeper).items() if k != "started"}
        return {"folder": site.folder(key), **handle, "key": str(key), "user": channel.user}

    async def find(self, handle: Handle) -> Found:
        try:
            key, cluster, channel = self._resolve(handle)
        except Refusal as e:
            return Found(
                state=FoundState.UNKNOWN, detail=e.sentence, sign_in=e.code == "signInNeeded"
            )
        if handle.get("user") not in (None, channel.user):
            sentence = f"the agent runs as {handle['user']}, but the sign-in was as {channel.user}"
            if cluster.access == "ssh":
                await self._sign_out(key.uid, cluster, channel)
                sentence += f"; sign in as {handle['user']}"
            return Found(state=FoundState.UNKNOWN, detail=sentence, sign_in=cluster.access == "ssh")
        try:
            site = await self._login_node(key.uid, cluster, channel)
            request: dict[str, Any] = {
                "folder": site.folder(key),
                "handle": handle,
                "leftSecs": self._lease["leftSecs"],
                "move": cluster.link == "ssh",
            }
            # without a known address, the agent keeps its previous one
            with contextlib.suppress(Refusal, OSError, ValueError):
                request |= await self._address_for_agent(cluster, channel, site, key)
            answer = await call(
                channel, cluster, site, "find", request, cluster.call_secs + self._lease["leftSecs"]
            )
            found = parse_answer(FindResult, answer, cluster)
        except (Refusal, ChannelError) as e:
            return Found(
                state=FoundState.UNKNOWN,
                detail=e.sentence,
                sign_in=cluster.access == "ssh" and channel.closed,
            )
        return Found(state=found.state, detail=error_text(found.detail))

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        if "key" not in handle:
            return
        try:
            await self._stop(handle, grace_secs, *self._resolve(handle))
        except (Refusal, ChannelError) as e:
            raise Refusal("agentUnavailable", e.sentence) from None

    async def _stop(
        self, handle: Handle, grace_secs: float, key: AgentKey, cluster: Cluster, channel: Channel
    ) -> None:
        site = await self._login_node(key.uid, cluster, channel)
        request = {
            "folder": site.folder(key),
            "handle": handle,
            "grace": grace_secs,
            "leftSecs": self._lease["leftSecs"],
        }
        await call(
            channel,
            cluster,
            site,
            "stop",
            request,
            cluster.call_secs + grace_secs + self._lease["leftSecs"] + _STOP_EXTRA_SECS,
        )

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        cluster = self._cluster(key.host)
        try:
            channel = self._channel(key.uid, cluster)
            site = await self._login_node(key.uid, cluster, channel)
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
            piece = parse_answer(
                FileChunk, await call(channel, cluster, site, "tail", request), cluster
            )
        except Refusal as e:
            raise Refusal(
                e.code if e.code == "signInNeeded" else "agentUnavailable", e.sentence
            ) from None
        except ChannelError as e:
            raise Refusal("agentUnavailable", e.sentence) from None
        return piece.data[:limit], piece.size

    def capacity(self) -> Capacity:
        """Return the sum of the clusters' run limits. Slurm schedules the runs itself."""
        return Capacity(sequential=0, parallel=sum(c.runs for c in self._clusters.clusters))

    async def check(self) -> list[str]:
        """Check the clusters that are accessible without a user's password."""
        out = []
        for cluster in self._clusters.clusters:
            uid = next(iter(self._usable_users(cluster)), None)
            if cluster.access == "account" or uid is not None:
                out += await self.check_cluster(cluster.name, uid)
        return out

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._login_nodes.clear()
        self._forwards.clear()

    # ---- sign-in

    def needs_sign_in(self, key: AgentKey) -> str | None:
        """Return a sentence that asks for the sign-in, or None if no sign-in is needed now."""
        cluster = self._clusters.named(key.host)
        if (
            cluster is None
            or cluster.access != "ssh"
            or self._live_channel(key.uid, cluster) is not None
        ):
            return None
        return f"sign in to the cluster {cluster.name} with your account there"

    def signed_in_as(self, key: AgentKey) -> str | None:
        """Return the unix user of the connection, or for clusters without sign-in, the unix user of
        the agent.
        """
        cluster = self._clusters.named(key.host)
        if cluster is None:
            return None
        try:
            return self._channel(key.uid, cluster).user
        except Refusal:
            return None

    async def sign_in(self, uid: str, cluster: str | None, credentials: "Credentials") -> None:
        """Connect to a cluster with a user's credentials. Raises Refusal("signInRefused" |
        "signInUnreachable" | "badRequest").
        """
        target = self._clusters.named(cluster)
        if target is None:
            raise Refusal(
                "badRequest",
                f"there is no cluster {cluster}; choose one of: "
                f"{', '.join(c.name for c in self._clusters.clusters)}",
            )
        if target.access != "ssh":
            raise Refusal(
                "badRequest",
                f"the cluster {target.name} needs no sign-in: submit runs without it",
            )
        try:
            from .ssh.sign_in import connect
        except ImportError as e:
            raise Refusal(
                "signInUnreachable",
                f"sign-in needs a package that is not installed here ({e.name}): "
                "pip install 'jobscribe[sbatch]'",
            ) from None
        async with self._locks[uid, target.name]:
            channel = await connect(target, credentials, self._log)
            before = self._channels.pop((uid, target.name), None)
            self._channels[uid, target.name] = channel
        if before is not None:
            await before.close()
        key = AgentKey(self.name, AgentKind.PARALLEL, uid, target.name)
        self._log_of(key)("{} has signed in to {} as {}", uid, target.name, channel.user)
        if target.link == "ssh":
            await self._renew_link(key, target, channel)
        self._signed_in(key)

    async def sign_out(
        self, key: AgentKey, handle: Handle | None, dismiss: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Forget the user's connection and stop the agent; Slurm jobs continue. Returns whether
        nothing of the agent is left, as far as is known.

        dismiss: asks a connected agent to exit, and returns whether it has gone.
        """
        cluster = self._cluster(key.host)
        async with self._locks[key.uid, key.host]:
            # remove the channel first: otherwise a waiting run would start the agent again
            channel = self._channels.pop((key.uid, key.host), None)
            try:
                if await dismiss() or handle is None:
                    return True
                if channel is None or channel.closed:
                    return False
                await self._stop(handle, _SIGN_OUT_GRACE_SECS, key, cluster, channel)
                return True
            except (Refusal, ChannelError) as e:
                self._log_of(key)("cannot stop {}: {}", str(key), e.sentence)
                return False
            finally:
                self._login_nodes.pop((key.uid, key.host), None)
                self._forwards.pop(key, None)
                if channel is not None:
                    await channel.close()

    async def _sign_out(self, uid: str, cluster: Cluster, channel: Channel) -> None:
        """Drop this connection, because the user must sign in as another unix user."""
        if self._channels.get((uid, cluster.name)) is channel:
            del self._channels[uid, cluster.name]
        await channel.close()

    async def _renew_link(self, key: AgentKey, cluster: Cluster, channel: Channel) -> None:
        """Give a running agent its new link to the supervisor. On failure, the agent's next start
        reports the reason.
        """
        try:
            site = await self._login_node(key.uid, cluster, channel)
            address = await self._address_for_agent(cluster, channel, site, key)
            await call(channel, cluster, site, "reach", {"folder": site.folder(key), **address})
        except (Refusal, ChannelError, OSError, ValueError) as e:
            self._log_of(key)(
                "no link to {} yet: {}",
                str(key),
                e.sentence if isinstance(e, Refusal | ChannelError) else e,
            )

    # ---- operators

    async def check_cluster(self, cluster: str, uid: str | None = None) -> list[str]:
        """Return one sentence per problem of this cluster, checked as this user (None: any user
        with access).
        """
        target = self._clusters.named(cluster)
        if target is None:
            return [f"there is no cluster {cluster}"]
        as_uid = uid if uid is not None else next(iter(self._usable_users(target)), "")
        try:
            channel = self._channel(as_uid, target)
            site = await self._login_node(as_uid, target, channel, secs=0.0)
            answer = await call(
                channel,
                target,
                site,
                "check",
                {
                    "base": site.base,
                    "userRoot": target.user_root,
                    "environment": target.environment,
                    "now": time.time(),
                    "options": _options(target),
                    "secs": target.call_secs,
                },
                6 * target.call_secs,
            )
        except Refusal as e:
            return [e.sentence]
        except ChannelError as e:
            return [f"cluster {target.name}: {e.sentence}"]
        return [
            f"cluster {target.name}: {error_text(sentence)}"
            for sentence in answer.get("sentences", [])
        ]

    # ---- channels

    def _cluster(self, name: str) -> Cluster:
        cluster = self._clusters.named(name)
        if cluster is None:
            raise Refusal(
                "agentUnavailable", f"the cluster {name} is no longer in the clusters file"
            )
        return cluster

    def _usable_users(self, cluster: Cluster) -> list[str]:
        """Return the users whose accounts can run commands on the cluster now."""
        match cluster.access:
            case "account":
                return [""]
            case "ssh":
                return [
                    uid
                    for uid, name in self._channels
                    if name == cluster.name and self._live_channel(uid, cluster) is not None
                ]
            case _:
                return sorted(cluster.users)

    def _live_channel(self, uid: str, cluster: Cluster) -> Channel | None:
        channel = self._channels.get((uid, cluster.name))
        return None if channel is None or channel.closed else channel

    def _channel(self, uid: str, cluster: Cluster) -> Channel:
        """Return the channel of a user. Raises Refusal("signInNeeded" | "agentUnavailable")."""
        live = self._live_channel(uid, cluster)
        if live is not None:
            return live
        if cluster.access == "ssh":
            raise Refusal(
                "signInNeeded", f"this user is not signed in to the cluster {cluster.name}"
            )
        channel = self._channels[uid, cluster.name] = local_channel(cluster, uid)
        return channel

    def _resolve(self, handle: Handle) -> tuple[AgentKey, Cluster, Channel]:
        if "key" not in handle:
            raise Refusal("agentUnavailable", "the agent's handle has no agent key")
        key = parse_agent_key(handle["key"])
        cluster = self._cluster(key.host)
        return key, cluster, self._channel(key.uid, cluster)

    async def _login_node(
        self, uid: str, cluster: Cluster, channel: Channel, *, secs: float = float("inf")
    ) -> LoginNode:
        """Return the login node, prepared if needed. secs: maximum age of the last check that the
        sent code still exists.
        """
        known = self._login_nodes.get((uid, cluster.name))
        if (
            known is not None
            and known[0] is channel
            and (known[1].code is None or time.monotonic() - known[2] < secs)
        ):
            return known[1]
        site = await prepare(channel, cluster, self._deployment, self._codes)
        self._login_nodes[uid, cluster.name] = channel, site, time.monotonic()
        return site

    def _forget_login_node(self, key: AgentKey) -> None:
        """After an error, let the next try check everything again."""
        self._login_nodes.pop((key.uid, key.host), None)
        self._codes.tried.clear()

    # ---- the start request

    async def _start_request(
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
                "cluster": msgspec.to_builtins(_without_private_settings(cluster)),
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
            **await self._address_for_agent(cluster, channel, site, key),
        }

    async def _address_for_agent(
        self, cluster: Cluster, channel: Channel, site: LoginNode, key: AgentKey
    ) -> dict[str, Any]:
        """Return the supervisor's address for the agent. Creates the socket through the connection
        if the link needs one.
        """
        link = agent_address.link(cluster, await asyncio.to_thread(self._read_address))
        if link.through:
            forward = self._forwards.get(key)
            if forward is None or forward[:3] != (channel, link.host, link.port):
                path = await socket_path(channel, site.folder(key), cluster.call_secs)
                await channel.forward(path, link.host, link.port)
                forward = self._forwards[key] = channel, link.host, link.port, path
            link.address["link"] = forward[3]
        return {
            "address": link.address,
            "ca": None if link.ca is None else await asyncio.to_thread(Path(link.ca).read_text),
        }

    async def _store_logs(self, key: AgentKey, answer: dict[str, Any]) -> None:
        if "before" not in answer:
            return
        outcome = answer.get("error") or (
            "started" if answer.get("started") else "another start was first"
        )
        try:
            logs = parse_answer(StartLogs, answer, self._cluster(key.host))
            before, output = logs.before, logs.output + f"{outcome}\n".encode()
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
            self._log_of(key)("cannot store the logs of {}: {}", str(key), e)


def _without_private_settings(cluster: Cluster) -> Cluster:
    """Remove other users' names and the sign-in settings."""
    return msgspec.structs.replace(cluster, users={}, login=())


def _options(cluster: Cluster) -> list[str]:
    """Return the defaults of a cluster as sbatch options."""
    defaults = cluster.defaults
    named = {
        "partition": defaults.partition,
        "account": defaults.account,
        "qos": defaults.qos,
        "constraint": defaults.constraint,
    }
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
