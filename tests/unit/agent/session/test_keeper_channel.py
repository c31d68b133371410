"""The agent's end of the keeper link: complete messages in order for any fragmentation, and one end
of stream.
"""

import asyncio
import json
import os
import socket
from typing import Any

from jobscribe.agent.session.keeper_channel import KeeperLink


class Agent:
    def __init__(self) -> None:
        self.keeper, ours = socket.socketpair()
        self.keeper.setblocking(False)
        self.got: list[dict[str, Any]] = []
        self.ends = 0
        self._news = asyncio.Event()
        self.link = KeeperLink(ours.detach(), self._take, self._end)

    def _take(self, message: dict[str, Any]) -> None:
        self.got.append(message)
        self._news.set()

    def _end(self) -> None:
        self.ends += 1
        self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.got) + self.ends < count:
                self._news.clear()
                await self._news.wait()


async def test_messages_arrive_whole_and_in_order_in_any_pieces() -> None:
    agent = Agent()
    agent.link.start()
    data = b"".join(json.dumps({"n": n, "text": "é\n" * n}).encode() + b"\n" for n in range(30))
    for i in range(0, len(data), 7):
        agent.keeper.send(data[i : i + 7])
        await asyncio.sleep(0)
    await agent.until(30)
    assert [m["n"] for m in agent.got] == list(range(30)) and agent.got[2]["text"] == "é\né\n"
    agent.link.close()
    agent.keeper.close()


async def test_what_is_sent_arrives_though_the_keeper_reads_late() -> None:
    agent = Agent()
    agent.link.send({"before": "start"})
    agent.link.start()
    for n in range(3000):
        agent.link.send({"n": n, "text": "x" * 1000})
    received = b""
    loop = asyncio.get_running_loop()
    while received.count(b"\n") < 3001:
        received += await asyncio.wait_for(loop.sock_recv(agent.keeper, 1 << 16), 5)
    said = [json.loads(line) for line in received.splitlines()]
    assert said[0] == {"before": "start"} and [m["n"] for m in said[1:]] == list(range(3000))
    agent.link.close()
    agent.keeper.close()


async def test_the_end_is_told_once_and_sending_after_it_is_harmless() -> None:
    agent = Agent()
    agent.link.start()
    agent.keeper.send(b'{"last": 1}\n')
    agent.keeper.close()
    await agent.until(2)
    agent.link.send({"too": "late"})
    await asyncio.sleep(0.02)
    assert (agent.got, agent.ends) == ([{"last": 1}], 1)


async def test_the_descriptor_is_not_inherited() -> None:
    agent = Agent()
    fd = agent.link._socket.fileno()
    assert not os.get_inheritable(fd)
    agent.link.close()
    agent.keeper.close()
