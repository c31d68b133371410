"""Who listens on a port of this machine: this root, somebody else, or nobody that this user can
see. Facts only; Linux's /proc.
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
#: Titles that processes of ours give themselves: a name, then their root.
_TITLE = re.compile(r"jobscribe (?:supervisor|server) (/.*)", re.DOTALL)


def published(root: str) -> list[str]:
    """Addresses, `host:port`, at which the supervisor of this root said that it listens."""
    found: list[str] = []
    for name, keys in (("client.json", ("url", "front")), ("agents.json", ("agentsUrl",))):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                said = json.load(file)
            found += [urlsplit(said[key]).netloc for key in keys if isinstance(said.get(key), str)]
    return found


def holder(ip: str, port: int, root: str) -> Facts:
    """{"pid", "what", "ours"}: the process that listens there, and whether it is of this root; each
    None where that cannot be seen.
    """
    inodes = {inode for address, inode in _listening(port) if _meet(ip, address)}
    for pid in _pids():
        if inodes & _sockets(pid):
            title = _title(pid)
            named = _TITLE.fullmatch(title)
            # a title that did not fit is cut off at its end, and says nothing then
            cut = named is not None and named[1] != root and root.startswith(named[1])
            return {
                "pid": pid,
                "what": title,
                "ours": None if cut else named is not None and named[1] == root,
            }
    return {"pid": None, "what": None, "ours": None}


def _listening(port: int) -> list[tuple[str, str]]:
    """(address, inode) of each socket that listens on the port."""
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


def _meet(wanted: str, there: str) -> bool:
    """Would both not be listened on at once?"""
    try:
        a, b = ipaddress.ip_address(wanted), ipaddress.ip_address(there)
    except ValueError:
        return True
    return a == b or a.is_unspecified or b.is_unspecified


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that it has; none where this user may not look."""
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
