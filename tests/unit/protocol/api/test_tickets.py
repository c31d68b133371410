"""Tickets: only holders of the secret can make them, they expire quickly, and altered tickets are
invalid.
"""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.api import tickets
from jobscribe.protocol.errors import Refusal

NOW, UID = 1_700_000_000.25, "TickUsr1"


def refused(ticket: str, now: float = NOW, secret: str = "s") -> str:
    with pytest.raises(Refusal) as e:
        tickets.verify(secret, ticket, now)
    assert e.value.code == "unauthenticated"
    return e.value.sentence


def test_a_ticket_names_its_user_for_as_long_as_it_is_good() -> None:
    ticket = tickets.sign("s", UID, NOW, 30.0)
    assert tickets.verify("s", ticket, NOW) == tickets.verify("s", ticket, NOW + 30.0) == UID
    assert "expired" in refused(ticket, NOW + 30.1)


def test_another_secret_opens_nothing() -> None:
    assert "not valid" in refused(tickets.sign("other", UID, NOW))


@given(st.integers(0, 63), st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(at: int, bit: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(tickets.sign("s", UID, NOW)))
    raw[at % len(raw)] ^= 1 << bit
    assert "not valid" in refused(base64.urlsafe_b64encode(raw).decode())


@given(st.text(max_size=80))
def test_what_is_no_ticket_is_refused_alike(text: str) -> None:
    assert "not valid" in refused(text)


def test_the_secret_is_not_in_it() -> None:
    secret = "a-very-long-secret-of-this-site"
    assert secret.encode() not in base64.urlsafe_b64decode(tickets.sign(secret, UID, NOW))
