"""GPUs of this machine, as reported by NVIDIA's library."""

import contextlib
from typing import Any


def cards(load: Any = None) -> tuple[str, ...]:
    """Return the GPUs' UUIDs. Empty without the library, driver or card. load: returns the library."""
    return tuple(uuid for uuid, _ in _found(load))


def names(load: Any = None) -> dict[str, str]:
    """Return the name of each GPU, by UUID and by number."""
    found = _found(load)
    return dict(found) | {str(n): name for n, (_, name) in enumerate(found)}


def _found(load: Any) -> list[tuple[str, str]]:
    """Return (UUID, name) of each GPU, in the order of their numbers."""
    try:
        library = (load or _library)()
    except ImportError:
        return []
    try:
        library.nvmlInit()
    except library.NVMLError:
        return []
    try:
        handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return [(_text(library.nvmlDeviceGetUUID(h)), _name(library, h)) for h in handles]
    except library.NVMLError:
        return []
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def _library() -> Any:
    import pynvml

    return pynvml


def _name(library: Any, handle: Any) -> str:
    """Return the name of a GPU; "" if the library does not tell it, because the GPU works without."""
    try:
        return _text(library.nvmlDeviceGetName(handle))
    except library.NVMLError:
        return ""


def _text(value: str | bytes) -> str:
    """Return a text of the library; old versions of it return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
