"""Mount points of control groups, and the cgroups of this process. Standard library only, as the
keeper imports it.
"""

from __future__ import annotations

import contextlib
import os


class Mount:
    """A mounted cgroup hierarchy."""

    __slots__ = ("controllers", "point", "root", "version")

    def __init__(self, version: int, root: str, point: str, controllers: tuple[str, ...]) -> None:
        self.version, self.root, self.point, self.controllers = (
            version,
            root.rstrip("/"),
            point,
            controllers,
        )

    def folder(self, path: str | None) -> str | None:
        """Return the folder of this cgroup, or None if it is not visible below this mount point."""
        if path is None or "/.." in path or not f"{path}/".startswith(f"{self.root}/"):
            return None
        return (self.point + path[len(self.root) :]).rstrip("/")


def mounts() -> list[Mount]:
    """Return all cgroup mounts. Raises OSError."""
    out = []
    for line in os.fsdecode(read("/proc/self/mountinfo")).splitlines():
        fields = line.split()
        dash = fields.index("-")
        kind, options = fields[dash + 1], fields[dash + 3]
        if kind in ("cgroup", "cgroup2") and "\\" not in fields[4]:
            out.append(
                Mount(
                    1 if kind == "cgroup" else 2,
                    fields[3],
                    fields[4],
                    tuple(options.split(",")) if kind == "cgroup" else (),
                )
            )
    return out


def own_paths() -> dict[str, str]:
    """Return the cgroup of this process by controller; "" is version 2."""
    out: dict[str, str] = {}
    for line in os.fsdecode(read("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        out |= dict.fromkeys(controllers.split(","), path)
    return out


def is_delegated(folder: str) -> bool:
    """Return whether systemd delegates this cgroup to us."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return os.access(folder, os.W_OK)
    return False


def read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while data := os.read(fd, 8192):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(fd)
