"""Redaction and truncation of values before they are logged or shown. Pure functions over plain
data.

By key: the value under a secret-sounding name is hidden, in maps, in `NAME=value` strings and after
`--name` in argument vectors. By value: known secrets and API tokens are replaced everywhere, also inside
longer strings. Truncation keeps logs bounded: strings 8000 characters, collections 30 elements, depth 10,
3000 elements in all; tracebacks keep their end. Standard library only, because the keeper imports
it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import quote

REDACTED = "<REDACTED>"
SNIP = "<SNIP>"
MAX_STRING, MAX_ELEMENTS, MAX_DEPTH, MAX_TOTAL = 8000, 30, 10, 3000
#: Characters of these ids that logs show.
AGENT_SHORT, OP_SHORT, UID_SHORT = 4, 6, 4

#: Keys whose value is never shown. Other words that contain "key" or "token", such as those in
#: `_HARMLESS_KEYS`, stay visible.
_SECRET_KEY = re.compile(
    r"secret|passw|passphrase|private|credential|cookie|authorization|bearer|api[_-]?key|otp\b|one[_-]?time|"
    r"agent[_-]?id\b|tokens?\b|_hash\b|tokenHash",
    re.IGNORECASE,
)
_HARMLESS_KEYS = frozenset({"computeJobHash", "compute_job_hash"})
#: The fencing token is also called `token` and is no secret. It is recognised by its form: five
#: fields, including these.
_FENCING = re.compile(r"[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-\w{1,64}/\d+/\d+/\w{1,32}/\d+", re.ASCII)
_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,127}", re.ASCII)
_OPTION = re.compile(r"(-{0,2}[A-Za-z_][\w-]{1,127})=(.+)", re.ASCII | re.DOTALL)
_TRACEBACK = "Traceback (most recent call last)"
#: Minimum length of a secret; shorter ones would redact ordinary words.
MIN_SECRET = 6
#: Alphanumeric secrets of at least this length are looked up in a set, so a thousand agents' tokens
#: cost no more than one.
_WORD = re.compile(r"[A-Za-z0-9]{16,}")
#: An API token (`protocol.api.tokens`) or a longer part of one. Its id stays visible.
_API_TOKEN = re.compile(r"(jst_[A-Za-z0-9]{8}_)[A-Za-z0-9_-]{8,}", re.ASCII)
_API_TOKEN_START, _API_TOKEN_LENGTH = "jst_", 56
#: Name of the method with which an object gives its own text for logs.
LOG_TEXT_METHOD = "pkdebug_str"


class Redactor:
    """The known secrets of this process. Call `add` wherever a secret is created or read."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._words: set[str] = set()
        self._word_lengths: tuple[int, ...] = ()
        self._others: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._stale = False
        self._longest = 0
        #: Forms of temporary secrets, each with its number of holders.
        self._held: Counter[str] = Counter()
        for s in secrets:
            self.add(s)

    def add(self, secret: str) -> str:
        """Remember `secret` and return it."""
        if len(secret) < MIN_SECRET:
            return secret
        if _WORD.fullmatch(secret):
            self._words.add(secret)
            self._word_lengths = tuple(sorted({*self._word_lengths, len(secret)}, reverse=True))
            self._longest = max(self._longest, len(secret))
        else:
            forms = _forms(secret)
            self._others |= forms
            self._longest = max(self._longest, *map(len, forms))
            self._stale = True
        return secret

    def hold(self, secrets: Iterable[str]) -> Callable[[], None]:
        """Redact these secrets too, until the returned function is called. Secrets from `add` stay
        known after that.
        """
        forms = {form for secret in secrets if len(secret) >= MIN_SECRET for form in _forms(secret)}
        self._held.update(forms)
        self._stale = True

        def release() -> None:
            nonlocal forms
            self._held.subtract(forms)
            self._held = +self._held
            forms = set()
            self._stale = True

        return release

    def text(self, text: str) -> str:
        """Return `text` without the known secrets and without API tokens."""
        if _API_TOKEN_START in text:
            text = _API_TOKEN.sub(rf"\1{REDACTED}", text)
        if self._word_lengths and len(text) >= self._word_lengths[-1]:
            text = _WORD.sub(self._without_words, text)
        if self._stale:
            self._stale = False
            longest_first = sorted(
                {*self._others.copy(), *self._held.copy()}, key=len, reverse=True
            )
            self._pattern = (
                re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
            )
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def _reach(self) -> int:
        """Return the length of the longest secret, in characters."""
        return max([_API_TOKEN_LENGTH, self._longest, *map(len, self._held.copy())])

    def _without_words(self, match: re.Match[str]) -> str:
        run = match[0]
        if run in self._words:
            return REDACTED
        out, start, i = [], 0, 0
        while i <= len(run) - self._word_lengths[-1]:
            length = next((n for n in self._word_lengths if run[i : i + n] in self._words), 0)
            if length:
                out += [run[start:i], REDACTED]
                start = i + length
            i += length or 1
        return "".join(out) + run[start:]

    def shown(self, text: str) -> str:
        """Return `text` without the known secrets, truncated. The dropped part costs no time, and
        no partial secret remains at the end.
        """
        if len(text) <= MAX_STRING:
            return truncated(self.text(text))
        longest = self._reach()
        room = MAX_STRING + longest
        if len(text) <= room:
            return truncated(self.text(text))
        if _TRACEBACK in text:
            return SNIP + self.text(text[-room:])[longest:][-MAX_STRING:]
        kept = self.text(text[:room])
        return kept[: min(MAX_STRING, len(kept) - longest)] + SNIP

    def value(self, value: Any) -> Any:
        """Return `value` as plain data that is safe to show."""
        return self._value(value, 0, [MAX_TOTAL])

    def _value(self, value: Any, depth: int, left: list[int]) -> Any:
        left[0] -= 1
        if isinstance(value, str):
            return self.shown(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return self.shown(
                bytes(value[: MAX_STRING + self._reach() + 1]).decode("utf-8", "replace")
            )
        if isinstance(value, dict):
            return self._map(value, depth, left)
        if isinstance(value, list | tuple | set | frozenset):
            return self._sequence(list(value), depth, left)
        if isinstance(value, type):
            return self.shown(str(value))
        if (log_text := getattr(value, LOG_TEXT_METHOD, None)) is not None:
            return self.shown(log_text())
        if not _has_own_str(value) and (fields := _fields(value)):
            return self._map({name: getattr(value, name) for name in fields}, depth, left)
        return self.shown(str(value))

    def _sequence(self, items: list[Any], depth: int, left: list[int]) -> Any:
        if depth >= MAX_DEPTH:
            return SNIP
        out: list[Any] = []
        for i, item in enumerate(items):
            if i >= MAX_ELEMENTS or left[0] <= 0:
                return [*out, SNIP]
            flag = items[i - 1] if i else None
            if (
                isinstance(item, str)
                and (m := _OPTION.fullmatch(item))
                and is_secret(m[1].lstrip("-"), m[2])
            ):
                out.append(f"{m[1]}={REDACTED}")
            elif (
                isinstance(item, str)
                and isinstance(flag, str)
                and _FLAG.fullmatch(flag)
                and is_secret(flag.lstrip("-"), item)
            ):
                out.append(REDACTED)
            else:
                out.append(self._value(item, depth + 1, left))
        return out

    def _map(self, value: dict[Any, Any], depth: int, left: list[int]) -> Any:
        if depth >= MAX_DEPTH:
            return SNIP
        out: dict[Any, Any] = {}
        for i, (k, v) in enumerate(value.items()):
            if i >= MAX_ELEMENTS or left[0] <= 0:
                out[SNIP] = len(value) - i
                break
            out[self.shown(str(k))] = (
                REDACTED if is_secret(str(k), v) else self._value(v, depth + 1, left)
            )
        return out


def _forms(secret: str) -> set[str]:
    """Return the secret as it looks plain, after repr(), in JSON and in a URL."""
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, repr(secret)[1:-1], quote(secret, safe=""), *in_json}


def is_secret(key: str, value: Any = "") -> bool:
    """Return whether the value under this key must stay hidden."""
    if key in _HARMLESS_KEYS or value is None or isinstance(value, bool):
        return False
    return _sounds_secret(key) and not _is_fencing_token(value)


@lru_cache(2048)
def _sounds_secret(key: str) -> bool:
    """Return whether the name suggests a secret. Cached, because every request has the same few
    keys.
    """
    return _SECRET_KEY.search(key) is not None


def _is_fencing_token(value: Any) -> bool:
    if isinstance(value, list | tuple):
        if len(value) == 5 and isinstance(value[0], str) and not isinstance(value[1], str):
            return _FENCING.fullmatch("/".join(map(str, value))) is not None
        return len(value) > 0 and all(_is_fencing_token(v) for v in value)
    if isinstance(value, str) or hasattr(value, "__struct_fields__"):
        return _FENCING.fullmatch(str(value)) is not None
    return False


def _has_own_str(value: Any) -> bool:
    own: Any = type(value).__str__
    return own is not object.__str__


def _fields(value: Any) -> tuple[str, ...]:
    """Return the field names of a struct or dataclass. Its repr would show all of their values."""
    return tuple(getattr(value, "__struct_fields__", ())) or tuple(
        getattr(value, "__dataclass_fields__", ())
    )


def truncated(text: str, limit: int = MAX_STRING) -> str:
    """Return at most `limit` characters: the head, or the end if the text is a traceback."""
    if len(text) <= limit:
        return text
    if _TRACEBACK in text:
        return SNIP + text[-limit:]
    return text[:limit] + SNIP
