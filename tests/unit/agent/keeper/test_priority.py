"""Jobs have a lower scheduling priority than the processes of the site."""

import os
from collections.abc import Callable

import pytest

from jobscribe.agent.keeper.linux.priority import NICE, lower_priority

from ..conftest import Keeper, until

pytestmark = pytest.mark.process


def test_each_process_of_a_job_has_a_lower_priority(keeper: Keeper) -> None:
    keeper.started("sleep NAP & setsid sleep NAP & nice -n 15 setsid sleep NAP & wait")
    own = os.getpriority(os.PRIO_PROCESS, 0)  # what the tests, and so the keeper, were started with
    # with the shell, which has the numbers in its arguments
    expected = [*[max(NICE, own)] * 3, min(19, own + 15)]
    until(lambda: sorted(process.nice() for process in keeper.naps()) == expected)


def test_a_group_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_ = []
    monkeypatch.setattr(os, "setpriority", lambda *words: set_.append(words))
    monkeypatch.setattr(os, "getpriority", lambda kind, group: 0)
    monkeypatch.setattr(os, "getpgid", lambda pid: pid // 10)
    monkeypatch.setattr("builtins.open", _refuse(FileNotFoundError()))
    lowered = lower_priority([10, 11, 20], set())
    assert lowered == {1, 2} and [words[1] for words in set_] == [1, 2]
    assert lower_priority([21, 30], lowered) == {2, 3} and len(set_) == 3


def test_what_the_kernel_delays_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda kind, group: 0)
    monkeypatch.setattr("builtins.open", _refuse(BlockingIOError(11, "again")))
    assert lower_priority([os.getpid()], set()) == set()


def _refuse(error: OSError) -> Callable[..., None]:
    def refuse(*words: object, **more: object) -> None:
        raise error

    return refuse
