"""Why an earlier container of this agent ended, in the words of the driver that saw it. In a user's
folder anything may stand there.
"""

from __future__ import annotations

import json

from ....runtime.execution.folder import tail

_BYTES, _CHARS = 64 * 1024, 500


def sentence(path: str, since: float | None) -> str | None:
    """Of the first end after this time (unix seconds), which is that of the container where
    something ran then.
    """
    found = tail(path, _BYTES)
    for line in found[1].splitlines() if found is not None else []:
        try:
            said = json.loads(line)
            at, words = said["at"], said["sentence"]
            if since is None or at >= since:
                return str(words)[:_CHARS]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return None
