"""Requests about API tokens and device logins that concern several shards.

A device login is begun with the same codes in each shard, because nobody knows who will approve it; it ends in
all other shards when it is answered in one. A token that another shard's token created is revoked with
its creator, and leaves this process only if its creator is valid after the creation.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec
from tornado.httputil import HTTPHeaders

from ..protocol.api.device_logins import DEVICE_BYTES, USER_BYTES, device_code, made_user_code
from ..protocol.api.requests import (
    CreatedTokensRevoke,
    DeviceAnswer,
    DeviceBegin,
    DeviceEnd,
    TokenRevoke,
)
from ..protocol.errors import Refusal
from ..protocol.wire.handshake import PEER
from ..supervisor.api.endpoints.access import device_request
from .forwarding import Parts, fetch
from .senders import Sender
from .shard_addresses import no_supervisor
from .site_requests import Reply, refusal_of
from .upstream import Answer, Message

#: Rounds in which tokens that created tokens of other shards are followed.
_MOST_ROUNDS = 32
_END_TRIES = 3


class AccessRequests:
    """signed_peer: the client's address."""

    def __init__(self, parts: Parts, signed_peer: str) -> None:
        self._parts, self._peer = parts, signed_peer
        self._shards = range(parts.addresses.total)

    # ---- device logins

    async def device_start(self, query: str) -> Reply:
        """Begin a login of a machine in each shard that answers. Raises Refusal."""
        fields = parse_qs(query, keep_blank_values=True)
        first = {name: values[0] for name, values in fields.items()}
        asked = device_request(first.get("name"), fields.get("scope", []), first.get("expiresSecs"))
        begin = DeviceBegin(
            name=asked.name,
            scopes=asked.scopes,
            expires_secs=asked.expires_secs,
            device_code=device_code(os.urandom(DEVICE_BYTES)),
            user_code=made_user_code(os.urandom(USER_BYTES)),
            page=self._parts.page,
        )
        answers = await self._all("/api/device-begin", begin)
        good = [a for a in answers if a is not None and a.code == 200]
        for answer in answers:
            if answer is not None and answer.code != 200:
                raise refusal_of(answer)
        if not good:
            raise no_supervisor(self._shards)
        missing = [k for k, answer in enumerate(answers) if answer is None]
        return Reply(good[0].body, missing=missing)

    async def device_token(self, authorization: str) -> Reply:
        """Return the token of a login that was approved in some shard; else whether it waits. Raises
        Refusal.
        """
        waits: Answer | None = None
        unknown: Refusal | None = None
        missing: list[int] = []
        # one after the other: a shard gives the token once
        for shard in self._shards:
            headers = HTTPHeaders({"Authorization": authorization, PEER: self._peer})
            message = Message("POST", "/api/device-token", headers)
            answer = await fetch(self._parts, shard, message)
            if answer is None:
                missing.append(shard)
            elif answer.code != 200:
                refusal = refusal_of(answer)
                if refusal.code != "deviceCodeUnknown":
                    raise refusal
                unknown = refusal
            elif msgspec.json.decode(answer.body).get("state") == "ok":
                return Reply(answer.body)
            else:
                waits = answer
        if waits is not None:
            return Reply(waits.body, missing=missing)
        if missing or unknown is None:
            raise no_supervisor(missing)  # it may have been approved there
        raise unknown

    async def answered(self, shard: int, body: bytes) -> None:
        """End a login in the other shards after it was answered in this one."""
        end = DeviceEnd(user_code=msgspec.json.decode(body, type=DeviceAnswer).user_code)
        left = [k for k in self._shards if k != shard]
        for _ in range(_END_TRIES):
            answers = await self._all("/api/device-end", end, left)
            left = [k for k, a in zip(left, answers, strict=True) if a is None or a.code != 200]
            if not left:
                return
        self._parts.log("a device login was answered, and may wait in shards {} too", left)

    # ---- tokens

    async def created(
        self, shard: int, answer: Answer, confirm: Callable[[], Awaitable[Sender]]
    ) -> None:
        """Check the creator of a new token again: a token created by one that was revoked in the meantime
        is revoked, and never given to the client. Raises Refusal.
        """
        try:
            await confirm()
        except Refusal:
            made: dict[str, Any] = msgspec.json.decode(answer.body)
            revoke = TokenRevoke(uid=made["uid"], id=made["id"], reason="its creator was revoked")
            await self._ask(shard, "/api/token-revoke", revoke)
            raise

    async def revoked(self, answer: Answer, by: str) -> Reply:
        """Revoke what a revoked token created in any shard. Return the answer about all of them. Raises
        Refusal if a shard does not answer: the same request then continues.
        """
        body: dict[str, Any] = msgspec.json.decode(answer.body)
        known, also, missing = {str(body["id"])}, list(body["alsoRevoked"]), set[int]()
        asked: set[str] = set()
        for _ in range(_MOST_ROUNDS):
            if known == asked:
                break
            asked = set(known)
            request = CreatedTokensRevoke(ids=tuple(sorted(asked)), by=by)
            answers = await self._all("/api/created-tokens-revoke", request)
            for shard, found in zip(self._shards, answers, strict=True):
                if found is None:
                    missing.add(shard)
                    continue
                if found.code != 200:
                    raise refusal_of(found)
                rows = msgspec.json.decode(found.body)
                known |= set(rows["ids"])
                also += [i for i in rows["revoked"] if i not in also]
        if missing:
            refusal = no_supervisor(sorted(missing))
            raise Refusal(
                refusal.code,
                f"the API token {body['id']} was revoked, but not yet the tokens that it may have created in shard"
                f" {', '.join(map(str, sorted(missing)))}, which no supervisor serves: revoke it again later",
                refusal.more,
            )
        return Reply(msgspec.json.encode({**body, "alsoRevoked": also}))

    async def _all(
        self, path: str, request: msgspec.Struct, shards: Any = None
    ) -> list[Answer | None]:
        asked = self._shards if shards is None else shards
        return await asyncio.gather(*(self._ask(k, path, request) for k in asked))

    async def _ask(self, shard: int, path: str, request: msgspec.Struct) -> Answer | None:
        headers = HTTPHeaders(
            {"Authorization": f"Bearer {self._parts.secret.current}", PEER: self._peer}
        )
        body = msgspec.json.encode(request)
        return await fetch(self._parts, shard, Message("POST", path, headers, body))
