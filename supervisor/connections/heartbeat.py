"""The heartbeat monitor: pings all connected agents and closes connections that do not answer.

One timer serves all connections. It uses the monotonic clock, because Tornado's own pings use the
wall clock and stop for a day if that is set back by a day. The timer is a plain callback, not a
task: after this process was stopped, it runs before any request is answered, so no answer relies on
agents that may be gone.
"""

import asyncio

import tornado.iostream
import tornado.websocket

from .hub import Connection, Hub


class HeartbeatMonitor:
    """Pings the agents of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._hub.pace.step, self._check)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self.start()
        now = asyncio.get_running_loop().time()
        for connection in list(self._hub.connections.values()):
            match connection.heart.check(now):
                case "ask":
                    _ping(connection)
                case "gone":
                    self._hub.counters.add("agentSilent")
                    connection.close("it does not answer", "silent")
                case "slept":
                    self._hub.counters.add("agentDoubted")
                    connection.close(
                        "the supervisor was stopped for a while; its agents must reconnect",
                        "stoodStill",
                    )


def _ping(connection: Connection) -> None:
    try:
        connection.socket.ping()
    except (tornado.websocket.WebSocketClosedError, tornado.iostream.StreamClosedError):
        return  # on_close follows
