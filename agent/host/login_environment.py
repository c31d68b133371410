"""The environment that a login profile creates, cached by the files that the profile reads.

The agent's own variables are not passed to the profile. If a profile hangs or fails, jobs still
run: they get the clean default environment, and a sentence reports that.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import pwd
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from ...runtime.filesystems import write_atomically

#: Default time limit of a profile (seconds); time for its background processes to end before they
#: are killed; size limit of its environment (bytes).
TIMEOUT_SECS, _LEAVE_SECS = 10.0, 1.0
_MAX_BYTES = 4 << 20
#: Maximum age of the cache (seconds): a profile may depend on more files than those below.
_MAX_AGE_SECS = 3600.0
_UMASK = "0077"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SYSTEM = ("/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/environment")
_OWN = (".bash_profile", ".bash_login", ".profile", ".bashrc")
#: Variables that the shell sets for itself, not the profile.
_SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD", "TERM")


class Snapshot(NamedTuple):
    """A login environment. sentence: why this is the default environment; None if the profile was
    run. umask: as a shell prints it.
    """

    env: dict[str, str]
    umask: str
    sentence: str | None


class Account(NamedTuple):
    uid: int
    name: str
    home: str

    def clean(self) -> dict[str, str]:
        """Return the environment in which `login` would start a shell."""
        shell = shell_path()
        path = _ROOT_PATH if self.uid == 0 else _PATH
        return {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": shell,
            "PATH": path,
        }


class LoginEnvironment:
    """The environment of this agent's jobs. `known` is None until `load` has returned once;
    `sentence` as in Snapshot.

    timeout_secs: time limit of the profile; 0: run none and use the default environment.
    """

    def __init__(
        self, cache_folder: Path, account: Account | None = None, timeout_secs: float = TIMEOUT_SECS
    ) -> None:
        self._cache = cache_folder / "login-environment.json"
        self._account = account or current_account()
        self._timeout = timeout_secs
        self._loading_task: asyncio.Task[Snapshot] | None = None
        self.known: dict[str, str] | None = None
        self.umask = _UMASK
        self.sentence: str | None = None

    async def load(self) -> None:
        """Read the cache or run the profile (in a thread; once for all callers)."""
        if self._loading_task is None:
            self._loading_task = asyncio.create_task(asyncio.to_thread(self._snapshot))
        # one canceled caller must not cancel the others
        snapshot = await asyncio.shield(self._loading_task)
        self.known, self.umask, self.sentence = snapshot

    def _snapshot(self) -> Snapshot:
        if not self._timeout:
            return Snapshot(self._account.clean(), _UMASK, None)
        key = _cache_key(self._account)
        cached = _read_cache(self._cache, key)
        if cached is not None:
            return cached
        snapshot = run_profile(self._account, self._timeout)
        fields = {"key": key, "at": time.time(), **snapshot._asdict()}
        with contextlib.suppress(OSError):  # without a cache the next agent runs the profile again
            write_atomically(str(self._cache), json.dumps(fields).encode())
        return snapshot


def current_account(home: str | None = None) -> Account:
    """Return the account of this process. An account that is in no user table gets its uid as name.

    home: overrides the home directory of the table, because a container image does not contain the
    site's users.
    """
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, str(uid), home or "/")
    return Account(uid, entry.pw_name, home or entry.pw_dir)


def shell_path() -> str:
    return next((p for p in ("/bin/bash", "/usr/bin/bash") if os.access(p, os.X_OK)), "/bin/sh")


def run_profile(account: Account, timeout_secs: float = TIMEOUT_SECS) -> Snapshot:
    """Run a login shell that prints its environment. Never raises, whatever the profile does."""
    mark = os.urandom(16).hex()
    clean = account.clean()
    command = f"printf '%s\\n' {mark}; umask; exec env -0"
    try:
        shell = subprocess.Popen(
            [shell_path(), "-l", "-c", command],
            env=clean,
            cwd=account.home if os.path.isdir(account.home) else "/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            restore_signals=True,
            # in the agent's session, by which the keeper recognises the shell if the agent ends
            # first
            process_group=0,
        )
    except OSError as error:
        return _default(clean, f"no login shell can be started: {error.strerror}")
    try:
        fields = _read_output(shell, timeout_secs)
    finally:
        _end_shell(shell)
        assert shell.stdout is not None
        shell.stdout.close()
    if fields is None:
        return _default(clean, f"the login profile did not end within {timeout_secs:g} s")
    _, found, rest = fields.rpartition(mark.encode() + b"\n")
    umask, newline, entries = rest.partition(b"\n")
    if not found or not newline or not entries.endswith(b"\0"):
        return _default(
            clean, "the login profile ended the shell before it could print its environment"
        )
    return Snapshot(_parse(entries), umask.decode("ascii", "replace"), None)


def _end_shell(shell: subprocess.Popen[bytes]) -> None:
    """End the shell and its background processes. SIGTERM first: a profile may hold a lock of its
    user and remove it at its end.
    """
    until = time.monotonic() + _LEAVE_SECS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(shell.pid, signal.SIGTERM)
        while time.monotonic() < until:
            shell.poll()
            os.killpg(shell.pid, 0)
            time.sleep(0.01)
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()


def _read_output(shell: subprocess.Popen[bytes], timeout_secs: float) -> bytes | None:
    """Return all output up to the shell's end (its background processes may continue); None after
    the time limit.
    """
    assert shell.stdout is not None
    fd = shell.stdout.fileno()
    os.set_blocking(fd, False)
    out = bytearray()
    until = time.monotonic() + timeout_secs
    while time.monotonic() < until and len(out) < _MAX_BYTES:
        over = shell.poll() is not None  # before the read: then all its output is in the pipe
        data = _read(fd)
        if data:
            out += data
        elif over:
            return bytes(out)
        elif data is None:
            select.select([fd], [], [], 0.02)
        else:  # it closed its output and is about to end
            time.sleep(0.002)
    return None


def _read(fd: int) -> bytes | None:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return None


def _parse(entries: bytes) -> dict[str, str]:
    out = {}
    for entry in entries.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "surrogateescape").partition("=")
        if equals and name and name not in _SHELL_VARIABLES:
            out[name] = value
    return out


def _default(clean: dict[str, str], why: str) -> Snapshot:
    return Snapshot(clean, _UMASK, f"{why}; jobs start from the default environment")


def _cache_key(account: Account) -> str:
    """Return a digest of the account and of size and time of every file that login shells read."""
    files = [*_SYSTEM, *(os.path.join(account.home, n) for n in _OWN)]
    with contextlib.suppress(OSError):
        files += sorted(entry.path for entry in os.scandir("/etc/profile.d"))
    fields: list[Any] = [list(account), shell_path()]
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            fields.append([path, status.st_size, status.st_mtime_ns, status.st_ino])
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _read_cache(path: Path, key: str) -> Snapshot | None:
    """Return the cached snapshot if it is ours, private, recent and made from the same files."""
    try:
        with path.open("rb") as f:
            status = os.fstat(f.fileno())
            fields = json.loads(f.read())
        fresh = fields["key"] == key and 0 <= time.time() - fields["at"] <= _MAX_AGE_SECS
        if not fresh or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        return Snapshot(dict(fields["env"]), fields["umask"], fields["sentence"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
