"""Reads a YAML file field by field into structs, and reports all errors at once, each with its
line.

The meaning of a pool or a cluster is defined elsewhere.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...protocol.errors import Refusal
from ..fields import InvalidValue
from .yaml_subset import MAX_BYTES, LocatedMapping, YamlError, parse

MAX_PROBLEMS = 50


class Part(NamedTuple):
    """One mapping of the file with its valid fields. where: its path for messages, "" for the whole
    file.
    """

    where: str
    values: dict[str, Any]
    given: LocatedMapping

    def line(self, name: str = "") -> int:
        return self.given.lines.get(name, self.given.line)


#: Reports an error: (part, field name in the file, problem and advice, code).
Wrong = Callable[[Part, str, str, str], None]


class Notes:
    """Errors in the file at this path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._noted: list[tuple[int, Refusal]] = []

    def wrong(self, part: Part, name: str, what: str, code: str = "badConfig") -> None:
        field = ".".join(p for p in (part.where, name) if p)
        line = part.line(name)
        self._noted.append(
            (line, Refusal(code, f"{self._path}:{line}: {field + ': ' if field else ''}{what}"))
        )

    def found(self) -> list[Refusal]:
        """Return all errors in the order of the file."""
        return [problem for _, problem in sorted(self._noted, key=lambda each: each[0])]


def read_mapping(path: str, setting: str, needs: str) -> LocatedMapping:
    """Read the mapping in the file. setting: name of the setting with the path. needs: required
    content, for messages. Raises Refusal.
    """
    try:
        with open(path, "rb") as f:
            content = f.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise YamlError(f"it has more than {MAX_BYTES} bytes")
        data = parse(content.decode("utf-8"))
    except OSError as e:
        raise Refusal(
            "badConfig", f"{setting}: {path} cannot be read: {e.strerror or 'it cannot be opened'}"
        ) from None
    except UnicodeDecodeError:
        raise Refusal("badConfig", f"{setting}: {path} is not text in UTF-8") from None
    except YamlError as e:
        raise Refusal("badConfig", f"{setting}: {path} cannot be read: {e}") from None
    if not isinstance(data, LocatedMapping):
        raise Refusal("badConfig", f"{setting}: {path} must be a mapping with {needs}")
    return data


def combined_refusal(what: str, found: Sequence[Refusal]) -> Refusal:
    """Combine all errors in one Refusal. what: such as `the pool PATH`."""
    if len(found) == 1:
        return found[0]
    sentences = "; ".join(problem.sentence for problem in found[:MAX_PROBLEMS])
    more = f"; and {len(found) - MAX_PROBLEMS} more" if len(found) > MAX_PROBLEMS else ""
    code = "unsafe" if all(p.code == "unsafe" for p in found) else "badConfig"
    return Refusal(code, f"{what} has {len(found)} mistakes: {sentences}{more}")


class Fields:
    """Reads fields. forms: expected form of each field, for messages. read: converters of fields
    that need one.

    paths: fields with paths relative to the file's folder.
    """

    def __init__(
        self,
        path: str,
        wrong: Wrong,
        *,
        forms: Mapping[str, str],
        read: Mapping[str, Callable[[Any], Any]],
        paths: Sequence[str],
    ) -> None:
        self._folder, self._wrong = os.path.dirname(os.path.abspath(path)), wrong
        self._forms, self._read, self._paths = forms, read, paths

    def part(
        self,
        type_: type[Any],
        given: LocatedMapping,
        where: str,
        besides: Sequence[str] = (),
        left: Sequence[str] = (),
    ) -> Part:
        """Read the fields of this struct. besides: further text fields. left: fields that the
        caller reads itself.
        """
        part = Part(where, {}, given)
        fields = {f.encode_name: f for f in msgspec.structs.fields(type_)}
        for name in given:
            if name not in fields and name not in besides:
                self._unknown(part, name, [*fields, *besides])
        for name, field in fields.items():
            if name not in given:
                if field.required:
                    self._wrong(
                        part, name, f"is missing: it must be {self._forms[name]}", "badConfig"
                    )
            elif name not in left:
                self._value(part, name, field.name, field.type)
        for name in besides:
            if name in given:
                self._value(part, name, name, str)
        return part

    def inner(
        self, part: Part, name: str, type_: type[Any], what: str, left: Sequence[str] = ()
    ) -> Part | None:
        """Read the mapping of a field; None if it is missing or not a mapping."""
        given = part.given.get(name)
        if name not in part.given:
            return None
        if not isinstance(given, LocatedMapping):
            self._wrong(part, name, f"must be {what}; got {got(given)}", "badConfig")
            return None
        return self.part(type_, given, f"{part.where}.{name}" if part.where else name, left=left)

    def each(
        self,
        whole: Part,
        type_: type[Any],
        given: Mapping[str, Any],
        field: str,
        left: Sequence[str] = (),
    ) -> list[Part]:
        """Read mappings, given by their paths. field: the field of `whole` that contains them."""
        out = []
        for where, value in given.items():
            if isinstance(value, LocatedMapping):
                out.append(self.part(type_, value, where, left=left))
            else:
                self._wrong(
                    whole, field, f"{where} must be a mapping; got {got(value)}", "badConfig"
                )
        return out

    def unfit(self, part: Part, name: str, value: Any) -> None:
        self._wrong(part, name, f"must be {self._forms[name]}; got {got(value)}", "badConfig")

    def _value(self, part: Part, name: str, python_name: str, type_: Any) -> None:
        value = part.given[name]
        try:
            value = self._read.get(name, _as_it_is)(value)
            value = msgspec.convert(value, type_)
            if name in self._paths and value is not None:
                if not value or "\0" in value:
                    raise InvalidValue("")
                value = os.path.join(self._folder, value)
            part.values[python_name] = value
        except (InvalidValue, msgspec.ValidationError):
            self.unfit(part, name, part.given[name])

    def _unknown(self, part: Part, name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known)}"
        shown = ascii(name)[1:-1][:60]
        field = ".".join(p for p in (part.where, shown) if p)
        # the line comes from the original name; only the shortened name is shown
        here = Part("", {}, LocatedMapping())
        here.given.line = part.line(name)
        self._wrong(here, "", f"{field} is not known; {advice}", "badConfig")


def texts(value: Any) -> Any:
    """Convert a mapping to text values; numbers and YAML's own words become text."""
    if not isinstance(value, dict) or not all(isinstance(v, str | int) for v in value.values()):
        raise InvalidValue("")
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


def matching(pattern: str) -> Callable[[Any], str]:
    """Return a converter that accepts only texts that match the whole pattern (ASCII)."""
    form = re.compile(pattern, re.ASCII)

    def read(value: Any) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise InvalidValue("")
        return value

    return read


def got(value: Any) -> str:
    return ascii(value)[:60]


def _as_it_is(value: Any) -> Any:
    return value
