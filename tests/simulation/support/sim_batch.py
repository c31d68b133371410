"""An agent's batch operations on a login node: folder, Slurm and time are simulated; all decisions
are those of the real state machine (`jobscribe.protocol.execution`).

Only the folders outlive the agent. Each step takes time, so that anything may happen between two.
"""

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from sim_slurm import WORD_SECS, Entry, Slurm

from jobscribe.protocol.execution.lifecycle import Lifecycle, Policy, Step
from jobscribe.protocol.execution.phases import Phase
from jobscribe.protocol.execution.table import (
    STOPPED_BEFORE,
    ExecutionTable,
    Use,
    never_started,
)
from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.jobs.execution_state import ExecutionState
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.messages import Execution, TaskSpec

if TYPE_CHECKING:
    from sim_agent import Agent
    from sim_machine import Process

#: Slurm ends what the script left, and the script's exit is reported at once.
POLICY = Policy(leftover=None, ending=0.0)
#: Pause between two signals, and the shortest pause (seconds).
_AGAIN_SECS, _SHORTEST_SECS = 2.0, 1e-6


class BatchExecution:
    """One execution of the agent. timer: cancels its planned next step. busy: a step is under way.
    again: it gets no signal before this time (monotonic).
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.life = Lifecycle(POLICY, entry.order.get("limit"), entry.order.get("grace", 3.0))
        self.timer: Callable[[], None] = lambda: None
        self.busy = False
        self.again = float("-inf")

    @property
    def token(self) -> str:
        return str(self.entry.token)

    @property
    def process(self) -> "Process | None":
        return self.entry.process

    @property
    def stop_record(self) -> dict[str, Any] | None:
        return self.entry.stop

    @property
    def never_starts(self) -> bool:
        return self.entry.fenced

    @property
    def ended_by(self) -> str | None:
        """Return the stop reason in its exit."""
        assert isinstance(self.life.exit, ExitInfo)
        return self.life.exit.stop_reason


class BatchSide:
    """The executions of one agent."""

    def __init__(self, agent: "Agent", slurm: Slurm) -> None:
        self.agent, self.slurm, self.time, self.machine = agent, slurm, agent.time, agent.machine
        self.table = ExecutionTable()
        slurm.sides.append(self)

    def close(self) -> None:
        if self in self.slurm.sides:
            self.slurm.sides.remove(self)

    def start(self) -> None:
        """Recover the unacknowledged executions in the folders, report them and continue."""
        left = [e for e in self.slurm.own(self.agent.key).values() if not e.acknowledged]
        if any(e.exit is None for e in left):
            self.time.saw("an agent found batch jobs that an earlier one had submitted")
        recovered = [self._recover(e) for e in left]
        self.agent.do(
            self.agent.session.record_states([self._said(x) for x in recovered], self._mono)
        )
        self.look()

    # ---- requests

    def launch(self, token: Token, spec: TaskSpec, order: dict[str, Any]) -> None:
        if spec.batch is msgspec.UNSET or spec.batch.cluster != self.slurm.name or spec.ports:
            self.slurm.sim.broken(
                f"{token} was sent to {self.slurm.name} with {spec.batch}, ports {spec.ports}"
            )
        x = self._found(token)
        if x is None:
            x = self._use(Entry(token=token, order=order))
        else:
            self.time.saw("an order came for a batch job that was known")
        self._say(x)
        self._advance(x)

    def stop(self, token: Token, reason: str, grace: float) -> None:
        x = self._found(token)
        if x is None:
            x = self._use(Entry(token=token, order={}, fenced=True))
            x.life.stop(reason, grace, self._mono)
            x.life.start_barred()
            self._end(x, self._never(x, STOPPED_BEFORE))
        elif x.life.ended:
            self._say(x)
        elif x.entry.held_until is not None:
            self.release(token)
        elif x.life.stop(reason, grace, self._mono):
            # report nothing until there is something new: a report that the job lives would trigger
            # another stop
            self._advance(x)
        else:
            self.time.saw("a stop came when a batch job had ended by itself")
            self._say(x)

    def release(self, token: Token) -> None:
        x = self._found(token)
        if x is not None and x.entry.held_until is not None:
            self.time.saw("a held allocation was released")
            self.agent.life.after(WORD_SECS, lambda: self.slurm.end_hold(self.agent.key, x.entry))

    def forget(self, tokens: tuple[Token, ...]) -> None:
        for token in self.table.settle(tokens):
            self.slurm.own(self.agent.key)[token].acknowledged = True

    # ---- news

    def look(self) -> None:
        """Handle a change of whether Slurm answers."""
        for x in self.table.live():
            self._say(x)
            self._advance(x)

    def changed(self, entry: Entry) -> None:
        """Handle a change of the folder or of Slurm's state."""
        x = self.table.known.get(entry.token)
        if x is not None and not x.life.ended:
            self._advance(x)
            if not x.life.ended:
                self._say(x)

    # ---- tokens

    def _use(self, entry: Entry) -> BatchExecution:
        """Use a token: its folder is made."""
        self.slurm.own(self.agent.key)[entry.token] = entry
        x = self.table.known[entry.token] = BatchExecution(entry)
        x.life.claimed()
        return x

    def _found(self, token: Token) -> BatchExecution | None:
        own = self.slurm.own(self.agent.key)
        match self.table.use_of(token, lambda: token in own):
            case Use.KNOWN:
                known: BatchExecution = self.table.known[token]
                return known
            case Use.USED:
                own[token].acknowledged = False
                return self._recover(own[token])
            case _:
                return None

    def _recover(self, entry: Entry) -> BatchExecution:
        x = self.table.known[entry.token] = BatchExecution(entry)
        x.life.claimed()
        if entry.exit is not None:
            x.life.finish(entry.exit)
            self.machine.on_act(x)
            return x
        self._observe(x)
        if entry.stop is not None:
            stop = entry.stop
            x.life.resume_stop(stop["reason"], stop["grace"], self._mono, signaled=stop["signaled"])
            if entry.fenced and not x.life.signaled:
                x.life.start_barred()
        return x

    # ---- steps

    def _observe(self, x: BatchExecution) -> None:
        """Read its folder: has it started, has its script exited?"""
        p = x.entry.process
        if p is not None and x.life.phase is Phase.STARTING:
            age = self.time.now - p.started
            x.life.started(p.started + self.time.wall_offset, self._mono - age)
        if x.entry.exited and not x.life.exiting:
            x.life.exited(self._mono)

    def _advance(self, x: BatchExecution) -> None:
        """Perform the next step of an execution, and plan the one after it."""
        x.timer()
        if x.life.ended:
            return
        self._observe(x)
        if x.life.exit_due(self._mono):
            x.life.exit_reported(self._exit(x))
        if not x.busy and not self._ends(x) and not self._submits(x):
            self._step(x)
        self.machine.on_act(x)

    def _step(self, x: BatchExecution) -> None:
        step = x.life.next_step(self._mono)
        if step is Step.CHECK_EXIT:  # `_observe` has just looked
            x.life.exit_missing()
            step = x.life.next_step(self._mono)
        match step:
            case Step.RECORD_STOP:
                self._write_stop(x, signaled=False)
                x.life.stop_recorded()
            case Step.BAR_START if x.entry.process is None:
                x.entry.fenced = True
                x.life.start_barred()
            case Step.BAR_START:
                self.time.saw("a batch job started before its fence could be taken")
                x.life.start_not_barred()
            case Step.RECORD_SIGNAL:
                self._write_stop(x, signaled=True)
                x.life.signal_recorded()
            case Step.WITHDRAW_STOP:
                self.time.saw("a stop of a batch job was withdrawn, for it had just exited")
                x.entry.stop = None
                x.life.stop_withdrawn()
            case _:
                self._signal_or_wait(x, step)
                return
        self._later(x, 0.2 * WORD_SECS, lambda: None)

    def _signal_or_wait(self, x: BatchExecution, step: Step) -> None:
        done = (
            step is Step.NONE
            or (step is Step.TERMINATE and x.life.terminated)
            or (x.process is not None and x.process.ended is not None)
        )
        at = x.life.wake_at(self._mono) if done else x.again
        if done or self._mono < at:
            if at < float("inf"):
                secs = max(_SHORTEST_SECS, at - self._mono)
                x.timer = self.agent.life.after(secs, lambda: self._advance(x))
        elif self._answers():
            self._later(x, WORD_SECS, lambda: self._signal(x, step))

    def _signal(self, x: BatchExecution, step: Step) -> None:
        if x.life.ended or not self._answers():
            return
        self.machine.on_signal(x, step, self.agent.life)
        self.slurm.signal(self.agent.key, x.entry, kill=step is Step.KILL)
        x.life.signal_sent(step)
        if step is Step.KILL:
            x.again = self._mono + _AGAIN_SECS

    def _later(self, x: BatchExecution, secs: float, act: Callable[[], None]) -> None:
        """Act when a command or a file operation is over, then continue."""

        def run() -> None:
            x.busy = False
            act()
            if self.time.strikes("an agent died between two steps of a batch job"):
                self.agent.die()
            else:
                self._advance(x)

        x.busy = True
        longer = 1 if self.time.calm else 1 + 10 * self.time.random.random()
        self.agent.life.after(secs * longer, run)

    def _submits(self, x: BatchExecution) -> bool:
        """Start to submit the job, unless it was submitted or is to be stopped."""
        entry = x.entry
        if entry.job_id is not None or x.life.stopping or not self._answers():
            return False
        self._later(x, WORD_SECS, lambda: self._submit(x))
        return True

    def _submit(self, x: BatchExecution) -> None:
        if (
            not x.life.ended
            and not x.life.stopping
            and self._answers()
            and not self.slurm.submit(self.agent.key, x.entry)
        ):
            self._end(x, self._never(x, "simulated", "batchRefused"))

    def _write_stop(self, x: BatchExecution, *, signaled: bool) -> None:
        x.entry.stop = {
            "reason": x.life.requested_reason,
            "grace": x.life.grace,
            "signaled": signaled,
            "step": self.time.steps,
            "at": self.time.now,
        }

    def _answers(self) -> bool:
        return self.slurm.dark_since is None

    @property
    def _mono(self) -> float:
        return self.agent.host.mono

    # ---- ends and reports

    def _ends(self, x: BatchExecution) -> bool:
        """End an execution of which nothing is left."""
        entry = x.entry
        if x.life.next_step(self._mono) is Step.WITHDRAW_STOP:
            return False
        if entry.impossible and entry.process is None:
            self._bar(x)
            self._end(x, self._never(x, "simulated: it can never start", "neverPossible"))
        elif entry.over and self._answers():
            if entry.process is None:
                self._bar(x)
            self._end(x, self._exit(x))
        elif entry.fenced and entry.job_id is None:
            self._end(x, self._exit(x))
        return x.life.ended

    def _bar(self, x: BatchExecution) -> None:
        x.entry.fenced, x.entry.queued = True, False
        if x.life.stopping:
            x.life.start_barred()

    def _end(self, x: BatchExecution, exit_: ExitInfo) -> None:
        x.entry.exit = x.entry.exit or exit_
        x.life.finish(x.entry.exit)
        self.machine.on_act(x)
        self._say(x)

    def _never(self, x: BatchExecution, detail: str, fault: str | None = None) -> ExitInfo:
        fields = never_started(detail, self.time.wall, x.life.stop_reason, fault)
        return msgspec.convert(fields, ExitInfo)

    def _exit(self, x: BatchExecution) -> ExitInfo:
        p, entry = x.process, x.entry
        if p is None and x.life.barred:
            return self._never(x, STOPPED_BEFORE)
        if p is None:
            return ExitInfo(source="scheduler", detail="simulated", batch=self.slurm.state(entry))
        assert p.ended is not None
        code, signal = p.truth
        return ExitInfo(
            source="scheduler" if p.written is None else "script",
            code=code,
            signal=signal,
            stop_reason=self._cause(x, p),
            batch=self.slurm.state(entry),
            started_at=p.started + self.time.wall_offset,
            ended_at=p.ended + self.time.wall_offset,
        )

    def _cause(self, x: BatchExecution, p: "Process") -> str | None:
        stop = x.entry.stop
        if stop is not None and stop["signaled"] and p.ended is not None and p.ended < stop["at"]:
            self.time.saw("a batch job had ended before a stop that Slurm did not hear")
            return None
        return x.life.stop_reason

    def _say(self, x: BatchExecution) -> None:
        if not x.entry.acknowledged:
            self.agent.do(self.agent.session.record_states([self._said(x)], self._mono))

    def _said(self, x: BatchExecution) -> Execution:
        token, op, p, life = x.entry.token, op_id(x.entry.token, "run"), x.process, x.life
        batch = self.slurm.state(x.entry)
        if life.ended:
            return Execution(
                token=token,
                state=life.state,
                op_id=op,
                pid=p.pid if p is not None else None,
                exit=life.exit,
            )
        if life.state is ExecutionState.STARTING or p is None:
            return Execution(token=token, state=ExecutionState.STARTING, op_id=op, batch=batch)
        # for some jobs only Slurm's state is known
        pid = 0 if zlib.crc32(str(token).encode()) % 4 == 0 else p.pid
        return Execution(
            token=token,
            state=life.state,
            op_id=op,
            pid=pid,
            start_ticks=0,
            started_at=life.started_at,
            elapsed_secs=life.running_secs(self._mono),
            batch=batch,
            exit=life.own_exit,
            held_until=msgspec.UNSET
            if x.entry.held_until is None or life.own_exit is None
            else x.entry.held_until + self.time.wall_offset,
        )
