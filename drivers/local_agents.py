"""Agents on this machine: one keeper with its agent per (uid, kind), all as the supervisor's own
unix user (trusted users only).

A warm fork server forks keepers, so that a new user's first run does not wait for an interpreter to
start. A keeper is found again by the lock file in its folder, its pid and its start time. Keepers
outlive the supervisor and the fork server.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiofiles
import msgspec

from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey
from ..runtime import failpoints, processes
from . import keeper_lock, untrusted_files
from .contracts import AgentSpec, Capabilities, Capacity, Found, FoundState, Handle

#: Process title of an agent. A keeper's children also include jobs.
_AGENT_TITLE = b"jobscribe agent "
_MESSAGE_MAX = 64 * 1024
#: The nice value of keepers and agents. They share the machine with their supervisor (0), whose
#: answers users wait for, and with jobs (10).
_NICE = 5
#: Padding in the fork server's arguments, for the process titles of the fork server and its
#: children in `ps`.
_TITLE_PADDING = "-" * 200
#: The fork server exits when its socket closes. Maximum time to wait for that (seconds).
_CLOSE_SECS = 3.0


class LocalDriver:
    """The `local` `AgentDriver` (see drivers.contracts)."""

    name = "local"
    capabilities = Capabilities(tasks="keeper", same_machine=True)

    def __init__(
        self,
        root: Path,
        address_file: Path,
        *,
        cpu_slots: Capacity,
        keeper_settings: dict[str, Any] | None = None,
        agent_settings: dict[str, Any] | None = None,
        fork_server_log: Any = None,
        descriptors: int | None = None,
    ) -> None:
        """agent_settings, keeper_settings: configuration for agent and keeper beyond this driver's
        own.

        descriptors: soft limit of open files for agents and jobs, if this process has raised its
        own limit.
        """
        self._root = root
        self._address_file = address_file
        self._cpu_slots = cpu_slots
        self._keeper_settings, self._agent_settings = keeper_settings or {}, agent_settings or {}
        self._fork_server = _ForkServer(root, fork_server_log, descriptors)

    async def start(self, spec: AgentSpec) -> Handle:
        folder = self._folder(spec.key)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise Refusal(
                "agentUnavailable", f"cannot create the agent's folder {folder}: {e.strerror}"
            ) from None
        existing = await _read_keeper(folder)
        alive = existing is not None and processes.alive(existing["pid"], existing["startTicks"])
        if (
            existing is not None
            and alive
            and keeper_lock.owns(folder, existing["startTicks"], existing.get("folder"))
        ):
            # The outcome of an earlier start was lost. The agent has one of the tokens that are
            # still accepted.
            return {**existing, "folder": str(folder)}
        config = {
            **self._keeper_settings,
            "root": str(self._root),
            "folder": str(folder),
            "python": sys.executable,
            "nice": _NICE,
            "agent": {
                **self._agent_settings,
                "agentKey": str(spec.key),
                "agentId": spec.agent_id,
                "token": spec.token,
                "addressFile": str(self._address_file),
                "cacheDir": str(self._root / "agent"),
            },
        }
        answer = await self._fork_server.request({"keeper": config})
        return {
            "pid": answer["pid"],
            "startTicks": answer["startTicks"],
            "bootId": processes.boot_id(),
            "folder": str(folder),
        }

    async def find(self, handle: Handle) -> Found:
        """Check the keeper's process. Resumes a stopped (SIGSTOP) keeper, because nothing else
        resumes it while its agent is not connected.
        """
        if handle.get("bootId") != processes.boot_id():
            return Found(state=FoundState.GONE, detail="the machine was restarted")
        pid, ticks = handle.get("pid"), handle.get("startTicks")
        if pid is None or ticks is None:
            return Found(state=FoundState.UNKNOWN, detail="its handle has no pid and start time")
        if processes.alive(pid, ticks):
            if self._owns_folder(handle):
                return Found(
                    state=FoundState.ALIVE,
                    detail=f"keeper pid {pid}{processes.wake(pid, ticks, _AGENT_TITLE)}",
                )
            return Found(
                state=FoundState.GONE,
                detail=f"the process {pid} is the keeper of another root's folder",
            )
        return Found(state=FoundState.GONE, detail=f"its keeper (pid {pid}) has ended")

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        if (await self.find(handle)).state != FoundState.ALIVE:
            return
        _signal(handle, signal.SIGTERM)
        _signal(handle, signal.SIGCONT)  # a stopped keeper does not handle SIGTERM
        if not await _wait_until_gone(handle, grace_secs + 5):
            _signal(handle, signal.SIGKILL)
            await _wait_until_gone(handle, 5)

    async def evidence(
        self, key: AgentKey, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        return await asyncio.to_thread(
            untrusted_files.read, self._folder(key), ("run", *name.split("/")), offset, limit
        )

    def capacity(self) -> Capacity:
        return self._cpu_slots

    async def check(self) -> list[str]:
        try:
            await self._fork_server.request({"ping": True})
        except Refusal as e:
            return [e.sentence]
        return []

    async def close(self) -> None:
        await self._fork_server.close()

    def _owns_folder(self, handle: Handle) -> bool:
        """Return whether this live keeper owns a folder of this root. The root may have been copied
        or moved since the handle was created.
        """
        recorded = str(handle.get("folder", ""))
        return not recorded or keeper_lock.owns(
            self._root / "agent" / Path(recorded).name, handle["startTicks"], recorded
        )

    def _folder(self, key: AgentKey) -> Path:
        return self._root / "agent" / str(key)


async def _read_keeper(folder: Path) -> dict[str, Any] | None:
    """Return the content of keeper.json, or None if there is none or it is from another boot."""
    try:
        async with aiofiles.open(folder / "keeper.json", "rb") as f:
            keeper = json.loads(await f.read())
    except (OSError, ValueError):
        return None
    return keeper if keeper.get("bootId") == processes.boot_id() else None


def _signal(handle: Handle, number: int) -> None:
    try:
        fd = os.pidfd_open(handle["pid"])
    except ProcessLookupError:
        return
    try:
        # the descriptor refers to the process itself, so the pid cannot be reused between check and
        # signal
        if processes.alive(handle["pid"], handle["startTicks"]):
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


async def _wait_until_gone(handle: Handle, secs: float) -> bool:
    deadline = asyncio.get_running_loop().time() + secs
    while processes.alive(handle["pid"], handle["startTicks"]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


class _ForkServer:
    """The fork server and its socket: one JSON object per packet, answered in any order."""

    def __init__(self, root: Path, log: Any, descriptors: int | None) -> None:
        self._root = root
        self._log = log
        self._descriptors = descriptors
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._lock = asyncio.Lock()

    async def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return the answer. Raises Refusal("agentUnavailable")."""
        async with self._lock:
            await self._start_if_needed()
            assert self._socket is not None
            self._next += 1
            number = self._next
            packet = json.dumps({"id": number, **message}).encode()
            future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            self._answers[number] = future
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, packet)
            except OSError as e:
                self._answers.pop(number, None)
                raise Refusal("agentUnavailable", f"cannot reach the fork server: {e}") from None
        try:
            answer = await asyncio.wait_for(future, 30)
        except TimeoutError:
            raise Refusal(
                "agentUnavailable", "the fork server did not answer within 30 s"
            ) from None
        finally:
            self._answers.pop(number, None)
        if "error" in answer:
            raise Refusal(
                "agentUnavailable",
                answer["error"] + (await self._exit_suffix() if answer.get("lost") else ""),
            )
        return answer

    async def _exit_suffix(self) -> str:
        """Return a suffix about the fork server's exit. It writes its own messages to this
        process's stderr.
        """
        try:
            code = (
                await asyncio.wait_for(self._process.wait(), _CLOSE_SECS)
                if self._process is not None
                else None
            )
        except TimeoutError:
            return " its connection, but still runs"
        if code is None:
            return ""
        return (
            f" by signal {-code}"
            if code < 0
            else f" with exit code {code}; see the supervisor's stderr for the reason"
        )

    async def _start_if_needed(self) -> None:
        if (
            self._process is not None
            and self._process.returncode is None
            and self._socket is not None
        ):
            return
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_end.setblocking(False)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                f"{_package()}.agent.fork_server",
                "--root",
                str(self._root),
                _TITLE_PADDING,
                stdin=child_end.fileno(),
                env=_clean_environment(),
                start_new_session=True,
            )
        except OSError as e:
            own_end.close()
            raise Refusal("agentUnavailable", f"cannot start the fork server: {e}") from None
        finally:
            child_end.close()
        if self._descriptors is not None:
            with contextlib.suppress(ProcessLookupError):  # the socket reports its end
                most = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)[1]
                resource.prlimit(
                    self._process.pid, resource.RLIMIT_NOFILE, (self._descriptors, most)
                )
        self._socket = own_end
        asyncio.get_running_loop().add_reader(own_end, self._receive, own_end)

    def _receive(self, own_end: socket.socket) -> None:
        try:
            packet = own_end.recv(_MESSAGE_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._disconnect(own_end)
            return
        answer = msgspec.json.decode(packet, type=dict[str, Any])
        future = self._answers.get(answer.get("id", 0))
        if future is not None and not future.done():
            future.set_result(answer)

    def _disconnect(self, own_end: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(own_end)
        own_end.close()
        if self._socket is own_end:
            self._socket = None
        for future in self._answers.values():
            if not future.done():
                future.set_result({"error": "the fork server ended", "lost": True})

    async def close(self) -> None:
        if self._socket is not None:
            self._disconnect(self._socket)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _CLOSE_SECS)
            except TimeoutError:  # stuck or stopped; nothing depends on it
                self._process.kill()
                await self._process.wait()


def _package() -> str:
    return __name__.split(".")[0]


def _clean_environment() -> dict[str, str]:
    """Return the environment for the fork server and its children: only standard variables, and the
    ones needed to find this package.
    """
    kept = {
        k: os.environ[k]
        for k in ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ")
        if k in os.environ
    }
    kept["PATH"] = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    for name in ("PYTHONPATH", failpoints.VARIABLE):
        if name in os.environ:
            kept[name] = os.environ[name]
    return kept
