"""Machines of a network for tests: network namespaces of this kernel, joined by a bridge in one more,
with links that can be cut, slow and lossy. Needs root.
"""

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)


class Machine:
    """name: of its namespace. within: prefix of a command that is to run on it."""

    def __init__(self, net: str, number: int) -> None:
        self.name, self.ip = f"{net}m{number}", f"10.77.0.{number}"
        self.within = ("ip", "netns", "exec", self.name)
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", "eth0", "netns", self.name, "type", "veth")
        _run("ip", "-n", self.name, "link", "set", "veth0", "name", f"v{number}", "netns", net)
        _run("ip", "-n", net, "link", "set", f"v{number}", "master", "bridge", "up")
        for link in ("lo", "eth0"):
            _run("ip", "-n", self.name, "link", "set", link, "up")
        _run("ip", "-n", self.name, "address", "add", f"{self.ip}/24", "dev", "eth0")

    def cut(self, other: "Machine", *, inwards: bool = True, outwards: bool = True) -> None:
        """Drop all packets from and to another machine: nothing is refused or closed."""
        if inwards:
            self._filter("INPUT", "-s", other.ip)
        if outwards:
            self._filter("OUTPUT", "-d", other.ip)

    def lossy(self, share: float) -> None:
        """Drop this share of the packets in each direction."""
        rule = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        self._filter("INPUT", "-i", "eth0", *rule)
        self._filter("OUTPUT", "-o", "eth0", *rule)

    def slow(self, kbit: int) -> None:
        """Limit the rate at which this machine sends; what is too much waits up to 0.4 s."""
        rate = ("rate", f"{kbit}kbit", "burst", "4kb", "latency", "400ms")
        _run(*self.within, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)

    def mend(self) -> None:
        _run(*self.within, "iptables", "-w", "-F")
        subprocess.run(
            [*self.within, "tc", "qdisc", "del", "dev", "eth0", "root"], capture_output=True
        )

    def connected(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a connection that a client on this machine makes. Raises OSError."""
        made: list[socket.socket] = []
        failed: list[OSError] = []

        def connect() -> None:
            try:
                with open(f"/run/netns/{self.name}") as space:
                    if _libc.setns(space.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                made.append(socket.create_connection((host, port), timeout))
            except OSError as e:
                failed.append(e)

        # the namespace is that of a thread
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return made[0]

    def _filter(self, chain: str, *rule: str) -> None:
        _run(*self.within, "iptables", "-w", "-A", chain, *rule, "-j", "DROP")


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Make machines that reach each other. Skips the test where that is not allowed."""
    missing = [p for p in ("ip", "iptables", "tc") if shutil.which(p) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"only root can make networks; missing programs: {missing or 'none'}")
    net = f"jsn{os.getpid()}x{next(_numbers)}"
    names = [net, *(f"{net}m{n}" for n in range(1, count + 1))]
    try:
        if subprocess.run(["ip", "netns", "add", net], capture_output=True).returncode:
            pytest.skip("this machine allows no network namespaces")
        _run("ip", "-n", net, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", net, "link", "set", "bridge", "up")
        yield [Machine(net, n) for n in range(1, count + 1)]
    finally:
        for name in reversed(names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
