"""The supervisor's root: one supervisor at a time, on a local disk, private. Secrets and addresses that live in it."""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from ..protocol.errors import Refusal
from ..protocol.ids import base62
from ..runtime.filesystems import foreign_owner, make_folder, network_file_system, user_name, write_atomically


class Root:
    """An exclusively held root folder. Raises Refusal (rootBusy, networkFileSystem, foreignRoot) before anything is written to it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        existing = next(p for p in (self.path, *self.path.parents) if p.exists())
        network = network_file_system(str(existing))
        if network is not None:
            raise Refusal("networkFileSystem", f"the root {self.path} lies on {network}, which cannot keep the log safe")
        owner = foreign_owner(str(self.path)) if existing == self.path else None
        if owner is not None:
            raise Refusal("foreignRoot", f"the root {self.path} belongs to {owner}, and this process runs as {user_name(os.geteuid())}")
        try:
            make_folder(str(self.path))
            self._lock = os.open(self.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise Refusal("badConfig", f"the root {self.path} cannot be used: {e.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            whose = f", pid {holder}" if holder else ""
            raise Refusal("rootBusy", f"the root {self.path} is held by another supervisor{whose}") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def secret(self, name: str) -> str:
        """A secret of this root, made when it is asked for the first time, and durable before it is used; 0600."""
        folder = self.path / "secret"
        make_folder(str(folder))
        path = folder / name
        # an empty one is what a power failure left of a file that was not synced: everybody would know it
        if not path.exists() or not path.read_text().strip():
            write_atomically(str(path), base62(secrets.token_bytes(43), 43).encode(), sync=True)
        return path.read_text().strip()

    def publish(self, name: str, content: dict[str, Any]) -> None:
        """An address file: whole or not at all, also after a power failure; 0600."""
        write_atomically(str(self.path / name), json.dumps(content).encode(), sync=True)

    def close(self) -> None:
        os.close(self._lock)
