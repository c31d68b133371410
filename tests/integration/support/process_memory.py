"""What a process has in its memory: tokens that are kept nowhere, but whose digests are in the log.

Who looks for one elsewhere has to know it, and that the process has it shows that it would be seen.
"""

import hashlib
import re
from collections.abc import Iterator

from consistency_check import events
from supervisor_process import SupervisorProcess, until

SECS = 20.0
_TOKEN = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z0-9]{32}(?![A-Za-z0-9])")


def tokens_in(site: SupervisorProcess, pid: int) -> list[str]:
    """The agents' tokens of this site that are in the memory of this process. Only root can look
    into one that hides itself.
    """
    digests = {
        e["event"]["tokenHash"] for e in events(site.root) if e["type"] == "AgentStartRequested"
    }

    def look() -> list[str]:
        words = {word.decode() for content in _written(pid) for word in _TOKEN.findall(content)}
        return sorted(
            word for word in words if hashlib.sha256(word.encode()).hexdigest() in digests
        )

    found: list[str] = until(
        look,
        f"a token is found in the memory of {pid}: without it none would be seen elsewhere",
        SECS,
    )
    return found


def _written(pid: int) -> Iterator[bytes]:
    """What it may write to, but for large regions."""
    with (
        open(f"/proc/{pid}/maps", encoding="utf-8") as maps,
        open(f"/proc/{pid}/mem", "rb", buffering=0) as memory,
    ):
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if not mode.startswith("rw") or end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except OSError:  # it goes on, and has given it back since
                continue
            yield content or b""
