"""Fake login nodes of clusters, with accounts and replies set by the test, and an API server in
front of them.
"""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import tornado.httpserver
import tornado.testing
from access_kit import access
from in_memory_supervisor import InMemorySupervisor

from jobscribe.drivers.contracts import Capabilities
from jobscribe.protocol.clusters.cluster import Cluster, Clusters, LoginHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.service.site.secret_rotation import fixed
from jobscribe.supervisor.api import routes
from jobscribe.supervisor.api.transport.request_handler import ApiContext
from jobscribe.supervisor.api.transport.response_limits import ResponseLimits
from jobscribe.supervisor.clusters.inventory import ClusterInventory
from jobscribe.supervisor.clusters.sign_in import SignIns

HOST = LoginHost(host="login.example.org", keys=("ssh-ed25519 AAAA",))
CLUSTERS = Clusters(
    clusters=(
        Cluster(name="alpha", access="ssh", login=(HOST,)),
        Cluster(
            name="beta", access="ssh", login=(LoginHost(host="beta.example.org", keys=("k",)),)
        ),
        Cluster(name="gamma", access="account"),
    )
)


class FakeLoginNodes:
    """`accounts`: name to (password, code). `tried`: the credentials of each attempt. `answer`:
    makes an exception from the credentials, which is raised instead.
    """

    def __init__(self) -> None:
        self.accounts = {"joe": ("correct horse", "123456"), "ann": ("battery staple", None)}
        self.tried: list[tuple[str, str | None, str, str | None, str | None]] = []
        self.inside: dict[AgentKey, str] = {}
        self.answer: Any = None
        #: attempts wait until this event is set
        self.gate: asyncio.Event | None = None
        self.entered = 0

    def needs_sign_in(self, key: AgentKey) -> str | None:
        there = CLUSTERS.named(key.host)
        if there is None or there.access != "ssh" or key in self.inside:
            return None
        return f"nobody is signed in at {key.host} for {key.uid}"

    def signed_in_as(self, key: AgentKey) -> str | None:
        return self.inside.get(key)

    async def sign_in(self, uid: str, cluster: str | None, credentials: Any) -> None:
        self.entered += 1
        given = (uid, cluster, credentials.user, credentials.password, credentials.code)
        self.tried.append(given)
        if self.gate is not None:
            await self.gate.wait()
        if self.answer is not None:
            raise self.answer(credentials)
        if self.accounts.get(credentials.user) != (credentials.password, credentials.code):
            raise Refusal(
                "signInRefused",
                f"login.example.org has not accepted the password of {credentials.user}",
            )
        self.inside[AgentKey("sbatch", "parallel", uid, str(cluster))] = credentials.user

    async def sign_out(self, key: AgentKey, handle: Any, dismiss: Any) -> bool:
        self.inside.pop(key, None)
        return bool(await dismiss()) or handle is None


class Api:
    """The supervisor's API listener on an in-memory supervisor with fake login nodes. Its loop has
    its own thread.
    """

    def __init__(
        self, secret: str = "secret", *, has_clusters: bool = True, **options: Any
    ) -> None:
        self.login_nodes, self.mono = FakeLoginNodes(), 1000.0
        self._secret, self._has_clusters, self._options = secret, has_clusters, options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.on_loop(self._open())

    def on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> None:
        self.in_memory = InMemorySupervisor()
        desk: Any = self.in_memory.desk
        desk.drivers["sbatch"] = SimpleNamespace(
            capabilities=Capabilities(tasks="keeper", same_machine=False)
        )
        self.sign_ins = SignIns(
            CLUSTERS,
            self.login_nodes,
            self.in_memory.log.redactor,
            self.in_memory.counters,
            self.in_memory.log,
            now=lambda: self.mono,
            **{"linger_secs": 0.0, **self._options},
        )
        here = {
            "runs": desk,
            "calls": self.in_memory.calls,
            "live": self.in_memory.live,
            "secret": fixed(self._secret),
            "access": access(self._secret),
            "unsent": ResponseLimits(),
            "monitoring": MagicMock(),
            "sign_ins": self.sign_ins if self._has_clusters else None,
            "clusters": ClusterInventory(CLUSTERS if self._has_clusters else None),
        }
        socket, port = tornado.testing.bind_unused_port()
        self._server = tornado.httpserver.HTTPServer(
            routes.application(ApiContext(**{**dict.fromkeys(ApiContext._fields), **here}))
        )
        self._server.add_sockets([socket])
        self.url = f"http://127.0.0.1:{port}"

    def log(self) -> str:
        return "\n".join(self.in_memory.lines.lines)

    def close(self) -> None:
        async def shut() -> None:
            self._server.stop()
            await self._server.close_all_connections()

        self.on_loop(shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
