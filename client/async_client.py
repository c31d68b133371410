"""The asynchronous client, for any number of concurrent requests in one event loop.

It has every method of `Client`, whose docstrings have the details; tests/unit/client compares both.
All failures are `ClientError`.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, assert_never, overload

from ..protocol.api.requests import JobCore, RunFile, RunSpec, UsageGroup
from ..protocol.jobs.core_report import CoreFile
from ..protocol.jobs.registry_login import RegistryLogin
from ..protocol.wire.handshake import ACTOR
from ..protocol.wire.messages import JobCmd, Stream
from ..schema.jobs.job_file import Definition
from .api import clones, operations, random_ids, requests
from .api.cursors import EventCursor
from .api.errors import ClientError
from .api.notebook import table
from .api.operations import GetTime, GetUid, Once, Part, Pause, Progress, Step, Steps, for_user
from .api.replies import GroupRun, GroupState, JobPage, LoggedEvent, LogPart, RunState, Transfer
from .api.requests import Call
from .operator_calls import AsyncOperatorCalls
from .sync_client import IDLE_SECS, Client
from .transfers.core_download import get_core
from .transfers.remote import Remote
from .transfers.transfers import OnDone, OnProgress, get_files, in_thread, put_files
from .transport.address import Source, TokenSource, fixed, in_root
from .transport.async_connection import AsyncConnection, AsyncFileReader
from .transport.connection import Connection
from .transport.endpoint import Endpoint, OnTrouble
from .transport.messages import Request
from .transport.retry_time import budget

if TYPE_CHECKING:
    from .functions.async_executor import AsyncExecutor
    from .functions.decorator import AsyncJobFunction, Executors
    from .functions.future import FunctionFuture

_P = ParamSpec("_P")
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
            Endpoint(source, budget_secs=budget(budget_secs), on_trouble=on_trouble)
        )
        self._uid = uid
        self._functions: Executors | None = None

    @classmethod
    def to(
        cls,
        url: str,
        token: TokenSource,
        uid: str | None = None,
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

    def copy(
        self, *, uid: str | None = None, budget_secs: float | None = None, actor: str | None = None
    ) -> "AsyncClient":
        """Return a client with its own connections, for another loop or another user.

        budget_secs: another retry time, without calls of `on_trouble`. actor: the user who really
        acts, for the audit trail, if this client has the server secret.
        """
        e = self._connection.endpoint
        copied = AsyncClient(
            e.source,
            uid=uid or self._uid,
            budget_secs=e.budget_secs if budget_secs is None else budget_secs,
            on_trouble=e.on_trouble if budget_secs is None else None,
        )
        named = {} if actor is None else {ACTOR: actor}
        copied._connection.endpoint.headers = {**e.headers, **named}
        return copied

    def close(self) -> None:
        """Close idle connections soon; `async with` waits for it. Unfinished futures of `submit`
        fail; their runs continue.
        """
        self._abandon_functions()
        self._connection.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._abandon_functions()
        await self._connection.aclose()

    async def uid(self) -> str:
        """The user. Asks the supervisor once if only it knows the user of the token."""
        uid = self._uid or (await self._connection.address()).uid
        if not uid:
            uid = self._uid = await self._do(operations.own_uid())
        return uid

    async def url(self) -> str:
        return (await self._connection.address()).url

    async def token(self) -> str:
        """The secret in use. Keep it out of logs and output."""
        return (await self._connection.address()).token

    # ---- runs

    async def spec(self, command: Sequence[str], **options: Any) -> RunSpec:
        """Return the spec of a command, a list of words, with a new simulation id."""
        return await self._do(operations.spec(command, options))

    async def run(self, command: Sequence[str], **options: Any) -> "AsyncJob":
        """Submit a command. Returns when the run is durable, without waiting for its start."""
        return await self.submit(await self.spec(command, **options))

    @overload
    async def submit(
        self, spec: RunSpec, *, force_run: bool = ..., serial: int = ..., req_id: str | None = ...
    ) -> "AsyncJob": ...

    @overload
    async def submit(
        self,
        spec: Callable[..., _T],
        *args: Any,
        resources: Mapping[str, Any] | None = ...,
        **options: Any,
    ) -> "FunctionFuture[_T]": ...

    async def submit(self, spec: Any, *args: Any, **options: Any) -> Any:
        """Start a run, join the live one, or find the completed one with the same hash.

        With a function instead of a spec: return a future, which may be awaited.
        """
        if isinstance(spec, RunSpec):
            return self._job(await self._do(operations.submit_run(spec, *args, **options)))
        resources = options.pop("resources", None)
        executor: Any = self._executors().of({})
        return await asyncio.to_thread(executor.call, spec, args, options, resources)

    @overload
    def function(self, fn: Callable[_P, _T], /) -> "AsyncJobFunction[_P, _T]": ...

    @overload
    def function(
        self, fn: None = None, /, **options: Any
    ) -> "Callable[[Callable[_P, _T]], AsyncJobFunction[_P, _T]]": ...

    def function(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Decorate a function, so that `await fn.submit(...)` and `async for ... in fn.map(...)`
        call it in jobs. A plain call runs it here. Options: see `Client.function`.
        """
        from .functions.decorator import AsyncJobFunction, decorated

        return decorated(AsyncJobFunction, fn, lambda: self._executors().of(options))

    def _executors(self) -> "Executors":
        if self._functions is None:
            from .functions.decorator import Executors

            def make(**options: Any) -> Any:
                with self._plain() as client:
                    return client.executor(**options)

            self._functions = Executors(make)
        return self._functions

    def executor(
        self,
        *,
        max_workers: int | None = None,
        workers: int | None = None,
        resources: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> "AsyncExecutor":
        """Return an executor with the methods of `Client.executor`, to be awaited. Its futures may
        be awaited, too.
        """
        from .functions.async_executor import AsyncExecutor

        with self._plain() as client:
            return AsyncExecutor(
                client.executor(
                    max_workers=max_workers, workers=workers, resources=resources, **limits
                )
            )

    def _plain(self) -> Client:
        """Return a synchronous client with the same address and user."""
        e = self._connection.endpoint
        plain = Client.from_source(e.source, uid=self._uid, budget_secs=e.budget_secs)
        plain._connection.endpoint.headers = dict(e.headers)
        return plain

    def _abandon_functions(self) -> None:
        if self._functions is not None:
            self._functions.abandon()
            self._functions = None

    async def run_many(self, specs: Sequence[RunSpec]) -> list["AsyncJob | ClientError"]:
        """Submit up to protocol.api.requests.MAX_BULK runs in one request."""
        return list(map(self._submitted, await self._do(operations.run_many(specs))))

    async def submit_description(
        self,
        description: object,
        *,
        req_id: str | None = None,
        credentials: Mapping[str, RegistryLogin] = {},
    ) -> dict[str, list["AsyncJob | ClientError"]]:
        """Submit all jobs of a description (docs/jobs.md, as plain data), or none."""
        jobs = await self._do(operations.submit_description(description, req_id, credentials))
        return {name: list(map(self._submitted, runs)) for name, runs in jobs.items()}

    async def definition(self, jid: str) -> Definition:
        """Return the definition of a job of this user, without secrets: its job file as plain data."""
        return await self._do(clones.definition(jid))

    async def clone(
        self, jid: str, *, name: str | None = None, changes: Mapping[str, Any] = {}
    ) -> "AsyncJob":
        """Submit a new job from the definition of an earlier one, with changes by their paths."""
        return self._job(await self._do(clones.clone(jid, name, changes)))

    async def submit_definition(
        self, data: object, *, app: bool = False, credentials: Mapping[str, RegistryLogin] = {}
    ) -> list["AsyncJob | ClientError"]:
        """Submit a definition (see `definition`). app: of an app's run."""
        runs = await self._do(clones.submit_definition(data, app, credentials))
        return list(map(self._submitted, runs))

    async def plan(self, spec: RunSpec) -> dict[str, Any]:
        """Return the plan of a run: host, command and environment of each task, and the policies."""
        return await self._do(operations.ask(requests.run_plan(spec)))

    def job(self, jid: str, serial: int = 0) -> "AsyncJob":
        """Return a handle on an earlier job. serial: 0 for the current run."""
        return AsyncJob(self, jid, serial, None)

    async def status(
        self, jid: str, *, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
    ) -> RunState:
        """Return the status of the run."""
        return await self._do(operations.status(jid, serial, wait_secs, hash_))

    async def wait(self, jid: str, *, serial: int = 0, timeout: float | None = None) -> RunState:
        """Wait until the run is over, or for `timeout` seconds. Return its state (see `finished`)."""
        return await self._do(operations.wait(jid, serial, timeout))

    async def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState:
        """Cancel the run; final when this returns. A run whose command has ended keeps its result."""
        return await self._do(operations.cancel(jid, serial, reason))

    async def release(
        self, jid: str, *, serial: int = 0, role: str | None = None, index: int | None = None
    ) -> RunState:
        """Release the tasks held for debugging, all or those of a role and index."""
        return await self._do(
            operations.state(for_user(requests.run_release, jid, serial, role, index))
        )

    async def purge(self, jid: str, *, serial: int = 0) -> RunState:
        """Remove the run directory and output of a run that is over. Its status and history stay."""
        return await self._do(operations.state(for_user(requests.run_purge, jid, serial)))

    async def tag(
        self, jid: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> list[str]:
        """Add tags to the job and remove tags from it. Return all its tags. A repetition has no effect."""
        return await self._do(operations.tag(jid, add, remove))

    async def debug_list(self, jid: str | None = None) -> dict[str, Any]:
        """Return the processes that wait for a debugger, of all jobs or of one."""
        return await self._do(for_user(requests.debug_list, jid))

    async def debug_attach(self, jid: str, id_: str) -> dict[str, Any]:
        """Begin a session with the stop of this id. Returns {"session", "stop"}."""
        return await self._do(operations.debug_attach(jid, id_))

    async def debug_io(
        self,
        session: str,
        data: str = "",
        *,
        limit: int = 0,
        wait_secs: float = 0.0,
        close: bool = False,
    ) -> dict[str, Any]:
        """Send text to a debugger and read its output. Returns {"data", "end", "reason"}."""
        return await self._do(operations.debug_io(session, data, limit, wait_secs, close))

    # ---- groups

    async def submit_array(
        self, spec: RunSpec, indices: str, *, req_id: str | None = None
    ) -> dict[str, Any]:
        """Submit one run for each index ("0-9,20%5", see protocol.api.job_arrays) in one request."""
        return await self._do(operations.submit_array(spec, indices, req_id))

    async def group(
        self,
        sid: str,
        *,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
        wait_secs: float = 0.0,
    ) -> GroupState:
        """Return the counts of a simulation's runs by state, and a page of the runs."""
        return await self._do(operations.group(sid, status, after, limit, wait_secs))

    def group_runs(self, sid: str, *, status: str | None = None) -> AsyncIterator[GroupRun]:
        """Yield all runs of a simulation, or those with this status, in the order of their indices."""
        return self._parts(operations.group_runs(sid, status))

    async def wait_group(self, sid: str, *, timeout: float | None = None) -> GroupState:
        """Wait until all runs are over, or for `timeout` seconds. Return the counts (see `over`)."""
        return await self._do(operations.wait_group(sid, timeout))

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
        """Cancel the runs of a simulation, or some of them; final when this returns."""
        return await self._do(operations.cancel_group(sid, indices, models, status, reason, req_id))

    # ---- apps

    async def apps(self) -> list[str]:
        """Return the available simulation types."""
        return await self._do(operations.apps())

    async def begin_session(self, *, driver: str = "") -> None:
        """Start the user's agent ahead of work. Returns at once."""
        await self._do(operations.begin_session(driver))

    async def call(self, job_cmd: JobCmd, simulation_type: str, **fields: Any) -> bytes:
        """Call a function of an app. Return its answer as JSON."""
        return await self._do(operations.call(job_cmd, simulation_type, fields))

    async def global_resources(
        self, simulation_type: str, simulation_id: str, *, ports: int = 1, release: bool = False
    ) -> dict[str, Any]:
        """Lease ports to this simulation, the same ones each time, or release them."""
        return await self._do(
            operations.global_resources(simulation_type, simulation_id, ports, release)
        )

    # ---- clusters

    async def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, the default one first: defaults, limits and known partitions."""
        return await self._do(operations.field("clusters", for_user(requests.clusters)))

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
        """Sign in to a cluster as this unix user, so that waiting runs continue."""
        secrets = {
            "password": password,
            "otp": otp,
            "private_key": private_key,
            "passphrase": passphrase,
            "certificate": certificate,
        }
        return await self._do(operations.sign_in(username, cluster, secrets))

    async def sign_out(self, cluster: str | None = None) -> dict[str, Any]:
        """Sign out of a cluster (None: the first one), which stops the user's agent there."""
        return await self._do(for_user(requests.sbatch_logout, cluster))

    async def sign_in_status(self, cluster: str | None = None) -> dict[str, Any]:
        """Return whether this user must sign in to a cluster."""
        return await self._do(for_user(requests.sbatch_login_status, cluster))

    # ---- files

    async def open_file(
        self, jid: str, name: str, *, serial: int = 0, offset: int = 0, length: int | None = None
    ) -> AsyncFileReader:
        """Open a file of the run directory, or a part of it. The caller must close it."""
        request = RunFile(
            uid=await self.uid(),
            compute_jid=jid,
            compute_job_serial=serial,
            name=name,
            offset=offset,
            length=length,
        )
        return AsyncFileReader(
            await self._connection.download(requests.run_file(request), IDLE_SECS)
        )

    def files(self, jid: str, *, serial: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield the regular files of the run directory in order: {"name", "size", "mtime"}."""
        return self._parts(operations.files(jid, serial))

    async def get_files(
        self,
        jid: str,
        names: Sequence[str],
        folder: str | os.PathLike[str],
        *,
        serial: int = 0,
        replace: bool = False,
        on_progress: OnProgress | None = None,
        on_done: OnDone | None = None,
    ) -> list[Transfer]:
        """Copy files of the run directory to a local folder, under the same relative names.

        on_progress, on_done: called in another thread.
        """
        with contextlib.closing(Connection(self._connection.endpoint)) as connection:
            remote = Remote(connection, await self.uid(), jid, serial)
            return await in_thread(
                get_files, remote, names, os.fspath(folder), replace, on_progress, on_done
            )

    async def get_core(
        self,
        jid: str,
        file: CoreFile,
        path: str | os.PathLike[str],
        *,
        role: str | None = None,
        index: int = 0,
        serial: int = 0,
        attempt: int = 0,
        replace: bool = False,
        on_progress: Callable[[int], object] | None = None,
    ) -> Transfer:
        """Copy a core file of a task (`exit.core.files` in `tasks`) to a local file, mode 0600.

        on_progress: called in another thread.
        """
        request = JobCore(
            uid=await self.uid(),
            compute_jid=jid,
            compute_job_serial=serial,
            attempt=attempt,
            role=role,
            index=index,
            name=file.name,
        )
        with contextlib.closing(Connection(self._connection.endpoint)) as connection:
            return await asyncio.to_thread(
                get_core,
                connection,
                request,
                file,
                os.fspath(path),
                replace=replace,
                on_progress=on_progress,
            )

    async def put_files(
        self,
        jid: str,
        files: Mapping[str, str | os.PathLike[str]],
        *,
        serial: int = 0,
        replace: bool = False,
        active: bool = False,
        on_progress: OnProgress | None = None,
        on_done: OnDone | None = None,
    ) -> list[Transfer]:
        """Copy local files into the run directory. files: local path by the name there.

        on_progress, on_done: called in another thread.
        """
        with contextlib.closing(Connection(self._connection.endpoint)) as connection:
            uid = await self.uid()
            remote = Remote(connection, uid, jid, serial, replace=replace, active=active)
            return await in_thread(put_files, remote, files, replace, on_progress, on_done)

    async def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None:
        """Store bytes as a new file of the run directory, completely or not at all."""
        with contextlib.closing(Connection(self._connection.endpoint)) as connection:
            remote = Remote(connection, await self.uid(), jid, serial, active=active)
            digest = hashlib.sha256(data).hexdigest()
            await asyncio.to_thread(remote.put, name, digest, len(data), 0, [data])

    async def lib_files(self, simulation_type: str) -> list[dict[str, Any]]:
        """Return [{"name", "size", "sha256", "mtime"}] of the user's library for this app."""
        return await self._do(operations.lib_files(simulation_type))

    async def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]:
        """Upload a file of `size` bytes to the user's library, completely or not at all.

        pieces: iterated in a thread.
        """
        call = requests.lib_file(await self.uid(), simulation_type, name, "PUT")
        # an asyncio transport loses the answer of a server that refuses before it reads everything
        with contextlib.closing(Connection(self._connection.endpoint)) as connection:
            body = await asyncio.to_thread(connection.upload, call.path, pieces, size, IDLE_SECS)
        return requests.object_of(body)

    async def delete_file(self, simulation_type: str, name: str) -> None:
        """Delete a file of the user's library."""
        await self._do(for_user(requests.lib_file, simulation_type, name, "DELETE"))

    # ---- access

    async def whoami(self) -> dict[str, Any]:
        """Return who the supervisor takes this client for.

        Returns {"uid", "role", "scopes", "token": {"id", "name", "expiresAt", ...}}. uid, token:
        None for the server secret.
        """
        return await self._do(operations.ask(requests.whoami()))

    async def create_token(
        self, name: str, scopes: Sequence[str], *, expires_secs: float | None = None
    ) -> dict[str, Any]:
        """Create an API token of this user.

        Returns {"secret", "id", "scopes", "expiresAt", ...}. `secret` is the token, which cannot be
        read again. scopes: of protocol.api.tokens.SCOPES. expires_secs: None for 90 days. Sent
        once.
        """
        return await self._do(operations.create_token(name, scopes, expires_secs))

    async def begin_device_login(
        self, name: str, scopes: Sequence[str], *, expires_secs: float | None = None
    ) -> dict[str, Any]:
        """Begin a device login (RFC 8628) for an API token with this name. Needs no token.

        Returns {"deviceCode", "userCode", "verificationUri", "verificationUriComplete",
        "expiresIn", "interval"}. A person enters userCode at verificationUri. expiresIn, interval:
        seconds. expires_secs: lifetime of the API token; None for 90 days.
        """
        return await self._do(operations.ask(requests.device_start(name, scopes, expires_secs)))

    async def poll_device_login(self) -> dict[str, Any]:
        """Return the state of the device login whose deviceCode is the token of this client:
        {"state": "authorizationPending", "interval"}, or once {"state": "ok", "secret", "id",
        "uid", ...}. Raises ClientError (deviceDenied, deviceCodeUnknown). Sent once.
        """
        return await self._do(operations.device_token())

    async def tokens(self) -> list[dict[str, Any]]:
        """Return the API tokens of this user, without their secrets."""
        found: list[dict[str, Any]] = await self._do(
            operations.field("tokens", for_user(requests.token_list))
        )
        return found

    async def revoke_token(self, id_: str, *, reason: str = "") -> dict[str, Any]:
        """Revoke an API token of this user by its id, and the tokens that it created
        ("alsoRevoked"). A repetition has no effect.
        """
        return await self._do(for_user(requests.token_revoke, id_, reason))

    def audit(
        self, *, since_secs: float | None = None, actor: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the requests of users for other users, oldest first, for administrators.

        Each has "at", "time", "text" and "event". since_secs: only those of this time until now. actor: a uid.
        """
        return self._parts(operations.audit(since_secs, actor))

    # ---- queries

    @property
    def operating(self) -> AsyncOperatorCalls:
        """Requests of operators: agents, hosts, health, notifications."""
        return AsyncOperatorCalls(self._do)

    async def jobs(
        self,
        *,
        all_users: bool = False,
        status: str | None = None,
        active: bool | None = None,
        before: int | None = None,
        limit: int = 100,
        commands: bool = False,
        tags: Sequence[str] = (),
    ) -> JobPage:
        """Return one page of jobs, newest change first."""
        return await self._do(
            operations.jobs(all_users, status, active, before, limit, commands, tags)
        )

    def logs(
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
        """Yield the output of one task, piece by piece."""
        options = {
            "attempt": attempt,
            "role": role,
            "index": index,
            "offset": offset,
            "tail": tail,
            "follow": follow,
        }
        return self._parts(operations.logs(jid, stream, notes, options))

    async def tasks(self, jid: str, attempt: int = 0, *, serial: int = 0) -> dict[str, Any]:
        """Return {"attempt", "attempts", "tasks"}: all attempts, and the tasks of one (0: the latest)."""
        return await self._do(for_user(requests.job_tasks, jid, serial, attempt))

    async def open_shell(
        self, jid: str, shell_id: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Open a shell in a task, or return the one with this id. Return {"shellId", "task",
        "attempt"}.

        options: other fields of protocol.api.requests.ShellOpen.
        """
        id_ = shell_id or random_ids.shell_id()
        return await self._do(for_user(requests.shell_open, jid, id_, options))

    async def use_shell(self, jid: str, shell_id: str, **options: Any) -> dict[str, Any]:
        """Type into a shell and read its output, as base64. Return the fields of ShellOutput.

        options: fields of protocol.api.requests.ShellUse.
        """
        return await self._do(for_user(requests.shell_use, jid, shell_id, options))

    async def story(self, jid: str) -> dict[str, Any]:
        """Return the job history, oldest first: {"computeJid", "events", "lines"}."""
        return await self._do(for_user(requests.job_story, jid))

    async def why(self, jid: str) -> dict[str, Any]:
        """Return why the run waits, or why it ended, with evidence and advice."""
        return await self._do(for_user(requests.job_why, jid))

    async def metrics(
        self,
        jid: str,
        *,
        serial: int = 0,
        series: bool = False,
        role: str | None = None,
        index: int | None = None,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """Return the resource usage of the current run: {"job", "roles", "tasks"}."""
        return await self._do(
            for_user(requests.job_metrics, jid, serial, series, role, index, attempt)
        )

    async def usage(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        by: Sequence[UsageGroup] = ("user",),
        all_users: bool = False,
    ) -> dict[str, Any]:
        """Return the summed usage of ended runs: {"by", "rows", "total"}.

        all_users: of all users whose data this one may see.
        """
        return await self._do(
            operations.for_users(lambda uid: requests.usage(uid, since, until, by), all_users)
        )

    async def disk_usage(self, *, all_users: bool = False) -> dict[str, Any]:
        """Return the disk usage and quotas: {"users", "total"}."""
        return await self._do(operations.for_users(requests.disk_usage, all_users))

    async def trace(
        self, id_: str, *, all_users: bool = False, logs: bool = False
    ) -> dict[str, Any]:
        """Return the timeline of an id or prefix: {"id", "items": [{"at", "source", "text"}]}."""
        return await self._do(
            operations.for_users(lambda uid: requests.trace(id_, uid, logs), all_users)
        )

    async def events(
        self,
        after: int = -1,
        *,
        jid: str | None = None,
        all_users: bool = False,
        idle_secs: float = IDLE_SECS,
    ) -> AsyncIterator[LoggedEvent]:
        """Yield every event after a position, once and in order, without end."""
        cursor = EventCursor(after)
        uid = None if all_users else await self.uid()
        retry = self._connection.endpoint.retry()
        while True:
            used = None
            try:
                used = self._connection.endpoint.located()
                request = Request("GET", *cursor.connect(uid, jid), idle_secs=idle_secs)
                stream = self._connection.stream(used, request)
                async with contextlib.aclosing(stream) as chunks:
                    async for chunk in chunks:
                        for event in cursor.feed(chunk):
                            retry = self._connection.endpoint.retry()
                            yield event
            except ClientError as e:
                await self._connection.pause_after(retry, e, used)

    async def _do(self, steps: Steps[_T]) -> _T:
        """Perform the steps of an operation and return its result."""
        progress = Progress(steps)
        while progress.step is not None:
            progress.resume(await self._outcome(progress.step))
        return progress.result

    async def _parts(self, steps: Steps[None]) -> AsyncIterator[Any]:
        """Perform the steps of an operation and yield its parts."""
        progress = Progress(steps)
        while (step := progress.step) is not None:
            if isinstance(step, Part):
                yield step.value
            progress.resume(await self._outcome(step))

    async def _outcome(self, step: Step) -> object:
        """Perform one step. Return its result, or the ClientError."""
        try:
            match step:
                case Call():
                    return await self._connection.call(step)
                case Once():
                    return await self._connection.call_once(step.call)
                case GetUid():
                    return await self.uid()
                case GetTime():
                    return time.monotonic()
                case Pause():
                    await self._connection.pause(step.secs)
                    return None
                case Part():
                    return None
                case _:
                    assert_never(step)
        except ClientError as e:
            return e

    def _submitted(self, run: RunState | ClientError) -> "AsyncJob | ClientError":
        return run if isinstance(run, ClientError) else self._job(run)

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

    def _repr_html_(self) -> str:
        return table("Job", {"run": self.jid, "serial": self.serial or None})

    async def status(self) -> RunState:
        return await self.client.status(self.jid, serial=self.serial)

    async def wait(self, timeout: float | None = None) -> RunState:
        return await self.client.wait(self.jid, serial=self.serial, timeout=timeout)

    async def result(self, timeout: float | None = None, *, call: int | None = None) -> Any:
        """Return the result of a function, or raise its exception, also after restarts."""

        def read() -> Any:
            with self.client._plain() as client:
                return client.job(self.jid, self.serial).result(timeout, call=call)

        return await asyncio.to_thread(read)

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


def asynchronous(client: Client, budget_secs: float) -> AsyncClient:
    """Return an asynchronous client for the same user and supervisor. budget_secs: its retry time."""
    e = client._connection.endpoint
    same = AsyncClient(e.source, uid=client.uid, budget_secs=budget_secs)
    same._connection.endpoint.headers = dict(e.headers)
    return same
