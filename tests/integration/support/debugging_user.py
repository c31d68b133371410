"""A user of remote breakpoints, without a terminal."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from supervisor_process import DEADLINE_SECS, until

from jobscribe.client import Client


class Debugger:
    """A user at a prompt. Each answer ends with the next prompt, or with the end of the session."""

    def __init__(self, client: Client, stop: dict[str, Any]) -> None:
        self.client = client
        self.session = client.debug_attach(stop["computeJid"], stop["id"])["session"]
        self.kept, self.messages = "", list[dict[str, Any]]()

    def until(self, key: str) -> str:
        """Return the output before the next message with this key."""
        out = ""
        while True:
            while self.messages:
                message = self.messages.pop(0)
                out += message.get("out", "")
                if key in message:
                    return out
            answer = self.client.debug_io(self.session, limit=65536, wait_secs=10.0)
            *lines, self.kept = (self.kept + answer["data"]).split("\n")
            self.messages += map(json.loads, lines)
            if answer["end"]:
                self.messages.append({"end": answer["reason"], "closed": True})

    def close(self) -> None:
        self.client.debug_io(self.session, close=True)

    def type(self, line: str, key: str = "prompt") -> str:
        self.client.debug_io(self.session, json.dumps({"line": line}) + "\n")
        return self.until(key)


def waiting_stop(client: Client, jid: str, secs: float = DEADLINE_SECS) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        stops = client.debug_list(jid)["stops"]
        return next((s for s in stops if not s["attached"]), None)

    return until(look, f"a stop of {jid}", secs)


def flooding_lines(megabytes: int) -> Iterator[str]:
    """Yield what a user pastes and types: a line of this size; a command that shows as much; and one
    that sends as much in one message, which ends the session.
    """
    for _ in range(megabytes):
        yield "y" * 10**6
    each = f"for _ in range({megabytes})"
    yield "\n!import jobscribe_pdb; d = jobscribe_pdb.current()"
    yield f"\n![None {each} if d.message('w' * 10**6)]"
    yield f"\n![None {each} if d._connection._peer.sendall(b'v' * 10**6)]\n"


def check_flooded(stdout: str, stderr: str) -> None:
    """Check what the user saw of it."""
    assert "the line was not sent: a line has at most 60 KiB" in stderr, stderr
    assert "characters of output dropped" in stdout and 10**5 < stdout.count("w") < 2 * 10**6
    assert "the process sent more than 2 MiB without an end of line" in stderr, stderr
    assert "v" * 1000 not in stdout


def attached(words: Iterable[str], lines: Iterable[str]) -> tuple[int, str, str, int]:
    """Run a command of a user who types these lines. Return exit code, both outputs, and its highest
    use of memory (bytes).
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    with subprocess.Popen(
        [sys.executable, "-m", "jobscribe.cli", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        errors = list[str]()
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
        reader.start()
        for line in lines:
            process.stdin.write(line)
        process.stdin.flush()
        shown = process.stdout.read()
        reader.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, shown, errors[0], usage.ru_maxrss * 1024
