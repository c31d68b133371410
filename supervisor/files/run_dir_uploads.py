"""Files that users put into run directories. The agent of the run stores them, so it works on every
host of an agent, with the rights of the user.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from ...db.events.state import Run
from ...protocol.api.requests import PutRunFile, RunFilePart
from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.wire.messages import FileChunk, StoreFile
from ..agents.calls import PIECE, Calls
from .uploads import PER_USER, Quotas, Space


class RunDirUploads:
    """Uploads into run directories. One per process. limit: bytes of a file. quotas: None: no limits."""

    def __init__(self, calls: Calls, limit: int, quotas: Quotas | None = None) -> None:
        self._calls, self._limit, self._quotas = calls, limit, quotas
        self._in_progress: Counter[str] = Counter()

    async def received(self, request: RunFilePart) -> int:
        """Return the stored bytes of an interrupted upload. Raises Refusal."""
        uid, jid = request.uid, request.compute_jid
        run = self._calls.started_run(uid, jid, request.compute_job_serial)
        self._check(run, request)
        self._space(run, request).close()
        message = StoreFile(
            op_id=self._calls.new_op(),
            run_dir=run.run_dir,
            name=request.name,
            sha256=request.sha256,
            size=request.size,
        )
        with self._calls.counted(uid):
            return (await self._calls.ask(run, message, FileChunk)).size

    async def begin(self, request: PutRunFile) -> "RunDirReceiver":
        """Start or continue an upload. Raises Refusal."""
        uid = request.uid
        run = self._calls.started_run(uid, request.compute_jid, request.compute_job_serial)
        self._check(run, request)
        if self._in_progress[uid] >= PER_USER:
            raise Refusal(
                "tooManyRequests",
                f"{PER_USER} uploads of this user are in progress, which is the limit; try again later",
            )
        space = self._space(run, request)
        self._in_progress[uid] += 1
        return RunDirReceiver(self._calls, run, request, space, lambda: self._ended(uid))

    def _check(self, run: Run, request: RunFilePart | PutRunFile) -> None:
        _check_rest(run, request)
        if request.size > self._limit:
            raise Refusal(
                "tooLarge",
                f"the file has {request.size} bytes; the limit of this site is {self._limit} (limits.upload_bytes)",
            )

    def _space(self, run: Run, request: RunFilePart | PutRunFile) -> Space:
        """Return the reserved space of a file. Raises Refusal("quotaExceeded")."""
        sid = split_jid(request.compute_jid)[1]
        space = Space(self._quotas, request.uid, f"{run.spec.simulation_type}/{sid}")
        space.grow(request.size)
        return space

    def sizes(self) -> dict[str, int]:
        return {"inProgress": self._in_progress.total()}

    def _ended(self, uid: str) -> None:
        self._in_progress[uid] -= 1
        if not self._in_progress[uid]:
            del self._in_progress[uid]


class RunDirReceiver:
    """One upload into a run directory. Its pieces are stored one after the other. limit: bytes."""

    def __init__(
        self,
        calls: Calls,
        run: Run,
        request: PutRunFile,
        space: Space,
        ended: Callable[[], None],
    ) -> None:
        self.limit = max(0, request.size - request.offset)
        self._calls, self._run, self._request, self._space = calls, run, request, space
        self._ended, self._open = ended, True
        self._gathered, self._at = bytearray(), request.offset

    async def take(self, data: bytes) -> None:
        """Add data. Raises Refusal."""
        self._gathered += data
        while len(self._gathered) >= PIECE:
            await self._store(bytes(self._gathered[:PIECE]))
            del self._gathered[:PIECE]

    async def finish(self) -> dict[str, Any]:
        """Store the rest. Make the file visible if it is complete. Return {"name", "size",
        "received", "complete"}, and "quotaWarning" if there is one. Raises Refusal.
        """
        rest, request = bytes(self._gathered), self._request
        complete = self._at + len(rest) == request.size
        if rest or complete:
            await self._store(rest, finish=complete)
        answer = {
            "name": request.name,
            "size": request.size,
            "received": self._at,
            "complete": complete,
        }
        warning = self._space.stored(request.size) if complete else None
        return answer if warning is None else {**answer, "quotaWarning": warning}

    def abandon(self) -> None:
        """End the upload. The stored bytes stay, so that the user can continue."""
        if self._open:
            self._open = False
            self._space.close()
            self._space.removed()
            self._ended()

    async def _store(self, data: bytes, *, finish: bool = False) -> None:
        request, run = self._request, self._run
        if not self._open:
            return
        run = self._calls.started_run(request.uid, request.compute_jid, run.serial)
        _check_rest(run, request)
        message = StoreFile(
            op_id=self._calls.new_op(),
            run_dir=run.run_dir,
            name=request.name,
            sha256=request.sha256,
            size=request.size,
            offset=self._at,
            data=data,
            finish=finish,
            replace=request.replace,
        )
        await self._calls.ask(run, message, FileChunk)
        self._at += len(data)


def _check_rest(run: Run, request: RunFilePart | PutRunFile) -> None:
    """Raise Refusal if the run could read a file while it changes, unless the request accepts it."""
    if run.busy and not request.active:
        raise Refusal(
            "conflict",
            f"{request.compute_jid} is active and may use its files; wait for its end, or store the file anyway (`active`, --force)",
        )
