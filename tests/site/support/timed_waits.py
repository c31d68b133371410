"""Shared steps of tests with kills and delays: keep a run active, wait with promised time limits,
and read job records.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from http_browser import Browser
from supervisor_process import SupervisorProcess, fresh_nap, naps, until

from jobscribe.protocol.ids import derived_id
from jobscribe.runtime import processes

#: Promised times, multiplied by five. No gone process counts as running (10 s). A cancel leaves no
#: process (4 s: grace and 1 s). The status is correct after a restart (5 s). A supervisor stops. An
#: answer without work arrives.
GONE_SECS, CANCEL_SECS, RESTART_SECS, STOP_SECS, ANSWER_SECS = 50.0, 20.0, 25.0, 15.0, 10.0


@contextlib.contextmanager
def running(browser: Browser, simulation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Keep the run active in this context. Afterwards cancel it and wait for its end."""
    browser.run(simulation)
    try:
        yield browser.until_state(simulation, "running")
    finally:
        browser.cancel(simulation)
        until(lambda: browser.status(simulation)["over"], "nothing of it is left", CANCEL_SECS)


@contextlib.contextmanager
def within(secs: float, what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < secs, f"not within {secs:g} s: {what}"


def telling(browser: Browser, **fields: Any) -> tuple[dict[str, Any], str]:
    """Return a simulation and the sleep time of its child process."""
    nap = fresh_nap()
    return browser.simulation("tellingAnimation", "telling", nap=nap, **fields), nap


def asleep(nap: str) -> int:
    return int(until(lambda: naps(nap), "the code's own process sleeps")[0])


def serves(site: SupervisorProcess, name: str) -> None:
    """Check that a new user gets a run, a slot and an answer."""
    other = Browser(site).sign_in(name)
    said = other.finished(other.simulation("slowAnimation", "slow"), secs=GONE_SECS)
    assert said["state"] == "completed", said
    assert other.post(
        "/stateless-compute", simulationType="slow", method="sleep", args={"secs": 0.0}
    ) == {"slept": 0.0}


def record(site: SupervisorProcess, said: dict[str, Any]) -> dict[str, Any]:
    """Return the job's record as soon as it has the state of this answer. NaN in it is an error,
    because it is no JSON.
    """

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} stands in a record")

    def look() -> dict[str, Any] | None:
        path = site.root / "supervisor-job" / f"{said['computeJid']}.json"
        found: dict[str, Any] = (
            json.loads(path.read_text(), parse_constant=refuse) if path.exists() else {}
        )
        return found if found.get("status") == said["state"] else None

    written: dict[str, Any] = until(look, f"its record says {said['state']}")
    return written


def agent_id(site: SupervisorProcess, uid: str, kind: str = "sequential") -> str:
    """Return the agent id that the supervisor derives."""
    return derived_id(
        str(site.agent_key(uid, kind)).encode(),
        key=(site.root / "secret" / "agents").read_text().strip().encode(),
    )


def parent(pid: int) -> int | None:
    """Return the parent pid of a running process, else None."""
    found = processes.find(pid)
    return None if found is None else found.parent
