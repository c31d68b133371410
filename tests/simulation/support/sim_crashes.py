"""Disasters between two steps: processes that are killed or frozen, cut connections, false data,
and the notifications of these.
"""

from typing import TYPE_CHECKING

from sim_faults import KEEPER_POINTS, SUPERVISOR_POINTS
from sim_machine import OTHER

if TYPE_CHECKING:
    from sim_agent import Agent
    from simulator import Simulator


def strike(sim: "Simulator", what: str) -> None:
    """Apply a disaster if it has a target, and count it."""
    time, r, supervisor, machine = sim.time, sim.time.random, sim.supervisor, sim.machine
    keepers = machine.live_keepers()
    agents = [k.agent for k in keepers if k.agent is not None]
    links = list(supervisor.links.values())
    up = supervisor.running
    match what:
        case "the supervisor was killed" if up:
            time.saw(what)
            supervisor.crash()
        case "the supervisor was told to stop" if up:
            time.saw(what)
            supervisor.stop()
        case "a crash point of the supervisor was armed" if up:
            supervisor.armed = (r.choice(SUPERVISOR_POINTS), r.randint(1, 8))
        case "an agent was killed" if agents:
            time.saw(what)
            r.choice(agents).die()
        case "a keeper was killed" if keepers:
            time.saw(what)
            r.choice(keepers).die()
        case "a keeper was told to end" if keepers:
            time.saw(what)
            r.choice(keepers).told_to_end()
        case "keeper and agent were killed" if keepers:
            time.saw(what)
            keeper = r.choice(keepers)
            keeper.die()
            if keeper.agent is not None:
                keeper.agent.vanish()
        case "a crash point of a keeper was armed" if keepers:
            r.choice(keepers).armed = r.choice(KEEPER_POINTS)
        case "a job was killed" | "a job and its recorder were killed" if machine.live:
            time.saw(what)
            machine.kill(r.choice(list(machine.live.values())), 9, with_recorder="recorder" in what)
        case "a connection was cut" | "a connection was half open" if links:
            time.saw(what)
            r.choice(links).cut(told="cut" in what)
        case "an agent was frozen" if agents:
            time.saw(what)
            _freeze(sim, r.choice(agents), r.choice((2.0, 30.0, 45.0)) * r.random())
        case "an agent was frozen and its keeper killed" if agents:
            time.saw(what)
            agent = r.choice(agents)
            _freeze(sim, agent, 45.0 * r.random())
            agent.keeper.die()
        case "a keeper was frozen" if keepers:
            time.saw(what)
            keeper = r.choice(keepers)
            keeper.life.freeze()
            time.after(20 * r.random(), keeper.life.thaw)
        case "the supervisor was frozen" if supervisor.awake:
            time.saw(what)
            supervisor.freeze(r.choice((2.0, 30.0, 45.0)) * r.random())
        case "the machine was rebooted":
            time.saw(what)
            machine.reboot()
            for each in sim.supervisors:
                each.crash()
        case "the other machine was rebooted" if OTHER in machine.hosts:
            time.saw(what)
            machine.reboot(OTHER)
        case "the machine was suspended":
            # the monotonic clock stands still meanwhile
            time.saw(what)
            time.wall_offset += 600.0
            if sim.site is not None:
                sim.site.suspended += 600.0
        case "the wall clock jumped":
            time.saw(what)
            time.wall_offset += r.choice((-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0))
        case "a burst of cancels":
            time.saw(what)
            sim.clients.cancel_burst()
        case _:
            _disk(sim, what)


def _freeze(sim: "Simulator", agent: "Agent", secs: float) -> None:
    """Freeze an agent. The other end gives up when its pings are not answered."""
    agent.life.freeze()
    sim.time.after(secs, agent.life.thaw)
    link = agent.link
    late = sim.time.random.uniform(10, 30)
    if link is not None and late < secs:
        link.life.after(late, link.close)


def _disk(sim: "Simulator", what: str) -> None:
    time, r, supervisor = sim.time, sim.time.random, sim.supervisor
    if not supervisor.running:
        return
    match what:
        case "the disk refused a commit":
            time.saw(what)
            supervisor.faults.fail(r.randint(1, 3))
        case "the disk was full for a while":
            time.saw(what)
            supervisor.faults.fail(forever=True)
            time.after(15 * r.random(), supervisor.faults.mend)
        case "an fsync failed":
            time.saw(what)
            supervisor.faults.fail(
                r.randint(1, 3), fatal=True, at=r.choice(("taken", "committed", "witnessed"))
            )
        case "the disk was slow" if sim.site is not None:
            time.saw(what)
            sim.site.slow(0.25, 10 * r.random())
        case "the disk was slow":
            time.saw(what)
            supervisor.commit_secs = 0.5

            def quick() -> None:
                supervisor.commit_secs = 0.002
                supervisor.well_since = time.now

            time.after(10 * r.random(), quick)
        case _:
            pass
