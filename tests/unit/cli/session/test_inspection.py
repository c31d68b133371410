"""The command line reads the messages of programs in tasks."""

import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobscribe.cli.session import inspection as module
from jobscribe.cli.session.inspection import Inspection, decoded, nodes_of, select
from jobscribe.client.api.errors import ClientError
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.inspection import Program

JID = "ann00001-sim00001-command"


class Client:
    """A supervisor with these tasks and this output, in pieces."""

    def __init__(self, *pieces: bytes, tasks: Any = ()) -> None:
        self._pieces, self._at, self._tasks = list(pieces), 0, tasks

    def tasks(self, jid: str, attempt: int) -> dict[str, Any]:
        return {"tasks": list(self._tasks), "attempt": 2}

    def open_shell(self, jid: str, id_: str | None, **options: Any) -> dict[str, Any]:
        return {"shellId": "s" * 32}

    def use_shell(self, jid: str, id_: str, *, offset: int, **more: Any) -> dict[str, Any]:
        assert offset == self._at
        data = self._pieces.pop(0) if self._pieces else b""
        self._at += len(data)
        text = base64.b64encode(data).decode()
        return {"data": text, "offset": offset, "end": not self._pieces, "code": 0}


def session(client: Client) -> Any:
    return SimpleNamespace(client_for=lambda jid: client)


def test_records_are_read_from_a_terminal_with_other_output() -> None:
    pieces = (
        b'srun: hello\r\n{"type": "a", "n',
        b'": 1}\r\n[1]\n{"no": 2}\n\xff\n',
        b'{"type": "end"}',
    )
    task = {"role": "main", "index": 0}
    inspection = Inspection(cast(Any, Client(*pieces)), JID, task, 1, Program(name="stacks"))
    assert [r for r in inspection.records() if r] == [{"type": "a", "n": 1}, {"type": "end"}]
    assert inspection.noise.startswith("srun: hello\n[1]\n")
    lost = inspection.lost()
    assert isinstance(lost, ClientError) and "srun: hello" in lost.sentence
    inspection.noise = "jobscribe: there is no Python 3.8 or later where the task runs\n"
    assert isinstance(none := inspection.lost(), ClientError) and "image" in none.advice


def test_samples_are_bounded_and_nonsense_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_BYTES", 1000)

    def packed(text: bytes) -> dict[str, Any]:
        return {"data": base64.b64encode(zlib.compress(text)).decode()}

    assert decoded(packed(b"a;b 1\n")) == b"a;b 1\n"
    assert decoded(packed(b"a 11\n" * 1000)) == b"a 11\n" * 200
    for nonsense in ({}, {"data": "!"}, {"data": "YWJj"}, {"data": None}):
        assert decoded(nonsense) == b""


def test_a_task_is_selected_by_its_name_or_as_the_only_one_that_runs() -> None:
    def task(role: str, index: int, state: str = "running") -> dict[str, Any]:
        return {"role": role, "index": index, "state": state}

    some = [task("a-1", 0), task("a", 1, "failed"), task("a", 10)]
    assert select(session(Client(tasks=some)), JID, "a-10") == (some[2], 2)
    assert select(session(Client(tasks=some)), JID, "a-1/0") == (some[0], 2)
    assert select(session(Client(tasks=some[:2])), JID, None) == (some[0], 2)
    assert select(session(Client(tasks=some)), JID, "a") == (some[2], 2)
    for name, said in ((None, "a-1-0, a-10"), ("b-0", "a-1-0, a-1, a-10"), ("a/1", "failed")):
        with pytest.raises(Refusal, match=said):
            select(session(Client(tasks=some)), JID, name)


def test_a_job_that_has_ended_is_told_from_one_that_has_not_started() -> None:
    def refusal(state: str, *tasks: str) -> Refusal:
        client = Client(tasks=[{"role": "a", "index": 0, "state": task} for task in tasks])
        answer = {**client.tasks(JID, 0), "state": state}
        client.tasks = lambda jid, attempt: answer  # type: ignore[method-assign]
        with pytest.raises(Refusal) as e:
            select(session(client), JID, None)
        return e.value

    for waits in (refusal("pending"), refusal("running", "placed"), refusal("running", "placed")):
        assert waits.code == "notReady" and waits.body()["retry"] is True
    for over in (
        refusal("completed", "succeeded"),
        refusal("canceled"),
        refusal("running", "held"),
        refusal("running", "failed", "stopped"),
    ):
        assert over.code == "alreadyEnded" and "has ended" in over.sentence, over.sentence
        advice = str(over.body()["advice"])
        for command in ("job logs", "core list", "profile list"):
            assert f"jobscribe {command} {JID}" in advice


def test_each_node_of_a_slurm_task_is_inspected_or_the_one_that_its_user_names() -> None:
    task = {"host": "n[1-2],login", "agentKey": "sbatch.parallel.ann00001@lab"}
    assert nodes_of(task, None) == ["n1", "n2", "login"]
    assert nodes_of(task, "n2") == ["n2"]
    for wrong in ("n3", "n[1-2]"):
        with pytest.raises(Refusal, match=r"runs on n\[1-2\],login"):
            nodes_of(task, wrong)
    one = {**task, "host": "n1"}
    assert nodes_of(one, None) == nodes_of(one, "n1") == [None]
    for other in ({"host": None}, {"host": "a,b", "agentKey": "local.parallel.ann00001@here"}):
        assert nodes_of(other, None) == [None]
