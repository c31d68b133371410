"""What may be shown of a value: redaction by key and by value, then truncation. Pure functions over plain data.

By key: whatever is called a secret is one. By value: known secrets are replaced wherever they stand, also inside longer
strings. Truncation keeps logs bounded: strings 8000 characters, collections 30 elements, depth 10; tracebacks keep their end.
"""

import re
from collections.abc import Iterable
from typing import Any

REDACTED = "<REDACTED>"
SNIP = "<SNIP>"
MAX_STRING, MAX_ELEMENTS, MAX_DEPTH = 8000, 30, 10

#: Keys whose value is never shown. `compute_jid`-like words with "key" or "token" in them that are no secret stay visible.
_SECRET_KEY = re.compile(
    r"secret|passw|passphrase|private|credential|cookie|authorization|bearer|api_?key|otp\b|one_?time|"
    r"agent_?id\b|agentId\b|token\b|Token\b|_hash\b|tokenHash",
    re.IGNORECASE,
)
_HARMLESS_KEYS = frozenset({"computeJobHash", "compute_job_hash"})
#: The fencing token is called `token` everywhere and is no secret: it is a list, or text with slashes.
_TRACEBACK = "Traceback (most recent call last)"
#: Anything shorter would redact ordinary words.
MIN_SECRET = 6


class Redactor:
    """Knows the secrets of this process. `add` them where they are made or read."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for s in secrets:
            self.add(s)

    def add(self, secret: str) -> str:
        """Remember `secret` and return it."""
        if len(secret) >= MIN_SECRET and secret not in self._secrets:
            self._secrets.add(secret)
            longest_first = sorted(self._secrets, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        return secret

    def text(self, text: str) -> str:
        """`text` without the known secrets."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def value(self, value: Any, depth: int = 0) -> Any:
        """`value` (plain data) as it may be shown."""
        if isinstance(value, str):
            return truncated(self.text(value))
        if isinstance(value, bytes):
            return truncated(self.text(value[: MAX_STRING + 1].decode("utf-8", "replace")))
        if isinstance(value, dict):
            return self._map(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            if depth >= MAX_DEPTH:
                return SNIP
            items = list(value)
            out = [self.value(v, depth + 1) for v in items[:MAX_ELEMENTS]]
            return [*out, SNIP] if len(items) > MAX_ELEMENTS else out
        if value is None or isinstance(value, bool | int | float):
            return value
        return truncated(self.text(str(value)))

    def _map(self, value: dict[Any, Any], depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return SNIP
        out: dict[Any, Any] = {}
        for i, (k, v) in enumerate(value.items()):
            if i >= MAX_ELEMENTS:
                out[SNIP] = len(value) - MAX_ELEMENTS
                break
            out[self.text(str(k))] = REDACTED if is_secret(str(k), v) else self.value(v, depth + 1)
        return out


def is_secret(key: str, value: Any = "") -> bool:
    """May the value under this key never be shown?"""
    if key in _HARMLESS_KEYS or value is None or isinstance(value, bool):
        return False
    if key.lower() == "token":
        return isinstance(value, str) and "/" not in value
    return _SECRET_KEY.search(key) is not None


def truncated(text: str, limit: int = MAX_STRING) -> str:
    """At most `limit` characters; the head is kept, of a traceback the end."""
    if len(text) <= limit:
        return text
    if _TRACEBACK in text:
        return SNIP + text[-limit:]
    return text[:limit] + SNIP
