"""The answers of a standby itself: its health, and the refusal while no supervisor serves the site."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import tornado.httpserver
import tornado.web

from ...protocol.errors import Refusal
from ...protocol.version import VERSION
from ...runtime.connections import wait_page
from ...runtime.connections.http_server import authenticated
from ...runtime.connections.http_server import server as http_server
from ..process.connection_limits import ConnectionGuard
from ..process.site_secrets import SiteSecrets

#: Time after which clients ask again, in seconds.
RETRY_SECS = 1.0
#: Path that a standby answers itself.
HEALTH = b"GET /health"


def no_supervisor(why: str) -> Refusal:
    return Refusal(
        "noSupervisor",
        f"no supervisor serves the site at this address: {why}",
        {"retryAfterSecs": RETRY_SECS},
    )


class _Base(tornado.web.RequestHandler):
    def initialize(
        self,
        secrets: SiteSecrets,
        health: Callable[[], dict[str, Any]],
        why: Callable[[], str],
        count: Callable[[str], object],
    ) -> None:
        self._secrets, self._health, self._why, self._count = secrets, health, why, count

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def _send(self, status: int, body: Any) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        # the next request of this client is passed to the holder
        self.set_header("Connection", "close")
        self.finish(msgspec.json.encode(body))

    def refuse(self, refusal: Refusal) -> None:
        self._count("refused." + refusal.code)
        accept = self.request.headers.get("Accept", "")
        if wait_page.is_wanted(self.request.method or "", accept, refusal.http):
            for name, value in wait_page.headers().items():
                self.set_header(name, value)
            self.set_status(refusal.http)
            self.set_header("Connection", "close")
            self.finish(wait_page.page(refusal.sentence))
            return
        if "retryAfterSecs" in refusal.more:
            self.set_header("Retry-After", str(round(RETRY_SECS)))
        self._send(refusal.http, refusal.body())


class _HealthHandler(_Base):
    def get(self) -> None:
        given = self.request.headers.get("Authorization", "")
        if all(secret.holder(given) is None for secret in self._secrets):
            self.refuse(Refusal("unauthenticated", "the secret is missing or wrong"))
            return
        authenticated(self.request)
        self._send(200, self._health())


class _OtherHandler(_Base):
    def prepare(self) -> None:
        self.refuse(no_supervisor(self._why()))


def server(
    guard: ConnectionGuard,
    secrets: SiteSecrets,
    health: Callable[[], dict[str, Any]],
    why: Callable[[], str],
    count: Callable[[str], object],
) -> tornado.httpserver.HTTPServer:
    """Return the server of a standby; it has no listeners."""
    kept = {"secrets": secrets, "health": health, "why": why, "count": count}
    application = tornado.web.Application(
        [(r"/health", _HealthHandler, kept), (r".*", _OtherHandler, kept)],
        log_function=lambda handler: None,
    )

    def unread(_: object) -> tuple[int, bytes]:
        refusal = no_supervisor(why())
        count("refused." + refusal.code)
        return refusal.http, msgspec.json.encode(refusal.body())

    return http_server(guard.before(application, "refused", unread), keep_alive=False)


def report(
    holder: dict[str, Any] | None,
    epoch: int | None,
    lag: float | None,
    why: str | None,
    *,
    failing: bool = False,
) -> dict[str, Any]:
    """Return the health of a standby, in the form of `/health`. lag: seconds since the holder's last
    renewal. why: the reason for a fault. failing: it cannot take over before somebody acts.
    """
    state = "failing" if failing else "degraded"
    reasons = (
        []
        if why is None
        else [
            {
                "what": "store" if failing else "standby",
                "state": state,
                "sentence": why,
                "since": None,
                "try": "jobscribe db repair" if failing else "jobscribe supervisors",
            }
        ]
    )
    return {
        "state": state if reasons else "ok",
        "at": time.time(),
        "reasons": reasons,
        "role": "standby",
        "version": VERSION,
        "holder": holder,
        "epoch": epoch,
        "lagSecs": lag,
    }
