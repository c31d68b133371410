"""The supervisor's root: one supervisor at a time, on a local disk, private. Secrets and addresses that live in it."""

import fcntl
import json
import os
import secrets
from pathlib import Path
from typing import Any

from ..protocol.errors import Refusal
from ..protocol.ids import base62
from ..runtime.filesystems import network_file_system, write_atomically


class Root:
    """An exclusively held root folder. Raises Refusal (rootBusy, networkFileSystem, unsafe) before anything is written to it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        existing = next(p for p in (self.path, *self.path.parents) if p.exists())
        network = network_file_system(str(existing))
        if network is not None:
            raise Refusal("networkFileSystem", f"the root {self.path} lies on {network}, which cannot keep the log safe")
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
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
        """A secret of this root, made when it is asked for the first time; 0600."""
        folder = self.path / "secret"
        folder.mkdir(exist_ok=True, mode=0o700)
        path = folder / name
        if not path.exists():
            write_atomically(str(path), base62(secrets.token_bytes(43), 43).encode())
        return path.read_text().strip()

    def publish(self, name: str, content: dict[str, Any]) -> None:
        """An address file: whole or not at all, 0600."""
        write_atomically(str(self.path / name), json.dumps(content).encode())

    def close(self) -> None:
        os.close(self._lock)
