"""The supervisor's root directory: exclusive, on a local disk, private. Manages its secrets and
address files.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
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

#: File with the address of the supervisor for agents.
ADDRESS = "agents.json"


class RootDirectory:
    """A locked root directory. Raises Refusal (rootBusy, networkFileSystem, foreignRoot) before it
    writes anything. shared: with other supervisors that stand by, of which a lease selects one; their
    root may be on a network file system, because the log is elsewhere.
    """

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self.path, self._shared = Path(path).resolve(), shared
        #: Called before a kept file is written. A supervisor that lost its lease must not do it.
        self.before_write: Callable[[], object] = lambda: None
        existing = next(p for p in (self.path, *self.path.parents) if p.exists())
        network = network_file_system(str(existing))
        if network is not None and not shared:
            raise Refusal(
                "networkFileSystem",
                f"the root {self.path} lies on {network}, where the log is not safe; put it on a local disk",
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
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            whose = f", pid {holder}" if holder else ""
            raise Refusal(
                "rootBusy", f"the root {self.path} is in use by another supervisor{whose}"
            ) from None
        self._kept: dict[str, tuple[bytes, tuple[int, ...] | None]] = {}
        #: Log sentences about repaired files.
        self.notes: list[str] = []
        #: Names of kept files that were changed by others and are not repaired.
        self.altered: set[str] = set()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other supervisors of a shared root out of the block."""
        lock = os.open(
            self.path / "supervisor.start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def secret(self, name: str) -> str:
        """Return a secret of this root. Create it on first use; it is durable before it is
        returned. Mode 0600.
        """
        folder = self.path / "secret"
        make_folder(str(folder))
        path = folder / name
        # An empty file is a leftover of a power failure during an unsynced write. An empty secret
        # would be known to everybody.
        if not path.exists() or not path.read_text().strip():
            write_atomically(str(path), base62(secrets.token_bytes(43), 43).encode(), sync=True)
        return path.read_text().strip()

    def publish(self, name: str, content: dict[str, Any]) -> None:
        """Write an address file and keep it, as `keep` does."""
        self.keep(name, json.dumps(content).encode())

    def keep(self, name: str, data: bytes) -> None:
        """Write a file atomically and durably, and repair it from now on. Mode 0600. Raises
        OSError.
        """
        path = self.path / name
        if _read(path) != data:
            self.before_write()
            write_atomically(str(path), data, sync=True)
        self._kept[name] = (data, _stamp(path))

    def repair(self, log: Callable[[str], None]) -> None:
        """Rewrite files of `keep` that are missing or changed, and log it. Cheap without changes.

        A different address for agents is kept and logged once: it may be the address of a proxy. In a
        shared root it is that of an earlier supervisor.
        """
        self.before_write()
        while self.notes:
            log(self.notes.pop(0))
        for name, (data, stamp) in list(self._kept.items()):
            path = self.path / name
            if (now := _stamp(path)) == stamp:
                continue
            found = _read(path)
            self.altered.discard(name)
            proxy = name == ADDRESS and not self._shared and _names_an_address(found)
            if proxy and found != data:
                self._kept[name] = (data, now)
                self.altered.add(name)
                log(
                    f"{path} was changed: it has an address for agents that is not this supervisor's; the change is kept"
                )
                continue
            with contextlib.suppress(OSError):  # the next call tries again
                self.keep(name, data)
                if found != data:
                    log(
                        f"{path} was {'missing' if found is None else 'changed'}: it was written again"
                    )

    def close(self) -> None:
        os.close(self._lock)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return values that change with the file, or None without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _names_an_address(data: bytes | None) -> bool:
    try:
        content = json.loads(data or b"")
    except ValueError:
        return False
    return isinstance(content, dict) and isinstance(content.get("agentsUrl"), str)
