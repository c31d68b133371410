"""Found by every interpreter whose PYTHONPATH begins with a folder that this file was copied to:
its wall clock can be set.

The file `offset` beside it holds seconds. The monotonic clock, which nobody can set, is left alone.
(Debian's libfaketime makes every `time.sleep` of Python 3.11 fail, so it cannot stand in for a
machine whose clock is set.)
"""

import os
import time

_real, _real_ns = time.time, time.time_ns
_file = os.path.join(os.path.dirname(__file__), "offset")


def _offset() -> float:
    with open(_file) as f:
        return float(f.read())


time.time = lambda: _real() + _offset()
time.time_ns = lambda: _real_ns() + int(_offset() * 1e9)
