"""Mutated frames: the decoder raises only FrameError and keeps no memory."""

import gc
import random
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from jobscribe.protocol.errors import CODES
from jobscribe.protocol.wire.codec import Decoder, Encoder, FrameError

FRAMES = 24_000
#: bytes that start a msgpack value: headers of every kind, with and without their lengths
HEADERS = bytes(range(0xC0, 0xE0)) + b"\x80\x8f\x90\x9f\xa0\xbf\x00\x7f\xff"


def mutated(frame: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return `frame` after one to four random mutations."""
    data = bytearray(frame)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.choice(HEADERS)
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                del data[at : at + rng.randint(1, 20)]
            case 4:
                data[at:at] = bytes([rng.choice(HEADERS)]) + rng.choice(
                    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff"]
                )
            case 5:
                data[at:at] = data[: rng.randint(1, 60)]
            case 6:
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                data = data[:at]
    return bytes(data)


@pytest.mark.parametrize("seed", range(2))
def test_mutated_frames_are_refused_or_read_and_leave_nothing_behind(
    samples: dict[str, tuple[Any, Any]], seed: int
) -> None:
    rng = random.Random(seed)
    whole = {
        d: [f for x, msg in samples.values() if x == d for f in Encoder().frames([msg])]
        for d in ("to_agent", "to_supervisor")
    }
    parts = {
        d: [f for x, msg in samples.values() if x == d for f in Encoder(320).frames([msg])]
        for d in ("to_agent", "to_supervisor")
    }
    kept: dict[Any, Decoder] = {d: Decoder(d) for d in whole}  # type: ignore[arg-type]
    outcomes: Counter[str] = Counter()

    def one() -> None:
        direction: Any = rng.choice(["to_agent", "to_supervisor"])
        fresh = rng.random() < 0.7
        frames = (whole if fresh else parts)[direction]
        frame = mutated(rng.choice(frames), rng.choice(frames), rng)
        try:
            outcomes[
                "read"
                if (Decoder(direction) if fresh else kept[direction]).messages(frame)
                else "nothing new"
            ] += 1
        except FrameError as e:
            assert e.code in CODES
            outcomes[e.code] += 1

    for _ in range(2000):
        one()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(FRAMES // 2):
            one()
        gc.collect()
        peak = tracemalloc.get_traced_memory()[1]
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # If one of these outcomes is rare, the mutations are too weak.
    assert min(outcomes[k] for k in ("read", "malformed", "unknownOp")) > 20, outcomes
    # Without the largest block: msgpack interns keys, and Python's table of interned strings, which
    # all tests of this process fill, is copied into a larger one now and then.
    *left, _ = sorted(trace.size for trace in snapshot.traces)
    assert sum(left) < 200_000, snapshot.statistics("lineno")[:5]
    assert peak < 8_000_000
