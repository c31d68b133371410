"""Metrics and health for monitoring systems, which have their own token."""

from typing import Any

from ...metrics.exporter import CONTENT_TYPE
from ..transport.request_handler import Handler


async def metrics(h: Handler) -> Any:
    data = await h.services.monitoring.text()
    h.set_header("Content-Type", CONTENT_TYPE)
    h.end(data)


async def health(h: Handler) -> Any:
    return await h.services.monitoring.health.body(draining=h.runs.draining)


def record_request(handler: Any) -> None:
    """Record the duration of an answered request. Streams last as long as the client reads, so they
    are left out.
    """
    if isinstance(handler, Handler) and not handler.route.streams:
        handler.services.monitoring.instruments.http.labels(
            _method(handler.request.method),
            handler.route.path,
            str(handler.get_status()),
        ).observe(handler.request.request_time())


def _method(method: str | None) -> str:
    """Return the method as a metric label; `other` for any text that clients invent."""
    return method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS") else "other"
