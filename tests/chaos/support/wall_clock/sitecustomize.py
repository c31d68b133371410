"""Make the wall clock settable in every interpreter whose PYTHONPATH begins with the folder that
holds a copy of this file.

The file `offset` beside it holds seconds. The monotonic clock does not change, because nobody can
set it. (Debian's libfaketime makes every `time.sleep` of Python 3.11 fail, so it cannot simulate a
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
