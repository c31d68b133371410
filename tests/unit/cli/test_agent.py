"""`jobscribe agent list` and `agent logs` with answers from a supervisor, and the unchanged command
that starts an agent.
"""

from typing import Any

import pytest

from jobscribe.client.operator_calls import OperatorCalls

Run = Any
Fake = Any
KEY = "local.sequential.EPRSqtUW@localhost"
ROW = {
    "agent": KEY,
    "agentId": "m2cW",
    "uid": "EPRSqtUW",
    "driver": "local",
    "kind": "sequential",
    "host": "here",
    "phase": "up",
    "since": 1.0,
    "version": "1.0",
    "pid": 4,
    "lastError": "it ended by signal 9",
    "jobs": ["EPRSqtUW-aaaaaaaa-command"],
    "log": f"/root/agent/{KEY}/agent.log",
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record requests; answer reads of a 30-byte file with 10 bytes at a time."""
    calls: list[dict[str, Any]] = []
    text = "first....\nsecond...\nthird....\n"

    def agent_logs(self: OperatorCalls, agent: str, **what: Any) -> dict[str, Any]:
        calls.append({"agent": agent, **what})
        at = max(0, len(text) - what["tail"]) if what["tail"] else what["offset"]
        said = text[at : at + 10] if agent != "none" else ""
        size = len(text) if agent != "none" else 0
        return {
            "agent": KEY,
            "part": "keeper" if what["keeper"] else "agent",
            "text": said,
            "offset": at,
            "nextOffset": at + len(said),
            "size": size,
            "where": "/there/agent.log",
            "sentence": "" if said else "a keeper writes only about errors",
        }

    monkeypatch.setattr(OperatorCalls, "agent_logs", agent_logs)
    return calls


def test_the_list_says_how_each_stands_and_where_its_log_is(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [ROW]
    monkeypatch.setattr(OperatorCalls, "agents", lambda self, all_users=False: rows)
    told = run("agent", "list")
    assert told.code == 0 and all(
        word in told.out for word in (KEY, "m2cW", "up", "here", f"/root/agent/{KEY}/agent.log")
    )
    assert f"{KEY}: it ended by signal 9" in told.err
    assert run("--json", "agent", "list").json()["items"] == rows
    rows.clear()
    assert "no agents: " in run("agent", "list").err


def test_a_log_is_read_to_its_end(run: Run, fake: Fake, asked: list[dict[str, Any]]) -> None:
    assert run("agent", "logs", KEY, "--all").out == "first....\nsecond...\nthird....\n"
    newest = run("agent", "logs", KEY, "--tail", "10")
    assert newest.out == "third....\n" and newest.err == ""
    assert [a["offset"] for a in asked] == [0, 10, 20, 0]


def test_what_is_named_in_full_may_be_anybodys(
    run: Run, fake: Fake, asked: list[dict[str, Any]]
) -> None:
    for name in (KEY, "EPRSqtUW-aaaaaaaa-command", "m2cW"):
        run("agent", "logs", name, "--tail", "10")
    run("agent", "logs", "m2cW", "--tail", "10", "--all-users", "--keeper")
    uid = asked[2]["uid"]
    assert (
        [a["uid"] for a in asked] == [None, None, uid, None]
        and uid
        and [a["keeper"] for a in asked] == [False] * 3 + [True]
    )


def test_nothing_is_said(run: Run, fake: Fake, asked: list[dict[str, Any]]) -> None:
    told = run("agent", "logs", "none", "--keeper")
    assert (told.code, told.out) == (
        0,
        "",
    ) and "[a keeper writes only about errors]" in told.err
    (note,) = run("--json", "agent", "logs", "none", "--keeper").lines()
    assert note["type"] == "note" and note["sentence"].startswith("a keeper writes")


@pytest.mark.parametrize("wrong", [("--previous", "-f"), ("--all", "--tail", "3")])
def test_options_that_say_two_things(run: Run, fake: Fake, wrong: tuple[str, ...]) -> None:
    assert run("agent", "logs", KEY, *wrong).code == 2
