"""The far end of a relayed shell: a real shell in a real pseudo terminal."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.agent.shells.pty_process import PtyProcess
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.inspection import Program
from jobscribe.protocol.wire.messages import OpenShell, ShellIo, ShellOutput
from jobscribe.runtime.shells import session
from jobscribe.runtime.shells.session import ShellSession, ShellTable

pytestmark = pytest.mark.process

TOKEN = Token("ann00001-sim00001-command", 1, 1, "main", 0)
OTHER = Token("ann00001-sim00001-command", 1, 1, "main", 1)
ID = "s" * 32
OP = "o" * 32


class User:
    """Types into a shell and reads its output."""

    def __init__(self) -> None:
        self.table = ShellTable(self._start)
        self.sent = self.offset = 0
        self.said = b""

    async def _start(self, op: OpenShell, session: ShellSession) -> PtyProcess:
        env = {"PATH": "/usr/bin:/bin", "PS1": "", "TERM": op.term}
        return await PtyProcess.spawn(["/bin/sh", "-i"], env, op.rows, op.cols, session)

    async def io(self, **fields: object) -> ShellOutput:
        return await self.table.io(ShellIo(op_id=OP, shell_id=ID, **fields))  # type: ignore[arg-type]

    async def type(self, text: bytes) -> None:
        self.sent = (await self.io(input_at=self.sent, input=text)).input_at

    async def read(self) -> ShellOutput:
        answer = await self.io(offset=self.offset, limit=4096, wait_secs=20.0)
        self.said += answer.data
        self.offset = answer.offset + len(answer.data)
        return answer

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(30):
            while text not in self.said:
                assert not (await self.read()).end, self.said


async def test_size_resize_interrupt_repeats_and_exit_code() -> None:
    user = User()
    opening = OpenShell(op_id=OP, token=TOKEN, shell_id=ID, term="dumb", rows=30, cols=100)
    await user.table.open(opening)
    await user.table.open(opening)
    assert len(user.table) == 1
    with pytest.raises(Refusal, match="another shell"):
        await user.table.open(OpenShell(op_id=OP, token=OTHER, shell_id=ID))
    await user.type(b"stty size\n")
    await user.until(b"30 100\r\n")
    await user.io(rows=41, cols=123)
    await user.type(b"stty size\n")
    await user.until(b"41 123\r\n")
    # the process in the foreground says so itself, so that the signal is for it
    await user.type(b"sh -c \"echo sl''eeps; exec sleep 1000\"\n")
    await user.until(b"sleeps\r\n")
    await user.type(b"\x03")
    at = user.sent
    await user.type(b"echo on''ce\n")
    user.sent = at  # a repeated request types nothing again
    await user.type(b"echo on''ce\n")
    await user.until(b"once\r\n")
    await user.type(b"exit 7\n")
    async with asyncio.timeout(30):
        while not (last := await user.read()).end:
            pass
    assert (last.code, last.signal) == (7, None)
    assert user.said.count(b"once\r\n") == 1
    assert (await user.io(offset=user.offset, limit=1)).code == 7, "the end may be asked for again"
    user.table.close()


async def test_a_hangup_ends_the_shell() -> None:
    user = User()
    await user.table.open(OpenShell(op_id=OP, token=TOKEN, shell_id=ID))
    await user.type(b"echo be''gun\n")
    await user.until(b"begun\r\n")
    await user.io(input_at=user.sent, close=True)
    async with asyncio.timeout(30):
        while not (last := await user.read()).end:
            pass
    assert last.signal is not None or last.code is not None
    user.table.close()


async def test_a_program_gets_no_input() -> None:
    user = User()
    opening = OpenShell(op_id=OP, token=TOKEN, shell_id=ID, program=Program(name="stacks"))
    await user.table.open(opening)
    await user.type(b"exit 7\n")
    assert user.sent == 7, "it is dropped, not sent again"
    await user.io(input_at=user.sent, close=True)
    async with asyncio.timeout(30):
        while not (last := await user.read()).end:
            pass
    assert last.code != 7 and b"exit" not in user.said, (last, user.said)
    user.table.close()


async def test_each_user_of_a_driver_has_shells_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "MAX_OF_USER", 2)
    monkeypatch.setattr(session, "MAX_SHELLS", 5)

    async def start(op: OpenShell, of: ShellSession) -> Any:
        return SimpleNamespace(hang_up=lambda: None)

    table = ShellTable(start)

    async def opened(uid: str) -> bool:
        op = OpenShell(
            op_id="o" * 32,
            token=Token(f"{uid}-sim00001-command", 1, 1, "main", 0),
            shell_id=f"{len(table):032}",
        )
        try:
            await table.open(op)
        except Refusal as e:
            assert e.code == "tooManyRequests" and uid in e.sentence
            return False
        return True

    users = ("user0001", "user0002", "user0003")
    counts = [[await opened(uid) for _ in range(3)].count(True) for uid in users]
    assert counts == [2, 2, 1] and len(table) == 5
    table.close()
