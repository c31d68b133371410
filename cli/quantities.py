"""How a person writes an amount: durations with s, m, h or d, sizes with K, M, G or T."""

import re
from typing import Any

import click

_SECS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([a-z]?)\Z", re.ASCII | re.IGNORECASE)


class _Amount(click.ParamType):  # type: ignore[type-arg]
    """A number and perhaps a unit."""

    def __init__(self, name: str, units: dict[str, int], whole: bool) -> None:
        self.name, self._units, self._whole = name, units, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        if isinstance(value, int | float):
            return value
        match = _AMOUNT.match(value)
        if match is None or match[2].lower() not in self._units:
            units = ", ".join(u for u in self._units if u)
            self.fail(f"{value!r} is no number, with one of {units} behind it if need be", param, ctx)
        amount = float(match[1]) * self._units[match[2].lower()]
        return int(amount) if self._whole else amount


SECS = _Amount("secs", _SECS, whole=False)
BYTES = _Amount("bytes", _BYTES, whole=True)


def duration(secs: float) -> str:
    """Seconds for a person: 0.42 s, 12.3 s, 3 m 20 s, 2 h 5 m, 3 d 4 h."""
    if secs < 60:
        return f"{secs:.2f} s" if secs < 10 else f"{secs:.1f} s"
    minutes, s = divmod(int(secs), 60)
    if minutes < 60:
        return f"{minutes} m {s} s"
    hours, m = divmod(minutes, 60)
    return f"{hours} h {m} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def moment(at: float | None) -> str:
    """Unix seconds as ISO 8601 in UTC; a dash for none."""
    if at is None:
        return "-"
    import datetime

    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
