"""Name the test and the lines that opened a socket, in the warning about a socket that nobody closed.

Python warns when it collects the socket, often during a later test. The warning shows the socket's
representation, so the origin is added there.
"""

import os
import socket
import sys

#: Number of stack frames that are kept for a socket.
FRAMES = 8
#: By id of the socket object. Weak references are gone when the collector finalizes an object.
_origins: dict[int, str] = {}
_original_init, _original_repr = socket.socket.__init__, socket.socket.__repr__


def install() -> None:
    """Record the origin of each internet socket that is opened from now on."""
    socket.socket.__init__ = _init  # type: ignore[method-assign]
    socket.socket.__repr__ = _repr  # type: ignore[method-assign]


def _init(self: socket.socket, *args: int | None, **kwargs: int | None) -> None:
    _original_init(self, *args, **kwargs)  # type: ignore[arg-type]
    if self.family != socket.AF_UNIX:
        _origins[id(self)] = f"{os.environ.get('PYTEST_CURRENT_TEST', 'no test')}: {_stack()}"


def _repr(self: socket.socket) -> str:
    shown = _original_repr(self)
    return f"{shown}, opened by {_origins[id(self)]}" if id(self) in _origins else shown


def _stack() -> str:
    frame, lines = sys._getframe(2), list[str]()
    while frame is not None and len(lines) < FRAMES:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)
