"""Agent reports compared with the log: every difference, in every order."""

import msgspec
import pytest

from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.messages import LogChunk, OpError, RunStatusUpdate, Snapshot
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import AgentConnected, AgentMessage, FramesLost
from jobscribe.supervisor.core.runs.outcome import SHUTDOWN


def placed(kit, **policy):
    stage = kit.Stage(**policy)
    stage.submit()
    stage.up()
    return stage, stage.token()


def started(kit, **policy):
    stage, token = placed(kit, **policy)
    stage.reports(kit.running(token))
    return stage, token


# ---- one report


def test_accepted_and_not_started_sets_the_deadline_anew(kit):
    stage, token = placed(kit)
    stage.reports(kit.starting(token))
    assert timers.LaunchDeadline(token) in stage.cleared()
    assert stage.timers() == {timers.LaunchDeadline(token): stage.policy.op_reply_secs}
    assert stage.state()[0] == "pending"


def test_a_stopped_one_that_has_not_started_yet_is_told_again(kit):
    """The supervisor was killed after the cancel was acknowledged. The agent is still about to
    start the task.
    """
    stage, token = placed(kit)
    stage.cancel()
    stage.restart()
    stage.connect(None, kit.starting(token))
    assert [m.token for m in stage.asked(fx.StopTask)] == [token]


def test_running(kit):
    stage, token = started(kit)
    assert stage.state() == ("running", None)
    task = stage.job().run.live_tasks[0]
    assert (task.pid, task.start_ticks, task.host, task.boot_id) == (100, 700, "node1", "boot1")
    assert timers.LaunchDeadline(token) in stage.cleared()
    stage.reports(kit.running(token), kit.running(token))
    assert stage.events().count("TaskStarted") == 1


def test_running_without_saying_when(kit):
    stage, token = placed(kit)
    stage.reports(kit.replace(kit.running(token), started_at=None, start_ticks=None))
    task = stage.job().run.live_tasks[0]
    assert (task.started_at, task.start_ticks) == (stage.wall, 0)


def test_running_without_a_pid_starts_nothing_in_the_books(kit):
    stage, token = placed(kit)
    stage.reports(kit.replace(kit.running(token), pid=None))
    assert stage.state()[0] == "pending"


@pytest.mark.parametrize(
    ("exit_", "status", "reason", "error"),
    [
        (ExitInfo(code=0), "completed", "exit", None),
        (ExitInfo(code=3), "error", "exit", "exit code 3"),
        (
            ExitInfo(signal=9, core_dumped=True),
            "error",
            "signal",
            "ended by signal 9 (SIGKILL), core dumped",
        ),
        (ExitInfo(signal=250), "error", "signal", "ended by signal 250 (signal 250)"),
        (ExitInfo(code=0, stop_reason="timeLimit"), "canceled", "timeLimit", None),
        (ExitInfo(code=0, stop_reason="cancel"), "canceled", "cancel", None),
        (ExitInfo(signal=15, stop_reason="shutdown"), "error", "shutdown", SHUTDOWN),
        (
            ExitInfo(source="start", detail="no such command"),
            "error",
            "startFailed",
            "could not be started: no such command",
        ),
        (
            ExitInfo(source="start", code=0, detail="x"),
            "error",
            "startFailed",
            "could not be started: x",
        ),
        (ExitInfo(source="lost", detail="gone"), "error", "lost", "exit status unknown: gone"),
        (
            ExitInfo(source="lost", code=0, detail="gone"),
            "error",
            "lost",
            "exit status unknown: gone",
        ),
        (ExitInfo(source="script", code=0), "completed", "exit", None),
        (
            None,
            "error",
            "lost",
            "exit status unknown: the agent reported its end without an exit status",
        ),
    ],
)
def test_ended(kit, exit_, status, reason, error):
    stage, token = started(kit)
    stage.reports(kit.replace(kit.ended(token), exit=exit_))
    assert stage.state() == (status, reason)
    assert stage.job().run.error == error
    assert stage.events()[-3:] == ["TaskEnded", "AttemptEnded", "RunEnded"]
    assert stage.job().run.attempts[0].reason == reason
    assert [m.tokens for m in stage.asked(fx.AcknowledgeTasks)] == [(token,)]
    assert stage.cleared() >= {
        timers.LaunchDeadline(token),
        timers.TimeLimit(token),
        timers.StopReminder(token),
    }
    assert stage.world.slots.pools == {}
    assert stage.world.agent(kit.key_of()).placed == set()


def test_start_and_end_in_one_word(kit):
    stage, token = placed(kit)
    stage.reports(kit.ended(token))
    assert stage.events()[-4:] == ["TaskStarted", "TaskEnded", "AttemptEnded", "RunEnded"]
    assert stage.job().run.started_at == kit.WALL


def test_start_and_end_in_one_word_without_times(kit):
    stage, token = placed(kit)
    stage.reports(kit.replace(kit.ended(token), exit=ExitInfo(code=0), start_ticks=None))
    assert stage.job().run.started_at == stage.wall


def test_never_started(kit):
    stage, token = placed(kit)
    stage.reports(kit.ended(token, None, pid=None, source="start", detail="x"))
    assert stage.events()[-3:] == ["TaskEnded", "AttemptEnded", "RunEnded"]
    assert stage.job().run.started_at is None


def test_an_end_that_was_recorded_before_is_only_acknowledged(kit):
    stage, token = started(kit)
    stage.reports(kit.ended(token, 0))
    before = len(stage.log)
    stage.reports(kit.ended(token, 7))
    assert len(stage.log) == before
    assert stage.state() == ("completed", "exit")
    assert [m.tokens for m in stage.asked(fx.AcknowledgeTasks)] == [(token,)]


def test_the_acknowledgement_belongs_to_the_transaction_that_records_the_end(kit):
    """Effects are executed when the events of their decision are durable, so both must be in one
    decision.
    """
    stage, token = started(kit)
    decision = stage.tell(
        AgentMessage(kit.key_of(), 1, RunStatusUpdate(execution=kit.ended(token)))
    )
    assert any(type(e).__name__ == "TaskEnded" for w in decision.writes for e in w.events)
    assert any(isinstance(e, fx.AcknowledgeTasks) for e in decision.effects)


def test_what_runs_although_it_ended_in_the_log_is_stopped(kit):
    stage, token = started(kit)
    stage.reports(kit.ended(token))
    stage.reports(kit.running(token))
    assert stage.counted() == ["staleSerial"]
    (op,) = stage.asked(fx.StopTask)
    assert (op.token, op.grace_secs) == (token, 0.0)
    assert stage.state() == ("completed", "exit")


@pytest.mark.parametrize("state", ["starting", "running"])
def test_what_the_log_never_knew_is_stopped(kit, state):
    stage, _ = started(kit)
    ghost = Token(kit.jid_of(77), 5, 1, "main", 0)
    stage.reports(getattr(kit, state)(ghost))
    assert [m.token for m in stage.asked(fx.StopTask)] == [ghost]
    stage.reports(kit.ended(ghost))
    assert [m.tokens for m in stage.asked(fx.AcknowledgeTasks)] == [(ghost,)]


def test_an_agent_speaks_for_its_own_user_only(kit):
    stage, _ = started(kit)
    stage.submit(1, uid=kit.OTHER_UID)
    stage.up(kit.key_of(kit.OTHER_UID))
    stage.reports(kit.ended(stage.token(1)))
    foreign = stage.token(1, kit.OTHER_UID)
    before = len(stage.log)
    stage.reports(kit.ended(foreign))
    assert stage.counted() == ["foreignToken"]
    assert [(e.key, e.epoch) for e in stage.asked(fx.EndConnection)] == [(kit.key_of(), 1)]
    stage.snapshot(kit.key_of(), kit.ended(foreign), kit.ended(foreign))
    assert stage.counted() == ["foreignToken"]
    assert len(stage.log) == before
    assert stage.state(1, kit.OTHER_UID)[0] == "pending"


def test_an_agent_of_the_same_user_does_not_speak_for_the_other_kind(kit):
    stage, token = started(kit)
    other = kit.key_of(kind="parallel")
    stage.submit(2, job_run_mode="parallel")
    stage.up(other)
    before = len(stage.log)
    stage.reports(kit.ended(token), key=other)
    assert stage.counted() == ["foreignToken"]
    assert len(stage.log) == before


def test_errors_of_ops_are_counted_and_readers_answers_left_to_the_shell(kit):
    stage, _ = started(kit)
    stage.says(OpError(op_id="o" * 32, code="malformed", error="what?"))
    assert stage.counted() == ["opError"]
    stage.says(LogChunk(op_id="o" * 32, offset=0, next_offset=0, data=b""))
    stage.says(kit.alive(kit.key_of()))
    assert stage.effects == []


# ---- snapshots


def test_not_received_is_sent_again_and_lost_is_lost(wide, kit):
    """Two of each kind, so that neither order nor count matters."""
    stage = wide
    for n in (1, 2, 3, 4):
        stage.submit(n)
    stage.up()
    tokens = {n: stage.token(n) for n in (1, 2, 3, 4)}
    stage.reports(kit.running(tokens[3]), kit.running(tokens[4]))
    stage.disconnect()
    stage.connect()
    assert {m.token for m in stage.asked(fx.LaunchTask)} == {tokens[1], tokens[2]}
    assert {
        timers.LaunchDeadline(tokens[1]),
        timers.LaunchDeadline(tokens[2]),
    } <= stage.timers().keys()
    for n in (3, 4):
        assert stage.state(n) == ("error", "lost")
        assert stage.job(n).run.exit.source == "lost"
    for n in (1, 2):
        assert stage.state(n) == ("pending", None)
        assert stage.token(n) == tokens[n], "the same token: started at most once"


def test_a_first_snapshot_without_what_runs_is_asked_for_again(wide, kit):
    """The snapshot may be the last message of an agent that was replaced. A stopped agent does not
    answer the second request.
    """
    stage = wide
    stage.submit(1)
    stage.up()
    token = stage.token(1)
    stage.reports(kit.running(token))
    stage.disconnect()
    stage.open(kit.key_of())
    stage.snapshot(kit.key_of())
    assert [f.key for f in stage.asked(fx.ListTasks)] == [kit.key_of()]
    assert (stage.state(1), stage.world.agent(kit.key_of()).synced) == (("running", None), False)
    stage.disconnect()
    stage.connect(None, kit.running(token))
    assert stage.state(1) == ("running", None)


@pytest.mark.parametrize(
    "says", ["nothing", "it never started", "it was stopped before it started"]
)
def test_what_was_placed_before_a_reboot_may_have_run(wide, kit, says):
    """Its evidence may have been lost in the power failure, so the task is not started again."""
    stage = wide
    stage.submit(1)
    stage.up()
    token = stage.token(1)
    stage.disconnect()
    key = kit.key_of()
    stage.epochs[key] += 1
    stage.tell(
        AgentConnected(
            key, stage.epochs[key], msgspec.structs.replace(kit.alive(key), boot_id="after")
        )
    )
    known = (
        ()
        if says == "nothing"
        else (
            kit.ended(
                token,
                None,
                pid=None,
                source="start",
                stop_reason="cancel" if "stopped" in says else None,
            ),
        )
    )
    stage.snapshot(key, *known)
    assert stage.asked(fx.LaunchTask) == []
    assert stage.state(1) == (("canceled", "cancel") if "stopped" in says else ("error", "lost"))
    assert stage.job(1).run.exit.source == "lost"


def test_stopped_and_not_received_is_told_never_to_start(kit):
    stage, token = placed(kit)
    stage.cancel()
    stage.disconnect()
    stage.connect()
    assert stage.asked(fx.LaunchTask) == []
    (op,) = stage.asked(fx.StopTask)
    assert (op.token, op.reason) == (token, "cancel")
    stage.reports(
        kit.ended(token, None, pid=None, source="start", detail="it was not to be started")
    )
    assert stage.state() == ("canceled", "cancel")
    assert not stage.job().busy


def test_superseded_and_not_received_is_told_never_to_start(kit):
    stage, token = placed(kit)
    stage.cancel()
    stage.submit(force=True)
    stage.disconnect()
    stage.connect()
    assert [m.token for m in stage.asked(fx.StopTask)] == [token]
    assert stage.asked(fx.LaunchTask) == []
    stage.reports(kit.ended(token, None, pid=None, source="start", detail="x"))
    assert stage.asked(fx.LaunchTask)[0].token.serial > token.serial


def test_a_start_of_a_superseded_run_is_recorded_once_and_folded(kit):
    """The start message was under way when the run was canceled and its successor submitted."""
    stage, token = placed(kit)
    stage.cancel()
    stage.submit(force=True)
    for _ in range(3):
        stage.reports(kit.running(token))
        assert [m.token for m in stage.asked(fx.StopTask)] == [token]
    assert stage.events().count("TaskStarted") == 1
    assert stage.job().task(token).pid == 100
    stage.disconnect()
    stage.connect()
    assert stage.events().count("TaskEnded") == 1, "it had started and is gone: lost"
    assert not stage.job().history[0].live_tasks


def test_news_in_a_snapshot(wide, kit):
    stage = wide
    for n in (1, 2, 3):
        stage.submit(n)
    stage.up()
    t1, t2, t3 = (stage.token(n) for n in (1, 2, 3))
    stage.disconnect()
    stage.submit(4)
    stage.connect(None, kit.running(t1), kit.ended(t2, 4), kit.starting(t3))
    assert stage.state(1) == ("running", None)
    assert stage.state(2) == ("error", "exit")
    assert stage.state(3) == ("pending", None)
    assert [m.tokens for m in stage.asked(fx.AcknowledgeTasks)] == [(t2,)]
    assert [m.token for m in stage.asked(fx.LaunchTask)] == [stage.token(4)], (
        "then it gets the work that waited"
    )


def test_a_stopped_one_that_still_runs_is_told_again(kit):
    stage, token = started(kit)
    stage.cancel()
    stage.disconnect()
    stage.connect(None, kit.running(token))
    assert [m.token for m in stage.asked(fx.StopTask)] == [token]


def pages(stage, *which, number=50, total=3, executions=()):
    for page in which:
        stage.says(
            Snapshot(
                number=number,
                page=page,
                last=page == total - 1,
                executions=executions if page == 0 else (),
            )
        )


def test_a_snapshot_in_pages_counts_when_it_is_complete(kit):
    stage, token = started(kit)
    stage.disconnect()
    stage.open(kit.key_of())
    pages(stage, 0, 1, executions=(kit.ended(token),))
    assert stage.state() == ("running", None)
    assert not stage.world.agent(kit.key_of()).synced
    pages(stage, 2)
    assert stage.state() == ("completed", "exit")
    assert stage.world.agent(kit.key_of()).synced
    assert stage.world.agent(kit.key_of()).snapshot == {}


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (2,), (0, 1, 1, 2)])
def test_pages_out_of_order_conclude_nothing_and_ask_for_a_new_snapshot(kit, order):
    stage, token = started(kit)
    stage.disconnect()
    stage.open(kit.key_of())
    asked = 0
    for page in order:
        pages(stage, page)
        asked += len(stage.asked(fx.ListTasks))
    assert asked >= 1
    assert stage.state() == ("running", None)
    assert not stage.world.agent(kit.key_of()).synced
    stage.says(Snapshot(number=51, page=0, last=True, executions=(kit.ended(token),)))
    assert stage.state() == ("completed", "exit")


def test_pages_of_two_snapshots_are_not_mixed(kit):
    stage, token = started(kit)
    stage.disconnect()
    stage.open(kit.key_of())
    pages(stage, 0, 1, number=50, executions=(kit.running(token),))
    pages(stage, 2, number=51)
    assert len(stage.asked(fx.ListTasks)) == 1
    assert not stage.world.agent(kit.key_of()).synced
    pages(stage, 0, 1, 2, number=52, executions=(kit.running(token),))
    assert stage.world.agent(kit.key_of()).synced


def test_a_new_snapshot_begins_before_the_old_one_is_complete(kit):
    stage, token = started(kit)
    stage.disconnect()
    stage.open(kit.key_of())
    pages(stage, 0, number=50, executions=(kit.ended(token, 9),))
    pages(stage, 0, 1, 2, number=51, executions=(kit.running(token),))
    assert stage.state() == ("running", None)
    assert stage.world.agent(kit.key_of()).synced


def test_a_new_connection_forgets_half_a_snapshot(kit):
    stage, token = started(kit)
    stage.open(kit.key_of())
    pages(stage, 0, 1, number=50, executions=(kit.running(token),))
    stage.open(kit.key_of())
    pages(stage, 2, number=50)
    assert stage.asked(fx.ListTasks)
    assert stage.state() == ("running", None)


def test_a_snapshot_that_is_said_again_is_not_news(kit):
    """The old snapshot predates the start of this task, so it is outdated."""
    stage, token = placed(kit)
    old = Snapshot(number=50, page=0, last=True, executions=())
    stage.says(old)
    stage.reports(kit.running(token))
    stage.says(old)
    assert stage.state() == ("running", None)
    stage.says(kit.replace(old, number=51))
    assert stage.state() == ("error", "lost")


def test_snapshot_numbers_begin_anew_with_a_connection(kit):
    stage, token = started(kit)
    stage.says(Snapshot(number=50, page=0, last=True, executions=(kit.running(token),)))
    stage.open(kit.key_of())
    stage.says(Snapshot(number=1, page=0, last=True, executions=(kit.ended(token),)))
    assert stage.state() == ("completed", "exit")


# ---- gaps and deadlines


def test_a_gap_asks_for_everything(kit):
    stage, _ = started(kit)
    stage.tell(FramesLost(kit.key_of(), 1))
    assert len(stage.asked(fx.ListTasks)) == 1
    stage.tell(FramesLost(kit.key_of(), 0))
    assert stage.effects == []
    stage.disconnect()
    stage.tell(FramesLost(kit.key_of(), 1))
    assert stage.effects == []


def test_no_word_on_an_op_asks_for_a_snapshot_and_goes_on_waiting(kit):
    stage, token = placed(kit)
    stage.fire(timers.LaunchDeadline(token))
    assert len(stage.asked(fx.ListTasks)) == 1
    assert timers.LaunchDeadline(token) in stage.timers()
    stage.snapshot(kit.key_of())
    assert [m.token for m in stage.asked(fx.LaunchTask)] == [token]
    stage.disconnect()
    stage.fire(timers.LaunchDeadline(token))
    assert stage.asked(fx.ListTasks) == []
    assert timers.LaunchDeadline(token) in stage.timers()


def test_a_deadline_of_what_has_started_or_ended_does_nothing(kit):
    stage, token = started(kit)
    stage.fire(timers.LaunchDeadline(token))
    assert stage.effects == []
    stage.reports(kit.ended(token))
    stage.fire(timers.LaunchDeadline(token))
    stage.fire(timers.LaunchDeadline(Token(kit.jid_of(77), 5, 1, "main", 0)))
    assert stage.effects == []


def test_placed_before_the_restart_and_never_received(kit):
    """The supervisor was killed after the placement was durable and before the message was sent."""
    stage, token = placed(kit)
    stage.restart()
    stage.tell(AgentConnected(kit.key_of(), 5, kit.alive(kit.key_of())))
    stage.epochs[kit.key_of()] = 5
    stage.snapshot(kit.key_of())
    assert [m.token for m in stage.asked(fx.LaunchTask)] == [token]


def test_a_task_that_left_the_books_of_its_job_is_not_called_anything(kit):
    """`placed` is a notice; only the log decides which tasks are live."""
    stage, token = started(kit)
    stage.world.agent(kit.key_of()).placed.add(Token(kit.jid_of(77), 5, 1, "main", 0))
    before = len(stage.log)
    stage.snapshot(kit.key_of(), kit.running(token))
    assert len(stage.log) == before


def test_a_first_snapshot_that_does_not_come_whole_is_asked_for_again(kit):
    stage, token = started(kit)
    stage.disconnect()
    stage.open(kit.key_of())
    sync = timers.SnapshotDeadline(kit.key_of(), stage.epochs[kit.key_of()])
    assert stage.timers()[sync] == stage.policy.op_reply_secs
    for _ in range(2):
        stage.fire(sync)
        assert len(stage.asked(fx.ListTasks)) == 1
        assert sync in stage.timers()
    stage.snapshot(kit.key_of(), kit.running(token))
    assert sync in stage.cleared()
    stage.fire(sync)
    assert stage.effects == []
    stage.open(kit.key_of())
    stage.fire(sync)
    assert stage.effects == [], "that was the connection before"
    stage.disconnect()
    stage.fire(timers.SnapshotDeadline(kit.key_of(), stage.epochs[kit.key_of()]))
    assert stage.effects == []
