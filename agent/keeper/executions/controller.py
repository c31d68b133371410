"""All executions of a keeper: each is started once, watched, stopped by order or time limit, and
remembered until the agent forgets it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time

from ....protocol.execution.table import (
    REFUSED_BEFORE,
    STARTED_BEFORE,
    STOPPED_BEFORE,
    ExecutionTable,
    Use,
    never_started,
)
from ....runtime import failpoints, processes
from ....runtime.execution.folder import EXIT
from ..linux.kernel_log import AT_FIRST_SECS, KernelLogReader
from ..linux.priority import REPEAT_SECS, Priorities
from ..loop.log import log
from ..loop.write_retry import WriteRetryQueue
from .evidence import OWN, describe, link_run_dir
from .ledger import KeeperLedger
from .process_sampler import sample_executions
from .recovery import recover_execution, resume_stop
from .start import Environment, Launcher, StartFailed
from .state import Execution
from .stop import Terminator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ....protocol.launch.keeper_messages import (
        ForgetOrder,
        InvalidOrder,
        ReleaseOrder,
        SetEnvironment,
        StartOrder,
        StopOrder,
    )
    from ....runtime.execution.keeper_ledger import Entry
    from ....runtime.execution.output_limit import OutputCap
    from ..linux.cgroups import Cgroups
    from ..loop.event_loop import Loop
    from .process_tracker import ProcessTracker

#: Seconds between checks of output sizes and of main processes that are not children; the short
#: interval applies while output grows fast.
_TICK_SECS, _FAST_TICK_SECS = 0.3, 0.05
#: An execution that succeeds within this time (seconds) leaves no script and no link.
_BRIEF_SECS = 0.2
#: A start is reported after this time (seconds) if the execution has a slot: the end of a short one
#: comes first, and its report says both.
_START_HELD_SECS = 0.01
#: An end that the agent has not stored for about this long (seconds) gets a file.
_UNSTORED_SECS = 5.0
#: Limit of environments that start orders may refer to.
_ENVIRONMENTS_KEPT = 4
_NOTHING = Environment({}, "")


#: An order that waits for a slot is started in the slot of an ended execution for this long.
AHEAD_SECS = 1.0


class ExecutionController:
    """Executes orders. `known` holds every execution that the agent has not forgotten, `running`
    those that have not ended.

    `report` is called for every change, and for every order that changes nothing.
    """

    def __init__(
        self,
        layout: KeeperLedger,
        loop: Loop,
        tracker: ProcessTracker,
        cap: OutputCap,
        cgroups: Cgroups,
        report: Callable[[Execution], None],
    ) -> None:
        self._layout, self._loop, self._cap, self._cgroups, self._report = (
            layout,
            loop,
            cap,
            cgroups,
            report,
        )
        self._boot_id = processes.boot_id()
        self.pending_writes = WriteRetryQueue(loop)
        self._life = processes.life_id()
        self._launcher = Launcher(layout, self._boot_id, self._life, cgroups, self.pending_writes)
        self._table = ExecutionTable()
        self.known: dict[str, Execution] = self._table.known
        self.running: dict[str, Execution] = {}
        self._kernel = KernelLogReader()
        self._priority = Priorities()
        self.terminator = Terminator(
            loop,
            tracker,
            cap,
            cgroups,
            self.pending_writes,
            self.running,
            self._execution_ended,
            report,
            self._kernel,
            layout,
        )
        #: start orders that wait for a slot, with their time of arrival, in this order
        self._ahead: dict[str, tuple[float, StartOrder]] = {}
        self._environments: dict[str, Environment] = {}
        #: set when the keeper ends: nothing is started any more; called when nothing runs
        self.when_idle: Callable[[], None] | None = None

    # ---- orders

    def set_environment(self, order: SetEnvironment) -> None:
        self._environments.pop(order.name, None)
        self._environments[order.name] = Environment(order.variables, order.lines)
        if len(self._environments) > _ENVIRONMENTS_KEPT:
            del self._environments[next(iter(self._environments))]

    def start(self, order: StartOrder) -> None:
        """Start an execution unless its token was used before, then report its state.

        An order that is `ahead` waits until an execution with a slot ends within AHEAD_SECS, or
        until it is released. Nothing is recorded meanwhile: if this keeper or its agent ends, the
        supervisor repeats the order.
        """
        e = self._find(order.name, order.token)
        if e is not None:
            self._report(e)
            return
        if order.slot == "ahead" and self.when_idle is None:
            self._ahead.setdefault(order.name, (time.monotonic(), order))
            return
        self._ahead.pop(order.name, None)
        e = self._new_execution(order.name, order.token)
        e.slot = order.slot is not None
        e.run_dir, e.life.limit, e.core_limit = order.run_dir, order.limit, order.core
        e.life.grace = e.life.grace if order.grace is None else order.grace
        if not self.running:
            self._kernel.skip()
        try:
            if self.when_idle is not None:
                raise StartFailed("the keeper is about to end", consumed=False)
            self._launcher.start(e, order, self._environment(order.environment))
        except StartFailed as error:
            self._fail_start(e, str(error), consumed=error.consumed, fault=error.fault)
            return
        self._add(e)
        self.terminator.schedule(e)
        if e.slot:
            at = time.monotonic() + _START_HELD_SECS
            self._loop.call_at(("started", e.name), at, lambda: self._report(e))
        else:
            self._report(e)

    def refuse(self, order: InvalidOrder) -> None:
        """Report that an order starts nothing because it is invalid. It does not use its token."""
        assert order.name is not None
        e = self._find(order.name, order.token)
        if e is not None:
            self._report(e)
            return
        self._fail_start(self._new_execution(order.name, order.token), str(order), consumed=False)

    def stop(self, order: StopOrder) -> None:
        """Stop an execution. If it has not started yet, it will never start."""
        e = self._find(order.name, order.token)
        if e is None:
            self._ahead.pop(order.name, None)
            self._bar_start(order)
        elif e.life.ended:
            self._report(e)
        else:
            self.terminator.stop(e, order.reason, order.grace)

    def forget(self, order: ForgetOrder) -> None:
        """Forget ended executions, which the agent has stored. Their evidence stays."""
        names = self._table.ended(order.names)
        self._layout.remove_entries(names)
        failpoints.reached("keeper.struck")
        self._table.settle(names)

    def release(self, order: ReleaseOrder) -> None:
        """Start an execution that waits for a slot. Do nothing if it does not wait any more."""
        if order.name in self._ahead:
            self._start_waiting(self._ahead[order.name][1])

    def forget_waiting(self) -> None:
        """Drop the orders that wait for a slot: a new agent does not know them."""
        self._ahead.clear()

    def stop_all(self, reason: str, grace: float) -> None:
        self._ahead.clear()
        for e in list(self.running.values()):
            self.terminator.stop(e, reason, grace)

    def write_exit_files(self) -> None:
        """Write `exit.json` for ends that the agent has not stored yet. Keepers of earlier versions
        do not read ends in the ledger.
        """
        for e in self.known.values():
            if not e.recorded and (e.life.exit or {}).get("code") == 0:
                e.recorded = True
                self.pending_writes.write(f"{e.folder}/{EXIT}", e.life.exit)

    def recover(self) -> None:
        """Take over the executions of an earlier keeper."""
        for name, entry in self._layout.open().items():
            if os.path.isdir(self._layout.evidence(name)):
                self._take_over(name, entry.token, entry)
            else:  # that keeper ended before it consumed the token: nothing was started
                self._layout.remove_entries([name])
        if self.running:
            self._kernel.read(AT_FIRST_SECS)
        for cgroup in self._cgroups.existing():
            self.terminator.remove_cgroup(cgroup)

    # ---- inside

    def _new_execution(self, name: str, token: str) -> Execution:
        return Execution(name, token, self._layout.evidence(name))

    def _environment(self, name: str | None) -> Environment:
        """Return the environment that an order refers to. Raises StartFailed (not consumed)."""
        if name is None:
            return _NOTHING
        if name not in self._environments:
            raise StartFailed(f"the keeper does not know the environment {name!r}", consumed=False)
        return self._environments[name]

    def _find(self, name: str, token: str) -> Execution | None:
        """Return the execution of an order, or None if it is unknown."""
        match self._table.use_of(name, lambda: os.path.lexists(self._layout.evidence(name))):
            case Use.KNOWN:
                return self.known[name]
            case Use.USED if not os.path.isdir(self._layout.evidence(name)):
                return self._removed(name, token)
            case Use.USED:
                return self._take_over(name, token)
            case Use.REFUSED:
                e = self.known[name] = self._new_execution(name, token)
                e.finish(never_started(REFUSED_BEFORE, time.time()))
                return e
            case Use.FREE:
                return None

    def _removed(self, name: str, token: str) -> Execution:
        """Return an execution that ended long ago: only its name is left of its evidence."""
        e = self.known[name] = self._new_execution(name, token)
        e.finish(never_started(STARTED_BEFORE, time.time()))
        return e

    def _bar_start(self, order: StopOrder) -> None:
        """Use the token of an execution that is stopped before its start."""
        e = self._new_execution(order.name, order.token)
        e.life.stop(order.reason, order.grace, time.monotonic())
        try:
            self._launcher.consume(e)
        except StartFailed as error:
            self._fail_start(e, f"{STOPPED_BEFORE}, but {error}", consumed=False)
            return
        e.life.start_barred()
        self._fail_start(e, STOPPED_BEFORE, consumed=True)

    def _fail_start(
        self, e: Execution, detail: str, *, consumed: bool, fault: str | None = None
    ) -> None:
        """Record and report a start that failed for good."""
        exit_ = never_started(detail, time.time(), e.life.requested_reason, fault)
        if consumed:
            self.pending_writes.write(f"{e.folder}/{EXIT}", exit_)
        else:
            self._table.refuse(e.name)
        e.finish(exit_)
        self.known[e.name] = e
        self._report_end(e)

    def _take_over(self, name: str, token: str, entry: Entry | None = None) -> Execution:
        """Take over an execution of an earlier keeper. entry: of the ledger; None: it is forgotten."""
        e = recover_execution(
            name, token, entry, self._layout, self._boot_id, self._life, self._cgroups
        )
        self.known[name] = e
        if e.life.ended:
            if not e.recorded:
                self.pending_writes.write(f"{e.folder}/{EXIT}", e.life.exit)
            if e.cgroup is not None:
                self.terminator.remove_cgroup(e.cgroup)
            return e
        log(
            f"{e.token} was started by an earlier keeper; "
            + ("its main process has ended" if e.life.exiting else f"it runs, pid {e.pid}")
        )
        if not e.life.exiting:
            self._launcher.record_start(e)
        if e.run_dir is not None and not os.path.lexists(f"{e.run_dir}/{OWN}"):
            link_run_dir(e)
        self._cap.remember(e)
        self._add(e)
        if not e.life.exiting:
            self._watch(e)
        resume_stop(e)
        self.terminator.advance(e)
        return e

    def _add(self, e: Execution) -> None:
        for other in self.running.values():
            other.alone = e.alone = False
        self.known[e.name] = self.running[e.name] = e
        if not self._loop.has_timer("tick"):
            self._loop.call_at("tick", time.monotonic() + _FAST_TICK_SECS, self._tick)

    def _watch(self, e: Execution) -> None:
        """Watch for the end of a process that is not a child. Kernels without pidfd: `_tick` polls."""
        assert e.pid is not None and e.ticks is not None
        try:
            e.pidfd = os.pidfd_open(e.pid)
        except (OSError, AttributeError):
            return
        self._loop.watch(e.pidfd, selectors.EVENT_READ, lambda _: self._main_gone(e))

    def _main_gone(self, e: Execution) -> None:
        self.terminator.main_ended(e)
        self.terminator.advance(e)

    def _tick(self) -> None:
        fast = False
        now = time.monotonic()
        for e in list(self.running.values()):
            if (e.life.running_secs(now) or 0.0) >= _BRIEF_SECS:
                with contextlib.suppress(
                    OSError
                ):  # for example a full disk: the next tick repeats it
                    describe(e)
                if e.cgroup is not None:
                    e.cgroup.use_once()
            fast = self._cap.apply(e) or fast
            if (
                not e.own
                and not e.life.exiting
                and e.pid is not None
                and e.ticks is not None
                and not processes.alive(e.pid, e.ticks)
            ):
                self._main_gone(e)
        sample_executions(self.running.values(), self._priority)
        self._repeat_priority()
        self._kernel.read()
        if self.running:
            self._loop.call_at(
                "tick", time.monotonic() + (_FAST_TICK_SECS if fast else _TICK_SECS), self._tick
            )

    def lower_own(self, pid: int, nice: int) -> None:
        """Lower the priority of this keeper or of its agent."""
        self._priority.lower_own(pid, nice)
        self._repeat_priority()

    def _repeat_priority(self) -> None:
        if self._priority.waiting() and not self._loop.has_timer("priority"):
            self._loop.call_at("priority", time.monotonic() + REPEAT_SECS, self._lower_waiting)

    def _lower_waiting(self) -> None:
        self._priority.repeat()
        self._repeat_priority()

    def _report_end(self, e: Execution) -> None:
        """Report an end, and start the execution that has waited longest for the slot. The report
        names it, so that the supervisor gives it the slot.
        """
        self._loop.cancel(("started", e.name))
        following = self._next_ahead() if e.slot and self.when_idle is None else None
        if following is None:
            self._report(e)
            return
        e.successor = following.token
        self._report(e)
        self._start_waiting(following)

    def _next_ahead(self) -> StartOrder | None:
        """Return the order that has waited longest, unless it is old. The supervisor starts an old
        one, so that runs that take long delay another user's run by one of them only.
        """
        for arrived, order in self._ahead.values():
            return order if time.monotonic() - arrived <= AHEAD_SECS else None
        return None

    def _start_waiting(self, order: StartOrder) -> None:
        order.slot = "held"
        try:
            self.start(order)
        except OSError as error:  # a resource is exhausted; the supervisor has given it the slot
            log(f"{order.token} cannot start yet, retrying: {error}")
            self._loop.call_at(
                ("start", order.name),
                time.monotonic() + _TICK_SECS,
                lambda: self._start_waiting(order),
            )

    def _execution_ended(self, e: Execution) -> None:
        self._report_end(e)
        if not self._loop.has_timer("exit files"):
            at = time.monotonic() + _UNSTORED_SECS
            self._loop.call_at("exit files", at, self.write_exit_files)
        if not self.running and self.when_idle is not None:
            self.when_idle()
