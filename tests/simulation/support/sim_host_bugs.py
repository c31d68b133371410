"""Planted bugs for several hosts, host failures and idle agents (see `sim_bugs`)."""

from collections.abc import Callable
from typing import Any

from jobscribe.supervisor.core.agents import host_availability, idle_eviction
from jobscribe.supervisor.core.resources import host_selection, subnets
from jobscribe.supervisor.core.state import host_assignment

Patch = tuple[Any, str, Any]


def gives_one_network_to_two_gangs() -> list[Patch]:
    return [(subnets, "free_block", lambda of, held: None if of is None else 0)]


def dismisses_who_is_needed() -> list[Patch]:
    def idle(self: Any, key: Any) -> list[Any]:
        return [k for k in self._others(key) if self._agents[k].phase == "up"]

    return [(host_assignment.HostAssignment, "idle_agents", idle)]


def starts_agents_without_memory() -> list[Patch]:
    return [(idle_eviction, "ensure_memory", lambda tx, key: True)]


def leaves_runs_on_a_host_that_is_down() -> list[Patch]:
    return [(host_availability, "_up", lambda tx, driver, host: None)]


def takes_hosts_of_any_plan() -> list[Patch]:
    return [(host_selection, "allowed", lambda places, plan: list(places))]


HOST_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    gives_one_network_to_two_gangs,
    dismisses_who_is_needed,
    starts_agents_without_memory,
    leaves_runs_on_a_host_that_is_down,
)
#: Bugs that need many seeds.
RARE_HOST_BUGS: tuple[Callable[[], list[Patch]], ...] = (takes_hosts_of_any_plan,)
