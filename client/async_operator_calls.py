"""The same as `operating`, for the asynchronous client."""

from collections.abc import Awaitable, Callable
from typing import Any

from .api import requests
from .api.requests import Call


class AsyncOperatorCalls:
    """Of one client. ask: sends a call and gives the object that is answered; raises ClientError.
    uid: gives its user.
    """

    def __init__(
        self, ask: Callable[[Call], Awaitable[dict[str, Any]]], uid: Callable[[], Awaitable[str]]
    ) -> None:
        self._object, self._uid = ask, uid

    async def agents(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """This user's agents, or everybody's: how each stands, its jobs, and where its log lies."""
        rows: list[dict[str, Any]] = (
            await self._object(requests.agents(None if all_users else await self._uid()))
        )["agents"]
        return rows

    async def agent_stop(self, agent: str, *, uid: str | None = None) -> str:
        """Tell an agent without runs to end, and its keeper; returns its key. agent, uid: as in
        agent_logs.

        Raises ClientError: agentBusy where it has runs, agentUnavailable where it is not connected,
        notFound.
        """
        key: str = (await self._object(requests.agent_stop(agent, uid)))["agent"]
        return key

    async def agent_logs(
        self,
        agent: str,
        *,
        uid: str | None = None,
        keeper: bool = False,
        previous: bool = False,
        offset: int = 0,
        tail: int = 0,
    ) -> dict[str, Any]:
        """{"text", "offset", "nextOffset", "size", "where", "sentence"}: of an agent's log, from an
        offset on, or its newest bytes.

        agent: its key, four characters of its id, or a job of it; uid: only one of this user is
        meant.
        """
        return await self._object(
            requests.agent_logs(agent, uid, "keeper" if keeper else "agent", previous, offset, tail)
        )

    async def pool(self) -> list[dict[str, Any]]:
        """The hosts of the supervisor's pools, and what is used of them."""
        hosts: list[dict[str, Any]] = (await self._object(requests.pool()))["hosts"]
        return hosts

    async def health(self) -> dict[str, Any]:
        """Whether all is well with the supervisor: `state`, and `reasons` where it is not."""
        return await self._object(requests.health())

    async def pool_check(self) -> list[str]:
        """What is wrong with them, found by using them: sentences for a person."""
        problems: list[str] = (await self._object(requests.pool_check()))["problems"]
        return problems

    async def notify(self) -> dict[str, Any]:
        """{"targets", "unwritten"}: who is told when runs change, and how each stands."""
        return await self._object(requests.notify())

    async def notify_test(self, name: str) -> dict[str, Any]:
        """{"delivered", "said", "answer", "secs"}: what came of a message about nothing to this
        target.
        """
        return await self._object(requests.notify_test(name))

    async def notify_retry(self, name: str) -> dict[str, Any]:
        """{"waiting"}: so many notifications for this target are tried at once."""
        return await self._object(requests.notify_retry(name))
