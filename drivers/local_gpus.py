"""GPUs of this machine, as reported by NVIDIA's library."""

import contextlib


def cards() -> tuple[str, ...]:
    """Return the GPUs' UUIDs. Empty without the library, driver or card."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(
            str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(n)))
            for n in range(pynvml.nvmlDeviceGetCount())
        )
    except pynvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
