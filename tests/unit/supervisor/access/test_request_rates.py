"""Limits of request rates: bursts, refill, and that one sender's flood concerns nobody else."""

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.connections import token_buckets
from jobscribe.supervisor.access.request_rates import RequestRates


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(action, name: str, most: int = 10_000) -> int:
    """Return how many requests pass before one is refused."""
    for n in range(most):
        try:
            action(name)
        except Refusal as refused:
            assert refused.code == "tooManyRequests"
            return n
    return most


def test_after_a_burst_requests_pass_at_the_rate(clock: Clock) -> None:
    rates = RequestRates(10.0, 50, clock)
    assert taken(rates.request, "a") == 50
    clock.now += 1.0
    assert taken(rates.request, "a") == 10
    clock.now += 1000.0
    assert taken(rates.request, "a") == 50, "no more than the burst is saved"


def test_a_refusal_says_when_to_send_again(clock: Clock) -> None:
    rates = RequestRates(0.25, 1, clock)
    rates.request("a")
    with pytest.raises(Refusal, match=r"more than 1 requests at once and 0\.25 per second") as told:
        rates.request("a")
    assert told.value.more == {"retryAfterSecs": 4} and told.value.http == 429
    clock.now += 4.0
    rates.request("a")


def test_a_flood_concerns_nobody_else(clock: Clock) -> None:
    rates = RequestRates(1.0, 5, clock, failures=3)
    assert taken(rates.request, "a") == 5 and taken(rates.request, "b") == 5
    assert taken(rates.failure, "10.0.0.1") == 3 and taken(rates.failure, "10.0.0.2") == 3
    for begin in (rates.device_login, rates.user_code, rates.tags, rates.shell):
        most = taken(begin, "a")
        assert 5 < most <= 500 and taken(begin, "b") == most
    assert rates.sizes() == dict.fromkeys(
        (
            "tokens",
            "addresses",
            "device_logins",
            "wrong_codes",
            "tag_changes",
            "opened_shells",
        ),
        2,
    )


def test_memory_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_buckets, "KEPT", 3)
    rates = RequestRates(1.0, 2, clock)
    for n in range(10):
        rates.request(str(n))
        rates.failure(str(n))
    sizes = rates.sizes()
    assert (sizes.pop("tokens"), sizes.pop("addresses"), sum(sizes.values())) == (3, 3, 0)
    assert taken(rates.request, "9") == 1 and taken(rates.request, "0") == 2
