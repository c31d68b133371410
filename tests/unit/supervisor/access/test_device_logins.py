"""Device logins: a code is approved once by one person, its token is given once, and codes expire,
are bounded and cannot be guessed.
"""

import asyncio
import os
from typing import Any

import pytest
from access_kit import access

from jobscribe.db.events.access_fold import ApiToken
from jobscribe.protocol.api.device_logins import LETTERS, made_user_code, user_code
from jobscribe.protocol.api.tokens import TokenText
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.access import device_logins
from jobscribe.supervisor.access.api_tokens import HomeToken
from jobscribe.supervisor.access.authentication import Access
from jobscribe.supervisor.access.device_logins import DeviceLogin, DeviceLogins
from jobscribe.supervisor.access.principal import Principal
from jobscribe.supervisor.access.request_rates import (
    DEVICE_LOGINS,
    WRONG_CODES,
    RequestRates,
)

ANN, BOB, PEER = "user0001", "user0002", "192.0.2.1"
PAGE = "https://jobs.example.org/sign-in/device"


class Kit:
    """Device logins with a clock that the test sets."""

    def __init__(self, page: str | None = PAGE) -> None:
        self.now = 0.0
        self.access: Access = access("secret")
        rates = RequestRates(1e6, 10, lambda: self.now)
        self.logins = DeviceLogins(self.access.tokens, rates, lambda: self.now, os.urandom, page)

    def begin(self, peer: str = PEER, name: str = "laptop") -> dict[str, Any]:
        return self.logins.begin(peer, name, ("read",), None)

    async def poll(self, begun: dict[str, Any]) -> Any:
        """Return the token, the login that waits, or the code of the refusal."""
        try:
            return await self.logins.poll(PEER, begun["deviceCode"])
        except Refusal as e:
            return e.code

    def answer(self, begun: dict[str, Any], uid: str = ANN, approve: bool = True) -> str | None:
        try:
            login = self.logins.find(uid, begun["userCode"])
        except Refusal as e:
            return e.code
        by = Principal(uid=uid, role="secretHolder")
        self.logins.answer(login, by, uid, approve=approve)
        return None


def test_a_user_code_is_read_as_a_person_types_it() -> None:
    code = made_user_code(os.urandom(16))
    assert len(code) == 9 and code[4] == "-" and set(code) - {"-"} <= set(LETTERS)
    for typed in (code.lower(), code.replace("-", ""), f" {code.replace('-', ' ')} "):
        assert user_code(typed) == code
    for wrong in ("", "WDJB", "WDJB-MJHTX", "WDJB-MJHA", "ẞDJB-MJHT", code + "\n1"):
        with pytest.raises(Refusal, match="8 letters"):
            user_code(wrong)


async def test_the_token_is_given_once_after_the_approval_and_to_nobody_else() -> None:
    kit = Kit()
    begun, other = kit.begin(), kit.begin(name="another")
    assert (
        begun["verificationUri"] == PAGE and begun["userCode"] in begun["verificationUriComplete"]
    )
    assert (begun["expiresIn"], begun["interval"]) == (600.0, 5.0)
    assert isinstance(await kit.poll(begun), DeviceLogin)
    assert kit.answer(begun) is None
    assert kit.answer(begun, BOB) == "deviceCodeUnknown", "an answer is final"
    assert isinstance(await kit.poll(other), DeviceLogin)
    first, second = await asyncio.gather(kit.poll(begun), kit.poll(begun))
    text, token = first
    assert isinstance(text, TokenText) and isinstance(token, ApiToken)
    assert (token.uid, token.name, token.scopes, token.by) == (ANN, "laptop", ("read",), ANN)
    assert second == await kit.poll(begun) == "deviceCodeUnknown"
    who = kit.access.principal(f"Bearer {text}", None, monitors=False)
    assert who.uid == ANN and len(kit.access.tokens.of(ANN)) == 1
    wrong = {"deviceCode": other["deviceCode"][:-1] + "!"}
    assert await kit.poll(wrong) == "deviceCodeUnknown"
    assert await kit.poll({"deviceCode": str(text)}) == "deviceCodeUnknown"


async def test_a_denied_login_gets_nothing() -> None:
    kit = Kit()
    begun = kit.begin()
    assert kit.answer(begun, approve=False) is None
    assert kit.answer(begun) == "deviceCodeUnknown"
    assert [await kit.poll(begun) for _ in range(2)] == ["deviceDenied", "deviceCodeUnknown"]
    assert kit.access.tokens.of(ANN) == []


@pytest.mark.parametrize("approved", [False, True])
async def test_a_code_expires_also_after_its_approval(approved: bool) -> None:
    kit = Kit()
    begun = kit.begin()
    if approved:
        assert kit.answer(begun) is None
    kit.now += 600.0
    assert kit.answer(begun) == "deviceCodeUnknown"
    assert await kit.poll(begun) == "deviceCodeUnknown"
    assert kit.logins.sizes() == {"begun": 0} and kit.access.tokens.of(ANN) == []


async def test_a_machine_that_polls_too_often_waits_longer() -> None:
    kit = Kit()
    begun = kit.begin()
    intervals = []
    for secs in (5.0, 5.0, 1.0, 10.0, 1.0):
        kit.now += secs
        intervals.append((await kit.poll(begun)).interval)
    assert intervals == [5.0, 5.0, 10.0, 10.0, 15.0]


async def test_floods_and_guesses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    for _ in range(DEVICE_LOGINS):
        kit.begin()
    with pytest.raises(Refusal) as told:
        kit.begin()
    assert told.value.code == "tooManyRequests"
    begun = kit.begin("192.0.2.2")
    guesses = [kit.answer({"userCode": made_user_code(os.urandom(16))}) for _ in range(WRONG_CODES)]
    assert guesses == ["deviceCodeUnknown"] * WRONG_CODES
    assert kit.answer(begun) == "tooManyRequests" and kit.answer(begun, BOB) is None
    monkeypatch.setattr(device_logins, "MOST", kit.logins.sizes()["begun"])
    with pytest.raises(Refusal, match="wait for their approval"):
        kit.begin("192.0.2.3")
    kit.now += 600.0
    assert kit.begin("192.0.2.3")


async def test_a_token_that_approves_gives_no_more_than_it_has() -> None:
    kit = Kit()
    operator = Principal()
    text, _ = await kit.access.tokens.create(operator, ANN, "small", ("control",), 3600.0)
    by = kit.access.principal(f"Bearer {text}", None, monitors=False)
    begun = kit.begin()
    kit.logins.answer(kit.logins.find(ANN, begun["userCode"]), by, ANN, approve=True)
    assert await kit.poll(begun) == "scopeMissing"
    begun = kit.begin()
    kit.logins.answer(kit.logins.find(ANN, begun["userCode"]), by, ANN, approve=True)
    await kit.access.tokens.revoke(operator, ANN, text.id, "lost")
    assert await kit.poll(begun) == "deviceDenied"


async def test_an_approval_ends_with_the_token_of_another_shard_that_gave_it() -> None:
    kit, boss = Kit(), Principal(uid=BOB, role="admin", scopes=frozenset({"read"}), limited=True)

    def approved(expires_at: float) -> dict[str, Any]:
        begun = kit.begin()
        login = kit.logins.find(ANN, begun["userCode"])
        home = HomeToken("abcdefgh", expires_at)
        kit.logins.answer(login, boss, ANN, approve=True, home=home)
        return begun

    later = kit.access.tokens._wall() + 60
    _, token = await kit.poll(approved(later))
    assert (token.uid, token.by, token.parent, token.expires_at) == (ANN, BOB, "abcdefgh", later)
    assert await kit.poll(approved(later - 60)) == "deviceDenied", "it has expired"
    begun = approved(later)
    assert kit.logins.creators_elsewhere() == {"abcdefgh"}
    kit.logins.revoke({"stranger"})
    kit.logins.revoke({"abcdefgh"})
    assert await kit.poll(begun) == "deviceDenied"


def test_a_site_without_a_page_begins_no_login() -> None:
    with pytest.raises(Refusal) as told:
        Kit(page=None).begin()
    assert told.value.code == "notFound" and "--with-token" in str(told.value.more["advice"])
