"""Requests of operators for the asynchronous client, as in `operator_calls`."""

from collections.abc import Awaitable, Callable
from typing import Any

from .api import requests
from .api.requests import Call


class AsyncOperatorCalls:
    """Requests of operators for one client.

    ask: sends a call and returns the JSON object of the answer; raises ClientError. uid: returns
    the user of the client.
    """

    def __init__(
        self, ask: Callable[[Call], Awaitable[dict[str, Any]]], uid: Callable[[], Awaitable[str]]
    ) -> None:
        self._object, self._uid = ask, uid

    async def agents(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """Return the agents of this user, or of all users: state, jobs and place of the log."""
        rows: list[dict[str, Any]] = (
            await self._object(requests.agents(None if all_users else await self._uid()))
        )["agents"]
        return rows

    async def agent_stop(self, agent: str, *, uid: str | None = None) -> str:
        """Stop an agent without runs, and its keeper. Return its key.

        agent, uid: see agent_logs. Raises ClientError: agentBusy if it has runs, agentUnavailable
        if it is not connected, notFound.
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
        """Return a part of an agent's log, from an offset or its newest bytes.

        agent: its key, the first four characters of its id, or one of its jobs. uid: search agents
        of this user only. Returns {"text", "offset", "nextOffset", "size", "where", "sentence"}.
        """
        return await self._object(
            requests.agent_logs(agent, uid, "keeper" if keeper else "agent", previous, offset, tail)
        )

    async def pool(self) -> list[dict[str, Any]]:
        """Return the hosts of the supervisor's pools, with their used resources."""
        hosts: list[dict[str, Any]] = (await self._object(requests.pool()))["hosts"]
        return hosts

    async def health(self) -> dict[str, Any]:
        """Return the health of the supervisor: `state`, and `reasons` if it is not healthy."""
        return await self._object(requests.health())

    async def pool_check(self) -> list[str]:
        """Use each host of the pools as a run would. Return the problems as sentences."""
        problems: list[str] = (await self._object(requests.pool_check()))["problems"]
        return problems

    async def notify(self) -> dict[str, Any]:
        """Return the notification targets and their states: {"targets", "unwritten"}."""
        return await self._object(requests.notify())

    async def notify_test(self, name: str) -> dict[str, Any]:
        """Send a test notification to this target.

        Returns {"delivered", "said", "answer", "secs"}.
        """
        return await self._object(requests.notify_test(name))

    async def notify_retry(self, name: str) -> dict[str, Any]:
        """Retry the waiting notifications of this target now. Returns {"waiting"}, their number."""
        return await self._object(requests.notify_retry(name))
