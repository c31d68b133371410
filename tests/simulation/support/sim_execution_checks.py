"""Checks of the state machine of executions, independent of it: they compare the state machine with
the disk, the processes and the order of the simulator's steps.

A keeper or batch agent notifies them before each signal and after each change of an execution.
"""

from typing import TYPE_CHECKING, Any, Protocol

from jobscribe.protocol.execution.lifecycle import Lifecycle, Step
from jobscribe.protocol.execution.phases import StopPhase
from jobscribe.protocol.jobs.exit_info import ExitInfo

if TYPE_CHECKING:
    from sim_machine import Process
    from sim_time import Life
    from simulator import Simulator

#: Phases of a stop that have a record on disk.
_ON_RECORD = (StopPhase.RECORDED, StopPhase.CLEARED, StopPhase.SIGNALED)
#: Longest delay of SIGKILL after the end of the grace period (seconds).
_LATE_SECS = 0.01


class Executing(Protocol):
    """An execution of a keeper or batch agent. stop_record: its stop.json. never_starts: its token
    is used, and a start is impossible. ended_by: stop reason in its exit.
    """

    @property
    def token(self) -> str: ...
    @property
    def life(self) -> Lifecycle: ...
    @property
    def process(self) -> "Process | None": ...
    @property
    def stop_record(self) -> dict[str, Any] | None: ...
    @property
    def never_starts(self) -> bool: ...
    @property
    def ended_by(self) -> str | None: ...


class ExecutionChecks:
    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self.machine = sim, sim.time, sim.machine
        sim.machine.on_signal, sim.machine.on_act = self._signal, self._acted
        sim.machine.on_stop = self._asked
        #: executions that changed in this step
        self._changed: list[Executing] = []
        #: executions that were live, and the state of ended ones, by id (the value keeps the object
        #: alive)
        self._live: dict[int, Lifecycle] = {}
        self._ends: dict[int, tuple[Lifecycle, object]] = {}
        #: exits by token, with the boot in which they were recorded
        self._exits: dict[str, tuple[int, ExitInfo | dict[str, Any]]] = {}
        #: earliest end of a requested grace period, on the simulator's clock
        self._kill_at: dict[int, tuple[Lifecycle, float]] = {}

    def _asked(self, e: Executing, grace: float) -> None:
        """Note the end of the grace period of a request to stop."""
        at = self.time.now + grace
        _, before = self._kill_at.get(id(e.life), (e.life, at))
        self._kill_at[id(e.life)] = e.life, min(before, at)

    def _acted(self, e: Executing) -> None:
        self._changed.append(e)

    def _signal(self, e: Executing, step: Step, host: "Life") -> None:
        record, p = e.stop_record, e.process
        exited = p is not None and p.ended is not None
        if not exited and not e.never_starts and (record is None or not record["signaled"]):
            self.sim.broken(f"{e.token} gets a signal ({step}), and its record is {record}")
        _, at = self._kill_at.get(id(e.life), (None, self.time.now))
        late = self.time.now - at
        if step is Step.KILL and not exited and late > _LATE_SECS and host.thawed_at < at:
            self.sim.broken(f"{e.token} is killed {late:.2f} s after its shortest grace period")

    def step(self) -> None:
        """Check the executions that changed in this step."""
        if not self._changed:
            return
        for e in self._changed:
            if e.life.ended:
                self._end(e)
            else:
                self._stop(e)
                if id(e.life) not in self._live:
                    self._live[id(e.life)] = e.life
                    self._alone(e)
        self._changed.clear()

    def _stop(self, e: Executing) -> None:
        life, record = e.life, e.stop_record
        if life.stop_phase is StopPhase.NONE:
            left = (life.stop_reason, life.requested_reason, life.kill_at)
            if left != (None, None, None) or (record is not None and record["signaled"]):
                self.sim.broken(f"{e.token} is not being stopped, and has {left} and {record}")
        if life.stop_phase in _ON_RECORD and (
            record is None
            or record["reason"] != life.requested_reason
            or record["signaled"] != life.signaled
        ):
            self.sim.broken(
                f"the stop of {e.token} is {life.stop_phase} ({life.requested_reason}), its record is {record}"
            )

    def _alone(self, e: Executing) -> None:
        """Check that no other keeper or agent has a live execution of this token."""
        tables = [k.table for k in self.machine.live_keepers()]
        tables += [
            side.table
            for slurm in self.machine.slurms.values()
            for side in slurm.sides
            if side.agent is side.agent.keeper.agent and not side.agent.keeper.life.over
        ]
        n = sum(x.token == e.token for table in tables for x in table.live())
        if n > 1:
            self.sim.broken(f"{n} executions of {e.token} live")

    def _end(self, e: Executing) -> None:
        state = tuple(getattr(e.life, s) for s in Lifecycle.__slots__ if s != "reported_mono")
        if id(e.life) in self._ends:
            if self._ends[id(e.life)][1] != state:
                self.sim.broken(f"{e.token} had ended, and changed: {self._ends[id(e.life)]}")
            return
        self._ends[id(e.life)] = e.life, state
        boot, exit_ = self._boot(e), e.life.exit
        before = self._exits.get(e.token)
        if before is not None and before[1] == exit_:
            return  # read from the disk
        if before is not None and before[0] == boot and e.process is not None:
            self.sim.broken(f"{e.token} had ended with {before[1]}, and ended with {exit_}")
        self._exits[e.token] = boot, exit_
        self._cause(e)

    def _boot(self, e: Executing) -> int:
        """Return the boot of its host: a power cut may take its exit from the disk."""
        return 0 if e.process is None else self.machine.host(e.process.host).boot

    def _cause(self, e: Executing) -> None:
        """Check the stop reason in an exit: it implies a signal that is on record and came before
        the exit, or a start that is impossible.
        """
        reason, record, p = e.ended_by, e.stop_record, e.process
        signaled = record is not None and record["signaled"]
        if p is None:
            if reason is not None and not signaled and not e.never_starts:
                self.sim.broken(f"{e.token} ended by {reason}, and may still start")
            return
        if reason is None:
            # the scheduler told of the end after the signal
            late = p.ended_step is not None and signaled and p.ended_step < record["step"]
            if signaled and not (late and "at" in record):
                self.sim.broken(f"{e.token} ended without a reason, its record is {record}")
            return
        if record is None or not signaled or record["reason"] != reason:
            self.sim.broken(f"{e.token} ended by {reason}, and its record is {record}")
        elif p.ended_step is None or p.ended_step < record["step"]:
            self.sim.broken(f"{e.token} ended by {reason}, and had exited before the signal")
