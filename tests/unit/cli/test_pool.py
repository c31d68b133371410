"""`pool show` and `pool check`: one line per host, the reason why a host is down, and an exit code
for scripts.
"""

from typing import Any

import pytest
from answers import answer_calls

Fake = Any
Run = Any

UP: dict[str, Any] = {
    "host": "a",
    "driver": "docker",
    "state": "up",
    "since": 0.0,
    "detail": "host a answers",
    "version": "20.10.24",
    "address": "tcp://10.0.0.1:2376",
    "labels": {},
    "plans": ["premium"],
    "slots": {"sequential": [3, 5], "parallel": [0, 1]},
    "agents": 2,
    "agentsMb": [3072, 4000],
    "runs": 3,
    "tasks": 4,
    "cpu": [6, 8],
    "memoryMb": [2000, 9000],
    "gpus": [1, 2],
    "ports": 2,
}
DOWN = UP | {
    "host": "b",
    "state": "down",
    "since": None,
    "detail": "host b refuses the connection",
    "version": None,
    "plans": [],
    "agentsMb": [0, None],
}


def say(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, hosts: list[dict[str, Any]], problems: list[str]
) -> None:
    def answer(call: Any) -> dict[str, Any]:
        assert (call.method, call.body) == ("GET", None)
        return {"/api/pool": {"hosts": hosts}, "/api/pool-check": {"problems": problems}}[call.path]

    answer_calls(monkeypatch, answer)


def test_each_host_is_a_row_and_why_one_is_down_is_said(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(fake, monkeypatch, [UP, DOWN], [])
    ended = run("pool", "show")
    heads, a, b = (
        [c.strip() for c in line.split("  ") if c.strip()] for line in ended.out.splitlines()
    )
    assert dict(zip(heads, a, strict=True)) == {
        "HOST": "a",
        "STATE": "up",
        "SINCE": "1970-01-01T00:00:00Z",
        "VERSION": "20.10.24",
        "SEQUENTIAL": "3/5",
        "PARALLEL": "0/1",
        "AGENTS": "2 (3072/4000 MB)",
        "TASKS": "4",
        "CPU": "6/8",
        "MEMORY MB": "2000/9000",
        "GPU": "1/2",
        "PLANS": "premium",
    }
    assert dict(zip(heads, b, strict=True)) | {"SEQUENTIAL": "", "PARALLEL": ""} == {
        "HOST": "b",
        "STATE": "down",
        "SINCE": "-",
        "VERSION": "-",
        "SEQUENTIAL": "",
        "PARALLEL": "",
        "AGENTS": "2",
        "TASKS": "4",
        "CPU": "6/8",
        "MEMORY MB": "2000/9000",
        "GPU": "1/2",
        "PLANS": "-",
    }
    assert (ended.code, ended.err) == (0, "b: host b refuses the connection\n")
    assert run("pool", "show", "--json").json() == {
        "schema": "jobscribe.pool/1",
        "items": [UP, DOWN],
    }


def test_where_there_is_no_pool_it_says_what_to_do(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(fake, monkeypatch, [], [])
    for verb in ("show", "check"):
        ended = run("pool", verb)
        assert (ended.code, ended.out) == (0, "") and "docker.pool" in ended.err
    assert run("pool", "show", "--json").json()["items"] == []


def test_a_check_that_finds_something_exits_with_1(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(fake, monkeypatch, [UP], ["host a: its certificate has expired; renew it"])
    ended = run("pool", "check")
    assert (ended.code, ended.out) == (1, "host a: its certificate has expired; renew it\n")
    ended = run("pool", "check", "--json")
    assert (ended.code, ended.json()) == (
        1,
        {
            "schema": "jobscribe.pool.check/1",
            "ok": False,
            "items": ["host a: its certificate has expired; renew it"],
        },
    )
    say(fake, monkeypatch, [UP], [])
    ended = run("pool", "check")
    assert (ended.code, ended.out) == (0, "") and "all hosts" in ended.err
    assert run("pool", "check", "--json").json() == {
        "schema": "jobscribe.pool.check/1",
        "ok": True,
        "items": [],
    }
