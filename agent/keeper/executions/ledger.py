"""Paths and names of the keeper's files in an agent's folder. No decisions.

<folder>/keeper.lock, keeper.json     lock: one keeper at a time; identity of the keeper
<folder>/container.log                ends of its containers, a JSON line each, from the driver; only in containers
<folder>/ledger/<name>                one entry (its token) per execution that the agent has not forgotten
<folder>/run/<name>/                  evidence of one execution (see runtime.execution.folder); creating it consumes the fencing token
"""

from __future__ import annotations

import contextlib
import os
import re

from ....runtime.execution.folder import read, write

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,249}\Z")


def is_valid_name(name: object) -> bool:
    """Return whether `name` is a valid name of an evidence folder."""
    return isinstance(name, str) and _NAME.match(name) is not None


class KeeperLedger:
    """Paths below one agent's folder. The folder's path holds no symbolic links, so that /proc
    shows the same paths.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.runs = os.path.join(self.folder, "run")
        self.ledger = os.path.join(self.folder, "ledger")
        self.container_log = os.path.join(self.folder, "container.log")

    def make(self) -> None:
        for path in (self.folder, self.runs, self.ledger):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def evidence(self, name: str) -> str:
        return f"{self.runs}/{name}"

    def add_entry(self, name: str, token: str) -> None:
        """Write the ledger's entry."""
        write(f"{self.ledger}/{name}", token.encode())

    def remove_entry(self, name: str) -> None:
        """Delete the entry, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.ledger}/{name}")

    def entries(self) -> list[tuple[str, str]]:
        """Return (name, token) of every entry, sorted by name."""
        names = sorted(n for n in os.listdir(self.ledger) if is_valid_name(n))
        return [
            (n, (read(f"{self.ledger}/{n}", 4096) or b"").decode("utf-8", "replace")) for n in names
        ]
