"""Heartbeat of the agent's keeper: notices a keeper that does not answer, and recovers it without
starting a task twice.

A stopped keeper gets SIGCONT. One that stays silent is killed: its jobs run on, and the next keeper
adopts them from their evidence. What the agent tells the supervisor, and what it reads from
evidence meanwhile, is decided by the caller.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ...protocol.wire.heartbeat import Heartbeat, HeartbeatTiming
from ...protocol.wire.messages import KeeperReport
from ...runtime import processes
from ...runtime.log.logger import Log
from .websocket import Address, read_address

#: A keeper is asked at least this far apart (seconds): a busy machine may delay an answer.
_SHORTEST_SECS = 0.5
#: So many questions stay without an answer before a keeper counts as silent.
_MISSED = 3
#: A keeper is killed after so much silence where the configuration does not say (seconds).
_KILL_SECS = 60.0
#: Process 1 of a container cannot be killed from inside, and its jobs would end with it.
_FIRST_PROCESS = 1
#: State of /proc/pid/stat in which a process waits for a disk: SIGKILL does not end it then.
_DISK = "D"


def pace_of(ping_timeout_secs: float) -> HeartbeatTiming:
    """The pace for a keeper whose agent must answer the supervisor within `ping_timeout_secs`."""
    interval = max(_SHORTEST_SECS, ping_timeout_secs / 2)
    return HeartbeatTiming(interval, _MISSED * interval)


class KeeperHeartbeat:
    """Watches the keeper with this pid. Only time in which the agent itself ran counts as silence.

    kill_secs: a keeper is killed after this much silence (seconds); 0: never. send: an order to the
    keeper. changed: called when the keeper stops answering, answers again, or is seen stopped.
    during: called at each look while the keeper is silent.
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
        during: Callable[[], None] = lambda: None,
        ticks: int | None = None,
    ) -> None:
        """ticks: start time of the keeper; None: of the process that has the pid now."""
        self._pid, self._pace, self._kill_secs, self._log = pid, pace, kill_secs, log
        self._ticks = processes.start_ticks(pid) if ticks is None else ticks
        self._send, self._changed, self._during = send, changed, during
        self._heart = Heartbeat(pace, time.monotonic())
        self._looked = time.monotonic()
        self._number = 0
        #: while it is silent: what was reported, the seconds of silence, and what was done about it
        self._said: KeeperReport | None = None
        self._silent_secs = 0.0
        self._woken = self._killed = False
        #: the number of the question whose answer ends the silence
        self._awaited: int | None = None

    @classmethod
    def of(
        cls,
        hello: dict[str, Any],
        log: Log,
        send: Callable[[dict[str, Any]], None],
        changed: Callable[[KeeperReport], None],
        during: Callable[[], None],
    ) -> Self | None:
        """The watch over the keeper that said `hello`. None: a keeper of an older version, which
        answers no pings.
        """
        if not hello.get("pings"):
            return None
        config = hello["agent"]
        try:
            address = read_address(Path(config["addressFile"]))
        except (
            OSError,
            ValueError,
        ):  # it is read again with every connection; the default pace will do here
            address = Address("")
        kill_secs = float(config.get("keeperSilentSecs", _KILL_SECS))
        return cls(
            hello["keeperPid"],
            pace_of(address.ping_timeout_secs),
            kill_secs,
            log,
            send=send,
            changed=changed,
            during=during,
        )

    @property
    def silent(self) -> KeeperReport | None:
        """The last report while the keeper does not answer."""
        return self._said

    async def run(self) -> None:
        """Watch until canceled."""
        while True:
            await asyncio.sleep(self._pace.step)
            self.look(time.monotonic())

    def heard(self, message: dict[str, Any]) -> None:
        """Any message of the keeper's.

        After a silence its answer to a second question counts: what ended meanwhile is reported
        before that.
        """
        self._heart.record_receipt()
        if self._said is None:
            return
        self._silent_secs, self._woken = 0.0, False
        if self._awaited is None:
            self._ask()
            self._awaited = self._number
        elif message.get("is") == "pong" and int(message.get("n") or 0) >= self._awaited:
            self._log("the keeper, pid {}, answers again", self._pid)
            self._said = self._awaited = None
            self._changed(KeeperReport(answers=True))

    def look(self, now: float) -> None:
        """Ask, or judge. now: monotonic seconds."""
        ran, self._looked = min(now - self._looked, 2 * self._pace.step), now
        match self._heart.check(now):
            case "ask":
                self._ask()
            case "slept":  # this agent stood still itself: nothing is known
                self._heart = Heartbeat(self._pace, now, ahead=self._pace.interval)
            case "gone":
                self._unanswered(now, ran)
        if self._said is not None:
            self._during()

    def _ask(self) -> None:
        self._number += 1
        self._send({"do": "ping", "n": self._number})

    def _unanswered(self, now: float, ran: float) -> None:
        state = self._state()
        stopped, first = state == processes.STOPPED, self._said is None
        if self._said is None or self._said.stopped != stopped:
            since = (
                time.time() - self._heart.overdue_secs(now)
                if self._said is None
                else self._said.since
            )
            self._said = KeeperReport(answers=False, since=since, stopped=stopped)
            self._changed(self._said)
        if first:
            self._silent_secs, self._woken, self._awaited = 0.0, False, None
            self._log(
                "the keeper, pid {}, does not answer for {:.1f} s; its state is {}",
                self._pid,
                self._heart.overdue_secs(now),
                state,
            )
        self._silent_secs += ran
        self._recover(state)

    def _recover(self, state: str) -> None:
        """Wake a stopped keeper, once. Kill one that stays silent, once: a killed keeper starts
        nothing more.
        """
        if self._ticks is None:
            return
        if state == processes.STOPPED and not self._woken:
            self._woken = True
            if processes.send_signal(self._pid, self._ticks, signal.SIGCONT):
                self._log("the keeper, pid {}, was stopped by a signal: SIGCONT sent", self._pid)
            return  # it has until the next look at least
        late = 0 < self._kill_secs <= self._silent_secs
        if late and not self._killed and state != _DISK and self._pid != _FIRST_PROCESS:
            self._killed = True
            if processes.send_signal(self._pid, self._ticks, signal.SIGKILL):
                sentence = "the keeper, pid {}, did not answer for {:g} s more: killed. Its jobs run on, and the next keeper adopts them"
                self._log(sentence, self._pid, self._kill_secs)

    def _state(self) -> str:
        """Return the state of the keeper in /proc; "gone" where another process has its pid."""
        found = processes.find(self._pid)
        return found.state if found is not None and found.ticks == self._ticks else "gone"
