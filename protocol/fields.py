"""Forms of fields in files and requests of users: descriptions for error messages, and parsers of
texts such as `1:30`. Pure.

A field declares its form in its type: `Annotated[float, msgspec.Meta(gt=0), SECONDS]`. msgspec
ignores it; `schema.structs` converts plain data with it and explains errors.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from . import durations

_RANGE = re.compile(r"([0-9]{1,10}) *- *([0-9]{1,10})", re.ASCII)
_ADDRESS = re.compile(r"[A-Za-z0-9.:\[\]_-]+:([0-9]{1,5})", re.ASCII)
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]{0,3})", re.ASCII)
_MEGABYTES = {"": 1.0} | {
    suffix: unit
    for letter, unit in (("k", 2.0**-10), ("m", 1.0), ("g", 2.0**10), ("t", 2.0**20))
    for suffix in (letter, f"{letter}b", f"{letter}ib")
}
MAX_SECS = 1e9


class Form(NamedTuple):
    """The form of a field. An outer form (of `X | None`, of a list) overrides an inner one.

    right: the expected form, for messages; the range of a number is appended. read: converts a
    value other than null to the field's type, or raises ValueError (`InvalidForm` to say why).
    aliases: names that other systems use; errors suggest the right one. unique: the elements of a
    list differ. path: of a file, relative to the folder of the file that names it.
    """

    right: str = ""
    read: Callable[[Any], Any] | None = None
    aliases: tuple[str, ...] = ()
    unique: bool = False
    path: bool = False


class InvalidForm(ValueError):
    """A value does not have its form. The text says why, as a sentence about `it`. right: the
    expected form, if it is more specific than that of the field.
    """

    def __init__(self, why: str = "", right: str = "") -> None:
        super().__init__(why)
        self.right = right


def seconds(value: Any) -> float:
    """Parse a number of seconds, or a text that `durations` reads."""
    secs = durations.seconds(value) if isinstance(value, str) else value
    if isinstance(secs, bool) or not isinstance(secs, int | float) or not 0 <= secs < MAX_SECS:
        raise InvalidForm
    return float(secs)


def megabytes(value: Any) -> int:
    """Parse a number of MB (2**20 bytes), or a text such as 2GB. Parts of a MB are rounded up."""
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is not None and (unit := _MEGABYTES.get(match[2].lower())) is not None:
        value = float(match[1]) * unit
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidForm
    return math.ceil(value)


def word(value: Any) -> str:
    """Parse a text. A whole number, true and false are texts too."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        raise InvalidForm(f"it is {value!r}, which could have been written differently")
    if not isinstance(value, str | int):
        raise InvalidForm
    return str(value)


def line(value: Any) -> str:
    """Parse one line of text, without blanks at its ends."""
    text = value.strip() if isinstance(value, str) else ""
    if not text.isprintable():
        raise InvalidForm
    return text


def number_range(value: Any) -> tuple[int, int]:
    """Parse `first-last`, or a list of both."""
    if isinstance(value, list | tuple) and len(value) == 2:
        value = f"{value[0]}-{value[1]}"
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidForm
    return int(match[1]), int(match[2])


def port_range(value: Any) -> tuple[int, int]:
    """Parse the first and last port, as in `30000-32767`."""
    first, last = number_range(value)
    if not 1024 <= first <= last <= 65_535:
        raise InvalidForm
    return first, last


def address(value: Any) -> str:
    """Parse `host:port`."""
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[1]) < 65_536:
        raise InvalidForm
    return str(value)


LINE = Form("one line of text", line)
SECONDS = Form("seconds, or a text as in 90s, 15m or 1:30", seconds)
PORTS = Form("two ports from 1024 to 65535, the lower one first, as in 30000-32767", port_range)
MEGABYTES = Form("MB as a number, or a text such as '512MB' or '2GB'", megabytes)
#: A text that may be written as a number, true or false.
Word = Annotated[str, Form("a text in quotes", word)]
Address = Annotated[str, Form("host:port, as in 10.1.2.3:8002", address)]
