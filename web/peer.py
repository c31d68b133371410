"""The unix user at the other end of a TCP connection on this machine. The kernel says it; nothing that the peer sends counts.

Asks the kernel for the one socket (NETLINK_SOCK_DIAG, see sock_diag(7)). Where it does not answer, its tables below /proc/net are read,
which takes 10 ms and more. A socket that no process has open any more belongs to nobody: for such sockets the kernel says "user 0".
"""

import ipaddress
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterator

from ..protocol.errors import Refusal
from ..runtime.log import Log

Address = tuple[str, int]

_TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9
#: States of a peer that may have sent a request: ESTABLISHED, FIN_WAIT1, FIN_WAIT2. One in SYN_SENT is a later socket on the same port.
_OPEN = (1, 4, 5)
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER, _ERROR = 16, 2
#: Of struct inet_diag_msg: where uid and inode are.
_UID_AT, _ANSWER_BYTES = 64, 72
_NO_COOKIE, _ALL_STATES = 0xFFFFFFFF, 0xFFFFFFFF


class Gate:
    """Lets in this process's unix user, and root. owner: the unix user of a peer (default: the kernel's word)."""

    def __init__(self, log: Log, owner: Callable[[Address, Address], int | None] | None = None) -> None:
        self._log, self.owner = log, owner or Peers().owner
        #: Connections that were let in: a socket does not change its owner.
        self._let_in: weakref.WeakSet[object] = weakref.WeakSet()

    def check(self, connection: object, sock: socket.socket | None) -> None:
        """Raises Refusal("forbidden") for anybody else, and where nobody knows. Called for each request. sock: None once it is closed."""
        if connection in self._let_in:
            return
        try:
            uid = None if sock is None else self.owner(sock.getpeername()[:2], sock.getsockname()[:2])
        except OSError:
            uid = None  # the connection has gone
        if uid not in (0, os.geteuid()):
            self._log("refused a request of unix uid {}", "unknown" if uid is None else uid)
            raise Refusal("forbidden", "this site is for the unix user who started it; start your own with 'jobscribe up'")
        self._let_in.add(connection)


class Peers:
    """tables: of the kernel's, by version of IP; for tests."""

    def __init__(self, tables: dict[int, str] | None = None) -> None:
        self._tables = tables or _TABLES
        #: Does the kernel answer about single sockets? Where it was never seen to, "there is none" may mean that it cannot.
        self._answers = False

    def owner(self, peer: Address, here: Address) -> int | None:
        """Return the uid of the user whose socket `peer` is, connected to `here`; None where no process of this machine has it open."""
        try:
            theirs, ours = ((_plain(ip), port) for ip, port in (peer, here))
            if self._tables is _TABLES:
                found = _asked(theirs, ours)
                self._answers = self._answers or found is not None
                if self._answers:
                    return _user(*found) if found is not None else None
        except (OSError, ValueError):
            self._answers = False
        return self._listed(peer, here)

    def _listed(self, peer: Address, here: Address) -> int | None:
        try:
            pairs = {(_entry(*peer), _entry(*here)), (_entry(_mapped(peer[0]), peer[1]), _entry(_mapped(here[0]), here[1]))}
        except ValueError:
            return None
        for path in self._tables.values():
            for line in _lines(path):
                fields = line.split()
                if len(fields) > _INODE and (fields[_LOCAL], fields[_REMOTE]) in pairs:
                    return _user(int(fields[_STATE], 16), int(fields[_UID]), int(fields[_INODE]))
        return None


def _user(state: int, uid: int, inode: int) -> int | None:
    return uid if inode != 0 and state in _OPEN else None


def _asked(peer: Address, here: Address) -> tuple[int, int, int] | None:
    """State, uid and inode of the peer's socket; None where there is none. Raises OSError where the kernel cannot be asked."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    source, destination = (socket.inet_pton(family, ip).ljust(16, b"\0") for ip in (peer[0], here[0]))
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    body += struct.pack("!HH", peer[1], here[1]) + source + destination + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _SOCK_DIAG) as kernel:
        kernel.sendto(struct.pack("=IHHII", _HEADER + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body, (0, 0))
        answer = kernel.recv(4096)  # it is there when sendto returns
    kind = struct.unpack_from("=H", answer, 4)[0]
    if kind == _ERROR or len(answer) < _HEADER + _ANSWER_BYTES:
        return None
    uid, inode = struct.unpack_from("=II", answer, _HEADER + _UID_AT)
    return answer[_HEADER + 1], uid, inode


def _plain(ip: str) -> str:
    """An IPv4 address that is written as one of IPv6, as the former."""
    address = ipaddress.ip_address(ip)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _mapped(ip: str) -> str:
    """The other way to write an IPv4 address: each end has the one that its socket is of."""
    plain = _plain(ip)
    return plain if plain != ip or ":" in ip else f"::ffff:{ip}"


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
