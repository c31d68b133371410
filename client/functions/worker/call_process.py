"""The process of a warm worker that runs the functions. It performs one call after the other, from
a pipe of its worker to another one. If a call ends this process, the worker starts a new one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import struct
import sys
from typing import Any

from .. import runner

#: Kind and size of a message to this process; sizes of header and body of an answer.
REQUEST, ANSWER = struct.Struct(">cQ"), struct.Struct(">IQ")
FUNCTION, CALL = b"F", b"C"
#: Bytes of the digest before a function, and before the arguments of a call.
DIGEST = 32


def main(words: list[str]) -> int:
    """Perform calls until the pipe closes. words: descriptors of both pipes, the run directory."""
    requests, answers, place = int(words[0]), int(words[1]), words[2]
    for fd in (requests, answers):
        os.set_inheritable(fd, False)
    faulthandler.enable()
    _prefer_for_memory_kills()
    functions = _Functions()
    with os.fdopen(requests, "rb") as source, os.fdopen(answers, "wb", buffering=0) as target:
        while head := source.read(REQUEST.size):
            kind, size = REQUEST.unpack(head)
            body = source.read(size)
            if kind == FUNCTION:
                functions.add(body[:DIGEST], body[DIGEST:])
                continue
            outcome, result = functions.perform(body[:DIGEST], body[DIGEST:], place)
            header = json.dumps(outcome).encode()
            for data in (ANSWER.pack(len(header), len(result)) + header, result):
                _write(target, data)
    return 0


def _write(target: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[target.write(view) or 0 :]


def _prefer_for_memory_kills() -> None:
    """Make the kernel end this process rather than its worker if memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


class _Functions:
    """The functions of calls by digest. Each one is unpickled once."""

    def __init__(self) -> None:
        self._raw: dict[bytes, bytes] = {}
        self._ready: dict[bytes, Any] = {}

    def add(self, digest: bytes, data: bytes) -> None:
        self._raw[digest] = data

    def perform(self, digest: bytes, arguments: bytes, place: str) -> tuple[dict[str, Any], bytes]:
        os.chdir(place)  # an earlier call may have changed it
        try:
            if digest not in self._ready:
                self._ready[digest] = runner.loaded(self._raw[digest])
                del self._raw[digest]
            args, options = runner.loaded(arguments)
        except ValueError as e:
            runner.say(f"jobscribe: {e}")
            return {"kind": "refused", "code": runner.REFUSED, "text": str(e)}, b""
        outcome = runner.perform(self._ready[digest], args, options)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        return outcome
