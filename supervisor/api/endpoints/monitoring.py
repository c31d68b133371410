"""What monitoring asks for: metrics as text, and whether all is well. A token of its own is enough
for these two.
"""

from typing import Any

from ...metrics.exporter import CONTENT_TYPE
from ..transport.request_handler import Handler


async def metrics(h: Handler) -> Any:
    data = await h.services.monitoring.text()
    h.set_header("Content-Type", CONTENT_TYPE)
    h.end(data)


async def health(h: Handler) -> Any:
    return await h.services.monitoring.health.body(draining=h.desk.draining)


def seen(handler: Any) -> None:
    """Tornado has answered a request. Streams are as long as somebody reads, and say nothing."""
    if isinstance(handler, Handler) and not handler.route.streams:
        handler.services.monitoring.instruments.http.labels(
            _method(handler.request.method),
            handler.route.path,
            str(handler.get_status()),
        ).observe(handler.request.request_time())


def _method(method: str | None) -> str:
    """Whatever a client may send."""
    return method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS") else "other"
