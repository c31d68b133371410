"""The queue: when each run is placed, in which order, and which messages the agent gets."""

import pytest

from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.limit_pools import JobPool, RunDirPool
from jobscribe.supervisor.core.scheduling.placement import ASKING


def test_without_an_agent_a_run_waits_and_holds_nothing(stage, kit):
    stage.submit()
    assert stage.events() == ["RunRequested"]
    assert stage.world.slots.claims == {}
    assert list(stage.world.agent(kit.key_of()).queued) == [(kit.jid_of(), stage.job().run.serial)]


def test_connected_but_not_yet_known_gets_no_work(stage, kit):
    """Before the first snapshot is complete, the running tasks of the agent are unknown."""
    stage.submit()
    stage.started()
    stage.open(kit.key_of())
    assert stage.events() == ["RunRequested"]
    stage.submit(2)
    assert stage.asked(fx.LaunchTask) == []
    stage.snapshot(kit.key_of())
    assert stage.events() == ["RunRequested", "TaskPlaced"]


def test_a_placed_run_is_sent_whole(kit):
    stage = kit.Stage(time_limit_secs=77.0)
    stage.submit(
        command=("sh", "-c", "x"), env={"A": "1"}, wrap=("nice",), grace_secs=2.0, core_bytes=5
    )
    stage.up()
    (run,) = stage.asked(fx.LaunchTask)
    assert run.token == stage.token()
    assert (run.token.serial, run.token.attempt, run.token.role, run.token.index) == (
        stage.job().run.serial,
        1,
        "main",
        0,
    )
    task = run.spec
    assert (task.command, task.run_dir, task.env, task.wrap) == (
        ("sh", "-c", "x"),
        "/users/sim00001",
        {"A": "1"},
        ("nice",),
    )
    assert (task.time_limit_secs, task.grace_secs, task.core_bytes) == (77.0, 2.0, 5)
    assert stage.timers()[timers.LaunchDeadline(run.token)] == stage.policy.op_reply_secs


def test_a_limit_of_the_run_wins_over_the_house_rule(kit):
    stage = kit.Stage(time_limit_secs=77.0)
    stage.submit(time_limit_secs=5.0)
    stage.up()
    assert stage.asked(fx.LaunchTask)[0].spec.time_limit_secs == 5.0


def test_runs_of_one_user_go_in_the_order_of_submission(stage, kit):
    for n in (3, 1, 2):
        stage.submit(n)
    stage.up()
    order = []
    for _ in range(3):
        (run,) = stage.asked(fx.LaunchTask)
        order.append(run.token.jid)
        stage.reports(kit.running(run.token))
        stage.reports(kit.ended(run.token))
    assert order == [kit.jid_of(n) for n in (3, 1, 2)]
    assert (stage.world.slots.pools, stage.world.slots.claims) == ({}, {})


def test_users_share_the_cpu_in_the_order_of_submission(stage, kit):
    """One CPU slot; user 2 submitted before the second run of user 1."""
    mine, other = kit.key_of(), kit.key_of(kit.OTHER_UID)
    stage.submit(1)
    stage.submit(2, uid=kit.OTHER_UID)
    stage.submit(3)
    stage.up(mine)
    stage.up(other)
    assert stage.job(1).run.attempts
    assert not stage.job(2, kit.OTHER_UID).run.attempts
    stage.reports(kit.ended(stage.token(1)))
    assert stage.job(2, kit.OTHER_UID).run.attempts
    assert not stage.job(3).run.attempts


def test_a_broken_agent_of_one_user_holds_no_slot_of_another(stage, kit):
    stage.submit(1)
    stage.submit(2, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    assert stage.job(2, kit.OTHER_UID).run.attempts


def test_kinds_do_not_share_cpu_slots(stage, kit):
    stage.submit(1)
    stage.submit(2, job_run_mode="parallel")
    stage.up()
    stage.up(kit.key_of(kind="parallel"))
    assert stage.job(1).run.attempts
    assert stage.job(2).run.attempts


def test_as_many_as_there_are_slots(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 3}, op_run_slots={("local", "sequential"): 2}
    )
    for n in range(1, 6):
        stage.submit(n)
    stage.up()
    assert [bool(stage.job(n).run.attempts) for n in range(1, 6)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    stage.submit(9, uid=kit.OTHER_UID)
    stage.submit(8, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    assert bool(stage.job(9, kit.OTHER_UID).run.attempts)
    assert not stage.job(8, kit.OTHER_UID).run.attempts


def test_the_run_directory_is_given_back_at_the_start_and_the_rest_at_the_end(stage, kit):
    stage.submit()
    stage.up()
    token = stage.token()
    dir_, job = RunDirPool(kit.jid_of()), JobPool(kit.jid_of())
    assert {dir_, job} <= stage.world.slots.pools.keys()
    stage.reports(kit.running(token))
    assert dir_ not in stage.world.slots.pools
    assert job in stage.world.slots.pools
    stage.reports(kit.running(token))
    stage.reports(kit.ended(token))
    assert stage.world.slots.pools == {}


def test_a_successor_is_not_placed_while_its_predecessor_is_being_stopped(wide, kit):
    stage = wide
    stage.submit()
    stage.up()
    old = stage.token()
    stage.reports(kit.running(old))
    stage.cancel()
    stage.submit(force=True)
    assert stage.job().run.attempts == ()
    assert stage.asked(fx.LaunchTask) == []
    stage.submit(2)
    assert stage.job(2).run.attempts, "others are not held up"
    stage.reports(kit.running(old))
    stage.fire(timers.StopReminder(old))
    assert stage.job().run.attempts == ()
    stage.reports(kit.ended(old, None, signal=15, stop_reason="cancel"))
    (run,) = stage.asked(fx.LaunchTask)
    assert run.token.serial == stage.job().run.serial > old.serial


def test_of_many_successors_only_the_last_runs(wide, kit):
    stage = wide
    stage.submit()
    stage.up()
    old = stage.token()
    stage.reports(kit.running(old))
    for _ in range(5):
        stage.cancel()
        stage.submit(force=True)
    stage.reports(kit.ended(old))
    assert [p.status for p in stage.job().history] == ["canceled"] * 5
    assert stage.token().serial == stage.job().run.serial


def test_when_an_agent_goes_its_queued_runs_let_others_pass(kit):
    stage = kit.Stage()
    mine, other = kit.key_of(), kit.key_of(kit.OTHER_UID)
    stage.submit(1)
    stage.submit(2)
    stage.up(mine)
    stage.submit(3, uid=kit.OTHER_UID)
    stage.up(other)
    running = stage.token(1)
    stage.disconnect(mine)
    assert [t for t in stage.world.slots.claims if t[0] == kit.jid_of(2)] == []
    stage.connect(mine, kit.ended(running))
    assert stage.job(3, kit.OTHER_UID).run.attempts, (
        "its queued run 2 had left the queue when the slot came free"
    )
    assert not stage.job(2).run.attempts
    stage.reports(kit.ended(stage.token(3, kit.OTHER_UID)), key=other)
    assert stage.job(2).run.attempts


def test_of_the_runs_of_an_agent_that_goes_none_gets_what_another_one_gives_back(kit):
    """A run of the lost agent would release such slots at once, and run without them."""
    stage = kit.Stage(nodes={"local": (kit.node(),)})
    mine, other = kit.key_of(kind="parallel"), kit.key_of()
    stage.submit(1)
    stage.up(other)
    old = stage.token(1)
    stage.reports(kit.running(old), key=other)
    stage.cancel(1)
    stage.submit(1, force=True, job_run_mode="parallel")
    stage.up(mine)
    stage.gang(kit.role("a"), n=2)
    stage.reports(kit.ended(old, None, signal=15, stop_reason="cancel"), key=other)
    assert concurrency_limits.wait_of(
        stage.world.slots, (kit.jid_of(1), stage.job(1).run.serial)
    ).holders == {(kit.jid_of(2), stage.job(2).run.serial)}
    stage.disconnect(mine)
    assert (
        not stage.job(1).run.attempts
        and not stage.job(2).run.attempts
        and not stage.world.slots.claims
    )
    stage.connect(mine)
    assert stage.job(1).run.attempts and not stage.job(2).run.attempts


def test_placement_forgets_the_queue_limit(kit):
    """Otherwise a one-day timer for each job that ran for a second would accumulate."""
    stage = kit.Stage(queue_limit_secs=86400.0)
    stage.submit()
    name = timers.QueueLimit(kit.jid_of(), stage.job().run.serial)
    assert name in stage.timers()
    stage.up()
    assert stage.job().run.attempts
    assert name in stage.cleared()


def test_nothing_is_placed_twice_by_a_second_snapshot(stage, kit):
    stage.submit()
    stage.up()
    token = stage.token()
    stage.snapshot(kit.key_of(), kit.starting(token))
    assert stage.asked(fx.TaskEffect) == []
    assert stage.events().count("TaskPlaced") == 1


def test_so_many_runs_ask_for_slots_and_all_of_them_have_their_turn(kit):
    """The cost of an agent that connects or disconnects does not grow with the queue; the order of
    submission stays.
    """
    stage = kit.Stage(
        op_run_slots={("local", "sequential"): 3}, cpu_slots={("local", "sequential"): 2}
    )
    count = 3 * ASKING
    stage.tell(*(stage.submission(kit.spec(n)) for n in range(count)))
    view = stage.world.agent(kit.key_of())
    stage.up()
    assert (len(view.asking), len(stage.world.slots.claims)) == (ASKING, ASKING + 2)
    stage.disconnect()
    assert (view.asking, len(stage.world.slots.claims), len(view.queued)) == (set(), 2, count - 2)
    stage.found("alive")
    begun = [t.jid for t in sorted(view.placed)]
    stage.open(kit.key_of())
    stage.snapshot(kit.key_of(), *(kit.starting(t) for t in view.placed))
    while view.placed:
        assert len(view.asking) <= ASKING
        before = set(view.placed)
        first = min(before, key=lambda t: t.jid)
        stage.reports(kit.ended(first))
        begun += sorted(t.jid for t in view.placed - before)
    assert begun == [kit.jid_of(n) for n in range(count)]
    assert (view.queued, view.asking, stage.world.slots.claims) == ({}, set(), {})


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_flood_of_one_user_delays_another_by_at_most_one_slot(kit, runs_ahead):
    """Both slots are taken, and 1,000 runs wait. The other user's first run gets the next slot
    (guarantee G18), and then both users take turns.
    """
    two = {("local", "sequential"): 2}
    stage = kit.Stage(cpu_slots=two, op_run_slots={("local", "sequential"): 9}, ahead_secs=5.0)
    stage.agents_run_ahead = runs_ahead
    stage.submit(0)
    stage.up()
    stage.tell(*(stage.submission(kit.spec(n)) for n in range(1, 1001)))
    other = kit.key_of(kit.OTHER_UID)
    stage.submit(1, uid=kit.OTHER_UID)
    stage.up(other)
    stage.tell(*(stage.submission(kit.spec(n, kit.OTHER_UID)) for n in range(2, 20)))
    turns = []
    for _ in range(12):
        placed = {
            key: [t for t in sorted(view.placed) if (t.jid, t.serial) not in view.ahead]
            for key, view in stage.world.agents.items()
        }
        turns.append(len(placed[other]))
        key = max(placed, key=lambda k: len(placed[k]))
        stage.mono += 1.0
        stage.reports(kit.ended(placed[key][0]), key=key)
    assert turns[:2] == [0, 1]
    assert sum(turns) / len(turns) == pytest.approx(1.0, abs=0.25), "half of the slots"
