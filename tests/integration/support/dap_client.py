"""A small client of the Debug Adapter Protocol: an IDE of tests."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from supervisor_process import SupervisorProcess


class DapClient:
    """One connection, as VS Code makes it with `"request": "attach"`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._file = self._socket.makefile("rb")
        self._number, self._shown = 0, ""

    def begin(self) -> None:
        """Do what an IDE does first, without breakpoints of its own."""
        self.ask("initialize", clientID="test", adapterID="python", linesStartAt1=True)
        self._send("attach", justMyCode=False, redirectOutput=True)
        self.ask("configurationDone")

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Return the body of the successful response."""
        number = self._send(command, **arguments)
        answer = self._until(lambda m: m["type"] == "response" and m["request_seq"] == number)
        assert answer["success"], answer
        body: dict[str, Any] = answer.get("body") or {}
        return body

    def stopped(self) -> dict[str, Any]:
        """Wait for a stop. Return its thread and its innermost frame."""
        event = self._until(lambda m: m["type"] == "event" and m["event"] == "stopped")
        thread = event["body"]["threadId"]
        frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        return {"thread": thread, **frame}

    def output(self, text: str) -> int:
        """Wait until the program has shown this text, also before this call. Return the number of
        characters that it has shown.
        """
        while text not in self._shown:
            self._read()
        return len(self._shown)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        request = {
            "seq": self._number,
            "type": "request",
            "command": command,
            "arguments": arguments,
        }
        data = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        return self._number

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = self._read()
            if wanted(message):
                return message

    def _read(self) -> dict[str, Any]:
        size = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the connection has ended"
        message: dict[str, Any] = json.loads(self._file.read(size))
        if message.get("event") == "output":
            self._shown += message["body"]["output"]
        return message


@contextmanager
def attached_ide(
    site: SupervisorProcess, uid: str, id_: str
) -> Iterator[tuple[DapClient, "subprocess.Popen[str]"]]:
    """Run `debug attach --port 0`, and attach."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    command = [sys.executable, "-m", "jobscribe.cli", "debug", "attach", id_, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--root", str(site.root), "--uid", uid],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stderr is not None
    try:
        said = re.search(r"127\.0\.0\.1:(\d+);", process.stderr.readline())
        assert said is not None
        client = DapClient(int(said[1]))
        try:
            yield client, process
        finally:
            client.close()
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()
