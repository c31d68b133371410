"""Start orders that wait for a slot: the end of an execution with a slot starts the next one, and
its report names it.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

from jobscribe.agent.keeper.executions.controller import AHEAD_SECS
from jobscribe.protocol.ids import Token

from ..conftest import Keeper

pytestmark = pytest.mark.process


def _send(keeper: Keeper, shell: str, *, ahead: bool) -> Token:
    token = keeper.token()
    keeper.send(**keeper.order(token, shell), slot="ahead" if ahead else "held")
    return token


def _end(keeper: Keeper, token: Token) -> dict[str, Any]:
    return keeper.next("ended", token)


def test_each_end_starts_the_run_that_has_waited_longest_and_names_it(keeper: Keeper) -> None:
    until = time.monotonic() + 60
    while True:  # on a busy machine, some orders wait too long
        first = _send(keeper, "sleep NAP", ahead=False)
        keeper.next("started", first)
        keeper.wait_for_sleep()
        sent = time.monotonic()
        waiting = [_send(keeper, f"exit {n}", ahead=True) for n in (1, 2)]
        keeper.run("exit 0")  # its end says that the keeper has read the orders
        keeper.wake()
        end = _end(keeper, first)
        if time.monotonic() - sent < AHEAD_SECS:
            break
        assert time.monotonic() < until
        for token in waiting:
            keeper.send(do="release", name=token.name)
            keeper.end_of(token)
    assert end["successor"] == str(waiting[0])
    assert _end(keeper, waiting[0])["successor"] == str(waiting[1])
    last = _end(keeper, waiting[1])
    assert (last["successor"], last["exit"]["code"]) == (None, 2)


def test_a_short_run_is_reported_by_its_end_alone(keeper: Keeper) -> None:
    until = time.monotonic() + 30
    while True:  # a busy machine makes some runs long
        token = _send(keeper, "exit 0", ahead=False)
        end = _end(keeper, token)
        assert end["pid"] and end["startTicks"] and end["exit"]["startedAt"]
        if not [m for m in keeper.said if m["is"] == "started" and m["token"] == str(token)]:
            return
        assert time.monotonic() < until


def test_the_end_of_an_execution_without_a_slot_starts_nothing(keeper: Keeper) -> None:
    held = _send(keeper, "sleep NAP", ahead=False)
    keeper.next("started", held)
    waiting = _send(keeper, "exit 3", ahead=True)
    other = keeper.launch("exit 4")
    assert _end(keeper, other)["successor"] is None
    keeper.send(do="release", name=waiting.name)
    assert keeper.end_of(waiting).code == 3
    keeper.wake()
    assert _end(keeper, held)["successor"] is None


def test_a_released_run_starts_once_and_a_release_of_an_unknown_one_does_nothing(
    keeper: Keeper,
) -> None:
    waiting = _send(keeper, "exit 3", ahead=True)
    keeper.send(do="release", name="unknown")
    for _ in range(2):
        keeper.send(do="release", name=waiting.name)
    assert keeper.end_of(waiting).code == 3
    assert keeper.run("exit 5").code == 5, "and the keeper goes on"


def test_a_stopped_run_that_waits_never_starts(keeper: Keeper) -> None:
    held = _send(keeper, "sleep NAP", ahead=False)
    keeper.next("started", held)
    waiting = _send(keeper, "exit 3", ahead=True)
    keeper.stop(waiting)
    assert keeper.end_of(waiting).detail == "stopped before it started"
    keeper.send(do="release", name=waiting.name)
    keeper.wake()
    assert _end(keeper, held)["successor"] is None


def test_a_run_that_has_waited_long_is_started_by_its_release_only(keeper: Keeper) -> None:
    held = _send(keeper, "sleep NAP", ahead=False)
    keeper.next("started", held)
    waiting = _send(keeper, "exit 3", ahead=True)
    time.sleep(AHEAD_SECS + 0.2)  # this passes, and nothing else is to happen meanwhile
    keeper.wake()
    assert _end(keeper, held)["successor"] is None
    keeper.send(do="release", name=waiting.name)
    assert keeper.end_of(waiting).code == 3


def test_a_new_agent_finds_no_waiting_run(keeper: Keeper) -> None:
    waiting = _send(keeper, "exit 3", ahead=True)
    held = _send(keeper, "sleep NAP", ahead=False)
    keeper.next("started", held)
    keeper.kill_agent()
    keeper.accept()
    assert [e["token"] for e in keeper.hello["executions"]] == [str(held)]
    keeper.wake()
    assert _end(keeper, held)["successor"] is None
    assert not keeper.evidence(waiting).exists()


def test_the_next_keeper_knows_the_runs_that_had_started_and_not_the_others(
    new_keeper: Callable[..., Keeper],
) -> None:
    before = new_keeper()
    first = _send(before, "exit 1", ahead=False)
    assert _end(before, first)["successor"] is None
    held = _send(before, "sleep NAP", ahead=False)
    before.next("started", held)
    waiting = _send(before, "exit 3", ahead=True)
    before.send(do="release", name="answered")  # the order before it has arrived when it dies
    before.kill()
    after = new_keeper()
    assert str(waiting) not in {e["token"] for e in after.hello["executions"]}
    after.send(**after.order(waiting, "exit 3"), slot="held")
    assert after.end_of(waiting).code == 3
    after.wake()
