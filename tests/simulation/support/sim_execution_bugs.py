"""Planted bugs in the state machine of executions. Those that the simulator cannot find are in
tests/chaos/mutants.toml, where tests/unit/protocol/execution finds them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sim_gang_bugs import Patch

from jobscribe.protocol.execution import lifecycle, phases
from jobscribe.protocol.execution.lifecycle import Lifecycle, Step
from jobscribe.protocol.execution.phases import StopFact, StopPhase
from jobscribe.protocol.execution.table import ExecutionTable


def _stops(changed: Mapping[tuple[StopPhase, StopFact], StopPhase]) -> Patch:
    return phases, "STOPS", phases.STOPS | dict(changed)


def signals_before_its_record() -> list[Patch]:
    steps = lifecycle._STEPS | {StopPhase.REQUESTED: Step.TERMINATE}
    return [(lifecycle, "_STEPS", steps)]


def signals_a_recorded_stop_without_a_look_for_the_exit() -> list[Patch]:
    original = Lifecycle.next_step

    def next_step(self: Lifecycle, mono: float) -> Step:
        step = original(self, mono)
        return Step.RECORD_SIGNAL if step is Step.CHECK_EXIT else step

    changed = {(StopPhase.RECORDED, StopFact.SIGNAL_RECORDED): StopPhase.SIGNALED}
    return [(Lifecycle, "next_step", next_step), _stops(changed)]


def keeps_the_reason_of_a_stop_that_came_too_late() -> list[Patch]:
    return [_stops({(StopPhase.RECORDED, StopFact.EXIT_FOUND): StopPhase.SIGNALED})]


def takes_the_reason_of_a_stop_after_the_exit() -> list[Patch]:
    original = Lifecycle.stop

    def stop(self: Lifecycle, reason: str, grace: float, mono: float) -> bool:
        if not self.exiting or self.stopping:
            return original(self, reason, grace, mono)
        self.stop_phase, self._reason, self.kill_at = StopPhase.SIGNALED, reason, mono + grace
        return True

    return [(Lifecycle, "stop", stop)]


def takes_the_last_reason() -> list[Patch]:
    original = Lifecycle.stop

    def stop(self: Lifecycle, reason: str, grace: float, mono: float) -> bool:
        done = original(self, reason, grace, mono)
        self._reason = reason if done else self._reason
        return done

    return [(Lifecycle, "stop", stop)]


def counts_the_longest_grace_period() -> list[Patch]:
    original = Lifecycle.stop

    def stop(self: Lifecycle, reason: str, grace: float, mono: float) -> bool:
        before = self.kill_at
        done = original(self, reason, grace, mono)
        if done and before is not None:
            self.kill_at = max(before, mono + grace)
        return done

    return [(Lifecycle, "stop", stop)]


def never_kills_what_ignores_a_stop() -> list[Patch]:
    original = Lifecycle.next_step

    def next_step(self: Lifecycle, mono: float) -> Step:
        step = original(self, mono)
        return Step.TERMINATE if step is Step.KILL and self.stopping else step

    return [(Lifecycle, "next_step", next_step)]


def blames_a_recorded_stop_without_a_signal_after_a_restart() -> list[Patch]:
    original = Lifecycle.resume_stop

    def resume(self: Lifecycle, reason: str, grace: float, mono: float, *, signaled: bool) -> bool:
        return original(self, reason, grace, mono, signaled=True)

    return [(Lifecycle, "resume_stop", resume)]


def forgets_over_a_restart_that_it_sent_a_signal() -> list[Patch]:
    original = Lifecycle.resume_stop

    def resume(self: Lifecycle, reason: str, grace: float, mono: float, *, signaled: bool) -> bool:
        return original(self, reason, grace, mono, signaled=False)

    return [(Lifecycle, "resume_stop", resume)]


def starts_a_used_token_again() -> list[Patch]:
    original = ExecutionTable.use_of

    def use_of(self: ExecutionTable, key: Any, has_trace: Callable[[], bool]) -> Any:
        return original(self, key, lambda: False)

    return [(ExecutionTable, "use_of", use_of)]


def forgets_nothing() -> list[Patch]:
    return [(ExecutionTable, "settle", lambda self, keys: [])]


#: Each is found in one of the first seeds, or in its seed in test_planted_bugs.py.
EXECUTION_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    signals_before_its_record,
    signals_a_recorded_stop_without_a_look_for_the_exit,
    keeps_the_reason_of_a_stop_that_came_too_late,
    takes_the_reason_of_a_stop_after_the_exit,
    takes_the_last_reason,
    counts_the_longest_grace_period,
    never_kills_what_ignores_a_stop,
    blames_a_recorded_stop_without_a_signal_after_a_restart,
    forgets_over_a_restart_that_it_sent_a_signal,
    starts_a_used_token_again,
    forgets_nothing,
)
