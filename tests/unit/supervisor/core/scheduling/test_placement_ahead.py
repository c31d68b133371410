"""Runs that are placed before they have a slot: which ones, who gets which slot, and what survives
stops, lost connections and restarts.
"""

import msgspec
import pytest

from jobscribe.db.events.events import TaskPlaced
from jobscribe.protocol.wire.messages import RunStatusUpdate
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import AgentMessage
from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.limit_pools import CpuPool, JobPool

CPU = CpuPool("local", "sequential", "localhost")


@pytest.fixture
def ahead(kit):
    """One slot. Run 1 (1 s) is over, run 2 has the slot, and runs 3 to 5 are placed ahead."""
    stage = kit.Stage(ahead_secs=5.0)
    stage.agents_run_ahead = True
    for n in (1, 2):
        stage.submit(n)
    stage.up()
    stage.reports(kit.ended(stage.token(1)))
    for n in range(3, 8):
        stage.submit(n)
    return stage


def placed_ahead(stage, *numbers):
    return [stage.job(n).run.live_tasks[0].waits_for_slot for n in numbers]


def with_successor(kit, token, successor):
    return msgspec.structs.replace(kit.ended(token), successor=successor)


def holders(stage):
    return {jid for jid, _ in stage.world.slots.pools[CPU].holders}


def test_the_next_runs_of_the_queue_are_placed_ahead_up_to_the_window(ahead, kit):
    assert placed_ahead(ahead, 2, 3, 4, 5) == [False, True, True, True]
    assert not ahead.job(6).run.attempts
    assert holders(ahead) == {kit.jid_of(2)}
    placed = [e for s, e in ahead.log if isinstance(e, TaskPlaced)]
    assert [(e.token.jid, e.ahead) for e in placed] == [(kit.jid_of(n), n > 2) for n in range(1, 6)]


def test_a_run_placed_ahead_is_sent_and_no_deadline_starts(kit):
    stage = kit.Stage(ahead_secs=3.0)
    stage.agents_run_ahead = True
    stage.submit(1)
    stage.submit(2)
    stage.up()
    assert [e.slot for e in stage.asked(fx.LaunchTask)] == ["held"]
    stage.reports(kit.ended(stage.token(1)))
    stage.submit(3)
    (launch,) = stage.asked(fx.LaunchTask)
    assert (launch.token, launch.slot) == (stage.token(3), "ahead")
    assert timers.LaunchDeadline(launch.token) not in stage.timers()


@pytest.mark.parametrize(
    "fields", [{"queue_limit_secs": 60.0}, {"debug_secs": 60.0}], ids=["queue limit", "debug"]
)
def test_a_run_with_a_queue_limit_or_for_debugging_is_not_placed_ahead(kit, fields):
    stage = kit.Stage(ahead_secs=3.0)
    stage.agents_run_ahead = True
    stage.submit(1)
    stage.submit(2)
    stage.up()
    stage.reports(kit.ended(stage.token(1)))
    stage.submit(3, **fields)
    stage.submit(4)
    assert not stage.job(3).run.attempts
    assert not stage.job(4).run.attempts, "no run passes another one of its user"


def test_runs_that_take_long_are_not_placed_ahead(kit):
    stage = kit.Stage(ahead_secs=0.1)
    stage.agents_run_ahead = True
    for n in (1, 2, 3):
        stage.submit(n)
    stage.up()
    stage.reports(kit.ended(stage.token(1)))
    assert not stage.job(3).run.attempts


def test_no_run_is_placed_ahead_of_another_users_earlier_run(kit):
    stage = kit.Stage(ahead_secs=3.0)
    stage.agents_run_ahead = True
    stage.submit(1)
    stage.submit(2)
    stage.up()
    stage.up(kit.key_of(kit.OTHER_UID))
    stage.reports(kit.ended(stage.token(1)))
    stage.submit(3, uid=kit.OTHER_UID)
    stage.submit(4)
    assert not stage.job(4).run.attempts


def test_the_named_successor_gets_the_slot_and_is_not_asked_to_start(ahead, kit):
    ahead.reports(with_successor(kit, ahead.token(2), ahead.token(3)))
    assert holders(ahead) == {kit.jid_of(3)}
    assert ahead.events(3) == ["RunRequested", "TaskPlaced", "TaskSlotGranted"]
    assert ahead.token(3) not in {e.token for e in ahead.asked(fx.LaunchTask)}
    assert timers.LaunchDeadline(ahead.token(3)) in ahead.timers()


def test_a_successor_whose_start_is_reported_with_it_costs_no_event(ahead, kit):
    ended, after = ahead.token(2), ahead.token(3)
    ahead.tell(
        *(
            AgentMessage(kit.key_of(), ahead.epochs[kit.key_of()], RunStatusUpdate(execution=e))
            for e in (with_successor(kit, ended, after), kit.running(after))
        )
    )
    assert ahead.events(3) == ["RunRequested", "TaskPlaced", "TaskStarted"]
    assert holders(ahead) == {kit.jid_of(3)}


def test_a_slot_without_a_successor_goes_to_the_next_which_is_told(ahead, kit):
    ahead.reports(kit.ended(ahead.token(2)))
    launches = [e for e in ahead.asked(fx.LaunchTask) if e.slot == "held"]
    assert [e.token for e in launches] == [ahead.token(3)]
    assert ahead.events(3)[-1] == "TaskSlotGranted"


def test_a_run_that_its_agent_started_has_a_slot_even_above_the_limit(ahead, kit):
    """For example after a restart of the keeper, which did not name it."""
    ahead.reports(kit.running(ahead.token(3)))
    assert holders(ahead) == {kit.jid_of(2), kit.jid_of(3)}
    ahead.reports(kit.ended(ahead.token(2)))
    assert holders(ahead) == {kit.jid_of(3)}


def test_a_canceled_run_that_waits_keeps_only_its_job(ahead, kit):
    token = ahead.token(3)
    ahead.cancel(3)
    assert ahead.state(3) == ("canceled", "cancel")
    assert [e.token for e in ahead.asked(fx.StopTask)] == [token]
    claim = ahead.world.slots.claims[token.jid, token.serial]
    assert claim.pools == (JobPool(token.jid),)
    ahead.reports(kit.ended(ahead.token(2)))
    assert holders(ahead) == {kit.jid_of(4)}, "its turn is over"
    ahead.submit(3, force=True)
    assert len(ahead.job(3).live_tasks()) == 1, "the new run waits for the end of the old one"
    ahead.reports(kit.ended(token, None, pid=None))
    assert (token.jid, token.serial) not in ahead.world.slots.claims


def test_a_canceled_run_that_its_agent_started_meanwhile_has_its_slot(ahead, kit):
    token = ahead.token(3)
    ahead.cancel(3)
    ahead.reports(with_successor(kit, ahead.token(2), token))
    assert holders(ahead) == {kit.jid_of(3)}
    ahead.reports(kit.ended(token))
    assert holders(ahead) == {kit.jid_of(4)}


def test_while_their_agent_is_away_they_request_no_slots(ahead, kit):
    ahead.disconnect()
    assert not any(p.lines for p in ahead.world.slots.pools.values())
    known = [kit.running(ahead.token(2)), *(kit.starting(ahead.token(n)) for n in (3, 4, 5))]
    ahead.connect(kit.key_of(), *known)
    assert concurrency_limits.wait_of(
        ahead.world.slots, (ahead.token(3).jid, ahead.token(3).serial)
    )
    ahead.reports(kit.ended(ahead.token(2)))
    assert holders(ahead) == {kit.jid_of(3)}


def test_after_a_restart_they_wait_as_before(ahead, kit):
    ahead.restarted()
    assert placed_ahead(ahead, 2, 3, 4, 5) == [False, True, True, True]
    assert holders(ahead) == {kit.jid_of(2)}
    ahead.connect(kit.key_of(), kit.running(ahead.token(2)))
    launched = [(e.token.jid, e.slot) for e in ahead.asked(fx.LaunchTask)]
    assert launched == [(kit.jid_of(n), "ahead") for n in (3, 4, 5)], "in their order"


def test_after_a_restart_a_successor_that_ran_meanwhile_has_the_slot(ahead, kit):
    two, three = ahead.token(2), ahead.token(3)
    ahead.restarted()
    ahead.connect(kit.key_of(), with_successor(kit, two, three), kit.running(three))
    assert holders(ahead) == {kit.jid_of(3)}
    assert ahead.events(3) == ["RunRequested", "TaskPlaced", "TaskStarted"]


def test_a_keeper_that_did_not_name_the_successors_gives_no_slot_twice(ahead, kit):
    """It ended, and the next one found the evidence of run 2 and 3, which are over, and of 4."""
    two, three, four = (ahead.token(n) for n in (2, 3, 4))
    ahead.submit(9, uid=kit.OTHER_UID)
    ahead.up(kit.key_of(kit.OTHER_UID))
    second = msgspec.structs.replace(kit.running(four), started_at=kit.WALL + 5)
    ahead.disconnect()
    ahead.connect(kit.key_of(), kit.ended(two), kit.ended(three), second)
    assert holders(ahead) == {kit.jid_of(4)}


def test_an_agent_that_missed_the_release_gets_it_again(ahead, kit):
    ahead.reports(kit.ended(ahead.token(2)))
    ahead.disconnect()
    ahead.connect(kit.key_of(), *(kit.starting(ahead.token(n)) for n in (3, 4, 5)))
    assert (ahead.token(3), "held") in [(e.token, e.slot) for e in ahead.asked(fx.LaunchTask)]


def test_an_older_agent_gets_them_when_they_have_slots(ahead, kit):
    ahead.disconnect()
    ahead.agents_run_ahead = False
    ahead.connect(kit.key_of(), kit.running(ahead.token(2)))
    assert ahead.asked(fx.LaunchTask) == []
    ahead.reports(kit.ended(ahead.token(2)))
    assert [(e.token, e.slot) for e in ahead.asked(fx.LaunchTask)] == [(ahead.token(3), None)]


def test_everything_is_gone_when_all_have_ended(ahead, kit):
    for n in range(2, 7):
        ahead.reports(with_successor(kit, ahead.token(n), ahead.token(n + 1)))
    ahead.reports(kit.ended(ahead.token(7)))
    assert (ahead.world.slots.pools, ahead.world.slots.claims) == ({}, {})
    assert ahead.world.agent(kit.key_of()).ahead == {}
