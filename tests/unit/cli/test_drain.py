"""`drain host`, `site`, `list` and `end`: the host's driver is found, and every answer has the drains."""

import json
from typing import Any

import pytest
from answers import answer_calls

Fake = Any
Run = Any

DISKS = {"driver": "docker", "host": "a", "by": "admin001", "at": 0.0, "reason": "new disks"}
SITE = {"driver": "", "host": "", "by": "operator", "at": 60.0, "reason": ""}
HOSTS = [{"driver": d, "host": h} for d, h in (("docker", "a"), ("docker", "b"), ("podman", "b"))]


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Answer like a supervisor with three hosts and two drains; return the requested changes."""
    changes: list[dict[str, Any]] = []

    def answer(call: Any) -> dict[str, Any]:
        if call.path == "/api/pool":
            return {"hosts": HOSTS}
        if call.path == "/api/site-handover":
            name = json.loads(call.body)["supervisor"]
            return {"begun": name == "a:7", "name": "a:7"}
        if call.path == "/api/site-drain":
            changes.append(json.loads(call.body))
        return {"drains": [SITE, DISKS]}

    answer_calls(monkeypatch, answer)
    return changes


def test_drains_are_begun_listed_and_ended(
    run: Run, fake: Fake, changes: list[dict[str, Any]]
) -> None:
    ended = run("drain", "host", "a", "--reason", "new disks")
    assert "a is drained" in ended.err and "drained: the site, a" in ended.err
    assert run("drain", "site", "--json").json() == {
        "schema": "jobscribe.drain/1",
        "items": [SITE, DISKS],
    }
    run("drain", "host", "b", "--driver", "podman")
    run("drain", "host", "localhost")
    run("drain", "end", "a")
    run("drain", "end")
    found = [(c["drain"], c["driver"], c["host"], c["reason"]) for c in changes]
    assert found == [
        (True, "docker", "a", "new disks"),
        (True, "", "", ""),
        (True, "podman", "b", ""),
        (True, "local", "localhost", ""),
        (False, "docker", "a", ""),
        (False, "", "", ""),
    ]
    rows = [line.split() for line in run("drain", "list").out.splitlines()[1:]]
    assert rows == [
        ["the", "site", "-", "1970-01-01T00:01:00Z", "operator", "-"],
        ["a", "docker", "1970-01-01T00:00:00Z", "admin001", "new", "disks"],
    ]


def test_a_host_of_two_drivers_needs_its_driver(
    run: Run, fake: Fake, changes: list[dict[str, Any]]
) -> None:
    ended = run("drain", "host", "b")
    assert ended.code != 0 and "docker and podman; name the driver" in ended.err
    assert changes == []


def test_a_supervisor_hands_over(run: Run, fake: Fake, changes: list[dict[str, Any]]) -> None:
    assert "a:7 hands over" in run("drain", "supervisor", "a:7").err
    assert "b:8 does not serve the site: a:7 does" in run("drain", "supervisor", "b:8").err
    assert run("drain", "supervisor", "b:8", "--json").json() == {
        "schema": "jobscribe.handover/1",
        "name": "b:8",
        "begun": False,
    }
