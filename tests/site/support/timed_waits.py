"""What tests of kills and delays say again and again: run this meanwhile, within so long, and what
stands in the record.
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

#: What was promised, with five times the room. Nothing is called running when its process is gone
#: (10 s); a cancel leaves nothing behind (4 s: grace and 1 s); what is true is told again after a
#: restart (5 s); a supervisor stops; an answer that needs no work comes.
GONE_SECS, CANCEL_SECS, RESTART_SECS, STOP_SECS, ANSWER_SECS = 50.0, 20.0, 25.0, 15.0, 10.0


@contextlib.contextmanager
def running(browser: Browser, simulation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs it; afterwards it is canceled, and has ended."""
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
    """A simulation, and the nap that a process of it takes."""
    nap = fresh_nap()
    return browser.simulation("tellingAnimation", "telling", nap=nap, **fields), nap


def asleep(nap: str) -> int:
    return int(until(lambda: naps(nap), "the code's own process sleeps")[0])


def serves(site: SupervisorProcess, name: str) -> None:
    """A user who was not there before has a run, a slot and an answer."""
    other = Browser(site).sign_in(name)
    said = other.finished(other.simulation("slowAnimation", "slow"), secs=GONE_SECS)
    assert said["state"] == "completed", said
    assert other.post(
        "/stateless-compute", simulationType="slow", method="sleep", args={"secs": 0.0}
    ) == {"slept": 0.0}


def record(site: SupervisorProcess, said: dict[str, Any]) -> dict[str, Any]:
    """What lies in the job's file, as soon as it has the state of this answer; NaN would be no
    JSON.
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
    """As the supervisor makes it."""
    return derived_id(
        str(site.agent_key(uid, kind)).encode(),
        key=(site.root / "secret" / "agents").read_text().strip().encode(),
    )


def parent(pid: int) -> int | None:
    """The pid of its parent, while it runs."""
    found = processes.find(pid)
    return None if found is None else found.parent
