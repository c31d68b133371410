"""Runs whose command has ended while some of their processes still run: the exit or the stop
decides, whichever is recorded first.
"""

import pytest

from jobscribe.db.events.events import LateStopRequested, TaskExited
from jobscribe.db.records.event_text import sentence
from jobscribe.db.records.job_record import record
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.wire.messages import Execution
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis.explanation import why

SLURM = AgentKey("sbatch", "parallel", "user0001", "hpc")


def told(stage, n=1):
    job = stage.job(n)
    return status(stage.world, job, 1, stage.now())


def asked_why(stage):
    job = stage.job()
    return why(told(stage), job)


def runs(kit, **fields):
    """Return (stage, token) of a running run."""
    stage = kit.Stage()
    stage.submit(1, time_limit_secs=30.0, **fields)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    return stage, token


def test_an_exit_is_on_record_once_and_the_run_goes_on_until_nothing_is_left(kit):
    stage, token = runs(kit)
    stage.reports(kit.ending(token, 3), kit.ending(token, 3))
    stage.snapshot(kit.key_of(), kit.ending(token, 3))
    assert stage.events().count("TaskExited") == 1
    assert stage.state() == ("running", None) and stage.job().run.live_tasks[0].exited.code == 3
    reply = told(stage)
    assert (
        reply["state"],
        reply["queueState"],
        reply["over"],
        reply["exit"],
        reply["exited"]["code"],
    ) == ("running", "ending", False, None, 3)
    assert (
        reply["jobStatusMessage"]
        == "its command ended: exit code 3; waiting until no process of it is left, since 2023-11-14 22:13:21 UTC"
    )
    assert reply["elapsedTime"] == 1.0
    on_file = record(stage.job(), 1, 2.0)
    assert (on_file["queueState"], on_file["attempts"][0]["tasks"][0]["exited"]["code"]) == (
        "ending",
        3,
    )
    stage.reports(kit.ended(token, 3))
    assert (
        stage.state() == ("error", "exit") and stage.job().run.attempts[0].tasks[0].exited is None
    )
    assert "exited" not in told(stage) and stage.left() == {}


def test_an_exit_that_comes_with_the_first_word_began_before(kit):
    stage = kit.Stage()
    stage.submit()
    stage.up()
    stage.reports(kit.ending(stage.token(), 0))
    assert stage.events()[-2:] == ["TaskStarted", "TaskExited"]


@pytest.mark.parametrize("again", ["report", "snapshot", "restart", "older agent"])
def test_its_time_limit_is_not_counted_any_more(kit, again):
    stage, token = runs(kit)
    assert timers.TimeLimit(token) in stage.clock
    stage.reports(kit.ending(token, 3))
    assert timers.TimeLimit(token) not in stage.clock
    if again == "restart":
        stage.restarted()
        stage.connect(kit.key_of(), kit.ending(token, 3))
    elif again == "snapshot":
        stage.snapshot(kit.key_of(), kit.ending(token, 3))
    else:
        stage.reports(
            kit.ending(token, 3) if again == "report" else kit.running(token, elapsed=99.0)
        )
    assert timers.TimeLimit(token) not in stage.clock
    stage.pass_time(1000.0)
    stage.fire(timers.TimeLimit(token))  # a timer that fires late
    assert stage.effects == []
    stage.reports(kit.ended(token, 3))
    assert stage.state() == ("error", "exit")


@pytest.mark.parametrize(("code", "result"), [(0, ("completed", "exit")), (3, ("error", "exit"))])
def test_a_cancel_that_comes_after_the_exit_changes_nothing_and_is_on_record(kit, code, result):
    stage, token = runs(kit)
    stage.reports(kit.ending(token, code))
    decision = stage.cancel()
    assert (
        stage.asked(fx.StopTask) == []
        and stage.state() == ("running", None)
        and len(decision.receipts) == 1
    )
    assert stage.events()[-1] == "LateStopRequested" and "StopRequested" not in stage.events()
    assert told(stage)["lateStop"] == {
        "at": stage.wall,
        "by": kit.UID,
        "note": "",
        "reason": "cancel",
    }
    assert (
        "user0001 asked for its end (cancel) after that, which does not change its result"
        in told(stage)["jobStatusMessage"]
    )
    stage.cancel()
    assert stage.events().count("LateStopRequested") == 1
    stage.restarted()
    stage.connect(kit.key_of(), kit.ended(token, code))
    assert stage.state() == result and stage.left() == {}
    answer = asked_why(stage)
    assert any(
        line.endswith("after its command had ended; the result did not change")
        for line in answer["evidence"]
    )
    assert "canceled by anyone" not in answer["not"]
    assert record(stage.job(), 1, 2.0)["lateStop"]["by"] == kit.UID


def test_no_other_attempt_follows_a_cancel_that_came_too_late(kit):
    stage, token = runs(kit, retry=Retry(count=3))
    stage.reports(kit.ending(token, 3))
    stage.cancel()
    stage.reports(kit.ended(token, 3))
    assert stage.state() == ("error", "exit") and stage.left() == {}
    assert (
        stage.job().run.attempts[0].not_retried
        == "user0001 asked for the end of the run after its command had ended"
    )


def test_nor_is_it_kept_for_debugging_then(kit):
    stage, token = runs(kit, debug_secs=60.0)
    stage.reports(kit.ending(token, 3))
    stage.cancel()
    stage.reports(kit.ended(token, 3))
    assert stage.state() == ("error", "exit") and stage.left() == {}


def test_a_cancel_on_record_before_the_exit_is_final_and_the_exit_is_kept_as_it_was(kit):
    stage, token = runs(kit)
    stage.cancel()
    stage.reports(kit.ending(token, 0))
    assert stage.state() == ("canceled", "cancel") and stage.events()[-1] == "TaskExited"
    assert timers.StopReminder(token) not in stage.clock and stage.asked(fx.StopTask) == []
    assert told(stage)["queueState"] == "ending" and told(stage)["over"] is False
    stage.reports(kit.running(token))  # reported before
    assert stage.asked(fx.StopTask) == []
    stage.reports(kit.ended(token, 0))
    answer = asked_why(stage)
    assert answer["sentence"] == (
        "canceled by user0001; its command had already ended with exit code 0 before the cancel reached it"
    )
    assert "its own exit" not in answer["not"]


def test_a_lost_end_is_the_exit_that_is_on_record(kit):
    stage, token = runs(kit)
    stage.reports(kit.ending(token, 3))
    stage.disconnect()
    stage.connect()
    assert stage.state() == ("error", "exit") and stage.job().run.exit.code == 3


def test_of_a_gang_those_are_stopped_that_still_run(kit):
    stage = kit.Stage(nodes={"local": (kit.node(),)})
    one, two = stage.placed(kit.role("a", 2, min_failed=None))
    key = stage.world.task(one).agent_key
    stage.reports(kit.running(one), kit.running(two, 101), kit.ending(one, 0), key=key)
    assert told(stage)["queueState"] is None
    stage.cancel()
    assert stage.state() == ("canceled", "cancel")
    assert [op.token for op in stage.asked(fx.StopTask)] == [two]


def test_a_gang_of_which_all_have_exited_is_not_canceled(kit):
    stage = kit.Stage(nodes={"local": (kit.node(),)})
    one, two = stage.placed(kit.role("a", 2))
    key = stage.world.task(one).agent_key
    stage.reports(
        kit.running(one), kit.running(two, 101), kit.ending(one, 0), kit.ending(two, 0), key=key
    )
    assert told(stage)["jobStatusMessage"].startswith(
        "its command, and those of 1 more tasks, ended: exit code 0; "
    )
    stage.cancel()
    assert stage.asked(fx.StopTask) == []
    stage.end(one)
    stage.end(two)
    assert stage.state() == ("completed", "exit") and stage.left() == {}


def test_a_decided_attempt_does_not_stop_what_has_exited(kit):
    stage = kit.Stage(nodes={"local": (kit.node(),)})
    one, two, three = stage.placed(kit.role("a", 3, min_failed=1))
    key = stage.world.task(one).agent_key
    stage.reports(
        *(kit.running(t, 100 + n) for n, t in enumerate((one, two, three))),
        kit.ending(two, 0),
        key=key,
    )
    stage.end(one, 7)
    assert [op.token for op in stage.asked(fx.StopTask)] == [three]


def test_slurm_s_part_is_told(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (HostCapacity(host="hpc", slots={"parallel": 10}, user_runs=5),)},
    )
    stage.submit(driver="sbatch")
    stage.up(SLURM)
    token = stage.token()
    said = BatchState(cluster="hpc", job_id="4711", state="COMPLETING")
    stage.reports(kit.replace(kit.ending(token, 3), batch=said), key=SLURM)
    assert told(stage)["jobStatusMessage"] == (
        "its command ended: exit code 3; waiting for Slurm to finish the job (its epilog, or a slurmstepd that hangs), since 2023-11-14 22:13:21 UTC"
    )
    answer = asked_why(stage)
    assert answer["cause"] == "ending" and answer["sentence"].startswith(
        "its command ended: exit code 3; waiting for Slurm"
    )
    assert "scontrol show job 4711   # on hpc: shows the job in Slurm" in answer["try"]


def test_the_events_say_it(kit):
    stage, token = runs(kit)
    stage.reports(kit.ending(token, 3))
    stage.cancel()
    exited, late = (e for _, e in stage.log if isinstance(e, TaskExited | LateStopRequested))
    assert (
        sentence(exited)
        == f"task main/0 of run {token.serial} attempt 1: command ended: exit code 3; other processes are still alive"
    )
    assert sentence(late) == (
        f"stop of run {token.serial} requested (cancel) by user0001 after its command had ended; the result does not change"
    )


def test_on_the_wire_it_is_what_older_supervisors_take_for_running(kit):
    execution = kit.ending(Token(kit.jid_of(), 1, 1, "main", 0), 3)
    assert (execution.state, execution.ending, kit.running(execution.token).ending) == (
        "running",
        True,
        False,
    )
    assert "ending" not in Execution.__struct_fields__
    assert not kit.ended(execution.token).ending
