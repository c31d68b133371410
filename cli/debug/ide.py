"""`jobscribe debug attach --port`: an IDE on this machine debugs a stopped process of a job.

The IDE connects to a listener at 127.0.0.1, which takes one connection, of this unix user. Bytes go
through supervisor and agent, as lines of JSON.
"""

import base64
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.session import Session
from .message_lines import MessageLines, MessageTooLong

if TYPE_CHECKING:
    from ...client.sync_client import Client

_LOCALHOST = "127.0.0.1"
#: Bytes of the IDE in one request, whose text may have 32 KiB.
_BYTES, _OUTPUT_CHARS, _POLL_SECS = 16 * 1024, 64 * 1024, 10.0


class Ended(Exception):
    """The session is over; the text says why."""


def relay(s: Session, stop: dict[str, Any], port: int) -> None:
    """Wait for the IDE, then pass bytes on until one end closes. Raises Refusal, ClientError."""
    with _listener(port) as listener:
        address = listener.getsockname()
        s.screen.message(
            f'[attach the IDE to {_LOCALHOST}:{address[1]}; VS Code: {{"type": "debugpy", "request": "attach",'
            f' "connect": {{"host": "{_LOCALHOST}", "port": {address[1]}}}}}]'
        )
        ide = _accepted(listener)
    client = s.client_for(stop["computeJid"])
    with (
        ide,
        client.copy(budget_secs=0.0) as writer,
        client.copy(budget_secs=0.0) as reader,
    ):
        id_ = client.debug_attach(stop["computeJid"], stop["id"])["session"]
        try:
            why = _pass_on(ide, writer, reader, id_)
        finally:
            with contextlib.suppress(ClientError, Refusal):
                writer.debug_io(id_, close=True)
    s.screen.message(f"[{why}]")


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOCALHOST, port))
    except OSError as e:
        raise Refusal(
            "portTaken", f"port {port} cannot be used: {e.strerror}; give another --port, or 0"
        ) from None


def _accepted(listener: socket.socket) -> socket.socket:
    """Return the first connection of this unix user."""
    from ...runtime.connections.socket_owner import owner

    while True:
        ide, peer = listener.accept()
        if owner(peer, ide.getsockname()) == os.geteuid():
            return ide
        ide.close()


def _pass_on(ide: socket.socket, writer: "Client", reader: "Client", id_: str) -> str:
    """Return why the session ended."""
    messages = _messages(reader, id_)
    try:
        hello = next(messages).get("hello")
    except Ended as e:
        return str(e)
    if not isinstance(hello, dict) or hello.get("protocol") != "dap":
        raise Refusal(
            "badRequest",
            "this process waits for Pdb, not for an IDE; leave out --port, or submit with --debug=debugpy",
        )
    # the process starts debugpy when it hears of the IDE
    _send(writer, id_, b"")
    found: list[str] = []

    def to_ide() -> None:
        try:
            for message in messages:
                ide.sendall(base64.b64decode(str(message.get("dap", ""))))
        except (Ended, Refusal, ClientError, OSError, ValueError) as e:
            found.append(getattr(e, "sentence", None) or str(e))
        with contextlib.suppress(OSError):
            ide.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=to_ide, daemon=True)
    thread.start()
    try:
        while data := ide.recv(_BYTES):
            _send(writer, id_, data)
    except (OSError, Refusal, ClientError) as e:
        found.append(getattr(e, "sentence", None) or str(e))
    return found[0] if found else "the IDE has detached; the job continues"


def _send(writer: "Client", id_: str, data: bytes) -> None:
    text = base64.b64encode(data).decode("ascii")
    writer.debug_io(id_, json.dumps({"dap": text}) + "\n")


def _messages(reader: "Client", id_: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of the process. Raises Ended, Refusal, ClientError."""
    lines = MessageLines()
    while True:
        answer = reader.debug_io(id_, limit=_OUTPUT_CHARS, wait_secs=_POLL_SECS)
        try:
            yield from lines.messages(answer["data"])
        except MessageTooLong as e:
            raise Ended(str(e)) from None
        if answer["end"]:
            raise Ended(answer["reason"])
