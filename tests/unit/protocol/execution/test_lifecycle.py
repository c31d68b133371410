"""The state machine of an execution: every pair of its tables, and the rules that it states."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.execution.lifecycle import TIME_LIMIT, Lifecycle, Policy, Step
from jobscribe.protocol.execution.phases import (
    PHASES,
    REPORTED,
    STOPS,
    Fact,
    Phase,
    StopFact,
    StopPhase,
    next_phase,
    next_stop_phase,
)
from jobscribe.protocol.jobs.execution_state import ExecutionState, Trigger, next_state
from jobscribe.protocol.jobs.transitions import IllegalTransition

KEEPER = Policy(leftover=0.0, ending=0.05)
#: The fact of the wire's table that a phase stands for.
TRIGGERS = {
    ExecutionState.STARTING: Trigger.QUEUED,
    ExecutionState.RUNNING: Trigger.STARTED,
    ExecutionState.ENDED: Trigger.ENDED,
}


def running(limit: float | None = None, policy: Policy = KEEPER) -> Lifecycle:
    life = Lifecycle(policy, limit)
    life.claimed()
    life.started(1000.0, 10.0)
    return life


def stopped(life: Lifecycle, until: Step) -> Lifecycle:
    """Perform the steps of a requested stop until the next one is `until`."""
    done: dict[Step, Callable[[], None]] = {
        Step.RECORD_STOP: life.stop_recorded,
        Step.BAR_START: life.start_barred,
        Step.CHECK_EXIT: life.exit_missing,
        Step.RECORD_SIGNAL: life.signal_recorded,
        Step.WITHDRAW_STOP: life.stop_withdrawn,
    }
    while (step := life.next_step(20.0)) is not until:
        done[step]()
    return life


@pytest.mark.parametrize(("phase", "fact"), list(itertools.product(Phase, Fact)))
def test_each_phase_and_fact_has_its_next_phase_or_changes_nothing(
    phase: Phase, fact: Fact
) -> None:
    life = Lifecycle(KEEPER)
    life.phase = phase
    report: dict[Fact, Callable[[], None]] = {
        Fact.CLAIMED: life.claimed,
        Fact.STARTED: lambda: life.started(1.0, 1.0),
        Fact.EXITED: lambda: life.exited(1.0),
        Fact.ENDED: lambda: life.finish({"code": 0}),
    }
    after = PHASES.get((phase, fact))
    if after is None:
        with pytest.raises(IllegalTransition, match=f"{fact} is illegal in state {phase}"):
            report[fact]()
        assert (life.phase, life.exit, life.started_mono, life.exited_mono) == (phase, *[None] * 3)
    else:
        report[fact]()
        assert life.phase is after


@pytest.mark.parametrize(("phase", "fact"), list(itertools.product(StopPhase, StopFact)))
def test_each_phase_of_a_stop_has_its_next_phase_or_is_refused(
    phase: StopPhase, fact: StopFact
) -> None:
    after = STOPS.get((phase, fact))
    if after is None:
        with pytest.raises(IllegalTransition, match=f"{fact} is illegal in state {phase}"):
            next_stop_phase(phase, fact)
    else:
        assert next_stop_phase(phase, fact) is after


def test_each_change_of_a_phase_is_legal_on_the_wire() -> None:
    for (phase, _), after in PHASES.items():
        assert next_state(REPORTED[phase], TRIGGERS[REPORTED[after]]) is REPORTED[after]
    assert {next_phase(*pair) for pair in PHASES} | {Phase.NEW} == set(Phase)
    assert set(STOPS.values()) == set(StopPhase)


def test_a_stop_is_recorded_and_the_exit_is_looked_for_before_the_signal() -> None:
    life = running()
    assert life.next_step(20.0) is Step.NONE
    assert life.stop("canceled", 5.0, 20.0)
    steps = []
    for result in (life.stop_recorded, life.exit_missing, life.signal_recorded):
        steps.append(life.next_step(20.0))
        assert life.stop_reason is None and life.requested_reason == "canceled"
        result()
    assert steps == [Step.RECORD_STOP, Step.CHECK_EXIT, Step.RECORD_SIGNAL]
    assert life.stop_reason == "canceled"
    assert life.next_step(24.9) is Step.TERMINATE
    assert life.wake_at(24.9) == 25.0
    assert life.next_step(25.0) is Step.KILL


@pytest.mark.parametrize("overtaken_at", [Step.RECORD_STOP, Step.CHECK_EXIT, Step.RECORD_SIGNAL])
def test_an_exit_before_the_signal_withdraws_the_stop(overtaken_at: Step) -> None:
    life = running()
    life.stop("canceled", 5.0, 20.0)
    stopped(life, overtaken_at)
    life.exited(20.0)
    recorded = overtaken_at is not Step.RECORD_STOP
    assert life.next_step(20.0) is (Step.WITHDRAW_STOP if recorded else Step.KILL)
    if recorded:
        life.stop_withdrawn()
    assert (life.stop_reason, life.requested_reason, life.kill_at) == (None, None, None)
    assert life.next_step(20.0) is Step.KILL  # what outlived the main process
    assert not life.stop("timeLimit", 5.0, 21.0), "a stop after the exit changes nothing"
    assert life.stop_reason is None


def test_an_exit_after_the_signal_is_caused_by_the_stop() -> None:
    life = running()
    life.stop("canceled", 5.0, 20.0)
    stopped(life, Step.TERMINATE)
    life.exited(21.0)
    assert life.stop_reason == "canceled"
    assert life.next_step(22.0) is Step.TERMINATE, "the rest has the grace period, too"
    life.finish({"signal": 15}, 11.0)
    assert (life.stop_reason, life.next_step(99.0), life.running_secs(99.0)) == (
        "canceled",
        Step.NONE,
        11.0,
    )


def test_the_first_reason_stays_and_the_shortest_grace_period_counts() -> None:
    life = running(limit=15.0)
    life.stop("canceled", 5.0, 20.0)
    assert life.stop("shutdown", 1.0, 21.0)
    assert life.stop("shutdown", 9.0, 21.0)
    assert (life.requested_reason, life.kill_at) == ("canceled", 22.0)
    stopped(life, Step.TERMINATE)
    assert life.next_step(26.0) is Step.KILL and life.stop_reason == "canceled"


def test_a_time_limit_is_a_stop_that_does_not_count_after_the_exit() -> None:
    life = running(limit=15.0)
    assert (life.next_step(24.9), life.wake_at(24.9)) == (Step.NONE, 25.0)
    assert life.next_step(25.0) is Step.RECORD_STOP and life.requested_reason == TIME_LIMIT
    other = running(limit=15.0, policy=Policy(leftover=None))
    other.exited(12.0)
    assert (other.next_step(99.0), other.wake_at(12.0)) == (Step.NONE, float("inf"))


@pytest.mark.parametrize("signaled", [False, True])
def test_a_time_limit_shortens_the_grace_period_of_an_earlier_stop(signaled: bool) -> None:
    lives = [running(limit=15.0) for _ in range(3)]
    for life, grace, now in zip(lives, (60.0, 60.0, 2.0), (20.0, 40.0, 20.0), strict=True):
        life.grace = 3.0
        life.resume_stop("canceled", grace, now, signaled=signaled)
    assert [(life.requested_reason, life.kill_at) for life in lives] == [
        ("canceled", 28.0),
        ("canceled", 43.0),
        ("canceled", 22.0),
    ]


def test_what_is_stopped_before_its_start_is_barred_and_never_starts() -> None:
    life = Lifecycle(KEEPER)
    life.claimed()
    life.stop("canceled", 5.0, 20.0)
    stopped(life, Step.TERMINATE)
    assert life.barred and life.stop_reason == "canceled"
    with pytest.raises(IllegalTransition):
        life.exited(21.0)
    life.finish({"source": "start"})
    assert life.state is ExecutionState.ENDED


def test_a_start_can_be_barred_without_a_stop_and_a_later_stop_is_recorded() -> None:
    life = Lifecycle(KEEPER)
    life.claimed()
    life.start_barred()
    assert life.barred and not life.stopping
    assert (life.stop_reason, life.requested_reason) == (None, None)
    assert (life.next_step(20.0), life.wake_at(20.0)) == (Step.NONE, float("inf"))
    assert life.stop("canceled", 5.0, 20.0)
    assert life.next_step(20.0) is Step.RECORD_STOP
    stopped(life, Step.TERMINATE)
    assert life.barred and life.stop_reason == "canceled" and life.kill_at == 25.0


def test_a_start_that_cannot_be_barred_is_stopped_like_one_that_runs() -> None:
    life = Lifecycle(KEEPER)
    life.claimed()
    life.stop("canceled", 5.0, 20.0)
    life.next_step(20.0)
    life.stop_recorded()
    assert life.next_step(20.0) is Step.BAR_START
    life.start_not_barred()
    assert life.next_step(20.0) is Step.CHECK_EXIT


def test_processes_that_outlive_the_main_process_are_killed_and_its_exit_is_reported() -> None:
    life = running(policy=Policy(leftover=5.0, ending=0.5))
    life.exited(20.0)
    life.exited(23.0)
    assert (life.state, life.exit_due(20.4), life.exit_due(20.5)) == ("running", False, True)
    life.exit_reported({"code": 0})
    assert not life.exit_due(30.0)
    assert (life.next_step(24.9), life.wake_at(20.0)) == (Step.NONE, 25.0)
    assert life.next_step(25.0) is Step.KILL


@pytest.mark.parametrize(("exited", "step"), [(False, Step.TERMINATE), (True, Step.KILL)])
def test_a_recorded_stop_continues_after_a_restart(exited: bool, step: Step) -> None:
    life = running()
    if exited:
        life.exited(15.0)
    assert life.resume_stop("canceled", 5.0, 20.0, signaled=True)
    assert (life.stop_reason, life.next_step(20.0)) == ("canceled", step)


def test_a_recorded_stop_without_a_signal_is_requested_again_unless_it_has_exited() -> None:
    life, late = running(), running()
    assert life.resume_stop("canceled", 5.0, 20.0, signaled=False)
    assert (life.stop_reason, life.next_step(20.0)) == (None, Step.RECORD_STOP)
    late.exited(15.0)
    assert not late.resume_stop("canceled", 5.0, 20.0, signaled=False)


def test_a_state_is_repeated_until_it_is_acknowledged() -> None:
    life = running(policy=Policy(repeat={ExecutionState.ENDED: 5.0}))
    assert not life.report_due(1e9)
    life.finish({"code": 0})
    assert life.report_due(100.0)
    life.reported(100.0)
    assert (life.report_due(104.9), life.report_due(105.0)) == (False, True)


@given(st.data())
def test_whatever_happens_no_signal_is_sent_before_its_record_and_none_without_a_cause(
    data: st.DataObject,
) -> None:
    life = Lifecycle(KEEPER, limit=5.0, grace=1.0)
    now, recorded, checked, exited = 0.0, False, False, False
    life.claimed()
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.sampled_from((0.0, 0.4, 3.0)))
        match data.draw(st.sampled_from(("start", "stop", "exit", "end", "step", "step", "step"))):
            case "start" if not life.barred and not life.ended:
                life.started(now, now)
            case "stop":
                life.stop("canceled", data.draw(st.sampled_from((0.0, 1.0))), now)
            case "exit" if not life.barred and not life.ended:
                life.exited(now)
                exited = True
            case "end" if not life.ended and life.exiting:
                life.finish({"code": 0})
            case "step":
                match life.next_step(now):
                    case Step.RECORD_STOP:
                        life.stop_recorded()
                        recorded = True
                    case Step.BAR_START:
                        life.start_barred()
                    case Step.CHECK_EXIT:
                        assert recorded and not exited
                        life.exit_missing()
                        checked = True
                    case Step.RECORD_SIGNAL:
                        life.signal_recorded()
                    case Step.WITHDRAW_STOP:
                        life.stop_withdrawn()
                        recorded = checked = False
                    case Step.TERMINATE | Step.KILL as step:
                        assert life.barred or exited or (recorded and checked)
                        assert life.stop_reason is not None or (exited and step is Step.KILL)
                        life.signal_sent(step)
        assert not (life.stop_reason and not recorded)
        assert life.wake_at(now) > now


def test_architecture_has_the_same_tables() -> None:
    text = Path(__file__).parents[4].joinpath("ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Life of an execution\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| `(\w+)` \|$", section, re.MULTILINE)
    documented = {
        (before, fact, after) for before, facts, after in rows for fact in facts.split(", ")
    }
    assert documented == {
        (before.value, fact.value, after.value)
        for table in (PHASES, STOPS)
        for (before, fact), after in table.items()
    }


def test_an_end_of_unknown_duration_does_not_grow() -> None:
    life = running()
    assert life.running_secs(12.0) == 2.0
    life.finish({"source": "lost"})
    assert life.running_secs(99.0) is None
