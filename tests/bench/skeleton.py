"""Minimal server with the shape of jobscribe, as a performance floor. It accepts HTTP submits,
syncs one log line before the answer, and has an agent on a websocket that spawns `/bin/true` and
reports it. It has no states, no concurrency limits beyond a count, no retries and no
authentication.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections import deque
from typing import Any

import msgpack
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

SLOTS = 2


class Broker:
    def __init__(self, log: int) -> None:
        self.log = log
        self.agent: tornado.websocket.WebSocketHandler | None = None
        self.queue: deque[int] = deque()
        self.running = 0
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.next = 0

    def synced(self, lines: list[dict[str, Any]]) -> None:
        os.write(self.log, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        os.fdatasync(self.log)

    def submit(self, n: int) -> list[int]:
        ids = list(range(self.next, self.next + n))
        self.next += n
        self.synced([{"requested": i} for i in ids])
        for i in ids:
            self.waiting[i] = asyncio.get_running_loop().create_future()
            self.queue.append(i)
        self.place()
        return ids

    def place(self) -> None:
        while self.queue and self.running < SLOTS and self.agent is not None:
            self.running += 1
            self.agent.write_message(msgpack.packb({"run": self.queue.popleft()}), binary=True)

    def said(self, said: dict[str, Any]) -> None:
        self.synced([said])
        if "ended" in said:
            self.running -= 1
            self.waiting.pop(said["ended"]).set_result(None)
            self.place()


class Submit(tornado.web.RequestHandler):
    def initialize(self, broker: Broker) -> None:
        self.broker = broker

    async def post(self) -> None:
        ids = self.broker.submit(json.loads(self.request.body)["n"])
        self.finish({"ids": ids})


class Wait(Submit):
    async def post(self) -> None:
        for i in json.loads(self.request.body)["ids"]:
            if i in self.broker.waiting:
                await self.broker.waiting[i]
        self.finish({"over": True})


class Nothing(tornado.web.RequestHandler):
    def post(self) -> None:
        self.finish({"state": "ok"})


class AgentSocket(tornado.websocket.WebSocketHandler):
    def initialize(self, broker: Broker) -> None:
        self.broker = broker

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self.broker.agent = self
        self.broker.place()

    def on_message(self, message: Any) -> None:
        self.broker.said(msgpack.unpackb(message))


async def agent(url: str) -> None:
    socket = await tornado.websocket.websocket_connect(url)
    socket.protocol.stream.set_nodelay(True)  # type: ignore[union-attr]

    async def run(i: int) -> None:
        process = await asyncio.create_subprocess_exec("/bin/true")
        await socket.write_message(msgpack.packb({"started": i}), binary=True)
        await process.wait()
        await socket.write_message(msgpack.packb({"ended": i}), binary=True)

    tasks = set()
    while (frame := await socket.read_message()) is not None:
        task = asyncio.create_task(run(msgpack.unpackb(frame)["run"]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def supervisor() -> None:
    with tempfile.TemporaryFile() as log:
        broker = Broker(log.fileno())
        application = tornado.web.Application(
            [
                ("/submit", Submit, {"broker": broker}),
                ("/wait", Wait, {"broker": broker}),
                ("/nothing", Nothing),
                ("/agent", AgentSocket, {"broker": broker}),
            ],
            log_function=lambda handler: None,
        )
        sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
        tornado.httpserver.HTTPServer(application).add_sockets(sockets)
        print(sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(agent(sys.argv[2]) if sys.argv[1:2] == ["agent"] else supervisor())
