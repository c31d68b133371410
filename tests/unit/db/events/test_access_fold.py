"""API tokens are what their events say."""

from jobscribe.db.events.access_fold import evolve_token, fold_tokens
from jobscribe.db.events.events import TokenCreated, TokenRevoked

CREATED = TokenCreated(
    at=10.0,
    id="Qm3vX81k",
    uid="user0001",
    name="laptop",
    scopes=("read",),
    expires_at=20.0,
    secret_hash="00",
    by="operator",
)
REVOKED = TokenRevoked(at=12.0, id="Qm3vX81k", by="admin001", reason="lost")


def test_a_token_lives_until_it_expires() -> None:
    (token,) = fold_tokens([CREATED]).values()
    assert (token.created_at, token.expires_at, token.by) == (10.0, 20.0, "operator")
    assert [token.live(now) for now in (10.0, 19.9, 20.0)] == [True, True, False]


def test_a_revoked_token_never_lives_again() -> None:
    (token,) = fold_tokens(
        [CREATED, REVOKED, TokenRevoked(at=15.0, id="Qm3vX81k", by="user0001")]
    ).values()
    assert token.revoked_at == 12.0 and not token.live(11.0)


def test_a_revocation_of_an_unknown_token_changes_nothing() -> None:
    assert evolve_token(None, REVOKED) is None
    assert fold_tokens([REVOKED]) == {}
