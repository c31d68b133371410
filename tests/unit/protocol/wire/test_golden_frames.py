"""Frames of released protocol versions, byte for byte. They stay readable forever, and the current
version still writes them.

A test here that fails after a change of the messages means that agents of the previous version are
incompatible. To change the wire format, raise PROTOCOL_VERSION, keep this file, and add a file for
the new version.
"""

import pathlib
from typing import Any

from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import PROTOCOL_VERSION

GOLDEN = pathlib.Path(__file__).parent / "golden"


def golden(version: int) -> dict[str, bytes]:
    lines = (GOLDEN / f"version-{version}.txt").read_text(encoding="ascii").splitlines()
    return {op: bytes.fromhex(rest) for op, rest in (line.split(" ", 1) for line in lines)}


def test_this_version_writes_what_it_always_wrote(samples: dict[str, tuple[Any, Any]]) -> None:
    written = {op: next(Encoder().frames([message])) for op, (_, message) in samples.items()}
    expected = golden(PROTOCOL_VERSION)
    text = "\n".join(f"{op} {frame.hex()}" for op, frame in written.items())
    assert written == expected, f"the lines for a new version would be:\n{text}"


def test_version_1_is_read(samples: dict[str, tuple[Any, Any]]) -> None:
    for op, frame in golden(1).items():
        direction, message = samples[op]
        assert Decoder(direction).messages(frame) == [message]
