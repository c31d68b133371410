"""Reconciler: compares the reports of agents with the log. Level-triggered: only the difference
counts, in any order.

The states of an execution are placed -> started -> (exited) -> ended. A report repeats known facts,
adds new ones, or names an unexpected execution. An ended or unknown execution that still runs is
stopped. An end that is already recorded is acknowledged again. A task that the agent does not know
was never received (it is sent again) or, if it had started, is lost.
"""

from collections.abc import Container
from typing import assert_never

import msgspec

from ....db.events.events import TaskExited, TaskNoticed, TaskStarted, TaskSubmitted
from ....db.events.state import Task
from ....diagnosis.exit_table import diagnose
from ....protocol.clusters.batch import BatchState
from ....protocol.ids import AgentKey, Token
from ....protocol.jobs import progress_report
from ....protocol.jobs.execution_state import ExecutionState
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.notices import MOST_NOTICES, Notices
from ....protocol.wire.messages import (
    Alive,
    CallReply,
    ClusterReport,
    DebuggerOutput,
    Execution,
    FileChunk,
    FileDigest,
    FileList,
    KeeperReport,
    LogChunk,
    OpError,
    PortsProbed,
    RunReport,
    RunStatusUpdate,
    Samples,
    ShellOutput,
    Snapshot,
    Stops,
)
from ..agents import lifecycle
from ..interface import timers
from ..interface.effects import (
    AcknowledgeTasks,
    ClearTimer,
    EndConnection,
    IncrementCounter,
    ListTasks,
    SetTimer,
    StopTask,
)
from ..interface.inputs import AgentMessage, FramesLost
from ..scheduling import dispatch, gang_placement, placement, placement_ahead
from ..state import cluster_assignment
from ..state.agent_phase import AgentPhase
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from ..state.world import owner
from . import attempts, debug_hold, termination

#: It may have run: the keeper's record may not have reached the disk before the power failure.
RESTARTED = "the machine rebooted while it was starting"


def message_received(tx: Transaction, input_: AgentMessage) -> None:
    """Handle one message of an agent's current connection."""
    view = tx.world.agent(input_.key)
    if view.phase == AgentPhase.LEAVING and input_.epoch == view.epoch:
        return  # if the agent stays, it is asked for everything
    if view.phase != AgentPhase.UP or input_.epoch != view.epoch:
        tx.emit(
            IncrementCounter("staleEpoch", f"{input_.key} sent a message on an older connection")
        )
        return
    message = input_.message
    match message:
        case RunStatusUpdate():
            if _own_user(tx, input_, message.execution):
                update(tx, input_.key, message.execution)
        case Snapshot():
            if all(_own_user(tx, input_, e) for e in message.executions):
                _snapshot_page(tx, input_.key, view, message)
        case OpError():
            tx.emit(
                IncrementCounter(
                    "opError", f"{input_.key} o={message.op_id} {message.code}: {message.error}"
                )
            )
        case PortsProbed():
            placement.probed(tx, input_.key, message)
        case KeeperReport():
            lifecycle.keeper_reported(tx, input_.key, message)
        case (
            Alive()
            | LogChunk()
            | CallReply()
            | FileChunk()
            | FileDigest()
            | FileList()
            | Stops()
            | DebuggerOutput()
            | ShellOutput()
            | RunReport()
            | Samples()
            | ClusterReport()
        ):
            # handled outside the core: `Alive` opens a connection, the others answer a reader or
            # are not stored
            pass
        case _:
            assert_never(message)


def frames_lost(tx: Transaction, input_: FramesLost) -> None:
    """Ask for a snapshot because messages were lost."""
    view = tx.world.agent(input_.key)
    if view.phase == AgentPhase.UP and view.epoch == input_.epoch:
        tx.emit(ListTasks(input_.key))


def _own_user(tx: Transaction, input_: AgentMessage, execution: Execution) -> bool:
    """Return whether the execution belongs to the agent's user. If not, end the connection."""
    if owner(execution.token.jid) == input_.key.uid:
        return True
    tx.emit(IncrementCounter("foreignToken", f"{input_.key} reported {execution.token}"))
    tx.emit(EndConnection(input_.key, input_.epoch, "it reported another user's task"))
    return False


def update(tx: Transaction, key: AgentKey, execution: Execution) -> None:
    """Apply the agent's report on one execution."""
    token = execution.token
    task = tx.world.task(token)
    if task is None or not task.live:
        _leftover(tx, key, execution)
        return
    if task.agent_key != key:
        tx.emit(
            IncrementCounter("foreignToken", f"{key} reported {token}, which {task.agent_key} runs")
        )
        return
    if task.held is not None:  # its end is recorded, and it is held for debugging
        _held(tx, task, execution)
        return
    tx.emit(ClearTimer(timers.LaunchDeadline(token)))
    if isinstance(execution.batch, BatchState) and key.driver in tx.world.policy.batch:
        _batch_reported(tx, task, execution.batch)
    match execution.state:
        case ExecutionState.STARTING:
            _record_notices(tx, token, execution.notices)
            if not task.waits_for_slot:
                tx.emit(SetTimer(timers.LaunchDeadline(token), _reply_secs(tx, token)))
            if _must_stop(tx, token):
                termination.repeat_stop(tx, token)
        case ExecutionState.RUNNING:
            _running(tx, task, execution)
        case ExecutionState.ENDED:
            _ended(tx, task, execution)
        case _:
            assert_never(execution.state)


def _held(tx: Transaction, task: Task, execution: Execution) -> None:
    """Handle a report on a held task. Only a batch scheduler has anything left of it: when that is
    gone, the hold ends.
    """
    token, batch = task.token, task.agent_key.driver in tx.world.policy.batch
    if batch and execution.state != ExecutionState.ENDED:
        if isinstance(execution.batch, BatchState):
            tx.world.batch[token] = execution.batch
        return
    if batch:
        if execution.exit is not None:
            _record_notices(tx, token, execution.exit.notices)
        debug_hold.allocation_ended(tx, task)
    tx.emit(AcknowledgeTasks(task.agent_key, (token,)))


def _batch_reported(tx: Transaction, task: Task, report: BatchState) -> None:
    """Record the scheduler's report. The job id goes into the log once; the rest is a notice."""
    tx.world.batch[task.token] = report
    if report.job_id is not None and task.batch is None:
        tx.record(task.token.jid, TaskSubmitted(at=tx.now.wall, token=task.token, batch=report))


def _reply_secs(tx: Transaction, token: Token) -> float:
    """Return the seconds after which the agent is asked about an execution that has not started and
    was not reported.
    """
    policy = tx.world.policy
    return policy.batch_reply_secs if token in tx.world.batch else policy.op_reply_secs


def _leftover(tx: Transaction, key: AgentKey, execution: Execution) -> None:
    """Acknowledge or stop an execution that has ended in the log or is unknown."""
    if execution.state == ExecutionState.ENDED:
        tx.emit(AcknowledgeTasks(key, (execution.token,)))
        return
    tx.emit(
        IncrementCounter(
            "staleSerial", f"{key} runs {execution.token}, which is over or unknown; it is stopped"
        )
    )
    tx.emit(StopTask(key, execution.token, "lost", 0.0))


def _running(tx: Transaction, task: Task, execution: Execution) -> None:
    token = task.token
    view = tx.world.agent(task.agent_key)
    if execution.elapsed_secs is not None:
        tx.world.began[token] = tx.now.mono - execution.elapsed_secs
    pid = execution.pid
    if pid is None and token in tx.world.batch:
        pid = 0  # running according to its scheduler alone
    if task.pid is None and pid is not None:
        tx.record(
            token.jid,
            TaskStarted(
                at=tx.now.wall,
                token=token,
                pid=pid,
                start_ticks=execution.start_ticks or 0,
                started_at=execution.started_at or tx.now.wall,
                host=_host(tx, task, view),
                boot_id=view.boot_id,
            ),
        )
        placement.task_started(tx, token)
    _record_notices(tx, token, execution.notices)
    if execution.exit is not None:
        _exited(tx, token, execution.exit)
        _allocation_held(tx, token, execution.held_until)
    elif _must_stop(tx, token):
        termination.repeat_stop(tx, token)
    else:
        termination.arm_limit(tx, token, execution.elapsed_secs or 0.0)


def _exited(tx: Transaction, token: Token, exit_: ExitInfo) -> None:
    """Record that the command has ended. From now on neither the time limit nor a stop applies,
    however long the cleanup takes.
    """
    exit_ = _without_notices(tx, token, _with_valid_report(tx, exit_))
    task = tx.world.task(token)
    if task is not None and task.exited is None:
        tx.record(token.jid, TaskExited(at=tx.now.wall, token=token, exit=exit_))
    for timer in (timers.TimeLimit, timers.StopReminder):
        tx.emit(ClearTimer(timer(token)))


def _allocation_held(tx: Transaction, token: Token, until: float | msgspec.UnsetType) -> None:
    """Hold a task whose allocation is held. until: unix seconds, if it is."""
    task = tx.world.task(token)
    if until is msgspec.UNSET or task is None or task.exited is None:
        return
    tx.world.began.pop(token, None)
    debug_hold.allocation_held(tx, task, task.exited, until)


def _host(tx: Transaction, task: Task, view: AgentState) -> str:
    """Return the host of the processes. With a batch scheduler this is not the agent's host."""
    report = tx.world.batch.get(task.token)
    return (report.node or report.nodes or view.host) if report is not None else view.host


def _must_stop(tx: Transaction, token: Token) -> bool:
    """Return whether the execution must be stopped: its run was stopped, its attempt was decided,
    or a newer run replaced it.
    """
    run = tx.world.jobs[token.jid].run
    if run is None or run.serial != token.serial or run.stop is not None:
        return True
    return any(a.number == token.attempt and a.decided is not None for a in run.attempts)


def _ended(tx: Transaction, task: Task, execution: Execution) -> None:
    exit_ = execution.exit or ExitInfo(
        source="lost", detail="the agent reported its end without an exit status"
    )
    if execution.successor is not msgspec.UNSET:
        tx.successors[task.token] = execution.successor
    if exit_.source == "start" and _restarted(tx, task):
        exit_ = ExitInfo(source="lost", detail=RESTARTED, stop_reason=exit_.stop_reason)
    finish(tx, task, exit_, pid=execution.pid, start_ticks=execution.start_ticks)
    tx.emit(AcknowledgeTasks(task.agent_key, (task.token,)))


def finish(
    tx: Transaction,
    task: Task,
    exit_: ExitInfo,
    *,
    pid: int | None = None,
    start_ticks: int | None = None,
) -> None:
    """Record that this execution has ended completely, or is held for debugging. If its end is
    lost, a recorded exit of the command counts.
    """
    if task.held is not None:
        debug_hold.allocation_ended(tx, task)
        return
    if exit_.source == "lost" and task.exited is not None:
        exit_ = task.exited
    token, at, exit_ = task.token, tx.now.wall, _with_valid_report(tx, exit_)
    view = tx.world.agent(task.agent_key)
    if task.pid is None and pid is not None:
        # a short execution: start and end arrived in one report
        tx.record(
            token.jid,
            TaskStarted(
                at=at,
                token=token,
                pid=pid,
                start_ticks=start_ticks or 0,
                started_at=exit_.started_at or at,
                host=_host(tx, task, view),
                boot_id=view.boot_id,
            ),
        )
        placement.task_started(tx, token)
    exit_ = _without_notices(tx, token, _with_batch_report(tx, token, exit_))
    tx.world.began.pop(token, None)
    for timer in (timers.LaunchDeadline, timers.TimeLimit, timers.StopReminder):
        tx.emit(ClearTimer(timer(token)))
    if exit_.fault == "subnetTaken":
        gang_placement.avoid_network(tx, task)
    run = tx.world.jobs[token.jid].run
    if run is not None and not run.spec.roles and exit_.started_at and exit_.ended_at:
        placement_ahead.record_duration(view, exit_.ended_at - exit_.started_at)
    diagnosis = diagnose(exit_, tx.world.policy.exits)
    in_batch = task.agent_key.driver in tx.world.policy.batch  # its allocation is gone
    if not in_batch and debug_hold.is_wanted(tx, task, exit_, diagnosis):
        debug_hold.hold(tx, task, exit_, diagnosis)
    else:
        attempts.task_ended(tx, task, exit_, diagnosis)
    run = tx.world.jobs[token.jid].run
    if (
        run is not None
        and run.serial == token.serial
        and cluster_assignment.queue_limit_continues(tx.world.policy, run)
        # other tasks of the attempt may still wait there
        and not cluster_assignment.in_scheduler_queue(tx.world.policy, run)
    ):
        tx.emit(ClearTimer(timers.QueueLimit(token.jid, token.serial)))


def _with_batch_report(tx: Transaction, token: Token, exit_: ExitInfo) -> ExitInfo:
    """Add the scheduler's last report, unless the exit has one."""
    report = tx.world.batch.get(token)
    return (
        exit_
        if report is None or isinstance(exit_.batch, BatchState)
        else msgspec.structs.replace(exit_, batch=report)
    )


def _with_valid_report(tx: Transaction, exit_: ExitInfo) -> ExitInfo:
    """Drop a progress report that is invalid: NaN would differ between memory and log."""
    wrong = None if exit_.report is None else progress_report.find_error(exit_.report)
    if wrong is None:
        return exit_
    tx.emit(IncrementCounter("reportRefused", wrong))
    return msgspec.structs.replace(exit_, report=None)


def _without_notices(tx: Transaction, token: Token, exit_: ExitInfo) -> ExitInfo:
    """Record the notices in an exit as events."""
    if exit_.notices is msgspec.UNSET:
        return exit_
    _record_notices(tx, token, exit_.notices)
    return msgspec.structs.replace(exit_, notices=msgspec.UNSET)


def _record_notices(tx: Transaction, token: Token, told: Notices | msgspec.UnsetType) -> None:
    """Record the notices that are new."""
    for notice in told if isinstance(told, tuple) else ():
        task = tx.world.task(token)
        known = task.notices if task is not None and isinstance(task.notices, tuple) else ()
        if task is not None and notice not in known and len(known) < MOST_NOTICES:
            event = TaskNoticed(at=tx.now.wall, token=token, code=notice.code, text=notice.text)
            tx.record(token.jid, event)


def _snapshot_page(tx: Transaction, key: AgentKey, view: AgentState, page: Snapshot) -> None:
    """Collect the pages of a snapshot. Reconcile after the last one."""
    if page.number <= view.snapshot_done:
        return  # older than the current knowledge
    if page.page == 0:
        view.snapshot_number, view.snapshot_pages, view.snapshot = page.number, 0, {}
    if page.number != view.snapshot_number or page.page != view.snapshot_pages:
        view.snapshot_number = None
        tx.emit(ListTasks(key))
        return
    view.snapshot_pages += 1
    view.snapshot.update({e.token: e for e in page.executions})
    if page.last:
        known, view.snapshot, view.snapshot_number, view.snapshot_done = (
            view.snapshot,
            {},
            None,
            page.number,
        )
        reconcile(tx, key, known)


def reconcile(tx: Transaction, key: AgentKey, known: dict[Token, Execution]) -> None:
    """Compare all executions of the agent with the executions that the log expects on it. After
    that, the agent is synchronised and gets work.
    """
    view = tx.world.agent(key)
    if (
        not view.synced
        and not view.doubted
        and any(_started(tx, token) for token in view.placed - known.keys())
    ):
        # The snapshot may be a late message of an agent that was replaced meanwhile. Ask once more:
        # a stopped agent does not answer.
        view.doubted = True
        tx.emit(ListTasks(key))
        return
    before = {token.jid for token in view.placed}
    dispatch.launch(
        tx,
        key,
        [token for token in _unknown(view, known) if _must_relaunch(tx, key, token)],
    )
    tx.successors |= _find_successors(tx, known)
    # ends first, in order: a run that its agent started in the slot of an ended one gets that slot
    for execution in sorted(
        known.values(), key=lambda e: (e.state != ExecutionState.ENDED, _ended_at(e))
    ):
        update(tx, key, execution)
    dispatch.launch(tx, key, [token for token in sorted(known) if _must_release(tx, known[token])])
    if not view.synced:
        view.news, view.news_since = (
            {jid: job.version for jid, job in tx.touched.items() if jid in before},
            view.unknown_since,
        )
        view.synced, view.unknown_since = True, None
        tx.emit(ClearTimer(timers.SnapshotDeadline(key, view.epoch)))
        placement.agent_up(tx, key)
        lifecycle.ready(tx, key)


def _must_release(tx: Transaction, execution: Execution) -> bool:
    """Return whether the agent may not know that this execution, which waits there, has a slot."""
    task = tx.world.task(execution.token)
    return (
        execution.state == ExecutionState.STARTING
        and task is not None
        and task.live
        and task.ahead
        and not task.waits_for_slot
        and not _must_stop(tx, execution.token)
    )


def _find_successors(tx: Transaction, known: dict[Token, Execution]) -> dict[Token, Token]:
    """Return the started executions that no ended one names as its successor, by the token of the
    one in whose slot they probably started: a keeper that ended did not tell.
    """
    named = {e.successor for e in known.values()}
    started = [
        e
        for e in known.values()
        if e.pid is not None
        and e.token not in named
        and (task := tx.world.task(e.token)) is not None
        and task.waits_for_slot
    ]
    ended = [
        e
        for e in known.values()
        if e.state == ExecutionState.ENDED
        and e.successor is msgspec.UNSET
        and (task := tx.world.task(e.token)) is not None
        and task.live
        and not (task.waits_for_slot and e.pid is None)
    ]
    started.sort(key=lambda e: e.started_at or 0.0)
    ended.sort(key=_ended_at)
    return {
        before.token: after.token
        for before, after in zip(ended, started, strict=False)
        if before is not after
    }


def _ended_at(execution: Execution) -> float:
    return (execution.exit.ended_at if execution.exit is not None else None) or 0.0


def _unknown(view: AgentState, known: Container[Token]) -> list[Token]:
    """Return the placed tasks that the agent does not know, in the order of their launch."""
    return sorted(
        (token for token in view.placed if token not in known),
        key=lambda token: (view.ahead.get((token.jid, token.serial), 0), token),
    )


def _started(tx: Transaction, token: Token) -> bool:
    task = tx.world.task(token)
    return task is not None and task.live and task.pid is not None


def _must_relaunch(tx: Transaction, key: AgentKey, token: Token) -> bool:
    """Handle a task that the agent does not know. Return whether it must be launched again because
    it was never received.
    """
    task = tx.world.task(token)
    if task is None or not task.live:
        return False
    if task.pid is not None:
        finish(
            tx,
            task,
            ExitInfo(
                source="lost",
                detail="its agent no longer knows it",
                started_at=task.started_at,
            ),
        )
        return False
    if _must_stop(tx, token):
        termination.repeat_stop(tx, token)
        return False
    if _restarted(tx, task):
        finish(tx, task, ExitInfo(source="lost", detail=RESTARTED))
        return False
    return True


def _restarted(tx: Transaction, task: Task) -> bool:
    """Return whether the machine was rebooted after the task was placed: then records not yet on
    the disk may be lost.

    Batch jobs keep their records on a file system that the nodes share, and the script starts at
    most once, so they are not affected.
    """
    view = tx.world.agent(task.agent_key)
    if task.agent_key.driver in tx.world.policy.batch:
        return False
    return task.boot_id is not None and view.boot_id not in ("", task.boot_id)


def sync_deadline(tx: Transaction, key: AgentKey, epoch: int) -> None:
    """Ask again for the first snapshot of a connection."""
    view = tx.world.agent(key)
    if view.phase == AgentPhase.UP and view.epoch == epoch and not view.synced:
        tx.emit(ListTasks(key))
        tx.emit(SetTimer(timers.SnapshotDeadline(key, epoch), tx.world.policy.op_reply_secs))


def op_deadline(tx: Transaction, token: Token) -> None:
    """Ask for a snapshot because a launch was not confirmed."""
    task = tx.world.task(token)
    if task is None or not task.live or task.pid is not None:
        return
    view = tx.world.agent(task.agent_key)
    if view.phase == AgentPhase.UP:
        tx.emit(ListTasks(task.agent_key))
    tx.emit(SetTimer(timers.LaunchDeadline(token), _reply_secs(tx, token)))
