"""Output of an exec without a terminal, as the engine frames it."""

from hypothesis import given
from hypothesis import strategies as st

from jobscribe.drivers.docker.host.exec_frames import OutputFrames

_FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8)


@given(_FRAMES, st.integers(1, 13))
def test_both_streams_are_whole_however_they_arrive(
    frames: list[tuple[int, bytes]], size: int
) -> None:
    sent = b"".join(bytes([n, 0, 0, 0]) + len(d).to_bytes(4, "big") + d for n, d in frames)
    separate, out, errors = OutputFrames(), b"", b""
    for at in range(0, len(sent), size):
        some, other = separate.feed(sent[at : at + size])
        out, errors = out + some, errors + other
    assert out == b"".join(d for n, d in frames if n == 1)
    assert errors == b"".join(d for n, d in frames if n == 2)
