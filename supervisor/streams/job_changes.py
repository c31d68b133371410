"""The names of jobs whose status changes, for front ends that keep statuses in memory.

A reader gets every name after its first line, at least once, but no statuses. A reader that is too
slow is ended: it must drop what it keeps and read again.

Every durable change names its job. A status of a running run also depends on progress reports and
on what is known of its agent. These change often and without an event, so they name a job only if
its status was answered since the job was last named (`watch`): names cost less than the requests.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

from ...protocol.errors import Refusal
from ...protocol.ids import split_jid
from ...protocol.wire.messages import Snapshot
from ..core.interface import inputs as core_inputs
from ..core.interface.inputs import AgentMessage, Input
from ..core.state.world import World

#: Interval of lines without a name, which tell that the stream works.
ALIVE_SECS = 1.0
#: Maximum streams, and names that one reader has not read yet.
MOST, WAITING = 64, 10_000


class JobChanges:
    """All open streams. One per process."""

    def __init__(self, *, alive_secs: float = ALIVE_SECS) -> None:
        self._alive = alive_secs
        self._readers: set[ChangeReader] = set()
        self._closing = False
        #: jobs whose cacheable status was answered since they were last named, by user
        self._watched: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def changed(self, jid: str) -> None:
        """Name a job that changed durably."""
        self._name(split_jid(jid)[0], jid)

    def watch(self, jid: str) -> None:
        """Name this job once when its status changes without an event. Call it with each answer
        that may be kept.
        """
        self._watched.setdefault(split_jid(jid)[0], set()).add(jid)

    def outdated(self, jid: str) -> None:
        """Name the job if it is watched: its status changed without an event."""
        uid = split_jid(jid)[0]
        if jid in self._watched.get(uid, ()):
            self._name(uid, jid)

    def decided(self, world: World, inputs: Sequence[Input]) -> None:
        """Name the watched jobs whose status these inputs may have changed in `world`. Their events
        may not be durable yet.
        """
        if not self._watched:
            return
        for input_ in inputs:
            for jid in core_inputs.jids(input_):
                self.outdated(jid)
            key = core_inputs.agent_key(input_)
            view = None if key is None else world.agents.get(key)
            # the last page of a snapshot applies the pages before it, too
            if key is not None and (view is None or not view.known or _is_last_page(input_)):
                for jid in tuple(self._watched.get(key.uid, ())):
                    self._name(key.uid, jid)

    def folded(self) -> None:
        """Name all watched jobs: no agent is known after the world was folded from the log."""
        for uid, jids in tuple(self._watched.items()):
            for jid in tuple(jids):
                self._name(uid, jid)

    def _name(self, uid: str, jid: str) -> None:
        watched = self._watched.get(uid)
        if watched is not None:
            watched.discard(jid)
            if not watched:
                del self._watched[uid]
        for reader in self._readers:
            reader.add(jid)

    @contextmanager
    def reader(self) -> Iterator["ChangeReader"]:
        """Open a reader. Raises Refusal (tooManyRequests, draining)."""
        if self._closing:
            raise Refusal("draining", "the supervisor is stopping; try again after the restart")
        if len(self._readers) >= MOST:
            raise Refusal("tooManyRequests", f"{MOST} front ends read the changes of jobs already")
        reader = ChangeReader()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    async def stream(self, reader: "ChangeReader") -> AsyncGenerator[bytes, None]:
        """Yield lines: a computeJid each, empty at the start and when nothing has changed."""
        yield b"\n"
        while not (reader.ended or self._closing):
            yield await reader.lines(self._alive)

    def close(self) -> None:
        """End all streams."""
        self._closing = True
        for reader in self._readers:
            reader.end()


def _is_last_page(input_: Input) -> bool:
    message = input_.message if isinstance(input_, AgentMessage) else None
    return isinstance(message, Snapshot) and message.last


class ChangeReader:
    """The names that one front end has not received yet."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._awake = asyncio.Event()
        self.ended = False

    def add(self, jid: str) -> None:
        self._names[jid] = None
        if len(self._names) > WAITING:
            self.ended = True
        self._awake.set()

    def end(self) -> None:
        self.ended = True
        self._awake.set()

    async def lines(self, secs: float) -> bytes:
        """Return the new names, or an empty line after `secs` without any."""
        try:
            async with asyncio.timeout(secs):
                await self._awake.wait()
        except TimeoutError:
            return b"\n"
        self._awake.clear()
        names, self._names = self._names, {}
        return "".join(f"{jid}\n" for jid in names).encode() or b"\n"
