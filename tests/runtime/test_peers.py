"""The unix user at the other end of a connection, as the kernel says it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobscribe.runtime import peers
from jobscribe.runtime.peers import owner

KERNELS = pytest.mark.parametrize("tables", [None, peers._TABLES], ids=["sock_diag", "proc"])
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")], ids=["IPv4", "IPv6", "IPv4 at IPv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both ends of one connection: ours, and the accepted one."""
    listens, dials = request.param
    with socket.socket(socket.AF_INET6 if ":" in listens else socket.AF_INET) as server:
        if listens == "::":
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            server.bind((listens, 0))
        except OSError:
            pytest.skip("this machine has no such loopback address")
        server.listen(1)
        with socket.create_connection((dials, server.getsockname()[1])) as client, server.accept()[0] as accepted:
            yield client, accepted


@KERNELS
def test_the_kernel_knows_whose_connection_it_is(pair: Pair, tables: dict[int, str] | None) -> None:
    _, accepted = pair
    peer, here = accepted.getpeername()[:2], accepted.getsockname()[:2]
    assert owner(peer, here, tables) == os.geteuid()
    assert owner((peer[0], 1), here, tables) is None


@KERNELS
def test_a_connection_that_its_process_has_closed_is_nobodys(pair: Pair, tables: dict[int, str] | None) -> None:
    """The kernel calls it root's: its request must not count as one of root."""
    client, accepted = pair
    peer, here = accepted.getpeername()[:2], accepted.getsockname()[:2]
    client.sendall(b"GET / HTTP/1.1\r\n")
    client.close()
    assert owner(peer, here, tables) is None


def test_another_users_connection_is_told_from_ours(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    row = "  1: 0100007F:C350 0100007F:1F40 01 00000000:00000000 00:00000000 00000000  1001        0 7 1 0000000000000000"
    table.write_text("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n" + row + "\n")
    assert owner(("127.0.0.1", 50000), ("127.0.0.1", 8000), {4: str(table)}) == 1001
    assert owner(("127.0.0.1", 50001), ("127.0.0.1", 8000), {4: str(table)}) is None
