"""Start of one execution: first its evidence (which consumes its token), then the process, then a
record of its pid.

The job inherits nothing from the keeper: it gets a clean environment, default signals, and only its
own output files and its lock as descriptors. No shell runs: the keeper finds the program as a shell
would, and reports as a shell would that it cannot be executed. `script.sh` describes the execution
and repeats it by hand. It is written when the execution fails, or runs for longer than a moment. The
job holds its output open a second time, as its lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time

from ....protocol.launch import function_call
from ....runtime import failpoints, processes
from ....runtime.execution.folder import (
    INPUT,
    JOB,
    LOCK_FD,
    REPORT,
    START,
    STDERR,
    STDOUT,
    write,
)
from ..linux.oom_detection import describe_fault, read_oom_counters
from ..linux.spawn import NotInside, Program, Setting, spawn, spawn_in_cgroup
from ..linux.spawning_thread import SpawningThread
from ..loop.log import log
from .evidence import describe
from .ledger import KeeperLedger
from .state import Execution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....protocol.launch.keeper_messages import StartOrder
    from ..linux.cgroups import Cgroup, Cgroups
    from ..loop.write_retry import WriteRetryQueue

_SHELL = b"/bin/sh"
#: Where shells look for programs if there is no PATH.
_DEFAULT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Errors that mean "not found" for a shell (exit code 127); it calls all others "not executable"
#: (126).
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
#: A script has no NUL character in its first line, of which so many bytes are read.
_FIRST_BYTES = 128
#: Errors of a spawn that say nothing about the program.
_SHORTAGE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
#: When memory runs out, the kernel kills a job before the keeper, the agent and other processes.
_OOM_SCORE = 500

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class StartFailed(Exception):
    """A start failed. The message says why, `fault` is its code.

    consumed: evidence exists that keeps the token from being used again.
    """

    def __init__(self, sentence: str, *, consumed: bool, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.consumed, self.fault = consumed, fault


class Launcher:
    """Starts executions; resets the signals that this process ignores, as a child would inherit
    that.
    """

    def __init__(
        self,
        layout: KeeperLedger,
        boot_id: str,
        life_id: str,
        cgroups: Cgroups,
        writes: WriteRetryQueue,
    ) -> None:
        self._layout, self._cgroups, self._writes = layout, cgroups, writes
        self._boot_id, self._life_id = boot_id, life_id
        self._logged: set[str] = set()
        self._thread: SpawningThread | None = None
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        self._ignored = [s for s in catchable if signal.getsignal(s) is signal.SIG_IGN]

    def consume(self, e: Execution) -> None:
        """Mark the token as started. Raises StartFailed (not consumed)."""
        try:
            self._layout.add_entry(e.name, e.token)
            os.mkdir(e.folder, 0o700)
        except OSError as error:
            if not isinstance(error, FileExistsError):  # then another execution owns the entry
                with contextlib.suppress(OSError):  # without evidence it is ignored
                    self._layout.remove_entries([e.name])
            word, sentence = describe_fault(error)
            raise StartFailed(
                f"its evidence cannot be written: {sentence}", consumed=False, fault=word
            ) from None
        e.life.claimed()

    def start(self, e: Execution, order: StartOrder, base: Environment) -> None:
        """Consume the token and start the process. Raises StartFailed; then nothing runs.

        base: the environment that the order refers to.
        """
        self._check_space()
        self.consume(e)
        failpoints.reached("keeper.consumed")
        spawning = False
        try:
            program = _program(e, order, base)
            self._prepare(e, order, base)
            spawning = True
            self._spawn(e, order, program)
            failpoints.reached("keeper.spawned")
        except (OSError, ValueError) as error:  # ValueError: text invalid in a file name or script
            e.close_lock()
            if e.cgroup is not None:
                e.cgroup.remove()
            word, sentence = (
                describe_fault(error, spawning=spawning)
                if isinstance(error, OSError)
                else (None, str(error))
            )
            raise StartFailed(sentence, consumed=True, fault=word) from None
        self.record_start(e)
        failpoints.reached("keeper.noted")

    def _check_space(self) -> None:
        """Raise StartFailed if the disk is full: some file systems would create the files of an
        execution, but not take its output.
        """
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._layout.runs)
            if disk.f_blocks and not (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail):
                word, sentence = describe_fault(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
                raise StartFailed(sentence, consumed=False, fault=word)

    def record_start(self, e: Execution) -> None:
        """Write the pid and settings for the next keeper, which must search without them."""
        record = {
            "token": e.token,
            "direct": e.direct,
            "pid": e.pid,
            "startTicks": e.ticks,
            "startedAt": e.life.started_at,
            "startedMono": e.life.started_mono,
            "bootId": self._boot_id,
            "life": self._life_id,
            "limit": e.life.limit,
            "grace": e.life.grace,
            "runDir": e.run_dir,
            "counted": e.oom_counters,
            "cgroup": None if e.cgroup is None else e.cgroup.record(),
            **({"core": e.core_limit} if e.core_limit else {}),
        }
        try:
            self._layout.record_start(e.name, record)
        except OSError:  # a full disk: beside the evidence, as soon as possible
            self._writes.write(f"{e.folder}/{START}", record)

    def _prepare(self, e: Execution, order: StartOrder, base: Environment) -> None:
        e.cgroup = self._cgroup(e.name, new=not e.slot or order.memory is not None)
        self._limit_memory(e, order.memory)
        if order.input is not None:
            write(f"{e.folder}/{INPUT}", order.input.encode())
            write(f"{e.folder}/{REPORT}", b"")  # so that it can be watched from the start
            failpoints.reached("keeper.given")
        call = order.env.get(function_call.VARIABLE)
        if call is not None:
            write(f"{e.folder}/{function_call.FILE}", _bytes(call))
        assert e.run_dir is not None
        is_new = _make_run_dir(e.run_dir)
        if order.job is not None:
            # never write through a link that an earlier attempt left
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{e.run_dir}/{JOB}")
            write(f"{e.run_dir}/{JOB}", order.job.encode())
        before, after = order.script
        e.script = _bytes(before) + base.lines + _bytes(after)
        # in a directory that was there, links may lead to an earlier run
        if not is_new or order.input is not None or order.job is not None or call is not None:
            describe(e)

    def _cgroup(self, name: str, *, new: bool) -> Cgroup | None:
        try:
            return self._cgroups.make(name, new=new)
        except OSError as error:
            self._log_once(
                "made",
                f"cannot create a cgroup for {name}: {error.strerror}; jobs start without one and are tracked by other means",
            )
            return None

    def _limit_memory(self, e: Execution, memory: int | None) -> None:
        """Limit the memory of its cgroup to what the job requested, if the kernel supports that."""
        if memory is None or e.cgroup is None:
            return
        try:
            e.cgroup.limit_memory(memory)
        except OSError as error:
            self._log_once(
                "memory",
                f"cannot limit the memory of {e.name}: {error.strerror}; jobs start without a limit",
            )

    def _starts_inside(self, cgroup: Cgroup) -> bool:
        return cgroup.version == 2 and self._cgroups.can_spawn_inside

    def _spawn(self, e: Execution, order: StartOrder, program: Program) -> None:
        if e.cgroup is None or e.cgroup.memory is None:
            e.oom_counters = read_oom_counters(self._cgroups.around, recent=True)
        e.lock_fd = self._open_output(f"{e.folder}/{STDOUT}")
        fcntl.flock(e.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stderr = self._open_output(f"{e.folder}/{STDERR}")
        try:
            setting = Setting(
                str(e.run_dir),
                [(self._null, 0), (e.lock_fd, 1), (stderr, 2), (e.lock_fd, LOCK_FD)],
                order.umask,
                order.core,
                _OOM_SCORE,
                self._ignored,
            )
            wall, mono = time.time(), time.monotonic()
            pid = self._create_process(e, program, setting)
        finally:
            os.close(stderr)
        e.record_main(pid, processes.start_ticks(pid), wall, mono)

    def _open_output(self, path: str) -> int:
        self._layout.spare.take(path)
        return os.open(path, _APPEND, 0o600)

    def _create_process(self, e: Execution, program: Program, setting: Setting) -> int:
        """Execute the program as a shell does. Raises OSError if no process can be created."""
        try:
            if b"/" not in program.path:
                program = _found_on_path(program, setting.directory)
            return self._execute(e, program, setting)
        except OSError as error:
            if error.errno in _SHORTAGE:
                raise
            failure = error
        name = program.arguments[0]
        path = os.path.join(os.fsencode(setting.directory), program.path)
        if failure.errno == errno.ENOEXEC and _is_text(path):
            # a script without an interpreter line
            arguments = [b"sh", program.path, *program.arguments[1:]]
        else:
            found = failure.errno not in _NOT_FOUND
            reason = failure.strerror if found else "not found"
            arguments = [
                *(b"sh", b"-c", b'printf "%s\\n" "$1" >&2; exit "$2"', b"sh"),
                b"sh: exec: " + name + f": {reason}".encode(),
                b"126" if found else b"127",
            ]
        return self._execute(e, Program(_SHELL, arguments, program.environment), setting)

    def _execute(self, e: Execution, program: Program, setting: Setting) -> int:
        if e.cgroup is None:
            return spawn(program, setting)
        if self._starts_inside(e.cgroup):
            try:
                return spawn_in_cgroup(e.cgroup.folder, (), program, setting)
            except NotInside as error:
                self._cgroups.can_spawn_inside = False
                self._log_once(
                    "inside",
                    f"cannot create a process inside a cgroup ({error}); each job moves itself in",
                )
        thread = self._spawning_thread()
        if thread is None:
            return spawn_in_cgroup(None, e.cgroup.entries(), program, setting)
        files = e.cgroup.files
        return thread.spawn(e.cgroup.entries() if files is None else files.tasks, program, setting)

    def _spawning_thread(self) -> SpawningThread | None:
        own = self._cgroups.own_entries
        if self._thread is None and own is not None:
            try:
                self._thread = SpawningThread(own)
            except OSError as error:
                # a process may create cgroups below its own, but not return to its own
                self._log_once(
                    "thread",
                    f"a thread cannot return to the keeper's cgroup ({error.strerror}): jobs start by a fork",
                )
        return self._thread

    def _log_once(self, what: str, sentence: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log(sentence)


class Environment:
    """An environment that many executions share: its variables, and the lines of `script.sh` that
    export them.
    """

    __slots__ = ("lines", "variables")

    def __init__(self, variables: dict[str, str], lines: str) -> None:
        self.variables = {_bytes(name): _bytes(value) for name, value in variables.items()}
        self.lines = _bytes(lines)


def _program(e: Execution, order: StartOrder, base: Environment) -> Program:
    """Return the program of the order, not looked up yet. Raises ValueError for text that no
    process can get.
    """
    arguments = [_bytes(word) for word in order.command]
    variables = function_call.with_path(order.env, e.folder)
    own = {_bytes(name): _bytes(value) for name, value in variables.items()}
    environment = {b"PWD": _bytes(order.run_dir)} | base.variables | own | e.environment_mark()
    if b"\0" in b"".join((*arguments, *environment, *environment.values())):
        raise ValueError("the command or its environment contains a NUL character")
    return Program(arguments[0], arguments, environment)


def _found_on_path(program: Program, directory: str) -> Program:
    """Look for the program in the PATH of its environment. Raises OSError."""
    failure = errno.ENOENT
    for folder in program.environment.get(b"PATH", _DEFAULT_PATH).split(b":"):
        path = os.path.join(os.fsencode(directory), folder, program.path)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failure = error.errno or failure
            continue
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            return Program(path, program.arguments, program.environment)
        failure = errno.EACCES
    raise OSError(failure, os.strerror(failure), os.fsdecode(program.path))


def _is_text(path: bytes) -> bool:
    """Return whether a file may be a script: its first line has no NUL character. Raises OSError."""
    with open(path, "rb") as f:
        return b"\0" not in f.read(_FIRST_BYTES).partition(b"\n")[0]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _make_run_dir(path: str) -> bool:
    """Create the run directory if it is missing; return whether it was. Raises OSError, also if it
    is not writable.
    """
    try:
        os.mkdir(path, 0o700)  # the usual case, in one call
        return True
    except OSError as error:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if error.errno == errno.ENOENT:
            return True
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "the run directory is not writable", path) from None
        return False
