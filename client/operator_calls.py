"""What operators ask a supervisor: its agents and their logs, its hosts, how well it is, and whom
it tells of changes.
"""

from collections.abc import Callable
from typing import Any

from .api import requests
from .api.requests import Call


class OperatorCalls:
    """Of one client. ask: sends a call and gives the object that is answered; raises ClientError."""

    def __init__(self, ask: Callable[[Call], dict[str, Any]], uid: str) -> None:
        self._object, self._uid = ask, uid

    def agents(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """This user's agents, or everybody's: how each stands, its jobs, and where its log lies."""
        rows: list[dict[str, Any]] = self._object(
            requests.agents(None if all_users else self._uid)
        )["agents"]
        return rows

    def agent_stop(self, agent: str, *, uid: str | None = None) -> str:
        """Tell an agent without runs to end, and its keeper; returns its key. agent, uid: as in
        agent_logs.

        Raises ClientError: agentBusy where it has runs, agentUnavailable where it is not connected,
        notFound.
        """
        key: str = self._object(requests.agent_stop(agent, uid))["agent"]
        return key

    def agent_logs(
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
        return self._object(
            requests.agent_logs(agent, uid, "keeper" if keeper else "agent", previous, offset, tail)
        )

    def pool(self) -> list[dict[str, Any]]:
        """The hosts of the supervisor's pools, and what is used of them."""
        hosts: list[dict[str, Any]] = self._object(requests.pool())["hosts"]
        return hosts

    def health(self) -> dict[str, Any]:
        """Whether all is well with the supervisor: `state`, and `reasons` where it is not."""
        return self._object(requests.health())

    def pool_check(self) -> list[str]:
        """What is wrong with them, found by using them: sentences for a person."""
        problems: list[str] = self._object(requests.pool_check())["problems"]
        return problems

    def notify(self) -> dict[str, Any]:
        """{"targets", "unwritten"}: who is told when runs change, and how each stands."""
        return self._object(requests.notify())

    def notify_test(self, name: str) -> dict[str, Any]:
        """{"delivered", "said", "answer", "secs"}: what came of a message about nothing to this
        target.
        """
        return self._object(requests.notify_test(name))

    def notify_retry(self, name: str) -> dict[str, Any]:
        """{"waiting"}: so many notifications for this target are tried at once."""
        return self._object(requests.notify_retry(name))
