"""Clusters in the simulator: a scheduler with a queue, nodes that survive a login node's death,
outages, and sign-ins.

`Slurm` and its folders survive everything. Lives with clusters have them instead of hosts: the
driver `local` is a batch driver there.
"""

import random
from typing import TYPE_CHECKING, Any

import msgspec
from sim_machine import HOME, OTHER, Process

from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.supervisor.core.interface.inputs import SignedIn
from jobscribe.supervisor.core.resources.host_selection import HostCapacity

if TYPE_CHECKING:
    from sim_batch import BatchSide
    from sim_time import Time
    from simulator import Simulator

#: Host of the clusters' jobs: a machine that never reboots.
NODES = "nodes"
#: Duration of a Slurm command in seconds; longer under faults.
WORD_SECS = 0.1


def settings(r: random.Random) -> dict[str, Any]:
    """Return settings of a policy: two clusters with room for few or many runs."""
    places = tuple(
        HostCapacity(
            host=h,
            slots={"parallel": r.choice((2, 4, 20))},
            user_runs=r.choice((None, 1, 3, 10)),
        )
        for h in (HOME, OTHER)
    )
    return {
        "places": {"local": places},
        "batch": frozenset({"local"}),
        "batch_reply_secs": 20.0,
        "op_run_slots": {("local", "parallel"): r.choice((1, 2, 3))},
    }


class Entry(msgspec.Struct, eq=False):
    """One execution: its folder on the shared file system, and its job in Slurm."""

    token: Token
    order: dict[str, Any]
    #: the agent took its fence: the script starts nothing
    fenced: bool = False
    #: stop.json and exit.json
    stop: dict[str, Any] | None = None
    exit: ExitInfo | None = None
    acknowledged: bool = False
    job_id: str | None = None
    process: Process | None = None
    #: Slurm's state, if Slurm ended the job
    word: str = ""
    #: pending in Slurm's queue; it can never start; nothing of it is left
    queued: bool = False
    impossible: bool = False
    over: bool = False
    #: its script has failed and holds the allocation until then (time of the world)
    held_until: float | None = None

    @property
    def exited(self) -> bool:
        """Return whether its script has written an exit code."""
        p = self.process
        return p is not None and p.ended is not None and p.written is not None


class Slurm:
    """One cluster. Entries by agent key and token: each starts at most one batch job, because of
    its fence.
    """

    def __init__(self, sim: "Simulator", name: str) -> None:
        self.sim, self.time, self.machine, self.name = sim, sim.time, sim.machine, name
        self.entries: dict[AgentKey, dict[Token, Entry]] = {}
        self.sides: list[BatchSide] = []
        #: wall time since which it does not answer, or None
        self.dark_since: float | None = None
        self._jobs = 0
        self._slow = self.time.random.choice((0.3, 3.0, 12.0))

    # ---- outages

    def outage(self, secs: float) -> None:
        if self.dark_since is None and not self.time.calm:
            self.dark_since = self.time.wall
            self.time.saw("a scheduler did not answer for a while")
            self._tell_all()
            self.time.after(secs, self.mend)

    def mend(self) -> None:
        if self.dark_since is not None:
            self.dark_since = None
            self._tell_all()

    def _tell_all(self) -> None:
        for side in list(self.sides):
            side.agent.life.after(WORD_SECS * self.time.random.random(), side.look)

    def tell(self, key: AgentKey, entry: Entry) -> None:
        """Report a change of its folder or state to the watching agents after a moment."""
        for side in list(self.sides):
            if side.agent.key == key:
                side.agent.life.after(
                    2 * WORD_SECS * self.time.random.random(),
                    lambda side=side: side.changed(entry),
                )

    # ---- jobs

    def submit(self, key: AgentKey, entry: Entry) -> bool:
        """Submit as sbatch does; False if it is refused. A token submitted twice has one job: the
        script of the second one finds the fence.
        """
        if entry.job_id is not None or entry.fenced or entry.exit is not None:
            return True
        if self.time.strikes("sbatch was refused"):
            return False
        self._jobs += 1
        entry.job_id, entry.queued = str(self._jobs), True
        self.tell(key, entry)
        if self.time.strikes("a batch job would have waited for ever"):
            entry.impossible = True
            return True
        secs = 0.3 if self.time.calm else self.time.random.expovariate(1 / self._slow)
        self.time.after(min(secs, 40.0), lambda: self._start(key, entry))
        return True

    def _start(self, key: AgentKey, entry: Entry) -> None:
        if not entry.queued:
            return
        entry.queued = False
        if entry.fenced:
            self.time.saw("a batch job found that its fence was taken")
            entry.over = True
            self.tell(key, entry)
            return
        p = entry.process = self.machine.spawn(
            str(entry.token), self.machine.host(NODES), entry.order
        )
        p.on_end = lambda: self._ended(key, entry)
        if p.ended is not None:
            self._ended(key, entry)
        self.tell(key, entry)

    def signal(self, key: AgentKey, entry: Entry, *, kill: bool) -> None:
        """Cancel as scancel does: in the queue, or with one signal."""
        p = entry.process
        if p is None:
            if entry.queued:
                self.time.saw("a batch job was canceled in its queue")
            entry.queued, entry.over = False, True
            self.tell(key, entry)
        elif p.ended is None and kill:
            self.machine.kill(p, 9, with_recorder=True)
        elif p.ended is None:
            self.machine.terminate(p)

    def takes_away(self, word: str) -> bool:
        """Cancel a random job or let its node fail. Return False if there was no job to hit."""
        known = [
            (k, e)
            for k, own in self.entries.items()
            for e in own.values()
            if not e.over
            and (not e.exited or e.held_until is not None)
            and e.exit is None
            and e.job_id is not None
        ]
        if not known:
            return False
        key, entry = self.time.random.choice(known)
        if entry.held_until is not None:
            self.time.saw("a held allocation was taken away")
            self.end_hold(key, entry)
        elif entry.process is not None:
            entry.word = word
            self.machine.kill(entry.process, 9, with_recorder=True)
        elif word == "CANCELLED":
            entry.word, entry.queued, entry.over = word, False, True
            self.tell(key, entry)
        return True

    def _ended(self, key: AgentKey, entry: Entry) -> None:
        p, secs = entry.process, entry.order.get("debug")
        assert p is not None
        if secs is not None and entry.exited and p.truth[0] not in (0, None) and entry.stop is None:
            self.time.saw("a batch job held its allocation for debugging")
            entry.held_until = self.time.now + secs
            self.time.after(secs, lambda: self.end_hold(key, entry))
            self.tell(key, entry)
            return
        self._complete(key, entry)

    def end_hold(self, key: AgentKey, entry: Entry) -> None:
        """End a hold: at its deadline, or because it was released."""
        if entry.held_until is not None:
            entry.held_until = None
            self._complete(key, entry)

    def _complete(self, key: AgentKey, entry: Entry) -> None:
        secs = (
            0.0
            if not entry.exited or self.time.calm
            else self.time.random.choice((0.0, 1.0, 20.0)) * self.time.random.random()
        )
        if secs:
            self.time.saw("a scheduler took its time to complete a batch job")
            self.time.after(secs, lambda: self._completed(key, entry))
            self.tell(key, entry)
        else:
            self._completed(key, entry)

    def _completed(self, key: AgentKey, entry: Entry) -> None:
        entry.over = True
        self.tell(key, entry)

    def state(self, entry: Entry) -> BatchState:
        word = entry.word or (
            "PENDING"
            if entry.process is None
            else "RUNNING"
            if entry.process.ended is None or entry.held_until is not None
            else "FAILED"
            if entry.over
            else "COMPLETING"
        )
        return BatchState(
            cluster=self.name,
            job_id=entry.job_id,
            state=word,
            sentence="simulated",
            nodes="n1" if entry.process is not None else "",
            unknown_since=None if entry.over else self.dark_since,
        )

    def own(self, key: AgentKey) -> dict[Token, Entry]:
        return self.entries.setdefault(key, {})


class SignIns:
    """Signed-in users by host. Sign-ins belong to the supervisor and end with it or with the
    connection.
    """

    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time = sim, sim.time
        #: in some lives the supervisor needs no passwords
        self.needed = bool(sim.policy.batch) and self.time.random.random() < 0.7
        self.there: set[tuple[str, str]] = set()
        self._asked: set[AgentKey] = set()

    def lacks(self, key: AgentKey) -> bool:
        """Return whether the driver has no user connection for this agent. If so, ask its user, who
        signs in after a while.
        """
        who = (key.uid, key.host)
        if not self.needed:
            return False
        if who in self.there and self.time.strikes("a user's connection to a cluster was lost"):
            self.there.discard(who)
        if who in self.there:
            return False
        if key not in self._asked:
            self._asked.add(key)
            secs = 1.0 if self.time.calm else self.time.random.choice((0.05, 2.0, 25.0))
            self.time.after(secs * self.time.random.random(), lambda: self._comes(key))
        self.time.saw("a driver could do nothing before a sign-in")
        return True

    def _comes(self, key: AgentKey) -> None:
        if key not in self._asked:
            return
        if not self.sim.supervisor.awake:
            # nobody answers the user, who tries again
            self.time.after(2.0, lambda: self._comes(key))
            return
        self._asked.discard(key)
        self.there.add((key.uid, key.host))
        self.time.saw("a user signed in")
        self.sim.supervisor.tell(SignedIn(key))

    def forget(self) -> None:
        """Drop all connections: the supervisor is gone."""
        self.there.clear()
        self._asked.clear()

    def mend(self) -> None:
        """Let every user who was asked sign in now."""
        for key in sorted(self._asked):
            self.time.after(self.time.random.random(), lambda key=key: self._comes(key))


def clusters(sim: "Simulator") -> dict[str, Slurm]:
    return (
        {p.host: Slurm(sim, p.host) for p in sim.policy.places.get("local", ())}
        if sim.policy.batch
        else {}
    )


def trouble(time: "Time", slurms: dict[str, Slurm]) -> None:
    """Let a cluster have a random fault."""
    if not slurms or time.calm:
        return
    slurm = time.random.choice(list(slurms.values()))
    match time.random.choice(("outage", "outage", "CANCELLED", "NODE_FAIL")):
        case "outage":
            slurm.outage(time.random.choice((1.0, 6.0, 30.0)) * time.random.random())
        case word if slurm.takes_away(word):
            time.saw(
                "somebody canceled a job in Slurm"
                if word == "CANCELLED"
                else "a node of a cluster failed"
            )
