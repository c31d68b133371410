"""The websocket listener for agents, with authentication."""

import asyncio

import tornado.web
import tornado.websocket

from ...protocol.errors import Refusal
from ...protocol.ids import agent_log_ids
from ...protocol.wire.codec import MAX_FRAME
from ...protocol.wire.handshake import HEADER, NO_COMMON_VERSION, PROTOCOLS
from ...runtime.connections.http_server import authenticated
from .hub import Connection, Hub

#: Time limit for the first message, `alive`, of a connection.
ALIVE_SECS = 10.0


class AgentSocket(tornado.websocket.WebSocketHandler):
    """`/agent`: the websocket to which an agent connects."""

    def initialize(self, hub: Hub) -> None:
        self.hub = hub
        self.connection: Connection | None = None

    def check_origin(self, origin: str) -> bool:
        return False  # browsers send an origin, agents do not

    async def prepare(self) -> None:
        try:
            self.key = self.hub.authenticate(
                self.request.headers.get("X-Jobscribe-Agent"),
                self.request.headers.get("Authorization"),
            )
        except Refusal as e:
            self.hub.counters.add("rejected." + e.code)
            self.hub.log("refused a connection of an agent: {}", e.sentence)
            self.set_status(401)
            self.finish()
            return
        self.set_header(HEADER, self.hub.hello)
        try:
            self.protocol = self.hub.protocol_for(self.request.headers.get(PROTOCOLS))
        except Refusal as e:
            self.hub.counters.add("rejected." + e.code)
            self.hub.log.bound(**agent_log_ids(self.key))("refused {}: {}", self.key, e.sentence)
            self.set_status(NO_COMMON_VERSION)
            self.finish(e.sentence)
        else:
            authenticated(self.request)

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self.connection = Connection(self.hub, self, self.key, self.hub.next_epoch(), self.protocol)
        self._timer = asyncio.get_running_loop().call_later(ALIVE_SECS, self._silent)

    def _silent(self) -> None:
        if self.connection is not None and self.connection.alive is None:
            self.connection.close("it did not send alive in time")

    def on_message(self, message: str | bytes) -> None:
        if self.connection is not None:
            self.connection.receive(message)

    def on_pong(self, data: bytes) -> None:
        if self.connection is not None:
            self.connection.record_receipt()

    def on_close(self) -> None:
        if self.connection is not None:
            self._timer.cancel()  # else the timer keeps this object in memory
            self.hub.lost(self.connection)


def application(hub: Hub) -> tornado.web.Application:
    """Return the Tornado application of the agent listener."""
    return tornado.web.Application(
        [(r"/agent", AgentSocket, {"hub": hub})],
        websocket_max_message_size=MAX_FRAME,
        log_function=lambda handler: None,
    )
