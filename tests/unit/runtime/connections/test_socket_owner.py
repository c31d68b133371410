"""The unix user of a connection's peer, according to the kernel."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobscribe.runtime.connections import socket_owner
from jobscribe.runtime.connections.socket_owner import owner

KERNELS = pytest.mark.parametrize("tables", [None, socket_owner._TABLES], ids=["asked", "listed"])


@contextlib.contextmanager
def connected(ip: str, theirs: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client socket and its accepted peer. theirs: the server address as the client writes
    it.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as server:
        try:
            server.bind((ip, 0))
        except OSError:
            pytest.skip("this machine has no such loopback address")
        server.listen(1)
        with socket.socket(socket.AF_INET6 if ":" in (theirs or ip) else socket.AF_INET) as client:
            client.connect((theirs or ip, server.getsockname()[1]))
            accepted, _ = server.accept()
            with accepted:
                yield client, accepted


def owner_of(accepted: socket.socket, tables: dict[int, str] | None) -> int | None:
    return owner(accepted.getpeername()[:2], accepted.getsockname()[:2], tables)


@KERNELS
@pytest.mark.parametrize(
    ("ip", "theirs"),
    [
        ("127.0.0.1", ""),
        ("::1", ""),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_kernel_knows_whose_connection_it_is(
    ip: str, theirs: str, tables: dict[int, str] | None
) -> None:
    with connected(ip, theirs) as (client, accepted):
        assert owner_of(accepted, tables) == os.geteuid()
        assert owner((ip, 1), accepted.getsockname()[:2], tables) is None
        client.shutdown(socket.SHUT_WR)
        assert owner_of(accepted, tables) == os.geteuid(), "it still waits for its answer"
        client.close()
        assert owner_of(accepted, tables) is None, (
            "the kernel says user 0 of a socket that nobody has open"
        )


def test_another_users_connection_is_told_from_ours(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    row = "  1: 0100007F:C350 0100007F:1F40 {} 00000000:00000000 00:00000000 00000000  1001        0 {} 1 0000000000000000\n"
    for state, inode, uid in (
        ("01", 7, 1001),
        ("04", 7, 1001),
        ("01", 0, None),
        ("02", 7, None),
        ("06", 0, None),
    ):
        table.write_text(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
            + row.format(state, inode)
        )
        assert owner(("127.0.0.1", 50000), ("127.0.0.1", 8000), {4: str(table)}) == uid
        assert owner(("127.0.0.1", 50001), ("127.0.0.1", 8000), {4: str(table)}) is None


def test_what_is_no_address_is_nobodys() -> None:
    assert owner(("", 1), ("127.0.0.1", 2)) is None
