"""The lifecycle of agents: found, started, connected, gone.

An agent is looked for or started when something needs it (a queued run, an execution that may
live). The driver's answer decides: `gone` allows a new start, and the new agent adopts the
executions of the old one; `alive` means wait; `unknown` means wait, and nothing is declared lost. A
closed connection ends nothing. On a host that is down nothing is looked for or started
(`host_availability`). If a host has no memory left, idle agents make room (`idle_eviction`).
"""

from ....db.events.events import (
    AgentGone,
    AgentSignInNeeded,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
    RunEnded,
)
from ....protocol.errors import Refusal
from ....protocol.ids import AgentKey
from ....protocol.jobs.status import ERROR
from ....protocol.wire.messages import KeeperReport
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
from ..state.agent_state import AgentState
from ..state.transaction import Transaction
from . import idle_eviction

RETRY_SECS = (0.2, 1.0, 5.0, 15.0, 60.0)
#: Runs ended in one decision when their agent cannot be started.
GIVEN_UP = 128
#: Interval of further attempts to find an agent with executions that may live.
PATIENT_SECS = 60.0


def ensure(turn: Transaction, key: AgentKey) -> None:
    """Ensure that a needed agent is up or on its way."""
    view = turn.world.agent(key)
    if view.phase != "absent" or (key.driver, key.host) in turn.world.homes.down:
        return
    if view.record.handle is not None:
        turn.enter(view, "finding")
        turn.ask(FindAgent(key, view.record.handle))
    else:
        _start(turn, key)


def want(turn: Transaction, input_: RequireAgent) -> None:
    """Request the agent for a call that is not a run."""
    view = turn.world.agent(input_.key)
    down = turn.world.homes.down.get((input_.key.driver, input_.key.host))
    view.used = turn.now.mono
    if view.phase == "up" and view.synced:
        turn.ask(AgentReady(input_.handle, input_.key))
    elif down is not None and view.phase != "up":
        raise Refusal(
            "agentUnavailable",
            f"its agent cannot be reached: the host {input_.key.host} is down: {down.detail}",
        )
    elif view.phase == "signed_out":
        raise _sign_in_first(view)
    elif len(view.wanted) >= turn.world.policy.agent_wanted:
        raise Refusal(
            "tooManyRequests", f"{len(view.wanted)} others wait for the same agent already"
        )
    else:
        view.wanted.append(input_.handle)
        ensure(turn, input_.key)


def ready(turn: Transaction, key: AgentKey) -> None:
    """Answer all calls that wait for this agent: it is up and synchronised."""
    view = turn.world.agent(key)
    for handle in view.wanted:
        turn.ask(AgentReady(handle, key))
    view.wanted.clear()


def _start(turn: Transaction, key: AgentKey) -> None:
    view = turn.world.agent(key)
    if not idle_eviction.make_room(turn, key):
        turn.enter(view, "crowded")
        rebalancing.away(turn, key)
        return
    attempt = view.record.attempt + 1
    token, digest = turn.mint()
    turn.enter(view, "starting")
    turn.record_agent(
        key,
        AgentStartRequested(at=turn.now.wall, agent_key=key, token_hash=digest, attempt=attempt),
    )
    turn.ask(StartAgent(key, attempt, token))
    turn.ask(SetTimer(("agent-start", key, attempt), _secs_to_start(turn, key)))


def started(turn: Transaction, input_: DriverStarted) -> None:
    view = turn.world.agent(input_.key)
    if view.record.attempt != input_.attempt or view.record.handle is not None:
        return
    # Recorded even if the start was given up: with a handle, the agent is looked for before the
    # next start.
    turn.record_agent(
        input_.key, AgentStarted(at=turn.now.wall, agent_key=input_.key, handle=input_.handle)
    )
    if view.phase == "starting" and input_.key.driver in turn.world.policy.driver_start_secs:
        turn.ask(
            SetTimer(
                ("agent-start", input_.key, input_.attempt), turn.world.policy.agent_start_secs
            )
        )


def sign_in_needed(turn: Transaction, input_: SignInNeeded) -> None:
    """Wait until the user signs in. This is no failure, and nothing is retried before."""
    key, view = input_.key, turn.world.agent(input_.key)
    if input_.attempt is None:
        if view.phase in ("stopping", "leaving"):
            turn.ask(ClearTimer(("agent-start", key, view.record.attempt)))
            turn.ask(ClearTimer(("agent-leave", key)))
            view.synced = False
            _signed_out(turn, view, input_.sentence)
        return
    if (
        view.record.attempt != input_.attempt
        or view.phase != "starting"
        or not view.record.starting
    ):
        return
    turn.ask(ClearTimer(("agent-start", key, input_.attempt)))
    turn.record_agent(
        key,
        AgentSignInNeeded(
            at=turn.now.wall, agent_key=key, attempt=input_.attempt, reason=input_.sentence
        ),
    )
    _signed_out(turn, view, input_.sentence)


def _signed_out(turn: Transaction, view: AgentState, sentence: str) -> None:
    """Let runs wait and refuse calls. If the agent connects by itself, it is accepted."""
    turn.enter(view, "signed_out")
    view.sign_in = sentence
    if view.signed_in:
        # the user signed in after the driver was asked and before it answered
        signed_in(turn, view.record.key)
        return
    for handle in view.wanted:
        turn.ask(ReplyRefusal(handle, _sign_in_first(view)))
    view.wanted.clear()


def _sign_in_first(view: AgentState) -> Refusal:
    return Refusal("signInNeeded", view.sign_in, {"cluster": view.record.key.host})


def signed_in(turn: Transaction, key: AgentKey) -> None:
    """Continue everything that waited for the user's sign-in."""
    view = turn.world.agent(key)
    view.signed_in = view.phase in ("finding", "starting", "stopping", "leaving")
    if view.phase == "signed_out":
        turn.enter(view, "absent")
        view.sign_in, view.failures = "", 0
        if view.needed:
            ensure(turn, key)
    elif view.phase == "starting" and not view.record.starting:
        turn.ask(ClearTimer(("agent-retry", key, view.record.attempt)))
        retry(turn, key, view.record.attempt)


def signed_out(turn: Transaction, key: AgentKey) -> None:
    """Forget the agent, so that its user may sign in as another unix user. While it has runs in the
    cluster, only the same unix user may sign in.
    """
    view = turn.world.agent(key)
    if view.record.handle is None or view.placed or view.phase == "up":
        return
    turn.ask(ClearTimer(("agent-return", key)))
    idle_eviction.gone(turn, key, "its user signed out")


def _secs_to_start(turn: Transaction, key: AgentKey) -> float:
    """Return the start timeout in seconds: the driver's own, or the agent's default."""
    return turn.world.policy.driver_start_secs.get(key.driver, turn.world.policy.agent_start_secs)


def failed(turn: Transaction, key: AgentKey, attempt: int, reason: str) -> None:
    """Record that the driver could not start the agent or that it did not connect in time."""
    view = turn.world.agent(key)
    if view.record.attempt != attempt or view.phase not in ("starting", "stopping"):
        return
    turn.ask(ClearTimer(("agent-start", key, attempt)))
    view.signed_in = False
    turn.record_agent(
        key, AgentStartFailed(at=turn.now.wall, agent_key=key, attempt=attempt, reason=reason)
    )
    turn.enter(view, "absent")
    if (key.driver, key.host) in turn.world.homes.down:
        return  # not the agent's fault: it is started when its host is up
    view.failures += 1
    if view.failures >= turn.world.policy.agent_start_tries:
        _give_up(turn, key, reason)
    if view.needed:
        turn.enter(view, "starting")
        wait = (
            RETRY_SECS[min(view.failures, len(RETRY_SECS)) - 1] if view.failures else PATIENT_SECS
        )
        turn.ask(SetTimer(("agent-retry", key, attempt), wait))


def _give_up(turn: Transaction, key: AgentKey, reason: str) -> None:
    """End the runs that wait for this agent, with the reason. Executions that may live keep their
    state.
    """
    view = turn.world.agent(key)
    view.failures = 0
    for handle in view.wanted:
        turn.ask(
            ReplyRefusal(
                handle, Refusal("agentUnavailable", f"its agent could not be started: {reason}")
            )
        )
    view.wanted.clear()
    for ticket in sorted(view.holding - view.queued.keys()):
        if ticket in turn.world.holds:
            gang_placement.hold_off(turn, ticket, f"its agent {key} could not be started: {reason}")
    if view.queued:
        give_up_queued(turn, key, turn.world.next_number, reason)


def give_up_queued(turn: Transaction, key: AgentKey, before: int, reason: str) -> None:
    """End queued runs with a submission number below `before`. Runs end in batches, so that other
    inputs are served in between.
    """
    waiting = [ticket for ticket, number in turn.world.agent(key).queued.items() if number < before]
    for jid, serial in waiting[:GIVEN_UP]:
        placement.leave(turn, key, (jid, serial))
        turn.ask(ClearTimer(("queue", jid, serial)))
        turn.record(
            jid,
            RunEnded(
                at=turn.now.wall,
                serial=serial,
                status=ERROR,
                reason="agentStartFailed",
                error=f"its agent could not be started: {reason}",
            ),
        )
    if len(waiting) > GIVEN_UP:
        turn.ask(SetTimer(("agent-give-up", key, before, reason), 0.0))


def retry(turn: Transaction, key: AgentKey, attempt: int) -> None:
    view = turn.world.agent(key)
    if view.phase == "starting" and view.record.attempt == attempt and not view.record.starting:
        turn.enter(view, "absent")
        if view.needed:
            ensure(turn, key)


def retry_at_once(turn: Transaction, key: AgentKey) -> None:
    """Retry needed agents of a host that is available again."""
    view = turn.world.agent(key)
    if view.phase == "away":
        turn.ask(ClearTimer(("agent-return", key)))
        return_deadline(turn, key)
    elif view.phase == "starting":
        turn.ask(
            ClearTimer(("agent-retry", key, view.record.attempt))
        ) if not view.record.starting else None
        retry(turn, key, view.record.attempt)
    elif view.needed:
        ensure(turn, key)


def crowded(turn: Transaction) -> None:
    """Retry agents that wait for memory on hosts where memory was freed or an agent became idle.
    The longest waiting agent comes first.
    """
    freed, drivers = turn.freed, {driver for driver, _ in turn.freed}
    turn.freed = {}
    for key in sorted(
        turn.world.homes.crowded, key=lambda k: (turn.world.agents[k].since or 0.0, k)
    ):
        view = turn.world.agent(key)
        if not view.needed:
            turn.enter(view, "absent")
        elif (key.driver, key.host) in freed:
            if idle_eviction.make_room(turn, key):
                turn.enter(view, "absent")
                ensure(turn, key)
        elif key.driver in drivers:
            rebalancing.away(turn, key)


def start_deadline(turn: Transaction, key: AgentKey, attempt: int) -> None:
    """Handle an agent that was started and did not connect: stop it (it runs nothing yet), then
    count the start as failed.
    """
    view = turn.world.agent(key)
    if view.phase not in ("starting", "stopping") or view.record.attempt != attempt:
        return
    if view.record.handle is not None and not view.placed:
        turn.enter(view, "stopping")
        turn.ask(StopAgent(key, view.record.handle))
        turn.ask(SetTimer(("agent-start", key, attempt), turn.world.policy.agent_start_secs))
    elif view.record.handle is not None:
        turn.enter(view, "finding")
        turn.ask(FindAgent(key, view.record.handle))
    else:
        failed(turn, key, attempt, f"no word from it within {_secs_to_start(turn, key):g} s")


def stopped(turn: Transaction, key: AgentKey) -> None:
    """Record the driver's report that nothing of the agent is left."""
    view = turn.world.agent(key)
    if view.phase == "leaving":
        idle_eviction.gone(turn, key)
        return
    if view.phase != "stopping":
        return
    failed(
        turn,
        key,
        view.record.attempt,
        f"it started but did not connect within {turn.world.policy.agent_start_secs:g} s",
    )
    turn.record_agent(
        key,
        AgentGone(
            at=turn.now.wall, agent_key=key, reason="stopped: it did not connect", ended=True
        ),
    )


def connected(turn: Transaction, input_: AgentConnected) -> None:
    """Accept a new connection. The engine ends an older one, and its messages are ignored because
    its epoch is lower.
    """
    key, view = input_.key, turn.world.agent(input_.key)
    if input_.epoch <= view.epoch:
        turn.ask(EndConnection(key, input_.epoch, "an older connection"))
        return
    if view.phase == "stopping":
        turn.ask(
            EndConnection(
                key, input_.epoch, "it is being ended, because it did not connect in time"
            )
        )
        return
    if view.epoch and not view.synced:
        turn.ask(ClearTimer(("sync", key, view.epoch)))
    view.synced = False
    if view.phase == "leaving":
        idle_eviction.back(turn, view, input_)
        return
    if view.phase == "up":
        turn.ask(
            IncrementCounter("agentReplaced", f"a second connection of {key} ended the older one")
        )
        turn.ask(EndConnection(key, view.epoch, "a newer connection of this agent"))
        placement.withdraw_all(turn, key)
    turn.ask(ClearTimer(("agent-start", key, view.record.attempt)))
    turn.ask(ClearTimer(("agent-return", key)))
    turn.enter(view, "up")
    view.epoch, view.synced, view.doubted, view.failures = input_.epoch, False, False, 0
    view.sign_in, view.signed_in = "", False
    view.boot_id, view.host = input_.alive.boot_id, input_.alive.host
    view.keeper, view.keeper_pid = None, input_.alive.keeper_pid
    view.snapshot_number, view.snapshot, view.snapshot_pages, view.snapshot_done = None, {}, 0, 0
    turn.ask(SetTimer(("sync", key, view.epoch), turn.world.policy.op_reply_secs))
    if view.unknown_since is None and view.placed:
        view.unknown_since = turn.now.wall


def keeper_said(turn: Transaction, key: AgentKey, said: KeeperReport) -> None:
    """Record that the agent's keeper stopped answering, or answers again. Nothing is placed
    meanwhile, because only the keeper starts tasks.

    With a batch scheduler the agent works without its keeper.
    """
    if key.driver in turn.world.policy.batch:
        return
    view = turn.world.agent(key)
    was, view.keeper = view.keeper, None if said.answers else said
    if view.keeper is not None and was is None:
        turn.ask(
            IncrementCounter(
                "keeperSilent",
                f"the keeper of {key}, pid {view.keeper_pid} on {view.host}, does not answer",
            )
        )
        placement.withdraw_all(turn, key)
    elif view.keeper is None and was is not None and view.synced:
        turn.ask(
            IncrementCounter(
                "keeperAnswers",
                f"the keeper of {key}, pid {view.keeper_pid} on {view.host}, answers again",
            )
        )
        placement.up(turn, key)


def disconnected(turn: Transaction, input_: AgentDisconnected) -> None:
    """Record a closed connection. Nothing ends. If the agent is needed, its driver is asked for its
    state at once.
    """
    key, view = input_.key, turn.world.agent(input_.key)
    if view.phase not in ("up", "leaving") or view.epoch != input_.epoch:
        return
    was_synced, view.synced = view.synced, False
    silent, view.keeper = view.keeper, None
    if not was_synced:
        turn.ask(ClearTimer(("sync", key, view.epoch)))
    if view.phase == "leaving":
        turn.ask(ClearTimer(("agent-leave", key)))
    placement.withdraw_all(turn, key)
    if not view.placed:
        view.unknown_since = None
    elif was_synced or view.unknown_since is None:
        view.unknown_since = (
            turn.now.wall if silent is None or silent.since is None else silent.since
        )
    turn.enter(view, "absent")
    if view.needed:
        ensure(turn, key)


def found(turn: Transaction, input_: DriverFound) -> None:
    key, view = input_.key, turn.world.agent(input_.key)
    if view.phase != "finding":
        return
    if input_.sign_in:
        _signed_out(turn, view, input_.detail)
        return
    view.signed_in = False
    if input_.state == "gone":
        turn.record_agent(key, AgentGone(at=turn.now.wall, agent_key=key, reason=input_.detail))
        turn.enter(view, "absent")
        if view.needed:
            _start(turn, key)
        return
    turn.enter(view, "away")
    view.away = input_.detail
    turn.ask(SetTimer(("agent-return", key), turn.world.policy.agent_return_secs))


def return_deadline(turn: Transaction, key: AgentKey) -> None:
    """Look again for an agent that its driver reports alive and that has not connected."""
    view = turn.world.agent(key)
    if view.phase != "away":
        return
    turn.enter(view, "absent")
    if view.needed:
        ensure(turn, key)
