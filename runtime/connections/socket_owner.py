"""The unix user at the other end of a local TCP connection, according to the kernel. Nothing that
the peer sends counts.

Asks the kernel for this one socket (NETLINK_SOCK_DIAG, see sock_diag(7)). If the kernel does not
answer, its tables in /proc/net are read, which takes 10 ms or more. A socket that no process has
open any more has no owner: the kernel reports user 0 for it.
"""

import atexit
import contextlib
import errno
import ipaddress
import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping

Address = tuple[str, int]
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
#: Fields of a line of the table.
_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9
#: States of a peer that may have sent a request: ESTABLISHED, FIN_WAIT1, FIN_WAIT2. A socket in
#: SYN_SENT belongs to a later connection on the same port.
_OPEN = (1, 4, 5)

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEAD = struct.Struct("=IHHII")
#: struct inet_diag_req_v2: family, protocol, extensions, padding, states; then struct
#: inet_diag_sockid.
_QUERY, _PORTS, _ANYWHERE = (
    struct.Struct("=BBBBI"),
    struct.Struct("!HH"),
    struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF),
)
_ID_AT, _ID_BYTES = 4, 48
#: struct inet_diag_msg, after the sockid: expires, rqueue, wqueue, uid, inode.
_ANSWER = struct.Struct("=IIIII")
_ALL_STATES = 0xFFFFFFFF


def owner(peer: Address, here: Address, tables: Mapping[int, str] | None = None) -> int | None:
    """Return the uid of the owner of socket `peer`, which is connected to `here`. None if no
    process of this machine has it open.

    tables: paths of the kernel's tables by IP version; for tests.
    """
    try:
        source, target = _normalised(peer[0]), _normalised(here[0])
    except ValueError:
        return None
    if tables is None:
        with contextlib.suppress(OSError):
            return _KERNEL.owner(
                _id(source, peer[1], target, here[1]),
                socket.AF_INET if source.version == 4 else socket.AF_INET6,
            )
    return _find_in_tables(
        _TABLES if tables is None else tables, (source, peer[1]), (target, here[1])
    )


class _Kernel:
    """A netlink socket for the whole process, so that a query needs no new descriptor, even if none
    is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._numbers = itertools.count(1)
        #: Whether the kernel has answered a query for a single socket. If it never has, "not found"
        #: may mean that it cannot.
        self._answers = False

    def owner(self, wanted: bytes, family: int) -> int | None:
        """Return the owner. Raise OSError if the kernel does not answer such queries."""
        with self._lock:
            number = next(self._numbers) & 0xFFFFFFFF
            body = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + wanted
            netlink = self._opened()
            netlink.send(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, number, 0) + body)
            answer = netlink.recv(4096, socket.MSG_DONTWAIT)
            while _HEAD.unpack_from(answer)[3] != number:
                answer = netlink.recv(4096, socket.MSG_DONTWAIT)
        if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
            code = -struct.unpack_from("=i", answer, _HEAD.size)[0]
            if code == errno.ENOENT and self._answers:
                return None
            raise OSError(code, os.strerror(code))
        self._answers = True
        return _owner_in(answer[_HEAD.size :], wanted, family)

    def _opened(self) -> socket.socket:
        if self._socket is None or self._pid != os.getpid():
            self.close()
            self._socket, self._pid = (
                socket.socket(
                    socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG
                ),
                os.getpid(),
            )
        return self._socket

    def close(self) -> None:
        """Close the socket. The next query opens another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_KERNEL = _Kernel()
atexit.register(_KERNEL.close)


def _owner_in(answer: bytes, wanted: bytes, family: int) -> int | None:
    """Return the owner from the kernel's answer. The answer may name a listening socket on the same
    port, which is not the connection.
    """
    if _normalised_id(answer[0], answer[_ID_AT:]) != _normalised_id(family, wanted):
        return None
    _, _, _, uid, inode = _ANSWER.unpack_from(answer, _ID_AT + _ID_BYTES)
    return _user(answer[1], uid, inode)


def _normalised_id(family: int, id_: bytes) -> tuple[bytes, _IP, _IP]:
    """Return ports and addresses. An IPv4 connection may belong to an IPv6 socket."""
    length = 4 if family == socket.AF_INET else 16
    first = _PORTS.size
    source, target = (
        _normalised(str(ipaddress.ip_address(id_[at : at + length]))) for at in (first, first + 16)
    )
    return id_[:first], source, target


def _user(state: int, uid: int, inode: int) -> int | None:
    return uid if inode != 0 and state in _OPEN else None


def _id(source: _IP, source_port: int, target: _IP, target_port: int) -> bytes:
    return (
        _PORTS.pack(source_port, target_port)
        + source.packed.ljust(16, b"\0")
        + target.packed.ljust(16, b"\0")
        + _ANYWHERE
    )


def _normalised(ip: str) -> _IP:
    """Return the address; an IPv4-mapped IPv6 address as IPv4."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _find_in_tables(
    tables: Mapping[int, str], source: tuple[_IP, int], target: tuple[_IP, int]
) -> int | None:
    pairs = {
        (_entry(*source), _entry(*target)),
        (_entry(_mapped(source[0]), source[1]), _entry(_mapped(target[0]), target[1])),
    }
    for path in tables.values():
        for line in _lines(path):
            fields = line.split()
            if len(fields) > _INODE and (fields[_LOCAL], fields[_REMOTE]) in pairs:
                return _user(int(fields[_STATE], 16), int(fields[_UID]), int(fields[_INODE]))
    return None


def _mapped(ip: _IP) -> _IP:
    """Return the address as an IPv6 socket shows it."""
    return ipaddress.ip_address(f"::ffff:{ip}") if ip.version == 4 else ip


def _entry(ip: _IP, port: int) -> str:
    """Return the address in the form of the table: four-byte words in the machine's order, in
    hexadecimal.
    """
    words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
    return "".join(f"{w:08X}" for w in words) + f":{port:04X}"


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="ascii") as f:
            next(f, None)
            yield from f
    except OSError:
        return  # this protocol is not available
