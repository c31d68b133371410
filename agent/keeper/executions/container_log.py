"""Why an earlier container of this agent ended, as written by its driver.

The file is in a user's folder, so its content is not trusted.
"""

from __future__ import annotations

import json

from ....runtime.execution.folder import tail

_BYTES, _CHARS = 64 * 1024, 500


def end_reason(path: str, since: float | None) -> str | None:
    """Return the sentence about the first container end after `since` (unix seconds), or None. That
    container ran at `since`.
    """
    found = tail(path, _BYTES)
    for line in found[1].splitlines() if found is not None else []:
        try:
            entry = json.loads(line)
            at, reason = entry["at"], entry["sentence"]
            if since is None or at >= since:
                return str(reason)[:_CHARS]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return None
