"""The state machine of one execution. An executor (keeper, Slurm batch, container tasks) reports
facts to it, asks it for the next step, performs the step, and reports the result.

The machine decides; an executor spawns, signals and inspects. These rules hold for all of them:

* A token starts at most once: only a claimed execution starts, and an ended one has no next phase.
* The exit or the stop decides, whichever is recorded first. A stop is recorded, then the exit is
  looked for, then the record says that a signal may be sent, then the signal is sent. An exit that
  is found before that withdraws the stop.
* The first reason of a stop stays. The shortest grace period counts.
* A time limit is a stop: it shortens the grace period of an earlier one. It does not count after
  the exit.
* An execution that is stopped before its start is barred from starting and then ends.

Methods raise IllegalTransition, and change nothing, for a fact that the tables do not have.
"""

from __future__ import annotations

import enum

from ..jobs.execution_state import ExecutionState
from .phases import REPORTED, Fact, Phase, StopFact, StopPhase, next_phase, next_stop_phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIME_LIMIT = "timeLimit"
_NEVER = float("inf")
#: Phases before a process is known, in which a start can be barred.
_UNSTARTED = (Phase.NEW, Phase.STARTING)
#: Phases of a stop that cause the end.
_EFFECTIVE = (StopPhase.SIGNALED, StopPhase.BARRED)


class Step(enum.Enum):
    """The next step of an executor. The method that reports its result is in brackets.

    RECORD_STOP: write the stop, with `signaled` false [stop_recorded]. BAR_START: make the start
    impossible [start_barred, or start_not_barred if it may have started]. CHECK_EXIT: look for an
    exit of the main process [exited or exit_missing]. WITHDRAW_STOP: remove the record
    [stop_withdrawn]. RECORD_SIGNAL: write the stop with `signaled` true [signal_recorded].
    TERMINATE: send SIGTERM to all processes [signal_sent]. KILL: send SIGKILL to all processes
    [signal_sent]. Both are repeated until `ended`. NONE: nothing before `wake_at`.
    """

    NONE = "none"
    RECORD_STOP = "record stop"
    BAR_START = "bar start"
    CHECK_EXIT = "check exit"
    WITHDRAW_STOP = "withdraw stop"
    RECORD_SIGNAL = "record signal"
    TERMINATE = "terminate"
    KILL = "kill"


_STEPS = {
    StopPhase.REQUESTED: Step.RECORD_STOP,
    StopPhase.CLEARED: Step.RECORD_SIGNAL,
    StopPhase.OVERTAKEN: Step.WITHDRAW_STOP,
}


class Policy:
    """Differences between executors. Durations in seconds; None: never.

    leftover: processes that are left this long after the exit are killed. ending: if processes are
    left this long after the exit, the exit is reported before the end. repeat: a state that is
    reported again after this long without an acknowledgement.
    """

    __slots__ = ("ending", "leftover", "repeat")

    def __init__(
        self,
        *,
        leftover: float | None = 0.0,
        ending: float | None = 0.0,
        repeat: Mapping[ExecutionState, float] | None = None,
    ) -> None:
        self.leftover = _NEVER if leftover is None else leftover
        self.ending = _NEVER if ending is None else ending
        self.repeat = dict(repeat or {})


class Lifecycle:
    """The life of one execution. limit, grace: seconds.

    Times named `mono` are seconds on the executor's monotonic clock, `wall` unix seconds. exits are
    opaque here: dicts in a keeper, `ExitInfo` elsewhere. exit: the final one. own_exit: the exit of
    the main process, reported while other processes are left. Only this class changes its
    attributes, except `limit` and `grace`, which an executor may read from its ledger.
    """

    __slots__ = (
        "_may_bar",
        "_policy",
        "_reason",
        "elapsed",
        "exit",
        "exited_mono",
        "grace",
        "kill_at",
        "kills",
        "limit",
        "own_exit",
        "phase",
        "reported_mono",
        "started_at",
        "started_mono",
        "stop_phase",
        "terminated",
    )

    def __init__(self, policy: Policy, limit: float | None = None, grace: float = 3.0) -> None:
        self._policy = policy
        self.phase, self.stop_phase = Phase.NEW, StopPhase.NONE
        self.limit, self.grace = limit, grace
        self.started_at: float | None = None
        self.started_mono: float | None = None
        self.exited_mono: float | None = None
        #: how long it ran, once it has ended and if that is known (seconds)
        self.elapsed: float | None = None
        self.exit: Any = None
        self.own_exit: Any = None
        self._reason: str | None = None
        self.kill_at: float | None = None
        #: SIGTERM was sent; number of times that SIGKILL was sent
        self.terminated, self.kills = False, 0
        self._may_bar = True
        self.reported_mono = -_NEVER

    # ---- questions

    @property
    def state(self) -> ExecutionState:
        """Return the state that is reported."""
        return REPORTED[self.phase]

    @property
    def ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def exiting(self) -> bool:
        """Return whether the main process has exited and other processes may be left."""
        return self.phase is Phase.EXITED

    @property
    def stopping(self) -> bool:
        """Return whether it is to be stopped, whether or not a signal was sent."""
        return self.kill_at is not None

    @property
    def stop_reason(self) -> str | None:
        """Return the reason of the stop that causes its end, or None: a stop without a signal has
        no effect.
        """
        return self._reason if self.stopping and self.stop_phase in _EFFECTIVE else None

    @property
    def requested_reason(self) -> str | None:
        """Return the reason of the requested stop. It is the cause if the execution never starts."""
        return self._reason if self.stopping else None

    @property
    def signaled(self) -> bool:
        """Return whether a signal may have been sent."""
        return self.stop_phase is StopPhase.SIGNALED

    @property
    def barred(self) -> bool:
        """Return whether it can never start."""
        return self.stop_phase is StopPhase.BARRED

    def running_secs(self, mono: float) -> float | None:
        """Return for how long it has run, or None if that is not known."""
        if self.ended or self.started_mono is None:
            return self.elapsed
        return max(0.0, mono - self.started_mono)

    def next_step(self, mono: float) -> Step:
        """Return the next step at this time. A time limit that has passed becomes a stop."""
        if self.ended:
            return Step.NONE
        if mono >= self._limit_at():
            self.stop(TIME_LIMIT, self.grace, mono)
        if self.stop_phase in _STEPS:
            return _STEPS[self.stop_phase]
        if self.stop_phase is StopPhase.RECORDED:
            return Step.BAR_START if self._can_bar() else Step.CHECK_EXIT
        if self.stop_phase in _EFFECTIVE and self.kill_at is not None:
            return Step.KILL if mono >= self.kill_at else Step.TERMINATE
        return Step.KILL if mono >= self._leftover_at() else Step.NONE

    def wake_at(self, mono: float) -> float:
        """Return when the next step may be another one, infinity if only a fact changes it."""
        times = (self._limit_at(), self._leftover_at(), self.kill_at or _NEVER)
        return min((t for t in times if t > mono), default=_NEVER)

    def exit_due(self, mono: float) -> bool:
        """Return whether the exit is to be reported before the end."""
        return (
            self.exiting
            and self.own_exit is None
            and self.exited_mono is not None
            and mono - self.exited_mono >= self._policy.ending
        )

    def report_due(self, mono: float) -> bool:
        """Return whether its state is to be reported again."""
        secs = self._policy.repeat.get(self.state)
        return secs is not None and mono - self.reported_mono >= secs

    # ---- facts

    def claimed(self) -> None:
        """Record that the token was used for this execution."""
        self.phase = next_phase(self.phase, Fact.CLAIMED)

    def started(self, wall: float | None, mono: float | None) -> None:
        """Record the start of its main process; None: at an unknown time."""
        self.phase = next_phase(self.phase, Fact.STARTED)
        self.started_at, self.started_mono = wall, mono

    def exited(self, mono: float) -> None:
        """Record the exit of its main process. It withdraws a stop without a signal."""
        after = next_phase(self.phase, Fact.EXITED)
        self.stop_phase = next_stop_phase(self.stop_phase, StopFact.EXIT_FOUND)
        self.phase = after
        self.exited_mono = mono if self.exited_mono is None else self.exited_mono
        if self.stop_phase in (StopPhase.NONE, StopPhase.OVERTAKEN):
            self.kill_at = None

    def exit_reported(self, exit_: Any) -> None:
        """Record the exit that is reported before the end."""
        self.own_exit = exit_

    def finish(self, exit_: Any, elapsed: float | None = None) -> None:
        """Record the end: no process is left, or it never starts. elapsed: seconds."""
        self.phase = next_phase(self.phase, Fact.ENDED)
        self.exit, self.elapsed = exit_, elapsed

    def reported(self, mono: float) -> None:
        """Record that its state was reported."""
        self.reported_mono = mono

    # ---- stop

    def stop(self, reason: str, grace: float, mono: float) -> bool:
        """Request a stop. Return False if it comes after the exit, and so changes nothing."""
        if self.ended or (self.exiting and not self.stopping):
            return False
        if not self.stopping:
            kill_at = self._kill_at(grace, mono)
            self.stop_phase = next_stop_phase(self.stop_phase, StopFact.REQUESTED)
            self._reason, self.grace, self.kill_at = reason, grace, kill_at
        assert self.kill_at is not None
        self.kill_at = min(self.kill_at, mono + grace)
        return True

    def resume_stop(self, reason: str, grace: float, mono: float, *, signaled: bool) -> bool:
        """Continue a stop that an earlier executor recorded. signaled: it may have sent a signal.
        Return False if it came after the exit.
        """
        if signaled and not self.ended:
            # after the exit, the grace period is over
            self.kill_at = mono if self.exiting else self._kill_at(grace, mono)
            self.stop_phase, self._reason, self.grace = StopPhase.SIGNALED, reason, grace
            return True
        return self.stop(reason, grace, mono)

    def stop_recorded(self) -> None:
        self._change_stop(StopFact.RECORDED)

    def exit_missing(self) -> None:
        self._change_stop(StopFact.EXIT_MISSING)

    def signal_recorded(self) -> None:
        self._change_stop(StopFact.SIGNAL_RECORDED)

    def stop_withdrawn(self) -> None:
        self._change_stop(StopFact.WITHDRAWN)

    def start_barred(self) -> None:
        """Record that it can never start, whether or not it is being stopped."""
        self._change_stop(StopFact.START_BARRED)

    def start_not_barred(self) -> None:
        """Record that it may have started, so that an exit of it must be looked for."""
        self._may_bar = False

    def signal_sent(self, step: Step) -> None:
        """Record that SIGTERM or SIGKILL was sent."""
        if step is Step.KILL:
            self.kills += 1
        else:
            self.terminated = True

    # ---- inside

    def _change_stop(self, fact: StopFact) -> None:
        self.stop_phase = next_stop_phase(self.stop_phase, fact)

    def _kill_at(self, grace: float, mono: float) -> float:
        """Return when a first stop kills. The time limit, with its own grace, is a stop, too."""
        return min(mono + grace, max(mono, self._limit_at()) + self.grace)

    def _can_bar(self) -> bool:
        return self.phase in _UNSTARTED and self._may_bar

    def _limit_at(self) -> float:
        """Return when its time limit stops it."""
        if (
            self.limit is None
            or self.started_mono is None
            or self.phase is not Phase.RUNNING
            or self.stop_phase is not StopPhase.NONE
        ):
            return _NEVER
        return self.started_mono + self.limit

    def _leftover_at(self) -> float:
        """Return when processes that outlived the main process are killed."""
        if not self.exiting or self.exited_mono is None or self.stopping:
            return _NEVER
        return self.exited_mono + self._policy.leftover
