"""Address of the supervisor, and the decision after a failure. Sends nothing and does not wait.

Both connections use it, so retries and relocation are decided in one place.
"""

import random
import ssl
import time
from collections.abc import Callable, Mapping

from ..api.errors import ClientError
from .address import Address, Several, Source
from .retry import MOST_MOVES, Retry

#: Codes after which the address and the secret or API token are looked up again.
_RELOCATING = frozenset(
    {"unauthenticated", "tokenExpired", "tokenRevoked", "unreachable", "noSupervisor"}
)
#: Those of them after which another address of the site is tried.
_ELSEWHERE = frozenset({"unreachable", "noSupervisor"})
#: Seconds after which the address is looked up again without a failure: during a rotation of the
#: secret the earlier one is accepted for a while, and some requests must not be repeated.
LOOK_SECS = 10.0

#: Called before a retry, with the error and the seconds from the first failure to the retry.
OnTrouble = Callable[[ClientError, float], None]


class Endpoint:
    """One supervisor, across its restarts. budget_secs: how long to retry, from the first failure.

    headers: sent with every request, in addition to those of the request.
    """

    def __init__(
        self,
        source: Source,
        *,
        budget_secs: float,
        on_trouble: OnTrouble | None = None,
        headers: Mapping[str, str] | None = None,
        leave: Callable[[str], object] | None = None,
    ) -> None:
        """leave: makes a source that has several addresses use another one (default: `Several`'s)."""
        self.source, self.budget_secs, self.on_trouble = source, budget_secs, on_trouble
        self.headers = dict(headers or {})
        self._leave = source.leave if leave is None and isinstance(source, Several) else leave
        self._address: Address | None = None
        self._look_at = 0.0
        self._tls: ssl.SSLContext | None = None

    def located(self) -> Address:
        """Return the known address, or look it up. Raises ClientError."""
        address, now = self._address, time.monotonic()
        if address is not None and now < self._look_at:
            return address
        try:
            self._address = self.source()
        except ClientError:
            if address is None:
                raise
            self._address = address  # the supervisor may still be there
        self._look_at = now + LOOK_SECS
        return self._address

    def forget(self, url: str | None = None) -> None:
        """Drop the address, so that the next request looks it up again. url: of a supervisor that did
        not answer; if there are several, the next request uses another one.
        """
        self._address = None
        if url is not None and self._leave is not None:
            self._leave(url)

    def tls(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS settings: the certificates that this machine trusts. None for plain HTTP."""
        if not url.startswith("https:"):
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def retry(self) -> Retry:
        """Return the state of a new sequence of attempts."""
        return Retry(self.budget_secs)

    def pause_after(
        self,
        retry: Retry,
        error: ClientError,
        used: Address | None,
        at_once: frozenset[str] = frozenset(),
    ) -> float:
        """Return the seconds until the next attempt, or raise `error` if no other one is allowed.

        used: the address of the failed attempt, if one was known. at_once: codes that are final for
        this request.
        """
        if error.code in at_once:
            raise error
        if error.code in _ELSEWHERE and used is not None:
            self.forget(used.url)
        if retry.moves < MOST_MOVES and self._moved(error, used):
            retry.moves += 1
            return 0.0
        now = time.monotonic()
        pause = retry.failed(error, now, random.random())
        if pause is None:
            raise error
        if self.on_trouble is not None:
            self.on_trouble(error, now - (retry.since or now) + pause)
        return pause

    def _moved(self, error: ClientError, used: Address | None) -> bool:
        """Return whether the supervisor restarted with another address or secret, or the caller has
        another API token.
        """
        if error.code not in _RELOCATING or used is None:
            return False
        self.forget()
        try:
            return self.located() != used
        except ClientError:
            return False
