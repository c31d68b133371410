"""Tickets: only holders of the secret can make them, they expire quickly, and altered tickets are
invalid.
"""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from itsdangerous import URLSafeSerializer
from itsdangerous.encoding import base64_decode, base64_encode

from jobscribe.protocol.errors import Refusal
from jobscribe.service import tickets

NOW, UID = 1_700_000_000.25, "TickUsr1"
PAYLOAD_AND_SIGNATURE = tuple(map(base64_decode, tickets.sign("s", UID, NOW).split(".")))


def refused(ticket: str, now: float = NOW, secret: str = "s") -> str:
    with pytest.raises(Refusal) as e:
        tickets.verify((secret,), ticket, now)
    assert e.value.code == "unauthenticated"
    return e.value.sentence


def test_a_ticket_names_its_user_for_as_long_as_it_is_good() -> None:
    ticket = tickets.sign("s", UID, NOW, 30.0)
    for now in (NOW, NOW + 30.0):
        assert tickets.verify(("s",), ticket, now) == (UID, False)
    admin = tickets.sign("s", UID, NOW, admin=True)
    assert tickets.verify(("s",), admin, NOW) == (UID, True)
    assert "expired" in refused(ticket, NOW + 30.1)


def test_another_secret_opens_nothing() -> None:
    assert "not valid" in refused(tickets.sign("other", UID, NOW))


def test_a_ticket_of_the_earlier_secret_is_valid_as_long_as_that_is() -> None:
    ticket = tickets.sign("earlier", UID, NOW)
    assert tickets.verify(("s", "earlier"), ticket, NOW).uid == UID
    assert tickets.verify(("s", "earlier"), tickets.sign("s", UID, NOW), NOW).uid == UID
    assert "not valid" in refused(ticket)


@given(st.integers(0, 127), st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(at: int, bit: int) -> None:
    raw = bytearray(PAYLOAD_AND_SIGNATURE[at % 2])
    raw[at // 2 % len(raw)] ^= 1 << bit
    parts = list(PAYLOAD_AND_SIGNATURE)
    parts[at % 2] = bytes(raw)
    assert "not valid" in refused(b".".join(map(base64_encode, parts)).decode())


@given(st.text(max_size=80))
def test_what_is_no_ticket_is_refused_alike(text: str) -> None:
    assert "not valid" in refused(text)


def test_the_secret_is_not_in_it() -> None:
    secret = "a-very-long-secret-of-this-site"
    ticket = tickets.sign(secret, UID, NOW)
    assert secret not in ticket and secret.encode() not in base64_decode(ticket.split(".")[0])


def test_a_ticket_with_more_than_the_longest_life_is_refused() -> None:
    """The clock was set back since it was signed."""
    ticket = tickets.sign("s", UID, NOW, tickets.LONGEST_SECS)
    assert tickets.verify(("s",), ticket, NOW).uid == UID
    assert "expired" in refused(ticket, NOW - 0.1)


def test_another_purpose_of_the_same_secret_signs_no_tickets() -> None:
    other = URLSafeSerializer("s", salt="cookie-session", signer_kwargs={"digest_method": sha256})
    assert "not valid" in refused(other.dumps([UID, int(NOW * 1000) + 1000]))


def test_the_address_of_a_client_is_that_which_a_router_has_signed() -> None:
    signed = tickets.sign_peer("s", "192.0.2.1")
    assert tickets.peer(("other", "s"), signed) == "192.0.2.1"
    for wrong in ("", "192.0.2.1", "192.0.2.9" + signed[9:], signed[:-1], signed + "\u00e9"):
        assert tickets.peer(("s",), wrong) is None, wrong
    assert tickets.peer(("other",), signed) is None and "s" not in signed.split()[0]
