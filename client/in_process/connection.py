"""Requests to a supervisor in this process: the interface of `transport.connection.Connection`."""

import importlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Protocol

from ...protocol.errors import Refusal
from ..api.errors import ClientError, from_reply, refused
from ..api.requests import Call
from ..transport.address import Address
from ..transport.endpoint import Endpoint
from ..transport.messages import Headers, Reply
from .jobs import run_job

#: The user, if none is given.
UID = "inproces"
#: The only module of the server that a client uses, and only in this mode. It is named here and not
#: imported, because the server is above the client.
_SITE = "jobscribe.supervisor.in_process.site"


class _Answer(Protocol):
    status: int
    headers: dict[str, str]
    body: bytes


class Site(Protocol):
    """See supervisor.in_process.site."""

    uid: str

    def request(self, method: str, path: str, body: bytes | None) -> _Answer: ...
    def pause(self, secs: float) -> None: ...
    def close(self) -> None: ...


def open_site(uid: str | None) -> Site:
    """Start a site in this process. Raises ClientError if the server is not installed."""
    try:
        module: Any = importlib.import_module(_SITE)
    except ImportError as e:
        raise refused("notHere", f"jobscribe's server cannot be imported here: {e}") from None
    try:
        site: Site = module.Site(uid or UID, run_job)
    except Refusal as e:
        raise refused(e.code, e.sentence) from None
    return site


class InProcessConnection:
    """Sends requests to a site. Copies of a client share the site; `close` of any ends it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        address = Address(url="in-process:", token="", uid=site.uid)
        self.endpoint = Endpoint(lambda: address, budget_secs=0.0)

    def address(self) -> Address:
        return self.endpoint.located()

    def call(self, call: Call) -> Reply:
        answer = self._sent(call.method, call.path, call.body)
        pairs = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        return Reply(Headers(pairs), answer.body)

    def call_once(self, call: Call) -> bytes:
        return self._sent(call.method, call.path, call.body).body

    def download(self, call: Call, idle_secs: float) -> "_Response":
        return _Response(self.call(call))

    def upload(self, path: str, pieces: Iterable[bytes], size: int, idle_secs: float) -> bytes:
        return self._sent("PUT", path, b"".join(pieces)).body

    def stream(self, *request: object) -> NoReturn:
        raise refused("notHere", "a client in one process has no stream of events; use `story`")

    def pause(self, secs: float) -> None:
        self._site.pause(secs)

    def pause_after(self, retry: object, error: ClientError, used: object) -> NoReturn:
        raise error

    def close(self) -> None:
        try:
            self._site.close()
        except Refusal as e:
            raise refused(e.code, e.sentence) from None

    def _sent(self, method: str, path: str, body: bytes | None) -> _Answer:
        try:
            answer = self._site.request(method, path, body)
        except Refusal as e:
            raise refused(e.code, e.sentence) from None
        if answer.status >= 300:
            raise from_reply(answer.status, answer.body)
        return answer


class _Response:
    """A complete body, with the interface of `transport.connection.Response`."""

    def __init__(self, reply: Reply) -> None:
        self.headers, self._body = reply.headers, reply.body

    def __enter__(self) -> "_Response":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def pieces(self, length: int) -> Iterator[bytes]:
        yield self._body

    def read(self) -> bytes:
        return self._body

    def close(self) -> None:
        return None
