"""Which unix user opened a TCP connection from this machine. The kernel says it; nothing that the sender writes is used.

One question to `sock_diag` (netlink) costs 0.1 ms however many connections there are. Where a machine has no `sock_diag`,
the table in /proc is read.
"""

import contextlib
import ipaddress
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping

Address = tuple[str, int]

_TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
#: Fields of a line of the table. An entry with inode 0 belongs to no process any more, and its uid is that of nobody.
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEAD = struct.Struct("=IHHII")
#: struct inet_diag_req_v2: family, protocol, extensions, padding, states; then struct inet_diag_sockid.
_ASKED, _PORTS, _ANYWHERE = struct.Struct("=BBBBI"), struct.Struct("!HH"), struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_ID_AT, _ID_BYTES = 4, 48
#: struct inet_diag_msg, after the sockid: expires, rqueue, wqueue, uid, inode.
_TOLD = struct.Struct("=IIIII")
_ALL_STATES = 0xFFFFFFFF


def owner(peer: Address, here: Address, tables: Mapping[int, str] | None = None) -> int | None:
    """The unix uid that opened the connection from `peer` to `here`.

    None: it comes from another machine, or the process at the other end has closed it already. tables: files in place of the kernel.
    """
    source, target = _plain(peer[0]), _plain(here[0])
    if source.version != target.version:
        return None
    if tables is None:
        with contextlib.suppress(OSError):
            return _KERNEL.owner(_id(source, peer[1], target, here[1]), socket.AF_INET if source.version == 4 else socket.AF_INET6)
    return _in_tables(_TABLES if tables is None else tables, (source, peer[1]), (target, here[1]))


class _Kernel:
    """One netlink socket for the process: asking takes no descriptor, also where none is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._numbers = itertools.count(1)

    def owner(self, wanted: bytes, family: int) -> int | None:
        """Raises OSError where the kernel does not answer such questions."""
        with self._lock:
            number = next(self._numbers) & 0xFFFFFFFF
            body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + wanted
            asked = self._opened()
            asked.send(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, number, 0) + body)
            answer = asked.recv(4096, socket.MSG_DONTWAIT)
            while _HEAD.unpack_from(answer)[3] != number:
                answer = asked.recv(4096, socket.MSG_DONTWAIT)
        if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
            code = -struct.unpack_from("=i", answer, _HEAD.size)[0]
            if code == 2:  # ENOENT: there is no such connection here
                return None
            raise OSError(code, os.strerror(code))
        return _told(answer[_HEAD.size :], wanted)

    def _opened(self) -> socket.socket:
        if self._socket is None or self._pid != os.getpid():
            self._socket, self._pid = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG), os.getpid()
        return self._socket


_KERNEL = _Kernel()


def _told(answer: bytes, wanted: bytes) -> int | None:
    """The kernel may answer with a socket that listens at the same port: that one is not the connection."""
    ports_and_addresses = _PORTS.size + 32
    if answer[_ID_AT : _ID_AT + ports_and_addresses] != wanted[:ports_and_addresses]:
        return None
    _, _, _, uid, inode = _TOLD.unpack_from(answer, _ID_AT + _ID_BYTES)
    return uid if inode else None


def _id(source: ipaddress.IPv4Address | ipaddress.IPv6Address, source_port: int,
        target: ipaddress.IPv4Address | ipaddress.IPv6Address, target_port: int) -> bytes:
    return _PORTS.pack(source_port, target_port) + source.packed.ljust(16, b"\0") + target.packed.ljust(16, b"\0") + _ANYWHERE


def _plain(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address that a socket of IPv6 shows in its own form is one of IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _in_tables(tables: Mapping[int, str], source: tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int],
               target: tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]) -> int | None:
    wanted = _entry(*source), _entry(*target)
    for line in _lines(tables[source[0].version]):
        fields = line.split()
        if len(fields) > _INODE and (fields[_LOCAL], fields[_REMOTE]) == wanted:
            return int(fields[_UID]) if fields[_INODE] != "0" else None
    return None


def _entry(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    """As the table has it: words of four bytes in the machine's order, in hexadecimal."""
    words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
    return "".join(f"{w:08X}" for w in words) + f":{port:04X}"


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="ascii") as f:
            next(f, None)
            yield from f
    except OSError:
        return  # no such protocol here
