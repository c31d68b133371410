"""How commands are executed on a login node as a user: the seam, and the way without ssh, where
this machine is one.

No secret is ever in an argument or in an environment: whatever is secret goes in by stdin.
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

#: More of an answer is not kept.
OUT_BYTES = 4 << 20
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
#: What has not ended this long after its signal is left to itself.
_KILL_SECS = 2.0
#: It has ended, and somebody keeps its output open: a daemon that a login has started. Nobody waits
#: longer for him than this.
_STRAGGLER_SECS, _LOOK_SECS = 1.0, 0.02


class Ran(NamedTuple):
    """code: as a shell would say it; below zero: ended by this signal."""

    code: int
    out: bytes
    err: bytes


class ChannelError(Exception):
    """The login node cannot be reached, or does not answer in time. Whether the command was
    executed nobody knows.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Channel(Protocol):
    """user: the unix user there. host: which machine it is, in words. closed: it is of no use any
    more; a new one is needed.
    """

    user: str
    host: str

    @property
    def closed(self) -> bool: ...

    async def run(self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0) -> Ran:
        """Execute and wait. Raises ChannelError. When the time is over nobody waits any longer; the
        command may go on.
        """

    async def forward(self, path: str, host: str, port: int) -> None:
        """From now on a unix socket at this path there leads to this address as seen from here.
        Raises ChannelError. Again: replaces.
        """

    async def close(self) -> None:
        """Idempotent. What was started there lives on."""


class LocalChannel:
    """A Channel on this machine. prefix: how to become the user, such as `sudo -n -H -u USER --`;
    empty: it is the own one already.
    """

    def __init__(self, prefix: Sequence[str], user: str | None = None) -> None:
        """user: whom the prefix leads to."""
        try:
            self._account = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
        except KeyError:
            who = f"number {os.geteuid()}" if user is None else f"named {user}"
            raise ChannelError(f"there is no unix user {who} on this machine") from None
        self.user, self.host = self._account.pw_name, os.uname().nodename
        self._prefix = tuple(prefix)
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def run(self, argv: Sequence[str], stdin: bytes = b"", secs: float = 30.0) -> Ran:
        what = [*self._prefix, *argv]
        try:
            process = await asyncio.create_subprocess_exec(
                *what,
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
                    f"{what[0]} cannot be executed on this machine: {e.strerror}"
                ) from None
            return Ran(
                126 if e.errno == 13 else 127, b"", f"{what[0]}: {e.strerror}".encode()
            )  # as a shell says it
        try:
            async with asyncio.timeout(secs):
                out, err = await _spoken(process, stdin)
                while process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECS)
                return Ran(process.returncode, out, err)
        except TimeoutError:
            raise ChannelError(f"{argv[0]} on {self.host} did not end within {secs:g} s") from None
        finally:
            await _ended(process)

    async def forward(self, path: str, host: str, port: int) -> None:
        raise ChannelError(
            "the link `ssh` goes through a user's ssh connection, and nobody signs in to this machine by ssh"
        )

    async def close(self) -> None:
        self._closed = True

    def _environment(self) -> dict[str, str]:
        """What a login gives. Nothing of this process's own: users must not see it, and `runuser`
        would pass all of it on.
        """
        who = self._account
        kept = {k: os.environ[k] for k in ("LANG", "LC_ALL", "TZ") if k in os.environ}
        path = _PATH if self._prefix else os.environ.get("PATH", _PATH)
        return {
            **kept,
            "HOME": who.pw_dir,
            "USER": who.pw_name,
            "LOGNAME": who.pw_name,
            "SHELL": who.pw_shell or "/bin/sh",
            "PATH": path,
        }


async def _spoken(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    out, err = bytearray(), bytearray()
    pipes = [
        _capped(process.stdout, out),
        _capped(process.stderr, err),
        _written(process.stdin, stdin),
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


async def _written(pipe: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it did not want all of it
        pipe.write(data)
        await pipe.drain()
        pipe.close()


async def _capped(pipe: asyncio.StreamReader, kept: bytearray) -> None:
    while data := await pipe.read(1 << 16):
        kept += data[: OUT_BYTES - len(kept)]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Nobody waits for it any more. A prefix may have made it another user's: then it ends by
    itself, at the end of its pipes.
    """
    if process.returncode is None:
        signal_group(process, signal.SIGTERM)
        if not await wait_ended(process, _KILL_SECS):
            signal_group(process, signal.SIGKILL)
    close_pipes(process)


def local_channel(cluster: Cluster, uid: str) -> LocalChannel:
    """The way to this user on a cluster that this machine belongs to. Raises
    Refusal("agentUnavailable").
    """
    try:
        if cluster.access == "account":
            return LocalChannel(())
        user = cluster.users.get(uid)
        if user is None:
            raise ChannelError(
                f"it is not said which unix user {uid} is; the operator adds it to `users` of the cluster"
            )
        how = (
            ("sudo", "-n", "-H", "-u", user, "--")
            if cluster.access == "sudo"
            else ("runuser", "-u", user, "--")
        )
        return LocalChannel(how, user)
    except ChannelError as e:
        raise Refusal("agentUnavailable", f"cluster {cluster.name}: {e.sentence}") from None
