"""Samples of batch jobs, from the files that their scripts write."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from jobscribe.agent.batch import usage as module
from jobscribe.agent.batch.usage import BatchUsage
from jobscribe.agent.slurm.usage_script import USAGE_LOG
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.messages import Samples

JID = "ann00001-sim00001-command"


def token(index: int) -> Token:
    return Token(JID, 1, 1, "main", index)


async def test_each_new_sample_is_sent_once_with_the_processor_use_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECS", 0.001)
    folders = [tmp_path / str(n) for n in range(4)]
    for folder in folders:
        folder.mkdir()
    sent: asyncio.Queue[Samples] = asyncio.Queue()
    live = [(token(n), str(folder)) for n, folder in enumerate(folders)]
    usage = BatchUsage(lambda: live, sent.put_nowait)
    # a link to a file of another user, and a pipe that nobody writes
    (folders[1] / USAGE_LOG).symlink_to("/etc/passwd")
    os.mkfifo(folders[2] / USAGE_LOG)
    log = folders[0] / USAGE_LOG
    log.write_text("100 1.00 5000 0 0 1\n")
    running = asyncio.ensure_future(usage.run())
    async with asyncio.timeout(30):
        (first,) = (await sent.get()).samples
        log.write_text("100 1.00 5000 0 0 1\n110 16.00 6000 7 8 2\n")
        (second,) = (await sent.get()).samples
        # what is not complete yet is not read
        log.write_text("110 16.00 6000 7 8 2\n120 17.0")
        await asyncio.sleep(0.02)
        log.write_text("110 16.00 6000 7 8 2\n120 17.00 1 7 8 2\n")
        (third,) = (await sent.get()).samples
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert (first.at, first.cpu_percent, first.memory_bytes) == (100.0, None, 5000)
    assert (second.at, second.cpu_percent, second.cpu_secs) == (110.0, 150.0, 16.0)
    assert (second.read_bytes, second.written_bytes, second.processes) == (7, 8, 2)
    assert (third.at, third.cpu_percent) == (120.0, 10.0)
    assert sent.empty() and {first.token, second.token} == {token(0)}


def test_the_nodes_of_a_job_are_summed_up_once_each_has_a_new_sample(tmp_path: Path) -> None:
    usage = BatchUsage(list, lambda _: None)
    task = [(token(0), str(tmp_path))]
    one, two = tmp_path / "usage.0.2.log", tmp_path / "usage.1.2.log"
    (tmp_path / "usage.x.2.log").write_text("900 1.00 1 1 1 1\n")
    one.write_text("100 1.00 5000 0 0 1\n")
    assert usage._read(task) == [], "the sum of a part of the nodes is too small"
    two.write_text("104 2.00 6000 1 2 3 2 150 8\n")
    (first,) = usage._read(task)
    assert (first.at, first.cpu_percent, first.memory_bytes) == (104.0, None, 11000)
    assert (first.gpu_percent, first.gpu_memory_bytes) == (75.0, 8 * 2**20)
    one.write_text("100 1.00 5000 0 0 1\n110 6.00 5000 0 0 1 1 30 1\n")
    assert usage._read(task) == []
    two.write_text("104 2.00 6000 1 2 3\n114 3.00 6000 1 2 3 2 150 8\n")
    (second,) = usage._read(task)
    assert (second.at, second.cpu_percent, second.cpu_secs) == (114.0, 60.0, 9.0)
    assert (second.processes, second.gpu_percent, second.gpu_memory_bytes) == (4, 60.0, 9 * 2**20)
    assert usage._read(task) == []
    # a node that is lost has no part in later sums
    one.write_text("300 7.00 5000 0 0 1\n310 8.00 5000 0 0 1\n")
    (third,) = usage._read(task)
    assert (third.at, third.memory_bytes, third.cpu_percent) == (310.0, 5000, 10.0)
