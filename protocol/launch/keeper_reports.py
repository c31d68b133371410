"""Messages of a keeper to its agent: one line of JSON each. Standard library only, because a keeper
imports it. An agent reads them with `agent.session.keeper_reports`.
"""

from __future__ import annotations

from ..jobs.execution_state import ExecutionState
from .message_fields import encode, message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


@message({})
class ExecutionReport:
    """State of one execution. A running execution with an exit is ending (see messages.Execution).

    exit: field names of ExitInfo. elapsed: seconds. successor: token of the execution that got its
    slot.
    """

    name: str
    token: str
    state: ExecutionState
    pid: int | None
    start_ticks: int | None
    started_at: float | None
    elapsed: float | None
    run_dir: str | None
    exit: dict[str, Any] | None
    successor: str | None

    def encode_change(self) -> dict[str, Any]:
        """Return a message of its own. In a hello, a report has no "is"."""
        ended = self.state is ExecutionState.ENDED
        return {"is": "ended" if ended else "started", **encode(self)}


@message({"is": "hello"})
class Hello:
    """The first message to an agent. agent: configuration of the agent; holds its token. log: see
    agent/log_setup.py. folder: the agent's. cgroups: see linux/cgroups.py. pings: the keeper answers
    pings. runs_ahead: runs may wait for a slot with the keeper. executions: reports.
    """

    agent: dict[str, Any]
    log: dict[str, Any] | None
    folder: str
    keeper_pid: int
    cgroups: str
    pings: bool = True
    runs_ahead: bool = True
    executions: Sequence[dict[str, Any]]


@message({"is": "pong"}, number="n")
class Pong:
    """The answer to a ping."""

    number: int
