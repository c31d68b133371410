"""Relayed shells: buffers, flow control, repeats and lifetime, for every driver.

How a shell starts, and where, belongs to its `Terminal` (a pty of the agent, an exec of Docker).
Requests may be repeated: input and output are numbered by bytes. Output that the user has not
received stays here; when it reaches a limit, reading from the terminal pauses.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import Token, split_jid
from ...protocol.jobs.inspection import is_typed
from ...protocol.wire.messages import RELAY_BYTES, OpenShell, ShellIo, ShellOutput

#: Unread output (bytes) from which reading from the terminal pauses.
OUTPUT_LIMIT = 4 * RELAY_BYTES
#: A shell whose user sends no request for this time is hung up, and an ended one is forgotten
#: (seconds). A connected user sends one at least every 20 s.
IDLE_SECS = 60.0
#: Shells of one user, and of all users of a Docker driver, in one agent or driver at once.
MAX_OF_USER, MAX_SHELLS = 32, 256
GONE = "the shell has ended: its agent was restarted, or nobody used it for a while; open another"


class Terminal(Protocol):
    """The far end of a shell. It calls `ShellSession.received` and, once, `ended`."""

    def write(self, data: bytes) -> int:
        """Type these bytes. Return how many were accepted; the rest is sent again."""

    def resize(self, rows: int, cols: int) -> None: ...

    def pause(self, paused: bool) -> None:
        """Stop or continue to read output."""

    def hang_up(self) -> None:
        """End the shell and its foreground job, as when a terminal is closed. Returns at once."""


class ShellExit(NamedTuple):
    """The end of a shell. Without code and signal, detail has the reason."""

    code: int | None = None
    signal: int | None = None
    detail: str = ""


class ShellSession:
    """One shell between its terminal and the requests of its user. typed: it reads input; otherwise
    input is dropped.
    """

    def __init__(self, token: Token, *, typed: bool = True) -> None:
        self.token, self._typed = token, typed
        self.exit: ShellExit | None = None
        self.used = asyncio.get_running_loop().time()
        self._terminal: Terminal | None = None
        self._output = bytearray()
        #: number of the first byte in `_output`, and number of accepted bytes of input
        self._first = self._input_at = 0
        self._paused = False
        self._change = asyncio.Event()

    def attach(self, terminal: Terminal) -> None:
        self._terminal = terminal

    # ---- called by the terminal

    def received(self, data: bytes) -> None:
        self._output += data
        self._wake()
        if len(self._output) >= OUTPUT_LIMIT and not self._paused and self._terminal is not None:
            self._paused = True
            self._terminal.pause(True)

    def ended(self, exit_: ShellExit) -> None:
        if self.exit is None:
            self.exit = exit_
            self.used = asyncio.get_running_loop().time()
            self._wake()

    # ---- called for the user

    def hang_up(self) -> None:
        if self.exit is None and self._terminal is not None:
            self._terminal.hang_up()

    async def io(self, op: ShellIo) -> ShellOutput:
        """Perform a request. Raises Refusal("badRequest") for numbers that do not fit."""
        self.used = asyncio.get_running_loop().time()
        self._type(op)
        if op.limit:
            self._acknowledge(op.offset)
            await self._wait(op.offset, op.wait_secs)
        return self.answer(op.op_id, op.offset, op.limit)

    def answer(self, op_id: str, offset: int = 0, limit: int = 0) -> ShellOutput:
        start = max(0, offset - self._first)
        data = bytes(self._output[start : start + limit])
        over = self.exit is not None and start + len(data) >= len(self._output)
        code, signal, detail = self.exit if over and self.exit is not None else ShellExit()
        return ShellOutput(
            op_id=op_id,
            offset=self._first + start,
            data=data,
            input_at=self._input_at,
            end=over,
            code=code,
            signal=signal,
            detail=detail,
        )

    def _type(self, op: ShellIo) -> None:
        if op.input_at > self._input_at:
            raise Refusal(
                "badRequest",
                f"input {self._input_at} to {op.input_at} of the shell was never sent",
            )
        if self.exit is not None or self._terminal is None:
            return
        if op.rows is not None and op.cols is not None:
            self._terminal.resize(op.rows, op.cols)
        data = op.input[self._input_at - op.input_at :]
        if data:
            self._input_at += self._terminal.write(data) if self._typed else len(data)
        if op.close:
            self._terminal.hang_up()

    def _acknowledge(self, offset: int) -> None:
        known = self._first + len(self._output)
        if not self._first <= offset <= known:
            raise Refusal(
                "badRequest", f"the shell has output {self._first} to {known}, not {offset}"
            )
        del self._output[: offset - self._first]
        self._first = offset
        if self._paused and len(self._output) < OUTPUT_LIMIT and self._terminal is not None:
            self._paused = False
            self._terminal.pause(False)

    async def _wait(self, offset: int, secs: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + secs
        while self.exit is None and self._first + len(self._output) <= offset:
            left = until - loop.time()
            if left <= 0:
                return
            change = self._change
            try:
                await asyncio.wait_for(change.wait(), left)
            except TimeoutError:
                return

    def _wake(self) -> None:
        """Wake all requests that wait now."""
        self._change.set()
        self._change = asyncio.Event()


#: Starts the terminal of a session. Raises Refusal if that is not possible.
Start = Callable[[OpenShell, ShellSession], Awaitable[Terminal]]


class ShellTable:
    """The shells of one agent or driver, by their ids. Use it on one event loop."""

    def __init__(self, start: Start, *, idle_secs: float = IDLE_SECS) -> None:
        self._start, self._idle_secs = start, idle_secs
        self._shells: dict[str, ShellSession] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._shells)

    async def open(self, op: OpenShell) -> ShellOutput:
        """Open a shell, unless it is open. Raises Refusal."""
        session = self._shells.get(op.shell_id)
        if session is not None and session.token != op.token:
            raise Refusal("badRequest", "another shell has this shellId; choose a random one")
        if session is None:
            self._check_count(op.token)
            session = self._shells[op.shell_id] = ShellSession(
                op.token, typed=is_typed(None if op.program is msgspec.UNSET else op.program)
            )
            try:
                session.attach(await self._start(op, session))
            except BaseException:
                self._shells.pop(op.shell_id, None)  # `close` may have been first
                raise
            self._sweep_later()
        return session.answer(op.op_id)

    async def io(self, op: ShellIo) -> ShellOutput:
        """Perform a request of a shell. Raises Refusal: notFound, badRequest."""
        session = self._shells.get(op.shell_id)
        if session is None:
            raise Refusal("notFound", GONE)
        return await session.io(op)

    def _check_count(self, token: Token) -> None:
        uid = split_jid(token.jid)[0]
        own = sum(split_jid(s.token.jid)[0] == uid for s in self._shells.values())
        if own >= MAX_OF_USER or len(self._shells) >= MAX_SHELLS:
            raise Refusal(
                "tooManyRequests",
                f"{own} shells of {uid} and {len(self._shells)} of all users are open here already;"
                " leave one of them, then try again",
            )

    def live(self) -> list[ShellSession]:
        return [s for s in self._shells.values() if s.exit is None]

    def close(self) -> None:
        """Hang up all shells."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for session in self._shells.values():
            session.hang_up()
        self._shells.clear()

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(self._idle_secs / 4, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = asyncio.get_running_loop().time()
        for id_, session in list(self._shells.items()):
            if now - session.used < self._idle_secs:
                continue
            if session.exit is None:
                session.hang_up()
            else:
                del self._shells[id_]
        if self._shells:
            self._sweep_later()
