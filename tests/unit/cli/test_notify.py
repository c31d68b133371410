"""`notify list`, `test` and `retry`: the status of each target, the unchanged answer of a target,
and an exit code for scripts.
"""

from typing import Any

import pytest
from answers import answer_calls

Fake = Any
Run = Any

WELL: dict[str, Any] = {
    "name": "site",
    "waiting": 0,
    "failingSince": None,
    "lastError": None,
    "kind": "webhook",
    "to": "https://site.example.org",
    "on": ["ended"],
    "delivered": 7,
    "failed": 0,
    "givenUp": 0,
    "lastDelivered": 1.0,
    "nextTry": None,
    "behind": 0,
}
DOWN = WELL | {
    "name": "pager",
    "waiting": 100,
    "failingSince": 0.0,
    "lastError": "connection refused",
    "nextTry": 60.0,
    "behind": 31,
    "givenUp": 2,
}


def say(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[tuple[str, Any]]:
    asked: list[tuple[str, Any]] = []

    def answer(call: Any) -> dict[str, Any]:
        asked.append((call.path, call.body))
        said: dict[str, Any] = dict(answers[call.path])
        return said

    answer_calls(monkeypatch, answer)
    return asked


def test_each_target_is_a_row_and_why_one_fails_is_said(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, {"/api/notify": {"targets": [WELL, DOWN], "unwritten": "the disk is full"}})
    ended = run("notify", "list")
    _, site, pager = (
        [c.strip() for c in line.split("  ") if c.strip()] for line in ended.out.splitlines()
    )
    assert site == ["site", "ok", "7", "0", "0", "-", "https://site.example.org"]
    assert pager == [
        "pager",
        "failing",
        "7",
        "100 +31",
        "2",
        "1970-01-01T00:01:00Z",
        "https://site.example.org",
    ]
    assert (
        "pager has failed since 1970-01-01T00:00:00Z: connection refused" in ended.err
        and "the disk is full" in ended.err
    )
    assert run("notify", "list", "--json").json() == {
        "schema": "jobscribe.notify/1",
        "items": [WELL, DOWN],
        "unwritten": "the disk is full",
    }


def test_where_nobody_is_told_it_says_what_to_do(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, {"/api/notify": {"targets": [], "unwritten": None}})
    ended = run("notify", "list")
    assert (ended.code, ended.out) == (0, "") and "notify.file" in ended.err


@pytest.mark.parametrize(("delivered", "code"), [(True, 0), (False, 1)])
def test_a_test_shows_the_answer_and_exits_by_it(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, delivered: bool, code: int
) -> None:
    answer = {
        "state": "ok",
        "name": "site",
        "delivered": delivered,
        "said": "HTTP 200",
        "answer": "thank you\nvery much",
        "secs": 0.25,
    }
    asked = say(monkeypatch, {"/api/notify-test": answer})
    ended = run("notify", "test", "site")
    assert (ended.code, ended.out) == (code, "thank you\nvery much\n") and asked == [
        ("/api/notify-test", b'{"name":"site"}')
    ]
    assert ended.err == f"site: {'' if delivered else 'not '}delivered after 0.2 s: HTTP 200\n"
    ended = run("notify", "test", "site", "--json")
    assert (
        ended.code == code
        and ended.json()["answer"] == "thank you\nvery much"
        and ended.json()["schema"] == "jobscribe.notify.test/1"
    )


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(3, "sending 3 notifications to site now"), (0, "no notifications wait for site")],
)
def test_a_retry_says_how_many_are_tried(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch, waiting: int, said: str
) -> None:
    say(monkeypatch, {"/api/notify-retry": {"state": "ok", "name": "site", "waiting": waiting}})
    ended = run("notify", "retry", "site")
    assert (ended.code, ended.out) == (0, "") and said in ended.err
    assert run("notify", "retry", "site", "--json").json() == {
        "schema": "jobscribe.notify.retry/1",
        "name": "site",
        "waiting": waiting,
    }
