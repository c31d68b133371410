"""File transfer piece by piece, with one connection for each file."""

import http.client
from collections.abc import Iterable, Iterator
from types import TracebackType

from ..api.errors import own
from ..api.requests import Call
from .connection import Connection, unreachable

_CHUNK = 256 * 1024


class FileReader:
    """An open file. size: of the whole file. length: number of bytes that `pieces` yields."""

    def __init__(
        self, url: str, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._url, self._connection, self._response = url, connection, response
        self.size, self.length = self._number("X-Jobscribe-Size"), self._number("Content-Length")
        self.etag, self.last_modified = response.headers["ETag"], response.headers["Last-Modified"]

    def __enter__(self) -> "FileReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def pieces(self) -> Iterator[bytes]:
        """Yield the content.

        Raises ClientError("unreachable") if it is incomplete: the file changed, or the supervisor
        is gone.
        """
        left = self.length
        try:
            while left > 0:
                piece = self._response.read1(min(_CHUNK, left))
                if not piece:
                    raise ConnectionError(f"the file ended {left} bytes too early")
                left -= len(piece)
                yield piece
        except (OSError, http.client.HTTPException) as e:
            raise unreachable(self._url, e) from None

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def _number(self, name: str) -> int:
        try:
            return int(self._response.headers[name])
        except (TypeError, ValueError):
            self.close()
            raise own("notASupervisor", f"the answer to run-file lacks {name}") from None


def send(
    connection: Connection, call: Call, pieces: Iterable[bytes], size: int, idle_secs: float
) -> bytes:
    """Send a body of `size` bytes. Return the successful answer.

    Raises ClientError, and any exception of `pieces`.
    """
    headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
    own_connection, response = connection.stream(
        call.path, headers, idle_secs, method=call.method, body=pieces
    )
    try:
        return response.read()
    except (OSError, http.client.HTTPException) as e:
        raise unreachable(connection.address().url, e) from None
    finally:
        own_connection.close()
