"""Decisions about a copy of a file: where to continue it, and whether it is correct. Pure.

A file is compared in blocks, because a supervisor computes the digest of one block in a bounded
time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from ...protocol.wire.messages import DIGEST_BYTES
from ..api.errors import refused

Verdict = Literal["same", "grown", "changed"]


class Found(msgspec.Struct, frozen=True):
    """A block of the original. size, etag: of the whole file when the block was read."""

    sha256: str
    length: int
    size: int
    etag: str


def ranges(size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the blocks of the first `size` bytes; one empty block of none."""
    yield 0, min(size, DIGEST_BYTES)
    for offset in range(DIGEST_BYTES, size, DIGEST_BYTES):
        yield offset, min(DIGEST_BYTES, size - offset)


def resume_at(blocks: Iterable[tuple[str, Found]], kept: int) -> int:
    """Return the number of bytes of an interrupted copy that are still correct.

    blocks: of its `kept` bytes, in order: the digest of the copy, and the original.
    """
    for (offset, length), (copied, found) in zip(ranges(kept), blocks, strict=False):
        if found.length != length or found.sha256 != copied:
            return offset
    return kept


def verdict(copied: Sequence[str], found: Sequence[Found], size: int) -> Verdict:
    """Return whether a complete copy of `size` bytes is correct.

    same: it equals the original. grown: it equals the beginning of the original, which a program
    continues. changed: it is no state of the original.
    """
    for (_, length), copy, original in zip(ranges(size), copied, found, strict=True):
        if original.length != length or original.sha256 != copy:
            return "changed"
    if any(f.size < size for f in found):
        return "changed"
    if found[-1].size > size:
        return "grown"
    # blocks of two versions prove nothing about either of them
    return "same" if len({f.etag for f in found}) == 1 else "changed"


def plain_parts(name: str) -> list[str]:
    """Return the components of a relative file name. Raises ClientError("badRequest") for a name
    that could lead out of a folder.
    """
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(p in ("", ".", "..") for p in parts):
        raise refused(
            "badRequest", f"{ascii(name)[:100]} is not a plain relative path; nothing was written"
        )
    return parts
