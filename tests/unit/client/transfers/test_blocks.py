"""Decisions about copies: where they continue, whether they are correct, and names."""

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.transfers.blocks import Found, plain_parts, ranges, resume_at, verdict
from jobscribe.protocol.wire.messages import DIGEST_BYTES

SIZE = 2 * DIGEST_BYTES + 5
LENGTHS = [length for _, length in ranges(SIZE)]


def found(
    digests: str, size: int = SIZE, etag: str = "e", lengths: list[int] = LENGTHS
) -> list[Found]:
    return [Found(d, n, size, etag) for d, n in zip(digests, lengths, strict=True)]


def test_ranges_cover_a_file() -> None:
    assert LENGTHS == [DIGEST_BYTES, DIGEST_BYTES, 5]
    assert list(ranges(0)) == [(0, 0)]
    assert list(ranges(DIGEST_BYTES)) == [(0, DIGEST_BYTES)]


@pytest.mark.parametrize(
    ("original", "at"),
    [("abc", SIZE), ("abx", 2 * DIGEST_BYTES), ("axc", DIGEST_BYTES), ("xbc", 0)],
)
def test_a_copy_continues_at_the_first_different_block(original: str, at: int) -> None:
    assert resume_at(zip("abc", found(original), strict=True), SIZE) == at


def test_a_copy_longer_than_the_original_continues_at_the_last_whole_block() -> None:
    short = found("abc", lengths=[DIGEST_BYTES, DIGEST_BYTES, 4])
    assert resume_at(zip("abc", short, strict=True), SIZE) == 2 * DIGEST_BYTES


def test_a_copy_is_correct_only_if_all_blocks_are_of_one_version() -> None:
    assert verdict("abc", found("abc"), SIZE) == "same"
    assert verdict("abc", found("abx"), SIZE) == "changed"
    assert verdict("abc", found("abc", size=SIZE + 1), SIZE) == "grown"
    assert verdict("abc", found("abc", size=SIZE - 1), SIZE) == "changed"
    mixed = [*found("abc")[:2], *found("abc", etag="f")[2:]]
    assert verdict("abc", mixed, SIZE) == "changed"
    short = found("abc", lengths=[DIGEST_BYTES, DIGEST_BYTES, 4])
    assert verdict("abc", short, SIZE) == "changed"


@pytest.mark.parametrize("name", ["", "/a", "a//b", ".", "a/..", "../a", "a/./b", "a\0b", "a/"])
def test_a_name_that_could_lead_outside_is_refused(name: str) -> None:
    with pytest.raises(ClientError, match="not a plain relative path"):
        plain_parts(name)
    assert plain_parts("a/b c/..d") == ["a", "b c", "..d"]
