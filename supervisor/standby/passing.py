"""Connections that a standby passes to the holder on the same machine, as open descriptors through a
Unix socket in the root.

A packet is the kind of the listener, with the descriptor; the holder answers each with one byte when
it serves the connection. Only this unix user and root can open the socket.
"""

import array
import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from .listening import KINDS, Kind

#: Folder of the sockets in the root.
FOLDER = "standby"
_PACKET = 16
_TAKEN = b"k"
_CREDENTIALS = struct.Struct("iII")
#: Connections that may wait for the holder at a time; others are refused.
MOST_WAITING = 1024

Serve = Callable[[Kind, socket.socket], None]


class Receiver:
    """The holder's end. serve: serves a connection that a listener of that kind has accepted."""

    def __init__(self, path: Path, serve: Serve, check: Callable[[], object]) -> None:
        """check: ends this process if it lost its lease. Raises OSError."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._path, self._serve, self._check = path, serve, check
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peers: set[socket.socket] = set()
        self.received = 0
        try:
            self._listener.bind(str(path))
            os.chmod(path, 0o600)
            self._listener.listen(64)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
        for peer in list(self._peers):
            self._drop(peer)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(data)[1] not in (0, os.geteuid()):
            peer.close()
            return
        peer.setblocking(False)
        self._peers.add(peer)
        self._loop.add_reader(peer, self._take, peer)

    def _take(self, peer: socket.socket) -> None:
        try:
            data, descriptors = _received(peer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        connections = [socket.socket(fileno=fd) for fd in descriptors]
        kind = next((k for k in KINDS if k.encode() == data), None)
        if kind is None or len(connections) != 1:
            for connection in connections:
                connection.close()
            self._drop(peer)
            return
        self._check()
        self.received += 1
        connections[0].setblocking(False)
        with contextlib.suppress(OSError):  # the client is gone
            self._serve(kind, connections[0])
        try:
            peer.send(_TAKEN)
        except OSError:
            self._drop(peer)

    def _drop(self, peer: socket.socket) -> None:
        self._peers.discard(peer)
        self._loop.remove_reader(peer)
        peer.close()


def _received(peer: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a packet. `socket.recv_fds` would leave its descriptors to child processes."""
    most = 4 * array.array("i").itemsize
    data, parts, _, _ = peer.recvmsg(_PACKET, socket.CMSG_LEN(most), socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return data, list(found)


class Passer:
    """The standby's end, for one holder. Keeps each connection until the holder has it."""

    def __init__(self, path: str) -> None:
        self._path, self._loop = path, asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._waiting: deque[socket.socket] = deque()

    def passed(self, kind: Kind, connection: socket.socket) -> bool:
        """Pass on a connection, and own it from then on; return False if the holder takes none."""
        if len(self._waiting) >= MOST_WAITING:
            return False
        try:
            if self._socket is None:
                self._socket = self._connected()
            socket.send_fds(self._socket, [kind.encode()], [connection.fileno()])
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                self._lost()
            return False
        self._waiting.append(connection)
        return True

    def close(self) -> None:
        """Shut down the connections that the holder has not taken: its copies end, too."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        while self._waiting:
            connection = self._waiting.popleft()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _connected(self) -> socket.socket:
        out = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            out.setblocking(False)
            out.connect(self._path)
        except OSError:
            out.close()
            raise
        self._loop.add_reader(out, self._hear)
        return out

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            answer = self._socket.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if answer != _TAKEN:
            self._lost()
        elif self._waiting:
            self._waiting.popleft().close()

    def _lost(self) -> None:
        """The holder ended: its clients are told by the end of their connections."""
        self.close()
