"""The queue of a run, priorities, and the limits of its user."""

import pytest

from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.status.run_status import status

FOUR = {("local", "sequential"): 4, ("local", "parallel"): 4}


def queues(**limits) -> Queues:
    return Queues(
        queues={"lab": Queue(users=("user0001",)), "open": Queue(share=2.0)},
        limits=UserLimits(**limits),
        plans={"free": UserLimits(running=1)},
    )


@pytest.fixture
def site(kit):
    def make(**limits):
        return kit.Stage(queues=queues(**limits), cpu_slots=FOUR, op_run_slots=FOUR)

    return make


def refused(stage) -> tuple[str, str]:
    (reply,) = stage.asked(fx.ReplyRefusal)
    return reply.refusal.code, reply.refusal.sentence


@pytest.mark.parametrize(
    ("uid", "asked", "stored"),
    [
        ("user0001", {}, "lab"),
        ("user0001", {"queue": "open"}, "open"),
        ("user0002", {}, None),
        ("user0002", {"queue": "default"}, None),
    ],
)
def test_a_run_has_the_queue_of_its_user_or_the_one_it_names(site, uid, asked, stored):
    stage = site()
    stage.submit(1, uid=uid, **asked)
    assert (stage.job(1, uid).run.spec.queue or None) == stored
    assert stage.world.account_of((stage.job(1, uid).jid, stage.job(1, uid).run.serial)).queue == (
        stored or "default"
    )


@pytest.mark.parametrize("queue", ["lab", "nowhere"])
def test_a_queue_of_others_and_one_that_does_not_exist_are_refused_alike(site, queue):
    stage = site()
    stage.submit(1, uid="user0002", queue=queue)
    assert refused(stage) == (
        "queueRefused",
        f"user user0002 has no queue '{queue}'; choose one of: default, open",
    )
    assert not stage.log


def test_no_more_runs_of_a_user_run_than_its_limit(site, kit):
    """Also with several agents of this user, and after a restart."""
    stage = site(running=2)
    for n in range(4):
        stage.submit(n)
    stage.submit(4, job_run_mode="parallel")
    stage.up()
    stage.up(kit.key_of(kind="parallel"))
    assert sum(len(v.placed) for v in stage.world.agents.values()) == 2
    reply = status(stage.world, stage.job(3), 9, stage.now())
    assert reply["queueState"] == "user_limit"
    assert "2 may run at once (2 of 2 in use, 1 ahead)" in reply["jobStatusMessage"]
    stage.restarted()
    stage.connect(kit.key_of(), *(kit.running(t) for t in stage.tokens(0) + stage.tokens(1)))
    stage.up(kit.key_of(kind="parallel"))
    assert sum(len(v.placed) for v in stage.world.agents.values()) == 2
    stage.reports(kit.ended(stage.token(0)))
    assert len(stage.job(2).live_tasks()) == 1 and not stage.job(3).live_tasks()


def test_a_plan_has_its_own_limits(site, kit):
    stage = site(running=3)
    for n in range(3):
        stage.submit(n, active_plan="free")
    stage.up()
    assert len(stage.world.agents[kit.key_of()].placed) == 1


def test_more_waiting_runs_than_the_limit_are_refused(site, kit):
    stage = site(queued=2)
    for n in range(4):
        stage.submit(n)
        stage.asked(fx.ReplyRefusal)
    assert [kit.jid_of(n) in stage.world.jobs for n in range(4)] == [True, True, False, False]
    assert refused(stage) == (
        "tooManyRuns",
        "2 runs of this user wait already; the limit is 2",
    )
    stage.submit(9, uid=kit.OTHER_UID)
    assert stage.job(9, kit.OTHER_UID).run, "of another user"
    stage.up()
    stage.submit(5)
    stage.submit(6)
    assert stage.job(5).run and stage.job(6).run, "the first two run now"
    stage.cancel(5)
    stage.cancel(6)
    assert stage.world.waiting_runs(kit.UID) == 0


@pytest.mark.parametrize(
    ("default", "asked", "stored"),
    [(None, None, 60.0), (30.0, None, None), (90.0, None, 60.0), (None, 50.0, 50.0)],
)
def test_the_limit_of_run_time_is_also_its_default(kit, default, asked, stored):
    stage = kit.Stage(queues=queues(sequential=60.0), time_limit_secs=default)
    stage.submit(1, time_limit_secs=asked)
    assert stage.job(1).run.spec.time_limit_secs == stored
    stage.submit(2, job_run_mode="parallel")
    assert stage.job(2).run.spec.time_limit_secs is None


def test_a_longer_time_limit_and_more_resources_are_refused(kit):
    stage = kit.Stage(
        queues=queues(sequential=60.0, cores=4, gpus=1), nodes={"local": (kit.node(cpu=64),)}
    )
    stage.submit(1, time_limit_secs=61.0)
    assert refused(stage) == (
        "resourceExceeded",
        "the time limit of 61 s is more than the 60 s that this user may have for a sequential run",
    )
    stage.gang(kit.role(cpu=2, tasks=3), n=2)
    assert refused(stage) == (
        "resourceExceeded",
        "its roles request 6 cores; the limit of this user is 4 for one run",
    )
    assert not stage.log


@pytest.mark.parametrize("restart", [False, True])
def test_a_higher_priority_goes_before_earlier_runs_of_the_same_user(kit, restart):
    stage = kit.Stage(cpu_slots={("local", "sequential"): 1})
    stage.submit(0)
    stage.up()
    for n, priority in ((1, 0), (2, 5), (3, -1), (4, 5), (5, 7)):
        stage.submit(n, priority=priority)
    order = []
    if restart:
        stage.restarted()
        stage.connect(kit.key_of(), kit.running(stage.token(0)))
    while placed := stage.world.agents[kit.key_of()].placed:
        (token,) = placed
        order.append(int(token.jid.split("-")[1].removeprefix("sim")))
        stage.reports(kit.running(token))
        stage.reports(kit.ended(token))
    assert order == [0, 5, 2, 4, 1, 3]


def test_a_removed_queue_is_the_default_one(kit):
    stage = kit.Stage(queues=queues())
    stage.submit(1)
    stage.policy = kit.Stage().policy
    stage.restarted()
    stage.up()
    assert stage.world.account_of((kit.jid_of(1), stage.job(1).run.serial)).queue == "default"
    stage.reports(kit.ended(stage.token(1)))
    assert stage.state(1) == ("completed", "exit")
