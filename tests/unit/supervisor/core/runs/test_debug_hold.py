"""Failed tasks that are held for debugging: which tasks, how long, and that each ends once, with
its own exit status.
"""

import pytest

from jobscribe.db.events.events import AttemptEnded, TaskEnded, TaskHeld
from jobscribe.db.records.job_record import record
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.status.run_status import status


@pytest.fixture
def here(kit):
    return kit.key_of(kind="parallel")


@pytest.fixture
def stage(kit):
    return kit.Stage(nodes={"local": (kit.node(cpu=8),)}, op_run_slots={("local", "parallel"): 4})


def of(stage, type_):
    return [e for _, e in stage.log if isinstance(e, type_)]


def said(stage, n=1):
    return status(stage.world, stage.job(n), 1, stage.now())


def kept(kit, stage, *roles, codes=(3,), **fields):
    """Place a gang whose first tasks have failed with these codes and are held."""
    tokens = stage.placed(
        *(roles or (kit.role("a", 2),)), debug_secs=fields.pop("debug_secs", 100.0), **fields
    )
    key = kit.key_of(kind="parallel")
    for token in tokens:
        stage.reports(kit.running(token), key=key)
    for token, code in zip(tokens, codes, strict=False):
        stage.end(token, code)
    assert [e.token for e in of(stage, TaskHeld)] == tokens[: len(codes)]
    return tokens


@pytest.mark.parametrize(
    ("exit_", "is_kept"),
    [
        ({"code": 1}, True),
        ({"code": 127}, True),
        ({"code": None, "signal": 11}, True),
        ({"code": 0}, False),
        ({"code": None, "signal": 9}, False),
        ({"code": None, "source": "lost", "detail": "x"}, False),
        ({"code": None, "source": "start", "detail": "x"}, False),
        ({"code": 1, "stop_reason": "shutdown"}, False),
        ({"code": 1, "stop_reason": "timeLimit"}, False),
        ({"code": None, "signal": 15, "stop_reason": "cancel"}, False),
    ],
)
def test_kept_is_what_failed_by_itself(kit, stage, exit_, is_kept):
    (token,) = stage.placed(kit.role("a"), debug_secs=100.0)
    stage.reports(kit.running(token), key=kit.key_of(kind="parallel"))
    stage.end(token, **exit_)
    assert bool(of(stage, TaskHeld)) == is_kept == (timers.DebugHoldDeadline(token) in stage.clock)
    assert bool(of(stage, TaskEnded)) != is_kept


def test_nobody_asked_and_nothing_is_kept(kit, stage):
    (token,) = stage.placed(kit.role("a"))
    stage.end(token, 1)
    assert not of(stage, TaskHeld) and not stage.left()


def test_what_is_kept_keeps_what_it_has_and_the_others_run_on(kit, stage, here):
    tokens = kept(kit, stage, kit.role("a", 3))
    assert [e.tokens for e in stage.asked(fx.AcknowledgeTasks)] == [(tokens[0],)], (
        "its end is on record"
    )
    assert (
        not stage.asked(fx.StopTask) and stage.world.node_pools["local"].usage["localhost"].cpu == 3
    )
    reply = said(stage)
    assert (reply["state"], reply["queueState"], reply["over"], reply["known"]) == (
        "running",
        "debug_hold",
        False,
        True,
    )
    assert (
        reply["jobStatusMessage"]
        == "a/0 failed (exit code 3) and can be inspected, until 2023-11-14 22:15:00 UTC"
    )
    assert reply["roles"] == {
        "a": {
            "tasks": 3,
            "placed": 0,
            "running": 2,
            "held": 1,
            "succeeded": 0,
            "failed": 0,
            "stopped": 0,
        }
    }
    stage.end(tokens[1], 4)
    assert "a/0 and 1 more failed" in said(stage)["jobStatusMessage"]
    on_file = record(stage.job(), 1, 1.0)
    assert [t["heldUntil"] for t in on_file["attempts"][0]["tasks"]] == [
        kit.WALL + 100,
        kit.WALL + 100,
        None,
    ]
    # a held task does not need its agent to be up
    stage.end(tokens[2], 5)
    assert record(stage.job(), 1, 1.0)["queueState"] == "debug_hold"
    stage.disconnect(here)
    assert said(stage)["known"] and not stage.world.agent(here).needed


def test_at_its_deadline_it_has_ended_as_it_ended(kit, stage):
    tokens = kept(kit, stage, kit.role("a", 2))
    assert stage.clock[timers.DebugHoldDeadline(tokens[0])] == 100.0
    stage.pass_time(100.0)
    stage.fire(timers.DebugHoldDeadline(tokens[0]))
    (end,) = of(stage, TaskEnded)
    assert end.exit == of(stage, TaskHeld)[0].exit and end.at == kit.WALL + 100
    assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(tokens[1], "decided")]
    stage.end(tokens[1], None, signal=15, stop_reason="decided")
    assert (
        stage.state() == ("error", "exit") and stage.job().run.exit.code == 3 and not stage.left()
    )


def test_nobody_is_kept_longer_than_the_policy_has_it(kit):
    stage = kit.Stage(nodes={"local": (kit.node(),)}, debug_secs=7.0)
    tokens = kept(kit, stage, kit.role("a"), debug_secs=1000.0)
    assert (
        stage.clock[timers.DebugHoldDeadline(tokens[0])] == 7.0
        and of(stage, TaskHeld)[0].secs == 7.0
    )


def test_released_by_role_and_index_or_all_of_it(kit, stage):
    tokens = kept(
        kit,
        stage,
        kit.role("a", 2, min_failed=None),
        kit.role("b", 2, min_failed=None),
        codes=(1, 2, 3, 4),
    )
    stage.release(role="b", index=1)
    assert [e.token for e in of(stage, TaskEnded)] == [tokens[3]]
    stage.release(role="b", index=1)
    stage.release(role="c")
    stage.release(compute_job_serial=1)
    assert [e.token for e in of(stage, TaskEnded)] == [tokens[3]]
    stage.release(index=0)
    assert {e.token for e in of(stage, TaskEnded)} == {tokens[0], tokens[2], tokens[3]}
    stage.release()
    assert of(stage, TaskEnded)[-1].token == tokens[1] and len(of(stage, TaskEnded)) == 4
    assert stage.state() == ("completed", "exit") and not stage.left(), "nobody minds failures here"


def test_released_whole_each_ends_once(kit, stage):
    """The first released task decides the attempt and thereby ends the others, but not twice."""
    tokens = kept(kit, stage, kit.role("a", 4), codes=(1, 2, 3))
    stage.release()
    ends = [e.token for e in of(stage, TaskEnded)]
    assert sorted(ends) == sorted(set(ends)) == tokens[:3]
    assert {e.token: e.exit.code for e in of(stage, TaskEnded)} == dict(
        zip(tokens, (1, 2, 3), strict=False)
    )
    stage.end(tokens[3], 0, stop_reason="decided")
    assert (
        stage.state() == ("error", "exit") and stage.job().run.exit.code == 1 and not stage.left()
    )


def test_canceled_when_all_are_kept_each_ends_once_with_its_own_exit(kit, stage):
    tokens = kept(kit, stage, kit.role("a", 3), codes=(1, 2, 3), retry=Retry(count=5))
    stage.cancel()
    assert sorted(e.token for e in of(stage, TaskEnded)) == tokens
    assert stage.state() == ("error", "exit"), "it had failed before anybody canceled it"
    assert not [e for e in of(stage, AttemptEnded) if e.retry], "nobody wants it again"
    assert (
        not stage.left()
        and stage.events().count("RunEnded") == stage.events().count("AttemptEnded") == 1
    )


def test_canceled_while_others_run_the_run_is_canceled(kit, stage):
    tokens = kept(kit, stage, kit.role("a", 4), codes=(1, 2))
    stage.cancel()
    assert stage.state() == ("canceled", "cancel")
    assert {e.token for e in of(stage, TaskEnded)} == set(tokens[:2])
    assert {e.token for e in stage.asked(fx.StopTask)} == set(tokens[2:])
    for token in tokens[2:]:
        stage.end(token, None, signal=15, stop_reason="cancel")
    assert stage.state() == ("canceled", "cancel") and not stage.left()


def test_success_of_the_others_lets_them_go(kit, stage):
    tokens = kept(kit, stage, kit.role("a", 3, min_failed=2, min_succeeded=1), codes=(1,))
    stage.end(tokens[1], 0)
    assert (
        tokens[0] in {e.token for e in of(stage, TaskEnded)}
        and timers.DebugHoldDeadline(tokens[0]) not in stage.clock
    )
    stage.end(tokens[2], 0, stop_reason="decided")
    assert stage.state() == ("completed", "exit") and not stage.left()


def test_kept_over_a_restart_for_what_is_left_of_its_time(kit, stage, here):
    tokens = kept(kit, stage, kit.role("a", 2), codes=(1, 2))
    stage.pass_time(30.0)
    stage.restarted()
    assert {stage.clock[timers.DebugHoldDeadline(t)] for t in tokens} == {70.0}
    assert stage.world.node_pools["local"].usage["localhost"].cpu == 2
    assert not stage.world.agent(here).needed, "no agent is started for it"
    assert said(stage)["queueState"] == "debug_hold" and said(stage)["known"]
    stage.pass_time(1000.0)
    stage.restarted()
    assert {stage.clock[timers.DebugHoldDeadline(t)] for t in tokens} == {0.0}
    stage.fire(timers.DebugHoldDeadline(tokens[1]))
    assert stage.state() == ("error", "exit") and not stage.left()
    stage.fire(timers.DebugHoldDeadline(tokens[0]))
    assert len(of(stage, TaskEnded)) == 2


def test_its_agent_says_its_end_again_and_is_told_that_it_is_known(kit, stage, here):
    tokens = kept(kit, stage, kit.role("a"))
    before = len(stage.log)
    for execution in (kit.ended(tokens[0], 3), kit.running(tokens[0])):
        stage.reports(execution, key=here)
        assert [e.tokens for e in stage.asked(fx.AcknowledgeTasks)] == [(tokens[0],)]
    stage.disconnect(here)
    stage.connect(here)
    assert len(stage.log) == before and said(stage)["queueState"] == "debug_hold"
    assert not stage.asked(fx.LaunchGang)


def test_each_attempt_is_kept_and_then_tried_again(kit, stage):
    kept(kit, stage, kit.role("a"), retry=Retry(count=1))
    stage.release()
    stage.fire(timers.AttemptRetry(kit.jid_of(), stage.job().run.serial))
    stage.answer()
    (token,) = stage.tokens()
    assert token.attempt == 2
    stage.reports(kit.running(token), key=kit.key_of(kind="parallel"))
    stage.end(token, 9)
    assert stage.job().live_tasks()[0].held is not None
    stage.release()
    assert (
        stage.state() == ("error", "exit") and stage.job().run.exit.code == 9 and not stage.left()
    )


def test_only_its_user_may_release_it(kit, stage):
    kept(kit, stage, kit.role("a"))
    stage.release(by=kit.OTHER_UID)
    assert stage.refusal() == "notFound"
    stage.release(7)
    assert stage.refusal() == "notFound"
    assert not of(stage, TaskEnded)
