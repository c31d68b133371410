"""The synchronous client: `Client` sends requests and waits for each answer; `Job` is one run.

Use a client in one thread only; `copy()` creates one for another thread. All failures are
`ClientError`.
"""

import http.client
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from ..protocol.api.requests import (
    BeginSession,
    CallRequest,
    GlobalResources,
    RunFile,
    RunFiles,
    RunSpec,
)
from ..protocol.wire.messages import JobCmd, Stream
from .api import random_ids, requests
from .api.cursors import EventCursor, LogCursor, PollBackoff
from .api.errors import ClientError, from_body, is_error, own
from .api.replies import GroupRun, GroupState, JobPage, LoggedEvent, LogPart, RunState
from .api.run_specs import command_spec
from .operator_calls import OperatorCalls
from .transport.address import Source, fixed, in_root
from .transport.connection import Connection, OnTrouble, unreachable
from .transport.file_transfer import FileReader, send
from .transport.retry import Retry
from .transport.retry_time import budget

#: An event stream without any data, even a keepalive, for this time counts as disconnected.
IDLE_SECS = 60.0
#: Number of runs of a group in one answer.
GROUP_PAGE = 1000
_CHUNK = 64 * 1024


class Client:
    """Sends requests to one supervisor as one user.

    budget_secs: how long a request is retried while the supervisor restarts or is busy; None for
    the environment variable JOBSCRIBE_PATIENCE, else 30 s. on_trouble: called before each retry,
    see connection.OnTrouble.
    """

    def __init__(
        self,
        url: str,
        token: str,
        uid: str,
        *,
        budget_secs: float | None = None,
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._connection = Connection(
            fixed(url, token, uid), budget_secs=budget(budget_secs), on_trouble=on_trouble
        )
        self._uid: str | None = uid

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
            source, budget_secs=budget(budget_secs), on_trouble=on_trouble
        )
        client._uid = uid
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

    def copy(self, *, uid: str | None = None, budget_secs: float | None = None) -> "Client":
        """Return a client with its own connection, for another thread or another user.

        budget_secs: another retry time, without calls of `on_trouble`.
        """
        c = self._connection
        if budget_secs is not None:
            return Client.from_source(c.source, uid=uid or self._uid, budget_secs=budget_secs)
        return Client.from_source(
            c.source, uid=uid or self._uid, budget_secs=c.budget_secs, on_trouble=c.on_trouble
        )

    @property
    def uid(self) -> str:
        return self._uid or self._connection.address().uid

    @property
    def url(self) -> str:
        return self._connection.address().url

    @property
    def token(self) -> str:
        """The secret in use. Keep it out of logs and output."""
        return self._connection.address().token

    def close(self) -> None:
        self._connection.close()

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
        return command_spec(
            self.uid,
            options.pop("simulation_id", None) or random_ids.simulation_id(),
            command,
            options,
        )

    def run(self, command: Sequence[str], **options: Any) -> "Job":
        """Submit a command. Returns when the run is durable, without waiting for its start."""
        return self.submit(self.spec(command, **options))

    def submit(
        self, spec: RunSpec, *, force_run: bool = False, serial: int = 0, req_id: str | None = None
    ) -> "Job":
        """Start a run, join the live one, or find the completed one with the same hash.

        serial: of the expected run; 0 for any.
        """
        return self._job(
            self._state(
                requests.run_simulation(
                    spec, req_id or random_ids.req_id(), force_run=force_run, serial=serial
                )
            )
        )

    def run_many(self, specs: Sequence[RunSpec]) -> list["Job | ClientError"]:
        """Submit up to protocol.api.requests.MAX_BULK runs in one request.

        Returns the answers in the same order, when all runs are durable.
        """
        if not specs:
            return []
        body = self._object(requests.run_many(specs, random_ids.req_id()))
        runs = body.get("runs")
        if not isinstance(runs, list) or len(runs) != len(specs):
            raise own("notASupervisor", "the answer to run-many does not name each run")
        return list(map(self._submitted, runs))

    def submit_description(
        self, description: object, *, req_id: str | None = None
    ) -> dict[str, list["Job | ClientError"]]:
        """Submit all jobs of a description (docs/jobs.md, as plain data), or none.

        Returns the runs of each job by its name. A run is a ClientError if its dependency ended
        meanwhile. Raises ClientError with the problems in `more["problems"]`.
        """
        body = self._object(
            requests.run_description(self.uid, description, req_id or random_ids.req_id())
        )
        return {
            name: list(map(self._submitted, runs))
            for name, runs in requests.runs_by_job(body).items()
        }

    def plan(self, spec: RunSpec) -> dict[str, Any]:
        """Return the plan of a run: host, command and environment of each task, and the policies.

        Nothing is stored.
        """
        return self._object(requests.run_plan(spec))

    def job(self, jid: str, serial: int = 0) -> "Job":
        """Return a handle on an earlier job. serial: 0 for the current run."""
        return Job(self, jid, serial, None)

    def status(
        self, jid: str, *, serial: int = 0, wait_secs: float = 0.0, hash_: str | None = None
    ) -> RunState:
        """Return the status of the run.

        wait_secs: wait this long for the end of the run, at most 20 s.
        """
        return self._state(requests.run_status(self.uid, jid, serial, wait_secs, hash_))

    def wait(self, jid: str, *, serial: int = 0, timeout: float | None = None) -> RunState:
        """Wait until the run is over, or for `timeout` seconds. Return its state (see `finished`)."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = PollBackoff()
        while True:
            begun = time.monotonic()
            left = requests.LONG_POLL_SECS if end is None else end - begun
            state = self.status(jid, serial=serial, wait_secs=left)
            if state.finished or left <= 0:
                return state
            short = pause.after(time.monotonic() - begun)
            self._connection.pause(
                short if end is None else max(0.0, min(short, end - time.monotonic()))
            )

    def cancel(self, jid: str, *, serial: int = 0, reason: str = "") -> RunState:
        """Cancel the run; final when this returns. A run whose command has ended keeps its result.

        A repetition has no effect.
        """
        return self._state(requests.run_cancel(self.uid, jid, random_ids.req_id(), serial, reason))

    def release(
        self, jid: str, *, serial: int = 0, role: str | None = None, index: int | None = None
    ) -> RunState:
        """Release the tasks held for debugging, all or those of a role and index.

        Their exits stay the same.
        """
        return self._state(requests.run_release(self.uid, jid, serial, role, index))

    # ---- groups

    def submit_array(
        self, spec: RunSpec, indices: str, *, req_id: str | None = None
    ) -> dict[str, Any]:
        """Submit one run for each index ("0-9,20%5", see protocol.api.job_arrays) in one request.

        Returns {"group", "simulationId", "count", "accepted", "states", "refusedCount", "refused":
        [{"index", "code", "error"}]} when all are durable. Completed runs that did not change are
        not repeated.
        """
        return self._object(requests.run_array(spec, indices, req_id or random_ids.req_id()))

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
        request = requests.group_request(self.uid, sid, status, after, limit, wait_secs)
        return requests.group_state(self._connection.call(requests.job_group(request)).body)

    def group_runs(self, sid: str, *, status: str | None = None) -> Iterator[GroupRun]:
        """Yield all runs of a simulation, or those with this status, in the order of their indices."""
        after: str | None = None
        while True:
            page = self.group(sid, status=status, after=after, limit=GROUP_PAGE)
            yield from page.runs
            after = page.next
            if after is None:
                return

    def wait_group(self, sid: str, *, timeout: float | None = None) -> GroupState:
        """Wait until all runs are over, or for `timeout` seconds. Return the counts (see `over`)."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = PollBackoff()
        while True:
            begun = time.monotonic()
            left = requests.LONG_POLL_SECS if end is None else end - begun
            state = self.group(sid, limit=0, wait_secs=left)
            if state.over or left <= 0:
                return state
            short = pause.after(time.monotonic() - begun)
            self._connection.pause(
                short if end is None else max(0.0, min(short, end - time.monotonic()))
            )

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
        request = requests.cancel_request(
            self.uid, sid, req_id or random_ids.req_id(), indices, models, status, reason
        )
        return self._object(requests.group_cancel(request))

    # ---- apps

    def apps(self) -> list[str]:
        """Return the available simulation types."""
        return [str(name) for name in self._object(requests.apps()).get("apps", [])]

    def begin_session(self, *, driver: str = "") -> None:
        """Start the user's agent ahead of work. Returns at once."""
        self._object(requests.begin_session(BeginSession(uid=self.uid, driver=driver)))

    def call(self, job_cmd: JobCmd, simulation_type: str, **fields: Any) -> bytes:
        """Call a function of an app. Return its answer as JSON.

        fields: of protocol.api.requests.CallRequest (method, args, compute_jid, ...). Refusals
        because of a deadline or too many requests are not retried.
        """
        request = CallRequest(
            uid=self.uid, job_cmd=job_cmd, simulation_type=simulation_type, **fields
        )
        return self._connection.call(requests.call(request)).body

    def global_resources(
        self, simulation_type: str, simulation_id: str, *, ports: int = 1, release: bool = False
    ) -> dict[str, Any]:
        """Lease ports to this simulation, the same ones each time, or release them.

        Returns {"ports", "ip", "until"}.
        """
        request = GlobalResources(
            uid=self.uid,
            simulation_type=simulation_type,
            simulation_id=simulation_id,
            ports=ports,
            release=release,
        )
        return self._object(requests.global_resources(request))

    # ---- clusters

    def clusters(self) -> list[dict[str, Any]]:
        """Return the clusters, the default one first: defaults, limits and known partitions."""
        clusters: list[dict[str, Any]] = self._object(requests.clusters(self.uid))["clusters"]
        return clusters

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
        there = self.sign_in_status(cluster)  # also finds a restarted supervisor
        if there.get("ready") and (
            there.get("access") != "ssh" or there.get("user") in (None, username)
        ):
            return {**there, "loginSuccess": True}
        secrets = (
            {} if there.get("ready") else secrets
        )  # the request will be refused, so it needs no secret
        return requests.object_of(
            self._connection.call_once(requests.sbatch_login(self.uid, cluster, username, secrets))
        )

    def sign_out(self, cluster: str | None = None) -> dict[str, Any]:
        """Sign out of a cluster (None: the first one), which stops the user's agent there.

        Returns {"signedOut", "agentEnded", "runs", "cluster", "user"}. signedOut: the user was
        signed in. runs: number of runs that Slurm continues; they are followed again after the next
        sign-in.
        """
        return self._object(requests.sbatch_logout(self.uid, cluster))

    def sign_in_status(self, cluster: str | None = None) -> dict[str, Any]:
        """Return whether this user must sign in to a cluster.

        Returns {"ready", "cluster", "host", "access", "user", "sentence"}.
        """
        return self._object(requests.sbatch_login_status(self.uid, cluster))

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
        return FileReader(
            self.url, *self._connection.download(requests.run_file(request), IDLE_SECS)
        )

    def files(self, jid: str, *, serial: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the regular files of the run directory in order: {"name", "size", "mtime"}.

        name: relative to the directory. mtime: unix seconds. Links, pipes, devices and names that
        are not UTF-8 are left out.
        """
        after: str | None = ""
        while after is not None:
            request = RunFiles(
                uid=self.uid, compute_jid=jid, compute_job_serial=serial, after=after
            )
            page = self._object(requests.run_files(request))
            serial, after = page["computeJobSerial"], page["next"]
            yield from page["files"]

    def lib_files(self, simulation_type: str) -> list[dict[str, Any]]:
        """Return [{"name", "size", "sha256", "mtime"}] of the user's library for this app."""
        files: list[dict[str, Any]] = self._object(
            requests.lib_files(self.uid, simulation_type)
        ).get("files", [])
        return files

    def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]:
        """Upload a file of `size` bytes to the user's library, completely or not at all.

        Returns {"name", "size", "sha256"}. Not retried.
        """
        call = requests.lib_file(self.uid, simulation_type, name, "PUT")
        return requests.object_of(send(self._connection, call, pieces, size, IDLE_SECS))

    def delete_file(self, simulation_type: str, name: str) -> None:
        """Delete a file of the user's library."""
        self._object(requests.lib_file(self.uid, simulation_type, name, "DELETE"))

    # ---- queries

    @property
    def operating(self) -> OperatorCalls:
        """Requests of operators: agents, hosts, health, notifications."""
        return OperatorCalls(self._object, self.uid)

    def jobs(
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
        request = requests.job_page(
            None if all_users else self.uid, status, active, before, limit, commands
        )
        return requests.page_of(self._connection.call(requests.job_list(request)).body)

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
        cursor = LogCursor(
            self.uid,
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
            reply = self._connection.call(requests.job_log(cursor.request()))
            part = requests.log_part(stream, reply.headers, reply.body)
            cursor.took(part)
            if part.data or part.dropped or (notes and part.note):
                pause.reset()
                yield part
            if cursor.idle:
                if self.status(jid).finished:
                    cursor.run_over()
                else:
                    self._connection.pause(pause.after(time.monotonic() - begun))

    def tasks(self, jid: str, attempt: int = 0, *, serial: int = 0) -> dict[str, Any]:
        """Return {"attempt", "attempts", "tasks"}: all attempts, and the tasks of one (0: the latest)."""
        return self._object(requests.job_tasks(self.uid, jid, serial, attempt))

    def story(self, jid: str) -> dict[str, Any]:
        """Return the job history, oldest first: {"computeJid", "events", "lines"}."""
        return self._object(requests.job_story(self.uid, jid))

    def why(self, jid: str) -> dict[str, Any]:
        """Return why the run waits, or why it ended, with evidence and advice.

        {"state", "cause", "sentence", "evidence", "not", "lastLines", "logs", "try", "diagnosis"}
        """
        return self._object(requests.job_why(self.uid, jid))

    def metrics(
        self,
        jid: str,
        *,
        serial: int = 0,
        series: bool = False,
        role: str | None = None,
        index: int | None = None,
    ) -> dict[str, Any]:
        """Return the resource usage of the current run: {"job", "roles", "tasks"}.

        See docs/metrics.md. series: also as time series, for this role and index if given; fewer
        tasks have a finer resolution.
        """
        return self._object(requests.job_metrics(self.uid, jid, serial, series, role, index))

    def trace(self, id_: str, *, all_users: bool = False, logs: bool = False) -> dict[str, Any]:
        """Return the timeline of an id or prefix: {"id", "items": [{"at", "source", "text"}]}.

        logs: also "lines" from the log files in the supervisor's root, and "gaps", sentences about
        missing logs.
        """
        return self._object(requests.trace(id_, None if all_users else self.uid, logs))

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
        retry = Retry(self._connection.budget_secs)
        while True:
            try:
                for event in self._events_once(cursor, uid, jid, idle_secs):
                    retry = Retry(self._connection.budget_secs)
                    yield event
            except ClientError as e:
                if not self._connection.has_new_address(e):
                    self._connection.after_failure(retry, e)

    def _events_once(
        self, cursor: EventCursor, uid: str | None, jid: str | None, idle_secs: float
    ) -> Iterator[LoggedEvent]:
        """Yield the events of one connection. Always ends with a ClientError."""
        cursor.connected()
        path = requests.events_path(cursor.after, uid, jid)
        connection, response = self._connection.stream(path, cursor.headers(), idle_secs)
        try:
            while chunk := response.read1(_CHUNK):
                yield from cursor.feed(chunk)
        except (OSError, http.client.HTTPException) as e:
            raise unreachable(self._given_up(), e) from None
        finally:
            response.close()
            connection.close()
        raise unreachable(self._given_up(), ConnectionError("the stream of events ended"))

    def _given_up(self) -> str:
        """Drop and return the address that failed, so that the next attempt looks it up again."""
        url = self.url
        self._connection.forget()
        return url

    def _object(self, call: requests.Call) -> dict[str, Any]:
        return requests.object_of(self._connection.call(call).body)

    def _state(self, call: requests.Call) -> RunState:
        return requests.state_of(self._connection.call(call).body)

    def _submitted(self, answer: dict[str, Any]) -> "Job | ClientError":
        return from_body(answer) if is_error(answer) else self._job(requests.state_from(answer))

    def _job(self, state: RunState) -> "Job":
        return Job(self, state.compute_jid, state.compute_job_serial or 0, state)


class Job:
    """A handle on one run. submitted: the answer to the submission, if this handle comes from one."""

    def __init__(self, client: Client, jid: str, serial: int, submitted: RunState | None) -> None:
        self.client, self.jid, self.serial, self.submitted = client, jid, serial, submitted

    def __repr__(self) -> str:
        return f"Job({self.jid} serial={self.serial})"

    def status(self) -> RunState:
        return self.client.status(self.jid, serial=self.serial)

    def wait(self, timeout: float | None = None) -> RunState:
        return self.client.wait(self.jid, serial=self.serial, timeout=timeout)

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
