"""The asynchronous client, on Tornado's HTTP client, for any number of concurrent requests.

Use a client in one event loop only. It has every method of `Client`; tests/unit/client compares
both. Files are read and sent by a synchronous client in threads of the loop's executor. All
failures are `ClientError`.
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
#: Number of runs of a group in one answer.
GROUP_PAGE = 1000

_T = TypeVar("_T")


class AsyncClient:
    """Sends requests to one supervisor as one user. budget_secs, on_trouble: see `Client`."""

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
        """Return a client that calls `source` for the address whenever a connection fails.

        uid: None for the uid of the address.
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
        """Return a client of the supervisor that runs in this root; it reads `<root>/client.json`."""
        return cls(in_root(root), uid=uid, budget_secs=budget_secs, on_trouble=on_trouble)

    def copy(self, *, uid: str | None = None, budget_secs: float | None = None) -> "AsyncClient":
        """Return a client with its own connections, for another loop or another user.

        budget_secs: another retry time, without calls of `on_trouble`.
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
        """The secret in use. Keep it out of logs and output."""
        return (await self._connection.address()).token

    # ---- runs

    async def spec(self, command: Sequence[str], **options: Any) -> RunSpec:
        """Return the spec of a command, a list of words, with a new simulation id.

        options: fields of protocol.api.requests.RunSpec, and `task`. Raises TypeError for a string;
        the list for a shell command line is ["sh", "-c", line].
        """
        return command_spec(
            await self.uid(),
            options.pop("simulation_id", None) or random_ids.simulation_id(),
            command,
            options,
        )

    async def run(self, command: Sequence[str], **options: Any) -> "AsyncJob":
        """Submit a command. Returns when the run is durable, without waiting for its start."""
        return await self.submit(await self.spec(command, **options))

    async def submit(
        self, spec: RunSpec, *, force_run: bool = False, serial: int = 0, req_id: str | None = None
    ) -> "AsyncJob":
        """Start a run, join the live one, or find the completed one with the same hash.

        serial: of the expected run; 0 for any.
        """
        call = requests.run_simulation(
            spec, req_id or random_ids.req_id(), force_run=force_run, serial=serial
        )
        return self._job(await self._state(call))

    async def run_many(self, specs: Sequence[RunSpec]) -> list["AsyncJob | ClientError"]:
        """Submit many runs in one request. Returns the answers in the same order."""
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
        """Submit all jobs of a description (docs/jobs.md, as plain data), or none.

        Returns the runs of each job by its name. A run is a ClientError if its dependency ended
        meanwhile. Raises ClientError with the problems in `more["problems"]`.
        """
        body = await self._object(
            requests.run_description(await self.uid(), description, req_id or random_ids.req_id())
        )
        return {
            name: list(map(self._submitted, runs))
            for name, runs in requests.runs_by_job(body).items()
        }

    async def plan(self, spec: RunSpec) -> dict[str, Any]:
        """Return the plan of a run: host, command and environment of each task, and the policies.

        Nothing is stored.
        """
        return await self._object(requests.run_plan(spec))

    def job(self, jid: str, serial: int = 0) -> "AsyncJob":
        return AsyncJob(self, jid, serial, None)

    async def status(
        self, jid: str, *, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
    ) -> RunState:
        """Return the status of the run.

        wait_secs: wait this long for the end of the run, at most 20 s.
        """
        return await self._state(
            requests.run_status(await self.uid(), jid, serial, wait_secs, hash_)
        )

    async def wait(self, jid: str, *, serial: int = 0, timeout: float | None = None) -> RunState:
        """Wait until the run is over, or for `timeout` seconds. Return its state (see `finished`)."""
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
        """Cancel the run; final when this returns. A repetition has no effect."""
        return await self._state(
            requests.run_cancel(await self.uid(), jid, random_ids.req_id(), serial, reason)
        )

    async def release(
        self, jid: str, *, serial: int = 0, role: str | None = None, index: int | None = None
    ) -> RunState:
        """Release the tasks held for debugging, all or those of a role and index.

        Their exits stay the same.
        """
        return await self._state(requests.run_release(await self.uid(), jid, serial, role, index))

    # ---- clusters

    async def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, the default one first: defaults, limits and known partitions."""
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
        """Sign in to a cluster as this unix user, so that waiting runs continue.

        cluster: None for the first one. Returns {"loginSuccess", "cluster", "user"}. The request is
        sent once, because a second wrong answer may lock the account. Raises ClientError:
        `signInRefused`, `signInUnreachable`, `signedInAlready` (under another name; sign out
        first), `tooManyRequests` (with `waitSecs` in `more`).
        """
        secrets = {
            "password": password,
            "otp": otp,
            "private_key": private_key,
            "passphrase": passphrase,
            "certificate": certificate,
        }
        there = await self.sign_in_status(cluster)  # also finds a restarted supervisor
        if there.get("ready") and (
            there.get("access") != "ssh" or there.get("user") in (None, username)
        ):
            return {**there, "loginSuccess": True}
        secrets = (
            {} if there.get("ready") else secrets
        )  # the request will be refused, so it needs no secret
        call = requests.sbatch_login(await self.uid(), cluster, username, secrets)
        return requests.object_of((await self._connection.call_once(call)).body)

    async def sign_out(self, cluster: str | None = None) -> dict[str, Any]:
        """Sign out of a cluster (None: the first one), which stops the user's agent there.

        Returns {"signedOut", "agentEnded", "runs", "cluster", "user"}. signedOut: the user was
        signed in. runs: number of runs that Slurm continues; they are followed again after the next
        sign-in.
        """
        return await self._object(requests.sbatch_logout(await self.uid(), cluster))

    async def sign_in_status(self, cluster: str | None = None) -> dict[str, Any]:
        """Return whether this user must sign in to a cluster.

        Returns {"ready", "cluster", "host", "access", "user", "sentence"}.
        """
        return await self._object(requests.sbatch_login_status(await self.uid(), cluster))

    # ---- groups

    async def submit_array(
        self, spec: RunSpec, indices: str, *, req_id: str | None = None
    ) -> dict[str, Any]:
        """Submit one run for each index ("0-9,20%5", see protocol.api.job_arrays) in one request.

        Returns {"group", "simulationId", "count", "accepted", "states", "refusedCount", "refused":
        [{"index", "code", "error"}]} when all are durable. Completed runs that did not change are
        not repeated.
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
        """Return the counts of a simulation's runs by state, and a page of the runs.

        status: one of protocol.api.requests.GroupStatus. limit: 0 for counts only. wait_secs: wait
        this long until all runs are over, at most 20 s.
        """
        request = requests.group_request(await self.uid(), sid, status, after, limit, wait_secs)
        return requests.group_state((await self._connection.call(requests.job_group(request))).body)

    async def group_runs(self, sid: str, *, status: str | None = None) -> AsyncIterator[GroupRun]:
        """Yield all runs of a simulation, or those with this status, in the order of their indices."""
        after: str | None = None
        while True:
            page = await self.group(sid, status=status, after=after, limit=GROUP_PAGE)
            for run in page.runs:
                yield run
            after = page.next
            if after is None:
                return

    async def wait_group(self, sid: str, *, timeout: float | None = None) -> GroupState:
        """Wait until all runs are over, or for `timeout` seconds. Return the counts (see `over`)."""
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
        """Cancel the runs of a simulation, or some of them; final when this returns.

        Returns {"asked", "canceled", "over", "missing"}.
        """
        request = requests.cancel_request(
            await self.uid(), sid, req_id or random_ids.req_id(), indices, models, status, reason
        )
        return await self._object(requests.group_cancel(request))

    # ---- apps

    async def apps(self) -> list[str]:
        """Return the available simulation types."""
        return [str(name) for name in (await self._object(requests.apps())).get("apps", [])]

    async def begin_session(self, *, driver: str = "") -> None:
        """Start the user's agent ahead of work. Returns at once."""
        await self._object(
            requests.begin_session(BeginSession(uid=await self.uid(), driver=driver))
        )

    async def call(self, job_cmd: JobCmd, simulation_type: str, **fields: Any) -> bytes:
        """Call a function of an app. Return its answer as JSON.

        fields: of protocol.api.requests.CallRequest (method, args, compute_jid, ...). Refusals
        because of a deadline or too many requests are not retried.
        """
        request = CallRequest(
            uid=await self.uid(), job_cmd=job_cmd, simulation_type=simulation_type, **fields
        )
        return (await self._connection.call(requests.call(request))).body

    async def global_resources(
        self, simulation_type: str, simulation_id: str, *, ports: int = 1, release: bool = False
    ) -> dict[str, Any]:
        """Lease ports to this simulation, the same ones each time, or release them.

        Returns {"ports", "ip", "until"}.
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
        """Open a file of the run directory, or a part of it. The caller must close it."""
        return AsyncFileReader(
            await self._threaded(
                lambda plain: plain.open_file(
                    jid, name, serial=serial, offset=offset, length=length
                )
            )
        )

    async def files(self, jid: str, *, serial: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the regular files of the run directory in order: {"name", "size", "mtime"}.

        name: relative to the directory. mtime: unix seconds. Links, pipes, devices and names that
        are not UTF-8 are left out.
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
        """Return [{"name", "size", "sha256", "mtime"}] of the user's library for this app."""
        files: list[dict[str, Any]] = (
            await self._object(requests.lib_files(await self.uid(), simulation_type))
        ).get("files", [])
        return files

    async def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]:
        """Upload a file of `size` bytes to the user's library, completely or not at all.

        pieces: iterated in a thread. Returns {"name", "size", "sha256"}. Not retried.
        """
        return await self._threaded(
            lambda client: client.upload(simulation_type, name, pieces, size)
        )

    async def delete_file(self, simulation_type: str, name: str) -> None:
        """Delete a file of the user's library."""
        await self._object(requests.lib_file(await self.uid(), simulation_type, name, "DELETE"))

    # ---- queries

    @property
    def operating(self) -> AsyncOperatorCalls:
        """Requests of operators: agents, hosts, health, notifications."""
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
        """Return one page of jobs, newest change first.

        commands: rows also have `command` (shortened) and `name`, which is slower.
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
        """Yield the output of one task, piece by piece.

        attempt: 0 for the latest. role: None for the task that represents the attempt, or its
        first; each part names its task. follow: continue until the run is over. notes: if there is
        no output, yield a part without bytes that explains why.
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
        """Return {"attempt", "attempts", "tasks"}: all attempts, and the tasks of one (0: the
        latest).
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
        """Yield every event after a position, once and in order, without end.

        after: -1 for new events only. Lost connections are resumed.
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
                if not await self._connection.has_new_address(e):
                    await self._connection.after_failure(retry, e)
            finally:
                await chunks.aclose()

    async def _threaded(self, work: Callable[[Client], _T]) -> _T:
        """Run `work` with a synchronous client in a thread. Return its result."""
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
    """A handle on one run. submitted: the answer to the submission, if this handle comes from one."""

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
