"""Which unix user sits at the other end of a connection from this machine: the kernel's table of connections says it."""

import ipaddress
import struct
from collections.abc import Iterator

_TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
_LOCAL, _REMOTE, _UID = 1, 2, 7


def owner(peer: tuple[str, int], here: tuple[str, int], tables: dict[int, str] | None = None) -> int | None:
    """The unix uid of the process that opened the connection from `peer` to `here`; None where it is not of this machine."""
    wanted = _entry(*peer), _entry(*here)
    for line in _lines((tables or _TABLES)[ipaddress.ip_address(peer[0]).version]):
        fields = line.split()
        if len(fields) > _UID and (fields[_LOCAL], fields[_REMOTE]) == wanted:
            return int(fields[_UID])
    return None


def _entry(ip: str, port: int) -> str:
    """As the table has it: words of four bytes in the machine's order, in hexadecimal."""
    raw = ipaddress.ip_address(ip).packed
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return "".join(f"{w:08X}" for w in words) + f":{port:04X}"


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="ascii") as f:
            next(f, None)
            yield from f
    except OSError:
        return  # no such protocol here
