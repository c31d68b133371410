"""Heartbeat of the agent's keeper: detects a keeper that does not answer, and recovers it without
starting a task twice.

A stopped keeper gets SIGCONT. A keeper that stays silent is killed: its jobs continue, and the next
keeper adopts them from their evidence. The caller decides about reports to the supervisor and about
reading evidence meanwhile.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ...protocol.launch.keeper_messages import Ping
from ...protocol.launch.keeper_reports import Hello
from ...protocol.launch.message_fields import encode
from ...protocol.wire.heartbeat import Heartbeat, HeartbeatTiming
from ...protocol.wire.messages import KeeperReport
from ...runtime import processes
from ...runtime.log.logger import Log
from .websocket import Address, read_address

#: Shortest ping interval (seconds): a busy machine may delay an answer.
_SHORTEST_SECS = 0.5
#: Unanswered pings after which a keeper counts as silent.
_MISSED = 3
#: Seconds of silence after which a keeper is killed (default).
_KILL_SECS = 60.0
#: Process 1 of a container cannot be killed from inside, and its jobs would end with it.
_FIRST_PROCESS = 1
#: State of /proc/pid/stat of a process in disk wait: SIGKILL has no effect then.
_DISK = "D"


def heartbeat_timing(ping_timeout_secs: float) -> HeartbeatTiming:
    """Return the timing for a keeper whose agent must answer the supervisor in this time (seconds)."""
    interval = max(_SHORTEST_SECS, ping_timeout_secs / 2)
    return HeartbeatTiming(interval, _MISSED * interval)


class KeeperHeartbeat:
    """Watches the keeper with this pid. Only time in which the agent itself ran counts as silence.

    kill_secs: seconds of silence after which the keeper is killed; 0: never. send: sends an order
    to the keeper. changed: called when the keeper stops answering, answers again, or is seen
    stopped. checked: called at each check, with whether the keeper is silent.
    """

    def __init__(
        self,
        pid: int,
        pace: HeartbeatTiming,
        kill_secs: float,
        log: Log,
        *,
        send: Callable[[dict[str, Any]], None],
        changed: Callable[[KeeperReport], None],
        checked: Callable[[bool], None] = lambda silent: None,
        ticks: int | None = None,
    ) -> None:
        """ticks: start time of the keeper; None for the start time of the current process with this
        pid.
        """
        self._pid, self._pace, self._kill_secs, self._log = pid, pace, kill_secs, log
        self._ticks = processes.start_ticks(pid) if ticks is None else ticks
        self._send, self._changed, self._checked = send, changed, checked
        self._heart = Heartbeat(pace, time.monotonic())
        self._checked_at = time.monotonic()
        self._number = 0
        #: while it is silent: the last report, the seconds of silence, and the actions taken
        self._report: KeeperReport | None = None
        self._silent_secs = 0.0
        self._woken = self._killed = False
        #: number of the ping whose answer ends the silence
        self._awaited: int | None = None

    @classmethod
    def from_hello(
        cls,
        hello: Hello,
        log: Log,
        send: Callable[[dict[str, Any]], None],
        changed: Callable[[KeeperReport], None],
        checked: Callable[[bool], None],
    ) -> Self | None:
        """Return the heartbeat of the keeper that sent `hello`, or None for an older version, which
        does not answer pings.
        """
        if not hello.pings:
            return None
        config = hello.agent
        try:
            address = read_address(Path(config["addressFile"]))
        except (OSError, ValueError):  # read again with every connection; defaults suffice here
            address = Address("")
        kill_secs = float(config.get("keeperSilentSecs", _KILL_SECS))
        return cls(
            hello.keeper_pid,
            heartbeat_timing(address.ping_timeout_secs),
            kill_secs,
            log,
            send=send,
            changed=changed,
            checked=checked,
        )

    @property
    def last_report(self) -> KeeperReport | None:
        """The last report while the keeper does not answer."""
        return self._report

    async def run(self) -> None:
        """Run until canceled."""
        while True:
            await asyncio.sleep(self._pace.step)
            self.check(time.monotonic())

    def received(self, message: dict[str, Any]) -> None:
        """Handle any message of the keeper.

        After a silence only the answer to a second ping counts: it follows the reports of all
        executions that ended meanwhile.
        """
        self._heart.record_receipt()
        if self._report is None:
            return
        self._silent_secs, self._woken = 0.0, False
        if self._awaited is None:
            self._send_ping()
            self._awaited = self._number
        elif message.get("is") == "pong" and int(message.get("n") or 0) >= self._awaited:
            self._log("the keeper, pid {}, answers again", self._pid)
            self._report = self._awaited = None
            self._changed(KeeperReport(answers=True))

    def check(self, now: float) -> None:
        """Send a ping or check for silence. now: monotonic seconds."""
        ran, self._checked_at = min(now - self._checked_at, 2 * self._pace.step), now
        match self._heart.check(now):
            case "ask":
                self._send_ping()
            case "slept":  # this agent was suspended itself: the keeper may have answered
                self._heart = Heartbeat(self._pace, now, ahead=self._pace.interval)
            case "gone":
                self._handle_silence(now, ran)
        self._checked(self._report is not None)

    def _send_ping(self) -> None:
        self._number += 1
        self._send(encode(Ping(number=self._number)))

    def _handle_silence(self, now: float, ran: float) -> None:
        state = self._state()
        stopped, first = state == processes.STOPPED, self._report is None
        if self._report is None or self._report.stopped != stopped:
            since = (
                time.time() - self._heart.overdue_secs(now)
                if self._report is None
                else self._report.since
            )
            self._report = KeeperReport(answers=False, since=since, stopped=stopped)
            self._changed(self._report)
        if first:
            self._silent_secs, self._woken, self._awaited = 0.0, False, None
            self._log(
                "the keeper, pid {}, has not answered for {:.1f} s; its state is {}",
                self._pid,
                self._heart.overdue_secs(now),
                state,
            )
        self._silent_secs += ran
        self._recover(state)

    def _recover(self, state: str) -> None:
        """Send SIGCONT once to a stopped keeper, and SIGKILL once to one that stays silent. A
        killed keeper starts nothing more.
        """
        if self._ticks is None:
            return
        if state == processes.STOPPED and not self._woken:
            self._woken = True
            if processes.send_signal(self._pid, self._ticks, signal.SIGCONT):
                self._log("the keeper, pid {}, was stopped by a signal: SIGCONT sent", self._pid)
            return  # give it time until the next check
        late = 0 < self._kill_secs <= self._silent_secs
        if late and not self._killed and state != _DISK and self._pid != _FIRST_PROCESS:
            self._killed = True
            if processes.send_signal(self._pid, self._ticks, signal.SIGKILL):
                sentence = (
                    "the keeper, pid {}, did not answer for another {:g} s: killed. "
                    "Its jobs continue, and the next keeper adopts them"
                )
                self._log(sentence, self._pid, self._kill_secs)

    def _state(self) -> str:
        """Return the state of the keeper in /proc; "gone" if another process has its pid."""
        found = processes.find(self._pid)
        return found.state if found is not None and found.ticks == self._ticks else "gone"
