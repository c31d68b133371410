"""Progress reports of live executions: only the newest is sent, at most a few times a second.

Reports are volatile: one without a connection is not sent later. After a connect the newest of each
execution is sent again. The keeper stores the last report (`exit.report`).
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...protocol.ids import Token
from ...protocol.wire.messages import RunReport
from ...runtime.execution.folder import INPUT, REPORT, last_report
from ..files.output_reader import Evidence

#: Pause between two reports of one execution (seconds).
GAP_SECS = 0.2
#: Shortest pause between two looks at the file (seconds).
LOOK_SECS = 0.01
#: Poll interval (seconds) for a replaced file, or without change notifications.
LOOK_AGAIN_SECS = 5.0


class Reports:
    """Follows executions of apps from `follow` to `unfollow`. send: sends to the supervisor; drops
    without a connection.
    """

    def __init__(self, evidence: Evidence, send: Callable[[RunReport], None]) -> None:
        self._evidence, self._send = evidence, send
        self._following: dict[Token, asyncio.Task[None]] = {}
        self._newest: dict[Token, RunReport] = {}

    def follow(self, token: Token) -> None:
        """Follow a running execution. No-op if it is followed already or not of an app.

        Never raises: the job may have made its folder unreadable.
        """
        if token not in self._following and os.path.exists(self._evidence.path(token.name, INPUT)):
            self._following[token] = asyncio.get_running_loop().create_task(self._follow(token))

    def unfollow(self, token: Token) -> None:
        """Stop following an ended execution."""
        task = self._following.pop(token, None)
        if task is not None:
            task.cancel()
        self._newest.pop(token, None)

    def resend(self) -> None:
        """Send the newest reports on a new connection."""
        for report in self._newest.values():
            self._send(report)

    def close(self) -> None:
        for token in list(self._following):
            self.unfollow(token)

    async def _follow(self, token: Token) -> None:
        path = str(self._evidence.path(token.name, REPORT))
        seen: object = None
        while True:
            with self._evidence.folders.watching(path) as change:
                now = _stamp(path)
                if now == seen:
                    await change.wait(LOOK_AGAIN_SECS)
            if now == seen:  # a report that comes after a pause is sent at once
                await asyncio.sleep(LOOK_SECS)
                continue
            seen = now
            self._send_newest(token, path)
            await asyncio.sleep(GAP_SECS)

    def _send_newest(self, token: Token, path: str) -> None:
        newest: dict[str, Any] | None = last_report(path)
        before = self._newest.get(token)
        if newest is None or (before is not None and newest == before.report):
            return
        try:
            at = os.stat(path).st_mtime
        except OSError:  # the job removed the file or made its folder unreadable
            return
        report = self._newest[token] = RunReport(token=token, report=newest, at=max(0.0, at))
        self._send(report)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if status.st_size == 0:  # the first report follows
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
