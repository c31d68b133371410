"""Values as Slurm writes them: times, durations, memory, exit codes. None if unreadable."""

import re

_SPAN = re.compile(
    r"(?:(?P<d>[0-9]{1,6})-)?(?P<a>[0-9]{1,6})(?::(?P<b>[0-9]{1,2}))?(?::(?P<c>[0-9]{1,2}))?(?:\.[0-9]{1,9})?\Z"
)
_FRACTION = re.compile(r"[0-9]{1,9}\Z")
_SIZE = re.compile(r"(?P<n>[0-9]{1,18})(?:\.(?P<f>[0-9]{1,6}))?(?P<u>[KMGTP]?)[nc]?\Z")
_EXIT = re.compile(r"(?P<code>[0-9]{1,10}):(?P<signal>[0-9]{1,10})\Z")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
#: Earliest plausible time (2001), and the latest that our messages can represent.
_FIRST, _LAST = 1e9, 1e11


def parse_time(text: str) -> float | None:
    """Parse unix seconds. A Slurm that ignores the requested format writes local dates; their time
    zone is unknown, so they give None.
    """
    return (
        float(text)
        if text.isascii() and text.isdigit() and len(text) < 13 and _FIRST <= int(text) <= _LAST
        else None
    )


def parse_seconds(text: str) -> float | None:
    """Parse a number of seconds."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def parse_duration(text: str) -> float | None:
    """Parse `2-03:04:05`, `3:04:05` or `4:05` into seconds; `2-03` and `2-03:04` are days and
    hours. None for `UNLIMITED`, `NOT_SET`, `Partition_Limit`...
    """
    match = _SPAN.match(text)
    if match is None:
        return None
    a, b, c = (int(n) if n is not None else None for n in (match["a"], match["b"], match["c"]))
    days = int(match["d"]) if match["d"] is not None else None
    if days is not None:
        return float(((days * 24 + (a or 0)) * 60 + (b or 0)) * 60 + (c or 0))
    if c is not None:
        return float(((a or 0) * 60 + (b or 0)) * 60 + c)
    return float((a or 0) * 60 + b) if b is not None else float((a or 0) * 60)


def parse_cpu_secs(text: str) -> float | None:
    """Parse processor time: `00:01.234`, `01:02:03` or `1-02:03:04`, into seconds."""
    whole, point, part = text.partition(".")
    secs = parse_duration(whole) if ":" in whole else None
    if secs is None or not point:
        return secs
    return secs + int(part) / 10 ** len(part) if _FRACTION.match(part) else None


def parse_bytes(text: str) -> int | None:
    """Parse `12345K`, `1.5G` or `1000` into bytes."""
    match = _SIZE.match(text)
    if match is None:
        return None
    unit = _UNITS[match["u"]]
    fraction = int(match["f"]) * unit // 10 ** len(match["f"]) if match["f"] else 0
    found = int(match["n"]) * unit + fraction
    return found if found < 2**62 else None


def parse_exit(text: str) -> tuple[int | None, int | None]:
    """Parse `7:0` or `0:11` into (code, signal). At most one is set; values impossible for a
    process give neither.

    Slurm writes 0:125 for exhausted memory, and 128 + n for a signal with core dump.
    """
    match = _EXIT.match(text)
    if match is None:
        return None, None
    code, signal = int(match["code"]), int(match["signal"])
    signal = signal - 128 if 128 < signal <= 192 else signal
    if signal:
        return None, signal if signal <= 64 else None
    return (code, None) if code <= 255 else (None, None)
