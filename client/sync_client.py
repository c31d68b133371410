"""The synchronous client: `Client` sends requests and waits for each answer; `Job` is one run.

Use a client in one thread only; `copy()` creates one for another thread. All failures are
`ClientError`.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, assert_never, cast, overload

from ..protocol.api.requests import JobCore, RunFile, RunSpec, UsageGroup
from ..protocol.jobs.core_report import CoreFile
from ..protocol.jobs.registry_login import RegistryLogin
from ..protocol.wire.handshake import ACTOR
from ..protocol.wire.messages import JobCmd, Stream
from ..schema.jobs.description import Description, build_runs, parse_description
from ..schema.jobs.job_file import Definition
from .api import clones, operations, random_ids, requests
from .api.cursors import EventCursor
from .api.errors import ClientError, refused
from .api.notebook import table
from .api.operations import GetTime, GetUid, Once, Part, Pause, Progress, Step, Steps, for_user
from .api.replies import GroupRun, GroupState, JobPage, LoggedEvent, LogPart, RunState, Transfer
from .api.requests import Call
from .operator_calls import OperatorCalls
from .transfers.core_download import get_core
from .transfers.remote import Remote
from .transfers.transfers import OnDone, OnProgress, get_files, put_files
from .transport.address import Source, TokenSource, fixed, in_root
from .transport.connection import Connection, FileReader
from .transport.endpoint import Endpoint, OnTrouble
from .transport.messages import Request
from .transport.retry_time import budget

if TYPE_CHECKING:
    from .functions.decorator import Executors, JobFunction
    from .functions.executor import Executor
    from .functions.future import FunctionFuture
    from .functions.warm_executor import WarmExecutor
    from .local_site.site import LocalSite

#: An event stream without any data, even a keepalive, for this time counts as disconnected.
IDLE_SECS = 60.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Client:
    """Sends requests to one supervisor as one user.

    token: the server secret or an API token, or a function that returns it. uid: None for the user
    of the API token. budget_secs: how long a request is retried while the supervisor restarts or is busy; None for
    the environment variable JOBSCRIBE_PATIENCE, else 30 s. on_trouble: called before each retry,
    see connection.OnTrouble. in_process: without a url; supervisor, agent and jobs are in this
    process and thread. local: without a url; a private supervisor runs jobs as processes of this
    machine until `close`. See docs/debugging.md.
    """

    _in_process = False
    #: changes runs to what the supervisor can run, and the supervisor to end with this client
    _form: "Callable[[RunSpec], RunSpec] | None" = None
    _site: "LocalSite | None" = None

    def __init__(
        self,
        url: str = "",
        token: TokenSource = "",
        uid: str | None = None,
        *,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
        in_process: bool = False,
        local: bool = False,
    ) -> None:
        if bool(url) + in_process + local != 1:
            raise TypeError(
                "give the url of a supervisor and a token, or in_process=True, or local=True"
            )
        self._uid = uid
        self._functions: Executors | None = None
        if in_process:
            from .in_process.connection import InProcessConnection, open_site

            self._in_process = True
            self._connection = cast(Connection, InProcessConnection(open_site(uid)))
            return
        source = fixed(url, token, uid)
        if local:
            from .local_site.site import LocalSite

            self._site = LocalSite()
            self._form, source = self._site.form, in_root(self._site.root)
        self._connection = Connection(
            Endpoint(source, budget_secs=budget(budget_secs), on_trouble=on_trouble)
        )

    @classmethod
    def from_source(
        cls,
        source: Source,
        *,
        uid: str | None = None,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> "Client":
        """Return a client that calls `source` for the address whenever a connection fails.

        uid: None for the uid of the address.
        """
        client = cls.__new__(cls)
        client._connection = Connection(
            Endpoint(source, budget_secs=budget(budget_secs), on_trouble=on_trouble)
        )
        client._uid = uid
        client._functions = None
        return client

    @classmethod
    def from_root(
        cls,
        root: str | os.PathLike[str],
        *,
        uid: str | None = None,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> "Client":
        """Return a client of the supervisor that runs in this root; it reads `<root>/client.json`."""
        return cls.from_source(
            in_root(root), uid=uid, budget_secs=budget_secs, on_trouble=on_trouble
        )

    def copy(
        self, *, uid: str | None = None, budget_secs: float | None = None, actor: str | None = None
    ) -> "Client":
        """Return a client with its own connection, for another thread or another user.

        budget_secs: another retry time, without calls of `on_trouble`. actor: the user who really
        acts, for the audit trail, if this client has the server secret.
        """
        e = self._connection.endpoint
        if self._in_process:
            raise refused("notHere", "a client in one process has no copies; it has one thread")
        copied = Client.from_source(
            e.source,
            uid=uid or self._uid,
            budget_secs=e.budget_secs if budget_secs is None else budget_secs,
            on_trouble=e.on_trouble if budget_secs is None else None,
        )
        copied._form = self._form
        named = {} if actor is None else {ACTOR: actor}
        copied._connection.endpoint.headers = {**e.headers, **named}
        return copied

    @property
    def uid(self) -> str:
        """The user. Asks the supervisor once if only it knows the user of the token."""
        uid = self._uid or self._connection.address().uid
        if not uid:
            uid = self._uid = self._do(operations.own_uid())
        return uid

    @property
    def url(self) -> str:
        return self._connection.address().url

    @property
    def token(self) -> str:
        """The secret in use. Keep it out of logs and output."""
        return self._connection.address().token

    def close(self) -> None:
        """Close connections. Unfinished futures of `submit` fail; their runs continue, except those of a
        private supervisor (local=True).
        """
        if self._functions is not None:
            self._functions.abandon()
            self._functions = None
        self._connection.close()
        if self._site is not None:
            self._site.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- runs

    def spec(self, command: Sequence[str], **options: Any) -> RunSpec:
        """Return the spec of a command, a list of words, with a new simulation id.

        options: fields of protocol.api.requests.RunSpec, and `task`. Raises TypeError for a string;
        the list for a shell command line is ["sh", "-c", line].
        """
        return self._do(operations.spec(command, options))

    def run(self, command: Sequence[str], **options: Any) -> "Job":
        """Submit a command. Returns when the run is durable, without waiting for its start."""
        return self.submit(self.spec(command, **options))

    @overload
    def submit(
        self, spec: RunSpec, *, force_run: bool = ..., serial: int = ..., req_id: str | None = ...
    ) -> "Job": ...

    @overload
    def submit(
        self,
        spec: Callable[..., _T],
        *args: Any,
        resources: Mapping[str, Any] | None = ...,
        **options: Any,
    ) -> "FunctionFuture[_T]": ...

    def submit(self, spec: Any, *args: Any, **options: Any) -> Any:
        """Start a run, join the live one, or find the completed one with the same hash.

        options: force_run; serial of the expected run, 0 for any; req_id.

        With a function instead of a spec: call it with the arguments in a job, and return a future.
        See docs/functions.md. resources: options of the run, as for `run`.
        """
        if isinstance(spec, RunSpec):
            spec = self._formed(spec)
            return self._job(self._do(operations.submit_run(spec, *args, **options)))
        resources = options.pop("resources", None)
        executor: Any = self._executors().of({})
        return executor.call(spec, args, options, resources)

    @overload
    def function(self, fn: Callable[_P, _T], /) -> "JobFunction[_P, _T]": ...

    @overload
    def function(
        self, fn: None = None, /, **options: Any
    ) -> "Callable[[Callable[_P, _T]], JobFunction[_P, _T]]": ...

    def function(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Decorate a function, so that `fn.submit(...)` and `fn.map(...)` call it in jobs. A plain
        call runs it here.

        options: of `executor`, as in `@client.function(workers=2)`. Functions with equal options
        share an executor. It ends with this client.
        """
        from .functions.decorator import JobFunction, decorated

        return decorated(JobFunction, fn, lambda: self._executors().of(options))

    def _executors(self) -> "Executors":
        if self._functions is None:
            from .functions.decorator import Executors

            self._functions = Executors(self.executor)
        return self._functions

    def executor(
        self,
        *,
        max_workers: int | None = None,
        workers: int | None = None,
        resources: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> "Executor | WarmExecutor":
        """Return a `concurrent.futures.Executor` that calls functions in jobs: docs/functions.md.

        workers: let calls share this number of warm workers, which are faster for short calls;
        without it, each call is a run of its own. limits: inline_bytes, max_bytes; with workers:
        retries, idle_secs, max_bytes. The executor has its own connection.
        """
        return _executor(self, max_workers, workers, resources, limits)

    def run_many(self, specs: Sequence[RunSpec]) -> list["Job | ClientError"]:
        """Submit up to protocol.api.requests.MAX_BULK runs in one request.

        Returns the answers in the same order, when all runs are durable.
        """
        formed = list(map(self._formed, specs))
        return list(map(self._submitted, self._do(operations.run_many(formed))))

    def submit_description(
        self,
        description: object,
        *,
        req_id: str | None = None,
        credentials: Mapping[str, RegistryLogin] = {},
    ) -> dict[str, list["Job | ClientError"]]:
        """Submit all jobs of a description (docs/jobs.md, as plain data), or none. credentials: for
        the files in `registryAuth`, by their names there; no file is read here.

        Returns the runs of each job by its name. A run is a ClientError if its dependency ended
        meanwhile. Raises ClientError with the problems in `more["problems"]`.
        """
        if self._form is not None:
            return self._submit_jobs(parse_description(description))
        jobs = self._do(operations.submit_description(description, req_id, credentials))
        return {name: list(map(self._submitted, runs)) for name, runs in jobs.items()}

    def _submit_jobs(self, description: Description) -> dict[str, list["Job | ClientError"]]:
        """Submit the runs of a description, after `_form`."""
        planned = build_runs(description, self.uid, random_ids.simulation_id)
        runs = iter(self.run_many([spec for job in planned for spec in job.specs]))
        return {job.job.name: [next(runs) for _ in job.specs] for job in planned}

    def _formed(self, spec: RunSpec) -> RunSpec:
        return spec if self._form is None else self._form(spec)

    def definition(self, jid: str) -> Definition:
        """Return the definition of a job of this user, without secrets: its job file as plain data."""
        return self._do(clones.definition(jid))

    def clone(self, jid: str, *, name: str | None = None, changes: Mapping[str, Any] = {}) -> "Job":
        """Submit a new job from the definition of an earlier one, and return its run.

        changes: values by their path in the definition, such as {"env.STEPS": 5}; None removes one.
        Secrets are not copied: without a value in `changes`, `more["problems"]` of the ClientError
        names each.
        """
        return self._job(self._do(clones.clone(jid, name, changes)))

    def submit_definition(
        self, data: object, *, app: bool = False, credentials: Mapping[str, RegistryLogin] = {}
    ) -> list["Job | ClientError"]:
        """Submit a definition (see `definition`). app: of an app's run. credentials: as in
        `submit_description`.
        """
        runs = self._do(clones.submit_definition(data, app, credentials))
        return list(map(self._submitted, runs))

    def plan(self, spec: RunSpec) -> dict[str, Any]:
        """Return the plan of a run: host, command and environment of each task, and the policies.

        Nothing is stored.
        """
        return self._do(operations.ask(requests.run_plan(spec)))

    def job(self, jid: str, serial: int = 0) -> "Job":
        """Return a handle on an earlier job. serial: 0 for the current run."""
        return Job(self, jid, serial, None)

    def status(
        self, jid: str, *, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
    ) -> RunState:
        """Return the status of the run.

        wait_secs: wait this long for the end of the run, at most 20 s.
        """
        return self._do(operations.status(jid, serial, wait_secs, hash_))

    def wait(self, jid: str, *, serial: int = 0, timeout: float | None = None) -> RunState:
        """Wait until the run is over, or for `timeout` seconds. Return its state (see `finished`)."""
        return self._do(operations.wait(jid, serial, timeout))

    def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState:
        """Cancel the run; final when this returns. A run whose command has ended keeps its result.

        A repetition has no effect.
        """
        return self._do(operations.cancel(jid, serial, reason))

    def release(
        self, jid: str, *, serial: int = 0, role: str | None = None, index: int | None = None
    ) -> RunState:
        """Release the tasks held for debugging, all or those of a role and index.

        Their exits stay the same.
        """
        return self._do(operations.state(for_user(requests.run_release, jid, serial, role, index)))

    def purge(self, jid: str, *, serial: int = 0) -> RunState:
        """Remove the run directory and output of a run that is over. Its status and history stay."""
        return self._do(operations.state(for_user(requests.run_purge, jid, serial)))

    def tag(self, jid: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Add tags to the job and remove tags from it. Return all its tags. A repetition has no effect."""
        return self._do(operations.tag(jid, add, remove))

    # ---- debuggers

    def debug_list(self, jid: str | None = None) -> dict[str, Any]:
        """Return the processes that wait for a debugger, of all jobs or of one.

        Returns {"stops": [{"id", "computeJid", "kind", "file", "line", "host", "pid", ...}], "notes"}.
        """
        return self._do(for_user(requests.debug_list, jid))

    def debug_attach(self, jid: str, id_: str) -> dict[str, Any]:
        """Begin a session with the stop of this id. Returns {"session", "stop"}.

        Raises ClientError: notFound, debuggerTaken, agentUnavailable, forbidden.
        """
        return self._do(operations.debug_attach(jid, id_))

    def debug_io(
        self,
        session: str,
        data: str = "",
        *,
        limit: int = 0,
        wait_secs: float = 0.0,
        close: bool = False,
    ) -> dict[str, Any]:
        """Send text to a debugger and read its output. Returns {"data", "end", "reason"}. It is sent
        once.
        """
        return self._do(operations.debug_io(session, data, limit, wait_secs, close))

    # ---- groups

    def submit_array(
        self, spec: RunSpec, indices: str, *, req_id: str | None = None
    ) -> dict[str, Any]:
        """Submit one run for each index ("0-9,20%5", see protocol.api.job_arrays) in one request.

        Returns {"group", "simulationId", "count", "accepted", "states", "refusedCount", "refused":
        [{"index", "code", "error"}]} when all are durable. Completed runs that did not change are
        not repeated.
        """
        return self._do(operations.submit_array(self._formed(spec), indices, req_id))

    def group(
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
        return self._do(operations.group(sid, status, after, limit, wait_secs))

    def group_runs(self, sid: str, *, status: str | None = None) -> Iterator[GroupRun]:
        """Yield all runs of a simulation, or those with this status, in the order of their indices."""
        return self._parts(operations.group_runs(sid, status))

    def wait_group(self, sid: str, *, timeout: float | None = None) -> GroupState:
        """Wait until all runs are over, or for `timeout` seconds. Return the counts (see `over`)."""
        return self._do(operations.wait_group(sid, timeout))

    def cancel_group(
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
        return self._do(operations.cancel_group(sid, indices, models, status, reason, req_id))

    # ---- apps

    def apps(self) -> list[str]:
        """Return the available simulation types."""
        return self._do(operations.apps())

    def begin_session(self, *, driver: str = "") -> None:
        """Start the user's agent ahead of work. Returns at once."""
        self._do(operations.begin_session(driver))

    def call(self, job_cmd: JobCmd, simulation_type: str, **fields: Any) -> bytes:
        """Call a function of an app. Return its answer as JSON.

        fields: of protocol.api.requests.CallRequest (method, args, compute_jid, ...). Refusals
        because of a deadline or too many requests are not retried.
        """
        return self._do(operations.call(job_cmd, simulation_type, fields))

    def global_resources(
        self, simulation_type: str, simulation_id: str, *, ports: int = 1, release: bool = False
    ) -> dict[str, Any]:
        """Lease ports to this simulation, the same ones each time, or release them.

        Returns {"ports", "ip", "until"}.
        """
        return self._do(operations.global_resources(simulation_type, simulation_id, ports, release))

    # ---- clusters

    def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, the default one first: defaults, limits and known partitions."""
        return self._do(operations.field("clusters", for_user(requests.clusters)))

    def sign_in(
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
        return self._do(operations.sign_in(username, cluster, secrets))

    def sign_out(self, cluster: str | None = None) -> dict[str, Any]:
        """Sign out of a cluster (None: the first one), which stops the user's agent there.

        Returns {"signedOut", "agentEnded", "runs", "cluster", "user"}. signedOut: the user was
        signed in. runs: number of runs that Slurm continues; they are followed again after the next
        sign-in.
        """
        return self._do(for_user(requests.sbatch_logout, cluster))

    def sign_in_status(self, cluster: str | None = None) -> dict[str, Any]:
        """Return whether this user must sign in to a cluster.

        Returns {"ready", "cluster", "host", "access", "user", "sentence"}.
        """
        return self._do(for_user(requests.sbatch_login_status, cluster))

    # ---- files

    def open_file(
        self, jid: str, name: str, *, serial: int = 0, offset: int = 0, length: int | None = None
    ) -> FileReader:
        """Open a file of the run directory, or a part of it. The caller must close it."""
        request = RunFile(
            uid=self.uid,
            compute_jid=jid,
            compute_job_serial=serial,
            name=name,
            offset=offset,
            length=length,
        )
        return FileReader(self._connection.download(requests.run_file(request), IDLE_SECS))

    def files(self, jid: str, *, serial: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the regular files of the run directory in order: {"name", "size", "mtime"}.

        name: relative to the directory. mtime: unix seconds. Links, pipes, devices and names that
        are not UTF-8 are left out.
        """
        return self._parts(operations.files(jid, serial))

    def get_files(
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

        An interrupted copy continues later if the file still begins with the same bytes. Each copy
        is compared by SHA-256 before it gets its name. An existing file is kept unless `replace`.
        on_progress: called with the bytes and files so far. on_done: called with each result.
        A failure of one file is in its result; other errors end the copy.
        """
        remote = Remote(self._connection, self.uid, jid, serial)
        return get_files(remote, names, os.fspath(folder), replace, on_progress, on_done)

    def get_core(
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

        An interrupted copy continues later. It is compared by SHA-256 before it gets its name.
        on_progress: called with the bytes so far.
        """
        request = JobCore(
            uid=self.uid,
            compute_jid=jid,
            compute_job_serial=serial,
            attempt=attempt,
            role=role,
            index=index,
            name=file.name,
        )
        return get_core(
            self._connection,
            request,
            file,
            os.fspath(path),
            replace=replace,
            on_progress=on_progress,
        )

    def put_files(
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

        An interrupted upload of the same content continues later. A file gets its name when it is
        complete and its SHA-256 is correct. An existing file is kept unless `replace`; an active
        run is refused unless `active`. on_progress, on_done, failures: as in `get_files`.
        """
        remote = Remote(self._connection, self.uid, jid, serial, replace=replace, active=active)
        return put_files(remote, files, replace, on_progress, on_done)

    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None:
        """Store bytes as a new file of the run directory, completely or not at all.

        active: also while the run is active. Not retried. Raises ClientError: conflict if the file
        exists.
        """
        remote = Remote(self._connection, self.uid, jid, serial, active=active)
        digest = hashlib.sha256(data).hexdigest()
        remote.put(name, digest, len(data), 0, [data])

    def lib_files(self, simulation_type: str) -> list[dict[str, Any]]:
        """Return [{"name", "size", "sha256", "mtime"}] of the user's library for this app."""
        return self._do(operations.lib_files(simulation_type))

    def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]:
        """Upload a file of `size` bytes to the user's library, completely or not at all.

        Returns {"name", "size", "sha256"}. Not retried.
        """
        call = requests.lib_file(self.uid, simulation_type, name, "PUT")
        return requests.object_of(self._connection.upload(call.path, pieces, size, IDLE_SECS))

    def delete_file(self, simulation_type: str, name: str) -> None:
        """Delete a file of the user's library."""
        self._do(for_user(requests.lib_file, simulation_type, name, "DELETE"))

    # ---- access

    def whoami(self) -> dict[str, Any]:
        """Return who the supervisor takes this client for.

        Returns {"uid", "role", "scopes", "token": {"id", "name", "expiresAt", ...}}. uid, token:
        None for the server secret.
        """
        return self._do(operations.ask(requests.whoami()))

    def create_token(
        self, name: str, scopes: Sequence[str], *, expires_secs: float | None = None
    ) -> dict[str, Any]:
        """Create an API token of this user.

        Returns {"secret", "id", "scopes", "expiresAt", ...}. `secret` is the token, which cannot be
        read again. scopes: of protocol.api.tokens.SCOPES. expires_secs: None for 90 days. Sent
        once.
        """
        return self._do(operations.create_token(name, scopes, expires_secs))

    def begin_device_login(
        self, name: str, scopes: Sequence[str], *, expires_secs: float | None = None
    ) -> dict[str, Any]:
        """Begin a device login (RFC 8628) for an API token with this name. Needs no token.

        Returns {"deviceCode", "userCode", "verificationUri", "verificationUriComplete",
        "expiresIn", "interval"}. A person enters userCode at verificationUri. expiresIn, interval:
        seconds. expires_secs: lifetime of the API token; None for 90 days.
        """
        return self._do(operations.ask(requests.device_start(name, scopes, expires_secs)))

    def poll_device_login(self) -> dict[str, Any]:
        """Return the state of the device login whose deviceCode is the token of this client:
        {"state": "authorizationPending", "interval"}, or once {"state": "ok", "secret", "id",
        "uid", ...}. Raises ClientError (deviceDenied, deviceCodeUnknown). Sent once.
        """
        return self._do(operations.device_token())

    def tokens(self) -> list[dict[str, Any]]:
        """Return the API tokens of this user, without their secrets."""
        found: list[dict[str, Any]] = self._do(
            operations.field("tokens", for_user(requests.token_list))
        )
        return found

    def revoke_token(self, id_: str, *, reason: str = "") -> dict[str, Any]:
        """Revoke an API token of this user by its id, and the tokens that it created
        ("alsoRevoked"). A repetition has no effect.
        """
        return self._do(for_user(requests.token_revoke, id_, reason))

    def audit(
        self, *, since_secs: float | None = None, actor: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the requests of users for other users, oldest first, for administrators.

        Each has "at", "time", "text" and "event". since_secs: only those of this time until now. actor: a uid.
        """
        return self._parts(operations.audit(since_secs, actor))

    # ---- queries

    @property
    def operating(self) -> OperatorCalls:
        """Requests of operators: agents, hosts, health, notifications."""
        return OperatorCalls(self._do)

    def jobs(
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
        """Return one page of jobs, newest change first.

        commands: rows also have `command` (shortened) and `name`, which is slower. tags: only jobs with
        one of these; rows then have `tags`.
        """
        return self._do(operations.jobs(all_users, status, active, before, limit, commands, tags))

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
    ) -> Iterator[LogPart]:
        """Yield the output of one task, piece by piece.

        attempt: 0 for the latest. role: None for the task that represents the attempt, or its
        first; each part names its task. follow: continue until the run is over. notes: if there is
        no output, yield a part without bytes that explains why.
        """
        options = {
            "attempt": attempt,
            "role": role,
            "index": index,
            "offset": offset,
            "tail": tail,
            "follow": follow,
        }
        return self._parts(operations.logs(jid, stream, notes, options))

    def tasks(self, jid: str, attempt: int = 0, *, serial: int = 0) -> dict[str, Any]:
        """Return {"attempt", "attempts", "tasks"}: all attempts, and the tasks of one (0: the latest)."""
        return self._do(for_user(requests.job_tasks, jid, serial, attempt))

    def open_shell(self, jid: str, shell_id: str | None = None, **options: Any) -> dict[str, Any]:
        """Open a shell in a task, or return the one with this id. Return {"shellId", "task",
        "attempt"}.

        options: other fields of protocol.api.requests.ShellOpen.
        """
        id_ = shell_id or random_ids.shell_id()
        return self._do(for_user(requests.shell_open, jid, id_, options))

    def use_shell(self, jid: str, shell_id: str, **options: Any) -> dict[str, Any]:
        """Type into a shell and read its output, as base64. Return the fields of ShellOutput.

        options: fields of protocol.api.requests.ShellUse.
        """
        return self._do(for_user(requests.shell_use, jid, shell_id, options))

    def story(self, jid: str) -> dict[str, Any]:
        """Return the job history, oldest first: {"computeJid", "events", "lines"}."""
        return self._do(for_user(requests.job_story, jid))

    def why(self, jid: str) -> dict[str, Any]:
        """Return why the run waits, or why it ended, with evidence and advice.

        {"state", "cause", "sentence", "evidence", "not", "lastLines", "logs", "try", "diagnosis"}
        """
        return self._do(for_user(requests.job_why, jid))

    def metrics(
        self,
        jid: str,
        *,
        serial: int = 0,
        series: bool = False,
        role: str | None = None,
        index: int | None = None,
        attempt: int = 0,
    ) -> dict[str, Any]:
        """Return the resource usage of the current run: {"job", "roles", "tasks"}.

        See docs/metrics.md. attempt: 0 is the latest. series: also as time series, for this role and index if given; fewer
        tasks have a finer resolution.
        """
        return self._do(for_user(requests.job_metrics, jid, serial, series, role, index, attempt))

    def usage(
        self,
        *,
        since: str | None = None,
        until: str | None = None,
        by: Sequence[UsageGroup] = ("user",),
        all_users: bool = False,
    ) -> dict[str, Any]:
        """Return the summed usage of ended runs: {"by", "rows", "total"}. See docs/usage.md.

        since, until: first and last month or day (UTC), such as 2026-01 or 2026-01-15. all_users: of
        all users whose data this one may see.
        """
        return self._do(
            operations.for_users(lambda uid: requests.usage(uid, since, until, by), all_users)
        )

    def disk_usage(self, *, all_users: bool = False) -> dict[str, Any]:
        """Return the disk usage and quotas: {"users", "total"}. See docs/usage.md.

        all_users: of all users whose data this one may see.
        """
        return self._do(operations.for_users(requests.disk_usage, all_users))

    def trace(self, id_: str, *, all_users: bool = False, logs: bool = False) -> dict[str, Any]:
        """Return the timeline of an id or prefix: {"id", "items": [{"at", "source", "text"}]}.

        logs: also "lines" from the log files in the supervisor's root, and "gaps", sentences about
        missing logs.
        """
        return self._do(operations.for_users(lambda uid: requests.trace(id_, uid, logs), all_users))

    def events(
        self,
        after: int = -1,
        *,
        jid: str | None = None,
        all_users: bool = False,
        idle_secs: float = IDLE_SECS,
    ) -> Iterator[LoggedEvent]:
        """Yield every event after a position, once and in order, without end.

        after: -1 for new events only. Lost connections are resumed.
        """
        cursor = EventCursor(after)
        uid = None if all_users else self.uid
        retry = self._connection.endpoint.retry()
        while True:
            used = None
            try:
                used = self._connection.endpoint.located()
                request = Request("GET", *cursor.connect(uid, jid), idle_secs=idle_secs)
                for chunk in self._connection.stream(used, request):
                    for event in cursor.feed(chunk):
                        retry = self._connection.endpoint.retry()
                        yield event
            except ClientError as e:
                self._connection.pause_after(retry, e, used)

    def _do(self, steps: Steps[_T]) -> _T:
        """Perform the steps of an operation and return its result."""
        progress = Progress(steps)
        while progress.step is not None:
            progress.resume(self._outcome(progress.step))
        return progress.result

    def _parts(self, steps: Steps[None]) -> Iterator[Any]:
        """Perform the steps of an operation and yield its parts."""
        progress = Progress(steps)
        while (step := progress.step) is not None:
            if isinstance(step, Part):
                yield step.value
            progress.resume(self._outcome(step))

    def _outcome(self, step: Step) -> object:
        """Perform one step. Return its result, or the ClientError."""
        try:
            match step:
                case Call():
                    return self._connection.call(step)
                case Once():
                    return self._connection.call_once(step.call)
                case GetUid():
                    return self.uid
                case GetTime():
                    return time.monotonic()
                case Pause():
                    self._connection.pause(step.secs)
                    return None
                case Part():
                    return None
                case _:
                    assert_never(step)
        except ClientError as e:
            return e

    def _submitted(self, run: RunState | ClientError) -> "Job | ClientError":
        return run if isinstance(run, ClientError) else self._job(run)

    def _job(self, state: RunState) -> "Job":
        return Job(self, state.compute_jid, state.compute_job_serial or 0, state)


def _executor(
    client: Client,
    max_workers: int | None,
    workers: int | None,
    resources: Mapping[str, Any] | None,
    limits: dict[str, Any],
) -> "Executor | WarmExecutor":
    from .functions.executor import Executor
    from .functions.warm_executor import WarmExecutor
    from .in_process.executor import DirectExecutor

    if client._in_process:
        # one thread has no use for workers
        direct = DirectExecutor(client, resources=resources, max_bytes=limits.get("max_bytes"))
        return cast(Executor, direct)
    if workers is None:
        return Executor(client, max_workers=max_workers, resources=resources, **limits)
    if max_workers is not None:
        raise ClientError("badRequest", "give `workers` or `max_workers`, not both")
    return WarmExecutor(client, workers=workers, resources=resources, **limits)


class Job:
    """A handle on one run. submitted: the answer to the submission, if this handle comes from one."""

    def __init__(self, client: Client, jid: str, serial: int, submitted: RunState | None) -> None:
        self.client, self.jid, self.serial, self.submitted = client, jid, serial, submitted

    def __repr__(self) -> str:
        return f"Job({self.jid} serial={self.serial})"

    def _repr_html_(self) -> str:
        """Return what is known without a request."""
        return table("Job", {"run": self.jid, "serial": self.serial or None})

    def status(self) -> RunState:
        return self.client.status(self.jid, serial=self.serial)

    def wait(self, timeout: float | None = None) -> RunState:
        return self.client.wait(self.jid, serial=self.serial, timeout=timeout)

    def result(self, timeout: float | None = None, *, call: int | None = None) -> Any:
        """Return the result of a function, or raise its exception, also after restarts.

        call: of a warm worker, which may go on: `FunctionFuture.call`. Raises TimeoutError after
        `timeout` seconds, CancelledError, ClientError.
        """
        from .functions.outcomes import of_job
        from .functions.warm_results import of_call

        if call is not None:
            return of_call(self.client, self.client.uid, self.jid, self.serial, call, timeout)
        state = self.wait(timeout)
        if not state.finished:
            raise TimeoutError(f"{self.jid} has not ended after {timeout} s: {state.sentence()}")
        return of_job(self.client, self.client.uid, state)

    def cancel(self, reason: str = "") -> RunState:
        return self.client.cancel(self.jid, serial=self.serial, reason=reason)

    def tasks(self, attempt: int = 0) -> dict[str, Any]:
        return self.client.tasks(self.jid, attempt, serial=self.serial)

    def release(self, role: str | None = None, index: int | None = None) -> RunState:
        return self.client.release(self.jid, serial=self.serial, role=role, index=index)

    def logs(self, stream: Stream = "stdout", **options: Any) -> Iterator[LogPart]:
        return self.client.logs(self.jid, stream, **options)

    def why(self) -> dict[str, Any]:
        return self.client.why(self.jid)

    def story(self) -> dict[str, Any]:
        return self.client.story(self.jid)
