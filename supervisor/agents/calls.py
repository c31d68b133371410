"""Calls of apps and reads of run files: checked against the books, sent to the user's agent,
answered while somebody waits.

Nothing of it is kept and nothing here touches a run. What an app answers goes to its reader as it
is.
"""

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ...db.events.state import Run
from ...protocol.api.requests import BeginSession, CallRequest, RunFile, RunFiles
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, base62
from ...protocol.wire.messages import (
    REPLY_LIMIT,
    Call,
    CallReply,
    CancelCall,
    FileChunk,
    FileList,
    ListFiles,
    ReadFile,
)
from ..connections.hub import Hub
from ..process.counters import Counters
from ..runs.request_validation import check_data
from ..runs.service import RunService

#: The agent enforces a call's deadline; the supervisor steps in so long after it.
SLACK_SECS = 2.0
#: A piece of a file, bytes, and how long an agent may take for it.
PIECE = 256 * 1024
FILE_SECS = 30.0

#: Whether a job_cmd reads a run, and what the log calls it.
_OF_A_RUN = frozenset(
    {
        "sequential_result",
        "get_simulation_frame",
        "analysis_job",
        "list_run_files",
        "download_run_file",
    }
)
API_NAMES: Mapping[str, str] = {
    "sequential_result": "sequentialResult",
    "get_simulation_frame": "simulationFrame",
    "analysis_job": "analysisJob",
    "list_run_files": "runFiles",
    "download_run_file": "downloadRunFile",
    "stateful_compute": "statefulCompute",
    "stateless_compute": "statelessCompute",
}


class OpenFile(msgspec.Struct, frozen=True):
    """A file of a run or a library, as it was when its reading began. length: bytes that `chunks`
    will give.
    """

    size: int
    mtime_ns: int
    length: int
    chunks: AsyncGenerator[bytes, None]


class Calls:
    """One per process. call_secs: the deadline of a call that has none; per_user: calls and file
    reads at once.
    """

    def __init__(
        self,
        desk: RunService,
        hub: Hub,
        counters: Counters,
        entropy: Callable[[int], bytes],
        *,
        call_secs: float,
        per_user: int,
        copied: Callable[[AgentKey], bool] = lambda key: False,
    ) -> None:
        """copied: has this agent nothing but a copy of its user's library?"""
        self._desk, self._hub, self._counters, self._entropy, self._copied = (
            desk,
            hub,
            counters,
            entropy,
            copied,
        )
        self._call_secs, self._per_user = call_secs, per_user
        self._in_flight: Counter[str] = Counter()

    def sizes(self) -> dict[str, int]:
        return {"users": len(self._in_flight), "inFlight": self._in_flight.total()}

    # ---- calls

    def new_op(self) -> str:
        """The opId of a call to be: its line in the log names it, as the agent's does."""
        return base62(self._entropy(32), 32)

    async def call(self, request: CallRequest, op_id: str) -> bytes:
        """What the app answered, as JSON. Raises Refusal."""
        self._check(request)
        with self._counted(request.uid):
            run = self._run_of(request) if request.compute_jid is not None else None
            key = self._key(request, run)
            await self._desk.agent(key)
            if request.compute_jid is not None and run is not None:
                self._still(request.uid, request.compute_jid, run.serial)
            message = self._message(request, run, op_id)
            self._counters.add("call." + request.job_cmd)
            answer = await self._hub.ask(
                key,
                message,
                message.deadline_secs + SLACK_SECS,
                CallReply,
                give_up=CancelCall(op_id=message.op_id),
            )
            if request.compute_jid is not None and run is not None:
                self._still(request.uid, request.compute_jid, run.serial)
            return _json(answer.reply)

    def _key(self, request: CallRequest, run: Run | None) -> AgentKey:
        """Who answers: what may change the library itself is for an agent that has it. Raises
        Refusal.
        """
        if run is not None:
            return self._desk.agent_key(request.uid, run.spec.driver, _host(run))
        key = self._desk.agent_key(request.uid, request.driver)
        if request.job_cmd != "stateful_compute" or not self._copied(key):
            return key
        others = (
            ()
            if request.driver
            else tuple(self._desk.agent_key(request.uid, name) for name in self._desk.drivers)
        )
        own = next((k for k in others if not self._copied(k)), None)
        if own is None:
            raise Refusal(
                "badRequest",
                f"{request.method!r} may change the user's library, of which {key.host} has only a copy; it takes "
                "a driver whose agents see the user's directory (local, or a cluster with `userRoot`)",
            )
        return own

    def begin_session(self, request: BeginSession) -> None:
        """Have the agent on its way. Raises Refusal only for what is wrong with the request."""
        self._desk.start_agent(self._desk.agent_key(request.uid, request.driver))

    def _check(self, request: CallRequest) -> None:
        if request.simulation_type not in self._desk.apps:
            raise Refusal(
                "unknownApp",
                f"there is no app {request.simulation_type!r}; there are: {', '.join(self._desk.apps)}",
            )
        if (request.job_cmd in _OF_A_RUN) != (request.compute_jid is not None):
            reads = (
                "reads a run: it needs"
                if request.job_cmd in _OF_A_RUN
                else "reads no run: it takes no"
            )
            raise Refusal("badRequest", f"{request.job_cmd} {reads} `computeJid`")
        check_data("data", request.data)
        check_data("args", request.args)

    def _run_of(self, request: CallRequest) -> Run:
        assert request.compute_jid is not None
        run = self._started(request.uid, request.compute_jid, request.compute_job_serial)
        if run.spec.simulation_type != request.simulation_type:
            raise Refusal(
                "badRequest",
                f"{request.compute_jid} is a job of the app {run.spec.simulation_type!r}",
            )
        return run

    def _message(self, request: CallRequest, run: Run | None, op_id: str) -> Call:
        """A run is read with the data it was computed from, where the request has none."""
        return Call(
            op_id=op_id,
            job_cmd=request.job_cmd,
            simulation_type=request.simulation_type,
            compute_model=run.spec.compute_model if run else request.compute_model,
            method=request.method,
            run_dir=run.run_dir if run else None,
            lib_dir=os.path.join(self._desk.user_root, request.uid, request.simulation_type, "lib"),
            data=request.data or (run.spec.data or {} if run else {}),
            args=request.args,
            deadline_secs=request.deadline_secs or self._call_secs,
            reply_limit=REPLY_LIMIT,
        )

    # ---- files

    async def open_file(self, request: RunFile) -> OpenFile:
        """Look the file up; its bytes come with `chunks`, as fast as they are taken. Raises
        Refusal.
        """
        run = self._started(request.uid, request.compute_jid, request.compute_job_serial)
        key = self._desk.agent_key(request.uid, run.spec.driver, _host(run))
        wanted = PIECE if request.length is None else min(PIECE, request.length)
        with self._counted(request.uid):
            await self._desk.agent(key)
            first = await self._piece(key, run.run_dir, request.name, request.offset, wanted)
        self._still(request.uid, request.compute_jid, run.serial)
        rest = max(0, first.size - request.offset)
        length = rest if request.length is None else min(request.length, rest)
        chunks = self._chunks(key, run.run_dir, request, first, length)
        return OpenFile(size=first.size, mtime_ns=first.mtime_ns, length=length, chunks=chunks)

    async def list_files(self, request: RunFiles) -> tuple[int, FileList]:
        """The serial of the current run, and a page of the files in its run directory. Raises
        Refusal.
        """
        run = self._started(request.uid, request.compute_jid, request.compute_job_serial)
        key = self._desk.agent_key(request.uid, run.spec.driver, _host(run))
        message = ListFiles(
            op_id=self.new_op(), run_dir=run.run_dir, after=request.after, limit=request.limit
        )
        with self._counted(request.uid):
            await self._desk.agent(key)
            try:
                found = await self._hub.ask(key, message, FILE_SECS, FileList)
            except Refusal as e:
                older = (
                    "; an agent of an older version cannot list files"
                    if e.code == "deadline"
                    else ""
                )
                raise Refusal(e.code, e.sentence + older) from None
        self._still(request.uid, request.compute_jid, run.serial)
        return run.serial, found

    async def _chunks(
        self, key: AgentKey, run_dir: str, request: RunFile, first: FileChunk, length: int
    ) -> AsyncGenerator[bytes, None]:
        with self._counted(request.uid):
            sent, piece = 0, first
            while sent < length:
                if not piece.data:
                    raise Refusal("conflict", f"{request.name!r} became shorter while it was read")
                data = piece.data[: length - sent]
                sent += len(data)
                yield data
                if sent < length:
                    piece = await self._piece(
                        key, run_dir, request.name, request.offset + sent, min(PIECE, length - sent)
                    )
                    # a run may append to it meanwhile; anything else makes what was sent and what
                    # follows two different files
                    if piece.size < first.size or (
                        piece.size == first.size and piece.mtime_ns != first.mtime_ns
                    ):
                        raise Refusal(
                            "conflict", f"{request.name!r} was written anew while it was read"
                        )

    async def _piece(
        self, key: AgentKey, run_dir: str, name: str, offset: int, limit: int
    ) -> FileChunk:
        message = ReadFile(
            op_id=self.new_op(), run_dir=run_dir, name=name, offset=offset, limit=limit
        )
        return await self._hub.ask(key, message, FILE_SECS, FileChunk)

    # ---- the books

    def _started(self, uid: str, jid: str, serial: int) -> Run:
        """The current run, if it has this serial (0: any) and there is something to read. Raises
        Refusal.
        """
        run = self._desk.job(uid, jid).job.run
        if run is None:
            raise Refusal("notFound", f"there is no job {jid}")
        if serial not in (0, run.serial):
            raise Refusal("staleSerial", f"run {serial} of {jid} is not the current one")
        if run.started_at is None:
            if run.active:
                raise Refusal("notReady", f"{jid} has not started yet")
            raise Refusal("notFound", f"{jid} ended before it started, so there is nothing to read")
        return run

    def _still(self, uid: str, jid: str, serial: int) -> None:
        run = self._desk.job(uid, jid).job.run
        if run is None or run.serial != serial:
            raise Refusal("staleSerial", f"a newer run of {jid} has begun meanwhile")

    @contextmanager
    def _counted(self, uid: str) -> Iterator[None]:
        if self._in_flight[uid] >= self._per_user:
            raise Refusal(
                "tooManyRequests", f"{self._per_user} calls of this user are being answered already"
            )
        self._in_flight[uid] += 1
        try:
            yield
        finally:
            self._in_flight[uid] -= 1
            if not self._in_flight[uid]:
                del self._in_flight[uid]


def _host(run: Run) -> str | None:
    """Where it was placed last."""
    tasks = run.attempts[-1].tasks if run.attempts else ()
    return tasks[0].agent_key.host if tasks else None


def _json(reply: bytes) -> bytes:
    """What an agent calls JSON goes to a browser as such, so it has to be."""
    if len(reply) > REPLY_LIMIT:
        raise Refusal(
            "replyTooLarge", f"the answer takes {len(reply)} bytes; the limit is {REPLY_LIMIT}"
        )
    try:
        msgspec.json.decode(reply, type=msgspec.Raw)
        reply.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Refusal("appFailed", f"what its agent answered is not JSON: {e}") from None
    return reply


def about(request: CallRequest) -> str:
    """Who asks for what, in a word: for the log."""
    what = request.compute_jid or f"{request.uid}-{request.simulation_type}"
    return f"{what}.{request.method}" if request.method else what
