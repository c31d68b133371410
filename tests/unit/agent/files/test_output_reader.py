"""Output readers: they get every stored byte once and in order, the count of dropped bytes, and the
end last.
"""

import asyncio
import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest

from jobscribe.agent.files import output_reader as module
from jobscribe.agent.files.folder_watch import Folders
from jobscribe.agent.files.output_reader import Evidence
from jobscribe.drivers import untrusted_files

NAME = "user1234-sim12345-command-1-1-main-0"


class Running:
    """A callable that returns whether the execution has ended."""

    over = False

    def __call__(self) -> bool:
        return self.over


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).mkdir()
    return tmp_path


@pytest.fixture
def log(folder: Path) -> Path:
    path = folder / NAME / "stdout.log"
    path.touch()
    return path


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as f:
        f.write(data)


async def test_what_is_there_is_read_from_any_offset(
    folder: Path, log: Path, running: Running
) -> None:
    _append(log, b"0123456789")
    evidence = Evidence(folder)
    assert await evidence.read(NAME, "stdout", 0, 4, 0, running) == (b"0123", 0, 4, 0, False)
    assert await evidence.read(NAME, "stdout", 4, 100, 0, running) == (b"456789", 4, 10, 0, False)
    assert await evidence.read(NAME, "stdout", 10, 100, 0, running) == (b"", 10, 10, 0, False)
    running.over = True
    assert await evidence.read(NAME, "stdout", 4, 100, 0, running) == (b"456789", 4, 10, 0, True)
    assert await evidence.read(NAME, "stdout", 4, 2, 0, running) == (b"45", 4, 6, 0, False)
    assert await evidence.read(NAME, "stdout", 10, 100, 5, running) == (b"", 10, 10, 0, True)
    assert evidence.size(NAME, "stdout") == 10 and evidence.size(NAME, "stderr") == 0


async def test_a_reader_waits_for_more_and_gets_it_at_once(
    folder: Path, log: Path, running: Running
) -> None:
    evidence = Evidence(folder)
    reader = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 30, running))
    await asyncio.sleep(0.1)
    assert not reader.done()
    _append(log, b"news\n")
    assert await asyncio.wait_for(reader, 5) == (b"news\n", 0, 5, 0, False)


async def test_a_change_is_told_and_not_looked_for(
    folder: Path, log: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polling is almost off, so only inotify can report the change."""
    monkeypatch.setattr(module, "_LOOK_AGAIN_SECS", 1000)
    evidence = Evidence(folder)
    reader = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 1000, running))
    await asyncio.sleep(0.1)
    _append(log, b"news\n")
    assert (await asyncio.wait_for(reader, 5)).data == b"news\n"


async def test_a_folder_that_cannot_be_watched_is_looked_at(
    folder: Path, log: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folders, "_open", lambda self: False)
    evidence = Evidence(folder)
    reader = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 30, running))
    await asyncio.sleep(0.1)
    _append(log, b"news\n")
    assert (await asyncio.wait_for(reader, 5)).data == b"news\n"


async def test_the_wait_ends_when_its_time_is_over(
    folder: Path, log: Path, running: Running
) -> None:
    begin = time.monotonic()
    assert await Evidence(folder).read(NAME, "stdout", 0, 100, 0.3, running) == (
        b"",
        0,
        0,
        0,
        False,
    )
    assert 0.3 <= time.monotonic() - begin < 5


async def test_the_end_is_told_to_who_waits(folder: Path, log: Path, running: Running) -> None:
    evidence = Evidence(folder)
    by_session = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 30, running))
    await asyncio.sleep(0.05)
    running.over = True
    assert (await asyncio.wait_for(by_session, 5)).end
    running.over = False
    by_evidence = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 30, running))
    await asyncio.sleep(0.05)
    (folder / NAME / "exit.json").write_text("{}")
    assert (await asyncio.wait_for(by_evidence, 5)).end


async def test_an_execution_that_the_agent_forgot_is_over_if_it_has_evidence(
    folder: Path, log: Path
) -> None:
    for name, end in ((NAME, True), ("on-its-way-here", False)):
        chunk = await Evidence(folder).read(name, "stdout", 0, 100, 0, lambda: None)
        assert chunk.end is end


async def test_output_that_its_keeper_is_about_to_use_again_is_empty(
    folder: Path, log: Path, running: Running
) -> None:
    fd = os.open(log, os.O_RDWR)
    try:
        os.ftruncate(fd, 0)
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        chunk = await Evidence(folder).read(NAME, "stdout", 0, 100, 0, running)
        assert chunk == (b"", 0, 0, 0, False)
        assert untrusted_files.read(folder, (NAME, "stdout.log"), 0, 100) == (b"", 0)
    finally:
        os.close(fd)


async def test_the_last_line_comes_before_the_end(folder: Path, log: Path) -> None:
    """The execution writes its last line and ends during a read. The reader gets the line before
    the end.
    """

    class Late(Running):
        def __call__(self) -> bool:
            if not self.over:  # a reader that takes the size before this call would miss the line
                _append(log, b"last line\n")
                self.over = True
            return True

    assert await Evidence(folder).read(NAME, "stdout", 0, 100, 0, Late()) == (
        b"last line\n",
        0,
        10,
        0,
        True,
    )


async def test_what_never_started_has_no_output_and_an_end(folder: Path, running: Running) -> None:
    running.over = True
    assert await Evidence(folder).read("never", "stderr", 0, 100, 5, running) == (
        b"",
        0,
        0,
        0,
        True,
    )


async def test_a_reader_may_come_before_the_execution(tmp_path: Path, running: Running) -> None:
    evidence = Evidence(tmp_path)
    reader = asyncio.create_task(evidence.read(NAME, "stdout", 0, 100, 30, running))
    await asyncio.sleep(0.1)
    (tmp_path / NAME).mkdir()
    await asyncio.sleep(0.1)
    _append(tmp_path / NAME / "stdout.log", b"first\n")
    assert (await asyncio.wait_for(reader, 5)).data == b"first\n"


def _drop(log: Path, first: int, behind: int) -> None:
    log.with_name(log.name + ".dropped").write_text(json.dumps({"from": first, "to": behind}))
    with log.open("r+b") as f:
        f.seek(first)
        f.write(b"\0" * (behind - first))


async def test_what_was_dropped_is_skipped_and_counted(
    folder: Path, log: Path, running: Running
) -> None:
    _append(log, b"h" * 10 + b"m" * 100 + b"t" * 10)
    _drop(log, 10, 110)
    evidence = Evidence(folder)
    assert await evidence.read(NAME, "stdout", 0, 1000, 0, running) == (b"h" * 10, 0, 10, 0, False)
    assert await evidence.read(NAME, "stdout", 10, 1000, 0, running) == (
        b"t" * 10,
        110,
        120,
        100,
        False,
    )
    assert await evidence.read(NAME, "stdout", 60, 1000, 0, running) == (
        b"t" * 10,
        110,
        120,
        50,
        False,
    )
    assert await evidence.read(NAME, "stdout", 115, 1000, 0, running) == (
        b"t" * 5,
        115,
        120,
        0,
        False,
    )
    running.over = True
    assert (await evidence.read(NAME, "stdout", 10, 1000, 0, running)).end


@pytest.mark.parametrize(
    "note",
    [
        None,
        "many",
        '{"from": 0, "to": "many"}',
        '{"from": 0, "to": 1e999}',
        '{"from": 0, "to": 1' + "0" * 40 + "}",
        "[" * 200_000,
        '{"from": 9}',
    ],
)
async def test_a_note_that_a_job_wrote_itself_holds_nobody_up(
    folder: Path, log: Path, running: Running, note: str | None
) -> None:
    """`note` is the content of the file, or None for a pipe without a writer."""
    _append(log, b"its output")
    path = log.with_name(log.name + ".dropped")
    if note is None:
        os.mkfifo(path)
    else:
        path.write_text(note)
    assert (
        await asyncio.wait_for(Evidence(folder).read(NAME, "stdout", 0, 1000, 0, running), 5)
    ).data == b"its output"


async def test_a_hole_that_is_punched_while_it_is_read_is_not_taken_for_output(
    folder: Path,
    log: Path,
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _append(log, b"h" * 10 + b"m" * 100 + b"t" * 10)
    pread = os.pread

    def punched_meanwhile(fd: int, length: int, offset: int) -> bytes:
        monkeypatch.setattr(os, "pread", pread)
        _drop(log, 10, 110)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", punched_meanwhile)
    evidence = Evidence(folder)
    assert await evidence.read(NAME, "stdout", 0, 1000, 0, running) == (b"h" * 10, 0, 10, 0, False)


async def test_a_read_is_bounded(folder: Path, log: Path, running: Running) -> None:
    with log.open("r+b") as f:
        f.truncate(10_000_000)
    assert (
        len((await Evidence(folder).read(NAME, "stdout", 0, 10**9, 0, running)).data)
        == module.MAX_READ
    )


async def test_many_readers_of_many_executions_share_one_descriptor_and_give_it_all_back(
    tmp_path: Path, running: Running
) -> None:
    evidence = Evidence(tmp_path)
    for n in range(20):
        (tmp_path / f"{n}").mkdir()
        (tmp_path / f"{n}" / "stdout.log").touch()
    before = len(os.listdir("/proc/self/fd"))
    readers = [
        asyncio.create_task(evidence.read(f"{n % 20}", "stdout", 0, 100, 30, running))
        for n in range(60)
    ]
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for n in range(20):
        _append(tmp_path / f"{n}" / "stdout.log", b"%d" % n)
    chunks = await asyncio.wait_for(asyncio.gather(*readers), 5)
    assert [c.data for c in chunks] == [b"%d" % (n % 20) for n in range(60)]
    assert evidence.folders._watches == {}


async def test_a_stream_is_followed_to_its_end_while_it_is_written(
    folder: Path, log: Path, running: Running
) -> None:
    evidence = Evidence(folder)
    whole = b"".join(b"line %d\n" % i for i in range(3000))

    async def write() -> None:
        for at in range(0, len(whole), 997):
            _append(log, whole[at : at + 997])
            await asyncio.sleep(0)
        running.over = True

    writer = asyncio.create_task(write())
    got, offset, end = b"", 0, False
    while not end:
        chunk = await asyncio.wait_for(evidence.read(NAME, "stdout", offset, 4096, 5, running), 10)
        assert chunk.offset == offset and chunk.dropped == 0
        got, offset, end = got + chunk.data, chunk.next_offset, chunk.end
    await writer
    assert got == whole
