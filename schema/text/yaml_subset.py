"""Parser of the part of YAML that people write by hand, with line numbers: mappings, lists, text,
whole numbers, true, false, null.

Everything else is refused: aliases (a few lines can expand to gigabytes), tags, a second document,
duplicate keys, nesting deeper than `DEPTH`. A word is text unless it is one of those above: `no`
and `1:30` stay text.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

DEPTH = 8
#: Maximum size of a file.
MAX_BYTES = 1024 * 1024

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


class YamlError(Exception):
    """The text is not valid. The sentence names problem and line."""


class LocatedMapping(dict[str, Any]):
    """A mapping that knows its own first line, and the line of each key."""

    line = 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def parse(text: str) -> Any:
    """Return the value of this text. Raises YamlError."""
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        return _document(events)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise YamlError(
            f"line {mark.line + 1 if mark else '?'}: {e.problem or e.context}"
        ) from None
    except yaml.YAMLError as e:
        raise YamlError(" ".join(str(e).split())) from None


def _document(events: Iterator[Any]) -> Any:
    value: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _at(event, "only one document is allowed")
        elif not isinstance(
            event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent
        ):
            value = _value(event, events, 0)
    return value


def _value(event: Any, events: Iterator[Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _at(
            event,
            "anchors and aliases (& and *) are not allowed; put text that begins so in quotes",
        )
    if event.tag is not None and event.tag != "!":
        raise _at(event, "tags (!) are not allowed; put text that begins so in quotes")
    if depth > DEPTH:
        raise _at(event, f"nesting is limited to {DEPTH} levels")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            items.append(_value(inner, events, depth + 1))
        return items
    return _mapping(event, events, depth)


def _mapping(event: Any, events: Iterator[Any], depth: int) -> LocatedMapping:
    out = LocatedMapping()
    out.line = _line(event)
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise _at(key, "a key must be a text")
        if key.value in out:
            raise _at(key, f"{key.value[:80]!r} occurs twice")
        out.lines[key.value] = _line(key)
        out[key.value] = _value(next(events), events, depth + 1)
    return out


def _scalar(event: Any) -> Any:
    text = event.value
    if not event.implicit[0]:
        return text
    return int(text) if _NUMBER.fullmatch(text) else _WORDS.get(text, text)


def _at(event: Any, sentence: str) -> YamlError:
    return YamlError(f"line {_line(event)}: {sentence}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
