"""Looks after all connections of the hub: asks each agent now and then whether it is there, and
ends those that do not answer.

One timer for all, on the monotonic clock (Tornado's own pings count on the wall clock: set back by
a day, they would pause for a day). A plain callback and no task: after this process stood still it
runs before any request that came meanwhile is answered, so that nothing is told of agents that
nobody has heard since.
"""

import asyncio

import tornado.iostream
import tornado.websocket

from .hub import Connection, Hub


class HeartbeatMonitor:
    """One per process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._hub.pace.step, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        now = asyncio.get_running_loop().time()
        for connection in list(self._hub.connections.values()):
            match connection.heart.check(now):
                case "ask":
                    _ask(connection)
                case "gone":
                    self._hub.counters.add("agentSilent")
                    connection.close("it does not answer", "silent")
                case "slept":
                    self._hub.counters.add("agentDoubted")
                    connection.close(
                        "this supervisor stood still; its agents have to connect again",
                        "stoodStill",
                    )


def _ask(connection: Connection) -> None:
    try:
        connection.socket.ping()
    except (tornado.websocket.WebSocketClosedError, tornado.iostream.StreamClosedError):
        return  # its end is on its way to us
