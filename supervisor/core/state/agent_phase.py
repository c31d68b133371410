"""Phases of an agent, and every change of a phase.

An agent that nothing needs is ABSENT: nobody looks for it. A queued run, an execution that may be
alive, or a call needs it. From then on the phase says who is expected to act next.

The driver. An agent that was started before has a handle in the log. Its driver is asked for it
(FINDING), because a second agent must not start while the first may live. The answer `gone` makes
it ABSENT again, and a start follows. The answers `alive` and `unknown` make it AWAY: the core waits
for its connection until a deadline, and then asks again. Without a handle the agent is STARTING,
from the request to the connection. A failed start keeps this phase during the pause before the next
attempt. A start that has a process and no connection by its deadline is STOPPING, and counts as
failed when the driver reports the end of the process. If it has executions, they may be alive, so
the agent is not stopped but looked for.

The agent. A connection makes it UP from every phase except STOPPING (the connection is ended) and
LEAVING (the agent is asked again to stop): a connected agent is alive, whatever its driver said.
The end of the connection makes it ABSENT, and nothing else ends. An agent that is needed is then
looked for at once.

The core. An agent that nothing needs is evicted after its idle time, at the request of its user, or
for the memory that another agent needs. It is LEAVING until its process has ended or its connection
has closed. An agent that still owes an answer refuses, and is UP again. A host without memory for
one more agent makes it CROWDED until memory is free or nothing needs it.

The user. A driver that cannot act without the user makes the agent SIGNED_OUT. This is no failure:
nothing is retried until the user signs in. A user who signs out ends the agent.

`TRANSITIONS` is complete. `Transaction.change_phase` applies it and raises `IllegalTransition` for
any other pair of phase and trigger. Phases are notices: after a restart, every agent is ABSENT.
"""

import enum
from collections.abc import Mapping


class AgentPhase(enum.StrEnum):
    """The words appear in metrics, `jobscribe agent list` and the simulator."""

    ABSENT = "absent"
    FINDING = "finding"
    STARTING = "starting"
    AWAY = "away"
    STOPPING = "stopping"
    UP = "up"
    LEAVING = "leaving"
    CROWDED = "crowded"
    SIGNED_OUT = "signed_out"


class PhaseTrigger(enum.StrEnum):
    """Causes of a change of phase."""

    #: the driver is asked for an agent with a handle
    LOOKUP_REQUESTED = "lookup requested"
    #: the driver reports that nothing of the agent is left
    FOUND_GONE = "driver found it gone"
    #: the driver reports that the agent is alive, or does not know
    FOUND_ALIVE = "driver found it alive"
    #: an agent that its driver found alive has not connected
    RETURN_DEADLINE_PASSED = "return deadline passed"
    START_REQUESTED = "start requested"
    #: the driver reports a failed start, the end of a process that did not connect, or nothing
    START_FAILED = "start failed"
    RETRY_SCHEDULED = "retry scheduled"
    RETRY_DUE = "retry due"
    #: a started agent has not connected: the driver is asked to stop it
    STOP_REQUESTED = "stop requested"
    CONNECTED = "agent connected"
    DISCONNECTED = "agent disconnected"
    EVICTION_REQUESTED = "eviction requested"
    EVICTION_REFUSED = "eviction refused"
    #: an evicted agent has ended
    EVICTED = "agent ended"
    #: the host has no memory for the agent
    MEMORY_LACKING = "no memory"
    MEMORY_FREED = "memory freed"
    #: nothing needs the agent that waits for memory
    NOT_NEEDED = "no longer needed"
    SIGN_IN_NEEDED = "sign-in needed"
    SIGNED_IN = "user signed in"
    SIGNED_OUT = "user signed out"


_P, _T = AgentPhase, PhaseTrigger

#: The next phase for each phase and trigger. A pair that is missing is a bug of the core.
TRANSITIONS: Mapping[AgentPhase, Mapping[PhaseTrigger, AgentPhase]] = {
    _P.ABSENT: {
        _T.LOOKUP_REQUESTED: _P.FINDING,
        _T.START_REQUESTED: _P.STARTING,
        _T.RETRY_SCHEDULED: _P.STARTING,
        _T.MEMORY_LACKING: _P.CROWDED,
        _T.CONNECTED: _P.UP,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.FINDING: {
        _T.FOUND_GONE: _P.ABSENT,
        _T.FOUND_ALIVE: _P.AWAY,
        _T.CONNECTED: _P.UP,
        _T.SIGN_IN_NEEDED: _P.SIGNED_OUT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.STARTING: {
        _T.CONNECTED: _P.UP,
        _T.START_FAILED: _P.ABSENT,
        _T.RETRY_DUE: _P.ABSENT,
        _T.STOP_REQUESTED: _P.STOPPING,
        _T.LOOKUP_REQUESTED: _P.FINDING,
        _T.SIGN_IN_NEEDED: _P.SIGNED_OUT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.AWAY: {
        _T.CONNECTED: _P.UP,
        _T.RETURN_DEADLINE_PASSED: _P.ABSENT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.STOPPING: {
        _T.STOP_REQUESTED: _P.STOPPING,
        _T.START_FAILED: _P.ABSENT,
        _T.SIGN_IN_NEEDED: _P.SIGNED_OUT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.UP: {
        _T.CONNECTED: _P.UP,
        _T.DISCONNECTED: _P.ABSENT,
        _T.EVICTION_REQUESTED: _P.LEAVING,
    },
    _P.LEAVING: {
        _T.CONNECTED: _P.LEAVING,
        _T.DISCONNECTED: _P.ABSENT,
        _T.EVICTION_REFUSED: _P.UP,
        _T.EVICTED: _P.ABSENT,
        _T.SIGN_IN_NEEDED: _P.SIGNED_OUT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.CROWDED: {
        _T.CONNECTED: _P.UP,
        _T.MEMORY_FREED: _P.ABSENT,
        _T.NOT_NEEDED: _P.ABSENT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
    _P.SIGNED_OUT: {
        _T.CONNECTED: _P.UP,
        _T.SIGNED_IN: _P.ABSENT,
        _T.SIGNED_OUT: _P.ABSENT,
    },
}

#: Phases in which the agent takes no memory of its host.
WITHOUT_PROCESS = frozenset((_P.ABSENT, _P.CROWDED, _P.SIGNED_OUT))
#: Phases in which a driver has a request in progress.
AT_DRIVER = frozenset((_P.FINDING, _P.STARTING, _P.STOPPING, _P.LEAVING))


class IllegalTransition(Exception):
    """A trigger that `TRANSITIONS` does not list for this phase: a bug of the core."""


def next_phase(phase: AgentPhase, trigger: PhaseTrigger) -> AgentPhase:
    """Return the phase that follows. Raise IllegalTransition."""
    following = TRANSITIONS[phase].get(trigger)
    if following is None:
        raise IllegalTransition(f"an agent that is {phase} has no transition for: {trigger}")
    return following
