"""Limits of request rates: of each API token, of failed authentications of each address, of device
logins of each address, and of requests about one user that only write events.

A token bucket each. The holder of the server secret, which sends the requests of all users of a
front end, has no limit of its own.
"""

import math
from collections.abc import Callable

from ...protocol.errors import Refusal
from ...runtime.connections.token_buckets import TokenBuckets

#: Failed authentications of one address: at once, and then in a second.
FAILURES, FAILURES_PER_SEC = 200, 10.0
#: Device logins begun by one address: at once, and then in a second.
DEVICE_LOGINS, DEVICE_LOGINS_PER_SEC = 20, 0.1
#: Wrong user codes of one user: at once, and then in a second.
WRONG_CODES, WRONG_CODES_PER_SEC = 10, 0.1
#: Changes of tags of one user's jobs, and shells opened: at once, and then in a second. Each writes
#: events, however it ends.
TAGS, TAGS_PER_SEC = 500, 5.0
SHELLS, SHELLS_PER_SEC = 60, 1.0


class RequestRates:
    """clock: monotonic seconds. per_sec, burst: of one API token. failures: failed authentications of
    one address at once.
    """

    def __init__(
        self,
        per_sec: float,
        burst: int,
        clock: Callable[[], float],
        *,
        failures: int = FAILURES,
    ) -> None:
        self._tokens = TokenBuckets(per_sec, burst, clock)
        self._addresses = TokenBuckets(FAILURES_PER_SEC, failures, clock)
        self._device_logins = TokenBuckets(DEVICE_LOGINS_PER_SEC, DEVICE_LOGINS, clock)
        self._wrong_codes = TokenBuckets(WRONG_CODES_PER_SEC, WRONG_CODES, clock)
        self._tags = TokenBuckets(TAGS_PER_SEC, TAGS, clock)
        self._shells = TokenBuckets(SHELLS_PER_SEC, SHELLS, clock)

    def sizes(self) -> dict[str, int]:
        return {
            "tokens": len(self._tokens),
            "addresses": len(self._addresses),
            "device_logins": len(self._device_logins),
            "wrong_codes": len(self._wrong_codes),
            "tag_changes": len(self._tags),
            "opened_shells": len(self._shells),
        }

    def request(self, token: str) -> None:
        """Count a request with the API token of this id. Raises Refusal("tooManyRequests")."""
        secs = self._tokens.take(token)
        if secs:
            raise _refusal(
                f"this API token sent more than {self._tokens.burst} requests at once and"
                f" {self._tokens.per_sec:g} per second",
                secs,
            )

    def failure(self, address: str) -> None:
        """Count a failed authentication. Raises Refusal("tooManyRequests")."""
        secs = self._addresses.take(address)
        if secs:
            raise _refusal("too many requests without a valid secret came from this address", secs)

    def tags(self, uid: str) -> None:
        """Count a change of tags. Raises Refusal("tooManyRequests")."""
        secs = self._tags.take(uid)
        if secs:
            raise _refusal(
                f"the tags of jobs of {uid} were changed more than {TAGS} times at once and"
                f" {TAGS_PER_SEC:g} times per second",
                secs,
            )

    def shell(self, uid: str) -> None:
        """Count a shell that is opened. Raises Refusal("tooManyRequests")."""
        secs = self._shells.take(uid)
        if secs:
            raise _refusal(
                f"more than {SHELLS} shells of {uid} were opened at once and {SHELLS_PER_SEC:g} per"
                " second",
                secs,
            )

    def device_login(self, address: str) -> None:
        """Count the begin of a device login. Raises Refusal("tooManyRequests")."""
        secs = self._device_logins.take(address)
        if secs:
            raise _refusal("too many logins were begun from this address", secs)

    def user_code(self, uid: str) -> None:
        """Count a user code that this user enters. Raises Refusal("tooManyRequests")."""
        secs = self._wrong_codes.take(uid)
        if secs:
            raise _refusal("you entered too many wrong codes", secs)

    def right_user_code(self, uid: str) -> None:
        """Do not count the last user code, because it was right."""
        self._wrong_codes.give_back(uid)


def _refusal(sentence: str, secs: float) -> Refusal:
    return Refusal("tooManyRequests", sentence, {"retryAfterSecs": math.ceil(secs)})
