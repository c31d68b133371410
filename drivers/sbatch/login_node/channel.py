"""Channel that runs commands on a login node as a user: the protocol, and the implementation
without ssh for a machine of the cluster.

No secret is in an argument or in an environment: secrets travel through stdin.
"""

import asyncio
import contextlib
import os
import pwd
import signal
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from ....runtime.child_processes import close_pipes, signal_group, wait_ended

#: Maximum output that is kept (bytes).
OUT_BYTES = 4 << 20
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
#: Time to wait for a process after each signal (seconds).
_KILL_SECS = 2.0
#: After the process has ended, time to wait for its output pipes: a daemon of a login may hold them
#: open (seconds).
_STRAGGLER_SECS, _POLL_SECS = 1.0, 0.02


class CommandResult(NamedTuple):
    """Result of a command. code: exit code as in a shell; negative: killed by this signal."""

    code: int
    out: bytes
    err: bytes


class ChannelError(Exception):
    """The login node is unreachable or did not answer in time. The command may have run."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Channel(Protocol):
    """A way to one login node. user: the unix user there. host: name of the machine for people.
    closed: the channel can no longer be used.
    """

    user: str
    host: str

    @property
    def closed(self) -> bool: ...

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0
    ) -> CommandResult:
        """Run a command and wait. Raises ChannelError, also after `secs`; the command may then
        continue.
        """

    async def forward(self, path: str, host: str, port: int) -> None:
        """Forward a unix socket at `path` on the login node to a local address. Replaces an earlier
        forward. Raises ChannelError.
        """

    async def close(self) -> None:
        """Close the channel. Idempotent. Started processes continue."""


class LocalChannel:
    """A `Channel` on this machine. prefix: command to become the user, such as `sudo -n -H -u USER
    --`; empty for the own user.
    """

    def __init__(self, prefix: Sequence[str], user: str | None = None) -> None:
        """user: the unix user that the prefix switches to."""
        try:
            self._account = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
        except KeyError:
            account = f"number {os.geteuid()}" if user is None else f"named {user}"
            raise ChannelError(f"there is no unix user {account} on this machine") from None
        self.user, self.host = self._account.pw_name, os.uname().nodename
        self._prefix = tuple(prefix)
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def run(
        self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0
    ) -> CommandResult:
        command = [*self._prefix, *argv]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as e:
            if self._prefix or e.errno not in (2, 13):
                raise ChannelError(
                    f"cannot run {command[0]} on this machine: {e.strerror}"
                ) from None
            shell_code = 126 if e.errno == 13 else 127
            return CommandResult(shell_code, b"", f"{command[0]}: {e.strerror}".encode())
        try:
            async with asyncio.timeout(secs):
                out, err = await _communicate(process, stdin)
                while process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECS)
                return CommandResult(process.returncode, out, err)
        except TimeoutError:
            raise ChannelError(f"{argv[0]} on {self.host} did not end within {secs:g} s") from None
        finally:
            await _stop(process)

    async def forward(self, path: str, host: str, port: int) -> None:
        raise ChannelError(
            "the link `ssh` needs a user's ssh connection, but this cluster is used without ssh: "
            "choose another `link`"
        )

    async def close(self) -> None:
        self._closed = True

    def _environment(self) -> dict[str, str]:
        """Return a login's environment. Nothing of this process's own is passed on: users must not
        see it, and `runuser` would pass all of it.
        """
        account = self._account
        kept = {k: os.environ[k] for k in ("LANG", "LC_ALL", "TZ") if k in os.environ}
        path = _PATH if self._prefix else os.environ.get("PATH", _PATH)
        return {
            **kept,
            "HOME": account.pw_dir,
            "USER": account.pw_name,
            "LOGNAME": account.pw_name,
            "SHELL": account.pw_shell or "/bin/sh",
            "PATH": path,
        }


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    out, err = bytearray(), bytearray()
    pipes = [
        _read_capped(process.stdout, out),
        _read_capped(process.stderr, err),
        _write(process.stdin, stdin),
    ]
    tasks = [asyncio.ensure_future(pipe) for pipe in pipes]
    left = _STRAGGLER_SECS
    try:
        while left > 0 and (await asyncio.wait(tasks, timeout=_STRAGGLER_SECS / 5))[1]:
            if process.returncode is not None:
                left -= _STRAGGLER_SECS / 5
        return bytes(out), bytes(err)
    finally:
        for task in tasks:
            task.cancel()


async def _write(pipe: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it did not read all input
        pipe.write(data)
        await pipe.drain()
        pipe.close()


async def _read_capped(pipe: asyncio.StreamReader, kept: bytearray) -> None:
    while data := await pipe.read(1 << 16):
        kept += data[: OUT_BYTES - len(kept)]


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop an unfinished process. A process of another user (after a prefix) ends when its pipes
    close.
    """
    if process.returncode is None:
        signal_group(process, signal.SIGTERM)
        if not await wait_ended(process, _KILL_SECS):
            signal_group(process, signal.SIGKILL)
    close_pipes(process)


def local_channel(cluster: Cluster, uid: str) -> LocalChannel:
    """Return a channel to this user on a cluster of this machine. Raises
    Refusal("agentUnavailable").
    """
    try:
        if cluster.access == "account":
            return LocalChannel(())
        user = cluster.users.get(uid)
        if user is None:
            raise ChannelError(
                f"no unix user is configured for {uid}; "
                "the operator adds one to `users` of the cluster"
            )
        prefix = (
            ("sudo", "-n", "-H", "-u", user, "--")
            if cluster.access == "sudo"
            else ("runuser", "-u", user, "--")
        )
        return LocalChannel(prefix, user)
    except ChannelError as e:
        raise Refusal("agentUnavailable", f"cluster {cluster.name}: {e.sentence}") from None
