"""The table of agent phases: complete, obeyed, and the same in ARCHITECTURE.md."""

import pathlib
import re

import msgspec
import pytest

from jobscribe.db.events.state import AgentRecord
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    AgentStopRequested,
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    EvictionRefused,
    HostChanged,
    RequireAgent,
    SignedIn,
    SignedOut,
    SignInNeeded,
    TimerFired,
)
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.state import transaction
from jobscribe.supervisor.core.state.agent_phase import (
    TRANSITIONS,
    AgentPhase,
    IllegalTransition,
    PhaseTrigger,
)
from jobscribe.supervisor.core.state.agent_state import AgentState
from jobscribe.supervisor.core.state.transaction import Transaction

ROOT = pathlib.Path(__file__).resolve().parents[5]
LISTED = {(phase, trigger) for phase, row in TRANSITIONS.items() for trigger in row}
OTHER = "user0002"


def new_stage(kit):
    """Return a host with memory for one agent, whose agents are evicted when idle."""
    place = HostCapacity(
        host="a", slots={"sequential": 2}, agent_mb={"sequential": 100}, memory_mb=150
    )
    return kit.Stage(
        places={"local": (place,)},
        agent_idle_secs={"local": 30.0},
        agent_start_secs=20.0,
        agent_start_tries=3,
    )


def the_key(kit, uid=None):
    return kit.key_of(uid or kit.UID, host="a")


# ---- every pair of phase and trigger


def snapshot(tx, view):
    assignment = tx.world.host_assignment
    return (
        msgspec.structs.asdict(view),
        dict(tx.changed_memory),
        dict(assignment.waiting_for_memory),
        {host: dict(keys) for host, keys in assignment._with_memory.items()},
    )


@pytest.mark.parametrize("phase", AgentPhase)
@pytest.mark.parametrize("trigger", PhaseTrigger)
def test_a_phase_changes_as_the_table_says_or_not_at_all(kit, phase, trigger):
    stage, key = new_stage(kit), the_key(kit)
    tx = Transaction(stage.world, stage.now())
    view = stage.world.agents[key] = AgentState(record=AgentRecord(key=key), phase=phase, since=1.0)
    stage.world.host_assignment.update_memory(key, taken=view.takes_memory)
    before = snapshot(tx, view)
    if (phase, trigger) not in LISTED:
        with pytest.raises(IllegalTransition, match=f"{phase} .*{trigger}"):
            tx.change_phase(view, trigger)
        assert snapshot(tx, view) == before
        return
    tx.change_phase(view, trigger)
    following = TRANSITIONS[phase][trigger]
    assert view.phase is following
    assert view.since == (1.0 if following == phase else stage.wall), "since the change"
    assert (key in stage.world.host_assignment.waiting_for_memory) == (
        following == AgentPhase.CROWDED
    )
    took = phase not in (AgentPhase.ABSENT, AgentPhase.CROWDED, AgentPhase.SIGNED_OUT)
    assert bool(tx.changed_memory) == (took != view.takes_memory)


# ---- the core causes each listed transition, and no other


def start_other(stage, kit):
    stage.submit(7, uid=OTHER)
    stage.up(the_key(kit, OTHER))


def absent(stage, kit):
    pass


def absent_without_memory(stage, kit):
    start_other(stage, kit)


def absent_with_handle(stage, kit):
    idle(stage, kit)
    stage.disconnect(the_key(kit))


def starting(stage, kit):
    stage.submit(1)


def starting_with_process(stage, kit):
    starting(stage, kit)
    stage.started(the_key(kit))


def starting_again(stage, kit):
    starting(stage, kit)
    stage.tell(DriverFailed(the_key(kit), 1, "no fork"))


def starting_with_execution(stage, kit):
    """The agent of a running task was lost, and its replacement has not connected yet."""
    finding(stage, kit)
    stage.found("gone", the_key(kit))
    stage.started(the_key(kit))


def up(stage, kit):
    starting_with_process(stage, kit)
    stage.connect(the_key(kit))


def finding(stage, kit):
    up(stage, kit)
    stage.reports(kit.running(stage.token(1)), key=the_key(kit))
    stage.disconnect(the_key(kit))


def away(stage, kit):
    finding(stage, kit)
    stage.found("alive", the_key(kit))


def finding_for_a_call(stage, kit):
    absent_with_handle(stage, kit)
    need(stage, kit)


def away_for_a_call(stage, kit):
    finding_for_a_call(stage, kit)
    stage.found("unknown", the_key(kit))


def stopping(stage, kit):
    starting_with_process(stage, kit)
    fire_timers(stage, kit)


def idle(stage, kit):
    up(stage, kit)
    stage.end(stage.token(1))


def leaving(stage, kit):
    idle(stage, kit)
    stage.tell(AgentStopRequested(1, the_key(kit)))


def leaving_and_needed(stage, kit):
    leaving(stage, kit)
    stage.submit(2)


def crowded(stage, kit):
    start_other(stage, kit)
    stage.submit(1)


def crowded_with_handle(stage, kit):
    """The driver reports a start after the attempt was given up, and then there is no memory."""
    starting(stage, kit)
    stage.tell(DriverFailed(the_key(kit), 1, "late"))
    stage.cancel(1)
    fire_timers(stage, kit)
    start_other(stage, kit)
    stage.submit(2)
    stage.tell(DriverStarted(the_key(kit), 1, {"pid": 9}))


def signed_out(stage, kit):
    starting(stage, kit)
    sign_in_needed(stage, kit)


def signed_out_with_handle(stage, kit):
    leaving(stage, kit)
    sign_in_needed_to_stop(stage, kit)


HISTORIES = {
    absent: AgentPhase.ABSENT,
    absent_without_memory: AgentPhase.ABSENT,
    absent_with_handle: AgentPhase.ABSENT,
    starting: AgentPhase.STARTING,
    starting_with_process: AgentPhase.STARTING,
    starting_again: AgentPhase.STARTING,
    starting_with_execution: AgentPhase.STARTING,
    finding: AgentPhase.FINDING,
    away: AgentPhase.AWAY,
    finding_for_a_call: AgentPhase.FINDING,
    away_for_a_call: AgentPhase.AWAY,
    stopping: AgentPhase.STOPPING,
    up: AgentPhase.UP,
    idle: AgentPhase.UP,
    leaving: AgentPhase.LEAVING,
    leaving_and_needed: AgentPhase.LEAVING,
    crowded: AgentPhase.CROWDED,
    crowded_with_handle: AgentPhase.CROWDED,
    signed_out: AgentPhase.SIGNED_OUT,
    signed_out_with_handle: AgentPhase.SIGNED_OUT,
}


def fire_timers(stage, kit):
    for timer in list(stage.clock):
        stage.pass_time(60.0)
        stage.tell(TimerFired(timer))


def need(stage, kit):
    stage.tell(RequireAgent(9, the_key(kit)))


def cancel(stage, kit):
    if kit.jid_of(1) in stage.world.jobs:
        stage.cancel(1)


def end_other(stage, kit):
    if kit.jid_of(7, OTHER) in stage.world.jobs:
        stage.end(stage.token(7, OTHER))
        stage.disconnect(the_key(kit, OTHER))


def connect(stage, kit):
    stage.open(the_key(kit))


def sign_in_needed(stage, kit):
    key = the_key(kit)
    stage.tell(SignInNeeded(key, stage.world.agent(key).record.attempt, "sign in first"))


def sign_in_needed_to_stop(stage, kit):
    stage.tell(SignInNeeded(the_key(kit), None, "sign in first"))


def telling(make):
    def act(stage, kit):
        key = the_key(kit)
        stage.tell(make(key, stage.world.agent(key)))

    return act


CAUSES = (
    fire_timers,
    need,
    cancel,
    end_other,
    connect,
    sign_in_needed,
    sign_in_needed_to_stop,
    telling(lambda key, view: AgentConnected(key, 0, None)),
    telling(lambda key, view: AgentDisconnected(key, view.epoch)),
    telling(lambda key, view: AgentStopRequested(8, key)),
    telling(lambda key, view: DriverStarted(key, view.record.attempt, {"pid": 9})),
    telling(lambda key, view: DriverFailed(key, view.record.attempt, "no fork")),
    telling(lambda key, view: DriverFound(key, "gone", "")),
    telling(lambda key, view: DriverFound(key, "alive", "")),
    telling(lambda key, view: DriverFound(key, "unknown", "")),
    telling(lambda key, view: DriverFound(key, "unknown", "", sign_in=True)),
    telling(lambda key, view: DriverStopped(key)),
    telling(lambda key, view: EvictionRefused(key, view.epoch)),
    telling(lambda key, view: SignedIn(key)),
    telling(lambda key, view: SignedOut(key)),
    telling(lambda key, view: HostChanged("local", "a", up=False, detail="cut off")),
    telling(lambda key, view: HostChanged("local", "a", up=True, detail="")),
)


@pytest.fixture
def seen(monkeypatch):
    """Return the pairs of phase and trigger of all agents from now on."""
    pairs, look_up = set(), transaction.next_phase

    def record(phase, trigger):
        pairs.add((phase, trigger))
        return look_up(phase, trigger)

    monkeypatch.setattr(transaction, "next_phase", record)
    return pairs


def test_each_input_in_each_phase_is_legal_and_all_listed_transitions_happen(kit, seen):
    for history, phase in HISTORIES.items():
        for cause in CAUSES:
            stage = new_stage(kit)
            history(stage, kit)
            assert stage.world.agent(the_key(kit)).phase == phase, history.__name__
            cause(stage, kit)
    assert seen == LISTED


# ---- the documentation


def test_architecture_has_the_same_table():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Phases of an agent\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| `(\w+)` \|$", section, re.MULTILINE)
    documented = {
        (phase, trigger): following
        for phase, triggers, following in rows
        for trigger in triggers.split(", ")
    }
    assert documented == {
        (phase, trigger): following
        for phase, row in TRANSITIONS.items()
        for trigger, following in row.items()
    }
