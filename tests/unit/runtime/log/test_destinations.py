"""Writers of log lines never wait for readers: a journal or terminal that hangs blocks no
supervisor, agent or keeper.
"""

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from jobscribe.runtime.log.destinations import Stream, is_writable


class Pipe:
    """A pipe that is read only on request."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.text = os.fdopen(os.dup(self.writer), "w")

    def fill(self) -> None:
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(self.writer, True)

    def drain(self) -> bytes:
        out = b""
        os.set_blocking(self.reader, False)
        try:
            while data := os.read(self.reader, 65536):
                out += data
        except BlockingIOError:
            return out
        return out

    def close(self) -> None:
        self.drain()
        self.text.close()
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.mark.timeout(20)
def test_a_reader_that_does_not_read_costs_lines_not_time(pipe: Pipe) -> None:
    output = Stream(pipe.text)
    output.put("one\n")
    pipe.fill()
    for _ in range(3):
        output.put("nobody reads this\n")
    assert output.lost == 3
    assert pipe.drain().strip(b"x") == b"one\n"
    output.put("two\n")
    output.put("three\n")
    assert pipe.drain() == b"(3 log lines before this one could not be written)\ntwo\nthree\n"


@pytest.mark.timeout(20)
def test_patience_is_spent_once(pipe: Pipe) -> None:
    output = Stream(pipe.text, patience_secs=0.3)
    pipe.fill()
    began = time.monotonic()
    output.put("the first waits\n")
    assert time.monotonic() - began >= 0.3
    for _ in range(50):
        output.put("the others do not\n")
    assert time.monotonic() - began < 5
    assert output.lost == 51


def test_what_is_no_descriptor_is_written_as_ever() -> None:
    text = io.StringIO()
    Stream(text).put("line\n")
    assert text.getvalue() == "line\n"


def test_files_and_broken_pipes_take_everything_at_once(pipe: Pipe) -> None:
    with open(os.devnull, "w") as f:
        assert is_writable(f.fileno())
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert is_writable(writer)
    finally:
        os.close(writer)


@pytest.mark.process
@pytest.mark.timeout(30)
def test_a_keeper_that_nobody_reads_goes_on(pipe: Pipe) -> None:
    pipe.fill()
    code = "from jobscribe.agent.keeper.loop.log import log\nfor _ in range(3): log('a line')\nprint('went on')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=pipe.text,
        timeout=20,
        check=True,
    )
    assert done.stdout == b"went on\n"
