"""The port probe: it finds every kind of listener, ignores closed ones, and accepts no connection
itself.
"""

import socket

import pytest

from jobscribe.agent.host.port_probe import ports_in_use


def bound(family: int, address: str, *options: tuple[int, int, int]) -> socket.socket:
    server = socket.socket(family)
    for option in options:
        server.setsockopt(*option)
    try:
        server.bind((address, 0))
    except OSError as e:
        server.close()
        pytest.skip(
            f"this machine has no address {address} ({e.strerror}): give it IPv6 to try this"
        )
    return server


REUSE = (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
BOTH = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
SHARED = (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


@pytest.mark.process
@pytest.mark.parametrize(
    ("family", "address", "options"),
    [
        (socket.AF_INET, "127.0.0.1", ()),
        (socket.AF_INET, "127.0.0.1", (REUSE,)),
        (socket.AF_INET, "127.0.0.2", (REUSE,)),
        (socket.AF_INET, "0.0.0.0", ()),
        (socket.AF_INET, "0.0.0.0", (REUSE,)),
        (socket.AF_INET, "0.0.0.0", (REUSE, SHARED)),
        (socket.AF_INET6, "::", (BOTH,)),
        (socket.AF_INET6, "::", (BOTH, REUSE)),
    ],
)
def test_whoever_listens_is_noticed(
    family: int, address: str, options: tuple[tuple[int, int, int], ...]
) -> None:
    with bound(family, address, *options) as server:
        server.listen()
        port = server.getsockname()[1]
        assert ports_in_use([port]) == [port]
    assert ports_in_use([port]) == []


@pytest.mark.process
def test_of_many_the_taken_ones_in_their_order() -> None:
    servers = [bound(socket.AF_INET, "127.0.0.1") for _ in range(4)]
    ports = [s.getsockname()[1] for s in servers]
    for s in servers:
        s.listen()
    servers[1].close()
    assert ports_in_use(reversed(ports)) == [ports[3], ports[2], ports[0]]
    for s in servers:
        s.close()
    assert ports_in_use([]) == ports_in_use(ports) == []


@pytest.mark.process
def test_connections_of_a_server_that_has_ended_do_not_keep_its_port() -> None:
    """The server closed its side first, so its connections stay in TIME_WAIT for a minute."""
    with bound(socket.AF_INET, "127.0.0.1", REUSE) as server:
        server.listen()
        port = server.getsockname()[1]
        peer = socket.create_connection(("127.0.0.1", port))
        ours, _ = server.accept()
        ours.close()
        assert peer.recv(1) == b""
        peer.close()
    with open("/proc/net/tcp") as table:
        assert any(
            line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "06"
            for line in table.readlines()[1:]
        ), "TIME_WAIT"
    assert ports_in_use([port]) == []


@pytest.mark.process
def test_who_waits_for_a_server_is_not_let_in_by_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even a short listen would accept connections from clients that retry until the server is up."""
    with bound(socket.AF_INET, "127.0.0.1") as found:
        port = found.getsockname()[1]
    listened = []
    monkeypatch.setattr(
        socket.socket, "listen", lambda self, *backlog: listened.append(self.getsockname())
    )
    assert ports_in_use([port]) == [] and listened == []
