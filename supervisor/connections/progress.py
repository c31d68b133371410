"""Progress of executions: the newest report of each live one. In memory only, never an event.

The last report of an execution comes with its exit and is durable, so it is dropped here then.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ...db.events.state import Job
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, Token, split_jid
from ...protocol.jobs import progress_report
from ...protocol.wire.messages import REPORT_LIMIT, RunReport
from ..engine.decision_loop import Engine
from ..process.counters import Counters


class Progress:
    """The newest report for each live token. `heard` is called with the computeJid of each change."""

    def __init__(self, engine: Engine, counters: Counters) -> None:
        self._engine, self._counters = engine, counters
        self._reports: dict[str, dict[Token, RunReport]] = {}
        self.heard: Callable[[str], None] = lambda jid: None

    def take(self, key: AgentKey, message: RunReport) -> None:
        """Store a report of an agent. Raises Refusal("foreignToken") for a task of another user."""
        token = message.token
        if split_jid(token.jid)[0] != key.uid:
            raise Refusal("foreignToken", f"it reported on a task of another user: {token}")
        task = self._engine.world.task(token)
        if task is None or not task.live or task.agent_key != key:
            self._counters.add("reportOfNothing")
            return
        if (
            progress_report.find_error(message.report) is not None
            or len(msgspec.json.encode(message.report)) > REPORT_LIMIT
        ):
            self._counters.add("reportRefused")
            return
        mine = self._reports.setdefault(token.jid, {})
        before = mine.get(token)
        mine[token] = message
        if before is None or before.report != message.report:
            self.heard(token.jid)

    @property
    def size(self) -> int:
        """Number of jobs with a report."""
        return len(self._reports)

    def settle(self, job: Job) -> None:
        """Drop the reports of ended executions after a durable change of the job."""
        mine = self._reports.get(job.jid)
        if mine is None:
            return
        live = {t.token for t in job.live_tasks()}
        kept = {token: report for token, report in mine.items() if token in live}
        if kept:
            self._reports[job.jid] = kept
        else:
            del self._reports[job.jid]

    def of(self, job: Job) -> dict[str, Any] | None:
        """Return the newest report of the current run: from a live execution, else from its
        exit.
        """
        run = job.run
        if run is None:
            return None
        mine = self._reports.get(job.jid, {})
        for task in reversed(run.live_tasks):
            if task.token in mine:
                return mine[task.token].report
        return run.exit.report if run.exit is not None else None
