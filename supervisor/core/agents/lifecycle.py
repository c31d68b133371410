"""The lifecycle of agents: found, started, connected, gone.

The core looks for an agent, or starts it, when something needs it (a queued run, or an execution
that may be alive). The driver's answer decides: `gone` allows a new start, and the new agent adopts
the executions of the old one; `alive` means wait; `unknown` means wait, and nothing is declared
lost. A closed connection ends nothing. On a host that is down, no agent is looked for or started
(`host_availability`). If a host has no memory left, idle agents are evicted (`idle_eviction`).
"""

from ....db.events.events import (
    AgentGone,
    AgentSignInNeeded,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
    RunEnded,
)
from ....drivers.contracts import FoundState
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey
from ....protocol.jobs.status import ERROR
from ....protocol.wire.messages import KeeperReport
from ..interface import timers
from ..interface.effects import (
    AgentReady,
    ClearTimer,
    EndConnection,
    FindAgent,
    IncrementCounter,
    ReplyRefusal,
    SetTimer,
    StartAgent,
    StopAgent,
)
from ..interface.inputs import (
    AgentConnected,
    AgentDisconnected,
    DriverFound,
    DriverStarted,
    RequireAgent,
    SignInNeeded,
)
from ..scheduling import gang_placement, placement, rebalancing
from ..state.agent_phase import AT_DRIVER, AgentPhase, PhaseTrigger
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from . import idle_eviction

RETRY_SECS = (0.2, 1.0, 5.0, 15.0, 60.0)
#: Runs ended in one decision when their agent cannot be started.
GIVEN_UP = 128
#: Interval of further attempts to find an agent with executions that may be alive.
PATIENT_SECS = 60.0


def ensure(tx: Transaction, key: AgentKey) -> None:
    """Ensure that a needed agent is up or on its way."""
    view = tx.world.agent(key)
    if view.phase != AgentPhase.ABSENT or (key.driver, key.host) in tx.world.host_assignment.down:
        return
    if view.record.handle is not None:
        tx.change_phase(view, PhaseTrigger.LOOKUP_REQUESTED)
        tx.emit(FindAgent(key, view.record.handle))
    else:
        _start(tx, key)


def require(tx: Transaction, input_: RequireAgent) -> None:
    """Request the agent for a call that is not a run."""
    view = tx.world.agent(input_.key)
    down = tx.world.host_assignment.down.get((input_.key.driver, input_.key.host))
    view.used = tx.now.mono
    if view.phase == AgentPhase.UP and view.synced:
        tx.emit(AgentReady(input_.handle, input_.key))
    elif down is not None and view.phase != AgentPhase.UP:
        raise Refusal(
            "agentUnavailable",
            f"its agent cannot be reached: the host {input_.key.host} is down: {down.detail}",
        )
    elif view.phase == AgentPhase.SIGNED_OUT:
        raise _sign_in_first(view)
    elif len(view.wanted) >= tx.world.policy.agent_wanted:
        raise Refusal(
            "tooManyRequests", f"{len(view.wanted)} others wait for the same agent already"
        )
    else:
        view.wanted.append(input_.handle)
        ensure(tx, input_.key)


def ready(tx: Transaction, key: AgentKey) -> None:
    """Answer all calls that wait for this agent: it is up and synchronised."""
    view = tx.world.agent(key)
    for handle in view.wanted:
        tx.emit(AgentReady(handle, key))
    view.wanted.clear()


def _start(tx: Transaction, key: AgentKey) -> None:
    view = tx.world.agent(key)
    if not idle_eviction.ensure_memory(tx, key):
        tx.change_phase(view, PhaseTrigger.MEMORY_LACKING)
        rebalancing.leave_host(tx, key)
        return
    attempt = view.record.attempt + 1
    token, digest = tx.new_token()
    tx.change_phase(view, PhaseTrigger.START_REQUESTED)
    tx.record_agent(
        key,
        AgentStartRequested(at=tx.now.wall, agent_key=key, token_hash=digest, attempt=attempt),
    )
    tx.emit(StartAgent(key, attempt, token))
    tx.emit(SetTimer(timers.AgentStartDeadline(key, attempt), _secs_to_start(tx, key)))


def started(tx: Transaction, input_: DriverStarted) -> None:
    view = tx.world.agent(input_.key)
    if view.record.attempt != input_.attempt or view.record.handle is not None:
        return
    # Recorded even if the start was given up: with a handle, the agent is looked for before the
    # next start.
    tx.record_agent(
        input_.key, AgentStarted(at=tx.now.wall, agent_key=input_.key, handle=input_.handle)
    )
    if view.phase == AgentPhase.STARTING and input_.key.driver in tx.world.policy.driver_start_secs:
        tx.emit(
            SetTimer(
                timers.AgentStartDeadline(input_.key, input_.attempt),
                tx.world.policy.agent_start_secs,
            )
        )


def sign_in_needed(tx: Transaction, input_: SignInNeeded) -> None:
    """Wait until the user signs in. This is no failure, and nothing is retried before."""
    key, view = input_.key, tx.world.agent(input_.key)
    if input_.attempt is None:
        if view.phase in (AgentPhase.STOPPING, AgentPhase.LEAVING):
            tx.emit(ClearTimer(timers.AgentStartDeadline(key, view.record.attempt)))
            tx.emit(ClearTimer(timers.AgentLeaveDeadline(key)))
            view.synced = False
            _signed_out(tx, view, input_.sentence)
        return
    if (
        view.record.attempt != input_.attempt
        or view.phase != AgentPhase.STARTING
        or not view.record.starting
    ):
        return
    tx.emit(ClearTimer(timers.AgentStartDeadline(key, input_.attempt)))
    tx.record_agent(
        key,
        AgentSignInNeeded(
            at=tx.now.wall, agent_key=key, attempt=input_.attempt, reason=input_.sentence
        ),
    )
    _signed_out(tx, view, input_.sentence)


def _signed_out(tx: Transaction, view: AgentState, sentence: str) -> None:
    """Let runs wait and refuse calls. If the agent connects by itself, it is accepted."""
    tx.change_phase(view, PhaseTrigger.SIGN_IN_NEEDED)
    view.sign_in = sentence
    if view.signed_in:
        # the user signed in after the driver was asked and before it answered
        signed_in(tx, view.record.key)
        return
    for handle in view.wanted:
        tx.emit(ReplyRefusal(handle, _sign_in_first(view)))
    view.wanted.clear()


def _sign_in_first(view: AgentState) -> Refusal:
    return Refusal("signInNeeded", view.sign_in, {"cluster": view.record.key.host})


def signed_in(tx: Transaction, key: AgentKey) -> None:
    """Continue everything that waited for the user's sign-in."""
    view = tx.world.agent(key)
    view.signed_in = view.phase in AT_DRIVER
    if view.phase == AgentPhase.SIGNED_OUT:
        tx.change_phase(view, PhaseTrigger.SIGNED_IN)
        view.sign_in, view.failures = "", 0
        if view.needed:
            ensure(tx, key)
    elif view.phase == AgentPhase.STARTING and not view.record.starting:
        tx.emit(ClearTimer(timers.AgentStartRetry(key, view.record.attempt)))
        retry(tx, key, view.record.attempt)


def signed_out(tx: Transaction, key: AgentKey) -> None:
    """Forget the agent, so that its user may sign in as another unix user. While it has runs in the
    cluster, only the same unix user may sign in.
    """
    view = tx.world.agent(key)
    if view.record.handle is None or view.placed or view.phase == AgentPhase.UP:
        return
    tx.emit(ClearTimer(timers.AgentReturnDeadline(key)))
    idle_eviction.gone(tx, key, PhaseTrigger.SIGNED_OUT, "its user signed out")


def _secs_to_start(tx: Transaction, key: AgentKey) -> float:
    """Return the start timeout in seconds: the driver's own, or the agent's default."""
    return tx.world.policy.driver_start_secs.get(key.driver, tx.world.policy.agent_start_secs)


def failed(tx: Transaction, key: AgentKey, attempt: int, reason: str) -> None:
    """Record that the driver could not start the agent or that it did not connect in time."""
    view = tx.world.agent(key)
    if view.record.attempt != attempt or view.phase not in (
        AgentPhase.STARTING,
        AgentPhase.STOPPING,
    ):
        return
    tx.emit(ClearTimer(timers.AgentStartDeadline(key, attempt)))
    view.signed_in = False
    tx.record_agent(
        key, AgentStartFailed(at=tx.now.wall, agent_key=key, attempt=attempt, reason=reason)
    )
    tx.change_phase(view, PhaseTrigger.START_FAILED)
    if (key.driver, key.host) in tx.world.host_assignment.down:
        return  # not the agent's fault: it is started when its host is up
    view.failures += 1
    if view.failures >= tx.world.policy.agent_start_tries:
        _give_up(tx, key, reason)
    if view.needed:
        tx.change_phase(view, PhaseTrigger.RETRY_SCHEDULED)
        wait = (
            RETRY_SECS[min(view.failures, len(RETRY_SECS)) - 1] if view.failures else PATIENT_SECS
        )
        tx.emit(SetTimer(timers.AgentStartRetry(key, attempt), wait))


def _give_up(tx: Transaction, key: AgentKey, reason: str) -> None:
    """End the runs that wait for this agent, with the reason. Executions that may live keep their
    state.
    """
    view = tx.world.agent(key)
    view.failures = 0
    for handle in view.wanted:
        tx.emit(
            ReplyRefusal(
                handle, Refusal("agentUnavailable", f"its agent could not be started: {reason}")
            )
        )
    view.wanted.clear()
    for ticket in sorted(view.holding - view.queued.keys()):
        if ticket in tx.world.holds:
            gang_placement.back_off(tx, ticket, f"its agent {key} could not be started: {reason}")
    if view.queued:
        give_up_queued(tx, key, tx.world.next_number, reason)


def give_up_queued(tx: Transaction, key: AgentKey, before: int, reason: str) -> None:
    """End queued runs with a submission number below `before`. Runs end in batches, so that other
    inputs are served in between.
    """
    waiting = [ticket for ticket, number in tx.world.agent(key).queued.items() if number < before]
    for jid, serial in waiting[:GIVEN_UP]:
        placement.remove(tx, key, (jid, serial))
        tx.emit(ClearTimer(timers.QueueLimit(jid, serial)))
        tx.record(
            jid,
            RunEnded(
                at=tx.now.wall,
                serial=serial,
                status=ERROR,
                reason="agentStartFailed",
                error=f"its agent could not be started: {reason}",
            ),
        )
    if len(waiting) > GIVEN_UP:
        tx.emit(SetTimer(timers.QueueGiveUp(key, before, reason), 0.0))


def retry(tx: Transaction, key: AgentKey, attempt: int) -> None:
    view = tx.world.agent(key)
    if (
        view.phase == AgentPhase.STARTING
        and view.record.attempt == attempt
        and not view.record.starting
    ):
        tx.change_phase(view, PhaseTrigger.RETRY_DUE)
        if view.needed:
            ensure(tx, key)


def retry_at_once(tx: Transaction, key: AgentKey) -> None:
    """Retry needed agents of a host that is available again."""
    view = tx.world.agent(key)
    if view.phase == AgentPhase.AWAY:
        tx.emit(ClearTimer(timers.AgentReturnDeadline(key)))
        return_deadline(tx, key)
    elif view.phase == AgentPhase.STARTING:
        tx.emit(
            ClearTimer(timers.AgentStartRetry(key, view.record.attempt))
        ) if not view.record.starting else None
        retry(tx, key, view.record.attempt)
    elif view.needed:
        ensure(tx, key)


def retry_memory(tx: Transaction) -> None:
    """Retry agents that wait for memory on hosts where memory was freed or an agent became idle.
    The longest waiting agent comes first.
    """
    freed, drivers = tx.changed_memory, {driver for driver, _ in tx.changed_memory}
    tx.changed_memory = {}
    for key in sorted(
        tx.world.host_assignment.waiting_for_memory,
        key=lambda k: (tx.world.agents[k].since or 0.0, k),
    ):
        view = tx.world.agent(key)
        if not view.needed:
            tx.change_phase(view, PhaseTrigger.NOT_NEEDED)
        elif (key.driver, key.host) in freed and idle_eviction.ensure_memory(tx, key):
            tx.change_phase(view, PhaseTrigger.MEMORY_FREED)
            ensure(tx, key)
        elif key.driver in drivers:
            rebalancing.leave_host(tx, key)


def start_deadline(tx: Transaction, key: AgentKey, attempt: int) -> None:
    """Handle an agent that was started and did not connect: stop it (it runs nothing yet), then
    count the start as failed.
    """
    view = tx.world.agent(key)
    if (
        view.phase not in (AgentPhase.STARTING, AgentPhase.STOPPING)
        or view.record.attempt != attempt
    ):
        return
    if view.record.handle is not None and not view.placed:
        tx.change_phase(view, PhaseTrigger.STOP_REQUESTED)
        tx.emit(StopAgent(key, view.record.handle))
        tx.emit(SetTimer(timers.AgentStartDeadline(key, attempt), tx.world.policy.agent_start_secs))
    elif view.record.handle is not None:
        tx.change_phase(view, PhaseTrigger.LOOKUP_REQUESTED)
        tx.emit(FindAgent(key, view.record.handle))
    else:
        failed(tx, key, attempt, f"it did not report within {_secs_to_start(tx, key):g} s")


def stopped(tx: Transaction, key: AgentKey) -> None:
    """Record the driver's report that nothing of the agent is left."""
    view = tx.world.agent(key)
    if view.phase == AgentPhase.LEAVING:
        idle_eviction.gone(tx, key, PhaseTrigger.EVICTED)
        return
    if view.phase != AgentPhase.STOPPING:
        return
    failed(
        tx,
        key,
        view.record.attempt,
        f"it started but did not connect within {tx.world.policy.agent_start_secs:g} s",
    )
    tx.record_agent(
        key,
        AgentGone(at=tx.now.wall, agent_key=key, reason="stopped: it did not connect", ended=True),
    )


def connected(tx: Transaction, input_: AgentConnected) -> None:
    """Accept a new connection. The engine ends an older one, and its messages are ignored because
    its epoch is lower.
    """
    key, view = input_.key, tx.world.agent(input_.key)
    if input_.epoch <= view.epoch:
        tx.emit(EndConnection(key, input_.epoch, "an older connection"))
        return
    if view.phase == AgentPhase.STOPPING:
        tx.emit(
            EndConnection(
                key, input_.epoch, "it is being stopped because it did not connect in time"
            )
        )
        return
    if view.epoch and not view.synced:
        tx.emit(ClearTimer(timers.SnapshotDeadline(key, view.epoch)))
    view.synced = False
    if view.phase == AgentPhase.LEAVING:
        idle_eviction.reconnected(tx, view, input_)
        return
    if view.phase == AgentPhase.UP:
        tx.emit(
            IncrementCounter("agentReplaced", f"a second connection of {key} ended the older one")
        )
        tx.emit(EndConnection(key, view.epoch, "a newer connection of this agent"))
        placement.withdraw_all(tx, key)
    tx.emit(ClearTimer(timers.AgentStartDeadline(key, view.record.attempt)))
    tx.emit(ClearTimer(timers.AgentReturnDeadline(key)))
    tx.change_phase(view, PhaseTrigger.CONNECTED)
    view.epoch, view.synced, view.doubted, view.failures = input_.epoch, False, False, 0
    view.sign_in, view.signed_in = "", False
    view.boot_id, view.host = input_.alive.boot_id, input_.alive.host
    view.keeper, view.keeper_pid = None, input_.alive.keeper_pid
    view.runs_ahead = input_.alive.runs_ahead is True
    view.snapshot_number, view.snapshot, view.snapshot_pages, view.snapshot_done = None, {}, 0, 0
    tx.emit(SetTimer(timers.SnapshotDeadline(key, view.epoch), tx.world.policy.op_reply_secs))
    if view.unknown_since is None and view.placed:
        view.unknown_since = tx.now.wall


def keeper_reported(tx: Transaction, key: AgentKey, report: KeeperReport) -> None:
    """Record that the agent's keeper stopped answering, or answers again. Nothing is placed
    meanwhile, because only the keeper starts tasks.

    With a batch scheduler the agent works without its keeper.
    """
    if key.driver in tx.world.policy.batch:
        return
    view = tx.world.agent(key)
    was, view.keeper = view.keeper, None if report.answers else report
    if view.keeper is not None and was is None:
        tx.emit(
            IncrementCounter(
                "keeperSilent",
                f"the keeper of {key}, pid {view.keeper_pid} on {view.host}, does not answer",
            )
        )
        placement.withdraw_all(tx, key)
    elif view.keeper is None and was is not None and view.synced:
        tx.emit(
            IncrementCounter(
                "keeperAnswers",
                f"the keeper of {key}, pid {view.keeper_pid} on {view.host}, answers again",
            )
        )
        placement.agent_up(tx, key)


def disconnected(tx: Transaction, input_: AgentDisconnected) -> None:
    """Record a closed connection. Nothing ends. If the agent is needed, its driver is asked for its
    state at once.
    """
    key, view = input_.key, tx.world.agent(input_.key)
    if view.phase not in (AgentPhase.UP, AgentPhase.LEAVING) or view.epoch != input_.epoch:
        return
    was_synced, view.synced = view.synced, False
    silent, view.keeper = view.keeper, None
    if not was_synced:
        tx.emit(ClearTimer(timers.SnapshotDeadline(key, view.epoch)))
    if view.phase == AgentPhase.LEAVING:
        tx.emit(ClearTimer(timers.AgentLeaveDeadline(key)))
    placement.withdraw_all(tx, key)
    if not view.placed:
        view.unknown_since = None
    elif was_synced or view.unknown_since is None:
        view.unknown_since = tx.now.wall if silent is None or silent.since is None else silent.since
    tx.change_phase(view, PhaseTrigger.DISCONNECTED)
    if view.needed:
        ensure(tx, key)


def found(tx: Transaction, input_: DriverFound) -> None:
    key, view = input_.key, tx.world.agent(input_.key)
    if view.phase != AgentPhase.FINDING:
        return
    if input_.sign_in:
        _signed_out(tx, view, input_.detail)
        return
    view.signed_in = False
    if input_.state == FoundState.GONE:
        tx.record_agent(key, AgentGone(at=tx.now.wall, agent_key=key, reason=input_.detail))
        tx.change_phase(view, PhaseTrigger.FOUND_GONE)
        if view.needed:
            ensure(tx, key)
        return
    tx.change_phase(view, PhaseTrigger.FOUND_ALIVE)
    view.away = input_.detail
    tx.emit(SetTimer(timers.AgentReturnDeadline(key), tx.world.policy.agent_return_secs))


def return_deadline(tx: Transaction, key: AgentKey) -> None:
    """Look again for an agent that its driver reports alive and that has not connected."""
    view = tx.world.agent(key)
    if view.phase != AgentPhase.AWAY:
        return
    tx.change_phase(view, PhaseTrigger.RETURN_DEADLINE_PASSED)
    if view.needed:
        ensure(tx, key)
