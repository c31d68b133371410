"""Limits of attempts to sign in with a password: by the address of the client and by the name."""

import ipaddress
import math
import threading
import time
from collections.abc import Callable

import flask

from ...protocol.errors import Refusal
from ...runtime.connections.token_buckets import TokenBuckets

#: Header with the client's address, which only the server of this process sets
#: (`server.waitress_server`).
CLIENT = "X-Jobscribe-Client"
#: Wrong passwords: at once, and then in a second.
BY_NAME, BY_NAME_PER_SEC = 5, 1 / 60
BY_ADDRESS, BY_ADDRESS_PER_SEC = 20, 1 / 10


class AttemptLimits:
    """For all threads. An attempt counts when it begins; a right password is not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._names = TokenBuckets(BY_NAME_PER_SEC, BY_NAME, clock)
        self._addresses = TokenBuckets(BY_ADDRESS_PER_SEC, BY_ADDRESS, clock)

    def begin(self, address: str, name: str) -> None:
        """Count an attempt. Raises Refusal("tooManyRequests"), the same for every name."""
        with self._lock:
            secs = self._addresses.take(address)
            if not secs:
                secs = self._names.take(name)
        if secs:
            raise Refusal(
                "tooManyRequests",
                "there were too many attempts with this name or from your address",
                {"retryAfterSecs": math.ceil(secs)},
            )

    def succeeded(self, address: str, name: str) -> None:
        with self._lock:
            self._addresses.give_back(address)
            self._names.give_back(name)


def client_address(request: flask.Request) -> str:
    """Return the address of the client, of an IPv6 address its /64 network."""
    given = request.headers.get(CLIENT) or request.remote_addr or ""
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return given[:64]
    if address.version == 6:
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
