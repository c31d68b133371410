"""A user of relayed shells, without a terminal."""

import base64
import re
from typing import Any

from supervisor_process import SupervisorProcess, until

from jobscribe.client import Client, ClientError


def client_of(site: SupervisorProcess, uid: str) -> Client:
    """Return a client with a token of this user only."""
    scopes = ["read", "control", "debug"]
    made = site.post("token-create", uid=uid, name="shells", scopes=scopes)
    return Client(site.url, made["secret"], uid)


def check_stranger(site: SupervisorProcess, uid: str, jid: str, missing: str) -> None:
    """Check that this user gets the answer for a job that does not exist."""
    refused = []
    with client_of(site, uid) as client:
        for name in (jid, missing):
            try:
                client.open_shell(name)
                raise AssertionError(f"{uid} has a shell in {name}")
            except ClientError as e:
                refused.append((e.code, str(e).replace(name, "JID")))
    assert refused[0] == refused[1], refused


class ShellUser:
    """A shell, opened as soon as its agent or host can be reached. options: of `open_shell`."""

    def __init__(self, client: Client, jid: str, **options: Any) -> None:
        self._client, self._jid, self.said = client, jid, ""
        self._typed = self._offset = 0
        #: the answer with the end, after which the supervisor does not know the shell
        self._last: dict[str, Any] | None = None

        def look() -> str | None:
            try:
                return str(client.open_shell(jid, **options)["shellId"])
            except ClientError as e:
                assert e.code == "agentUnavailable", e
                return None

        self.id = until(look, f"a shell of {jid}")

    def type(self, text: str) -> None:
        data = text.encode()
        while data:
            at = self._client.use_shell(self._jid, self.id, input_at=self._typed, input=data)
            data = data[at["inputAt"] - self._typed :]
            self._typed = at["inputAt"]

    def use(self, **options: Any) -> dict[str, Any]:
        return self._client.use_shell(self._jid, self.id, input_at=self._typed, **options)

    def _read(self) -> dict[str, Any]:
        if self._last is not None:
            return self._last
        answer = self.use(offset=self._offset, limit=65536, wait_secs=1.0)
        data = base64.b64decode(answer["data"])
        self._offset = answer["offset"] + len(data)
        self.said += data.decode(errors="replace")
        if answer["end"]:
            self._last = answer
        return answer

    def until(self, pattern: str) -> None:
        """Wait for output, and forget the output before its end."""

        def look() -> re.Match[str] | None:
            return re.search(pattern, self.said) or (self._read() and re.search(pattern, self.said))

        found = until(look, f"{pattern} in {self.said!r}")
        self.said = self.said[found.end() :]

    def end(self) -> dict[str, Any]:
        """Return the last answer."""
        return until(lambda: (a := self._read())["end"] and a, "the shell ends")
