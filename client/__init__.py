"""The Python clients of the supervisor: `Client`, `AsyncClient` and `ClientError`.

The names are imported on first use, so that `Client` does not load asyncio and commands without a
client load neither.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.errors import ClientError
    from .async_client import AsyncClient
    from .sync_client import Client

__all__ = ["AsyncClient", "Client", "ClientError"]

_MODULES = {"AsyncClient": ".async_client", "Client": ".sync_client", "ClientError": ".api.errors"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
