"""The check of the lease before bytes leave through a listener of the supervisor. Answers, event
streams and messages to agents all take this way, also those that waited in a buffer.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import tornado.httpserver
import tornado.iostream


def check_sends(server: tornado.httpserver.HTTPServer, check: Callable[[], object]) -> None:
    """Call `check` before each system call that sends bytes on a connection of the server."""
    serve = server.handle_stream

    def handle_stream(stream: tornado.iostream.IOStream, address: Any) -> Awaitable[None] | None:
        send = stream.write_to_fd

        def write_to_fd(data: memoryview) -> int:
            check()
            return send(data)

        stream.write_to_fd = write_to_fd  # type: ignore[method-assign]
        return serve(stream, address)

    server.handle_stream = handle_stream  # type: ignore[method-assign, assignment]
