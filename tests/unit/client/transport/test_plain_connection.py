"""The connection of small requests: every framing of an answer, and no answer that is not whole."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpcore
import pytest

from jobscribe.client.transport.plain_connection import PlainConnection

REQUEST_BODY = b'{"a": 1}'


def request(target: bytes = b"/api/x", method: str = "POST", **headers: str) -> httpcore.Request:
    return httpcore.Request(
        method,
        httpcore.URL(scheme=b"http", host=b"h", port=1, target=target),
        headers=[
            (b"Host", b"h"),
            (b"Content-Length", b"%d" % len(REQUEST_BODY)),
            *((n.encode(), v.encode()) for n, v in headers.items()),
        ],
        content=REQUEST_BODY,
        extensions={"timeout": {"connect": 5.0, "read": 5.0, "write": 5.0}},
    )


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[PlainConnection]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            peer, _ = listener.accept()
            with peer:
                serve(peer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        connection = PlainConnection(
            httpcore.Origin(b"http", b"127.0.0.1", listener.getsockname()[1])
        )
        try:
            yield connection
        finally:
            connection.close()
            thread.join(10)


def saying(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "status", "body", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end", False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: r\r\n\r\n",
            200,
            b"abcde",
            True,
        ),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\n!",
            503,
            b"!",
            True,
        ),
    ],
)
def test_an_answer_is_read_to_its_end(answer: bytes, status: int, body: bytes, kept: bool) -> None:
    with serving(saying(answer)) as connection:
        got, _, content = connection.exchange(request())
        assert (got, content, connection.is_idle()) == (status, body, kept)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        b"HTTP/1.1 200 OK\r\nContent Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    ],
)
def test_what_is_no_whole_answer_is_refused_and_the_connection_not_kept(answer: bytes) -> None:
    with serving(saying(answer)) as connection:
        with pytest.raises((httpcore.RemoteProtocolError, ConnectionError)):
            connection.exchange(request())
        assert not connection.is_idle()


def test_head_and_body_arrive_in_one_piece_and_the_connection_is_used_again() -> None:
    seen: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        for _ in range(3):
            seen.append(peer.recv(65536))
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with serving(serve) as connection:
        for _ in range(3):
            connection.exchange(request(Name="value"))
    assert (
        seen
        == [
            b"POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\nName: value\r\n\r\n"
            + REQUEST_BODY
        ]
        * 3
    )


def test_an_idle_connection_that_has_something_to_read_has_expired() -> None:
    go = threading.Event()

    def serve(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        go.wait(10)

    with serving(serve) as connection:
        connection.exchange(request())
        assert connection.is_idle() and not connection.has_expired()
        go.set()  # the server closes
        sock = connection._socket
        assert sock is not None and sock.recv(1) == b""
        assert connection.has_expired()


def test_an_early_answer_is_heard_although_the_request_could_not_be_sent() -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(10)
        peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 20):
            pass

    with serving(serve) as connection:
        assert connection.exchange(request())[0] == 413


@pytest.mark.parametrize("target", [b"/a b", b"/a\r\nX: y", b""])
def test_a_path_that_would_add_to_the_request_is_not_sent(target: bytes) -> None:
    with pytest.raises(httpcore.LocalProtocolError):
        PlainConnection(httpcore.Origin(b"http", b"127.0.0.1", 9)).exchange(request(target))


def test_a_header_that_would_add_to_the_request_is_not_sent() -> None:
    with pytest.raises(httpcore.LocalProtocolError):
        PlainConnection(httpcore.Origin(b"http", b"127.0.0.1", 9)).exchange(
            request(Name="a\r\nX: y")
        )
