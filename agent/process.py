"""The agent's composition root: keeper socket, session, websocket, evidence. The keeper's child
calls `run_agent`.

Standard library, tornado, msgpack and msgspec only. The agent is not the source of truth:
the keeper owns executions, and a new agent receives all state again.
"""

import asyncio
import os
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from ..protocol.clusters.cluster import Cluster
from ..protocol.errors import Refusal
from ..protocol.ids import (
    AgentKey,
    Token,
    execution_log_ids,
    op_id,
    parse_agent_key,
    short_op,
)
from ..protocol.jobs.execution_state import ExecutionState
from ..protocol.launch.keeper_messages import (
    ForgetOrder,
    Order,
    QuitOrder,
    Started,
    StopOrder,
)
from ..protocol.launch.keeper_reports import Hello
from ..protocol.launch.message_fields import encode
from ..protocol.redaction import Redactor
from ..protocol.version import VERSION
from ..protocol.wire.messages import (
    Alive,
    Call,
    CancelCall,
    ClusterReport,
    DebuggerIo,
    DebuggerOutput,
    Execution,
    ListStops,
    LogChunk,
    OpenShell,
    OpError,
    PortsProbed,
    ProbePorts,
    ReadLog,
    Run,
    RunAck,
    ShellIo,
    ShellOutput,
    Stops,
    message_log_ids,
    op_name,
)
from ..runtime import failpoints, processes
from ..runtime.event_loop_lag import LoopLag
from ..runtime.log.logger import Log, log_uncaught
from ..runtime.struct_types import resolve_all
from .breakpoints.sessions import Sessions
from .files import file_requests
from .files.file_requests import FileRequest
from .files.output_reader import Evidence
from .host import port_probe
from .host.login_environment import TIMEOUT_SECS, LoginEnvironment, current_account
from .jobs.progress_reports import Reports
from .jobs.start_order import Starter
from .log_setup import open_log
from .profiles.curves import Curves
from .session.backoff import AWAY_SECS, may_end
from .session.keeper_channel import KeeperLink
from .session.keeper_heartbeat import KeeperHeartbeat
from .session.keeper_reports import Reported, decode_hello, decode_report
from .session.path_mapping import Paths
from .session.state_machine import (
    Debug,
    DebugRequest,
    EndHold,
    Fetch,
    Forget,
    Launch,
    Output,
    Probe,
    Quit,
    Read,
    Release,
    Send,
    Session,
    StartCall,
    Stop,
    StopCall,
)
from .session.websocket import Link
from .shells.relayed_shells import Shells, enter_here
from .usage.sampler import UsageSampler
from .workers import call_handler
from .workers.call_queue import CallQueue

if TYPE_CHECKING:
    from .batch.controller import BatchController

TICK_SECS = 2.0
#: Interval (seconds) of event loop checks while idle: a machine may have a thousand idle agents.
LOOK_SECS = 2.0
#: Readers served at once; more are refused with "tooManyRequests".
MAX_READERS = 256
#: Of these, readers of run directories at once.
READ_AT_ONCE = 4
#: An end waits this long for other reports if its slot is in use again: nobody waits for the slot.
HOLD_END_SECS = 0.02
_QUIET = ReadLog | Call | CancelCall | FileRequest | RunAck | ListStops | DebuggerIo | ShellIo
#: Grace period of jobs that are stopped with their agent.
QUIT_GRACE_SECS = 3.0


def run_agent(keeper_fd: int, root: str) -> None:
    """Run until the keeper ends or the supervisor orders it."""
    processes.set_title("jobscribe agent", root)
    resolve_all()
    lag = LoopLag(idle_secs=LOOK_SECS)
    lag.run(_serve(keeper_fd, root, lag))


async def _serve(keeper_fd: int, root: str, lag: LoopLag) -> None:
    await _Agent(keeper_fd, root, lag).serve()


class _Agent:
    def __init__(self, keeper_fd: int, root: str, lag: LoopLag) -> None:
        self._root, self._lag = root, lag
        self._keeper = KeeperLink(keeper_fd, self._keeper_reported, self._keeper_gone)
        self._session = Session()
        self._ended = asyncio.Event()
        self._away_since: float | None = time.monotonic()
        #: the newest report of each execution with a report that is held, in order
        self._held: dict[Token, Execution] = {}
        self._release: asyncio.TimerHandle | None = None
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._quitting: asyncio.Task[None] | None = None
        #: readers of local evidence run one by one, readers of run directories a few at once
        self._one_by_one, self._few_threads = asyncio.Semaphore(1), asyncio.Semaphore(READ_AT_ONCE)
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._link: Link
        self._log: Log
        self._key: AgentKey
        self._evidence: Evidence
        self._starter: Starter
        self._workers: CallQueue
        self._apps: tuple[str, ...]
        self._away_secs = AWAY_SECS
        self._reports: Reports
        self._samples: UsageSampler
        self._curves: Curves
        self._debuggers: Sessions
        self._shells: Shells
        self._paths = Paths(())
        #: None: a keeper of an older version, which does not answer pings
        self._heartbeat: KeeperHeartbeat | None = None
        #: set if a batch scheduler runs the jobs instead of the keeper
        self._batch: BatchController | None = None
        #: reports that arrived before startup was complete; None afterwards
        self._early_reports: list[Reported] | None = []

    async def serve(self) -> None:
        self._keeper.start()
        hello = await self._hello
        self._compose(hello)
        self._order(Started())  # reports a successful start to the keeper
        self._starter.prepare()
        if self._batch is not None:
            self._perform(self._session.record_states(await self._batch.start(), time.monotonic()))
        executions = [decode_report(e).execution for e in hello.executions]
        self._perform(self._session.keeper_hello(executions, time.monotonic()))
        self._catch_up(executions)
        tasks = [
            asyncio.create_task(self._link.run()),
            asyncio.create_task(self._tick()),
            asyncio.create_task(self._ended.wait()),
        ]
        tasks += [asyncio.create_task(self._heartbeat.run())] if self._heartbeat is not None else []
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in (*rest, *self._readers.values()):
            task.cancel()
        if self._batch is not None:
            await self._batch.close()
        self._starter.close()
        self._workers.close()
        self._debuggers.close("the agent ends")
        self._shells.close()
        self._reports.close()
        self._samples.close()
        for task in done:
            task.result()

    def _compose(self, hello: Hello) -> None:
        config = hello.agent
        self._key = parse_agent_key(config["agentKey"])
        folder = Path(hello.folder)
        redactor = Redactor([config["token"], config["agentId"]])
        self._log = open_log(str(folder), self._key, config["agentId"], redactor, hello.log)
        log_uncaught(self._log)
        self._lag.begin(self._log)
        self._evidence = Evidence(folder / "run")
        login = LoginEnvironment(
            Path(config["cacheDir"]),
            current_account(config.get("home")),
            config.get("loginSecs", TIMEOUT_SECS),
        )
        alive = Alive(
            agent_id=config["agentId"],
            agent_key=self._key,
            version=VERSION,
            host=socket.gethostname(),
            boot_id=processes.boot_id(),
            pid=os.getpid(),
            keeper_pid=hello.keeper_pid,
            runs_ahead=True if hello.runs_ahead and "batch" not in config else msgspec.UNSET,
            debug_holds=True if "batch" in config else msgspec.UNSET,
        )
        self._link = Link(
            Path(config["addressFile"]),
            str(self._key),
            config["token"],
            alive,
            self._log,
            on_up=self._connected,
            on_message=self._received,
            on_down=self._disconnected,
        )
        self._away_secs = float(config.get("awaySecs", AWAY_SECS))
        self._apps = tuple(config.get("apps", ()))
        self._starter = Starter(
            self._evidence, login, self._apps, self._log, self._order, self._launch_failed
        )
        self._workers = CallQueue(
            self._log, login, self._root, folder / "calls", self._apps, self._link.send
        )
        self._reports = Reports(self._evidence, self._link.send)
        self._curves = Curves(self._evidence.folder, self._log)
        self._samples = UsageSampler(
            self._evidence.folder,
            hello.keeper_pid,
            self._link.send,
            self._log,
            record=self._curves.sampled,
        )
        self._paths = Paths(config.get("paths", ()))
        self._heartbeat = KeeperHeartbeat.from_hello(
            hello, self._log, self._keeper.send, self._link.send, self._look_for_exits
        )
        if "batch" in config:
            self._batch = self._batch_tasks(folder, login, config["batch"])
        self._debuggers = Sessions(
            self._evidence.folder,
            self._log,
            None if self._batch is None else self._batch.command_environment,
        )
        self._shells = Shells(self._evidence, self._log, self._enter)
        self._log(
            "agent {} starts, keeper pid {}, {} executions known",
            str(self._key),
            hello.keeper_pid,
            len(hello.executions),
        )
        self._log("cgroups of jobs: {}", hello.cgroups)

    def _batch_tasks(
        self, folder: Path, login: LoginEnvironment, config: dict[str, Any]
    ) -> "BatchController":
        # imported here: few agents need it, and there may be many agents
        from .batch.controller import BatchController

        cluster = msgspec.convert(config["cluster"], Cluster)
        return BatchController(
            folder,
            self._evidence,
            login,
            self._apps,
            cluster,
            config["deployment"],
            self._log,
            self._batch_reported,
            base=folder.parent.parent,
            run_dirs=not self._paths.same,
            on_cluster_status=lambda status: self._link.send(ClusterReport(news=status)),
            on_samples=self._link.send,
        )

    # ---- in

    def _connected(self) -> None:
        self._away_since = None
        self._log("connected")
        if self._link.site is not None and self._link.site.apps != self._apps:
            self._use_apps(self._link.site.apps)
        if self._heartbeat is not None and self._heartbeat.last_report is not None:
            self._link.send(self._heartbeat.last_report)
        self._perform(self._session.connected(time.monotonic()))
        self._reports.resend()
        self._samples.resend()
        if self._batch is not None and (status := self._batch.cluster_status()) is not None:
            self._link.send(ClusterReport(news=status))

    def _use_apps(self, also: tuple[str, ...]) -> None:
        """Use the app list of a restarted supervisor."""
        self._log("apps.also is now: {}", ", ".join(also) or "empty")
        self._apps = self._starter.apps = also
        self._workers.reload_apps(also)
        if self._batch is not None:
            self._batch.use_apps(also)

    def _disconnected(self) -> None:
        self._away_since = time.monotonic()
        self._debuggers.close("the connection to the supervisor is lost")
        self._perform(self._session.disconnected())

    def _received(self, message: Any) -> None:
        op = getattr(message, "op_id", None)
        # not logged here: calls are logged when answered, acknowledgements repeat a logged end
        if not isinstance(message, _QUIET):
            run_dir = message.spec.run_dir if isinstance(message, Run) else None
            log = self._log.bound(**message_log_ids(message))
            log("opName={} o={} runDir={}", op_name(message), short_op(op), run_dir)
        if isinstance(message, Run):
            failpoints.reached("agent.received")
        self._perform(self._session.received(self._paths.message(message), time.monotonic()))

    def _log_of(self, token: Token) -> Log:
        """Return the log of one execution."""
        return self._log.bound(**execution_log_ids(token))

    def _batch_reported(self, execution: Execution) -> None:
        if execution.state == ExecutionState.RUNNING:
            self._reports.follow(execution.token)
        elif execution.exit is not None:
            self._reports.unfollow(execution.token)
            token, exit_ = execution.token, execution.exit
            self._log_of(token)(
                "cmd=_Cmd(jid={} o={} job_cmd=compute) state=ended code={} signal={} source={}",
                token.jid,
                _short_run_op(token),
                exit_.code,
                exit_.signal,
                exit_.source,
            )
        self._perform(self._session.record_states([execution], time.monotonic()))

    def _keeper_reported(self, message: dict[str, Any]) -> None:
        if message["is"] == "hello":
            if not self._hello.done():
                self._hello.set_result(decode_hello(message))
            return
        if self._heartbeat is not None:
            self._heartbeat.received(message)
        if message["is"] == "pong":
            return
        if self._early_reports is not None:
            self._early_reports.append(decode_report(message))
        else:
            self._execution_reported(decode_report(message))

    def _execution_reported(self, report: Reported) -> None:
        execution = report.execution
        token, exit_ = execution.token, execution.exit
        ended = execution.state == ExecutionState.ENDED
        if ended:
            self._reports.unfollow(token)
            self._samples.unfollow(token)
            self._curves.ended(token)
        if exit_ is not None:
            self._log_of(token)(
                "cmd=_Cmd(jid={} o={} job_cmd=compute run_dir={}) state={} code={} signal={} source={}",
                token.jid,
                _short_run_op(token),
                report.run_dir,
                "ended" if ended else "ending",
                exit_.code,
                exit_.signal,
                exit_.source,
            )
        else:
            self._reports.follow(token)
            self._curves.running(token, execution.pid)
            self._follow_samples(execution)
        self._held[token] = execution
        if execution.successor is not msgspec.UNSET:
            self._hold()
        else:
            self._report_held()

    def _look_for_exits(self, silent: bool) -> None:
        """Record exits that the keeper does not see. Report them while it is silent."""
        executions = self._session.executions()
        if not silent:
            self._evidence.note_ends(executions)
            return
        self._perform(
            self._session.record_states(self._evidence.exits(executions), time.monotonic())
        )

    def _catch_up(self, executions: list[Execution]) -> None:
        """Handle the executions of the keeper's hello, and its reports since."""
        for e in executions:
            if e.state == ExecutionState.RUNNING:
                self._reports.follow(e.token)
                self._curves.recover(e.token)
                self._follow_samples(e)
        early, self._early_reports = self._early_reports or [], None
        for report in early:
            self._execution_reported(report)

    def _follow_samples(self, e: Execution) -> None:
        self._samples.follow(e.token, e.pid, e.start_ticks, e.elapsed_secs)

    def _hold(self) -> None:
        """Report what is held after HOLD_END_SECS, or earlier."""
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.call_later(HOLD_END_SECS, self._report_held)

    def _report_held(self) -> None:
        if self._release is not None:
            self._release.cancel()
            self._release = None
        while self._held:
            execution = self._held.pop(next(iter(self._held)))
            self._perform(self._session.record_states([execution], time.monotonic()))

    def _keeper_gone(self) -> None:
        """End the agent. Jobs continue, and the next keeper starts the next agent."""
        if not self._hello.done():
            raise SystemExit("the keeper ended before it sent hello")
        self._log("the keeper is gone")
        self._ended.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECS)
            now = time.monotonic()
            self._perform(self._session.tick(now))
            away = (
                0.0
                if self._away_since is None or self._quitting is not None
                else now - self._away_since
            )
            if may_end(away, self._away_secs, self._session.executions()):
                self._perform(
                    [Quit(f"no supervisor for {away:.0f} s and no job runs", stop_jobs=False)]
                )

    # ---- out

    def _perform(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Send():
                    self._link.send(output.message)
                case Launch():
                    self._launch(output, outputs)
                case Probe():
                    self._serve_reader(output.op, self._probe(output.op))
                case Release():
                    self._starter.release(output.token)
                case Stop() if self._batch is not None:
                    self._batch.stop(output.token, output.reason, output.grace_secs)
                case Stop():
                    self._order(
                        StopOrder(
                            name=output.token.name,
                            token=str(output.token),
                            reason=output.reason,
                            grace=output.grace_secs,
                        )
                    )
                case EndHold():
                    if self._batch is not None:
                        self._batch.release(output.token)
                case Forget() if self._batch is not None:
                    self._batch.forget(output.tokens)
                case Forget():
                    failpoints.reached("agent.acknowledged")
                    self._order(ForgetOrder(names=[t.name for t in output.tokens]))
                case Read():
                    self._serve_reader(output.op, self._answer(output.op))
                case StartCall():
                    self._workers.call(output.op)
                case StopCall():
                    self._workers.cancel(output.op_id)
                case Fetch():
                    op = output.op
                    self._serve_reader(
                        op, self._result(op) if isinstance(op, Call) else self._fetch(op)
                    )
                case Debug():
                    self._serve_reader(output.op, self._debug(output.op))
                case Quit():
                    self._log("ends: {}", output.reason)
                    self._quitting = asyncio.get_running_loop().create_task(
                        self._quit(stop_jobs=output.stop_jobs)
                    )
                case _:
                    assert_never(output)

    def _launch(self, launch: Launch, outputs: Sequence[Output]) -> None:
        """Launch by the keeper or the batch scheduler, which gets the tasks of a gang together with
        the first of them.
        """
        if self._batch is None:
            self._curves.launch(launch.token, launch.spec)
            self._starter.start(launch.token, launch.spec, launch.shared, launch.slot)
        elif launch.shared is None:
            self._batch.launch(launch.token, launch.spec)
        else:
            gang = [o for o in outputs if isinstance(o, Launch) and o.shared is launch.shared]
            if gang[0] is launch:
                self._batch.launch_gang(launch.shared, [(o.token, o.spec) for o in gang])

    async def _quit(self, *, stop_jobs: bool) -> None:
        if stop_jobs and self._batch is not None:
            await self._batch.stop_all("shutdown", QUIT_GRACE_SECS)
        self._order(QuitOrder(stop_jobs=stop_jobs, grace=QUIT_GRACE_SECS))

    def _order(self, order: Order) -> None:
        self._keeper.send(encode(order))

    def _launch_failed(self, token: Token, sentence: str, fault: str | None) -> None:
        self._perform(self._session.launch_failed(token, sentence, time.monotonic(), fault))

    # ---- readers

    def _serve_reader(
        self,
        op: ReadLog | FileRequest | Call | ProbePorts | DebugRequest,
        answering: Coroutine[Any, Any, None],
    ) -> None:
        if len(self._readers) >= MAX_READERS:
            answering.close()
            self._link.send(
                OpError(
                    op_id=op.op_id,
                    code="tooManyRequests",
                    error=f"the agent serves {MAX_READERS} readers already; try again later",
                )
            )
            return
        task = asyncio.get_running_loop().create_task(answering)
        self._readers[op.op_id] = task
        task.add_done_callback(lambda _: self._readers.pop(op.op_id, None))

    async def _answer(self, op: ReadLog) -> None:
        log = self._log.bound(**message_log_ids(op))
        name, over = op.token.name, lambda: self._session.has_ended(op.token)
        try:
            # waiting readers hold no large answer: only a byte is read until data arrives
            if op.wait_secs:
                await self._evidence.read(name, op.stream, op.offset, 1, op.wait_secs, over)
            async with self._one_by_one:
                await self._link.wait_for_capacity()
                data, offset, next_offset, dropped, end = await self._evidence.read(
                    name, op.stream, op.offset, op.limit, 0, over
                )
                self._link.send(
                    LogChunk(
                        op_id=op.op_id,
                        offset=offset,
                        next_offset=next_offset,
                        data=data,
                        dropped=dropped,
                        end=end,
                    )
                )
        except OSError as e:
            log.exception("cannot read {} of {}", op.stream, str(op.token), error=e)
            self._link.send(
                OpError(
                    op_id=op.op_id,
                    code="agentUnavailable",
                    error=f"cannot read the output: {e.strerror}",
                )
            )

    async def _probe(self, op: ProbePorts) -> None:
        # ports of a login node say nothing about the nodes where jobs run
        busy = (
            await asyncio.to_thread(port_probe.ports_in_use, op.ports)
            if self._batch is None
            else []
        )
        self._link.send(PortsProbed(op_id=op.op_id, busy=tuple(busy)))

    async def _fetch(self, op: FileRequest) -> None:
        """Answer in a thread: run directories may lie on a network file system."""
        try:
            async with self._few_threads:
                await self._link.wait_for_capacity()
                answer = await asyncio.to_thread(file_requests.answer, op)
        except Refusal as e:
            self._link.send(OpError(op_id=op.op_id, code=e.code, error=e.sentence))
            return
        self._link.send(answer)

    async def _debug(self, op: DebugRequest) -> None:
        answer: Stops | DebuggerOutput | ShellOutput | OpError
        try:
            await self._link.wait_for_capacity()
            if isinstance(op, OpenShell | ShellIo):
                answer = await self._shells.answer(op)
            else:
                answer = await self._debuggers.answer(op)
        except Refusal as e:
            answer = OpError(op_id=op.op_id, code=e.code, error=e.sentence)
        self._link.send(answer)

    def _enter(self, token: Token, node: str) -> tuple[list[str], Mapping[str, str]]:
        if self._batch is None:
            return enter_here(token, node)
        return self._batch.enter(token, node)

    async def _result(self, op: Call) -> None:
        """Answer with the stored result of a sequential run; needs no worker process."""
        began, log = time.monotonic(), self._log.bound(**message_log_ids(op))
        async with self._few_threads:
            await self._link.wait_for_capacity()
            outcome = await asyncio.to_thread(call_handler.stored_result, op)
        log(*call_handler.log_line(op, outcome, time.monotonic() - began))
        self._link.send(call_handler.message(op, outcome))


def _short_run_op(token: Token) -> str:
    return short_op(op_id(token, "run"))
