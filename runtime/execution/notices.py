"""The file with the notices of an execution (protocol.jobs.notices), one JSON object in each line.
Pure, and standard library only: keepers use it. The job may write anything there.
"""

from __future__ import annotations

import json

#: The file, in the evidence folder, and its bytes that are read.
NOTICES, NOTICES_BYTES = "notices.jsonl", 16 * 1024
CODES = ("sshUnavailable", "debuggerMissing", "debuggerUnreachable")
_MOST, _CHARS = 8, 300


def parse_notices(data: bytes | None) -> list[dict[str, str]]:
    """Return `code` and `text` of each notice once; invalid lines are left out."""
    found: list[dict[str, str]] = []
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict) or row.get("code") not in CODES:
            continue
        text = "".join(c if c.isprintable() else " " for c in str(row.get("text", "")))
        notice = {"code": str(row["code"]), "text": text[:_CHARS]}
        if notice not in found:
            found.append(notice)
    return found[:_MOST]


def notice_line(code: str, text: str) -> str:
    """Return the line of a notice, without a newline."""
    assert code in CODES
    return json.dumps({"code": code, "text": text})
