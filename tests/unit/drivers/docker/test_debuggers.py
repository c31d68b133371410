"""Stops of tasks in containers: records that a user's code may have made, read by a supervisor with
more rights. Sessions are tested with real containers (tests/docker/test_pool_site.py).
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.drivers import untrusted_files
from jobscribe.drivers.docker.tasks.debuggers import ContainerDebuggers
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.wire.messages import (
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    ListStops,
    Stops,
)

PLACE = AgentKey("docker", "container", "aaaaaaaa", "h1")
TOKEN = Token("aaaaaaaa-bbbbbbbb-m", 1, 1, "solver", 0)
RECORD = {
    "kind": "breakpoint",
    "file": "/x/solve.py",
    "line": 7,
    "function": "solve\u202e",
    "error": "",
    "pid": 12,
    "host": "solver-0",
    "since": 1.0,
    "until": 2.0,
    "attached": False,
    "folder": "/e/debug",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "agent" / str(PLACE) / "run" / TOKEN.name / "debug"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def debuggers(tmp_path: Path) -> ContainerDebuggers:
    driver: Any = SimpleNamespace(root=tmp_path, engines={})
    return ContainerDebuggers(driver, None)  # type: ignore[arg-type]


async def listed(debuggers: ContainerDebuggers) -> list[str]:
    found = await debuggers.answer(PLACE, ListStops(op_id="o", tokens=(TOKEN,)))
    assert isinstance(found, Stops) and not found.more
    return [stop.name for _, stop in found.found]


async def test_only_records_in_the_folder_of_the_task_are_read(
    debuggers: ContainerDebuggers, folder: Path, tmp_path: Path
) -> None:
    (folder / "12-1.json").write_text(json.dumps(RECORD))
    (folder / "13-1.json").write_text(json.dumps({**RECORD, "line": "seven"}))
    (folder / "14-1.json").write_bytes(b"\xff" * 100)
    (folder / "15-1.json").write_text(" " * 70_000 + json.dumps(RECORD))
    (folder / "other.json").write_text(json.dumps(RECORD))
    os.mkfifo(folder / "16-1.json")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "17-1.json").write_text(json.dumps(RECORD))
    (folder / "17-1.json").symlink_to(theirs / "17-1.json")
    os.link(theirs / "17-1.json", folder / "18-1.json")
    found = await debuggers.answer(PLACE, ListStops(op_id="o", tokens=(TOKEN,)))
    assert isinstance(found, Stops)
    ((token, stop),) = found.found
    assert (token, stop.name, stop.line, stop.host) == (TOKEN, "12-1", 7, "solver-0")
    assert stop.function.isprintable()

    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert await listed(debuggers) == []
    folder.symlink_to(theirs)
    assert await listed(debuggers) == [], "no link is followed"
    assert untrusted_files.names(folder.parent, ["debug"], 9) == []
    assert untrusted_files.names(theirs.parent, ["theirs"], 9) == ["17-1.json"]


async def test_a_session_that_cannot_begin_or_is_over_is_a_sentence(
    debuggers: ContainerDebuggers, folder: Path
) -> None:
    asked = AttachDebugger(op_id="o", token=TOKEN, name="12-1", session="s" * 32)
    with pytest.raises(Refusal, match="does not wait for a debugger any more"):
        await debuggers.answer(PLACE, asked)
    (folder / "12-1.json").write_text(json.dumps(RECORD))
    with pytest.raises(Refusal, match="host h1 cannot be reached now"):
        await debuggers.answer(PLACE, asked)
    answer = await debuggers.answer(PLACE, DebuggerIo(op_id="o", session="s" * 32, limit=1))
    assert answer == DebuggerOutput(op_id="o", end=True, reason="the session is over")
