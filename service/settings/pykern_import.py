"""pykern's modules, imported in a way that does not import pytest.

pykern asks at its import whose module called it. To answer, the standard library looks at every
module there is, and the lazy `py.test` among them (pykern needs `py` for its paths) is pytest as
soon as it is looked at: a fifth of what a supervisor and a front end compute until they are ready,
and 6 MB of the supervisor that it never uses (tests/bench/RESULTS.md).
"""

import contextlib
import importlib
import sys

with contextlib.suppress(ImportError):
    importlib.import_module("py")
    sys.modules.pop("py.test", None)

from pykern import pkconfig, pkdebug

__all__ = ["pkconfig", "pkdebug"]
