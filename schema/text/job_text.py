"""A job file: text (YAML or JSON) -> plain data, with the line of each path. What the data mean is
`protocol.description`'s.

Whoever wrote the text may not be well-meaning: its size, depth and number of values are bounded
before anything is built of it, and what makes large data of a short text (anchors, aliases), or
anything but data (tags), is refused. YAML is read by its events, and a word in it is what JSON
reads it as: `on`, `yes`, `010`, `1:30` and dates are texts.
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
    """The file, or standard input for "-": its `data`, and with `located` the places of problems.
    Raises BadDescription.

    lenient: what is wrong and does not end the reading (a key that is there twice) is left in
    `problems`, so that others are found too.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            return parsed(sys.stdin.buffer.read(MAX_BYTES + 1), name, lenient=lenient)
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            return (
                parsed(f.read(MAX_BYTES + 1), name, lenient=lenient)
                if size <= MAX_BYTES
                else _too_large(name)
            )
    except OSError as e:
        raise _bad(
            name, f"it cannot be read: {e.strerror or e}", "a file that you may read"
        ) from None


def parsed(raw: bytes, name: str, *, lenient: bool = False) -> Tree:
    """What these bytes say: JSON where the name ends so, or (without an ending of YAML) the text
    begins so. Raises BadDescription.
    """
    if len(raw) > MAX_BYTES:
        _too_large(name)
    nul = raw.find(b"\0")
    if nul >= 0:
        raise _bad(name, "there is a NUL", "text as UTF-8", raw.count(b"\n", 0, nul) + 1)
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
        "a smaller file; data belong into files of their own",
    )


def _bad(name: str, problem: str, right: str, line: int | None = None) -> InvalidDocument:
    return InvalidDocument([Problem(path="", problem=problem, right=right, line=line, file=name)])


def _read_yaml(text: str, tree: Tree) -> None:
    import yaml

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _take(event, tree)
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        tree.stop(
            line,
            f"there is the control character {quoted(chr(e.character))}",
            "text without control characters",
        )
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
        said = ", ".join(
            str(part) for part in (getattr(e, "context", None), getattr(e, "problem", None)) if part
        )
        tree.stop(
            mark.line + 1 if mark else None,
            f"it is not YAML: {ascii(said)[1:-1][:_SHOWN]}",
            "YAML; a text with : or # in quotes",
        )
    except (ValueError, OverflowError, RecursionError):
        tree.stop(
            None,
            "it is not YAML: an escape in double quotes names no character",
            "texts in single quotes",
        )


def _take(event: "Event", tree: Tree) -> None:
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
                "one document; several jobs are a list behind `jobs`",
            )
        case _:
            return


def _check(event: "Event", tree: Tree, line: int) -> None:
    """What data do not need, and what a few bytes could do much with."""
    anchor = getattr(event, "anchor", None)
    if anchor is not None:
        sign, what = (
            ("*", "an alias") if type(event).__name__ == "AliasEvent" else ("&", "an anchor")
        )
        tree.wrong(
            line,
            f"{quoted(sign + anchor)} is {what}",
            f"the text itself; one that begins with {sign} in quotes",
        )
    tag = getattr(event, "tag", None)
    if tag is not None:
        tree.wrong(line, f"{quoted(tag)} is a tag", "no tags; a text that begins with ! in quotes")


def _scalar(event: Any, tree: Tree, line: int) -> str | int | float | bool | None:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        word: bool | None = _WORDS[text]
        return word
    number = tree.number(text, line)
    return text if number is None else number
