"""The agent's part of the negotiation: it uses the highest common protocol version, and says why it
cannot connect if there is none.
"""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from jobscribe.agent.session.websocket import Link, _outcome
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.wire.handshake import HEADER, NO_COMMON_VERSION, PROTOCOLS
from jobscribe.protocol.wire.messages import Alive
from jobscribe.protocol.wire.versions import SPOKEN

KEY = AgentKey("local", "sequential", "LinkUsr1", "a")
ALIVE = Alive(
    agent_id="a" * 32, agent_key=KEY, version="1", host="h", boot_id="b", pid=10, keeper_pid=9
)


class _Supervisor(tornado.websocket.WebSocketHandler):
    """Answers the handshake with `header`, or refuses it with `refusal`. heard: version of the
    first frame.
    """

    def initialize(
        self, header: str | None, refusal: str | None, heard: asyncio.Queue[Any]
    ) -> None:
        self._header, self._refusal, self._heard = header, refusal, heard

    def prepare(self) -> None:
        assert self.request.headers[PROTOCOLS] == str(SPOKEN)
        if self._header is not None:
            self.set_header(HEADER, self._header)
        if self._refusal is not None:
            self.set_status(NO_COMMON_VERSION)
            self.finish(self._refusal)

    def on_message(self, message: str | bytes) -> None:
        self._heard.put_nowait(msgpack.unpackb(message)["v"])


async def attempt(folder: Path, header: str | None, refusal: str | None = None) -> Any:
    """Return the version of the agent's first frame, or the first line of its log."""
    heard: asyncio.Queue[Any] = asyncio.Queue()
    given = {"header": header, "refusal": refusal, "heard": heard}
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(
        tornado.web.Application([("/agent", _Supervisor, given)], log_function=lambda _: None)
    )
    server.add_sockets(sockets)
    url = f"ws://127.0.0.1:{sockets[0].getsockname()[1]}/agent"
    (folder / "agents.json").write_text(json.dumps({"agentsUrl": url}))
    link = Link(
        folder / "agents.json",
        str(KEY),
        "token",
        ALIVE,
        lambda text, *args: heard.put_nowait(text.format(*args)),  # type: ignore[arg-type]
        on_up=lambda: None,
        on_message=lambda _: None,
        on_down=lambda: None,
    )
    running = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(20):
            return await heard.get()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        server.stop()
        await server.close_all_connections()


@pytest.mark.parametrize(
    ("stated", "version"),
    [
        ({}, 1),
        ({"protocols": [1, 1]}, 1),
        ({"protocols": [1, 2]}, 2),
        ({"protocols": [2, 3], "later": {}}, 2),
        (None, 1),
    ],
)
async def test_the_agent_uses_the_highest_common_version(
    tmp_path: Path, stated: dict[str, Any] | None, version: int
) -> None:
    header = None if stated is None else json.dumps({"version": "0.1.0", "apps": [], **stated})
    assert await attempt(tmp_path, header) == version


async def test_without_a_common_version_it_says_so(tmp_path: Path) -> None:
    said = await attempt(tmp_path, json.dumps({"version": "0.9", "protocols": [8, 9]}))
    assert "the supervisor (jobscribe 0.9) speaks protocol versions 8-9" in said
    assert f"speaks {SPOKEN}: none in common" in said and "Upgrade this agent" in said


async def test_the_sentence_of_a_refusing_supervisor_is_logged(tmp_path: Path) -> None:
    said = await attempt(tmp_path, None, "upgrade this agent\x1b[2J\n" + "x" * 5000)
    assert "cannot reach the supervisor: upgrade this agent[2Jxx" in said and len(said) < 1000


def test_such_attempts_are_refusals_with_long_pauses() -> None:
    error = tornado.httpclient.HTTPClientError(NO_COMMON_VERSION)
    assert _outcome(error) == "refused"
