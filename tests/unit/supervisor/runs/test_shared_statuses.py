"""A status is made once for all pages, and again when the job or its progress has changed."""

from types import SimpleNamespace
from typing import Any

import msgspec

from jobscribe.supervisor.runs.shared_statuses import FRESH_SECS, LOOKED_SECS, MOST, SharedStatuses


def test_a_status_is_made_once_until_something_changes() -> None:
    made: list[str] = []
    now, progress = [100.0], {"frameCount": 1}

    def make(entry: Any) -> dict[str, Any]:
        made.append(entry.job.jid)
        return {"computeJid": entry.job.jid, "position": entry.position}

    def entry(jid: str, position: int) -> Any:
        return SimpleNamespace(job=SimpleNamespace(jid=jid), position=position)

    reports: Any = SimpleNamespace(of=lambda job: dict(progress))
    shared = SharedStatuses(make, reports, lambda: now[0])
    reply, encoded = shared.of(entry("a", 1))
    assert msgspec.json.decode(encoded) == reply == {"computeJid": "a", "position": 1}
    assert shared.of(entry("a", 1)) == (reply, encoded) and made == ["a"]
    shared.of(entry("a", 2))
    progress["frameCount"] = 2
    shared.of(entry("a", 2))
    assert len(made) == 3, "a durable change and a report of progress"
    now[0] += 2 * FRESH_SECS
    shared.of(entry("a", 2), LOOKED_SECS)
    assert len(made) == 3
    shared.of(entry("a", 2))
    assert len(made) == 4, "too old to be sent"
    for n in range(MOST + 1):
        shared.of(entry(f"j{n}", 1))
    assert len(shared._made) <= MOST
