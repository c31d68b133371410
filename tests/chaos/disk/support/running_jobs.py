"""Background activity during disk failures: a run that must not be affected, and checks of refused
requests.
"""

import json
from typing import Any

from supervisor_process import Answer, SupervisorProcess, shell, until


class LongJob:
    """A run that continues until released, and writes its progress to a file."""

    def __init__(self, site: SupervisorProcess) -> None:
        self._site, self._beats, gate = site, site.place / "beats", site.place / "gate"
        self.run = shell(f"while ! [ -e {gate} ]; do echo beat >>{self._beats}; sleep 0.1; done")
        self._gate = gate
        site.submit(self.run)
        site.running(self.run)
        until(self._beats.exists, "the job has begun")

    def beats(self) -> int:
        return len(self._beats.read_text().splitlines())

    def check(self) -> None:
        """Check that the run is alive and its status is known."""
        before = self.beats()
        until(lambda: self.beats() > before, "the job goes on")
        said = self._site.status(self.run)
        assert (said["state"], said["known"]) == ("running", True), said

    def let_go(self) -> None:
        self._gate.touch()
        assert self._site.wait(self.run)["state"] == "completed"


def ask(site: SupervisorProcess, run: dict[str, Any], request: str) -> Answer:
    return site.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": request, "run": run}).encode()
    )


def refused(answer: Answer, *codes: str) -> None:
    """Check that the answer has one of the codes and is retryable."""
    said = answer.json()
    assert (
        said["code"] in codes and answer.code == 503 and said["retry"] is True and said["error"]
    ), (answer.code, said)
