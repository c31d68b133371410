"""Masks secrets in the parts of a bundle: known ones by value everywhere, others by the name of
their variable, option or key.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ...protocol.redaction import AGENT_SHORT, REDACTED, Redactor, is_secret
from .parts import Part, json_bytes

#: Variables in a job's script: sh's single quotes, possibly over several lines.
_EXPORT = re.compile(r"^export ([A-Za-z_]\w*)=((?:'[^']*'|\\')+)", re.MULTILINE)
_ODD_EXPORT = re.compile(r"'([A-Za-z_][\w.-]*)=([^']*(?:'\\''[^']*)*)'")
_FLAG = re.compile(r"'(--?[A-Za-z][\w-]*)' ((?:'[^']*'|\\')+)")
_OPTION = re.compile(r"(-{0,2}[A-Za-z_][\w-]{1,127})=(.+)", re.DOTALL)
#: Secrets in program output: password=..., "api_key": "...", Authorization: Bearer ...
_NAMED_VALUE = re.compile(
    r"""([A-Za-z_][\w-]{1,63})(["']?\s?[=:]\s?)((?:Bearer |Basic )?(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;}&]+))"""
)
_ADDRESS = re.compile(r"(\w+://)[^\s/@'\"]+@")
_NUMBER = re.compile(r"[\d.,%]*")
_MAX_DEPTH = 100


class Masker:
    """Masks parts. secrets: known secret values. `learn` adds values from the parts, so that they
    are also masked where they have no name.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._redactor = Redactor(s.strip() for s in secrets)

    def learn(self, part: Part) -> None:
        """Add the values whose names mark them as secrets."""
        if part.kind == "script":
            for value in _script_secrets(part.data.decode("utf-8", "surrogateescape")):
                self._redactor.add(value)
        elif part.kind == "json":
            try:
                value = json.loads(part.data)
            except (ValueError, RecursionError):
                return
            for secret in _value_secrets(value, 0):
                self._redactor.add(secret)

    def masked(self, part: Part) -> Part:
        if part.kind == "json":
            try:
                return part._replace(data=json_bytes(self._value(json.loads(part.data), 0)))
            except (ValueError, RecursionError):
                pass  # incomplete or invalid JSON: mask it as text
        text = part.data.decode("utf-8", "surrogateescape")
        if part.kind == "script":
            text = _EXPORT.sub(
                lambda m: (
                    f"export {m[1]}='{REDACTED}'" if is_secret(m[1], _unquoted(m[2])) else m[0]
                ),
                text,
            )
            text = _ODD_EXPORT.sub(
                lambda m: f"'{m[1]}={REDACTED}'" if is_secret(m[1].lstrip("-"), m[2]) else m[0],
                text,
            )
            text = _FLAG.sub(
                lambda m: (
                    f"'{m[1]}' '{REDACTED}'"
                    if is_secret(m[1].lstrip("-"), _unquoted(m[2]))
                    else m[0]
                ),
                text,
            )
        return part._replace(data=self._text(text).encode("utf-8", "surrogateescape"))

    def line(self, text: str) -> str:
        return self._text(text)

    def _text(self, text: str) -> str:
        text = _ADDRESS.sub(rf"\1{REDACTED}@", self._redactor.text(text))
        return _NAMED_VALUE.sub(_mask_match, text)

    def _value(self, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            return REDACTED
        if isinstance(value, str):
            match = _OPTION.fullmatch(value)
            if match and is_secret(match[1].lstrip("-"), match[2]):
                return f"{match[1]}={REDACTED}"
            return self._text(value)
        if isinstance(value, dict):
            return {
                self._text(k): REDACTED if _hides(k, v) else self._value(v, depth + 1)
                for k, v in value.items()
            }
        if isinstance(value, list):
            out = []
            for i, item in enumerate(value):
                flag = value[i - 1] if i else None
                named = (
                    isinstance(flag, str)
                    and isinstance(item, str)
                    and flag.startswith("-")
                    and is_secret(flag.lstrip("-"), item)
                )
                out.append(REDACTED if named else self._value(item, depth + 1))
            return out
        return value


def _hides(key: str, value: Any) -> bool:
    # The four-character short form of an agent id is not secret: logs show it.
    short = isinstance(value, str) and len(value) <= AGENT_SHORT and key.lower().endswith("id")
    return is_secret(key, value) and not isinstance(value, int | float) and not short


def _mask_match(match: re.Match[str]) -> str:
    value = match[3].strip("\"'")
    if not is_secret(match[1], value) or value == REDACTED or _NUMBER.fullmatch(value):
        return match[0]
    return f"{match[1]}{match[2]}{REDACTED}"


def _script_secrets(text: str) -> Iterator[str]:
    for pattern in (_EXPORT, _FLAG):
        for match in pattern.finditer(text):
            if is_secret(match[1].lstrip("-"), value := _unquoted(match[2])):
                yield from (value, *_long_lines(value))
    for match in _ODD_EXPORT.finditer(text):
        if is_secret(match[1].lstrip("-"), match[2]):
            yield match[2].replace("'\\''", "'")


def _value_secrets(value: Any, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and is_secret(key, item):
                yield from (item, *_long_lines(item))
            else:
                yield from _value_secrets(item, depth + 1)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            if isinstance(item, str):
                match = _OPTION.fullmatch(item)
                if match and is_secret(match[1].lstrip("-"), match[2]):
                    yield match[2]
                elif (
                    i
                    and isinstance(value[i - 1], str)
                    and value[i - 1].startswith("-")
                    and is_secret(value[i - 1].lstrip("-"), item)
                ):
                    yield item
            else:
                yield from _value_secrets(item, depth + 1)


def _long_lines(text: str) -> list[str]:
    """Return the lines of a multi-line key: each counts as a secret."""
    return [line for line in text.splitlines() if len(line) >= 16 and not line.startswith("-----")]


def _unquoted(text: str) -> str:
    """Return the text of a single-quoted sh word."""
    return text.replace("'\\''", "\0").strip("'").replace("\0", "'")
