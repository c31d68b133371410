"""Python functions as jobs: futures, an executor, and the inspection of objects that cannot be sent.

Only clients and jobs unpickle. The supervisor, agents and the front end pass texts and files.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .executor import Executor
    from .future import FunctionFuture
    from .inspection import Inspection, Offender, inspect_serializable
    from .outcomes import RemoteTraceback

__all__ = [
    "Executor",
    "FunctionFuture",
    "Inspection",
    "Offender",
    "RemoteTraceback",
    "inspect_serializable",
]

_MODULES = {
    "Executor": ".executor",
    "FunctionFuture": ".future",
    "Inspection": ".inspection",
    "Offender": ".inspection",
    "RemoteTraceback": ".outcomes",
    "inspect_serializable": ".inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
