"""How one exit becomes a status: the truth table of `outcome`, all sources, with and without our own intent."""

import pytest
from jobscribe.db.events import RunEnded
from jobscribe.db.job import evolve
from jobscribe.protocol.exits import ExitInfo
from jobscribe.supervisor.core.endings import LEFTOVER, SHUTDOWN, outcome


@pytest.mark.parametrize("source", ["keeper", "script", "start", "lost"])
@pytest.mark.parametrize(("stop", "reason"), [
    ("timeLimit", "timeLimit"), ("cancel", "cancel"), ("queueLimit", "cancel"),
])
@pytest.mark.parametrize("fields", [{"code": 0}, {"code": 1}, {"signal": 15}, {}])
def test_our_own_intent_comes_first(source, stop, reason, fields):
    exit_ = ExitInfo(source=source, stop_reason=stop, **fields)
    assert outcome(exit_) == ("canceled", reason, None)


@pytest.mark.parametrize("fields", [{"code": 0}, {"signal": 15}, {"source": "start"}, {"source": "lost"}])
def test_what_a_shutdown_ended_was_canceled_by_nobody_and_did_not_complete(fields):
    assert outcome(ExitInfo(stop_reason="shutdown", **fields)) == ("error", "shutdown", SHUTDOWN)


@pytest.mark.parametrize("fields", [{"code": 0}, {"signal": 15}, {"source": "start"}, {"source": "lost"}])
def test_what_was_ended_for_being_unknown_was_canceled_by_nobody(fields):
    assert outcome(ExitInfo(stop_reason="lost", **fields)) == ("error", "lost", LEFTOVER)


@pytest.mark.parametrize(("exit_", "expected"), [
    (ExitInfo(code=0), ("completed", "exit", None)),
    (ExitInfo(code=0, source="script"), ("completed", "exit", None)),
    (ExitInfo(code=1), ("error", "exit", "exit code 1")),
    (ExitInfo(code=255, source="script"), ("error", "exit", "exit code 255")),
    (ExitInfo(signal=11), ("error", "signal", "ended by signal 11 (SIGSEGV)")),
    (ExitInfo(code=0, source="start", detail="d"), ("error", "startFailed", "could not be started: d")),
    (ExitInfo(code=0, source="lost", detail="d"), ("error", "lost", "its end is not known: d")),
])
def test_without_intent_the_exit_speaks(exit_, expected):
    assert outcome(exit_) == expected


def test_the_first_end_of_a_run_stands(stage):
    """The fold does not rely on the core for it."""
    stage.submit()
    stage.cancel()
    run = stage.job().run
    again = evolve(stage.job(), RunEnded(at=stage.wall + 5, serial=run.serial, status="completed", reason="exit"))
    assert again.run == run
