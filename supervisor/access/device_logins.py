"""Device logins (RFC 8628) in the memory of this process: a machine asks for a code, a person
approves it at the front end, and the machine gets an API token exactly once.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from ...db.events.access_fold import ApiToken
from ...protocol.api.device_logins import (
    DEVICE_BYTES,
    EXPIRES_SECS,
    INTERVAL_SECS,
    USER_BYTES,
    device_code,
    made_user_code,
    parse_device_code,
    user_code,
)
from ...protocol.api.tokens import Scope, TokenText, digest
from ...protocol.errors import Refusal
from .api_tokens import ApiTokens, HomeToken
from .principal import Principal
from .request_rates import RequestRates

#: Logins at once that are neither finished nor expired.
MOST = 1_000


class DeviceLogin(msgspec.Struct):
    """A login that was begun. key: digest of its device code. address: of the machine. until,
    polled: monotonic seconds. by: who approved it, for the user `uid`. home: the token of `by`, if another
    shard has it.
    """

    key: str
    user_code: str
    name: str
    scopes: tuple[Scope, ...]
    expires_secs: float | None
    address: str
    until: float
    polled: float | None = None
    interval: float = INTERVAL_SECS
    uid: str | None = None
    by: Principal | None = None
    home: HomeToken | None = None
    denied: bool = False


class DeviceLogins:
    """clock: monotonic seconds. entropy: returns random bytes. page: address of the page on which a
    person enters the code; None: the site has none, and no login can begin.
    """

    def __init__(
        self,
        tokens: ApiTokens,
        rates: RequestRates,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
        page: str | None,
    ) -> None:
        self._tokens, self._rates, self._clock = tokens, rates, clock
        self._entropy, self._page = entropy, page
        self._by_key: dict[str, DeviceLogin] = {}
        self._by_user_code: dict[str, DeviceLogin] = {}

    def sizes(self) -> dict[str, int]:
        return {"begun": len(self._by_key)}

    def begin(
        self,
        address: str,
        name: str,
        scopes: Iterable[Scope],
        expires_secs: float | None,
        codes: tuple[str, str] | None = None,
        page: str | None = None,
    ) -> dict[str, Any]:
        """Begin a login of a machine. Return both codes and where to enter one of them. codes: device code
        and user code that a router made. page: that the router knows. Raises Refusal: tooManyRequests, notFound
        without a page, badRequest for codes of another form or in use.
        """
        page = self._page or page
        if page is None:
            raise Refusal(
                "notFound",
                "this site has no page on which a person could approve this login",
                {
                    "advice": "give an API token to 'jobscribe auth login --with-token';"
                    " the operator sets server.public_url for logins without one"
                },
            )
        self._rates.device_login(address)
        self._forget_old()
        if len(self._by_key) >= MOST:
            raise Refusal("tooManyRequests", "too many logins wait for their approval")
        text, code = self._new_codes() if codes is None else self._checked(codes)
        login = DeviceLogin(
            digest(text),
            code,
            name,
            tuple(scopes),
            expires_secs,
            address,
            self._clock() + EXPIRES_SECS,
        )
        self._by_key[login.key] = self._by_user_code[code] = login
        return {
            "deviceCode": text,
            "userCode": code,
            "verificationUri": page,
            "verificationUriComplete": f"{page}?code={code}",
            "expiresIn": EXPIRES_SECS,
            "interval": login.interval,
        }

    def _new_codes(self) -> tuple[str, str]:
        text = device_code(self._entropy(DEVICE_BYTES))
        code = made_user_code(self._entropy(USER_BYTES))
        while code in self._by_user_code:
            code = made_user_code(self._entropy(USER_BYTES))
        return text, code

    def _checked(self, codes: tuple[str, str]) -> tuple[str, str]:
        text, code = parse_device_code(codes[0]), user_code(codes[1])
        if text is None or digest(text) in self._by_key or code in self._by_user_code:
            raise Refusal("badRequest", "the codes of this login are in use, or are none")
        return text, code

    def end(self, text: str) -> None:
        """Forget the login with this user code, which was answered in another shard. An answer given here
        in the same moment does not count either.
        """
        code = user_code(text)
        for login in list(self._by_key.values()):
            if login.user_code == code:
                self._forget(login)

    async def poll(self, address: str, text: str) -> tuple[TokenText, ApiToken] | DeviceLogin:
        """Return the API token of an approved login, once. Return the login while it waits. Raises
        Refusal: deviceCodeUnknown, deviceDenied, tooManyRequests, and those of a token's creation.
        """
        self._forget_old()
        login = self._by_key.get(digest(parse_device_code(text) or ""))
        if login is None or login.until <= self._clock():
            self._rates.failure(address)
            raise Refusal(
                "deviceCodeUnknown", "this login is unknown, has expired, or was finished before"
            )
        if login.denied:
            self._forget(login)
            raise Refusal("deviceDenied", "the person who was asked denied this login")
        if login.uid is None or login.by is None:
            self._slow_down(login)
            return login
        self._forget(login)  # before anything waits, so that the token is given once
        own, home = login.by.token, login.home
        if (own is not None and not self._tokens.live(own)) or (
            home is not None and self._tokens.expired(home)
        ):
            raise Refusal("deviceDenied", "the API token that approved this login is not valid now")
        try:
            return await self._tokens.create(
                login.by, login.uid, login.name, login.scopes, login.expires_secs, login.home
            )
        except Refusal as e:
            if e.code == "storageUnavailable":
                self._by_key[login.key] = login  # the next poll tries again
            raise

    def find(self, uid: str, text: str) -> DeviceLogin:
        """Return the login with this user code, for a user who may answer it. Raises Refusal:
        deviceCodeUnknown, tooManyRequests.
        """
        self._rates.user_code(uid)
        self._forget_old()
        login = self._by_user_code.get(user_code(text))
        if login is None or login.until <= self._clock():
            raise Refusal(
                "deviceCodeUnknown", "this code is wrong, has expired, or was answered before"
            )
        self._rates.right_user_code(uid)
        return login

    def answer(
        self,
        login: DeviceLogin,
        by: Principal,
        uid: str,
        *,
        approve: bool,
        home: HomeToken | None = None,
    ) -> None:
        """Approve or deny a login that was found. It cannot be answered again. home: the token of `by`, if
        another shard has it.
        """
        self._by_user_code.pop(login.user_code, None)
        if approve:
            login.uid, login.by, login.home = uid, by, home
        else:
            login.denied = True

    def creators_elsewhere(self) -> set[str]:
        """Return the tokens of other shards that approved logins whose token is not given yet."""
        return {login.home.id for login in self._by_key.values() if login.home is not None}

    def revoke(self, ids: Collection[str]) -> None:
        """Deny the logins that these tokens of other shards approved, and that have no token yet."""
        for login in self._by_key.values():
            if login.home is not None and login.home.id in ids:
                login.denied = True

    def _slow_down(self, login: DeviceLogin) -> None:
        """Raise the interval of a machine that polls too often (RFC 8628, section 3.5)."""
        now = self._clock()
        if login.polled is not None and now - login.polled < login.interval - 1.0:
            login.interval = min(60.0, login.interval + INTERVAL_SECS)
        login.polled = now

    def _forget(self, login: DeviceLogin) -> None:
        self._by_key.pop(login.key, None)
        self._by_user_code.pop(login.user_code, None)

    def _forget_old(self) -> None:
        now = self._clock()
        # all live equally long, so the oldest ones are first
        while self._by_key:
            oldest = next(iter(self._by_key.values()))
            if oldest.until > now:
                return
            self._forget(oldest)
