"""Reader of files that people write (YAML or JSON): text to plain data with the line of each path.
`schema.structs` and `schema.jobs` interpret the data.

The text is untrusted: its size, depth and number of values are limited while parsing. Anchors and
aliases, which expand a short text to large data, and tags are refused. YAML is parsed by events,
and a plain word has its meaning in JSON: `on`, `yes`, `010`, `1:30` and dates are texts.
"""

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ..fields import InvalidDocument, Problem, quoted
from .document import Tree
from .json_text import read_json

if TYPE_CHECKING:
    from yaml import Event

MAX_BYTES = 2**20
_BEGINS_JSON = re.compile(r"\s*(?:\{|\[|//|/\*)")
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_SHOWN = 200


def read(path: str, *, lenient: bool = False) -> Tree:
    """Parse the file, or standard input for "-". Returns its `Tree`. Raises InvalidDocument.

    lenient: errors that do not end the reading (such as duplicate keys) stay in `problems`, so that
    later checks can add theirs.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            return parse(sys.stdin.buffer.read(MAX_BYTES + 1), name, lenient=lenient)
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            return (
                parse(f.read(MAX_BYTES + 1), name, lenient=lenient)
                if size <= MAX_BYTES
                else _too_large(name)
            )
    except OSError as e:
        raise _bad(
            name, f"it cannot be read: {e.strerror or e}", "a file that you may read"
        ) from None


def parse(raw: bytes, name: str, *, lenient: bool = False) -> Tree:
    """Parse JSON if the name ends with .json, or if the text begins like JSON and the name has no
    ending of YAML; else YAML. Raises InvalidDocument.
    """
    if len(raw) > MAX_BYTES:
        _too_large(name)
    nul = raw.find(b"\0")
    if nul >= 0:
        raise _bad(name, "it contains a NUL", "text as UTF-8", raw.count(b"\n", 0, nul) + 1)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise _bad(
            name, "it is not UTF-8", "text as UTF-8", raw.count(b"\n", 0, e.start) + 1
        ) from None
    tree = Tree(name)
    lower = name.lower()
    if lower.endswith(".json") or (
        not lower.endswith((".yaml", ".yml")) and _BEGINS_JSON.match(text)
    ):
        read_json(text, tree)
    else:
        _read_yaml(text, tree)
    if not lenient:
        tree.check()
    return tree


def _too_large(name: str) -> Tree:
    raise _bad(
        name,
        f"it has more than {MAX_BYTES} bytes",
        "a smaller file; put data into separate files",
    )


def _bad(name: str, problem: str, right: str, line: int | None = None) -> InvalidDocument:
    return InvalidDocument([Problem(path="", problem=problem, right=right, line=line, file=name)])


def _read_yaml(text: str, tree: Tree) -> None:
    import yaml

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _add_event(event, tree)
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        tree.stop(
            line,
            f"it contains the control character {quoted(chr(e.character))}",
            "text without control characters",
        )
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
        message = ", ".join(
            str(part) for part in (getattr(e, "context", None), getattr(e, "problem", None)) if part
        )
        tree.stop(
            mark.line + 1 if mark else None,
            f"it is not YAML: {ascii(message)[1:-1][:_SHOWN]}",
            "YAML; a text with : or # in quotes",
        )
    except (ValueError, OverflowError, RecursionError):
        tree.stop(
            None,
            "it is not YAML: invalid escape in double quotes",
            "texts in single quotes",
        )


def _add_event(event: "Event", tree: Tree) -> None:
    import yaml

    line = event.start_mark.line + 1 if event.start_mark else 1
    _check(event, tree, line)
    match event:
        case yaml.ScalarEvent():
            if tree.wants_key:
                tree.key(event.value, line)
            else:
                tree.value(_scalar(event, tree, line), line)
        case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
            if tree.wants_key:
                tree.stop(
                    line,
                    "a key is an object or a list",
                    "a word as key; a text that begins with { or [ in quotes",
                )
            tree.begin({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        case yaml.AliasEvent():
            if tree.wants_key:
                tree.stop(line, "a key is an alias", "a word as key")
            tree.value(None, line)
        case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
            tree.end()
        case yaml.DocumentStartEvent() if tree.lines:
            tree.stop(
                line,
                "a second document begins",
                "one document",
            )
        case _:
            return


def _check(event: "Event", tree: Tree, line: int) -> None:
    """Refuse anchors, aliases and tags, which data do not need."""
    anchor = getattr(event, "anchor", None)
    if anchor is not None:
        sign, what = (
            ("*", "an alias") if type(event).__name__ == "AliasEvent" else ("&", "an anchor")
        )
        tree.error(
            line,
            f"{quoted(sign + anchor)} is {what}",
            f"the text itself; one that begins with {sign} in quotes",
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        tree.error(line, f"{quoted(tag)} is a tag", "no tags; a text that begins with ! in quotes")


def _scalar(event: Any, tree: Tree, line: int) -> str | int | float | bool | None:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        word: bool | None = _WORDS[text]
        return word
    number = tree.number(text, line)
    return text if number is None else number
