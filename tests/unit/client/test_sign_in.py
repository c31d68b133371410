"""Sign-in to a cluster in both clients: secrets are sent once, whatever the outcome, and never
displayed.
"""

import traceback
from typing import Any

import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.api.requests import sbatch_login
from jobscribe.client.async_client import AsyncClient
from jobscribe.client.sync_client import Client

Fake = Any
SECRET = "canary-correct-horse"


def client(fake: Fake) -> Client:
    return Client.from_root(fake.root, budget_secs=10)


def tries(fake: Fake) -> list[dict[str, Any]]:
    return [body for path, body in fake.requests if path == "sbatch-login"]


def test_the_plain_client_signs_in_and_sends_nothing_when_it_is_in_already(fake: Fake) -> None:
    with client(fake) as c:
        assert c.sign_in_status()["ready"] is False
        assert c.sign_in("joe", cluster="beta", password="correct horse", otp="123456")[
            "loginSuccess"
        ]
        assert tries(fake) == [
            {
                "uid": c.uid,
                "cluster": "beta",
                "username": "joe",
                "password": "correct horse",
                "otp": "123456",
                "privateKey": None,
                "passphrase": None,
                "certificate": None,
            }
        ]
        assert c.sign_in("joe", password="x")["loginSuccess"] and len(tries(fake)) == 1
        with pytest.raises(ClientError, match="jobscribe logout") as e:
            c.sign_in("ann", password=SECRET)
        assert e.value.code == "signedInAlready" and tries(fake)[-1]["password"] is None
        assert c.sign_out()["user"] == "joe" and c.sign_in_status()["ready"] is False


async def test_so_does_the_asynchronous_one(fake: Fake) -> None:
    async with AsyncClient.from_root(fake.root) as c:
        assert (await c.sign_in_status("beta"))["cluster"] == "beta"
        with pytest.raises(ClientError) as e:
            await c.sign_in("joe", password="wrong", otp="123456")
        assert e.value.code == "signInRefused"
        assert (await c.sign_in("joe", password="correct horse", otp="123456"))[
            "loginSuccess"
        ] and len(tries(fake)) == 2
        with pytest.raises(ClientError) as e:
            await c.sign_in("ann", password=SECRET)
        assert e.value.code == "signedInAlready"
        assert (await c.sign_out("alpha"))["signedOut"]


# other requests would be repeated after these failures
FAILURES = [
    (
        503,
        b'{"state":"error","code":"signInUnreachable","error":"not there","advice":"","retry":true}',
    ),
    (
        429,
        b'{"state":"error","code":"tooManyRequests","error":"slow down","advice":"","retry":true,"waitSecs":60.0}',
    ),
    (200, b""),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_the_plain_client_never_sends_it_twice(fake: Fake, failure: tuple[int, bytes]) -> None:
    with client(fake) as c:
        c.sign_in_status()  # the client now has a used connection
        fake.failures += [("sbatch-login", failure)] * 3
        with pytest.raises(ClientError) as e:
            c.sign_in("joe", password=SECRET)
        assert len(fake.failures) == 2, "one was used up"
        assert (
            SECRET not in "".join(traceback.format_exception(e.value))
            and e.value.more.get("waitSecs", 60.0) == 60.0
        )


@pytest.mark.parametrize("failure", FAILURES)
async def test_nor_does_the_asynchronous_one(fake: Fake, failure: tuple[int, bytes]) -> None:
    async with AsyncClient.from_root(fake.root, budget_secs=10) as c:
        fake.failures += [("sbatch-login", failure)] * 3
        with pytest.raises(ClientError) as e:
            await c.sign_in("joe", password=SECRET)
        assert len(fake.failures) == 2 and SECRET not in "".join(
            traceback.format_exception(e.value)
        )


def test_a_supervisor_that_was_started_anew_is_found_before_anything_is_sent(fake: Fake) -> None:
    with client(fake) as c:
        c.sign_in_status()
        fake.stop()
        fake.start()
        assert (
            c.sign_in("joe", password="correct horse", otp="123456")["loginSuccess"]
            and len(tries(fake)) == 1
        )


def test_what_cannot_be_sent_is_refused_without_being_shown() -> None:
    for name, secrets in (
        ("no name at all", {"password": SECRET}),
        ("joe", {"password": SECRET * 10_000}),
        ("joe", {"password": SECRET + "\ud800"}),
    ):
        with pytest.raises(ClientError) as e:
            sbatch_login("user0001", None, name, secrets)
        assert (
            e.value.code == "badRequest"
            and SECRET not in "".join(traceback.format_exception(e.value))
            and name not in e.value.sentence
        )
    assert SECRET not in repr(sbatch_login("user0001", None, "joe", {"password": SECRET}))
