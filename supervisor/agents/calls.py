"""App calls and reads of run files. Each request is checked against the records, sent to the
user's agent, and answered while the client waits.

This module stores nothing and changes no run. It returns an app's reply unchanged.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ...db.events.state import Run
from ...protocol.api.requests import BeginSession, CallRequest, RunFile, RunFileDigest, RunFiles
from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, base62
from ...protocol.wire.messages import (
    REPLY_LIMIT,
    Call,
    CallReply,
    CancelCall,
    DigestFile,
    FileChunk,
    FileDigest,
    FileList,
    ListFiles,
    ReadFile,
    StoreFile,
)
from ..connections.hub import A, Hub
from ..process.counters import Counters
from ..runs.request_validation import check_data
from ..runs.service import RunService

#: Extra time before the supervisor gives up on a call. The agent enforces the call's own deadline.
SLACK_SECS = 2.0
#: Size of one piece of a file in bytes, and the time limit of an agent for one piece.
PIECE = 256 * 1024
FILE_SECS = 30.0
#: Slowest disk on which an agent still checks a stored file in time.
HASH_BYTES_PER_SEC = 20e6

#: Values of `job_cmd` that read a run.
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
    """A file of a run or a library, in its state at the start of the read. length: number of bytes
    that `chunks` yields.
    """

    size: int
    mtime_ns: int
    length: int
    chunks: AsyncGenerator[bytes, None]


class Calls:
    """Sends calls and file reads to agents. One per process. call_secs: default deadline of a call;
    per_user: concurrent calls and file reads of one user.
    """

    def __init__(
        self,
        runs: RunService,
        hub: Hub,
        counters: Counters,
        entropy: Callable[[int], bytes],
        *,
        call_secs: float,
        per_user: int,
        copied: Callable[[AgentKey], bool] = lambda key: False,
    ) -> None:
        """copied: returns whether an agent has only a copy of its user's library."""
        self._runs, self._hub, self._counters, self._entropy, self._copied = (
            runs,
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
        """Return a new opId for a call. The log lines of supervisor and agent contain it."""
        return base62(self._entropy(32), 32)

    async def call(self, request: CallRequest, op_id: str) -> bytes:
        """Return the app's reply as JSON. Raises Refusal.

        The wait for an agent that is not connected counts: an answer comes within the deadline and
        SLACK_SECS.
        """
        self._check(request)
        with self.counted(request.uid):
            run = self._run_of(request) if request.compute_jid is not None else None
            key = self._key(request, run)
            message = self._message(request, run, op_id)
            loop = asyncio.get_running_loop()
            until = loop.time() + message.deadline_secs
            try:
                async with asyncio.timeout_at(until):
                    await self._runs.agent(key)
            except TimeoutError:
                raise Refusal(
                    "deadline",
                    f"the agent of {key.uid} did not connect within the {message.deadline_secs:g} s of the call",
                ) from None
            if request.compute_jid is not None and run is not None:
                self.check_current(request.uid, request.compute_jid, run.serial)
            self._counters.add("call." + request.job_cmd)
            answer = await self._hub.ask(
                key,
                message,
                until + SLACK_SECS - loop.time(),
                CallReply,
                give_up=CancelCall(op_id=message.op_id),
            )
            if request.compute_jid is not None and run is not None:
                self.check_current(request.uid, request.compute_jid, run.serial)
            return _json(answer.reply)

    def _key(self, request: CallRequest, run: Run | None) -> AgentKey:
        """Return the agent for a request. `stateful_compute` may change the library and needs an
        agent that sees the library itself. Raises Refusal.
        """
        if run is not None:
            return self._runs.agent_key(request.uid, run.spec.driver, host_of(run))
        key = self._runs.agent_key(request.uid, request.driver)
        if request.job_cmd != "stateful_compute" or not self._copied(key):
            return key
        others = (
            ()
            if request.driver
            else tuple(self._runs.agent_key(request.uid, name) for name in self._runs.drivers)
        )
        own = next((k for k in others if not self._copied(k)), None)
        if own is None:
            raise Refusal(
                "badRequest",
                f"{request.method!r} may change the user's library, and {key.host} has only a copy of the library; use "
                "a driver whose agents see the user's directory (local, or a cluster with `userRoot`)",
            )
        return own

    def begin_session(self, request: BeginSession) -> None:
        """Start the agent in the background. Raises Refusal only for an invalid request."""
        self._runs.start_agent(self._runs.agent_key(request.uid, request.driver))

    def _check(self, request: CallRequest) -> None:
        if request.simulation_type not in self._runs.apps:
            raise Refusal(
                "unknownApp",
                f"unknown app {request.simulation_type!r}; known apps: {', '.join(self._runs.apps)}",
            )
        if (request.job_cmd in _OF_A_RUN) != (request.compute_jid is not None):
            reads = (
                "reads a run and requires"
                if request.job_cmd in _OF_A_RUN
                else "does not read a run and does not accept"
            )
            raise Refusal("badRequest", f"{request.job_cmd} {reads} `computeJid`")
        check_data("data", request.data)
        check_data("args", request.args)

    def _run_of(self, request: CallRequest) -> Run:
        assert request.compute_jid is not None
        run = self.started_run(request.uid, request.compute_jid, request.compute_job_serial)
        if run.spec.simulation_type != request.simulation_type:
            raise Refusal(
                "badRequest",
                f"{request.compute_jid} is a job of the app {run.spec.simulation_type!r}",
            )
        return run

    def _message(self, request: CallRequest, run: Run | None, op_id: str) -> Call:
        """Build the message. Without `data` in the request, use the data of the run."""
        return Call(
            op_id=op_id,
            job_cmd=request.job_cmd,
            simulation_type=request.simulation_type,
            compute_model=run.spec.compute_model if run else request.compute_model,
            method=request.method,
            run_dir=run.run_dir if run else None,
            lib_dir=os.path.join(self._runs.user_root, request.uid, request.simulation_type, "lib"),
            data=request.data or (run.spec.data or {} if run else {}),
            args=request.args,
            deadline_secs=request.deadline_secs or self._call_secs,
            reply_limit=REPLY_LIMIT,
        )

    # ---- files

    async def open_file(self, request: RunFile) -> OpenFile:
        """Open a file of a run. `chunks` reads from the agent as fast as the client takes the
        bytes. Raises Refusal.
        """
        run = self.started_run(request.uid, request.compute_jid, request.compute_job_serial)
        key = self._runs.agent_key(request.uid, run.spec.driver, host_of(run))
        wanted = PIECE if request.length is None else min(PIECE, request.length)
        with self.counted(request.uid):
            await self._runs.agent(key)
            first = await self._piece(key, run.run_dir, request.name, request.offset, wanted)
        self.check_current(request.uid, request.compute_jid, run.serial)
        rest = max(0, first.size - request.offset)
        length = rest if request.length is None else min(request.length, rest)
        chunks = self._chunks(key, run.run_dir, request, first, length)
        return OpenFile(size=first.size, mtime_ns=first.mtime_ns, length=length, chunks=chunks)

    async def list_files(self, request: RunFiles) -> tuple[int, FileList]:
        """Return the serial of the current run and a page of the files in its run directory. Raises
        Refusal.
        """
        run = self.started_run(request.uid, request.compute_jid, request.compute_job_serial)
        message = ListFiles(
            op_id=self.new_op(), run_dir=run.run_dir, after=request.after, limit=request.limit
        )
        with self.counted(request.uid):
            found = await self.ask(run, message, FileList)
        self.check_current(request.uid, request.compute_jid, run.serial)
        return run.serial, found

    async def digest(self, request: RunFileDigest) -> FileDigest:
        """Return the digest of a part of a file of a run. Raises Refusal."""
        run = self.started_run(request.uid, request.compute_jid, request.compute_job_serial)
        message = DigestFile(
            op_id=self.new_op(),
            run_dir=run.run_dir,
            name=request.name,
            offset=request.offset,
            length=request.length,
        )
        with self.counted(request.uid):
            found = await self.ask(run, message, FileDigest)
        self.check_current(request.uid, request.compute_jid, run.serial)
        return found

    async def ask(self, run: Run, message: DigestFile | StoreFile | ListFiles, kind: type[A]) -> A:
        """Send a request for files to the agent of a run, and return its answer. Raises Refusal."""
        key = self._runs.agent_key(run.spec.uid, run.spec.driver, host_of(run))
        await self._runs.agent(key)
        secs = FILE_SECS
        if isinstance(message, StoreFile) and message.finish:
            secs += message.size / HASH_BYTES_PER_SEC
        try:
            return await self._hub.ask(key, message, secs, kind)
        except Refusal as e:
            older = (
                " (an agent of an older version does not know this request)"
                if e.code == "deadline"
                else ""
            )
            raise Refusal(e.code, e.sentence + older) from None

    async def _chunks(
        self, key: AgentKey, run_dir: str, request: RunFile, first: FileChunk, length: int
    ) -> AsyncGenerator[bytes, None]:
        with self.counted(request.uid):
            sent, piece = 0, first
            while sent < length:
                if not piece.data:
                    raise Refusal(
                        "conflict",
                        f"{request.name!r} became shorter during the read; read it again",
                    )
                data = piece.data[: length - sent]
                sent += len(data)
                yield data
                if sent < length:
                    piece = await self._piece(
                        key, run_dir, request.name, request.offset + sent, min(PIECE, length - sent)
                    )
                    # A run may append to the file meanwhile. Any other change would mix two
                    # different files.
                    if piece.size < first.size or (
                        piece.size == first.size and piece.mtime_ns != first.mtime_ns
                    ):
                        raise Refusal(
                            "conflict",
                            f"{request.name!r} was rewritten during the read; read it again",
                        )

    async def _piece(
        self, key: AgentKey, run_dir: str, name: str, offset: int, limit: int
    ) -> FileChunk:
        message = ReadFile(
            op_id=self.new_op(), run_dir=run_dir, name=name, offset=offset, limit=limit
        )
        return await self._hub.ask(key, message, FILE_SECS, FileChunk)

    # ---- records

    def started_run(self, uid: str, jid: str, serial: int) -> Run:
        """Return the current run if its serial matches (0: any) and the run has started. Raises
        Refusal.
        """
        run = self._runs.job(uid, jid).job.run
        if run is None:
            raise Refusal("notFound", f"there is no job {jid}")
        if serial not in (0, run.serial):
            raise Refusal("staleSerial", f"run {serial} of {jid} is not the current run")
        if run.started_at is None:
            if run.active:
                raise Refusal("notReady", f"{jid} has not started yet")
            raise Refusal("notFound", f"{jid} ended before it started and has no files or results")
        return run

    def check_current(self, uid: str, jid: str, serial: int) -> None:
        run = self._runs.job(uid, jid).job.run
        if run is None or run.serial != serial:
            raise Refusal("staleSerial", f"a newer run of {jid} has started meanwhile")

    @contextmanager
    def counted(self, uid: str) -> Iterator[None]:
        if self._in_flight[uid] >= self._per_user:
            raise Refusal(
                "tooManyRequests",
                f"this user already has {self._per_user} calls in progress, which is the limit; try again later",
            )
        self._in_flight[uid] += 1
        try:
            yield
        finally:
            self._in_flight[uid] -= 1
            if not self._in_flight[uid]:
                del self._in_flight[uid]


def host_of(run: Run) -> str | None:
    """Return the host of the run's newest attempt, or None without a task."""
    tasks = run.attempts[-1].tasks if run.attempts else ()
    return tasks[0].agent_key.host if tasks else None


def _json(reply: bytes) -> bytes:
    """Return the reply after checking its size and that it is valid JSON: browsers receive it as
    JSON.
    """
    if len(reply) > REPLY_LIMIT:
        raise Refusal(
            "replyTooLarge", f"the reply has {len(reply)} bytes; the limit is {REPLY_LIMIT}"
        )
    try:
        msgspec.json.decode(reply, type=msgspec.Raw)
        reply.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise Refusal("appFailed", f"the app's reply is not JSON: {e}") from None
    return reply


def about(request: CallRequest) -> str:
    """Describe a request for the log: `<job>.<method>`."""
    what = request.compute_jid or f"{request.uid}-{request.simulation_type}"
    return f"{what}.{request.method}" if request.method else what
