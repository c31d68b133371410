"""Amounts as users write and read them: durations (see `protocol.durations`), sizes with K, M, G or
T, and times.
"""

import re
from typing import Any

import click

from ...protocol import durations

_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([a-z]?)\Z", re.ASCII | re.IGNORECASE)


class _Bytes(click.ParamType):  # type: ignore[type-arg]
    """Option type: a number with an optional unit, converted to bytes."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _AMOUNT.match(value)
        if match is None or match[2].lower() not in _BYTES:
            units = ", ".join(u for u in _BYTES if u)
            self.fail(
                f"{value!r} is not a size; write a number, with {units} for larger units",
                param,
                ctx,
            )
        return int(float(match[1]) * _BYTES[match[2].lower()])


class Secs(click.ParamType):  # type: ignore[type-arg]
    """Option type: a duration, converted to seconds. Maximum: `most`."""

    name = "secs"

    def __init__(self, most: float | None = None) -> None:
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        secs = float(value) if isinstance(value, int | float) else durations.seconds(value)
        if secs is None:
            self.fail(f"{value!r} is not a duration; write {durations.FORM}", param, ctx)
        if self._most is not None and secs > self._most:
            self.fail(f"{value!r} is too long: at most {duration(self._most)}", param, ctx)
        return secs


SECS = Secs()
BYTES = _Bytes()


def duration(secs: float) -> str:
    """Format seconds: 0.42 s, 12.3 s, 3 m 20 s, 2 h 5 m, 3 d 4 h."""
    if secs < 60:
        return f"{secs:.2f} s" if secs < 10 else f"{secs:.1f} s"
    minutes, s = divmod(int(secs), 60)
    if minutes < 60:
        return f"{minutes} m {s} s"
    hours, m = divmod(minutes, 60)
    return f"{hours} h {m} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def amount(value: float) -> str:
    """Format bytes: 17 B, 1.1 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(at: float | None) -> str:
    """Format unix seconds as ISO 8601 in UTC; a dash for None."""
    if at is None:
        return "-"
    import datetime

    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
