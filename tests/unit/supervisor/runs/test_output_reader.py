"""Output of a run from the evidence while no agent is up: which task is read, and when no more
output can follow.
"""

import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.api.requests import JobLog
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.status import PURGED
from jobscribe.supervisor.runs.output_reader import OutputReader, asked_for


class Evidence:
    """A driver with one line of output for each task."""

    async def evidence(
        self, key: Any, token: Any, name: str, offset: int, limit: int
    ) -> tuple[bytes, int]:
        data = (
            b""
            if name.endswith(".dropped")
            else f"{token.attempt} {token.role}/{token.index}".encode()
        )
        return data[offset : offset + limit], len(data)


@pytest.fixture
def outputs() -> OutputReader:
    return OutputReader(SimpleNamespace(connections={}), {"local": Evidence()}, os.urandom)  # type: ignore[arg-type, dict-item]


@pytest.fixture
def stage(kit):
    """Three tasks: one is running, one failed and is held for debugging, one has not started."""
    stage = kit.Stage(nodes={"local": (kit.node(cpu=4),)})
    first, second, _ = stage.placed(kit.role("a", 2), kit.role("b"), debug_secs=60.0)
    stage.reports(
        kit.running(first),
        kit.running(second),
        kit.ended(second, 3),
        key=kit.key_of(kind="parallel"),
    )
    return stage


def log(kit, **fields: Any) -> JobLog:
    return JobLog(uid=kit.UID, compute_jid=kit.jid_of(), **fields)


@pytest.mark.parametrize(
    ("role", "index", "end"), [("a", 0, False), ("a", 1, True), ("b", 0, False)]
)
async def test_nothing_follows_from_a_task_that_is_kept(
    kit, stage, outputs: OutputReader, role: str, index: int, end: bool
) -> None:
    chunk = await outputs.read(stage.job(), log(kit, role=role, index=index))
    assert (chunk.data, chunk.end) == (f"1 {role}/{index}".encode(), end)


async def test_of_a_purged_run_nobody_reads_files_that_were_left(
    kit, stage, outputs: OutputReader
) -> None:
    job = stage.job()
    assert job.run is not None
    purged = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, status=PURGED))
    chunk = await outputs.read(purged, log(kit, role="a", index=1))
    assert (chunk.data, chunk.next_offset, chunk.end) == (b"", 0, True)


def test_without_a_role_it_is_the_task_that_stands_for_the_attempt(kit, stage) -> None:
    assert (task := asked_for(stage.job(), log(kit))) is not None and (
        task.token.role,
        task.token.index,
    ) == ("a", 1)
    for fields in ({"role": "c"}, {"role": "a", "index": 2}, {"role": "a", "attempt": 2}):
        with pytest.raises(Refusal) as e:
            asked_for(stage.job(), log(kit, **fields))
        assert e.value.code == "notFound"
