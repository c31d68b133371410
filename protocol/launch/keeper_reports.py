"""Messages of a keeper to its agent: one line of JSON each. Standard library only, because a keeper
imports it. An agent reads them with `agent.session.keeper_reports`.
"""

from __future__ import annotations

from ..jobs.execution_state import ExecutionState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class ExecutionReport:
    """State of one execution. A running execution with an exit is ending (see messages.Execution).

    exit: field names of ExitInfo. elapsed: seconds. successor: token of the execution that got its
    slot.
    """

    __slots__ = (
        "elapsed",
        "exit",
        "name",
        "pid",
        "run_dir",
        "start_ticks",
        "started_at",
        "state",
        "successor",
        "token",
    )

    def __init__(
        self,
        name: str,
        token: str,
        state: ExecutionState,
        *,
        pid: int | None,
        start_ticks: int | None,
        started_at: float | None,
        elapsed: float | None,
        run_dir: str | None,
        exit: dict[str, Any] | None,
        successor: str | None,
    ) -> None:
        self.name, self.token, self.state = name, token, state
        self.pid, self.start_ticks = pid, start_ticks
        self.started_at, self.elapsed = started_at, elapsed
        self.run_dir, self.exit, self.successor = run_dir, exit, successor

    def encode(self) -> dict[str, Any]:
        return {"is": "ended" if self.state is ExecutionState.ENDED else "started", **self.fields()}

    def fields(self) -> dict[str, Any]:
        """Return its entry in a hello."""
        return {
            "name": self.name,
            "token": self.token,
            "state": self.state.value,
            "pid": self.pid,
            "startTicks": self.start_ticks,
            "startedAt": self.started_at,
            "elapsed": self.elapsed,
            "runDir": self.run_dir,
            "exit": self.exit,
            "successor": self.successor,
        }


class Hello:
    """The first message to an agent. agent: configuration of the agent; holds its token. log: see
    agent/log_setup.py. folder: the agent's. cgroups: see linux/cgroups.py. executions: fields of
    reports. pings: the keeper answers pings. runs_ahead: runs may wait for a slot with the keeper.
    """

    __slots__ = (
        "agent",
        "cgroups",
        "executions",
        "folder",
        "keeper_pid",
        "log",
        "pings",
        "runs_ahead",
    )

    def __init__(
        self,
        agent: dict[str, Any],
        log: dict[str, Any] | None,
        folder: str,
        keeper_pid: int,
        cgroups: str,
        executions: Sequence[dict[str, Any]],
        *,
        pings: bool = True,
        runs_ahead: bool = True,
    ) -> None:
        self.agent, self.log, self.folder = agent, log, folder
        self.keeper_pid, self.cgroups, self.executions = keeper_pid, cgroups, list(executions)
        self.pings, self.runs_ahead = pings, runs_ahead

    def encode(self) -> dict[str, Any]:
        return {
            "is": "hello",
            "agent": self.agent,
            "log": self.log,
            "folder": self.folder,
            "keeperPid": self.keeper_pid,
            "cgroups": self.cgroups,
            "pings": self.pings,
            "runsAhead": self.runs_ahead,
            "executions": self.executions,
        }


class Pong:
    """The answer to a ping."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self) -> dict[str, Any]:
        return {"is": "pong", "n": self.number}
