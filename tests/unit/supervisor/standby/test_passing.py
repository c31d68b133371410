"""Open connections that a standby passes to the holder."""

import asyncio
import os
import socket
from pathlib import Path

from jobscribe.supervisor.standby.listening import Kind
from jobscribe.supervisor.standby.passing import Passer, Receiver


def client() -> tuple[socket.socket, socket.socket]:
    """Return a client's end and the accepted one."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def read(end: socket.socket) -> bytes:
    async with asyncio.timeout(30):
        return await asyncio.get_running_loop().sock_recv(end, 100)


async def test_the_holder_serves_a_connection_and_a_lost_holder_ends_it(tmp_path: Path) -> None:
    served: list[tuple[Kind, socket.socket]] = []
    checked: list[bool] = []
    path = tmp_path / "standby" / "a"
    receiver = Receiver(path, lambda *given: served.append(given), lambda: checked.append(True))
    passer = Passer(str(path))
    near, far = client()
    assert passer.passed("public", far)
    while passer._waiting:
        await asyncio.sleep(0.01)
    ((kind, connection),) = served
    assert kind == "public" and checked == [True] and not os.get_inheritable(connection.fileno())
    assert far.fileno() == -1, "the standby has forgotten it"
    connection.send(b"hello")
    assert await read(near) == b"hello"
    connection.close()
    near.close()

    # another kind of packet changes nothing
    wrong = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wrong.connect(str(path))
    wrong.send(b"unknown")
    wrong.setblocking(False)
    assert await read(wrong) == b""
    wrong.close()
    assert len(served) == 1

    # a holder that is frozen takes nothing; its clients are told when it is given up
    near, far = client()
    asyncio.get_running_loop().remove_reader(next(iter(receiver._peers)))
    assert passer.passed("api", far)
    passer.close()
    assert await read(near) == b"", "they ask again"
    near.close()
    receiver.close()
    near, far = client()
    assert not passer.passed("api", far), "there is no holder"
    near.close()
    far.close()
