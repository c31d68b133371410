"""Imports pykern's modules without importing pytest.

At import pykern looks up the module of its caller. The standard library then inspects every loaded
module. One of them is the lazy module `py.test` (pykern needs `py` for paths), and its inspection
imports pytest. That would take a fifth of the CPU time until supervisor and front end are ready,
and 6 MB of the supervisor's memory (tests/bench/RESULTS.md).
"""

import contextlib
import importlib
import sys

with contextlib.suppress(ImportError):
    importlib.import_module("py")
    sys.modules.pop("py.test", None)

from pykern import pkconfig, pkdebug

__all__ = ["pkconfig", "pkdebug"]
