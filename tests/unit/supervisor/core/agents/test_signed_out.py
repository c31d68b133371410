"""Agents on clusters whose user is signed out: the driver is not called in vain, no run fails and
no run is lost.
"""

import msgspec
import pytest

from jobscribe.db.events.events import AgentSignInNeeded, RunEnded
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import (
    AgentConnected,
    DriverFailed,
    DriverFound,
    DriverStarted,
    HostChanged,
    RequireAgent,
    SignedIn,
    SignedOut,
    SignInNeeded,
)
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status

KEY = AgentKey("sbatch", "parallel", "user0001", "hpc")
SENTENCE = "nobody has signed in to hpc as this user since the supervisor was started"


@pytest.fixture
def stage(kit):
    return kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (HostCapacity(host="hpc", slots={"parallel": 10}, user_runs=5),)},
        queue_limit_secs=None,
        agent_start_tries=2,
    )


def view(stage):
    return stage.world.agent(KEY)


def needed(stage, attempt=None):
    stage.tell(
        SignInNeeded(KEY, attempt if attempt is not None else view(stage).record.attempt, SENTENCE)
    )


@pytest.fixture
def out(stage):
    """A run waits, and its user is signed out."""
    stage.submit(driver="sbatch")
    needed(stage)
    return stage


def told(stage, n=1):
    return status(stage.world, stage.job(n), 1, stage.now())


def starts(stage):
    return [e.attempt for e in stage.asked(fx.StartAgent)]


# ---- signed out: no attempts, no failures


def test_a_run_waits_for_the_sign_in_and_is_told_where(out):
    assert view(out).phase == "signed_out"
    reply = told(out)
    assert (reply["state"], reply["queueState"]) == ("pending", "sign_in")
    assert (
        reply["jobStatusMessage"] == f"it waits until its user signs in to hpc: {SENTENCE}"
        and reply["signInTo"] == "hpc"
    )
    assert out.agent_events(KEY) == ["AgentStartRequested", "AgentSignInNeeded"]
    assert (
        out.record(KEY).starting is False
        and out.record(KEY).token_hashes == ()
        and out.record(KEY).last_failure is None
    )


def test_no_timer_no_retry_no_failure_however_often_it_is_needed(out):
    assert view(out).failures == 0 and not [
        t for t in out.clock if isinstance(t, timers.AgentTimer)
    ]
    for n in range(2, 6):
        out.submit(n, driver="sbatch")
        assert starts(out) == [] and told(out, n)["queueState"] == "sign_in"
    assert told(out, 3)["jobStatusMessage"].endswith("; 2 of this user's runs are ahead")
    out.fire(timers.AgentStartDeadline(KEY, 1))
    out.fire(timers.AgentStartRetry(KEY, 1))
    out.fire(timers.AgentReturnDeadline(KEY))
    assert view(out).phase == "signed_out" and not any(isinstance(e, RunEnded) for _, e in out.log)
    for _ in range(5):
        out.tell(SignedIn(KEY))
        needed(out)
    assert view(out).failures == 0 and out.state() == ("pending", None), (
        "sign-ins that help nothing are no failures either"
    )


def test_a_word_about_another_start_changes_nothing(stage):
    stage.submit(driver="sbatch")
    needed(stage, attempt=7)
    assert view(stage).phase == "starting"
    stage.started(KEY)
    needed(stage)  # late: the start has succeeded
    assert view(stage).phase == "starting" and stage.agent_events(KEY)[-1] == "AgentStarted"
    stage.connect(KEY)
    needed(stage)
    assert view(stage).phase == "up" and AgentSignInNeeded not in [type(e) for _, e in stage.log]


# ---- after the sign-in


def test_after_the_sign_in_it_is_started_at_once(out):
    out.tell(SignedIn(KEY))
    assert starts(out) == [2] and view(out).phase == "starting"
    out.up(KEY)
    assert [e.key for e in out.asked(fx.LaunchTask)] == [KEY]


def test_after_the_sign_in_what_was_started_before_is_looked_for_at_once(stage, kit):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    stage.disconnect(KEY)
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    assert view(stage).phase == "signed_out" and view(stage).record.handle is not None
    stage.tell(SignedIn(KEY))
    assert [(e.key, e.handle) for e in stage.asked(fx.FindAgent)] == [(KEY, {"pid": 9})]
    stage.tell(DriverFound(KEY, "gone", "x"))
    assert starts(stage) == [2], "what is gone is started anew, and adopts what the old one left"


def test_an_agent_that_connects_by_itself_is_up(stage, kit):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    token = stage.token()
    stage.disconnect(KEY)
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    stage.connect(KEY, kit.running(token))
    assert (
        view(stage).phase == "up"
        and stage.state() == ("running", None)
        and told(stage)["known"] is True
    )
    assert "signInTo" not in told(stage)


def test_a_sign_in_that_was_faster_than_the_answer_counts(stage):
    stage.submit(driver="sbatch")
    stage.tell(SignedIn(KEY))  # during a start that began before the sign-in
    needed(stage)
    assert view(stage).phase == "starting" and starts(stage) == [2]
    needed(stage)
    assert view(stage).phase == "signed_out", "once"


def test_the_same_while_it_is_looked_for(stage):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    stage.disconnect(KEY)
    stage.tell(SignedIn(KEY))
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    assert [type(e) for e in stage.asked(fx.FindAgent)] == [fx.FindAgent] and view(
        stage
    ).phase == "finding"
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    assert view(stage).phase == "signed_out"


def test_a_sign_in_long_ago_counts_for_no_later_word(stage):
    stage.submit(driver="sbatch")
    stage.tell(SignedIn(KEY))
    stage.up(KEY)
    stage.disconnect(KEY)
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    assert view(stage).phase == "signed_out"


def test_after_a_failed_start_a_sign_in_does_not_wait_for_its_pause(stage):
    stage.submit(driver="sbatch")
    stage.tell(DriverFailed(KEY, 1, "no route"))
    assert timers.AgentStartRetry(KEY, 1) in stage.clock
    stage.tell(SignedIn(KEY))
    assert starts(stage) == [2] and timers.AgentStartRetry(KEY, 1) not in stage.clock


def test_a_sign_in_that_nobody_waits_for_starts_nothing_and_leaves_nothing(stage):
    stage.tell(SignedIn(KEY))
    assert stage.effects == [] and stage.log == []
    stage.world.forget_idle()
    assert KEY not in stage.world.agents


def test_a_run_that_is_canceled_meanwhile_leaves_nothing(out):
    out.cancel()
    assert out.state() == ("canceled", "cancel") and out.left() == {}
    out.world.forget_idle()
    assert KEY not in out.world.agents
    out.tell(SignedIn(KEY))
    assert starts(out) == []


def test_its_queue_limit_counts_while_it_waits_for_the_sign_in(stage):
    stage.submit(driver="sbatch", queue_limit_secs=50.0)
    needed(stage)
    stage.fire(timers.QueueLimit(stage.job().jid, stage.job().run.serial))
    assert stage.state() == ("canceled", "queueLimit") and stage.left() == {}


# ---- a restart of the supervisor


def test_a_restart_in_between_loses_nothing(out):
    out.restarted()
    assert starts(out) == [2]
    needed(out)
    assert told(out)["queueState"] == "sign_in"
    out.restarted()
    out.tell(SignedIn(KEY))  # before the driver has answered
    needed(out)
    out.up(KEY)
    assert [e.key for e in out.asked(fx.LaunchTask)] == [KEY]


def test_a_restart_while_its_job_runs_and_nobody_is_signed_in(stage, kit):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    token = stage.token()
    batch = BatchState(cluster="hpc", job_id="17", state="RUNNING", nodes="n1")
    stage.reports(kit.replace(kit.running(token), batch=batch), key=KEY)
    stage.pass_time(5)
    stage.restarted()
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    reply = told(stage)
    assert (reply["state"], reply["known"], reply["since"]) == ("running", False, kit.WALL + 5)
    assert reply["jobStatusMessage"] == (
        "it runs on n1 of hpc (Slurm job 17); its state is unknown since 2023-11-14 22:13:25 UTC: its user must sign in to hpc: "
        + SENTENCE
    )
    assert reply["signInTo"] == "hpc"
    # the task went on and ended, and its agent reconnects by itself
    stage.connect(
        KEY,
        kit.replace(
            kit.ended(token), exit=msgspec.structs.replace(kit.ended(token).exit, batch=batch)
        ),
    )
    assert stage.state() == ("completed", "exit")


def test_what_was_never_heard_of_before_a_restart_is_sent_again_after_the_sign_in(stage):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    token = stage.token()
    stage.restarted()
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    assert told(stage)["queueState"] == "starting"
    stage.tell(SignedIn(KEY))
    stage.tell(DriverFound(KEY, "alive", "x"))
    stage.connect(KEY)
    assert [e.token for e in stage.asked(fx.LaunchTask)] == [token]


# ---- pending requests for the agent


def test_whoever_waits_for_its_answer_is_told_to_sign_in(stage):
    stage.tell(RequireAgent(91, KEY), RequireAgent(92, KEY))
    needed(stage)
    refused = {e.handle: e.refusal for e in stage.asked(fx.ReplyRefusal)}
    assert {h: (r.code, r.http, r.sentence, r.more) for h, r in refused.items()} == {
        h: ("signInNeeded", 401, SENTENCE, {"cluster": "hpc"}) for h in (91, 92)
    }
    assert view(stage).wanted == [] and stage.left() == {}
    stage.submit(driver="sbatch")  # a run needs the agent, forgotten meanwhile or not
    needed(stage) if view(stage).phase == "starting" else None
    stage.tell(RequireAgent(93, KEY))
    assert stage.refusal() == "signInNeeded" and view(stage).wanted == []
    stage.tell(SignedIn(KEY), RequireAgent(94, KEY))
    stage.up(KEY)
    assert [e.handle for e in stage.asked(fx.AgentReady)] == [94]


# ---- canceling and ending


def test_what_did_not_connect_and_cannot_be_ended_waits_too(stage):
    stage.submit(driver="sbatch")
    stage.started(KEY)
    stage.fire(timers.AgentStartDeadline(KEY, 1))
    assert view(stage).phase == "stopping" and stage.asked(fx.StopAgent)
    stage.tell(SignInNeeded(KEY, None, SENTENCE))
    assert (
        view(stage).phase == "signed_out" and timers.AgentStartDeadline(KEY, 1) not in stage.clock
    )
    stage.connect(KEY)
    assert view(stage).phase == "up", "it may connect all the same"


def test_what_nobody_needs_and_cannot_be_ended_is_left_alone(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (HostCapacity(host="hpc", slots={"parallel": 1}),)},
        agent_idle_secs={"sbatch": 5.0},
    )
    stage.submit(driver="sbatch")
    stage.up(KEY)
    stage.end(stage.token())
    stage.pass_time(10)
    stage.fire(timers.AgentIdleDeadline(KEY))
    assert view(stage).phase == "leaving"
    stage.fire(timers.AgentLeaveDeadline(KEY))
    stage.tell(SignInNeeded(KEY, None, SENTENCE))
    assert view(stage).phase == "signed_out" and timers.AgentLeaveDeadline(KEY) not in stage.clock
    stage.submit(2, driver="sbatch")
    assert told(stage, 2)["queueState"] == "sign_in"
    stage.tell(SignedIn(KEY))
    assert [e.key for e in stage.asked(fx.FindAgent)] == [KEY]


def test_a_cluster_that_cannot_be_asked_comes_first(out):
    out.tell(HostChanged("sbatch", "hpc", False, "its login nodes do not answer"))
    assert told(out)["queueState"] == "host_down"
    out.tell(SignedIn(KEY))
    assert starts(out) == []
    out.tell(HostChanged("sbatch", "hpc", True, "x"))
    assert starts(out) == [2]


def test_a_gang_waits_for_the_sign_in_and_holds_nothing(stage, kit):
    stage.gang(kit.role("a", 3), driver="sbatch")
    needed(stage)
    assert (
        told(stage)["queueState"] == "sign_in"
        and not stage.world.holds
        and not stage.world.slots.claims
    )
    stage.tell(SignedIn(KEY))
    stage.up(KEY)
    assert len(stage.tokens()) == 3


def test_the_words_of_a_driver_that_knows_no_sign_in_are_as_ever(stage, kit):
    stage.submit(driver="sbatch")
    stage.tell(DriverStarted(KEY, 1, {"pid": 9}))
    stage.connect(KEY)
    stage.disconnect(KEY)
    stage.found("unknown", KEY)
    assert view(stage).phase == "away"
    stage.tell(AgentConnected(KEY, stage.epochs[KEY] + 1, kit.alive(KEY)))
    assert view(stage).phase == "up"


# ---- signing out


def test_after_a_sign_out_another_unix_user_may_come(stage):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    stage.end(stage.token())
    stage.disconnect(KEY)
    stage.tell(SignedOut(KEY))
    assert view(stage).record.handle is None and stage.agent_events(KEY)[-1] == "AgentGone"
    stage.submit(2, driver="sbatch")
    assert starts(stage) == [2] and not stage.asked(fx.FindAgent)


def test_after_a_sign_out_runs_in_the_cluster_keep_their_agent(stage):
    stage.submit(driver="sbatch")
    stage.up(KEY)
    stage.disconnect(KEY)
    stage.tell(DriverFound(KEY, "unknown", SENTENCE, sign_in=True))
    stage.tell(SignedOut(KEY))
    assert view(stage).record.handle is not None and view(stage).phase == "signed_out"
