"""Open shells of the supervisor: the order of records."""

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jobscribe.db.events.events import ShellClosed, ShellOpened
from jobscribe.db.events.state import Attempt, Task
from jobscribe.protocol.api.requests import ShellOpen, ShellUse
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, AgentKind, Token
from jobscribe.protocol.jobs.inspection import Program
from jobscribe.protocol.wire.messages import OpenShell, ShellIo, ShellOutput
from jobscribe.supervisor.access.principal import Principal
from jobscribe.supervisor.runs import shells as module
from jobscribe.supervisor.runs.shells import Shells

JID = "ann00001-sim00001-command"
WHO: dict[str, Any] = {"uid": "ann00001", "compute_jid": JID, "shell_id": "s" * 32}


class FarEnd:
    """A driver that knows a shell when it has opened it, and the audit trail."""

    def __init__(self) -> None:
        self.known, self.ready = False, asyncio.Event()
        self.records: list[object] = []

    async def append(self, event: object) -> None:
        self.records.append(event)
        await self.ready.wait()

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        if isinstance(op, OpenShell):
            self.known = True
        elif not self.known:
            raise Refusal("notFound", "unknown")
        return ShellOutput(op_id=op.op_id)


@pytest.mark.parametrize(
    ("kind", "ssh", "said"),
    [
        (AgentKind.PARALLEL, True, "has no container, so no sshd"),
        (AgentKind.CONTAINER, msgspec.UNSET, "without 'ssh: true'"),
        (AgentKind.CONTAINER, True, None),
    ],
)
def test_ssh_without_an_sshd_is_refused_with_the_shell_that_enters_the_task(
    kind: AgentKind, ssh: Any, said: str | None
) -> None:
    """The task is held: programs that need its processes are refused, a connection is not."""
    token = Token(JID, 1, 1, "main", 0)
    key = AgentKey("docker", kind, "ann00001", "here")
    task = Task(token=token, agent_key=key, op_id="o", placed_at=1.0)
    run = SimpleNamespace(
        status="running",
        spec=SimpleNamespace(ssh=ssh),
        attempts=(Attempt(number=1, tasks=(task,)),),
    )
    job = SimpleNamespace(jid=JID, run=run)
    runs = SimpleNamespace(job=lambda uid, jid: SimpleNamespace(job=job))
    shells = Shells(runs, {}, None, lambda: 1.0, bytes, enabled=True)  # type: ignore[arg-type]
    asked = ShellOpen(**WHO, program=Program(name="ssh"), role="main")
    if said is None:
        assert shells._task(asked) is task
        return
    with pytest.raises(Refusal, match=said) as refused:
        shells._task(asked)
    assert f"jobscribe job shell {JID} --role main --index 0" in refused.value.sentence


async def test_a_shell_that_is_used_while_it_opens_is_not_recorded_as_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = FarEnd()
    key = AgentKey("local", AgentKind.PARALLEL, "ann00001", "here")
    task = SimpleNamespace(agent_key=key, token=Token(JID, 1, 1, "main", 0), live=True, host=None)
    shells = Shells(None, {"local": far}, far, lambda: 1.0, bytes, enabled=True)  # type: ignore[arg-type, dict-item]
    monkeypatch.setattr(shells, "_task", lambda request: task)
    opens = asyncio.ensure_future(shells.open(Principal(), "", ShellOpen(**WHO)))
    while not far.records:
        await asyncio.sleep(0)
    uses = asyncio.ensure_future(shells.use(ShellUse(**WHO)))
    for _ in range(10):
        await asyncio.sleep(0)
    far.ready.set()
    await asyncio.gather(opens, uses)
    assert [type(r) for r in far.records] == [ShellOpened]
    assert shells.sizes() == {"shells": 1}
    await shells.close()


def test_a_program_runs_on_a_node_of_its_task_only() -> None:
    key = AgentKey("sbatch", AgentKind.PARALLEL, "ann00001", "lab")
    token = Token(JID, 1, 1, "main", 0)
    task = Task(token=token, agent_key=key, op_id="o", placed_at=1.0, host="n[1-2]")
    for node in (msgspec.UNSET, "n1", "n2"):
        module._check_node(ShellOpen(**WHO, program=Program(name="stacks", node=node)), task)
    module._check_node(ShellOpen(**WHO), task)
    for host, node in (("n[1-2]", "n3"), ("n[1", "n1"), (None, "n1")):
        asked = ShellOpen(**WHO, program=Program(name="stacks", node=node))
        with pytest.raises(Refusal, match=f"does not run on {node}"):
            module._check_node(asked, msgspec.structs.replace(task, host=host))


async def test_an_abandoned_shell_is_hung_up_and_then_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ABANDONED_SECS", 0.001)
    far, closes = FarEnd(), asyncio.Queue[ShellIo]()
    far.ready.set()
    key = AgentKey("local", AgentKind.PARALLEL, "ann00001", "here")
    task = SimpleNamespace(agent_key=key, token=Token(JID, 1, 1, "main", 0), live=True, host=None)

    async def shell(place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        if isinstance(op, ShellIo):
            assert [type(r) for r in far.records] == [ShellOpened]
            closes.put_nowait(op)
        return ShellOutput(op_id=op.op_id)

    far.shell = shell  # type: ignore[method-assign]
    shells = Shells(None, {"local": far}, far, lambda: 1.0, bytes, enabled=True)  # type: ignore[arg-type, dict-item]
    monkeypatch.setattr(shells, "_task", lambda request: task)
    await shells.open(Principal(), "", ShellOpen(**WHO, program=Program(name="profile")))
    async with asyncio.timeout(30):
        op = await closes.get()
        while shells.sizes()["shells"]:
            await asyncio.sleep(0.001)
    assert op.close and op.shell_id == WHO["shell_id"]
    assert isinstance(far.records[-1], ShellClosed) and far.records[-1].reason == "abandoned"
    ended = len(far.records)
    await shells._abandon(WHO["shell_id"])
    assert len(far.records) == ended, "a shell that ends meanwhile does not end the sweep"
    await shells.close()


class Typewriter:
    """A far end with output that is dropped when it is acknowledged, as `ShellSession` does."""

    def __init__(self) -> None:
        self.text, self.first, self.over = b"", 0, False
        self.change = asyncio.Event()

    async def append(self, event: object) -> None:
        pass

    def says(self, text: bytes, *, over: bool = False) -> None:
        self.text, self.over = self.text + text, over
        self.change.set()
        self.change = asyncio.Event()

    async def shell(self, place: AgentKey, op: OpenShell | ShellIo) -> ShellOutput:
        if isinstance(op, OpenShell):
            return ShellOutput(op_id=op.op_id)
        assert self.first <= op.offset <= len(self.text), "what is acknowledged is gone"
        self.first = op.offset
        while len(self.text) == op.offset and not self.over:
            await self.change.wait()
        data = self.text[op.offset :][: op.limit]
        return ShellOutput(
            op_id=op.op_id,
            offset=op.offset,
            data=data,
            end=self.over and op.offset + len(data) == len(self.text),
            code=3 if self.over else None,
        )


async def _typewriter(monkeypatch: pytest.MonkeyPatch) -> tuple[Typewriter, Shells]:
    far = Typewriter()
    key = AgentKey("local", AgentKind.PARALLEL, "ann00001", "here")
    task = SimpleNamespace(agent_key=key, token=Token(JID, 1, 1, "main", 0), live=True, host=None)
    shells = Shells(None, {"local": far}, far, lambda: 1.0, bytes, enabled=True)  # type: ignore[arg-type, dict-item]
    monkeypatch.setattr(shells, "_task", lambda request: task)
    await shells.open(Principal(), "", ShellOpen(**WHO))
    return far, shells


def _stream(shells: Shells, offset: int, uid: str = WHO["uid"]) -> Any:
    return shells.output(uid, JID, WHO["shell_id"], offset)


async def test_a_stream_continues_where_the_page_lost_it_and_ends_with_the_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far, shells = await _typewriter(monkeypatch)
    lost = _stream(shells, 0)
    assert (await anext(lost))["data"] == "", "at once, so that the page knows that it is there"
    far.says(b"one two ")
    part = await anext(lost)
    assert (part["offset"], part["data"]) == (0, base64.b64encode(b"one two ").decode())
    waits = asyncio.ensure_future(anext(lost))
    while far.first != 8:
        await asyncio.sleep(0)
    # only "one " has arrived; the lost stream takes nothing from the new one
    newer = _stream(shells, 4)
    part = await anext(newer)
    assert (part["offset"], part["data"]) == (4, base64.b64encode(b"two ").decode())
    more = asyncio.ensure_future(anext(newer))
    await asyncio.sleep(0)
    far.says(b"three", over=True)
    part = await more
    assert (part["offset"], part["end"], part["code"]) == (8, True, 3)
    assert base64.b64decode(part["data"]) == b"three"
    for stream in (waits, anext(newer)):
        with pytest.raises(StopAsyncIteration):
            await stream
    assert shells.sizes() == {"shells": 0}


async def test_a_stream_says_which_bytes_are_missing_and_is_for_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REPLAY_BYTES", 6)
    far, shells = await _typewriter(monkeypatch)
    with pytest.raises(Refusal, match="the shell has ended"):
        await anext(_stream(shells, 0, "bob00001"))
    first = _stream(shells, 0)
    await anext(first)
    far.says(b"0123456789")
    await anext(first)
    part = await anext(_stream(shells, 1))
    assert (part["offset"], base64.b64decode(part["data"])) == (4, b"456789")


async def test_two_requests_at_once_both_get_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    far, shells = await _typewriter(monkeypatch)
    far.says(b"no sshd", over=True)
    end = await shells.use(ShellUse(**WHO, offset=7, limit=0))
    assert (end["end"], end["code"], shells.sizes()) == (True, 3, {"shells": 0})
    again = await shells.use(ShellUse(**WHO, offset=7, limit=100))
    assert (again["end"], again["code"]) == (True, 3)
    with pytest.raises(Refusal, match="has ended"):
        await shells.use(ShellUse(**{**WHO, "uid": "bob00001"}, offset=7, limit=100))
    await shells.close()
