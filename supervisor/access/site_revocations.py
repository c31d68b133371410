"""Revocations of API tokens that reach all shards of a site, whichever supervisor was asked: each shard adds its own
to a table of the site, and looks there for the tokens of other shards that created tokens here.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from ...protocol.errors import Refusal
from .api_tokens import ApiTokens
from .device_logins import DeviceLogins

#: Interval of the looks. A revocation is in the table after one, and has reached another shard after the next.
LOOK_SECS = 1.0
#: Name of the one who revokes, on record.
BY = "supervisor"


class Database(Protocol):
    """The revoked tokens of the site (`db.postgres.site_tables.tables`)."""

    def revoked(
        self,
        own: Mapping[str, float],
        asked: Collection[str],
        done: Callable[[frozenset[str] | None], None],
    ) -> None: ...


class SiteRevocations:
    """The revocations of one shard. failed: gets what ended the looks for ever."""

    def __init__(
        self,
        tokens: ApiTokens,
        logins: DeviceLogins,
        database: Database,
        failed: Callable[[str, str], object],
    ) -> None:
        self._tokens, self._logins, self._database = tokens, logins, database
        self._failed = failed
        #: own tokens that are in the table
        self._added: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(
                "revocationsFailed",
                f"tokens that tokens of other shards created are not revoked with them from now on: {error!r}",
            )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # the next look repeats what the database or the log did not take
            with contextlib.suppress(Refusal):
                await self.look()
            await asyncio.sleep(LOOK_SECS)

    async def look(self) -> None:
        """Add what was revoked here, and revoke what tokens created that were revoked elsewhere. The
        database is asked only if there is any. Raises Refusal if the log takes no revocation.
        """
        ended = self._tokens.ended()
        new = {id_: at for id_, at in ended.items() if id_ not in self._added}
        creators = self._tokens.creators_elsewhere() | self._logins.creators_elsewhere()
        if not new and not creators:
            return
        found = await self._asked(new, creators)
        if found is None:
            return
        self._added = frozenset(ended)
        if found:
            self._logins.revoke(found)
            await self._tokens.revoke_created(BY, sorted(found))

    async def _asked(
        self, own: Mapping[str, float], creators: Collection[str]
    ) -> frozenset[str] | None:
        done: asyncio.Future[frozenset[str] | None] = asyncio.get_running_loop().create_future()

        def answered(answer: frozenset[str] | None) -> None:
            if not done.done():
                done.set_result(answer)

        self._database.revoked(own, creators, answered)
        return await done
