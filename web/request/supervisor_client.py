"""The front end's client of the supervisor's HTTP interface, for all threads: pooled connections,
and a separate one for each stream.

Retries are minimal: a waiting worker cannot serve other requests, and the browser repeats its
request. Only a restart with another address or secret is retried.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...client.api.requests import Call, object_of
from ...client.transport.address import Address, Several, Source
from ...client.transport.connection import Connection, Response
from ...client.transport.endpoint import Endpoint
from ...client.transport.messages import Reply
from ...protocol.api.requests import CallRequest
from ...protocol.redaction import Redactor
from ...protocol.version import VERSION
from ...protocol.wire.handshake import ACTOR, FRONT_END, SIGNED_IN

CHUNK = 64 * 1024
#: Idle time after which a stream counts as broken, and the maximum time of a call, in seconds.
IDLE_SECS = 60.0
LONGEST_SECS = 600.0


class SupervisorClient:
    """The supervisor, for all threads. Methods raise ClientError."""

    #: of each request; empty: the front end itself asks, and has checked the user
    _headers: Mapping[str, str] = {}

    def __init__(self, source: Source, redactor: Redactor) -> None:
        self._source, self._redactor = source, redactor
        self._leave = source.leave if isinstance(source, Several) else None
        self._connection = Connection(
            Endpoint(
                self.address,
                budget_secs=0.0,
                headers={FRONT_END: VERSION},
                leave=self._leave,
            )
        )

    def address(self) -> Address:
        """Look up and return the current address."""
        address = self._source()
        self._redactor.add(address.token)
        return address

    def reply(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> Reply:
        """Return the response of `/api/<name>`."""
        return self._connection.call(self._call(name, request, wait_secs))

    def post(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> bytes:
        return self.reply(name, request, wait_secs).body

    def acting(self, uid: str, *, admin: bool) -> "SupervisorClient":
        """Return a client on the same connections whose requests are those of this signed-in user:
        the supervisor decides by the role in its file of users. admin: the hook of the site says
        that this is an administrator.
        """
        other = copy.copy(self)
        other._headers = {ACTOR if admin else SIGNED_IN: uid}
        return other

    def get(self, name: str) -> bytes:
        return self._connection.call(
            Call(f"/api/{name}", None, method="GET", headers=self._headers)
        ).body

    def once(self, name: str, request: msgspec.Struct, wait_secs: float) -> dict[str, Any]:
        """Send a request that must never be repeated, on a connection of its own."""
        return object_of(self._connection.call_once(self._call(name, request, wait_secs)))

    def object(self, name: str, request: msgspec.Struct) -> dict[str, Any]:
        return object_of(self.post(name, request))

    def call(self, request: CallRequest) -> bytes:
        """Return the result of an app's computation. The supervisor enforces its deadline; here
        only the maximum applies.
        """
        return self.post("call", request, request.deadline_secs or LONGEST_SECS)

    def ping(self) -> None:
        """Check that the supervisor answers."""
        self.exchange("GET", "/livez")

    def exchange(self, method: str, path: str) -> bytes:
        """Send a request without a body; return the whole response."""
        with self._connection.download(Call(path, None, method=method), IDLE_SECS) as response:
            return response.read()

    def stream(self, name: str, request: msgspec.Struct) -> Response:
        """Return a response that is forwarded piece by piece; the caller closes it."""
        return self._connection.download(self._call(name, request), IDLE_SECS)

    def changes(self, idle_secs: float) -> Response:
        """Return the stream of the names of changed jobs; the caller closes it. idle_secs: silence
        after which it counts as broken.
        """
        return self._connection.download(Call("/api/job-changes", None, method="GET"), idle_secs)

    def relayed(self, token: str, call: Call) -> Response:
        """Return the answer to a request of somebody with an API token: it has no other right, and the
        front end vouches for nothing. The caller closes it.
        """
        address = msgspec.structs.replace(self.address(), token=token)
        endpoint = Endpoint(lambda: address, budget_secs=0.0, leave=self._leave)
        return Connection(endpoint).relayed(call, IDLE_SECS)

    def upload(self, path: str, pieces: Iterable[bytes], length: int) -> bytes:
        """Send these pieces, `length` bytes in total. Never retried, because the pieces can be read
        only once.
        """
        return self._connection.upload(path, pieces, length, IDLE_SECS)

    def close(self) -> None:
        """Close idle connections, and from now on each connection after its use."""
        self._connection.close(for_good=True)

    def _call(self, name: str, request: msgspec.Struct, wait_secs: float = 0.0) -> Call:
        return Call(
            path=f"/api/{name}",
            body=msgspec.json.encode(request),
            wait_secs=wait_secs,
            headers=self._headers,
        )
