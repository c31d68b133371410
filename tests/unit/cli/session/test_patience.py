"""The time for which a command retries an unavailable supervisor, and the progress messages it prints."""

import time
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.session.session import BRIEF_SECS, NEVER_SECS, PATIENCE_SECS, Session
from jobscribe.client.api.errors import ClientError
from jobscribe.client.transport import endpoint

Fake = Any
Run = Any
Started = Any


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`waited(session)` returns the seconds until its client gives up, and (seconds, text) of each
    message, on a fake clock.
    """
    monkeypatch.delenv("JOBSCRIBE_PATIENCE", raising=False)

    def waited(s: Session) -> tuple[float, list[tuple[float, str]]]:
        now, said = [100.0], []
        s.screen.progress = lambda text, secs: (
            said.append((now[0] - 100, text)) if secs >= 2.0 else None
        )  # type: ignore[method-assign]
        with monkeypatch.context() as m, s.client() as client:
            m.setattr(endpoint.time, "monotonic", lambda: now[0])
            client._connection._sleep = lambda secs: now.__setitem__(0, now[0] + secs)  # type: ignore[func-returns-value]
            with pytest.raises(ClientError) as e:
                client.jobs()
        assert e.value.retry
        return now[0] - 100, said

    return waited


def test_a_new_command_waits_a_minute_for_a_supervisor_that_was_there_and_says_so_within_two_seconds(
    fake: Fake, waited: Any
) -> None:
    fake.stop()
    secs, said = waited(Session({"root": str(fake.root)}))
    assert PATIENCE_SECS - 0.1 <= secs <= PATIENCE_SECS + 0.1
    assert said[0][0] < 2.0
    assert "retrying for up to 60 s (--patience 0 does not wait)" in said[0][1]


def test_the_environment_sets_the_patience_and_the_option_overrides_it(
    fake: Fake, waited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.stop()
    monkeypatch.setenv("JOBSCRIBE_PATIENCE", "2m")
    assert round(waited(Session({"root": str(fake.root)}))[0]) == 120
    assert waited(Session({"root": str(fake.root), "patience": 0.0})) == (0.0, [])
    monkeypatch.setenv("JOBSCRIBE_PATIENCE", "0")
    assert waited(Session({"root": str(fake.root)})) == (0.0, [])


def test_a_root_without_any_supervisor_is_not_waited_for_as_long(
    tmp_path: Path, waited: Any
) -> None:
    assert round(waited(Session({"root": str(tmp_path / "none")}))[0]) == NEVER_SECS
    (tmp_path / "used" / "db").mkdir(parents=True)
    assert round(waited(Session({"root": str(tmp_path / "used")}))[0]) == PATIENCE_SECS


def test_a_command_that_answers_at_once_waits_briefly_and_says_why(fake: Fake, waited: Any) -> None:
    fake.stop()
    s = Session({"root": str(fake.root)})
    s.limit_wait("health answers at once")
    secs, said = waited(s)
    assert round(secs) == BRIEF_SECS
    assert said[0][1].endswith(
        "retrying for up to 3 s (health answers at once; --patience waits longer)"
    )
    s = Session({"root": str(fake.root), "patience": 20.0})
    s.limit_wait("health answers at once")
    assert round(waited(s)[0]) == 20


@pytest.mark.process
def test_a_command_that_is_typed_while_the_supervisor_is_away_succeeds_when_it_is_back(
    started: Started, fake: Fake
) -> None:
    fake.stop()
    began = time.monotonic()
    process = started("job", "list")
    said = process.stderr.readline().decode()
    assert "retrying for up to 60 s" in said
    assert time.monotonic() - began < 10 + 2.0, "two seconds, and what it takes to start"
    fake.start()
    assert process.wait(60) == 0


def test_a_patience_that_is_none_is_refused_by_name(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBSCRIBE_PATIENCE", "soon")
    ended = run("job", "list")
    assert (ended.code, ended.out) == (125, "")
    assert "JOBSCRIBE_PATIENCE is 'soon'" in ended.err
    assert run("--patience", "2d", "job", "list").code == 2
