"""Tokens and device logins of several shards: no token outlives its creator, and a shard that does not answer
is named.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tornado.httputil import HTTPHeaders

from jobscribe.protocol.errors import Refusal
from jobscribe.router import access_requests
from jobscribe.router.access_requests import AccessRequests
from jobscribe.router.senders import Sender
from jobscribe.router.upstream import Answer, Message

TOTAL = 3
#: Tokens by shard: creator by id.
CREATED = {
    0: {"root0000": None, "leaf0000": "midd0001"},
    1: {"midd0001": "root0000", "other001": "stranger"},
    2: {"deep0002": "leaf0000"},
}


class Shards:
    """Stands for the supervisors. away: those that do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, away: tuple[int, ...] = ()) -> None:
        self.away, self.asked, self.revoked = away, list[tuple[int, str]](), set[str]()
        self.answers: dict[str, Callable[[int, Any], Any]] = {}
        monkeypatch.setattr(access_requests, "fetch", self._fetch)
        self.lines: list[Any] = []

    async def _fetch(self, parts: Any, shard: int, message: Message) -> Answer | None:
        self.asked.append((shard, message.path))
        if shard in self.away:
            return None
        body = msgspec.json.decode(message.body or b"{}")
        said = self.answers[message.path](shard, body)
        code = 200 if said.get("state") != "error" else 401
        return Answer(code, HTTPHeaders(), msgspec.json.encode(said))

    def requests(self) -> AccessRequests:
        class Parts:
            class addresses:
                total = TOTAL

            class secret:
                current = "hidden"

            log = staticmethod(lambda *line: self.lines.append(line))

        parts: Any = Parts
        return AccessRequests(parts, "peer mark")

    def revoke_created(self, shard: int, body: Any) -> Any:
        found: set[str] = set()
        while True:
            more = {
                t for t, parent in CREATED[shard].items() if parent in (*body["ids"], *found)
            } - found
            if not more:
                break
            found |= more
        new = sorted(found - self.revoked)
        self.revoked |= found
        return {"ids": sorted(found), "revoked": new}


def answer(body: Any) -> Answer:
    return Answer(200, HTTPHeaders(), msgspec.json.encode(body))


ROOT = answer({"id": "root0000", "alsoRevoked": []})


async def test_tokens_that_tokens_of_other_shards_created_are_all_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = Shards(monkeypatch)
    shards.answers["/api/created-tokens-revoke"] = shards.revoke_created
    reply = await shards.requests().revoked(ROOT, "admin001")
    assert shards.revoked == {"midd0001", "leaf0000", "deep0002"}
    assert sorted(msgspec.json.decode(reply.content)["alsoRevoked"]) == sorted(shards.revoked)


async def test_a_revocation_that_a_shard_did_not_hear_is_refused_and_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = Shards(monkeypatch, away=(2,))
    shards.answers["/api/created-tokens-revoke"] = shards.revoke_created
    with pytest.raises(Refusal, match="shard 2") as e:
        await shards.requests().revoked(ROOT, "admin001")
    assert e.value.code == "noSupervisor" and e.value.more["missing"] == [2]
    assert shards.revoked == {"midd0001", "leaf0000"}
    shards.away = ()
    await shards.requests().revoked(ROOT, "admin001")
    assert "deep0002" in shards.revoked


async def test_a_token_is_given_only_if_its_creator_is_valid_after_the_creation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards, revoked = Shards(monkeypatch), list[Any]()

    def revoke(shard: int, body: Any) -> Any:
        revoked.append((shard, body["id"]))
        return {"state": "ok"}

    async def invalid() -> Sender:
        raise Refusal("tokenRevoked", "the API token was revoked")

    async def valid() -> Sender:
        return Sender(None)

    shards.answers["/api/token-revoke"] = revoke
    made = answer({"uid": "user0001", "id": "qwertyui", "secret": "jst_x"})
    await shards.requests().created(1, made, valid)
    assert revoked == []
    with pytest.raises(Refusal, match="revoked"):
        await shards.requests().created(1, made, invalid)
    assert revoked == [(1, "qwertyui")]


@pytest.mark.parametrize(
    "said, away, want",
    (
        (("unknown", "waits", "ok"), (), "ok"),
        (("unknown", "ok", "waits"), (), "ok"),
        (("unknown", "waits", "unknown"), (2,), "authorizationPending"),
        (("waits", "denied", "ok"), (), "deviceDenied"),
        (("unknown", "unknown", "unknown"), (), "deviceCodeUnknown"),
        (("unknown", "unknown", "unknown"), (1,), "noSupervisor"),
    ),
)
async def test_a_poll_finds_the_shard_that_has_the_answer(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...], away: tuple[int, ...], want: str
) -> None:
    bodies = {
        "ok": {"state": "ok", "secret": "jst_x"},
        "waits": {"state": "authorizationPending", "interval": 5.0},
        "unknown": {"state": "error", "code": "deviceCodeUnknown", "error": "unknown"},
        "denied": {"state": "error", "code": "deviceDenied", "error": "denied"},
    }
    shards = Shards(monkeypatch, away)
    shards.answers["/api/device-token"] = lambda shard, body: bodies[said[shard]]
    try:
        reply = await shards.requests().device_token("Bearer jsd_x")
        assert msgspec.json.decode(reply.content)["state"] == want
    except Refusal as e:
        assert e.code == want


async def test_a_login_that_was_answered_ends_in_all_other_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards, ended = Shards(monkeypatch, away=(2,)), list[Any]()

    def end(shard: int, body: Any) -> Any:
        ended.append((shard, body["userCode"]))
        return {"state": "ok"}

    shards.answers["/api/device-end"] = end
    body = msgspec.json.encode({"uid": "user0001", "userCode": "BCDF-GHJK", "approve": True})
    await shards.requests().answered(1, body)
    assert ended == [(0, "BCDF-GHJK")]
    assert shards.asked.count((2, "/api/device-end")) == 3 and len(shards.lines) == 1
