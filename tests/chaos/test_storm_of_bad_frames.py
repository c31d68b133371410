"""A misbehaving agent floods a real supervisor with invalid or meaningless frames: other clients
are not affected (G16).
"""

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import socket_close
import tornado.httpclient
import tornado.iostream
import tornado.websocket
from known_agents import alive_of, tell_of_agents, token_of
from supervisor_process import SupervisorProcess
from timestamped_jobs import ROOM, SOAK, Stamps, sites

from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.codec import Encoder
from jobscribe.protocol.wire.messages import (
    CallReply,
    Execution,
    LogChunk,
    OpError,
    RunReport,
    RunStatusUpdate,
    Snapshot,
)

KEY = AgentKey("local", "sequential", "MadAgent", "localhost")
FRAMES, WARM = (1_000_000, 5_000) if SOAK else (10_000, 2_000)
#: Runs of others that must be served during the flood, which goes on until then; seconds between
#: them. The supervisor keeps the newest finished runs in memory, which is no growth by frames.
OTHERS, PAUSE_SECS = 3, 15.0 if SOAK else 0.05
GROWTH_BYTES, SOON_SECS = 8 << 20, 1.0
MakeSite = Callable[..., SupervisorProcess]


@pytest.fixture
def make_site() -> Iterator[MakeSite]:
    with sites() as make:
        yield make


class Mad:
    """Random frames by a seed; most leave the connection open, so that the flood gets deep into the
    supervisor.
    """

    def __init__(self, seed: int, alive: Any) -> None:
        self._chance, self._alive = random.Random(seed), alive
        self.seq = 0

    def opening(self) -> bytes:
        (frame,) = Encoder(protocol=1).frames([self._alive])
        self.seq = 1
        return frame

    def frame(self) -> tuple[str, bytes | str]:
        kinds = {
            "sense": 30,
            "nonsense": 30,
            "unknown op": 10,
            "old": 10,
            "gap": 5,
            "bent": 4,
            "noise": 1,
            "text": 1,
            "deep": 1,
            "chunks": 3,
        }
        kind = self._chance.choices(list(kinds), list(kinds.values()))[0]
        return kind, getattr(self, "_" + kind.replace(" ", "_"))()

    def _pack(self, messages: list[Any], ahead: int = 1, **more: Any) -> bytes:
        self.seq += ahead
        return bytes(msgpack.packb({"v": 1, "seq": self.seq, "m": messages, **more}))

    def _encoded(self, message: Any) -> bytes:
        encoder = Encoder(protocol=1)
        encoder._seq = self.seq
        frames = list(encoder.frames([message]))
        self.seq += len(frames)
        return frames[0]

    def _token(self, uid: str = "MadAgent") -> Token:
        return Token(
            f"{uid}-sim{self._chance.randrange(10_000):05d}-command",
            self._chance.randint(1, 2**40),
            1,
            "main",
            0,
        )

    def _sense(self) -> bytes:
        """Return a valid frame about jobs that were never requested."""
        return self._encoded(RunReport(token=self._token(), report={"frameCount": 1}, at=1e9))

    def _nonsense(self) -> bytes:
        token, op = self._token(), "o" * 32
        exit_ = ExitInfo(code=0, started_at=1.0, ended_at=2.0)
        ended = Execution(token=token, state="ended", op_id=op_id(token, "run"), exit=exit_)
        return self._encoded(
            self._chance.choice(
                (
                    RunStatusUpdate(execution=ended),
                    RunStatusUpdate(
                        execution=Execution(
                            token=token, state="running", op_id=op_id(token, "run"), pid=-7
                        )
                    ),
                    Snapshot(
                        number=self._chance.randint(-5, 5),
                        page=self._chance.randint(0, 3),
                        last=self._chance.random() < 0.5,
                        executions=(ended,) * 3,
                    ),
                    LogChunk(op_id=op, offset=0, next_offset=1, data=b"x" * 5000),
                    CallReply(op_id=op, reply=b"{}"),
                    OpError(op_id=op, code="no such code", error="\x00\x1b[31m"),
                    self._alive,
                )
            )
        )

    def _unknown_op(self) -> bytes:
        return self._pack(
            [{"op": self._chance.choice(("sing", "run", "", "\u202e")), "x": self._chance.random()}]
        )

    def _old(self) -> bytes:
        return self._pack([], ahead=0)

    def _gap(self) -> bytes:
        return self._pack([], ahead=self._chance.randint(2, 1000))

    def _chunks(self) -> bytes:
        """Return a part of a message whose other parts never come."""
        self.seq += 1
        return bytes(
            msgpack.packb(
                {
                    "v": 1,
                    "seq": self.seq,
                    "id": 1,
                    "i": self._chance.randint(0, 2),
                    "of": 1000,
                    "d": b"\0" * 60_000,
                }
            )
        )

    def _bent(self) -> bytes:
        frame = bytearray(self._sense())
        for _ in range(self._chance.randint(1, 4)):
            frame[self._chance.randrange(len(frame))] = self._chance.randrange(256)
        return bytes(frame)

    def _noise(self) -> bytes:
        return self._chance.randbytes(self._chance.randint(0, 3000))

    def _text(self) -> str:
        return "hello"

    def _deep(self) -> bytes:
        value: Any = 1
        for _ in range(self._chance.choice((20, 5000))):
            value = [value]
        try:
            return self._pack([{"op": "error", "x": value}])
        except ValueError:
            return b"\x91" * 100_000


async def flood(
    site: SupervisorProcess, mad: Mad, frames: int, enough: Callable[[], bool] = lambda: True
) -> Counter[str]:
    """Send at least `frames` frames, and more until it is enough, with as many connections as that
    takes.
    """
    sent, connections, before = Counter[str](), 0, socket_close.watched(asyncio.get_running_loop())
    url = json.loads((site.root / "agents.json").read_text())["agentsUrl"]

    def lacking() -> bool:
        return sum(sent.values()) < frames or not enough()

    while lacking():
        request = tornado.httpclient.HTTPRequest(
            url, headers={"Authorization": "Bearer " + token_of(KEY), "X-Jobscribe-Agent": str(KEY)}
        )
        socket = await tornado.websocket.websocket_connect(
            request, on_message_callback=lambda _: None, max_message_size=1 << 24
        )
        connections += 1
        try:
            await socket.write_message(mad.opening(), binary=True)
            while lacking():
                kind, frame = mad.frame()
                sent[kind] += 1
                await socket.write_message(frame, binary=isinstance(frame, bytes))
                # usually the connection ends here: nobody reads frames sent after it
                if kind in (
                    "bent",
                    "noise",
                    "text",
                    "deep",
                ):
                    await asyncio.sleep(0.002)
        except (tornado.websocket.WebSocketClosedError, tornado.iostream.StreamClosedError):
            pass
        finally:
            socket.close()
    await socket_close.said(before)
    sent["connections"] = connections
    return sent


@pytest.mark.timeout(3600 if SOAK else 180)
def test_a_flood_of_bad_frames_costs_the_mad_agent_and_nobody_else(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site, stamps = make_site("slots.local_sequential=2"), Stamps(tmp_path / "stamps")
    site.start()
    site.stop()
    tell_of_agents(site, [KEY])
    site.start()
    mad = Mad(1, alive_of(site, KEY))
    asyncio.run(flood(site, mad, WARM))
    assert site.finished(stamps.job("before"))["state"] == "completed"
    before = site.ask("GET", "/api/metrics").json()
    with _Others(site, stamps) as others:
        sent = asyncio.run(flood(site, mad, FRAMES, lambda: others.done >= OTHERS))
    after = site.ask("GET", "/api/metrics").json()
    growth, counters = after["process"]["rss"] - before["process"]["rss"], after["counters"]
    print(
        f"{sum(sent.values())} frames {dict(sent)}; supervisor grew by {growth >> 10} KiB; {others.done} runs of others meanwhile,"
        f" the slowest {others.slowest:.2f} s; counted: { ({k: v for k, v in counters.items() if 'reject' in k or k[0] in 'us'}) }"
    )
    assert growth < GROWTH_BYTES
    assert (
        "internal" not in counters
        and "Traceback" not in site.log()
        and "Exception" not in site.log()
    )
    assert all(
        counters.get("rejected." + code, 0) > 0 for code in ("malformed", "unknownOp", "tooDeep")
    ), counters
    assert (
        after["hub"]["connections"] <= 2
        and after["process"]["descriptors"] <= before["process"]["descriptors"] + 5
    )
    assert others.slowest < SOON_SECS * ROOM
    assert all(stamps.words(p.name) == ["start", "end"] for p in stamps.folder.iterdir())


class _Others:
    """Another user's short runs, in sequence."""

    def __init__(self, site: SupervisorProcess, stamps: Stamps) -> None:
        self._site, self._stamps, self._over = site, stamps, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done, self.slowest = 0, 0.0

    def __enter__(self) -> "_Others":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_SECS):
            begun = time.monotonic()
            if self._site.finished(self._stamps.job(f"other{self.done}"))["state"] == "completed":
                self.done += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)
