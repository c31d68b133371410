"""Lives in which a driver has several hosts: their resources, their outages, and independent checks
of agents and slots on them.
"""

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from sim_machine import HOME, OTHER
from sim_recipes import FIRST_PORT

from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.core.interface.effects import EvictAgent
from jobscribe.supervisor.core.interface.inputs import HostChanged
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.resources.host_selection import HostCapacity

if TYPE_CHECKING:
    from sim_supervisor import Supervisor
    from simulator import Simulator

THIRD, GOLD = "third", "gold"
AGENT_MB = {"sequential": 100, "parallel": 200}


def settings(r: random.Random) -> dict[str, Any]:
    """Return settings of a policy: two or three hosts, one perhaps reserved for a plan; plain
    agents, and perhaps containers for gangs.
    """
    hosts = (HOME, OTHER) if r.random() < 0.5 else (HOME, OTHER, THIRD)
    plans = {
        h: frozenset({GOLD}) if h == THIRD and r.random() < 0.6 else frozenset() for h in hosts
    }
    containers = r.random() < 0.7
    places = tuple(
        HostCapacity(
            host=h,
            slots={"sequential": r.choice((1, 1, 2)), "parallel": 1},
            agent_mb=AGENT_MB,
            memory_mb=r.choice((None, 200, 300)) if containers else None,
            plans=plans[h],
        )
        for h in hosts
    )
    subnets = "10.208.0.0/21" if containers and r.random() < 0.8 else None
    nodes = tuple(
        Node(
            host=h,
            address=f"10.0.0.{n}",
            cpu=r.choice((3, 4, 8)),
            memory_mb=r.choice((600, 2000)),
            gpus=("0", "1")[: r.choice((0, 1, 2))],
            first_port=FIRST_PORT,
            last_port=FIRST_PORT + 39,
            subnets=subnets,
            plans=plans[h],
        )
        for n, h in enumerate(hosts, 1)
    )
    return {
        "places": {"local": places},
        "nodes": {"local": nodes},
        "agent_idle_secs": {"local": r.choice((1.0, 5.0, 30.0))},
        "containers": frozenset({"local"} if containers else ()),
    }


class Hosts:
    """Outages of the hosts, and checks of agents and slots on them."""

    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self.machine = sim, sim.time, sim.machine
        self.places = {p.host: p for p in sim.policy.places.get("local", ())}
        self._homes: dict[Any, str] = {}
        self._starts: set[tuple[AgentKey, int]] = set()

    @property
    def supervisor(self) -> "Supervisor":
        return self.sim.supervisor

    @property
    def several(self) -> bool:
        return len(self.places) > 1

    # ---- outages

    def outage(self) -> None:
        """Make one host unreachable for the driver for a while; its processes continue."""
        r = self.time.random
        up = [h for h in self.places if h not in self.machine.out_of_reach]
        if not self.several or not up or self.time.calm:
            return
        self._goes(r.choice(up), r.choice((1.0, 8.0, 30.0)) * r.random())

    def blackout(self) -> None:
        """Make all hosts unreachable."""
        secs = 12.0 * self.time.random.random()
        for host in self.places if self.several and not self.time.calm else ():
            self._goes(host, secs)

    def _goes(self, host: str, secs: float) -> None:
        if host not in self.machine.out_of_reach:
            self.machine.out_of_reach.add(host)
            self.time.saw("a host could not be asked for a while")
            self._told(host)
            self.time.after(secs, lambda: self._comes(host))

    def _comes(self, host: str) -> None:
        if host in self.machine.out_of_reach:
            self.machine.out_of_reach.discard(host)
            self._told(host)

    def _told(self, host: str) -> None:
        """Notify the supervisor after a moment."""
        self.supervisor.life.after(2.0 * self.time.random.random(), lambda: self._tell(host))

    def _tell(self, host: str) -> None:
        up = host not in self.machine.out_of_reach
        self.supervisor.tell(HostChanged("local", host, up, "it answers" if up else "simulated"))

    def tell_all(self) -> None:
        """Report the state of each host to a new supervisor."""
        for host in self.places if self.several else ():
            self._told(host)

    def mend(self) -> None:
        for host in sorted(self.machine.out_of_reach):
            self._comes(host)

    # ---- checks

    def decided(self) -> None:
        """Check after each decision."""
        if not self.several:
            return
        world = self.supervisor.engine.world
        homes = dict(world.host_assignment.hosts)
        if any(self._homes.get(t, h) != h for t, h in homes.items()):
            self.time.saw("a queued run went to another host")
        self._homes = homes
        for key, view in world.agents.items():
            if (
                view.phase == "starting"
                and view.record.starting
                and (key, view.record.attempt) not in self._starts
            ):
                self._starts.add((key, view.record.attempt))
                self._fits(key)
            if view.phase == "leaving" and view.placed:
                self.sim.broken(f"{key} is to leave, and has {view.placed}")
            if view.phase == "leaving" and view.needed:
                self._once("an agent was needed again while it left", key, view.epoch)
            if view.phase == "crowded":
                self._once("an agent had to wait for memory", key, view.since)

    def _once(self, what: str, *about: object) -> None:
        if (what, *about) not in self.sim.seen:
            self.sim.seen.add((what, *about))
            self.time.saw(what)

    def _fits(self, key: AgentKey) -> None:
        place = self.places[key.host]
        there = [
            k
            for k, v in self.supervisor.engine.world.agents.items()
            if k.host == key.host and v.phase in ("starting", "up", "stopping", "leaving")
        ]
        taken = sum(AGENT_MB.get(k.kind, 0) for k in there)
        if place.memory_mb is not None and key.kind != "container" and taken > place.memory_mb:
            self.sim.broken(
                f"{key} is started, and {key.host} has {place.memory_mb} MiB for agents; {taken} are taken by {there}"
            )
        if (key.driver, key.host) in self.supervisor.engine.world.host_assignment.down:
            self.sim.broken(f"{key} is started, and {key.host} is down")

    def dismissed(self, effect: EvictAgent) -> None:
        """Check that an evicted agent has no tasks."""
        there = [
            t
            for t, run in self.sim.ledger.live.items()
            if run.placed[t].agent_key == effect.key and t not in self.sim.ledger.kept
        ]
        if there:
            self.sim.broken(f"{effect.key} was dismissed, and has {there}")
        self.time.saw("an agent that nobody needed was dismissed")

    def slots(self) -> None:
        """Check that no host has more plain runs that live or may start than slots."""
        taken: Counter[tuple[str, str]] = Counter()
        for token, run in self.sim.ledger.live.items():
            key = run.placed[token].agent_key
            task = self.sim.supervisor.engine.world.task(token)
            process = self.sim.machine.by_token.get(str(token))
            unused = (
                # the end of one that never started may not be durable yet
                task is None or task.waits_for_slot or task.exit is not None
                if process is None
                else process.ended is not None
            )
            if not run.spec.roles and not unused:
                taken[key.kind, key.host] += 1
                if self.several and token.attempt and not self._may(key.host, run.spec.active_plan):
                    self.sim.broken(
                        f"{token} is on {key.host}, which is not for {run.spec.active_plan}"
                    )
        for (kind, host), n in taken.items():
            has = (
                self.places[host].slots[kind]
                if self.several
                else self.sim.policy.cpu_slots.get(("local", kind), 1)
            )
            if n > has:
                self.sim.broken(f"{n} {kind} runs are placed on {host}, which has {has} slots")

    def _may(self, host: str, plan: str | None) -> bool:
        if any(plan in p.plans for p in self.places.values()):
            return plan in self.places[host].plans
        return not self.places[host].plans
