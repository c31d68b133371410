"""Frames of released protocol versions, byte for byte. They stay readable forever, and the current
version still writes them.

A test here that fails after a change of the messages means that agents of the previous version are
incompatible. To change the wire format, raise SPOKEN.newest (protocol/wire/versions.py), keep the
files, and add one for the new version.
"""

import pathlib
from typing import Any

import pytest

from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.versions import SPOKEN

GOLDEN = pathlib.Path(__file__).parent / "golden"


def golden(version: int) -> dict[str, bytes]:
    lines = (GOLDEN / f"version-{version}.txt").read_text(encoding="ascii").splitlines()
    return {op: bytes.fromhex(rest) for op, rest in (line.split(" ", 1) for line in lines)}


def test_this_version_writes_what_it_always_wrote(samples: dict[str, tuple[Any, Any]]) -> None:
    written = {op: next(Encoder().frames([message])) for op, (_, message) in samples.items()}
    expected = golden(SPOKEN.newest)
    text = "\n".join(f"{op} {frame.hex()}" for op, frame in written.items())
    assert written == expected, f"the lines for a new version would be:\n{text}"


@pytest.mark.parametrize("version", range(SPOKEN.oldest, SPOKEN.newest + 1))
def test_each_version_that_is_spoken_is_read(
    samples: dict[str, tuple[Any, Any]], version: int
) -> None:
    for op, frame in golden(version).items():
        direction, message = samples[op]
        assert Decoder(direction, protocol=version).messages(frame) == [message]


def test_a_peer_of_version_1_gets_what_it_always_got(samples: dict[str, tuple[Any, Any]]) -> None:
    expected = golden(1)
    written = {
        op: next(Encoder(protocol=1).frames([samples[op][1]])) for op in samples if op in expected
    }
    assert written == expected
