"""API tokens: valid by the supervisor's clock and durable events only, with limits."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from access_kit import WALL, Clock, access, engine

from jobscribe.db.events.events import ACCESS, TokenCreated
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.tokens import DEFAULT_SECS, MAX_LIVE, TokenText, generate, parse
from jobscribe.protocol.errors import Refusal
from jobscribe.service.site.secret_rotation import opened, rotate
from jobscribe.supervisor.access.authentication import Access
from jobscribe.supervisor.access.principal import OPERATOR
from jobscribe.supervisor.access.streams import StreamWriter
from jobscribe.supervisor.engine.decision_loop import Engine

ANN, ADMIN = "user0001", "admin001"


def code(call: Any, *args: Any) -> str:
    with pytest.raises(Refusal) as e:
        call(*args)
    return e.value.code


def who(a: Access, text: TokenText) -> str | None:
    return a.principal(f"Bearer {text}", None, monitors=False).uid


def held() -> tuple[Engine, MemoryStore]:
    """Return an engine whose commits wait for the test."""
    store = MemoryStore(lambda call: call(), hold=True)
    return engine(store), store


async def created(a: Access, uid: str = ANN, secs: float | None = None) -> TokenText:
    text, _ = await a.tokens.create(OPERATOR, uid, "laptop", ("read",), secs)
    return text


def test_a_token_has_its_form_and_256_random_bits() -> None:
    text = generate(bytes(range(40)))
    assert parse(str(text)) == text and len(str(text)) == 56
    assert str(text)[13:] not in repr(text)
    for other in (str(text)[:-1], str(text) + "a", str(text)[1:], "jst_ä", "", " " + str(text)):
        assert code(parse, other) == "unauthenticated"


async def test_only_the_clock_of_the_supervisor_decides_about_expiry() -> None:
    clock = Clock()
    a = access("s", clock=clock)
    text = await created(a, secs=3600.0)
    clock.at = WALL + 3599.9
    assert who(a, text) == ANN
    clock.at = WALL + 3600.0
    assert code(who, a, text) == "tokenExpired"
    # an hour back, as after a wrong clock was corrected
    clock.at = WALL
    assert who(a, text) == ANN


async def test_who_has_not_the_secret_learns_nothing_about_a_token() -> None:
    clock = Clock()
    a = access("s", clock=clock)
    texts = [await created(a), await created(a), await created(a, secs=1.0)]
    await a.tokens.revoke(OPERATOR, ANN, texts[1].id, "")
    clock.at += 2.0
    assert [code(who, a, t) for t in texts[1:]] == ["tokenRevoked", "tokenExpired"]
    for text in (*texts, TokenText("Zz999999", "")):
        with pytest.raises(Refusal) as e:
            who(a, TokenText(text.id, "A" * 43))
        assert (e.value.code, e.value.sentence) == (
            "unauthenticated",
            "this API token is unknown here",
        )


async def test_a_token_is_valid_when_its_event_is_durable_and_survives_a_restart() -> None:
    on, store = held()
    a = access("s", on=on)
    creating = asyncio.ensure_future(created(a))
    await asyncio.sleep(0)
    assert store.waiting == 1 and not creating.done()
    store.commit()
    text = await creating
    assert who(a, text) == ANN
    revoking = asyncio.ensure_future(a.tokens.revoke(OPERATOR, ANN, text.id, "lost"))
    await asyncio.sleep(0)
    assert not revoking.done() and who(a, text) == ANN
    store.commit()
    await revoking
    for again in (a, access("s", on=engine(store.crash()))):
        assert code(who, again, text) == "tokenRevoked"


async def test_the_log_has_no_token() -> None:
    on = engine()
    text = await created(access("s", on=on))
    (stored,) = on.store.read(ACCESS)
    assert isinstance(stored.event, TokenCreated)
    assert text.secret not in repr(stored) and stored.event.secret_hash != text.secret


async def test_a_refused_write_creates_nothing_and_the_next_one_works() -> None:
    on = engine()
    a, store = access("s", on=on), on.store
    assert isinstance(store, MemoryStore)
    full = True

    def point(name: str) -> None:
        if full and name == "taken":
            raise OSError(28, "No space left on device")

    store._point = point
    with pytest.raises(Refusal, match="storageUnavailable"):
        await created(a)
    full = False
    assert a.tokens.of(ANN) == []
    on._paused_until = 0.0
    text = await created(a)
    assert who(a, text) == ANN and len(store.read(ACCESS)) == 1


async def test_concurrent_appends_of_a_stream_share_a_commit() -> None:
    on, store = held()
    writer = StreamWriter(on, ACCESS)
    text = generate(bytes(40))
    event = TokenCreated(
        at=1.0,
        id=text.id,
        uid=ANN,
        name="x",
        scopes=(),
        expires_at=2.0,
        secret_hash="",
        by="operator",
    )
    appends = [asyncio.ensure_future(writer.append(event)) for _ in range(5)]
    await asyncio.sleep(0)
    store.commit()
    await asyncio.gather(*appends)
    assert [s.version for s in store.read(ACCESS)] == [1, 2, 3, 4, 5]
    # a request whose client is gone
    appends = [asyncio.ensure_future(writer.append(event)) for _ in range(2)]
    await asyncio.sleep(0)
    appends[0].cancel()
    store.commit()
    await appends[1]
    assert store.version(ACCESS) == 7


async def test_a_user_has_a_limited_number_of_live_tokens() -> None:
    clock = Clock()
    a = access("s", clock=clock)
    results = await asyncio.gather(
        *(created(a, secs=100.0) for _ in range(MAX_LIVE + 3)), return_exceptions=True
    )
    refused = [r for r in results if isinstance(r, Refusal)]
    assert [r.code for r in refused] == ["tokenLimit"] * 3 and len(a.tokens.of(ANN)) == MAX_LIVE
    await created(a, ADMIN)
    await a.tokens.revoke(OPERATOR, ANN, a.tokens.of(ANN)[0].id, "")
    await created(a)
    clock.at += 101.0
    assert (await created(a)).id


async def test_a_token_lives_90_days_by_default_and_no_longer_than_its_creator() -> None:
    a = access("s")
    text = await created(a)
    assert a.tokens.of(ANN)[0].expires_at == WALL + DEFAULT_SECS
    by = a.principal(f"Bearer {text}", None, monitors=False)
    _, child = await a.tokens.create(by, ANN, "x", ("read",), None)
    assert (child.expires_at, child.by) == (WALL + DEFAULT_SECS, ANN)


async def test_tokens_that_a_revoked_token_created_are_revoked_in_the_same_commit() -> None:
    on, store = held()
    a = access("s", on=on)

    async def make(by: TokenText | None) -> TokenText:
        maker = OPERATOR if by is None else a.principal(f"Bearer {by}", None, monitors=False)
        making = asyncio.ensure_future(a.tokens.create(maker, ANN, "x", ("read",), None))
        await asyncio.sleep(0)
        store.commit()
        return (await making)[0]

    first, other = await make(None), await make(None)
    child = await make(first)
    grandchild = await make(child)
    stolen = a.principal(f"Bearer {child}", None, monitors=False)
    revoking = asyncio.ensure_future(a.tokens.revoke(OPERATOR, ANN, first.id, "stolen"))
    late = asyncio.ensure_future(a.tokens.create(stolen, ANN, "x", ("read",), None))
    await asyncio.sleep(0)
    assert who(a, grandchild) == ANN and store.waiting == 1
    store.commit()
    _, others = await revoking
    await asyncio.sleep(0)
    store.commit()
    assert sorted(t.id for t in others) == sorted((child.id, grandchild.id))
    # a request that was authenticated before
    with pytest.raises(Refusal, match="tokenRevoked"):
        await late
    for again in (a, access("s", on=engine(store.crash()))):
        assert [code(who, again, t) for t in (first, child, grandchild)] == ["tokenRevoked"] * 3
        assert who(again, other) == ANN
    assert (await a.tokens.revoke(OPERATOR, ANN, first.id, ""))[1] == []


async def test_the_holder_of_a_rotated_secret_is_admitted_as_long_as_it_is_valid(
    tmp_path: Path,
) -> None:
    """A stream that was opened with the earlier secret ends with it."""
    file = tmp_path / "server"
    file.write_text("0123456789abcdefghijklm")
    file.chmod(0o600)
    wall = [1_800_000_000.0]
    secret = opened("server", str(file), "secret/server", lambda: wall[0])
    nothing: Any = None
    access = Access(secret, lambda _: False, nothing, nothing, nothing, nothing)
    early = access.principal("Bearer " + secret.current, None, monitors=False)
    new = rotate(str(file), "secret/server", 100.0, wall[0]).current
    late = access.principal("Bearer " + new, None, monitors=False)
    assert early.trusted and late.trusted
    assert access.admits(early) and access.admits(late)
    wall[0] += 100.0
    assert access.admits(late) and not access.admits(early)
    with pytest.raises(Refusal):
        access.principal("Bearer 0123456789abcdefghijklm", None, monitors=False)
