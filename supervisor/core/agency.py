"""The lives of agents: found, started, connected, gone.

An agent is looked for or started because something needs it (a queued run, an execution that may live). The driver's word
decides: `gone` lets a new one be started, which adopts what the old one left; `alive` means wait; `unknown` means wait, and
nothing is called lost. A connection that ends is no reason to end anything.
"""

from ...db.events import AgentGone, AgentStarted, AgentStartFailed, AgentStartRequested, RunEnded
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey
from ...protocol.status import ERROR
from . import gangs, placement
from .effects import AgentReady, ClearTimer, Count, EndConnection, FindAgent, ReplyRefusal, SetTimer, StartAgent, StopAgent
from .inputs import AgentConnected, AgentDisconnected, DriverFound, DriverStarted, WantAgent
from .world import AgentView, Turn

RETRY_SECS = (0.2, 1.0, 5.0, 15.0, 60.0)
#: Runs that are ended in one decision, when their agent cannot be started.
GIVEN_UP = 128
#: Executions that may live keep us looking for their agent, at this pace after the usual tries.
PATIENT_SECS = 60.0


def _enter(turn: Turn, view: AgentView, phase: str) -> None:
    if view.phase != phase:
        view.phase, view.since = phase, turn.now.wall


def ensure(turn: Turn, key: AgentKey) -> None:
    """Something needs this agent: see to it that it is up or on its way."""
    view = turn.world.agent(key)
    if view.phase != "absent":
        return
    if view.record.handle is not None:
        _enter(turn, view, "finding")
        turn.ask(FindAgent(key, view.record.handle))
    else:
        _start(turn, key)


def want(turn: Turn, input_: WantAgent) -> None:
    """Somebody needs it for more than a run."""
    view = turn.world.agent(input_.key)
    if view.phase == "up" and view.synced:
        turn.ask(AgentReady(input_.handle, input_.key))
    elif len(view.wanted) >= turn.world.policy.agent_wanted:
        raise Refusal("tooManyRequests", f"{len(view.wanted)} others wait for the same agent already")
    else:
        view.wanted.append(input_.handle)
        ensure(turn, input_.key)


def ready(turn: Turn, key: AgentKey) -> None:
    """It is up and believed: whoever waited for it may go on."""
    view = turn.world.agent(key)
    for handle in view.wanted:
        turn.ask(AgentReady(handle, key))
    view.wanted.clear()


def _start(turn: Turn, key: AgentKey) -> None:
    view = turn.world.agent(key)
    attempt = view.record.attempt + 1
    token, digest = turn.mint()
    _enter(turn, view, "starting")
    turn.record_agent(key, AgentStartRequested(at=turn.now.wall, agent_key=key, token_hash=digest, attempt=attempt))
    turn.ask(StartAgent(key, attempt, token))
    turn.ask(SetTimer(("agent-start", key, attempt), turn.world.policy.agent_start_secs))


def started(turn: Turn, input_: DriverStarted) -> None:
    view = turn.world.agent(input_.key)
    if view.record.attempt != input_.attempt or view.record.handle is not None:
        return
    # also when it was given up meanwhile: with its handle it is looked for before another one is started
    turn.record_agent(input_.key, AgentStarted(at=turn.now.wall, agent_key=input_.key, handle=input_.handle))


def failed(turn: Turn, key: AgentKey, attempt: int, reason: str) -> None:
    """The driver could not start it, or it did not connect in time."""
    view = turn.world.agent(key)
    if view.record.attempt != attempt or view.phase not in ("starting", "stopping"):
        return
    turn.ask(ClearTimer(("agent-start", key, attempt)))
    turn.record_agent(key, AgentStartFailed(at=turn.now.wall, agent_key=key, attempt=attempt, reason=reason))
    view.failures += 1
    _enter(turn, view, "absent")
    if view.failures >= turn.world.policy.agent_start_tries:
        _give_up(turn, key, reason)
    if view.needed:
        _enter(turn, view, "starting")
        wait = RETRY_SECS[min(view.failures, len(RETRY_SECS)) - 1] if view.failures else PATIENT_SECS
        turn.ask(SetTimer(("agent-retry", key, attempt), wait))


def _give_up(turn: Turn, key: AgentKey, reason: str) -> None:
    """Runs that wait for it end with the reason; executions that may live are not called anything."""
    view = turn.world.agent(key)
    view.failures = 0
    for handle in view.wanted:
        turn.ask(ReplyRefusal(handle, Refusal("agentUnavailable", f"its agent could not be started: {reason}")))
    view.wanted.clear()
    for ticket in sorted(view.holding - view.queued.keys()):
        gangs.hold_off(turn, ticket, f"its agent {key} could not be started: {reason}")
    if view.queued:
        give_up_queued(turn, key, turn.world.next_number, reason)


def give_up_queued(turn: Turn, key: AgentKey, before: int, reason: str) -> None:
    """Runs that waited before this number of submission end; many of them some at a time, so that others are served in between."""
    waiting = [ticket for ticket, number in turn.world.agent(key).queued.items() if number < before]
    for jid, serial in waiting[:GIVEN_UP]:
        placement.leave(turn, key, (jid, serial))
        turn.ask(ClearTimer(("queue", jid, serial)))
        turn.record(jid, RunEnded(
            at=turn.now.wall, serial=serial, status=ERROR, reason="agentStartFailed", error=f"its agent could not be started: {reason}",
        ))
    if len(waiting) > GIVEN_UP:
        turn.ask(SetTimer(("agent-give-up", key, before, reason), 0.0))


def retry(turn: Turn, key: AgentKey, attempt: int) -> None:
    view = turn.world.agent(key)
    if view.phase == "starting" and view.record.attempt == attempt and not view.record.starting:
        _enter(turn, view, "absent")
        if view.needed:
            ensure(turn, key)


def start_deadline(turn: Turn, key: AgentKey, attempt: int) -> None:
    """It was started and has not connected: end what is there (nothing of ours runs in it yet), then count it as failed."""
    view = turn.world.agent(key)
    if view.phase not in ("starting", "stopping") or view.record.attempt != attempt:
        return
    if view.record.handle is not None and not view.placed:
        _enter(turn, view, "stopping")
        turn.ask(StopAgent(key, view.record.handle))
        turn.ask(SetTimer(("agent-start", key, attempt), turn.world.policy.agent_start_secs))
    elif view.record.handle is not None:
        _enter(turn, view, "finding")
        turn.ask(FindAgent(key, view.record.handle))
    else:
        failed(turn, key, attempt, f"no word from it within {turn.world.policy.agent_start_secs:g} s")


def stopped(turn: Turn, key: AgentKey) -> None:
    """The driver says nothing of it is left."""
    view = turn.world.agent(key)
    if view.phase != "stopping":
        return
    failed(turn, key, view.record.attempt, f"it started but did not connect within {turn.world.policy.agent_start_secs:g} s")
    turn.record_agent(key, AgentGone(at=turn.now.wall, agent_key=key, reason="stopped: it did not connect", ended=True))


def connected(turn: Turn, input_: AgentConnected) -> None:
    """A new connection. The older one, if any, is ended by the shell and never heard again: its epoch is lower."""
    key, view = input_.key, turn.world.agent(input_.key)
    if input_.epoch <= view.epoch:
        turn.ask(EndConnection(key, input_.epoch, "an older connection"))
        return
    if view.phase == "stopping":
        turn.ask(EndConnection(key, input_.epoch, "it is being ended, because it did not connect in time"))
        return
    if view.phase == "up":
        turn.ask(Count("agentReplaced", f"a second connection of {key} ended the older one"))
        turn.ask(EndConnection(key, view.epoch, "a newer connection of this agent"))
        placement.withdraw_all(turn, key)
    turn.ask(ClearTimer(("agent-start", key, view.record.attempt)))
    turn.ask(ClearTimer(("agent-return", key)))
    if view.epoch and not view.synced:
        turn.ask(ClearTimer(("sync", key, view.epoch)))
    _enter(turn, view, "up")
    view.epoch, view.synced, view.doubted, view.failures = input_.epoch, False, False, 0
    view.boot_id, view.host = input_.alive.boot_id, input_.alive.host
    view.snapshot_number, view.snapshot, view.snapshot_pages, view.snapshot_done = None, {}, 0, 0
    turn.ask(SetTimer(("sync", key, view.epoch), turn.world.policy.op_reply_secs))
    if view.unknown_since is None and view.placed:
        view.unknown_since = turn.now.wall


def disconnected(turn: Turn, input_: AgentDisconnected) -> None:
    """Nothing is ended for it. Is it needed, we ask its driver at once what became of it."""
    key, view = input_.key, turn.world.agent(input_.key)
    if view.phase != "up" or view.epoch != input_.epoch:
        return
    if not view.synced:
        turn.ask(ClearTimer(("sync", key, view.epoch)))
    placement.withdraw_all(turn, key)
    if not view.placed:
        view.unknown_since = None
    elif view.synced or view.unknown_since is None:
        view.unknown_since = turn.now.wall
    _enter(turn, view, "absent")
    view.synced = False
    if view.needed:
        ensure(turn, key)


def found(turn: Turn, input_: DriverFound) -> None:
    key, view = input_.key, turn.world.agent(input_.key)
    if view.phase != "finding":
        return
    if input_.state == "gone":
        turn.record_agent(key, AgentGone(at=turn.now.wall, agent_key=key, reason=input_.detail))
        _enter(turn, view, "absent")
        if view.needed:
            _start(turn, key)
        return
    _enter(turn, view, "away")
    turn.ask(SetTimer(("agent-return", key), turn.world.policy.agent_return_secs))


def return_deadline(turn: Turn, key: AgentKey) -> None:
    """Alive by its driver's word, and still not connected."""
    view = turn.world.agent(key)
    if view.phase != "away":
        return
    _enter(turn, view, "absent")
    if view.needed:
        ensure(turn, key)
