"""The GPUs of this machine, as NVIDIA's library names them."""

import contextlib


def cards() -> tuple[str, ...]:
    """Their UUIDs; none where there is no such library, driver or card."""
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
