"""The possible faults, and the choice for one life: every seed enables some faults, each at a
random rate.

A life with all faults never gets far, and a life with only two faults shows how these two interact.
"""

import random

#: Faults of single operations (a frame, a driver verb, a reply): probability per operation.
SHARES: dict[str, float] = {
    "a frame was lost, up": 0.02,
    "a frame was lost, down": 0.02,
    "a frame was late, up": 0.03,
    "a frame was late, down": 0.03,
    "a frame was repeated, up": 0.02,
    "a frame was repeated, down": 0.02,
    "frames were reordered, up": 0.02,
    "frames were reordered, down": 0.02,
    "a reply was lost": 0.1,
    "a dial failed": 0.2,
    "an agent's start failed": 0.2,
    "a start was told as failed though it lives": 0.2,
    "a start was never answered": 0.1,
    "the driver was slow": 0.2,
    "the driver did not know": 0.3,
    "the driver found a dead agent alive": 0.3,
    "the driver did not find a living agent": 0.2,
    "a stop of the driver was never answered": 0.3,
    "sbatch was refused": 0.05,
    "a batch job would have waited for ever": 0.03,
    "a user's connection to a cluster was lost": 0.3,
    "the agent could not hand a task to its keeper": 0.05,
    "a keeper died between two steps of a stop": 0.1,
    "an agent died between two steps of a batch job": 0.02,
    "a call's worker was slow": 0.3,
    "a probe was never answered": 0.2,
    "the supervisor died between two effects": 0.002,
    "a commit was slow": 0.05,
}

#: Faults between any two steps, with their relative weight.
DISASTERS: dict[str, float] = {
    "the supervisor was killed": 6,
    "the supervisor was told to stop": 2,
    "a crash point of the supervisor was armed": 8,
    "an agent was killed": 6,
    "a keeper was killed": 5,
    "keeper and agent were killed": 3,
    "a keeper was told to end": 2,
    "a crash point of a keeper was armed": 6,
    "a job was killed": 4,
    "a job and its recorder were killed": 2,
    "a connection was cut": 5,
    "a connection was half open": 3,
    "an agent was frozen": 3,
    "an agent was frozen and its keeper killed": 3,
    "the supervisor was frozen": 2,
    "a keeper was frozen": 1.5,
    "the machine was rebooted": 1.5,
    "the other machine was rebooted": 1.5,
    "the machine was suspended": 1,
    "the wall clock jumped": 2,
    "the disk refused a commit": 4,
    "the disk was full for a while": 2,
    "an fsync failed": 2,
    "the disk was slow": 1,
    "a burst of cancels": 4,
}

#: Crash points of the supervisor: around a decision, and on a batch's way through the store.
SUPERVISOR_POINTS = (
    "supervisor.decided",
    "supervisor.taken",
    "supervisor.committed",
    "supervisor.witnessed",
    "supervisor.delivered",
    "supervisor.durable",
    "supervisor.acted",
)
KEEPER_POINTS = (
    "keeper.consumed",
    "keeper.spawned",
    "keeper.noted",
    "keeper.stopping",
    "keeper.seen",
    "keeper.ended",
)

#: Seconds with faults; afterwards there are none, and everything must end within the calm phase.
STORM_SECS = 60.0
CALM_SECS = 400.0


class Swarm:
    """The faults of one seed."""

    def __init__(self, r: random.Random) -> None:
        #: some lives have nearly all faults, others hardly any
        share = r.choice((0.1, 0.3, 0.3, 0.5, 0.8))
        self.shares = {
            name: rate * 10 ** (r.random() - 0.6)
            for name, rate in SHARES.items()
            if r.random() < share
        }
        self.disasters = {
            name: weight * 10 ** (r.random() - 0.5)
            for name, weight in DISASTERS.items()
            if r.random() < share
        }
        #: approximate number of disasters in one life
        self.count = r.choice((3, 8, 20, 40))

    def plan(self, r: random.Random, secs: float) -> list[tuple[float, str]]:
        """Return (time, fault) pairs: some alone, some close together."""
        if not self.disasters:
            return []
        names, weights = list(self.disasters), list(self.disasters.values())
        out, at = [], 0.0
        while True:
            at += r.expovariate(self.count / secs) * (0.05 if r.random() < 0.3 else 1.3)
            if at >= secs:
                return out
            out.append((at, r.choices(names, weights)[0]))
