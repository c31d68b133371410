"""The status of a run as shown to users, in every state, with its numbers."""

import msgspec
import pytest

from jobscribe.db.events.state import Job
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import DriverFailed, Restarted
from jobscribe.supervisor.core.resources.fair_share import Account
from jobscribe.supervisor.core.scheduling.placement import ASKING
from jobscribe.supervisor.core.status.run_status import status


def ask(stage, n=1, **kwargs):
    return status(stage.world, stage.job(n), 7, stage.now(), **kwargs)


def test_there_is_none(stage, kit):
    reply = status(stage.world, Job(jid=kit.jid_of()), 0, stage.now())
    assert reply == {
        "state": "missing",
        "computeJid": kit.jid_of(),
        "reason": "noRun",
        "known": True,
        "over": True,
    }


def test_hash_and_serial_must_fit(stage):
    stage.submit()
    run = stage.job().run
    assert ask(stage, hash_=run.spec.compute_job_hash, serial=run.serial)["state"] == "pending"
    other = ask(stage, hash_="0" * 32)
    assert (other["state"], other["reason"]) == ("missing", "computeJobHash-mismatch")
    other = ask(stage, serial=run.serial + 1)
    assert (other["state"], other["reason"]) == ("missing", "computeJobSerial-mismatch")


def test_a_run_of_before_by_its_serial(stage, kit):
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.cancel()
    stage.submit(force=True)
    before = ask(stage, serial=token.serial)
    assert (before["state"], before["reason"], before["superseded"], before["over"]) == (
        "canceled",
        "cancel",
        True,
        False,
    )
    stage.reports(kit.ended(token))
    assert ask(stage, serial=token.serial)["over"] is True


def test_the_life_of_a_run(stage, kit):
    stage.submit()
    reply = ask(stage)
    assert (
        reply["state"],
        reply["computeJobStart"],
        reply["elapsedTime"],
        reply["attempt"],
        reply["over"],
    ) == (
        "pending",
        None,
        None,
        0,
        False,
    )
    assert reply["position"] == 7
    assert (reply["runDir"], reply["runDirOn"]) == (None, None), "it is not there before the start"
    assert reply["nextRequest"]["computeJobSerial"] == stage.job().run.serial
    assert reply["nextRequestSeconds"] == 1
    stage.up()
    token = stage.token()
    reply = ask(stage)
    assert (reply["queueState"], reply["attempt"]) == ("starting", 1)
    stage.reports(kit.running(token))
    stage.pass_time(12)
    reply = ask(stage)
    assert (reply["runDir"], reply["runDirOn"]) == ("/users/sim00001", None)
    assert (
        reply["state"],
        reply["queueState"],
        reply["jobStatusMessage"],
        reply["elapsedTime"],
    ) == ("running", None, None, 12.0)
    stage.reports(kit.ended(token, 3))
    stage.pass_time(100)
    reply = ask(stage)
    assert (
        reply["state"],
        reply["reason"],
        reply["error"],
        reply["elapsedTime"],
        reply["over"],
    ) == (
        "error",
        "exit",
        "exit code 3",
        1.0,
        True,  # by the clock of the host where the run was, not by the arrival of the report
    )
    assert reply["exit"]["code"] == 3
    assert reply["nextRequestSeconds"] is None
    assert "nextRequest" not in reply


def test_parallel_runs_are_asked_for_less_often(stage):
    stage.submit(job_run_mode="parallel")
    assert ask(stage)["nextRequestSeconds"] == 2


def test_elapsed_is_never_negative(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.wall -= 3600
    assert ask(stage)["elapsedTime"] == 0.0


def test_being_stopped(stage, kit):
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.cancel()
    reply = ask(stage)
    assert (reply["state"], reply["queueState"], reply["over"], reply["nextRequestSeconds"]) == (
        "canceled",
        "stopping",
        False,
        1,
    )
    stage.reports(kit.ended(token))
    reply = ask(stage)
    assert (reply["queueState"], reply["over"]) == (None, True)


@pytest.mark.parametrize(("own", "house"), [(5.0, None), (5.0, 9.0)])
def test_seconds_of_the_limit_that_ended_it(kit, own, house):
    stage = kit.Stage(time_limit_secs=house)
    stage.submit(time_limit_secs=own)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    assert ask(stage)["canceledAfterSecs"] is None
    stage.reports(kit.ended(token, None, signal=15, stop_reason="timeLimit"))
    assert ask(stage)["canceledAfterSecs"] == 5.0


def test_a_cancel_was_no_limit(stage):
    stage.submit(time_limit_secs=5.0)
    stage.cancel()
    assert ask(stage)["canceledAfterSecs"] is None


# ---- unknown state


def test_known_until_its_agent_is_away_and_again_when_it_has_said_everything(stage, kit):
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    assert (ask(stage)["known"], ask(stage)["since"]) == (True, None)
    stage.pass_time(10)
    lost = stage.wall
    stage.disconnect()
    stage.pass_time(10)
    reply = ask(stage)
    assert (reply["state"], reply["known"], reply["since"]) == ("running", False, lost)
    stage.open(kit.key_of())
    assert ask(stage)["known"] is False
    stage.snapshot(kit.key_of(), kit.running(token))
    assert (ask(stage)["known"], ask(stage)["since"]) == (True, None)


def test_after_a_restart_nothing_false_is_said(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.restart()
    stage.pass_time(5)
    assert ask(stage)["known"] is False
    stage.tell(Restarted())
    reply = ask(stage)
    assert (reply["state"], reply["known"], reply["since"]) == ("running", False, stage.wall)


def test_an_agent_nobody_ever_heard_of(stage, kit):
    stage.submit()
    stage.up()
    stage.world.agents.clear()
    reply = ask(stage)
    assert (reply["known"], reply["since"]) == (False, None)


def test_a_queued_run_is_known_without_an_agent(stage):
    stage.submit()
    assert ask(stage)["known"] is True


# ---- why a run waits


def sentence(stage, n=1):
    reply = ask(stage, n)
    return reply["queueState"], reply["jobStatusMessage"]


AT = "2023-11-14 22:13:"


def test_waiting_for_an_agent(stage, kit):
    """The message has the number of the start attempt, its time, the last error, and the other runs
    that wait for the agent.
    """
    key = kit.key_of()
    stage.submit()
    assert sentence(stage) == (
        "agent",
        f"its agent is being started, try 1 of 3, since {AT}20 UTC ({key})",
    )
    stage.pass_time(3)
    stage.tell(DriverFailed(key, 1, "no room"))
    assert sentence(stage) == (
        "agent",
        f"its agent will be started again, try 2 of 3, since {AT}23 UTC ({key}); last failure: no room",
    )
    stage.submit(2)
    assert sentence(stage, 2)[1].endswith("; 1 of this user's runs is ahead")
    stage.fire(timers.AgentStartRetry(key, 1))
    stage.started()
    assert sentence(stage)[1].startswith("its agent is being started, try 2 of 3, since ")
    stage.pass_time(10)
    stage.fire(timers.AgentStartDeadline(key, 2))
    assert sentence(stage)[1].startswith(
        f"its agent did not connect and is being stopped, try 2 of 3, since {AT}33 UTC"
    )
    stage.world.agent(key).phase = "absent"
    assert sentence(stage)[1].startswith("its agent is not started yet")
    stage.open(key)
    assert sentence(stage)[1].startswith("its agent is reporting its tasks, since ")
    stage.pass_time(4)
    stage.disconnect()
    assert sentence(stage)[1].startswith(f"its agent is being located, since {AT}37 UTC")
    stage.found("alive")
    assert sentence(stage)[1].startswith(
        "its agent is alive but not connected (so says the driver: alive), since "
    )
    stage.world.agents.clear()
    assert sentence(stage) == ("agent", f"its agent is not started yet ({key})")


def test_waiting_for_slots_with_numbers(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 2}, op_run_slots={("local", "sequential"): 2}
    )
    stage.submit(0)
    stage.up()
    for n in (1, 2, 3):
        stage.submit(n)
    said = "waiting for another run of this user to end: 2 hold what one user may have"
    assert sentence(stage, 2) == ("op_slot", f"{said} (2 of 2 in use, 0 ahead)")
    stage.reports(kit.running(stage.token(1)))
    assert sentence(stage, 3) == (
        "op_slot",
        f"{said}, the longest since {AT}20 UTC (2 of 2 in use, 1 ahead)",
    )


def test_waiting_for_the_cpu_with_numbers(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 2}, op_run_slots={("local", "sequential"): 5}
    )
    stage.submit(7, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    for n in range(3):
        stage.submit(n)
    stage.up()
    said = "waiting for CPU resources: 1 runs of this user and 1 of others have them"
    assert sentence(stage, 1) == ("cpu_slot", f"{said} (2 of 2 in use, 0 ahead)")
    assert sentence(stage, 2) == ("cpu_slot", f"{said} (2 of 2 in use, 1 ahead)")
    stage.reports(kit.running(stage.token(0)))
    assert sentence(stage, 2) == (
        "cpu_slot",
        f"{said}, the longest since {AT}20 UTC (2 of 2 in use, 1 ahead)",
    )


def test_waiting_behind_more_runs_than_ask_for_slots(kit):
    """The queue position is known although the run is in no pool's queue."""
    stage = kit.Stage(op_run_slots={("local", "sequential"): 500})
    stage.submit(0)
    stage.up()
    stage.tell(*(stage.submission(kit.spec(n)) for n in range(1, ASKING + 9)))
    assert sentence(stage, ASKING)[0] == "cpu_slot"
    n = ASKING + 5
    assert sentence(stage, n) == (
        "op_slot",
        f"waiting behind other runs of this user, the first of which wait for CPU resources ({n - 1} of them ahead)",
    )
    stage.cancel(3)
    assert sentence(stage, n)[1].endswith(f"({n - 2} of them ahead)")


def _many(kit, stage, count, uid=None, first=1000, **fields):
    """Submit `count` runs of one user, whose agent is up."""
    uid = uid or kit.UID
    stage.submit(first - 1, uid=uid, **fields)
    if stage.world.agents[kit.key_of(uid)].phase != "up":
        stage.up(kit.key_of(uid))
    stage.tell(*(stage.submission(kit.spec(first + n, uid, **fields)) for n in range(count - 1)))


def test_all_earlier_runs_that_need_the_same_slots_are_ahead(kit):
    """This includes runs that wait for a slot of their user first, or behind that user's first
    runs. Each of them gets its CPU slot earlier.
    """
    two = {("local", "sequential"): 2}
    stage = kit.Stage(cpu_slots=two, op_run_slots=two)
    _many(kit, stage, 1000)
    stage.world.slots.fair.charge(Account("default", kit.OTHER_UID), 1e6)
    stage.submit(1, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    for left in range(998, 990, -1):
        reply = status(stage.world, stage.job(1, kit.OTHER_UID), 7, stage.now())
        assert reply["queueState"] == "cpu_slot" and reply["jobStatusMessage"].endswith(
            f"(2 of 2 in use, {left} ahead); 1 other user waits, too; whoever used less goes first (this user: 277.78 core hours)"
        )
        done = sorted(stage.world.agents[kit.key_of()].placed)[0]
        stage.reports(kit.running(done))
        stage.reports(kit.ended(done))
        assert not stage.world.agents[kit.key_of(kit.OTHER_UID)].placed, (
            "the runs that are counted do go first"
        )
    stage.submit(2, uid=kit.OTHER_UID)
    stage.disconnect()
    assert sentence_of(stage, kit.OTHER_UID, 2)[1].endswith("(2 of 2 in use, 1 ahead)"), (
        "runs of an agent that is away do not ask"
    )


def sentence_of(stage, uid, n):
    reply = status(stage.world, stage.job(n, uid), 7, stage.now())
    return reply["queueState"], reply["jobStatusMessage"]


def test_runs_with_roles_do_not_count_for_cpu_slots_nor_others_for_their_places(kit):
    one = {("local", "parallel"): 1}
    stage = kit.Stage(
        cpu_slots=one, op_run_slots={("local", "parallel"): 2}, nodes={"local": (kit.node(cpu=2),)}
    )
    for n in range(6):
        stage.gang(kit.role(cpu=2), n=n)
    stage.submit(6, job_run_mode="parallel")
    stage.up(kit.key_of(kind="parallel"))
    stage.world.slots.fair.charge(Account("default", kit.OTHER_UID), 1e6)
    stage.submit(7, uid=kit.OTHER_UID, job_run_mode="parallel")
    stage.submit(8, uid=kit.OTHER_UID, job_run_mode="parallel")
    stage.gang(kit.role(cpu=2), n=9, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID, "parallel"))
    assert "(1 of 1 in use, 1 ahead)" in sentence_of(stage, kit.OTHER_UID, 8)[1]
    stage.reports(
        kit.running(stage.token(7, uid=kit.OTHER_UID)), key=kit.key_of(kit.OTHER_UID, "parallel")
    )
    stage.reports(
        kit.ended(stage.token(7, uid=kit.OTHER_UID)), key=kit.key_of(kit.OTHER_UID, "parallel")
    )
    stage.answer()
    assert sentence_of(stage, kit.OTHER_UID, 9) == (
        "resources",
        "it waits behind 5 runs that go first",
    )


def test_the_place_in_an_array(kit):
    stage = kit.Stage(
        cpu_slots={("local", "sequential"): 9}, op_run_slots={("local", "sequential"): 9}
    )
    runs = [
        msgspec.structs.replace(kit.spec(1), compute_model=f"m{n}", at_once=2) for n in range(5)
    ]
    stage.tell(*map(stage.submission, runs))
    stage.up()
    job = stage.world.jobs[f"{kit.UID}-sim00001-m4"]
    reply = status(stage.world, job, 7, stage.now())
    assert reply["queueState"] == "array_slot" and reply["jobStatusMessage"].endswith(
        "(2 of 2 in use, 2 ahead)"
    )


def test_waiting_while_the_store_cannot_be_written(stage):
    stage.submit()
    said = ask(stage, store_fails_since=stage.wall - 5)["jobStatusMessage"]
    assert said.endswith(f"the event store cannot be written, since {AT}15 UTC")
    assert "store" not in ask(stage)["jobStatusMessage"]


def test_waiting_for_the_run_before(wide, kit):
    stage = wide
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.cancel()
    assert ask(stage)["jobStatusMessage"] == f"its processes are being stopped, since {AT}20 UTC"
    stage.pass_time(2)
    stage.submit(force=True)
    assert sentence(stage) == (
        "run_dir",
        f"waiting for the earlier run of this simulation to end, since {AT}20 UTC",
    )


def test_durable_and_not_yet_placed(stage):
    """The reply shows the durable state; the world may be one step ahead."""
    stage.submit()
    queued = stage.job()
    stage.up()
    reply = status(stage.world, queued, 1, stage.now())
    assert (reply["queueState"], reply["jobStatusMessage"]) == ("starting", "it is being placed")
