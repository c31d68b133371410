"""An agent that stops reading: the keeper's memory use stays bounded, and the agent gets the latest
state when it reads again.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from jobscribe.agent.keeper.agent_child import AgentChild
from jobscribe.agent.keeper.executions.process_tracker import ProcessTracker
from jobscribe.agent.keeper.executions.state import Execution
from jobscribe.agent.keeper.linux.cgroups import Cgroups
from jobscribe.agent.keeper.loop.event_loop import Loop
from jobscribe.protocol.launch.keeper_reports import Hello
from jobscribe.protocol.launch.message_fields import encode

pytestmark = pytest.mark.process

HELLO = Hello(agent={}, log=None, folder="/nowhere", keeper_pid=1, cgroups="off", executions=[])


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Deaf:
    """A process in the agent's place. The test holds its end of the link and reads on request."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "86400"])
        self.link: socket.socket

    def spawn(self, theirs: socket.socket) -> int:
        self.link = theirs.dup()
        return self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.link.close()


@pytest.fixture
def agent() -> Iterator[Deaf]:
    agent = Deaf()
    yield agent
    agent.end()


def test_what_waits_for_a_deaf_agent_is_bounded_and_the_truth_arrives_later(
    loop: Loop, agent: Deaf
) -> None:
    known: dict[str, Execution] = {}
    seat = AgentChild(
        loop,
        ProcessTracker(Cgroups(".", "off")),
        agent.spawn,
        lambda: HELLO,
        lambda _: None,
        lambda _: None,
        known,
    )
    seat.start()
    for n in range(3000):
        e = known[f"e{n}"] = Execution(f"e{n}", "token", "/nowhere")
        e.life.claimed()
        e.record_main(n + 1, 1, 0.0, 0.0)
        seat.report(e)
    for e in known.values():
        e.finish({"source": "keeper", "code": 7, "detail": "x" * 2000})
        seat.report(e)
    assert seat._channel is not None
    assert len(seat._channel._out) < 2 << 20  # 6 MB were reported
    received = bytearray()
    agent.link.setblocking(False)

    def read(_: int) -> None:
        received.extend(agent.link.recv(1 << 16))
        if len(last_words()) == 3000 and all(state == "ended" for state in last_words().values()):
            loop.stop(0)

    def last_words() -> dict[str, str]:
        if not received.endswith(b"\n"):
            return {}
        said = [json.loads(line) for line in received.splitlines()]
        return {m["name"]: m["state"] for m in said if m["is"] != "hello"}

    loop.watch(agent.link.fileno(), selectors.EVENT_READ, read)
    loop.call_at("too long", time.monotonic() + 30, lambda: loop.stop(1))
    assert loop.run() == 0
    assert received.startswith(json.dumps(encode(HELLO)).encode() + b"\n")
    seat._channel.close()


def test_a_callback_that_fails_is_said_and_called_again(
    loop: Loop, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[float] = []

    def fail_twice() -> None:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise OSError(24, "Too many open files")
        loop.stop(0)

    loop.on_signal(signal.SIGUSR2, fail_twice)
    os.kill(os.getpid(), signal.SIGUSR2)
    loop.call_at("too long", time.monotonic() + 30, lambda: loop.stop(1))
    assert loop.run() == 0
    assert len(calls) == 3
    assert capfd.readouterr().err.count("OSError: [Errno 24]") == 1, "the same trouble is said once"


def test_last_words_that_nobody_had_read_yet_are_told(
    loop: Loop, agent: Deaf, capfd: pytest.CaptureFixture[str]
) -> None:
    """The keeper may see the agent's end and its last message in one loop iteration, in either
    order.
    """
    seat = AgentChild(
        loop,
        ProcessTracker(Cgroups(".", "off")),
        agent.spawn,
        lambda: HELLO,
        lambda _: None,
        lambda _: None,
        {},
    )
    seat.start()
    agent.link.send(json.dumps({"do": "failed", "why": "there is no room"}).encode() + b"\n")
    agent.process.kill()
    os.waitid(os.P_PID, agent.process.pid, os.WEXITED | os.WNOWAIT)
    seat.child_changed()
    assert "ended by signal 9: there is no room" in capfd.readouterr().err and seat.pid is None
    loop.cancel("agent start")
