"""The asynchronous client, on tornado's HTTP client: the same requests as `client.http`, any number
of them at once.

One client belongs to one event loop. All failures are `ClientError`. It has every method of
`client.http.Client`; tests/unit/client compares both. Files are read and sent by the plain client, in
threads of the loop's executor.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

from ..protocol.api.requests import BeginSession, CallRequest, GlobalResources, RunFiles, RunSpec
from ..protocol.wire.messages import JobCmd, Stream
from .api import random_ids, requests
from .api.cursors import EventCursor, LogCursor, PollBackoff
from .api.errors import ClientError, from_body, is_error, own
from .api.replies import GroupRun, GroupState, JobPage, LoggedEvent, LogPart, RunState
from .api.run_specs import command_spec
from .async_operator_calls import AsyncOperatorCalls
from .sync_client import Client
from .transport.address import Source, fixed, in_root
from .transport.async_connection import AsyncConnection
from .transport.async_file_transfer import AsyncFileReader
from .transport.connection import OnTrouble
from .transport.retry import Retry
from .transport.retry_time import budget

IDLE_SECS = 60.0
#: Runs of a group in one answer.
GROUP_PAGE = 1000

_T = TypeVar("_T")


class AsyncClient:
    """Talks to one supervisor as one user. budget_secs, on_trouble: as of `client.http.Client`."""

    def __init__(
        self,
        source: Source,
        *,
        uid: str | None = None,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._connection = AsyncConnection(
            source, budget_secs=budget(budget_secs), on_trouble=on_trouble
        )
        self._uid = uid

    @classmethod
    def to(
        cls,
        url: str,
        token: str,
        uid: str,
        *,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncClient":
        return cls(fixed(url, token, uid), budget_secs=budget_secs, on_trouble=on_trouble)

    @classmethod
    def from_source(
        cls,
        source: Source,
        *,
        uid: str | None = None,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncClient":
        """A client that asks `source` for the address whenever a connection fails. uid: None for
        the address's own.
        """
        return cls(source, uid=uid, budget_secs=budget_secs, on_trouble=on_trouble)

    @classmethod
    def from_root(
        cls,
        root: str | os.PathLike[str],
        *,
        uid: str | None = None,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> "AsyncClient":
        """A client of whichever supervisor runs in this root now; reads `<root>/client.json`."""
        return cls(in_root(root), uid=uid, budget_secs=budget_secs, on_trouble=on_trouble)

    def copy(self, *, uid: str | None = None, budget_secs: float | None = None) -> "AsyncClient":
        """Another client, with connections of its own: for another loop, or to act as another user.

        budget_secs: another one, that goes on trying in silence.
        """
        c = self._connection
        if budget_secs is not None:
            return AsyncClient(c.source, uid=uid or self._uid, budget_secs=budget_secs)
        return AsyncClient(
            c.source, uid=uid or self._uid, budget_secs=c.budget_secs, on_trouble=c.on_trouble
        )

    def close(self) -> None:
        self._connection.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def uid(self) -> str:
        return self._uid or (await self._connection.address()).uid

    async def url(self) -> str:
        return (await self._connection.address()).url

    async def token(self) -> str:
        """The secret in use: to be kept out of what is written."""
        return (await self._connection.address()).token

    # ---- runs

    async def spec(self, command: Sequence[str], **options: Any) -> RunSpec:
        """The spec of a command, a list of words, in a slot of its own; options are those of
        protocol.requests.RunSpec, and `task`.

        Raises TypeError for a text in place of the list: for a shell command line it is ["sh",
        "-c", line].
        """
        return command_spec(
            await self.uid(),
            options.pop("simulation_id", None) or random_ids.simulation_id(),
            command,
            options,
        )

    async def run(self, command: Sequence[str], **options: Any) -> "AsyncJob":
        """Submit a command; returns when the run is durable, never waits for it to start."""
        return await self.submit(await self.spec(command, **options))

    async def submit(
        self, spec: RunSpec, *, force_run: bool = False, serial: int = 0, req_id: str | None = None
    ) -> "AsyncJob":
        """Submit any run: starts it, joins the live one, or finds the finished one with the same
        hash (and serial, unless 0).
        """
        call = requests.run_simulation(
            spec, req_id or random_ids.req_id(), force_run=force_run, serial=serial
        )
        return self._job(await self._state(call))

    async def run_many(self, specs: Sequence[RunSpec]) -> list["AsyncJob | ClientError"]:
        """Submit many runs in one request; answers in the same order, when all are durable."""
        if not specs:
            return []
        body = await self._object(requests.run_many(specs, random_ids.req_id()))
        runs = body.get("runs")
        if not isinstance(runs, list) or len(runs) != len(specs):
            raise own("notASupervisor", "the answer to run-many does not name each run")
        return list(map(self._submitted, runs))

    async def submit_description(
        self, description: object, *, req_id: str | None = None
    ) -> dict[str, list["AsyncJob | ClientError"]]:
        """Submit the jobs of a description (docs/jobs.md), as plain data: all of them, or none.
        Returns the runs of each, by its name.

        What is wrong with it is in `ClientError.more["problems"]`. A run is a ClientError where
        what it waits for had ended meanwhile.
        """
        body = await self._object(
            requests.run_description(await self.uid(), description, req_id or random_ids.req_id())
        )
        return {
            name: list(map(self._submitted, runs))
            for name, runs in requests.runs_by_job(body).items()
        }

    async def plan(self, spec: RunSpec) -> dict[str, Any]:
        """What this run would be: where each task would be, its command and environment, and the
        rules. Nothing is stored.
        """
        return await self._object(requests.run_plan(spec))

    def job(self, jid: str, serial: int = 0) -> "AsyncJob":
        return AsyncJob(self, jid, serial, None)

    async def status(
        self, jid: str, *, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
    ) -> RunState:
        """How the run stands. wait_secs: answer as soon as it is over, at the latest after so many
        seconds (at most 20).
        """
        return await self._state(
            requests.run_status(await self.uid(), jid, serial, wait_secs, hash_)
        )

    async def wait(self, jid: str, *, serial: int = 0, timeout: float | None = None) -> RunState:
        """The state in which nothing of the run is left; after `timeout` seconds the state as it is
        then (see `finished`).
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = PollBackoff()
        while True:
            begun = time.monotonic()
            left = requests.LONG_POLL_SECS if end is None else end - begun
            state = await self.status(jid, serial=serial, wait_secs=left)
            if state.finished or left <= 0:
                return state
            short = pause.after(time.monotonic() - begun)
            await asyncio.sleep(
                short if end is None else max(0.0, min(short, end - time.monotonic()))
            )

    async def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState:
        """Cancel the run; final once this returns. Repeating it is harmless."""
        return await self._state(
            requests.run_cancel(await self.uid(), jid, random_ids.req_id(), serial, reason)
        )

    async def release(
        self, jid: str, *, serial: int = 0, role: str | None = None, index: int | None = None
    ) -> RunState:
        """Give back tasks that were kept for debugging, of this role and index or all: they end
        with the exits that they had.
        """
        return await self._state(requests.run_release(await self.uid(), jid, serial, role, index))

    # ---- clusters

    async def clusters(self) -> list[dict[str, Any]]:
        """The clusters that runs can go to, the usual one first: defaults, limits, and what is
        known of their partitions.
        """
        clusters: list[dict[str, Any]] = (await self._object(requests.clusters(await self.uid())))[
            "clusters"
        ]
        return clusters

    async def sign_in(
        self,
        username: str,
        *,
        cluster: str | None = None,
        password: str | None = None,
        otp: str | None = None,
        private_key: str | None = None,
        passphrase: str | None = None,
        certificate: str | None = None,
    ) -> dict[str, Any]:
        """{"loginSuccess", "cluster", "user"}: sign in to a cluster (None: the first one) as this
        unix user; runs that wait for it go on.

        Sent once: a second wrong answer may lock the account. Raises ClientError: `signInRefused`,
        `signInUnreachable`, `signedInAlready` (under another name: sign out first),
        `tooManyRequests` (its `more` says `waitSecs`).
        """
        secrets = {
            "password": password,
            "otp": otp,
            "private_key": private_key,
            "passphrase": passphrase,
            "certificate": certificate,
        }
        there = await self.sign_in_status(
            cluster
        )  # also finds a supervisor that was started anew elsewhere
        if there.get("ready") and (
            there.get("access") != "ssh" or there.get("user") in (None, username)
        ):
            return {**there, "loginSuccess": True}
        secrets = (
            {} if there.get("ready") else secrets
        )  # it is refused, and needs no secret for that
        call = requests.sbatch_login(await self.uid(), cluster, username, secrets)
        return requests.object_of((await self._connection.call_once(call)).body)

    async def sign_out(self, cluster: str | None = None) -> dict[str, Any]:
        """{"signedOut", "agentEnded", "runs", "cluster", "user"}: sign out of a cluster (None: the
        first one); the agent there ends.

        signedOut: was anybody signed in? runs: that Slurm goes on with; they are followed again
        after the next sign-in.
        """
        return await self._object(requests.sbatch_logout(await self.uid(), cluster))

    async def sign_in_status(self, cluster: str | None = None) -> dict[str, Any]:
        """{"ready", "cluster", "host", "access", "user", "sentence"}: does this user have to sign
        in to a cluster?
        """
        return await self._object(requests.sbatch_login_status(await self.uid(), cluster))

    # ---- groups

    async def submit_array(
        self, spec: RunSpec, indices: str, *, req_id: str | None = None
    ) -> dict[str, Any]:
        """One run for each index ("0-9,20%5", see protocol.arrays), in one request, answered when
        all are durable.

        {"group", "simulationId", "count", "accepted", "states", "refusedCount", "refused":
        [{"index", "code", "error"}]}. What completed before, and has not changed, is not run again.
        """
        return await self._object(requests.run_array(spec, indices, req_id or random_ids.req_id()))

    async def group(
        self,
        sid: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        wait_secs: float = 0.0,
    ) -> GroupState:
        """How the runs of a simulation stand, and a page of them. status: one of
        protocol.requests.GroupStatus. limit: 0 for counts alone.

        wait_secs: answer as soon as nothing is left of any of them, at the latest after so many
        seconds (at most 20).
        """
        request = requests.group_request(await self.uid(), sid, status, after, limit, wait_secs)
        return requests.group_state((await self._connection.call(requests.job_group(request))).body)

    async def group_runs(self, sid: str, *, status: str | None = None) -> AsyncIterator[GroupRun]:
        """All runs of a simulation, or those with this status, in the order of their indices."""
        after: str | None = None
        while True:
            page = await self.group(sid, status=status, after=after, limit=GROUP_PAGE)
            for run in page.runs:
                yield run
            after = page.next
            if after is None:
                return

    async def wait_group(self, sid: str, *, timeout: float | None = None) -> GroupState:
        """Its counts when nothing of its runs is left; after `timeout` seconds as they are then
        (see `over`).
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = PollBackoff()
        while True:
            begun = time.monotonic()
            left = requests.LONG_POLL_SECS if end is None else end - begun
            state = await self.group(sid, limit=0, wait_secs=left)
            if state.over or left <= 0:
                return state
            short = pause.after(time.monotonic() - begun)
            await asyncio.sleep(
                short if end is None else max(0.0, min(short, end - time.monotonic()))
            )

    async def cancel_group(
        self,
        sid: str,
        *,
        indices: str | None = None,
        models: Sequence[str] | None = None,
        status: str | None = None,
        reason: str = "",
        req_id: str | None = None,
    ) -> dict[str, Any]:
        """Cancel the runs of a simulation, or some of them: {"asked", "canceled", "over",
        "missing"}. Final once this returns.
        """
        request = requests.cancel_request(
            await self.uid(), sid, req_id or random_ids.req_id(), indices, models, status, reason
        )
        return await self._object(requests.group_cancel(request))

    # ---- apps

    async def apps(self) -> list[str]:
        """The simulation types that there are."""
        return [str(name) for name in (await self._object(requests.apps())).get("apps", [])]

    async def begin_session(self, *, driver: str = "") -> None:
        """Work is about to begin: have the user's agent on its way. Returns at once."""
        await self._object(
            requests.begin_session(BeginSession(uid=await self.uid(), driver=driver))
        )

    async def call(self, job_cmd: JobCmd, simulation_type: str, **fields: Any) -> bytes:
        """What the app answers, as JSON. fields: those of protocol.requests.CallRequest (method,
        args, compute_jid, ...).

        A deadline that is over and a crowd that is too large are told at once, not tried again.
        """
        request = CallRequest(
            uid=await self.uid(), job_cmd=job_cmd, simulation_type=simulation_type, **fields
        )
        return (await self._connection.call(requests.call(request))).body

    async def global_resources(
        self, simulation_type: str, simulation_id: str, *, ports: int = 1, release: bool = False
    ) -> dict[str, Any]:
        """{"ports", "ip", "until"}: ports leased to this simulation, the same ones each time;
        `release` gives them back.
        """
        request = GlobalResources(
            uid=await self.uid(),
            simulation_type=simulation_type,
            simulation_id=simulation_id,
            ports=ports,
            release=release,
        )
        return await self._object(requests.global_resources(request))

    # ---- files

    async def open_file(
        self, jid: str, name: str, *, serial: int = 0, offset: int = 0, length: int | None = None
    ) -> AsyncFileReader:
        """A file of the run directory, or a part of it, to be read piece by piece and closed."""
        return AsyncFileReader(
            await self._threaded(
                lambda plain: plain.open_file(
                    jid, name, serial=serial, offset=offset, length=length
                )
            )
        )

    async def files(self, jid: str, *, serial: int = 0) -> AsyncIterator[dict[str, Any]]:
        """The regular files of the run directory, ordered: {"name", "size", "mtime"}, name relative
        to it, mtime in unix seconds.

        Links, pipes and devices, and names that are not UTF-8, are left out.
        """
        after: str | None = ""
        while after is not None:
            request = RunFiles(
                uid=await self.uid(), compute_jid=jid, compute_job_serial=serial, after=after
            )
            page = await self._object(requests.run_files(request))
            serial, after = page["computeJobSerial"], page["next"]
            for file in page["files"]:
                yield file

    async def lib_files(self, simulation_type: str) -> list[dict[str, Any]]:
        """[{"name", "size", "sha256", "mtime"}] of the user's library for this app."""
        files: list[dict[str, Any]] = (
            await self._object(requests.lib_files(await self.uid(), simulation_type))
        ).get("files", [])
        return files

    async def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]:
        """Put a file of `size` bytes into the user's library: {"name", "size", "sha256"}. It is
        there whole or not at all. Tried once.

        `pieces` is iterated in a thread.
        """
        return await self._threaded(
            lambda client: client.upload(simulation_type, name, pieces, size)
        )

    async def delete_file(self, simulation_type: str, name: str) -> None:
        """Take a file out of the user's library."""
        await self._object(requests.lib_file(await self.uid(), simulation_type, name, "DELETE"))

    # ---- what is known

    @property
    def operating(self) -> AsyncOperatorCalls:
        """What operators ask: agents, hosts, health, notifications."""
        return AsyncOperatorCalls(self._object, self.uid)

    async def jobs(
        self,
        *,
        all_users: bool = False,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
        commands: bool = False,
    ) -> JobPage:
        """One page of jobs, newest change first. commands: rows also have `command` (shortened) and
        `name`, for which logs are read.
        """
        uid = None if all_users else await self.uid()
        request = requests.job_page(uid, status, active, before, limit, commands)
        return requests.page_of((await self._connection.call(requests.job_list(request))).body)

    async def logs(
        self,
        jid: str,
        stream: Stream = "stdout",
        *,
        attempt: int = 0,
        role: str | None = None,
        index: int = 0,
        offset: int = 0,
        tail: int = 0,
        follow: bool = False,
        notes: bool = False,
    ) -> AsyncIterator[LogPart]:
        """The bytes of a stream of one task, piece by piece; `follow` goes on until nothing can
        follow any more.

        attempt 0: the latest. role None: the task that stands for the attempt, or its first; each
        part says whose it is. notes: where there is nothing, a part without bytes says why.
        """
        cursor = LogCursor(
            await self.uid(),
            jid,
            stream,
            attempt=attempt,
            role=role,
            index=index,
            offset=offset,
            tail=tail,
            follow=follow,
        )
        pause = PollBackoff()
        while not cursor.done:
            begun = time.monotonic()
            reply = await self._connection.call(requests.job_log(cursor.request()))
            part = requests.log_part(stream, reply.headers, reply.body)
            cursor.took(part)
            if part.data or part.dropped or (notes and part.note):
                pause.reset()
                yield part
            if cursor.idle:
                if (await self.status(jid)).finished:
                    cursor.run_over()
                else:
                    await asyncio.sleep(pause.after(time.monotonic() - begun))

    async def tasks(self, jid: str, attempt: int = 0, *, serial: int = 0) -> dict[str, Any]:
        """{"attempt", "attempts", "tasks"}: the attempts of the current run, and the tasks of one
        of them (0: the latest).
        """
        return await self._object(requests.job_tasks(await self.uid(), jid, serial, attempt))

    async def story(self, jid: str) -> dict[str, Any]:
        return await self._object(requests.job_story(await self.uid(), jid))

    async def why(self, jid: str) -> dict[str, Any]:
        return await self._object(requests.job_why(await self.uid(), jid))

    async def metrics(
        self,
        jid: str,
        *,
        serial: int = 0,
        series: bool = False,
        role: str | None = None,
        index: int | None = None,
    ) -> dict[str, Any]:
        return await self._object(
            requests.job_metrics(await self.uid(), jid, serial, series, role, index)
        )

    async def trace(
        self, id_: str, *, all_users: bool = False, logs: bool = False
    ) -> dict[str, Any]:
        return await self._object(
            requests.trace(id_, None if all_users else await self.uid(), logs)
        )

    async def events(
        self,
        after: int = -1,
        *,
        jid: str | None = None,
        all_users: bool = False,
        idle_secs: float = IDLE_SECS,
    ) -> AsyncIterator[LoggedEvent]:
        """Every event after a position, each once and in order, for ever; -1: from now on. Lost
        connections are resumed.
        """
        cursor = EventCursor(after)
        uid = None if all_users else await self.uid()
        retry = Retry(self._connection.budget_secs)
        while True:
            cursor.connected()
            path = requests.events_path(cursor.after, uid, jid)
            chunks = self._connection.stream(path, cursor.headers(), idle_secs)
            try:
                async for chunk in chunks:
                    for event in cursor.feed(chunk):
                        retry = Retry(self._connection.budget_secs)
                        yield event
            except ClientError as e:
                if not await self._connection.let_in_elsewhere(e):
                    await self._connection.after_failure(retry, e)
            finally:
                await chunks.aclose()

    async def _threaded(self, work: Callable[[Client], _T]) -> _T:
        """What `work` returns of a plain client, in a thread of the executor."""
        c = self._connection
        with Client.from_source(
            c.source, uid=self._uid, budget_secs=c.budget_secs, on_trouble=c.on_trouble
        ) as client:
            return await asyncio.to_thread(work, client)

    async def _object(self, call: requests.Call) -> dict[str, Any]:
        return requests.object_of((await self._connection.call(call)).body)

    async def _state(self, call: requests.Call) -> RunState:
        return requests.state_of((await self._connection.call(call)).body)

    def _submitted(self, answer: dict[str, Any]) -> "AsyncJob | ClientError":
        return from_body(answer) if is_error(answer) else self._job(requests.state_from(answer))

    def _job(self, state: RunState) -> "AsyncJob":
        return AsyncJob(self, state.compute_jid, state.compute_job_serial or 0, state)


class AsyncJob:
    """One run in one slot. submitted: what the supervisor answered to the submission, if this
    handle comes from one.
    """

    def __init__(
        self, client: AsyncClient, jid: str, serial: int, submitted: RunState | None
    ) -> None:
        self.client, self.jid, self.serial, self.submitted = client, jid, serial, submitted

    def __repr__(self) -> str:
        return f"AsyncJob({self.jid} serial={self.serial})"

    async def status(self) -> RunState:
        return await self.client.status(self.jid, serial=self.serial)

    async def wait(self, timeout: float | None = None) -> RunState:
        return await self.client.wait(self.jid, serial=self.serial, timeout=timeout)

    async def cancel(self, reason: str = "") -> RunState:
        return await self.client.cancel(self.jid, serial=self.serial, reason=reason)

    async def tasks(self, attempt: int = 0) -> dict[str, Any]:
        return await self.client.tasks(self.jid, attempt, serial=self.serial)

    async def release(self, role: str | None = None, index: int | None = None) -> RunState:
        return await self.client.release(self.jid, serial=self.serial, role=role, index=index)

    def logs(self, stream: Stream = "stdout", **options: Any) -> AsyncIterator[LogPart]:
        return self.client.logs(self.jid, stream, **options)

    async def why(self) -> dict[str, Any]:
        return await self.client.why(self.jid)

    async def story(self) -> dict[str, Any]:
        return await self.client.story(self.jid)
