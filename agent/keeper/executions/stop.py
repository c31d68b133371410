"""Stop and end of executions: performs the steps of `protocol.execution.lifecycle`. An execution ends
when its main process has ended and no other process of it is left.

Searching and signalling repeat until no process is found, because a job may fork meanwhile. Zombies
do not count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ....protocol.execution.lifecycle import Step
from ....runtime import failpoints, processes
from ....runtime.execution import wait_status
from ....runtime.execution.folder import STOP, written_code
from ..loop.log import log
from . import exit_facts, exit_info
from .core_collection import CoreCollection
from .earlier_reaper import will_record
from .evidence import describe, give_spare_files, write_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ....runtime.execution.output_limit import OutputCap
    from ....runtime.processes import Process
    from ..linux.cgroups import Cgroup, Cgroups
    from ..linux.kernel_log import KernelLogReader
    from ..loop.event_loop import Loop
    from ..loop.write_retry import WriteRetryQueue
    from .ledger import KeeperLedger
    from .process_tracker import ProcessTracker
    from .state import Execution

#: Pauses (seconds) between rounds: the first during the grace period, the first while killing, and
#: the longest.
_TERM_PAUSE, _KILL_PAUSE, _LONGEST_PAUSE = 0.02, 0.001, 0.2
#: Longest time (seconds) to wait for the reaper's record of an exit.
_RECORD_SECS = 10.0
#: Longest pause (seconds) between attempts to remove a cgroup.
_SELDOM_SECS = 60.0
#: Rounds of killing adopted children without a pause, against jobs that fork as fast as they are
#: killed.
_QUICK_ROUNDS = 50
#: Rounds of killing after which surviving processes are logged.
_SAY_AFTER = 50


class Terminator:
    """Ends executions.

    running: executions that have not ended, by name; the terminator removes them. finished: called
    for each that ended. exited: called for each whose main process has ended while other processes
    of it take time to end.
    """

    def __init__(
        self,
        loop: Loop,
        tracker: ProcessTracker,
        cap: OutputCap,
        cgroups: Cgroups,
        writes: WriteRetryQueue,
        running: dict[str, Execution],
        finished: Callable[[Execution], None],
        exited: Callable[[Execution], None],
        kernel: KernelLogReader,
        layout: KeeperLedger,
    ) -> None:
        self._kernel, self._exited, self._layout = kernel, exited, layout
        self._loop, self._tracker, self._cap, self._cgroups, self._writes = (
            loop,
            tracker,
            cap,
            cgroups,
            writes,
        )
        self._running, self._finished = running, finished
        self._cores = CoreCollection()

    def children_changed(self) -> None:
        """Handle SIGCHLD: main processes may have ended, orphans may have arrived or ended."""
        for e in self._running.values():
            self._check_main(e)
        self.reap_children()
        for e in [e for e in self._running.values() if e.life.exiting and e.own]:
            if not self._has_adopted(e) and not _has_processes(e):
                self._end(e)
            elif not self._loop.has_timer(("step", e.name)):
                self.advance(e)

    def _check_main(self, e: Execution) -> None:
        """Record the end of the main process if it is our child and has ended."""
        # not reaped yet: while the zombie stays, its pid, group and session cannot be reused
        if e.own and not e.life.exiting:
            e.main_seen = os.waitid(os.P_PID, _pid(e), os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if e.main_seen is not None:
                self.main_ended(e)

    def main_ended(self, e: Execution) -> None:
        """Record that the main process has just ended."""
        self._loop.cancel(("step", e.name))
        if e.pidfd >= 0:
            self._loop.unwatch(e.pidfd)
            os.close(e.pidfd)
            e.pidfd = -1
        e.life.exited(exit_info.exited_mono(e, self._loop.since))

    def reap_children(self) -> None:
        """Adopt orphans, reap ended ones, and kill those that no running job can have left."""
        self._cores.reap()
        self._tracker.reap_children(
            {_pid(e) for e in self._running.values() if e.own} | self._cores.pids,
            self._running.values(),
        )
        if not self._running:
            for pid in self._tracker.adopted_of(None):
                log(f"process {pid} belongs to no running job: killed")
                self._tracker.kill_adopted(pid)

    def stop(self, e: Execution, reason: str, grace: float) -> None:
        """Stop an execution. grace: seconds between SIGTERM and SIGKILL."""
        e.life.stop(reason, grace, time.monotonic())
        self.advance(e)

    def schedule(self, e: Execution) -> None:
        """Advance an execution when its next step is due."""
        now = time.monotonic()
        at = e.life.wake_at(now) if e.life.next_step(now) is Step.NONE else now
        if at < float("inf"):
            self._loop.call_at(("step", e.name), at, lambda: self.advance(e))

    def advance(self, e: Execution) -> None:
        """Perform the steps that are due. Repeat signals until the execution has ended."""
        if e.life.ended:
            return
        began, step = time.monotonic(), self._record_stop(e)
        if step is Step.NONE:
            self.schedule(e)
            return
        left = self._processes_of(e)
        now = time.monotonic()
        if e.life.exiting and not left and not self._has_missed_orphan(e):
            if _awaits_record(e, now):
                self._loop.call_at(("step", e.name), now + _TERM_PAUSE, lambda: self.advance(e))
            else:
                self._end(e)
            return
        self._report_exit(e, now)
        if step is Step.KILL:
            e.pause = e.pause if e.life.kills else _KILL_PAUSE / 2
            self._kill(e, left)
        else:
            self._terminate(e, left)
        e.life.signal_sent(step)
        pause = self._next_pause(e, _KILL_PAUSE if step is Step.KILL else _TERM_PAUSE)
        # a grace period that ended since `began` is due at once
        at = min(now + pause, e.life.wake_at(began))
        self._loop.call_at(("step", e.name), at, lambda: self.advance(e))

    def _record_stop(self, e: Execution) -> Step:
        """Perform the steps before a signal. Return the next one: a signal or none."""
        path = f"{e.folder}/{STOP}"
        while True:
            match step := e.life.next_step(time.monotonic()):
                case Step.RECORD_STOP:
                    self._writes.write(path, _stop_record(e, signaled=False))
                    failpoints.reached("keeper.stopping")
                    e.life.stop_recorded()
                case Step.CHECK_EXIT:
                    self._look_for_exit(e)
                case Step.WITHDRAW_STOP:
                    self._writes.delete(path)
                    e.life.stop_withdrawn()
                case Step.RECORD_SIGNAL:
                    self._writes.write(path, _stop_record(e, signaled=True))
                    e.life.signal_recorded()
                case _:
                    return step

    def _look_for_exit(self, e: Execution) -> None:
        self._check_main(e)
        if not e.life.exiting and not e.own and _has_ended(e):
            self.main_ended(e)
        if not e.life.exiting:
            e.life.exit_missing()

    def _has_missed_orphan(self, e: Execution) -> bool:
        """Return whether an orphan is left that a walk through /proc missed.

        A process that forks and exits all the time may be missed there, but not among our children.
        """
        if not e.own:
            return False
        self.reap_children()
        return self._has_adopted(e)

    def _next_pause(self, e: Execution, shortest: float) -> float:
        e.pause = min(_LONGEST_PAUSE, max(shortest, 2 * e.pause))
        return e.pause

    def _terminate(self, e: Execution, left: list[Process]) -> None:
        """Send SIGTERM once to each process, also to new ones; SIGCONT wakes stopped ones for it.

        A process that has called exec since gets it again: between fork and exec a shell may have
        handled the signal. Parents come first: a shell that sees its command die first would report
        an ordinary exit.
        """
        for p in left:
            target = (p.pid, p.ticks, processes.image(p.pid))
            if target not in e.terminated:
                e.terminated.add(target)
                processes.send_signal(p.pid, p.ticks, signal.SIGTERM)
                processes.send_signal(p.pid, p.ticks, signal.SIGCONT)

    def _kill(self, e: Execution, left: list[Process]) -> None:
        if e.life.exiting:
            e.survivors.update((p.pid, p.ticks) for p in left if p.pid != e.pid)
        if e.cgroup is not None:
            e.cgroup.kill()
        if e.own:
            # the whole group at once: no member can escape by forking
            os.killpg(_pid(e), signal.SIGKILL)
        for p in left:
            if not processes.send_signal(p.pid, p.ticks, signal.SIGKILL):
                self._tracker.ignore_if_foreign(p.pid, p.ticks)
        if e.own and e.life.exiting:
            self._kill_orphans(e)
        if e.life.kills == _SAY_AFTER:
            log(
                f"{len(left)} processes of {e.token} survive SIGKILL, the first is {left[0].pid if left else None}; retrying"
            )

    def _kill_orphans(self, e: Execution) -> None:
        """Kill orphans in quick rounds: children of a killed process become ours, and so do those
        of a process that forks and exits to escape.
        """
        for _ in range(_QUICK_ROUNDS):
            orphans = self._adopted(e)
            if not orphans:
                return
            for pid in orphans:
                e.survivors.add((pid, self._tracker.adopted[pid][0]))
                self._tracker.kill_adopted(pid)
            self.reap_children()

    def _processes_of(self, e: Execution) -> list[Process]:
        return self._tracker.members(e, with_unknown=self._is_last(e))

    def _adopted(self, e: Execution) -> list[int]:
        return self._tracker.adopted_of(e.name) + (
            self._tracker.adopted_of(None) if self._is_last(e) else []
        )

    def _has_adopted(self, e: Execution) -> bool:
        return bool(self._adopted(e))

    def _is_last(self, e: Execution) -> bool:
        """Return whether it is the last running execution.

        Then orphans without an owner belong to it or to an ended execution.
        """
        return len(self._running) == 1 and e.name in self._running

    def remove_cgroup(self, cgroup: Cgroup, pause: float = _TERM_PAUSE) -> None:
        """Kill what an earlier keeper left in this cgroup and remove it; retry with growing pauses."""
        if cgroup.name in self._running:
            return
        if not cgroup.remove():
            left = cgroup.pids()
            if left:
                log(
                    f"{len(left)} processes were left in the cgroup of {cgroup.name}, which has ended: killed"
                )
                cgroup.kill()
            longer = min(2 * pause, _SELDOM_SECS)
            self._loop.call_at(
                ("cgroup", cgroup.name),
                time.monotonic() + pause,
                lambda: self.remove_cgroup(cgroup, longer),
            )

    def _release_cgroup(self, e: Execution, *, keep: bool) -> None:
        """Remove the execution's cgroup, or keep it for the next one. Retry later if a process is
        still exiting.
        """
        cgroup, e.cgroup = e.cgroup, None
        if cgroup is None or (keep and self._cgroups.keep(cgroup)):
            return
        if not cgroup.remove():
            self._loop.call_at(
                ("cgroup", cgroup.name),
                time.monotonic() + _TERM_PAUSE,
                lambda: self.remove_cgroup(cgroup),
            )

    def _facts(self, e: Execution, exit_: dict[str, Any]) -> dict[str, Any]:
        """Return facts about a failed exit; none if they cannot be collected."""
        if exit_.get("code") == 0:
            return {}
        try:
            return {
                "facts": exit_facts.collect_exit_facts(e, exit_, self._cgroups.around, self._kernel)
            }
        except (OSError, ValueError) as error:
            log(f"cannot collect facts about the end of {e.token}: {error}")
            return {}

    def _report_exit(self, e: Execution, now: float) -> None:
        """Report the exit of the main process if the rest of the execution takes time to end."""
        if e.life.exit_due(now) and (exit_ := exit_info.from_ended_main(e)) is not None:
            e.life.exit_reported(exit_)
            self._exited(e)

    def _end(self, e: Execution) -> None:
        """Finish an execution without processes, as soon as its core files are collected."""
        if e.core_limit and self._cores.is_pending(e, exit_info.from_ended_main(e)):
            now = time.monotonic()
            self._report_exit(e, now)
            self._loop.call_at(("step", e.name), now + _LONGEST_PAUSE, lambda: self.advance(e))
            return
        self._finish(e)

    def _finish(self, e: Execution) -> None:
        """Write the exit info, reap the main process and report the end, then tidy up: others can
        work meanwhile.

        The process stays a zombie until its exit is recorded: if this keeper is killed before, its
        reaper records the exit.
        """
        if e.own:
            exit_ = exit_info.from_parent(e)
        else:
            exit_ = exit_info.from_evidence(
                e, exit_info.KILLED_UNSEEN if e.pid is not None else exit_info.NOTHING_LEFT
            )
            if exit_["source"] == "lost" and e.life.kills and e.life.stop_reason is not None:
                exit_ = {
                    "source": "keeper",
                    "startedAt": e.life.started_at,
                    "signal": int(signal.SIGKILL),
                }
        failpoints.reached("keeper.seen")
        if exit_.get("code") != 0:
            with contextlib.suppress(OSError):  # for example a full disk
                describe(e)
        self._cap.apply(e, last=True)
        exit_ |= exit_facts.out_of_memory_fields(e, exit_, self._cgroups.around)
        exit_ |= self._facts(e, exit_)
        exit_ |= self._cores.fields(e)
        exit_ = exit_info.with_final_fields(e, exit_, self._cap.dropped_bytes(e))
        if e.survivors:
            log(
                f"{len(e.survivors)} processes of {e.token} outlived its main process and were killed"
            )
        write_exit(e, exit_, self._layout, self._writes)
        failpoints.reached("keeper.ended")
        if e.own:
            os.waitpid(_pid(e), 0)
        e.finish(exit_)
        e.close_lock()
        del self._running[e.name]
        self._tracker.forget(e.name)
        self._loop.cancel(("step", e.name))
        try:
            self._finished(e)
        finally:
            succeeded = exit_.get("code") == 0
            if succeeded:
                give_spare_files(e, self._layout)
            self._release_cgroup(e, keep=succeeded)


def _stop_record(e: Execution, *, signaled: bool) -> dict[str, Any]:
    return {
        "reason": e.life.requested_reason,
        "grace": e.life.grace,
        "at": time.time(),
        "signaled": signaled,
    }


def _has_ended(e: Execution) -> bool:
    """Return whether an execution that an earlier keeper started has ended by itself."""
    if not e.direct:
        return written_code(e.folder) is not None
    return e.pid is not None and e.ticks is not None and not processes.alive(e.pid, e.ticks)


def _awaits_record(e: Execution, now: float) -> bool:
    """Return whether a reaper is about to record the exit of this execution."""
    if e.own or not e.direct or e.pid is None or now > (e.life.exited_mono or now) + _RECORD_SECS:
        return False
    main = processes.find(e.pid)
    if main is None or main.ticks != e.ticks:
        return False
    return wait_status.read(e.folder, e.pid, e.ticks) is None and will_record(main)


def _has_processes(e: Execution) -> bool:
    return e.cgroup is not None and bool(e.cgroup.pids())


def _pid(e: Execution) -> int:
    assert e.pid is not None
    return e.pid
