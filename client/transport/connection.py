"""One persistent HTTP connection to the supervisor, across its restarts. Not thread-safe.

After a lost connection, or an error that allows it, the same bytes are sent again until the retry
budget is used up. Whenever a connection fails, the address is looked up again.
"""

import contextlib
import http.client
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from ..api.errors import ClientError, from_reply, own
from ..api.requests import Call, bad_request
from .address import Address, Source
from .retry import Retry

CONNECT_SECS = 5.0
#: Time limit of an answer, on top of the time of a long poll.
ANSWER_SECS = 30.0

_T = TypeVar("_T")

#: Called before a retry, with the error and the seconds from the first failure to the retry.
OnTrouble = Callable[[ClientError, float], None]


class Reply(msgspec.Struct, frozen=True):
    headers: http.client.HTTPMessage
    body: bytes


class Connection:
    """Sends requests with retries. budget_secs: how long to retry, from the first failure."""

    def __init__(
        self,
        source: Source,
        *,
        budget_secs: float,
        on_trouble: OnTrouble | None = None,
        sleep: Callable[[float], None] = time.sleep,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """headers: sent with every request, in addition to those of the request."""
        self.source, self.on_trouble, self._sleep = source, on_trouble, sleep
        self.budget_secs, self._headers = budget_secs, dict(headers or {})
        self._address: Address | None = None
        self._http: http.client.HTTPConnection | None = None
        self._used = False

    def address(self) -> Address:
        """Return the known address of the supervisor, or wait for one within the budget."""
        if self._address is None:
            self._repeat(self._located)
        assert self._address is not None
        return self._address

    def call(self, call: Call) -> Reply:
        """Return the successful answer. Raises ClientError."""
        return self._repeat(lambda: self._once(call), call.at_once)

    def call_once(self, call: Call) -> bytes:
        """Send a request that must not be sent twice, on its own connection. Raises ClientError."""
        connection, response = self.stream(
            call.path,
            {"Content-Type": "application/json"},
            call.wait_secs + ANSWER_SECS,
            method=call.method,
            body=call.body,
        )
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as e:
            raise unreachable(self._located().url, e) from None
        finally:
            response.close()
            connection.close()

    def download(
        self, call: Call, idle_secs: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return the successful answer and its own connection. The caller must close both.

        Raises ClientError.
        """
        headers = {"Content-Type": "application/json"}
        return self._repeat(
            lambda: self.stream(call.path, headers, idle_secs, method=call.method, body=call.body),
            call.at_once,
        )

    def stream(
        self,
        path: str,
        headers: Mapping[str, str],
        idle_secs: float,
        *,
        method: str = "GET",
        body: bytes | Iterable[bytes] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send one request on its own connection, without retries. The caller must close both.

        Raises ClientError.
        """
        address = self._located()
        connection = _opened(address.url)
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(idle_secs)
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # refused before the whole body was sent; the answer has the reason
                connection.request(
                    method, path, body, headers_for(address) | self._headers | dict(headers)
                )
            response = connection.getresponse()
            if response.status >= 300:
                raise from_reply(response.status, response.read())
        except BaseException as e:
            connection.close()
            if isinstance(e, OSError | http.client.HTTPException):
                self.forget()
                raise unreachable(address.url, e) from None
            raise
        return connection, response

    def forget(self) -> None:
        """Drop the address, so that the next request looks it up again."""
        self.close()
        self._address = None

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None
        self._used = False

    def pause(self, secs: float) -> None:
        self._sleep(secs)

    def after_failure(self, retry: Retry, error: ClientError) -> None:
        """Wait until the next retry, or raise `error` if no retry is allowed."""
        now = time.monotonic()
        delay = retry.failed(error, now, random.random())
        if delay is None:
            raise error
        if self.on_trouble is not None:
            self.on_trouble(error, now - (retry.since or now) + delay)
        self._sleep(delay)

    def _repeat(self, once: Callable[[], _T], at_once: frozenset[str] = frozenset()) -> _T:
        retry = Retry(self.budget_secs)
        while True:
            try:
                return once()
            except ClientError as e:
                if e.code in at_once:
                    raise
                if not self.has_new_address(e):
                    self.after_failure(retry, e)

    def has_new_address(self, error: ClientError) -> bool:
        """Return whether a refused token is outdated: a restarted supervisor may use the old port."""
        if error.code != "unauthenticated" or self._address is None:
            return False
        old = self._address
        self.forget()
        try:
            return self._located() != old
        except ClientError:
            return False

    def _located(self) -> Address:
        if self._address is None:
            self._address = self.source()
        return self._address

    def _once(self, call: Call) -> Reply:
        address = self._located()
        reused = self._used
        try:
            return self._exchange(address, call)
        except (OSError, http.client.HTTPException) as e:
            self.close()
            # a server may close an idle connection at any time, so that is no failure
            if reused and not isinstance(e, TimeoutError):
                return self._once(call)
            self.forget()
            raise unreachable(address.url, e) from None

    def _exchange(self, address: Address, call: Call) -> Reply:
        if self._http is None:
            self._http = _opened(address.url)
        connection = self._http
        content = {} if call.body is None else {"Content-Type": "application/json"}
        connection.request(
            call.method, call.path, call.body, headers_for(address) | self._headers | content
        )
        assert connection.sock is not None
        connection.sock.settimeout(call.wait_secs + ANSWER_SECS)
        response = connection.getresponse()
        body = response.read()
        self._used = True
        if response.status >= 300:
            raise from_reply(response.status, body)
        return Reply(response.headers, body)


def unreachable(url: str, cause: BaseException) -> ClientError:
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return own("unreachable", f"no answer from {url}: {text}")


def headers_for(address: Address) -> dict[str, str]:
    return {"Authorization": f"Bearer {address.token}", "Accept": "*/*"}


def _opened(url: str) -> http.client.HTTPConnection:
    """Return a connection that connects at its first request.

    Raises ClientError("badRequest") for an invalid address.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise bad_request(f"the address {url!r} is invalid: {e}") from None
    if not host or parts.scheme not in ("http", "https") or parts.path or parts.query:
        raise bad_request(f"the address must be http://host:port or https://host:port; got {url!r}")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            host, port, timeout=CONNECT_SECS, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, port, timeout=CONNECT_SECS)
