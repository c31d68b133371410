"""Search the memory of a process for tokens. The log stores only digests of tokens.

A test that searches for a token elsewhere must know it. A token in memory also proves that the
search works.
"""

import hashlib
import re
from collections.abc import Iterator

from consistency_check import events
from supervisor_process import SupervisorProcess, until

#: Words of at least a token's length. With exactly that length, it would have to look around each.
_WORD, _CHARS = re.compile(rb"[A-Za-z0-9]{32,}"), 32


def tokens_in(site: SupervisorProcess, pid: int) -> list[str]:
    """Return the agents' tokens of this site that are in the memory of this process. Only root can
    read a process that is not dumpable.
    """
    digests = {
        e["event"]["tokenHash"] for e in events(site.root) if e["type"] == "AgentStartRequested"
    }

    def look() -> list[str]:
        words = {
            word.decode()
            for content in _written(pid)
            for word in _WORD.findall(content)
            if len(word) == _CHARS
        }
        return sorted(
            word for word in words if hashlib.sha256(word.encode()).hexdigest() in digests
        )

    found: list[str] = until(
        look,
        f"a token is found in the memory of {pid}: without it none would be seen elsewhere",
    )
    return found


def _written(pid: int) -> Iterator[bytes]:
    """Yield the content of each writable region, except large ones."""
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
            except OSError:  # the running process has released this region
                continue
            yield content or b""
