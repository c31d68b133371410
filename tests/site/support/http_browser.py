"""A browser without a display: a cookie, a kept connection, and the page's handling of answers."""

import http.client
import itertools
import json
import time
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from supervisor_process import DEADLINE_SECS, Answer, SupervisorProcess, until

_numbers = itertools.count(1)
#: All open browsers. `close_all` ends them after a test.
_open: list["Browser"] = []


def sid() -> str:
    return f"F{next(_numbers):07d}"


class Browser:
    """The browser of one user. `ask` returns any answer, the other methods require a success."""

    def __init__(self, site: SupervisorProcess) -> None:
        self.site = site
        self._connection: http.client.HTTPConnection | None = None
        self._cookie = ""
        self.uid = ""
        _open.append(self)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def sign_in(self, name: str) -> "Browser":
        answer = self.ask("POST", "/sign-in", {"name": name})
        assert answer.code == 200, answer
        self._cookie = answer.headers["Set-Cookie"].split(";")[0]
        self.uid = answer.json()["uid"]
        return self

    def another_window(self) -> "Browser":
        """Return a browser of the same user with a separate connection."""
        other = Browser(self.site)
        other._cookie, other.uid = self._cookie, self.uid
        return other

    # ---- requests

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {"Content-Type": "application/json", "Cookie": self._cookie, "X-Jobscribe": "1"} | (
            headers or {}
        )
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self.site.front.removeprefix("http://"), timeout=40
            )
        try:
            self._connection.request(method, path, data, sent)
            reply = self._connection.getresponse()
            return Answer(reply.status, reply.headers, reply.read())
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def post(self, path: str, **body: Any) -> Any:
        answer = self.ask("POST", path, body)
        assert answer.code == 200, (path, answer.code, answer.body[:1000])
        return answer.json()

    def refused(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request that must be refused. Return the body with the status as `http`. It has a
        code, a sentence and advice, and no traceback.
        """
        answer = self.ask("POST", path, body)
        said: dict[str, Any] = answer.json()
        assert (
            answer.code >= 400
            and said["state"] == "error"
            and said["code"]
            and said["error"]
            and said["advice"]
        ), answer
        assert "Traceback" not in answer.body.decode() and ", line " not in answer.body.decode()
        return {**said, "http": answer.code}

    # ---- simulations

    def simulation(
        self, report: str, simulation_type: str = "heat", **fields: Any
    ) -> dict[str, Any]:
        """Return the data that the page sends to run a simulation. fields: of the model of the same
        name.
        """
        return {
            "simulationType": simulation_type,
            "simulationId": sid(),
            "report": report,
            "models": {report: fields},
        }

    def run(self, simulation: dict[str, Any], **more: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self.post("/run-simulation", **simulation, **more)
        return reply

    def status(self, simulation: dict[str, Any], **more: Any) -> dict[str, Any]:
        names = ("simulationType", "simulationId", "report")
        reply: dict[str, Any] = self.post(
            "/run-status", **{k: simulation[k] for k in names}, **more
        )
        return reply

    def cancel(self, simulation: dict[str, Any], **more: Any) -> dict[str, Any]:
        names = ("simulationType", "simulationId", "report")
        reply: dict[str, Any] = self.post(
            "/run-cancel", **{k: simulation[k] for k in names}, **more
        )
        return reply

    def finished(
        self,
        simulation: dict[str, Any],
        reply: dict[str, Any] | None = None,
        secs: float = DEADLINE_SECS,
    ) -> dict[str, Any]:
        """Poll as a page does until the run has ended. Return the last answer."""
        reply = self.run(simulation) if reply is None else reply
        deadline, pause = time.monotonic() + secs, 0.05
        while reply.get("nextRequest"):
            if time.monotonic() > deadline:
                pytest.fail(f"not over within {secs:g} s: {reply}\n{self.site.log()[-3000:]}")
            assert reply["state"] in ("pending", "running"), reply
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
            reply = self.post("/run-status", **reply["nextRequest"])
        return reply

    def until_state(self, simulation: dict[str, Any], state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            said = self.status(simulation)
            return said if said["state"] == state else None

        found: dict[str, Any] = until(look, f"{simulation['simulationId']} is {state}")
        return found

    def frame(
        self,
        simulation: dict[str, Any],
        status: dict[str, Any],
        index: int,
        report: str | None = None,
    ) -> Answer:
        id_ = "*".join(
            str(x)
            for x in (
                index,
                report or simulation["report"],
                simulation["simulationId"],
                simulation["simulationType"],
                status["computeJobHash"],
                status["computeJobSerial"],
            )
        )
        return self.ask("GET", "/simulation-frame/" + quote(id_, safe="*"))

    def download(self, simulation: dict[str, Any], suffix: str = "", **headers: str) -> Answer:
        path = f"/download-run-file/{simulation['simulationType']}/{simulation['simulationId']}/{simulation['report']}/-1"
        return self.ask("GET", f"{path}?{urlencode({'suffix': suffix})}", headers=headers)

    def run_dir(self, simulation: dict[str, Any]) -> Any:
        return (
            self.site.root
            / "user"
            / self.uid
            / simulation["simulationType"]
            / simulation["simulationId"]
            / simulation["report"]
        )


def close_all() -> None:
    while _open:
        _open.pop().close()
