"""Agents on this machine: a keeper with its agent per (uid, kind), all as the supervisor's own unix
user (trusted users only).

A warm template process forks keepers, so that a new user's first run need not wait for an
interpreter to start. Keepers are found again by the lock file of their folder and by pid and start
time; they live on when supervisor and template end.
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
from .contracts import AgentSpec, Capabilities, Capacity, Found, Handle

#: How an agent calls itself in its arguments. Jobs are children of keepers, too.
_AGENT_TITLE = b"jobscribe agent "
_MESSAGE_MAX = 64 * 1024
#: Room in the template's argument list for the title that it and its children show in `ps`.
_TITLE_ROOM = "-" * 200
#: The template ends at once when its socket does; it is not waited for longer than this.
_CLOSE_SECS = 3.0


class LocalDriver:
    """The `local` AgentDriver; see drivers.driver for what its methods promise."""

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
        template_log: Any = None,
        descriptors: int | None = None,
    ) -> None:
        """agent_settings, keeper_settings: what these are told besides what this driver knows.

        descriptors: the soft limit that agents and jobs start with, where this process has raised
        its own.
        """
        self._root = root
        self._address_file = address_file
        self._cpu_slots = cpu_slots
        self._keeper_settings, self._agent_settings = keeper_settings or {}, agent_settings or {}
        self._template = _Template(root, template_log, descriptors)

    async def start(self, spec: AgentSpec) -> Handle:
        folder = self._folder(spec.key)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise Refusal(
                "agentUnavailable", f"the agent's folder {folder} cannot be made: {e.strerror}"
            ) from None
        there = await _keeper_of(folder)
        alive = there is not None and processes.alive(there["pid"], there["startTicks"])
        if (
            there is not None
            and alive
            and keeper_lock.keeps(folder, there["startTicks"], there.get("folder"))
        ):
            # An earlier start whose outcome nobody heard of: its agent has one of the tokens that
            # are still accepted.
            return {**there, "folder": str(folder)}
        config = {
            **self._keeper_settings,
            "root": str(self._root),
            "folder": str(folder),
            "python": sys.executable,
            "agent": {
                **self._agent_settings,
                "agentKey": str(spec.key),
                "agentId": spec.agent_id,
                "token": spec.token,
                "addressFile": str(self._address_file),
                "cacheDir": str(self._root / "agent"),
            },
        }
        said = await self._template.ask({"keeper": config})
        return {
            "pid": said["pid"],
            "startTicks": said["startTicks"],
            "bootId": processes.boot_id(),
            "folder": str(folder),
        }

    async def find(self, handle: Handle) -> Found:
        """Nobody else wakes a stopped keeper while its agent is not connected."""
        if handle.get("bootId") != processes.boot_id():
            return Found(state="gone", detail="the machine was restarted")
        pid, ticks = handle.get("pid"), handle.get("startTicks")
        if pid is None or ticks is None:
            return Found(state="unknown", detail="its handle does not say which process it is")
        if processes.alive(pid, ticks):
            if self._keeps(handle):
                return Found(
                    state="alive",
                    detail=f"keeper pid {pid}{processes.wake(pid, ticks, _AGENT_TITLE)}",
                )
            return Found(
                state="gone", detail=f"the process {pid} keeps another folder, of another root"
            )
        return Found(state="gone", detail=f"its keeper, pid {pid}, is not there any more")

    async def stop(self, handle: Handle, grace_secs: float) -> None:
        if (await self.find(handle)).state != "alive":
            return
        _signal(handle, signal.SIGTERM)
        _signal(handle, signal.SIGCONT)  # a stopped keeper does not act on it
        if not await _until_gone(handle, grace_secs + 5):
            _signal(handle, signal.SIGKILL)
            await _until_gone(handle, 5)

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
            await self._template.ask({"ping": True})
        except Refusal as e:
            return [e.sentence]
        return []

    async def close(self) -> None:
        await self._template.close()

    def _keeps(self, handle: Handle) -> bool:
        """Does this live keeper keep a folder of this root? The root may have been copied, or
        moved, since the handle was made.
        """
        said = str(handle.get("folder", ""))
        return not said or keeper_lock.keeps(
            self._root / "agent" / Path(said).name, handle["startTicks"], said
        )

    def _folder(self, key: AgentKey) -> Path:
        return self._root / "agent" / str(key)


async def _keeper_of(folder: Path) -> dict[str, Any] | None:
    """What keeper.json says; None where there is none or it is of another boot."""
    try:
        async with aiofiles.open(folder / "keeper.json", "rb") as f:
            said = json.loads(await f.read())
    except (OSError, ValueError):
        return None
    return said if said.get("bootId") == processes.boot_id() else None


def _signal(handle: Handle, number: int) -> None:
    try:
        fd = os.pidfd_open(handle["pid"])
    except ProcessLookupError:
        return
    try:
        # between open and check the pid cannot change hands: the descriptor names the process
        # itself
        if processes.alive(handle["pid"], handle["startTicks"]):
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


async def _until_gone(handle: Handle, secs: float) -> bool:
    deadline = asyncio.get_running_loop().time() + secs
    while processes.alive(handle["pid"], handle["startTicks"]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


class _Template:
    """The warm process and the conversation with it: one JSON object per packet, answered in any
    order.
    """

    def __init__(self, root: Path, log: Any, descriptors: int | None) -> None:
        self._root = root
        self._log = log
        self._descriptors = descriptors
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._lock = asyncio.Lock()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request; raises Refusal("agentUnavailable")."""
        async with self._lock:
            await self._ensure()
            assert self._socket is not None
            self._next += 1
            number = self._next
            packet = json.dumps({"id": number, **request}).encode()
            future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            self._answers[number] = future
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, packet)
            except OSError as e:
                self._answers.pop(number, None)
                raise Refusal(
                    "agentUnavailable", f"the template process cannot be reached: {e}"
                ) from None
        try:
            said = await asyncio.wait_for(future, 30)
        except TimeoutError:
            raise Refusal(
                "agentUnavailable", "the template process did not answer within 30 s"
            ) from None
        finally:
            self._answers.pop(number, None)
        if "error" in said:
            raise Refusal(
                "agentUnavailable",
                said["error"] + (await self._how_it_ended() if said.get("lost") else ""),
            )
        return said

    async def _how_it_ended(self) -> str:
        """What the template's exit adds to the news that it is gone. Its own words are on this
        process's stderr.
        """
        try:
            code = (
                await asyncio.wait_for(self._process.wait(), _CLOSE_SECS)
                if self._process is not None
                else None
            )
        except TimeoutError:
            return " its link, but not itself"
        if code is None:
            return ""
        return (
            f" by signal {-code}"
            if code < 0
            else f" with exit code {code}; its reason stands on the supervisor's stderr"
        )

    async def _ensure(self) -> None:
        if (
            self._process is not None
            and self._process.returncode is None
            and self._socket is not None
        ):
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                f"{_package()}.agent.fork_server",
                "--root",
                str(self._root),
                _TITLE_ROOM,
                stdin=theirs.fileno(),
                env=_clean_environment(),
                start_new_session=True,
            )
        except OSError as e:
            ours.close()
            raise Refusal(
                "agentUnavailable", f"the template process cannot be started: {e}"
            ) from None
        finally:
            theirs.close()
        if self._descriptors is not None:
            with contextlib.suppress(ProcessLookupError):  # it will be seen that it ended
                most = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)[1]
                resource.prlimit(
                    self._process.pid, resource.RLIMIT_NOFILE, (self._descriptors, most)
                )
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._readable, ours)

    def _readable(self, ours: socket.socket) -> None:
        try:
            packet = ours.recv(_MESSAGE_MAX)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._lost(ours)
            return
        said = msgspec.json.decode(packet, type=dict[str, Any])
        future = self._answers.get(said.get("id", 0))
        if future is not None and not future.done():
            future.set_result(said)

    def _lost(self, ours: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(ours)
        ours.close()
        if self._socket is ours:
            self._socket = None
        for future in self._answers.values():
            if not future.done():
                future.set_result({"error": "the template process ended", "lost": True})

    async def close(self) -> None:
        if self._socket is not None:
            self._lost(self._socket)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _CLOSE_SECS)
            except TimeoutError:  # stuck or stopped; nothing hangs on it
                self._process.kill()
                await self._process.wait()


def _package() -> str:
    return __name__.split(".")[0]


def _clean_environment() -> dict[str, str]:
    """Nothing of ours reaches agents and jobs but what finding this package takes."""
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
