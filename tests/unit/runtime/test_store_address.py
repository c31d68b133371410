"""Addresses of event stores in PostgreSQL: what they name, and which are refused."""

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.store_address import parsed


@pytest.mark.parametrize(
    "bad, code",
    [
        ("postgresql://u:secretword@localhost/db", "store.password_file"),
        ("postgresql://u@localhost/db?password=secretword", "store.password_file"),
        ("postgresql://u@db.example.org/db", "sslmode=verify-full"),
        ("postgresql://u@db.example.org/db?sslmode=require", "sslmode=verify-full"),
        ("postgresql://u@localhost,db.example.org/db", "sslmode=verify-full"),
        ("postgresql://u@localhost/db?hostaddr=10.0.0.1", "sslmode=verify-full"),
        ("postgresql://%2Frun%2C10.0.0.1/db", "sslmode=verify-full"),
        ("postgresql://u@localhost/db?oauth_client_secret=secretword", "store.password_file"),
        ("postgresql:///db", "names no host"),
        ("mysql://u@localhost/db", "postgresql://"),
        ("postgresql://u@localhost/db?schema=X;drop", "small letters"),
        ("postgresql://u@localhost/db?service=x", "service"),
    ],
)
def test_unsafe_and_wrong_addresses_are_refused_without_their_password(bad: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        parsed(bad)
    assert code in refused.value.sentence and "secretword" not in str(refused.value)


def test_an_address_names_server_database_and_schema() -> None:
    far = parsed("postgresql://u@db.example.org:5433/db?sslmode=verify-full&schema=site_1")
    assert (far.url, far.schema, far.user) == (
        "postgresql://u@db.example.org:5433/db?sslmode=verify-full",
        "site_1",
        "u",
    )
    near = parsed("postgresql:///db?host=/run/postgresql")
    assert (near.url, near.schema) == ("postgresql:///db?host=/run/postgresql", "jobscribe")
    spaced = parsed("postgresql:///db?host=/run/a%20b+c")
    assert spaced.url == "postgresql:///db?host=/run/a%20b%2Bc"
