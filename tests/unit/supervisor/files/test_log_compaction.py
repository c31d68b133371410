"""The supervisor compacts its log from time to time in another process, and reports a failure."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jobscribe.db.maintenance import trimmed_jobs
from jobscribe.db.maintenance.online_compaction import new_path
from jobscribe.supervisor.files import log_compaction
from jobscribe.supervisor.files.log_compaction import EVENTS, LogCompaction


@pytest.mark.process
async def test_a_log_that_grew_is_compacted_once_and_a_failure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_compaction, "_FIRST_SECS", 0.0)
    monkeypatch.setattr(log_compaction, "EVERY_SECS", 0.01)
    program, calls = tmp_path / "python", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\necho no luck >&2\nexit 1\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "db").mkdir()
    new_path(tmp_path).write_text("left by a killed process")
    head = EVENTS - 1
    store = SimpleNamespace(head=lambda: head)
    compaction = LogCompaction(
        store,  # type: ignore[arg-type]
        MagicMock(),
        lambda: 1.0,
        root=tmp_path,
        older_than_secs=86_400.0,
        reload=lambda jids: pytest.fail("nothing was trimmed"),
    )
    compaction.start()
    assert not new_path(tmp_path).exists()
    await asyncio.sleep(0.05)
    assert not calls.exists(), "few new events"
    head = EVENTS
    while not compaction.state.failed:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    await compaction.close()
    assert (compaction.state.failed, compaction.state.last_error) == (1, "no luck")
    (call,) = calls.read_text().splitlines()
    assert call == f"-m jobscribe.cli --root {tmp_path} db compact --no-keep --older-than 1.0"


async def test_trimmed_jobs_are_read_again_also_by_the_next_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list goes only when the records are on the disk: not while a job cannot be read."""
    monkeypatch.setattr(log_compaction, "SETTLED_SECS", 0.0)
    monkeypatch.setattr(log_compaction, "_AGAIN_SECS", 0.0)
    (tmp_path / "db").mkdir()
    jids = [f"user-sim{n}-command" for n in range(120)]
    trimmed_jobs.write(tmp_path, 7, jids)
    trimmed_jobs.write(tmp_path, 8, [])
    (tmp_path / "db" / "events.sqlite.trimmed-9").write_text("not a list")
    assert len(trimmed_jobs.read(tmp_path)) == 2
    read: list[str] = []
    left, tries = 1, 0

    def reload(some: Iterable[str]) -> int:
        nonlocal tries
        read.extend(some)
        tries += 1
        return left

    compaction = LogCompaction(
        None, MagicMock(), lambda: 1.0, root=tmp_path, older_than_secs=None, reload=reload
    )
    compaction.start()
    for _ in range(50):
        await asyncio.sleep(0)
    assert read == jids and tries > 10 and len(trimmed_jobs.read(tmp_path)) == 2
    left = 0
    for _ in range(50):
        await asyncio.sleep(0)
    assert trimmed_jobs.read(tmp_path) == {}
    await compaction.close()
