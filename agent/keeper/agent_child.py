"""The keeper's agent process: started, sent the keeper's state, and restarted when it ends.

Jobs are not affected when an agent ends.
"""

from __future__ import annotations

import os
import signal
import socket
import time

from ...protocol.launch.keeper_messages import (
    InvalidOrder,
    Ping,
    Started,
    StartupFailure,
    parse_order,
)
from ...protocol.launch.keeper_reports import Pong
from ...protocol.launch.message_fields import encode
from ...runtime import processes
from .executions.process_tracker import AGENT
from .loop.line_channel import Channel
from .loop.log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...protocol.launch.keeper_messages import Order
    from ...protocol.launch.keeper_reports import Hello
    from ...runtime.processes import Process
    from .executions.process_tracker import ProcessTracker
    from .executions.state import Execution
    from .loop.event_loop import Loop

#: Pause (seconds) before a restart: doubles with every agent that ended before `_LONG_LIFE`.
_FIRST_PAUSE, _LONGEST_PAUSE, _LONG_LIFE = 0.1, 5.0, 30.0
#: An agent that sent nothing and ended before this time (seconds) counts as a failed start. The
#: start is reported as failed after `_TRIES` of them.
_NO_LIFE_SECS, _TRIES = 1.0, 3
#: Time in seconds for an agent to end after it closed its end of the socket.
_EXIT_SECS = 2.0
#: Processes left by the agent get SIGTERM first: a user's login profile may hold a lock. Check
#: interval, and time until SIGKILL (seconds).
_LOOK_SECS, _TERM_SECS = 0.02, 1.0


class AgentChild:
    """Starts, replaces and ends the agent of a keeper.

    `spawn(socket)` starts an agent, as leader of its own session, with that end of the socket pair,
    and returns its pid.

    started_agent: pid and socket of an agent that was started before the keeper was.

    on_started: called once, with None as soon as an agent has started, or with the reason why none
    can start. on_agent: called with the pid of each agent. life_secs: an agent that lives this long
    counts as started even if it sends nothing. on_ready: called with the pid of each agent that says
    it has started.
    """

    def __init__(
        self,
        loop: Loop,
        tracker: ProcessTracker,
        spawn: Callable[[socket.socket], int],
        hello: Callable[[], Hello],
        on_order: Callable[[Order], None],
        on_invalid: Callable[[InvalidOrder], None],
        known: dict[str, Execution],
        on_started: Callable[[str | None], None] | None = None,
        started_agent: tuple[int, socket.socket] | None = None,
        on_agent: Callable[[int], None] = lambda pid: None,
        life_secs: float = _NO_LIFE_SECS,
        on_ready: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._loop, self._tracker, self._spawn, self._hello = loop, tracker, spawn, hello
        self._on_order, self._on_invalid, self._known = on_order, on_invalid, known
        self._channel: Channel | None = None
        self._unreported: dict[str, None] = {}
        self._pause = _FIRST_PAUSE
        self._since = 0.0
        self._on_started, self._failures, self._failure = on_started, 0, ""
        self._started_agent, self._life_secs = started_agent, life_secs
        self._on_agent, self._on_ready = on_agent, on_ready
        if started_agent is not None:
            tracker.agent_pid = started_agent[0]
        #: set when the keeper ends: no agent is started any more, and this is called when the agent
        #: has ended
        self._when_gone: Callable[[], None] | None = None

    @property
    def pid(self) -> int | None:
        return self._tracker.agent_pid

    def start(self) -> None:
        try:
            pid, ours = self._started_agent or self._spawn_agent()
        except OSError as error:
            log(f"the agent cannot be started: {error.strerror}")
            self._schedule_restart()
            self._start_failed(
                f"the agent cannot be started: {error.strerror}"
                + (f": {error.filename}" if error.filename else "")
            )
            return
        was_started, self._started_agent = self._started_agent is not None, None
        self._tracker.agent_pid, self._since = pid, time.monotonic()
        self._on_agent(pid)
        self._unreported.clear()
        self._failure = ""
        self._channel = Channel(
            ours, self._loop, self._received, self._disconnected, self._catch_up
        )
        self._channel.send(encode(self._hello()))
        if self._on_started is not None:
            self._loop.call_at(
                "agent started", time.monotonic() + self._life_secs, self._agent_started
            )
        if was_started:  # it may have ended before SIGCHLD was handled
            self.child_changed()

    def _spawn_agent(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        try:
            return self._spawn(theirs), ours
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    def report(self, e: Execution) -> None:
        """Report a change of one execution to the agent.

        While the agent does not read, only the names of changed executions are kept.
        """
        if self._channel is None or self._channel.closed:
            return  # the hello to the next agent contains the change
        if self._channel.full or self._unreported:
            self._unreported[e.name] = None
        else:
            self._channel.send(e.report().encode_change())

    def _received(self, message: dict[str, Any]) -> None:
        try:
            order = parse_order(message)
        except InvalidOrder as error:
            self._agent_started()
            self._on_invalid(error)
            return
        if isinstance(order, StartupFailure):
            self._failure = order.sentence
            return
        self._agent_started()
        if isinstance(order, Ping):
            if self._channel is not None:
                self._channel.send(encode(Pong(number=order.number)))
        elif not isinstance(order, Started):
            self._on_order(order)
        elif self.pid is not None:
            self._on_ready(self.pid)

    def _agent_started(self) -> None:
        self._loop.cancel("agent started")
        on_started, self._on_started = self._on_started, None
        if on_started is not None:
            on_started(None)

    def _start_failed(self, sentence: str) -> None:
        self._loop.cancel("agent started")
        self._failures += 1
        if self._failures >= _TRIES and self._on_started is not None:
            on_started, self._on_started = self._on_started, None
            on_started(sentence)

    def end(self, grace: float, when_gone: Callable[[], None]) -> None:
        """End the agent for good, then call `when_gone`.

        The agent reads the remaining messages and EOF. SIGTERM and SIGKILL follow if it does not
        end.
        """
        self._when_gone = when_gone
        self._loop.cancel("agent start")
        if self.pid is None:
            when_gone()
            return
        if self._channel is not None:
            self._channel.finish()
        now = time.monotonic()
        self._loop.call_at("agent term", now + _EXIT_SECS / 2, self._terminate)
        self._loop.call_at("agent kill", now + max(grace, _EXIT_SECS), self._kill)

    def _terminate(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def child_changed(self) -> None:
        """Handle SIGCHLD: if the agent has ended, kill its process group and start a successor."""
        pid = self.pid
        if pid is None:
            return
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            _continue_if_stopped(pid)
            return
        for timer in ("agent started", "agent term", "agent kill"):
            self._loop.cancel(timer)
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        if not self._loop.has_timer("agent orphans"):
            self._reap(pid, time.monotonic() + _TERM_SECS, asked=False)

    def _reap(self, pid: int, kill_at: float, *, asked: bool) -> None:
        """End the processes the agent left, then reap the agent and restart it.

        asked: they got SIGTERM. Only those of the first look get it: a later one may be the `rm` of
        a profile that cleans up. The agent stays a zombie until then, so its pid and session, which
        identify those processes, cannot be reused.
        """
        now, left = time.monotonic(), self._remaining_processes()
        for p in left:
            if now >= kill_at:
                processes.send_signal(p.pid, p.ticks, signal.SIGKILL)
            elif not asked:
                processes.send_signal(p.pid, p.ticks, signal.SIGTERM)
        if left and now < kill_at:
            self._loop.call_at(
                "agent orphans", now + _LOOK_SECS, lambda: self._reap(pid, kill_at, asked=True)
            )
            return
        _, status = os.waitpid(pid, 0)
        self._tracker.agent_pid = None
        if self._channel is not None:
            if self._when_gone is None:
                self._channel.drain()  # may hold the reason of a failed startup
            self._channel.close()
        if self._when_gone is not None:
            self._when_gone()
            return
        code = os.waitstatus_to_exitcode(status)
        ended = (f"by signal {-code}" if code < 0 else f"with exit code {code}") + (
            f": {self._failure}" if self._failure else ""
        )
        log(f"the agent, pid {pid}, ended {ended}")
        self._schedule_restart()
        self._start_failed(f"the agent ended right after its start, {ended}")

    def _schedule_restart(self) -> None:
        lived = time.monotonic() - self._since
        self._pause = _FIRST_PAUSE if lived >= _LONG_LIFE else self._pause
        self._loop.call_at("agent start", time.monotonic() + self._pause, self.start)
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    def _remaining_processes(self) -> list[Process]:
        orphans = self._tracker.adopted_of(AGENT)
        found = processes.table() if orphans else {}
        return [
            found[pid] for pid in processes.with_descendants(orphans, found) if not found[pid].over
        ]

    def _disconnected(self) -> None:
        """Handle EOF: the agent is ending or has failed. Kill it if it does not end in time."""
        if (
            self.pid is not None
            and not self._loop.has_timer("agent kill")
            and not self._loop.has_timer("agent orphans")
        ):
            self._loop.call_at("agent kill", time.monotonic() + _EXIT_SECS, self._kill)

    def _kill(self) -> None:
        if self.pid is not None:
            log(f"the agent, pid {self.pid}, did not end in time: killed")
            os.kill(self.pid, signal.SIGKILL)

    def _catch_up(self) -> None:
        assert self._channel is not None
        while self._unreported and not self._channel.full:
            name = next(iter(self._unreported))
            del self._unreported[name]
            e = self._known.get(name)
            if e is not None:
                self._channel.send(e.report().encode_change())


def _continue_if_stopped(pid: int) -> None:
    """Continue an agent that was stopped by SIGSTOP.

    Jobs have the same Unix user and may stop their agent. In a container nothing else continues it.
    """
    if os.getpid() == 1 and os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
        os.kill(pid, signal.SIGCONT)
