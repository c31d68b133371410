"""A user of remote breakpoints, without a terminal."""

import json
from typing import Any

from supervisor_process import until

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


def waiting_stop(client: Client, jid: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        stops = client.debug_list(jid)["stops"]
        return next((s for s in stops if not s["attached"]), None)

    return until(look, f"a stop of {jid}")
