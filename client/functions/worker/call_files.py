"""Format of the files between an executor and a warm worker: batches of calls, and groups of
outcomes. Pure; ships with each worker, so it imports the standard library alone.

The outcome file has groups. The worker syncs a group to disk, then adds a commit line. Clients use
groups with a commit line only. When the run is over, they also use complete groups without one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from .. import runner

#: In the run directory: the folder of batches, the outcomes, the number of the newest begun call.
INBOX, OUTCOMES, BEGUN = "calls", "calls.out", "calls.begun"
#: Calls that may begin before the next group is durable.
GRANT = 64
COMMIT = b'{"commit":1}\n'
_BEGUN = struct.Struct(">Q36s")

Frame = tuple[dict[str, Any], bytes]


class Damaged(ValueError):
    """An outcome file has a damaged committed group."""


class Call:
    """A call of a batch. number: increases in the order of the batches."""

    __slots__ = ("batch", "data", "digest", "number")

    def __init__(self, number: int, digest: bytes, data: bytes, batch: int) -> None:
        self.number, self.digest, self.data, self.batch = number, digest, data, batch


class Batch:
    """The content of a batch. end: the worker ends when it has no calls."""

    def __init__(self) -> None:
        self.functions: dict[bytes, bytes] = {}
        self.calls: list[Call] = []
        self.cancel: list[int] = []
        self.end = False


class Recovered:
    """The content of the outcome file of an earlier attempt.

    size: bytes that count. batches: number of each batch, and the range of its calls. done: calls
    with an outcome. committed: whether the file ends with a commit line.
    """

    def __init__(self) -> None:
        self.size = self.accepted = self.granted = 0
        self.batches: dict[int, range] = {}
        self.done: set[int] = set()
        self.committed = True


def batch_name(number: int) -> str:
    return f"{number:08d}.bin"


def group(frames: list[Frame]) -> bytes:
    """Return the bytes of one group without its commit line."""
    parts = []
    for header, body in frames:
        parts.append(json.dumps({**header, "size": len(body)}).encode() + b"\n")
        parts.append(body)
    data = b"".join(parts)
    head = {"group": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.dumps(head).encode() + b"\n" + data


def parse(data: bytes, *, over: bool) -> tuple[list[Frame], int]:
    """Return the frames of all groups that count, and the bytes that they take.

    over: nobody writes the file any more, so groups without a commit line count, and the rest is
    ignored. Raises ValueError if a committed group is damaged.
    """
    frames: list[Frame] = []
    at = 0
    while True:
        if data.startswith(COMMIT, at):
            at += len(COMMIT)
            continue
        end = data.find(b"\n", at)
        if end < 0:
            return frames, at
        try:
            head = json.loads(data[at:end])
            size, digest = int(head["group"]), str(head["sha256"])
        except (ValueError, KeyError, TypeError):
            if over and COMMIT not in data[at:]:
                return frames, at
            raise Damaged("the file with the outcomes is damaged") from None
        body = data[end + 1 : end + 1 + size]
        after = end + 1 + size
        committed = data.startswith(COMMIT, after)
        if len(body) < size or not (committed or over):
            return frames, at
        if hashlib.sha256(body).hexdigest() != digest:
            if over and not committed:
                return frames, at
            raise Damaged("the checksum of the outcomes is wrong")
        frames += _frames(body)
        at = after + len(COMMIT) * committed


def read_batch(data: bytes, number: int, known: set[bytes]) -> Batch:
    """Return the content of a batch. known: digests of earlier functions. Raises ValueError."""
    header, body = runner.unpack(data)
    batch, at = Batch(), 0
    try:
        for digest, size in header.get("functions", ()):
            batch.functions[bytes.fromhex(digest)] = body[at : at + _length(size)]
            at += size
        for call, digest, size in header.get("calls", ()):
            key = bytes.fromhex(digest)
            if key not in known and key not in batch.functions:
                raise ValueError(f"the function of call {int(call)} is missing")
            part = body[at : at + _length(size)]
            batch.calls.append(Call(int(call), key, part, number))
            at += size
        batch.cancel = [int(call) for call in header.get("cancel", ())]
        batch.end = bool(header.get("end"))
    except (TypeError, AttributeError) as e:
        raise ValueError(f"its header is malformed: {e}") from None
    if at != len(body):
        raise ValueError(f"its parts have {at} of {len(body)} bytes")
    return batch


def _length(size: object) -> int:
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{size!r:.50} is no size")
    return size


def recovered(data: bytes) -> Recovered:
    """Return what an outcome file says that nobody writes any more. Raises ValueError (damaged)."""
    found = Recovered()
    frames, found.size = parse(data, over=True)
    found.committed = not found.size or data[: found.size].endswith(COMMIT)
    for header, _ in frames:
        if header["kind"] == "accepted":
            found.batches[header["batch"]] = range(found.accepted + 1, header["last"] + 1)
            found.accepted = max(found.accepted, header["last"])
        elif header["kind"] == "grant":
            found.granted = header["to"]
        elif "call" in header and header["kind"] != "late":
            found.done.add(header["call"])
    return found


def _frames(body: bytes) -> list[Frame]:
    frames: list[Frame] = []
    at = 0
    while at < len(body):
        end = body.index(b"\n", at)
        header: dict[str, Any] = json.loads(body[at:end])
        after = end + 1 + header["size"]
        frames.append((header, body[end + 1 : after]))
        at = after
    return frames


def begun(call: int, boot: str) -> bytes:
    """Return the content of the file BEGUN. boot: identity of the kernel's boot."""
    return _BEGUN.pack(call, boot.encode()[:36])


def read_begun(data: bytes) -> tuple[int, str]:
    """Return call and boot; (0, "") if the file has none."""
    if len(data) != _BEGUN.size:
        return 0, ""
    call, boot = _BEGUN.unpack(data)
    return call, boot.rstrip(b"\0").decode(errors="replace")
