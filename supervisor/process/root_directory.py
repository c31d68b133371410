"""The supervisor's root: one supervisor at a time, on a local disk, private. Secrets and addresses
that live in it.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...protocol.errors import Refusal
from ...protocol.ids import base62
from ...runtime.filesystems import (
    foreign_owner,
    make_folder,
    network_file_system,
    user_name,
    write_atomically,
)

#: Where agents find the supervisor.
ADDRESS = "agents.json"


class RootDirectory:
    """An exclusively held root folder. Raises Refusal (rootBusy, networkFileSystem, foreignRoot)
    before anything is written to it.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        existing = next(p for p in (self.path, *self.path.parents) if p.exists())
        network = network_file_system(str(existing))
        if network is not None:
            raise Refusal(
                "networkFileSystem",
                f"the root {self.path} lies on {network}, which cannot keep the log safe",
            )
        owner = foreign_owner(str(self.path)) if existing == self.path else None
        if owner is not None:
            raise Refusal(
                "foreignRoot",
                f"the root {self.path} belongs to {owner}, and this process runs as {user_name(os.geteuid())}",
            )
        try:
            make_folder(str(self.path))
            self._lock = os.open(
                self.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as e:
            raise Refusal(
                "badConfig", f"the root {self.path} cannot be used: {e.strerror}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            whose = f", pid {holder}" if holder else ""
            raise Refusal(
                "rootBusy", f"the root {self.path} is held by another supervisor{whose}"
            ) from None
        self._kept: dict[str, tuple[bytes, tuple[int, ...] | None]] = {}
        #: sentences for the log, about what was put right
        self.notes: list[str] = []
        #: names of kept files that somebody changed and that are left so
        self.altered: set[str] = set()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def secret(self, name: str) -> str:
        """A secret of this root, made when it is asked for the first time, and durable before it is
        used; 0600.
        """
        folder = self.path / "secret"
        make_folder(str(folder))
        path = folder / name
        # an empty one is what a power failure left of a file that was not synced: everybody would
        # know it
        if not path.exists() or not path.read_text().strip():
            write_atomically(str(path), base62(secrets.token_bytes(43), 43).encode(), sync=True)
        return path.read_text().strip()

    def publish(self, name: str, content: dict[str, Any]) -> None:
        """An address file, which is kept as `keep` says."""
        self.keep(name, json.dumps(content).encode())

    def keep(self, name: str, data: bytes) -> None:
        """Have this file hold `data` from now on: whole or not at all, also after a power failure;
        0600. Raises OSError.
        """
        path = self.path / name
        if _content(path) != data:
            write_atomically(str(path), data, sync=True)
        self._kept[name] = (data, _stamp(path))

    def mend(self, say: Callable[[str], None]) -> None:
        """Rewrite the files of `keep` that are missing or were changed, and say so. Cheap where
        nothing changed.

        Another address for agents is left alone and told once: somebody may have put a proxy in
        between.
        """
        while self.notes:
            say(self.notes.pop(0))
        for name, (data, stamp) in list(self._kept.items()):
            path = self.path / name
            if (now := _stamp(path)) == stamp:
                continue
            found = _content(path)
            self.altered.discard(name)
            if name == ADDRESS and found != data and _names_an_address(found):
                self._kept[name] = (data, now)
                self.altered.add(name)
                say(
                    f"{path} was changed: it names another address for agents than this supervisor's, and is left as it is"
                )
                continue
            with contextlib.suppress(OSError):  # tried again next time
                self.keep(name, data)
                if found != data:
                    say(
                        f"{path} was {'missing' if found is None else 'changed'}: it was written again"
                    )

    def close(self) -> None:
        os.close(self._lock)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written to; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _names_an_address(data: bytes | None) -> bool:
    try:
        said = json.loads(data or b"")
    except ValueError:
        return False
    return isinstance(said, dict) and isinstance(said.get("agentsUrl"), str)
