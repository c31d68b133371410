"""The keeper process: parent of one agent and of all its jobs.

Start it with `python -m jobscribe.agent.keeper`, or call `run` in a forked child:

    python -m jobscribe.agent.keeper --root ROOT --folder FOLDER        configuration: one line of JSON on stdin

    {"root", "folder": the agent's folder, "agent": passed to the agent unchanged; holds its token,
     "log": how the agent and the keeper log, see agent/log_setup.py,
     "python": interpreter for the agent, "outputCap": {"head": bytes, "tail": bytes},
     "cgroups": {"use": "auto", "v1", "v2" or "off", "pids": process limit of an execution, 0: none},
     "lease": {"over": number of the abandoned lease, "renewSecs"}: set if other machines may run this agent too,
     "nice": nice value of the keeper and its agents, if they have a lower one,
     "lifeSecs": time an agent has to send a message; without it, an agent that lives for a second counts as started,
     "tellFd": a pipe that receives one line of JSON: null when an agent has started, or why no agent can start}

The keeper outlives its agents and does not need the supervisor. If the keeper is killed, its jobs
continue, and the next keeper takes them over. SIGTERM ends the keeper, its agent and its jobs.
Standard library only, one thread, no network; no secret on disk, in an argument or in an
environment.

In a container, `agent.container_entrypoint` is process 1 and becomes the keeper. No process
outlives a container: only files of an earlier container remain.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time

from ...protocol.launch.keeper_messages import (
    ForgetOrder,
    QuitOrder,
    ReleaseOrder,
    SetEnvironment,
    StartOrder,
    StopOrder,
)
from ...protocol.launch.keeper_reports import Hello
from ...protocol.launch.message_fields import encode
from ...runtime import processes
from ...runtime.execution.folder import read_json, write_json
from ...runtime.execution.output_limit import DEFAULT_HEAD, DEFAULT_TAIL, OutputCap
from . import lease as leases
from .agent_child import AgentChild
from .executions.controller import ExecutionController
from .executions.ledger import KeeperLedger
from .executions.process_tracker import ProcessTracker
from .lease_renewal import LeaseRenewal
from .linux.cgroups import AUTO, Cgroups
from .linux.oom_detection import describe_fault
from .loop.event_loop import Loop
from .loop.log import log, open_log_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from ...protocol.launch.keeper_messages import InvalidOrder, Order

    Config = dict[str, Any]
    Spawn = Callable[[socket.socket], int]
    OnStarted = Callable[[str | None], None]
    StartedAgent = tuple[int, socket.socket]

BAD_CONFIG, ANOTHER_KEEPER, NO_AGENT, CANNOT_BEGIN = 2, 3, 4, 5
TITLE = "jobscribe keeper"
#: Time in seconds for a container to receive its configuration; after that the container ends.
_CONFIG_SECS, _CONFIG_BYTES = 60.0, 1 << 20
#: Grace period (seconds) of jobs when the keeper gets SIGTERM.
_TERM_GRACE = 3.0
#: Delay (seconds) before an order is retried that failed for lack of descriptors or memory.
_AGAIN_SECS = 0.2
#: Seconds to wait for the lock: a process that is being spawned may briefly hold a killed keeper's.
_LOCK_PATIENCE = 0.3
#: Environment variables passed to the agent. All others are dropped: they may hold secrets.
_PASSED_ON = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SLURM_CONF",
)


_USAGE = "usage: python -m jobscribe.agent.keeper --root ROOT --folder FOLDER, its configuration in one line on stdin"


def main(started_agent: StartedAgent | None = None) -> int:
    """Run a keeper with its configuration from stdin and the agent as a new interpreter.

    Returns the exit code. started_agent: pid and socket of an agent that was started before, in a
    container.
    """
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(_USAGE + "\n")
        return 0
    try:
        root, folder = _arguments(sys.argv[1:])
        config = json.loads(_read_line(_CONFIG_SECS if started_agent is not None else None))
        if not isinstance(config, dict) or not isinstance(config.get("agent"), dict):
            raise ValueError("the configuration on stdin is no JSON object with an 'agent' object")
    except ValueError as error:
        sys.stderr.write(f"jobscribe keeper: {error}\n")
        return BAD_CONFIG
    config |= {"root": root, "folder": folder}
    processes.set_title(TITLE, root)
    # a container without an agent is useless, so it ends if no agent can be started
    on_started = _startup_reporter(config) if started_agent is None else lambda failed: None
    return run(config, lambda sock: _exec_agent(config, sock), on_started, started_agent)


def run(
    config: Config,
    spawn_agent: Spawn,
    on_started: OnStarted | None = None,
    started_agent: StartedAgent | None = None,
) -> int:
    """Run the keeper until it is ordered to end; return the exit code.

    The calling process becomes the keeper.

    on_started: called once, with None when an agent has started, or with the reason why none can
    start. In the second case the keeper ends if it has no jobs. started_agent: the pid of an agent
    that was started before, and the keeper's end of its socket pair.
    """
    _become_keeper()
    try:
        layout = KeeperLedger(config["folder"])
        layout.make()
        wanted = config.get("lease")
        # no file lock with a lease: a network file system would keep the lock of a keeper that
        # hangs on another machine
        lock = _lock(f"{layout.folder}/keeper.lock") if wanted is None else None
        lease = (
            None if wanted is None else leases.take(f"{layout.folder}/lease", int(wanted["over"]))
        )
    except OSError as error:
        return _fail_startup(
            f"the keeper cannot use its folder: {describe_fault(error)[1]}",
            CANNOT_BEGIN,
            on_started,
        )
    if lock is None and lease is None:
        return _fail_startup(
            f"another keeper uses {layout.folder}; this keeper ends", ANOTHER_KEEPER, on_started
        )
    open_log_file(f"{layout.folder}/keeper.log", config)
    try:
        return _Keeper(config, layout, spawn_agent, on_started, started_agent, lease).run()
    except OSError as error:
        return _fail_startup(
            f"the keeper cannot start: {describe_fault(error)[1]}", CANNOT_BEGIN, on_started
        )
    finally:
        if lease is not None:
            with contextlib.suppress(OSError):  # the lease then expires
                lease.release()
        if lock is not None:
            os.close(lock)


def _fail_startup(sentence: str, code: int, on_started: OnStarted | None) -> int:
    log(sentence)
    if on_started is not None:
        on_started(f"the keeper ended with exit code {code}: {sentence}")
    return code


class _Keeper:
    def __init__(
        self,
        config: Config,
        layout: KeeperLedger,
        spawn_agent: Spawn,
        on_started: OnStarted | None,
        started_agent: StartedAgent | None,
        lease: leases.Lease | None,
    ) -> None:
        cap = config.get("outputCap") or {}
        self._config, self._layout = config, layout
        groups = config.get("cgroups") or {}
        earlier = read_json(f"{layout.folder}/keeper.json") or {}
        self._cgroups = Cgroups(
            layout.folder, groups.get("use", AUTO), groups.get("pids", 0), earlier.get("cgroups")
        )
        self._loop, self._tracker = Loop(), ProcessTracker(self._cgroups)
        self._jobs = ExecutionController(
            layout,
            self._loop,
            self._tracker,
            OutputCap(log, cap.get("head", DEFAULT_HEAD), cap.get("tail", DEFAULT_TAIL)),
            self._cgroups,
            lambda e: self._agent.report(e),
        )
        self._on_started = on_started
        self._agent = AgentChild(
            self._loop,
            self._tracker,
            spawn_agent,
            self._hello,
            self._execute,
            self._refuse,
            self._jobs.known,
            self._report_startup if on_started else None,
            started_agent,
            self._record_agent,
            on_ready=self._lower,
            **({"life_secs": float(config["lifeSecs"])} if "lifeSecs" in config else {}),
        )
        self._ending = False
        renew_secs = float((config.get("lease") or {}).get("renewSecs", leases.RENEW_SECS))
        self._lease = (
            None if lease is None else LeaseRenewal(lease, self._loop, renew_secs, self._hand_over)
        )

    def run(self) -> int:
        self._loop.on_signal(signal.SIGCHLD, self._children_changed)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, lambda: self._quit(stop_jobs=True, grace=_TERM_GRACE))
        me = os.getpid()
        self._lower(me)
        write_json(
            f"{self._layout.folder}/keeper.json",
            {
                "pid": me,
                "startTicks": processes.start_ticks(me),
                "bootId": processes.boot_id(),
                "startedAt": time.time(),
                "cgroups": self._cgroups.families,
                "folder": self._layout.folder,
            },
        )
        self._jobs.recover()
        if self._lease is not None:
            self._lease.start()
        self._agent.start()
        try:
            return self._loop.run()
        finally:
            self._jobs.write_exit_files()
            self._jobs.pending_writes.flush()
            self._loop.close()
            self._cgroups.close()

    def _record_agent(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # only a reaper reads it, to tell it from a job
            self._layout.record_agent(pid, processes.start_ticks(pid))

    def _lower(self, pid: int) -> None:
        """Lower the priority of this keeper or of its agent, if it is configured."""
        if "nice" in self._config:
            self._jobs.lower_own(pid, int(self._config["nice"]))

    def _report_startup(self, failed: str | None) -> None:
        """Report to the process that started the keeper whether an agent has started.

        End the keeper if no agent can be started and no job runs.
        """
        assert self._on_started is not None
        self._on_started(failed)
        if failed is not None:
            log(failed)
            if not self._jobs.running:
                self._loop.stop(NO_AGENT)

    def _hello(self) -> Hello:
        self._jobs.forget_waiting()
        return Hello(
            agent=self._config["agent"],
            log=self._config.get("log"),
            folder=self._layout.folder,
            keeper_pid=os.getpid(),
            cgroups=self._cgroups.state,
            executions=[encode(e.report()) for e in self._jobs.known.values()],
        )

    def _children_changed(self) -> None:
        self._jobs.terminator.children_changed()
        self._agent.child_changed()

    def _execute(self, order: Order) -> None:
        """Execute one order from the agent."""
        try:
            match order:
                case StartOrder():
                    self._jobs.start(order)
                case ReleaseOrder():
                    self._jobs.release(order)
                case StopOrder():
                    self._jobs.stop(order)
                case ForgetOrder():
                    self._jobs.forget(order)
                case SetEnvironment():
                    self._jobs.set_environment(order)
                case QuitOrder():
                    self._quit(stop_jobs=order.stop_jobs, grace=order.grace)
        except OSError as error:
            # a resource is exhausted; the agent waits for an answer, so the order is kept
            log(f"an order failed and is retried in {_AGAIN_SECS:g} s: {error}")
            self._loop.call_at(
                ("order", id(order)),
                time.monotonic() + _AGAIN_SECS,
                lambda: self._execute(order),
            )

    def _refuse(self, order: InvalidOrder) -> None:
        """Log and ignore an invalid order. An execution that it would start is reported."""
        log(f"invalid order from the agent ignored: {order}")
        if order.name is not None:
            self._jobs.refuse(order)

    def _hand_over(self) -> None:
        self._quit(stop_jobs=False, grace=_TERM_GRACE)

    def _quit(self, *, stop_jobs: bool, grace: float) -> None:
        """End the jobs (if `stop_jobs`), then the agent, then the keeper."""

        def end_agent() -> None:
            if not self._ending:
                self._ending = True
                self._agent.end(grace, lambda: self._loop.stop(0))

        self._jobs.when_idle = end_agent
        if stop_jobs:
            self._jobs.stop_all("shutdown", grace)
        if not stop_jobs or not self._jobs.running:
            end_agent()


# ---- this process


def _become_keeper() -> None:
    # open 0, 1 and 2: otherwise the next opened file would become stdin, stdout or stderr
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
    os.umask(0o077)
    processes.set_dumpable(False)
    if not processes.become_subreaper():
        log(
            "this kernel has no subreapers: processes that leave a job's session may be found late or never"
        )
    if os.getsid(0) != os.getpid():
        # the leader of a process group cannot make a session; the keeper does not need one
        with contextlib.suppress(PermissionError):
            os.setsid()
    os.chdir("/")
    for number in (signal.SIGPIPE, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _reserve_low_descriptors()


def _reserve_low_descriptors() -> None:
    """Occupy descriptors up to 9, so that the keeper's own never collide with those of a job.

    See `executions.start` for their meaning in a job.
    """
    while True:
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        if fd > 9:
            os.close(fd)
            return


def _lock(path: str) -> int | None:
    """Take the keeper's lock until this process ends; return None if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                return None
            time.sleep(0.02)


def _startup_reporter(config: Config) -> OnStarted | None:
    """Return a function that reports the start to the pipe `tellFd`, or None without a pipe.

    The process that started the keeper reads the other end, or has ended.
    """
    fd = config.get("tellFd")
    if fd is None:
        return None
    os.set_inheritable(fd, False)

    def report(failed: str | None) -> None:
        with contextlib.suppress(OSError):
            os.write(fd, json.dumps(failed).encode() + b"\n")
        os.close(fd)

    return report


def _read_line(patience: float | None) -> bytes:
    """Return the first line of stdin, or everything up to EOF; then make stdin /dev/null.

    patience: seconds to wait; None waits forever. Raises ValueError if the line does not arrive in
    time or is too long.
    """
    out = b""
    until = None if patience is None else time.monotonic() + patience
    while b"\n" not in out:
        if (
            until is not None
            and not select.select([0], [], [], max(0.0, until - time.monotonic()))[0]
        ):
            raise ValueError(f"the configuration did not arrive within {patience:g} s")
        data = os.read(0, 65536)
        out += data
        if len(out) > _CONFIG_BYTES:
            raise ValueError(f"the configuration is longer than {_CONFIG_BYTES} bytes")
        if not data:
            break
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return out.partition(b"\n")[0]


def _exec_agent(config: Config, sock: socket.socket) -> int:
    python = config.get("python") or sys.executable
    sock.set_inheritable(True)  # the only descriptor that the agent inherits
    arguments = [
        python,
        "-P",
        "-m",
        f"{_package()}.agent",
        "--root",
        config["root"],
        "--keeper-fd",
        str(sock.fileno()),
    ]
    environment = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
    return os.posix_spawn(
        python,
        arguments,
        environment,
        setsid=True,
        setsigmask=(),
        setsigdef=[signal.SIGPIPE, signal.SIGHUP, signal.SIGCHLD],
    )


def _package() -> str:
    return __spec__.name.rpartition(".agent.")[0] if __spec__ is not None else "jobscribe"


def _arguments(given: list[str]) -> tuple[str, str]:
    """Return root and folder from `--root ROOT --folder FOLDER`; raises ValueError.

    argparse is not used: it would cost each keeper a megabyte of memory.
    """
    pairs = dict(zip(given[::2], given[1::2], strict=False))
    if len(given) != 4 or set(pairs) != {"--root", "--folder"}:
        raise ValueError(_USAGE)
    return pairs["--root"], pairs["--folder"]
