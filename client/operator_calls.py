"""Requests of operators: agents and their logs, hosts, health, notifications."""

from typing import Any, Protocol, TypeVar

from .api import operations, requests
from .api.operations import Steps, ask, field, for_users

_T = TypeVar("_T")


class _Do(Protocol):
    def __call__(self, steps: Steps[_T], /) -> _T: ...


class _AsyncDo(Protocol):
    async def __call__(self, steps: Steps[_T], /) -> _T: ...


class OperatorCalls:
    """Requests of operators for one client.

    do: performs an operation and returns its result; raises ClientError.
    """

    def __init__(self, do: _Do) -> None:
        self._do = do

    def agents(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """Return the agents of this user, or of all users: state, jobs and place of the log."""
        agents: list[dict[str, Any]] = self._do(
            field("agents", for_users(requests.agents, all_users))
        )
        return agents

    def agent_stop(self, agent: str, *, uid: str | None = None) -> str:
        """Stop an agent without runs, and its keeper. Return its key.

        agent, uid: see agent_logs. Raises ClientError: agentBusy if it has runs, agentUnavailable
        if it is not connected, notFound.
        """
        key: str = self._do(field("agent", ask(requests.agent_stop(agent, uid))))
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
        """Return a part of an agent's log, from an offset or its newest bytes.

        agent: its key, the first four characters of its id, or one of its jobs. uid: search agents
        of this user only. Returns {"text", "offset", "nextOffset", "size", "where", "sentence"}.
        """
        return self._do(operations.agent_logs(agent, uid, keeper, previous, offset, tail))

    def pool(self) -> list[dict[str, Any]]:
        """Return the hosts of the supervisor's pools, with their used resources."""
        hosts: list[dict[str, Any]] = self._do(field("hosts", ask(requests.pool())))
        return hosts

    def health(self) -> dict[str, Any]:
        """Return the health of the supervisor: `state`, and `reasons` if it is not healthy."""
        return self._do(ask(requests.health()))

    def pool_check(self) -> list[str]:
        """Use each host of the pools as a run would. Return the problems as sentences."""
        problems: list[str] = self._do(field("problems", ask(requests.pool_check())))
        return problems

    def drains(self) -> list[dict[str, Any]]:
        """Return the drains: `driver` and `host` (both empty: the site), `by`, `at`, `reason`."""
        drains: list[dict[str, Any]] = self._do(field("drains", ask(requests.drains())))
        return drains

    def drain(
        self, host: str | None = None, *, driver: str | None = None, reason: str = ""
    ) -> list[dict[str, Any]]:
        """Start no new runs on a host, or without one at all. Return the drains.

        driver: None for that of the pool that has the host. reason: for users whose runs wait.
        """
        return self._do(operations.drain(True, host, driver, reason))

    def drain_end(
        self, host: str | None = None, *, driver: str | None = None
    ) -> list[dict[str, Any]]:
        """End the drain of a host, or without one that of the site. Return the other drains."""
        return self._do(operations.drain(False, host, driver, ""))

    def supervisors(self) -> dict[str, Any]:
        """Return the supervisors of a site in PostgreSQL: {"name": of the one that answers,
        "supervisors": `name`, `role`, `host`, `pid` and more of each}.
        """
        return self._do(ask(requests.supervisors()))

    def hand_over(self, supervisor: str) -> dict[str, Any]:
        """Let this supervisor (`HOST:PID`) hand the site over to a standby. Returns {"begun"}: False if
        it does not serve, so that repeating it is harmless.
        """
        return self._do(ask(requests.hand_over(supervisor)))

    def notify(self) -> dict[str, Any]:
        """Return the notification targets and their states: {"targets", "unwritten"}."""
        return self._do(ask(requests.notify()))

    def notify_test(self, name: str) -> dict[str, Any]:
        """Send a test notification to this target.

        Returns {"delivered", "said", "answer", "secs"}.
        """
        return self._do(ask(requests.notify_test(name)))

    def notify_retry(self, name: str) -> dict[str, Any]:
        """Retry the waiting notifications of this target now. Returns {"waiting"}, their number."""
        return self._do(ask(requests.notify_retry(name)))

    def retention(self) -> dict[str, Any]:
        """Return what retention has removed: {"total", "last", "current", "compactions"}."""
        return self._do(ask(requests.retention()))

    def retention_sweep(self, *, dry_run: bool) -> dict[str, Any]:
        """Remove what the retention settings allow now, or report it only. Returns the report."""
        report: dict[str, Any] = self._do(field("report", ask(requests.retention_sweep(dry_run))))
        return report

    def log_exchange(self, *, keep: bool) -> dict[str, Any]:
        """Exchange the event log for the compacted one beside it. keep: keep the old log aside."""
        compacted: dict[str, Any] = self._do(field("compacted", ask(requests.log_exchange(keep))))
        return compacted


class AsyncOperatorCalls:
    """The same requests as coroutines. do: performs an operation."""

    def __init__(self, do: _AsyncDo) -> None:
        self._do = do

    async def agents(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """Return the agents of this user, or of all users: state, jobs and place of the log."""
        agents: list[dict[str, Any]] = await self._do(
            field("agents", for_users(requests.agents, all_users))
        )
        return agents

    async def agent_stop(self, agent: str, *, uid: str | None = None) -> str:
        """Stop an agent without runs, and its keeper. Return its key."""
        key: str = await self._do(field("agent", ask(requests.agent_stop(agent, uid))))
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
        """Return a part of an agent's log, from an offset or its newest bytes."""
        return await self._do(operations.agent_logs(agent, uid, keeper, previous, offset, tail))

    async def pool(self) -> list[dict[str, Any]]:
        """Return the hosts of the supervisor's pools, with their used resources."""
        hosts: list[dict[str, Any]] = await self._do(field("hosts", ask(requests.pool())))
        return hosts

    async def health(self) -> dict[str, Any]:
        """Return the health of the supervisor: `state`, and `reasons` if it is not healthy."""
        return await self._do(ask(requests.health()))

    async def pool_check(self) -> list[str]:
        """Use each host of the pools as a run would. Return the problems as sentences."""
        problems: list[str] = await self._do(field("problems", ask(requests.pool_check())))
        return problems

    async def drains(self) -> list[dict[str, Any]]:
        """Return the drains: `driver` and `host` (both empty: the site), `by`, `at`, `reason`."""
        drains: list[dict[str, Any]] = await self._do(field("drains", ask(requests.drains())))
        return drains

    async def drain(
        self, host: str | None = None, *, driver: str | None = None, reason: str = ""
    ) -> list[dict[str, Any]]:
        """Start no new runs on a host, or without one at all. Return the drains.

        driver: None for that of the pool that has the host. reason: for users whose runs wait.
        """
        return await self._do(operations.drain(True, host, driver, reason))

    async def drain_end(
        self, host: str | None = None, *, driver: str | None = None
    ) -> list[dict[str, Any]]:
        """End the drain of a host, or without one that of the site. Return the other drains."""
        return await self._do(operations.drain(False, host, driver, ""))

    async def supervisors(self) -> dict[str, Any]:
        """Return the supervisors of a site in PostgreSQL: {"name": of the one that answers,
        "supervisors": `name`, `role`, `host`, `pid` and more of each}.
        """
        return await self._do(ask(requests.supervisors()))

    async def hand_over(self, supervisor: str) -> dict[str, Any]:
        """Let this supervisor (`HOST:PID`) hand the site over to a standby. Returns {"begun"}: False if
        it does not serve, so that repeating it is harmless.
        """
        return await self._do(ask(requests.hand_over(supervisor)))

    async def notify(self) -> dict[str, Any]:
        """Return the notification targets and their states: {"targets", "unwritten"}."""
        return await self._do(ask(requests.notify()))

    async def notify_test(self, name: str) -> dict[str, Any]:
        """Send a test notification to this target."""
        return await self._do(ask(requests.notify_test(name)))

    async def notify_retry(self, name: str) -> dict[str, Any]:
        """Retry the waiting notifications of this target now. Returns {"waiting"}, their number."""
        return await self._do(ask(requests.notify_retry(name)))

    async def retention(self) -> dict[str, Any]:
        """Return what retention has removed: {"total", "last", "current", "compactions"}."""
        return await self._do(ask(requests.retention()))

    async def retention_sweep(self, *, dry_run: bool) -> dict[str, Any]:
        """Remove what the retention settings allow now, or report it only. Returns the report."""
        report: dict[str, Any] = await self._do(
            field("report", ask(requests.retention_sweep(dry_run)))
        )
        return report

    async def log_exchange(self, *, keep: bool) -> dict[str, Any]:
        """Exchange the event log for the compacted one beside it. keep: keep the old log aside."""
        compacted: dict[str, Any] = await self._do(
            field("compacted", ask(requests.log_exchange(keep)))
        )
        return compacted
