"""Dependencies between runs: which run waits for which, and the effect of each end. Long chains and
many followers do not block the loop.
"""

import time

import pytest
from decision_time import DECISION_SECS, longest

from jobscribe.db.events.events import DependencyEnded, RunEnded, RunPurged, RunRequested
from jobscribe.db.maintenance.checkpoints import trimmed
from jobscribe.protocol.api.requests import RunCancel
from jobscribe.protocol.jobs.roles import After
from jobscribe.protocol.jobs.status import PURGED
from jobscribe.supervisor.core.decide import decide
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import Cancel, Purge, Submit, TimerFired
from jobscribe.supervisor.core.status.run_status import status


@pytest.fixture
def stage(wide):
    return wide


def of(stage, type_, n=None, kit=None):
    return [
        e
        for s, e in stage.log
        if isinstance(e, type_) and (n is None or s == "job/" + kit.jid_of(n))
    ]


def follow(stage):
    """Fire all checks of followers, one decision each; return the number of decisions."""
    count = 0
    while checks := [t for t in stage.clock if isinstance(t, timers.FollowerCheck)]:
        for timer in checks:
            stage.fire(timer)
            count += 1
    return count


def ran(kit, stage, n=1, code=0, **fields):
    """Submit a run and let it end."""
    stage.submit(n, **fields)
    if stage.world.agent(kit.key_of()).phase != "up":
        stage.up()
    end(kit, stage, n, code)


def end(kit, stage, n, code=0):
    stage.reports(kit.ended(stage.token(n), code))


ENDS = {"completed": 0, "error": 1, "canceled": None}


@pytest.mark.parametrize("found", ENDS)
@pytest.mark.parametrize("on", ["ok", "any", "failed"])
@pytest.mark.parametrize("early", [False, True], ids=["while it runs", "when it has ended"])
def test_every_kind_of_wait_and_every_end(kit, stage, on, found, early):
    right = {"ok": found == "completed", "any": True, "failed": found != "completed"}[on]

    def over():
        if found == "canceled":
            stage.cancel(1)
            stage.reports(kit.ended(stage.token(1), None, signal=15, stop_reason="cancel"))
        else:
            end(kit, stage, 1, ENDS[found])

    stage.submit(1)
    stage.up()
    if early:
        over()
    stage.submit(2, after=kit.after(1, on=on))
    if early and not right:
        assert stage.refusal() == "dependencyNever" and kit.jid_of(2) not in stage.world.jobs
        return
    if early:
        assert len(stage.tokens(2)) == 1 and not stage.job(2).run.waits_for
        return
    assert not stage.tokens(2) and stage.state(2) == ("pending", None)
    over()
    assert not stage.tokens(2), "a decision of its own"
    follow(stage)
    assert [(e.compute_jid, e.status) for e in of(stage, DependencyEnded)] == [
        (kit.jid_of(1), found)
    ]
    if right:
        end(kit, stage, 2)
        assert stage.state(2) == ("completed", "exit")
    else:
        assert stage.state(2) == ("canceled", "dependency")
    follow(stage)
    assert not stage.left()


def test_it_waits_until_nothing_is_left_of_the_other(kit, stage):
    stage.submit(1)
    stage.up()
    stage.submit(2, after=kit.after(1, on="any"))
    stage.reports(kit.running(stage.token(1)))
    stage.cancel(1)
    assert follow(stage) == 0 and stage.state(1)[0] == "canceled" and not stage.tokens(2)
    stage.reports(kit.ended(stage.token(1), None, signal=15))
    follow(stage)
    assert len(stage.tokens(2)) == 1


def test_all_of_many_are_waited_for_and_the_sentence_counts_them(kit, stage):
    for n in (1, 2, 3):
        stage.submit(n)
    stage.up()
    stage.submit(4, after=(*kit.after(1, 2), *kit.after(2, 3, on="any"), *kit.after(1)))
    assert len(stage.job(4).run.waits_for) == 4
    reply = status(stage.world, stage.job(4), 1, stage.now())
    assert (reply["state"], reply["queueState"]) == ("pending", "dependency")
    assert (
        reply["jobStatusMessage"]
        == f"waiting for the end of 3 other runs: the first is {kit.jid_of(1)}"
    )
    assert reply["waitsFor"] == [kit.jid_of(n) for n in (1, 2, 2, 3)]
    for n in (3, 1, 2):
        assert not stage.tokens(4)
        end(kit, stage, n)
        follow(stage)
        if n == 1:
            said = status(stage.world, stage.job(4), 1, stage.now())["jobStatusMessage"]
            assert said == f"waiting for the end of {kit.jid_of(2)}", "both waits for it"
    assert len(stage.tokens(4)) == 1 and len(of(stage, DependencyEnded)) == 3


def test_one_that_is_waited_for_is_named(kit, stage):
    stage.submit(1)
    stage.submit(2, after=kit.after(1))
    reply = status(stage.world, stage.job(2), 1, stage.now())
    assert reply["jobStatusMessage"] == f"waiting for the end of {kit.jid_of(1)}"


def test_two_waits_for_one_run_both_have_to_be_right(kit, stage):
    stage.submit(1)
    stage.up()
    stage.submit(2, after=(*kit.after(1, on="any"), *kit.after(1, on="failed")))
    end(kit, stage, 1)
    follow(stage)
    assert stage.state(2) == ("canceled", "dependency") and not stage.left()


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ("itself", "badRequest"),
        ("nobody", "notFound"),
        ("another user", "notFound"),
        ("forgotten", "dependencyNever"),
    ],
)
def test_what_nobody_can_wait_for_is_refused_and_nothing_is_stored(kit, stage, after, code):
    stage.submit(1)
    stage.submit(1, uid=kit.OTHER_UID)
    before = len(stage.log)
    stage.submit(
        2,
        after={
            "itself": kit.after(2),
            "nobody": kit.after(9),
            "another user": kit.after(1, uid=kit.OTHER_UID),
            "forgotten": (After(compute_jid=kit.jid_of(1), compute_job_serial=3),),
        }[after],
    )
    assert (
        stage.refusal() == code
        and len(stage.log) == before
        and kit.jid_of(2) not in stage.world.jobs
    )
    assert not stage.world.followers


def test_a_run_that_was_forgotten_ended_somehow(kit, stage):
    ran(kit, stage, 1)
    stage.submit(2, after=(After(compute_jid=kit.jid_of(1), compute_job_serial=3, on="any"),))
    assert len(stage.tokens(2)) == 1


def test_no_circle_can_be_made(kit, stage):
    """A run waits only for earlier runs: a later run of the same job is a different one."""
    stage.submit(1)
    stage.submit(2, after=kit.after(1))
    stage.submit(1, after=kit.after(2), force=True)
    assert stage.refusal() in ("anotherRun", "badRequest")
    stage.cancel(1)
    stage.submit(1, after=kit.after(2), force=True)
    second = of(stage, RunRequested, 1, kit)[1].serial
    assert stage.job(1).run.serial == second
    follow(stage)
    assert stage.state(2) == ("canceled", "dependency"), "the one it waited for was canceled"
    follow(stage)
    assert stage.state(1) == ("canceled", "dependency") and not stage.left()


def test_a_newer_run_of_the_job_is_not_the_one_that_was_waited_for(kit, stage):
    stage.submit(1)
    stage.up()
    stage.reports(kit.running(stage.token(1)))
    stage.submit(2, after=kit.after(1, on="failed"))
    serial = stage.job(1).run.serial
    stage.cancel(1)
    stage.submit(1, force=True)
    assert stage.job(1).run.serial != serial
    stage.submit(
        3,
        after=(
            After(compute_jid=kit.jid_of(1), compute_job_serial=serial, on="any"),
            *kit.after(1),
        ),
    )
    assert follow(stage) == 0 and not stage.tokens(2), "what was canceled has a process yet"
    (old,) = stage.tokens(1)
    assert old.serial == serial
    stage.restarted()
    assert follow(stage) and not stage.tokens(2)
    stage.connect(None, kit.running(old))
    stage.reports(kit.ended(old, None, signal=15))
    follow(stage)
    assert len(stage.tokens(2)) == 1 and len(stage.job(3).run.waits_for) == 1
    end(kit, stage, 1)
    follow(stage)
    assert len(stage.tokens(3)) == 1


def test_a_follower_of_two_runs_of_one_job_that_is_over_with_the_first_is_not_looked_for_again(
    kit, stage
):
    """Both runs end in one decision. The first did not end as required, so the follower no longer
    waits for the second.
    """
    stage.submit(1)
    stage.up()
    old = stage.token(1)
    stage.reports(kit.running(old))
    stage.cancel(1)
    stage.submit(1, force=True)
    first, second = old.serial, stage.job(1).run.serial
    stage.submit(
        2,
        after=tuple(
            After(compute_jid=kit.jid_of(1), compute_job_serial=s) for s in (first, second)
        ),
    )
    stage.cancel(1)
    stage.reports(kit.ended(old, None, signal=15))
    follow(stage)
    assert stage.state(2) == ("canceled", "dependency") and not stage.left()


def test_a_canceled_follower_waits_for_nobody_and_takes_its_followers_with_it(kit, stage):
    stage.submit(1)
    stage.up()
    stage.submit(2, after=kit.after(1))
    stage.submit(3, after=kit.after(2))
    stage.submit(4, after=kit.after(3, on="any"))
    stage.cancel(2)
    assert stage.state(2) == ("canceled", "cancel")
    follow(stage)
    assert stage.state(3) == ("canceled", "dependency") and len(stage.tokens(4)) == 1
    end(kit, stage, 1)
    assert follow(stage) == 0, "nobody waits for it any more"
    end(kit, stage, 4)
    assert not stage.left()


def test_the_queue_limit_counts_while_it_waits_for_others(kit, stage):
    stage.submit(1)
    stage.up()
    stage.submit(2, after=kit.after(1), queue_limit_secs=50.0)
    ticket = (kit.jid_of(2), stage.job(2).run.serial)
    stage.pass_time(20.0)
    stage.restarted()
    assert stage.clock[timers.QueueLimit(*ticket)] == 30.0
    stage.fire(timers.QueueLimit(*ticket))
    assert stage.state(2) == ("canceled", "queueLimit") and not stage.world.followers


def test_one_that_is_canceled_by_another_has_no_queue_limit_left(kit, stage):
    stage.submit(1)
    stage.up()
    stage.submit(2, after=kit.after(1), queue_limit_secs=50.0)
    end(kit, stage, 1, 1)
    follow(stage)
    assert stage.state(2) == ("canceled", "dependency") and not stage.left()


@pytest.mark.parametrize(
    "when", ["while both wait", "when the end is on record", "when one was told"]
)
def test_wherever_the_supervisor_is_killed_the_followers_go_on(kit, stage, when):
    stage.submit(1)
    stage.up()
    token = stage.token(1)
    stage.submit(2, after=kit.after(1))
    stage.submit(3, after=kit.after(2, on="any"))
    if when == "while both wait":
        stage.restarted()
        stage.connect(None, kit.running(token))
    stage.reports(kit.ended(token, 0))
    if when == "when the end is on record":
        stage.restarted()
        assert timers.FollowerCheck(kit.jid_of(1)) in stage.clock
    follow(stage)
    if when == "when one was told":
        assert stage.job(2).run.waits_for == ()
        stage.restarted()
    follow(stage)
    if stage.world.agent(kit.key_of()).phase != "up":
        known = [t for n in (2, 3) for t in stage.tokens(n)]
        stage.connect(None, *(kit.running(t) for t in known))
    end(kit, stage, 2)
    follow(stage)
    end(kit, stage, 3)
    assert not stage.left() and len(of(stage, DependencyEnded)) == 2


@pytest.mark.parametrize(("code", "folded"), [(0, False), (1, False), (0, True), (1, True)])
def test_a_purged_run_ended_as_it_ended_also_when_its_error_is_not_kept(kit, stage, code, folded):
    ran(kit, stage, 1, code)
    stage.pass_time(100.0)
    stage.tell(Purge(kit.jid_of(1), stage.job(1).run.serial, stage.wall))
    assert of(stage, RunPurged) and stage.job(1).status == PURGED
    if folded:
        stage.world.jobs[kit.jid_of(1)] = trimmed(stage.job(1), 0)
    for n, on in ((2, "ok"), (3, "failed")):
        stage.submit(n, after=kit.after(1, on=on))
        right = (code == 0) == (on == "ok")
        assert (kit.jid_of(n) in stage.world.jobs) == right
    serial = stage.job(1).run.serial
    if not folded:
        stage.submit(1, force=True)
        stage.submit(
            4,
            after=(
                After(
                    compute_jid=kit.jid_of(1),
                    compute_job_serial=serial,
                    on="ok" if code == 0 else "failed",
                ),
            ),
        )
        assert len(stage.tokens(4)) == 1


def test_a_gang_waits_and_is_waited_for(kit):
    stage = kit.Stage(nodes={"local": (kit.node(),)}, op_run_slots={("local", "parallel"): 4})
    key = kit.key_of(kind="parallel")
    first = stage.placed(kit.role("a", 2))
    stage.gang(kit.role("b", 2), n=2, after=kit.after(1))
    assert not stage.world.node_pools["local"].queue, "it holds nothing and stands in no line"
    stage.end(first[0])
    assert follow(stage) == 0
    stage.end(first[1])
    follow(stage)
    stage.answer()
    assert len(stage.tokens(2)) == 2 and stage.world.agent(key).placed == set(stage.tokens(2))


class Quick:
    """Make decisions without the stage's checks, and measure the longest one."""

    def __init__(self, kit, stage):
        self.kit, self.stage, self.longest, self.timers, self.effects = kit, stage, 0.0, [], []

    def tell(self, *inputs):
        now, started = self.stage.now(), time.process_time()
        decision = decide(self.stage.world, inputs, now)
        self.longest = max(self.longest, time.process_time() - started)
        self.effects = decision.effects
        self.timers += [
            e.timer
            for e in decision.effects
            if isinstance(e, fx.SetTimer) and isinstance(e.timer, timers.FollowerCheck)
        ]
        return decision

    def submit(self, n, **fields):
        submission = self.stage.submission(self.kit.spec(n, **fields))
        assert isinstance(submission, Submit)
        self.tell(submission)

    def follow(self):
        while self.timers:
            self.tell(TimerFired(self.timers.pop(0)))


MANY = 10_000


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("own_heap")
def test_a_chain_of_ten_thousand_is_canceled_link_by_link(kit):
    assert longest(lambda: a_chain_of_ten_thousand(kit)) < DECISION_SECS


def a_chain_of_ten_thousand(kit):
    stage = kit.wide_stage()
    quick = Quick(kit, stage)
    quick.submit(0)
    for n in range(1, MANY):
        quick.submit(n, after=kit.after(n - 1))
    assert len(stage.world.followers) == MANY - 1
    quick.tell(Cancel(1, cancel_of(kit, 0)))
    quick.follow()
    assert {j.status for j in stage.world.jobs.values()} == {
        "canceled"
    } and not stage.world.followers
    return quick.longest


def cancel_of(kit, n):
    return RunCancel(req_id="cancel-chain", uid=kit.UID, compute_jid=kit.jid_of(n))


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("own_heap")
def test_ten_thousand_followers_of_one_run_are_told_some_at_a_time(kit):
    assert longest(lambda: ten_thousand_followers(kit)) < DECISION_SECS


def ten_thousand_followers(kit):
    stage = kit.wide_stage()
    quick = Quick(kit, stage)
    quick.submit(0)
    for n in range(1, MANY):
        quick.submit(n, after=kit.after(0, on="any" if n % 2 else "failed"))
    ended = []
    quick.tell(Cancel(1, cancel_of(kit, 0)))
    while quick.timers:
        decision = quick.tell(TimerFired(quick.timers.pop(0)))
        ended.append(sum(isinstance(e, DependencyEnded) for w in decision.writes for e in w.events))
    assert sum(ended) == MANY - 1 and max(ended) <= 128
    assert not stage.world.followers and len(stage.world.agent(kit.key_of()).queued) == MANY - 1
    assert not [e for e in of(stage, RunEnded) if e.status == "completed"]
    return quick.longest
