"""A proxy in front of a supervisor that cuts connections, and copies of files that continue then."""

import contextlib
import os
import socket
import threading
from pathlib import Path

from jobscribe.client.sync_client import Client

_SIZE = 8 * 1024 * 1024


class Relay:
    """A proxy that cuts connections. cut_after: bytes in one direction, for each cut to come."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_after: list[int] = []
        self.passed = 0
        self._threads[0].start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in (self._listener, *self._ends):
            end.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            for pair in ((near, far), (far, near)):
                self._ends.append(pair[0])
                self._threads.append(threading.Thread(target=self._pump, args=pair, daemon=True))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        count = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                count += len(data)
                self.passed += len(data)
                if self.cut_after and count > self.cut_after[0]:
                    del self.cut_after[0]
                    break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()  # a sender that is not read gets a reset instead of waiting


def check_cut_copies(url: str, token: str, uid: str, jid: str, folder: Path) -> None:
    """Copy a file into the run directory and back. Each copy continues after its connection is cut."""
    folder.mkdir()
    data = os.urandom(_SIZE)
    (folder / "big").write_bytes(data)
    relay = Relay(url)
    try:
        with Client(relay.url, token, uid) as client:
            relay.cut_after = [_SIZE // 2]
            (there,) = client.put_files(jid, {"cut/big": folder / "big"})
            assert (there.code, relay.cut_after) == ("", []), there
            assert relay.passed < 1.75 * _SIZE, "it began again instead of continuing"
            relay.cut_after, relay.passed = [_SIZE // 2], 0
            (here,) = client.get_files(jid, ["cut/big"], folder / "back")
            assert (here.code, relay.cut_after) == ("", []), here
            assert relay.passed < 1.75 * _SIZE, "it began again instead of continuing"
        assert (folder / "back" / "cut" / "big").read_bytes() == data
    finally:
        relay.close()
