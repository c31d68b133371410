"""The process that listens on a port, from Linux's /proc, as far as this user can see it. Facts
only.
"""

import contextlib
import ipaddress
import json
import os
import re
import socket
from urllib.parse import urlsplit

from .findings import Facts

_LISTENS = "0A"
_INODE = re.compile(r"socket:\[(\d+)\]")
#: Process titles of jobscribe: a name, then the root.
_TITLE = re.compile(r"jobscribe (?:supervisor|server) (/.*)", re.DOTALL)


def published(root: str) -> list[str]:
    """Return the addresses (`host:port`) that the supervisor of this root has published."""
    found: list[str] = []
    for name, keys in (("client.json", ("url", "front")), ("agents.json", ("agentsUrl",))):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                data = json.load(file)
            found += [urlsplit(data[key]).netloc for key in keys if isinstance(data.get(key), str)]
    return found


def holder(ip: str, port: int, root: str) -> Facts:
    """Return {"pid", "what", "ours"}: the pid and title of the listening process, and whether it
    belongs to this root. A value is None if unknown.
    """
    inodes = {inode for address, inode in _listening(port) if _conflict(ip, address)}
    for pid in _pids():
        if inodes & _sockets(pid):
            title = _title(pid)
            named = _TITLE.fullmatch(title)
            # A long title is cut off at its end and then does not identify its root.
            cut = named is not None and named[1] != root and root.startswith(named[1])
            return {
                "pid": pid,
                "what": title,
                "ours": None if cut else named is not None and named[1] == root,
            }
    return {"pid": None, "what": None, "ours": None}


def _listening(port: int) -> list[tuple[str, str]]:
    """Return (address, inode) of each socket that listens on the port."""
    found = []
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port:
                    raw = bytes.fromhex(address)
                    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                    found.append((socket.inet_ntop(family, words), fields[9]))
    return found


def _conflict(wanted: str, used: str) -> bool:
    """Return whether both addresses cannot be listened on at the same time."""
    try:
        a, b = ipaddress.ip_address(wanted), ipaddress.ip_address(used)
    except ValueError:
        return True
    return a == b or a.is_unspecified or b.is_unspecified


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _sockets(pid: int) -> set[str]:
    """Return the inodes of the process's sockets; empty if this user has no permission."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if match := _INODE.fullmatch(os.readlink(f"/proc/{pid}/fd/{fd}")):
                    found.add(match[1])
    return found


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
