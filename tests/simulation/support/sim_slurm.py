"""Clusters in the simulator: a scheduler with a queue, nodes that survive a login node's death,
outages, and the agent's batch side.

`Slurm` and its folder survive everything; `BatchSide` belongs to one agent and dies with it. Lives
with clusters have them instead of hosts: the driver `local` is a batch driver there.
"""

import random
import zlib
from typing import TYPE_CHECKING, Any

import msgspec
from sim_machine import HOME, OTHER, Process

from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.wire.messages import Execution, TaskSpec
from jobscribe.supervisor.core.interface.inputs import SignedIn
from jobscribe.supervisor.core.resources.host_selection import HostCapacity

if TYPE_CHECKING:
    from sim_agent import Agent
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


class Entry(msgspec.Struct):
    """One execution in the folder on the shared file system: the request and its outcome."""

    token: Token
    order: dict[str, Any]
    job_id: str | None = None
    process: Process | None = None
    exit: ExitInfo | None = None
    #: exit that its script recorded, while Slurm is completing the job
    own: ExitInfo | None = None
    stop_reason: str | None = None
    #: a signal was sent for the stop
    signaled: bool = False
    grace: float = 0.0
    #: Slurm's state, if Slurm ended the job
    word: str = ""
    acknowledged: bool = False
    #: pending in Slurm's queue
    queued: bool = False


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
                    2 * WORD_SECS * self.time.random.random(), lambda side=side: side.say(entry)
                )

    # ---- jobs

    def submit(self, key: AgentKey, entry: Entry) -> None:
        """Submit as sbatch does. A token submitted twice has one job: the script of the second one
        finds the fence.
        """
        if entry.job_id is not None or entry.exit is not None or entry.stop_reason is not None:
            return
        if self.time.strikes("sbatch was refused"):
            entry.exit = self._never("simulated", "batchRefused", entry)
            self.tell(key, entry)
            return
        self._jobs += 1
        entry.job_id, entry.queued = str(self._jobs), True
        self.tell(key, entry)
        if self.time.strikes("a batch job would have waited for ever"):
            entry.exit = self._never("simulated: it can never start", "neverPossible", entry)
            entry.queued = False
            return
        secs = 0.3 if self.time.calm else self.time.random.expovariate(1 / self._slow)
        self.time.after(min(secs, 40.0), lambda: self._start(key, entry))

    def _start(self, key: AgentKey, entry: Entry) -> None:
        if not entry.queued or entry.exit is not None:
            return
        entry.queued = False
        p = entry.process = self.machine.spawn(
            str(entry.token), self.machine.host(NODES), entry.order
        )
        limit = entry.order["limit"]
        if limit is not None:
            self.time.after(limit, lambda: self._over_limit(entry))
        p.on_end = lambda: self._ended(key, entry)
        if p.ended is not None:
            self._ended(key, entry)
        self.tell(key, entry)

    def _over_limit(self, entry: Entry) -> None:
        if entry.exit is None and entry.own is None and entry.stop_reason is None:
            entry.stop_reason = "timeLimit"
            self._signal(entry, entry.order["grace"])

    def cancel(self, key: AgentKey, entry: Entry, grace: float) -> None:
        """Cancel as scancel does, finally: in the queue, or with one signal and then another. No
        effect if the job has ended by itself.
        """
        if entry.exit is not None or entry.own is not None:
            return
        if entry.process is None:
            if entry.queued:
                self.time.saw("a batch job was canceled in its queue")
            entry.queued = False
            entry.exit = self._never("it was canceled before it had started", None, entry)
            self.tell(key, entry)
        else:
            self._signal(entry, grace)

    def _signal(self, entry: Entry, grace: float) -> None:
        assert entry.process is not None
        p, entry.signaled = entry.process, True
        self.machine.terminate(p)
        self.time.after(grace, lambda: self.machine.kill(p, 9, with_recorder=True))

    def takes_away(self, word: str) -> bool:
        """Cancel a random job or let its node fail. Return False if there was no job to hit."""
        known = [
            (k, e)
            for k, own in self.entries.items()
            for e in own.values()
            if e.exit is None and e.own is None and e.job_id is not None
        ]
        if not known:
            return False
        key, entry = self.time.random.choice(known)
        if entry.process is not None:
            entry.word = word
            self.machine.kill(entry.process, 9, with_recorder=True)
        elif word == "CANCELLED":
            entry.word, entry.queued = word, False
            entry.exit = ExitInfo(
                source="scheduler",
                detail="simulated",
                stop_reason=entry.stop_reason,
                batch=self.state(entry),
            )
            self.tell(key, entry)
        return True

    def _ended(self, key: AgentKey, entry: Entry) -> None:
        p = entry.process
        assert p is not None and p.ended is not None
        code, signal = p.truth
        times = {
            "started_at": p.started + self.time.wall_offset,
            "ended_at": p.ended + self.time.wall_offset,
        }
        exit_ = ExitInfo(
            source="scheduler" if p.written is None else "script",
            code=code,
            signal=signal,
            stop_reason=entry.stop_reason if entry.signaled else None,
            batch=self.state(entry),
            **times,
        )
        secs = (
            0.0
            if p.written is None or self.time.calm
            else self.time.random.choice((0.0, 1.0, 20.0)) * self.time.random.random()
        )
        if not secs:
            entry.exit = exit_
        else:
            self.time.saw("a scheduler took its time to complete a batch job")
            entry.own = exit_
            self.time.after(secs, lambda: self._completed(key, entry))
        self.tell(key, entry)

    def _completed(self, key: AgentKey, entry: Entry) -> None:
        entry.exit, entry.own = entry.own, None
        self.tell(key, entry)

    def _never(self, detail: str, fault: str | None, entry: Entry) -> ExitInfo:
        return ExitInfo(
            source="start",
            detail=detail,
            fault=fault,
            stop_reason=entry.stop_reason,
            ended_at=self.time.wall,
        )

    def state(self, entry: Entry) -> BatchState:
        word = entry.word or (
            "PENDING"
            if entry.process is None
            else "RUNNING"
            if entry.process.ended is None
            else "COMPLETING"
            if entry.own is not None
            else "FAILED"
        )
        return BatchState(
            cluster=self.name,
            job_id=entry.job_id,
            state=word,
            sentence="simulated",
            nodes="n1" if entry.process is not None else "",
            unknown_since=None if entry.exit is not None else self.dark_since,
        )

    def own(self, key: AgentKey) -> dict[Token, Entry]:
        return self.entries.setdefault(key, {})


class BatchSide:
    """An agent's batch operations on a login node: only the folder outlives the agent."""

    def __init__(self, agent: "Agent", slurm: Slurm) -> None:
        self.agent, self.slurm, self.time = agent, slurm, agent.time
        slurm.sides.append(self)

    def close(self) -> None:
        if self in self.slurm.sides:
            self.slurm.sides.remove(self)

    def start(self) -> None:
        """Report the unacknowledged executions in the folder. Submit again those that Slurm does
        not have.
        """
        left = [e for e in self.slurm.own(self.agent.key).values() if not e.acknowledged]
        if any(e.exit is None for e in left):
            self.time.saw("an agent found batch jobs that an earlier one had submitted")
        self.agent.do(
            self.agent.session.record_states(
                [self._execution(e) for e in left], self.agent.host.mono
            )
        )
        self.look()

    def look(self) -> None:
        """Handle a change of whether Slurm answers."""
        for entry in list(self.slurm.own(self.agent.key).values()):
            if entry.exit is None and not entry.acknowledged:
                self.say(entry)
                self._move(entry)

    def _move(self, entry: Entry) -> None:
        """Submit or cancel the job; while Slurm does not answer, do it later."""
        if self.slurm.dark_since is not None or entry.exit is not None:
            return
        key = self.agent.key
        if entry.stop_reason is not None:
            self.agent.life.after(
                WORD_SECS, lambda: self._answers() and self.slurm.cancel(key, entry, entry.grace)
            )
        elif entry.job_id is None:
            secs = WORD_SECS * (1 if self.time.calm else 1 + 10 * self.time.random.random())
            self.agent.life.after(secs, lambda: self._answers() and self.slurm.submit(key, entry))

    def _answers(self) -> bool:
        return self.slurm.dark_since is None

    def launch(self, token: Token, spec: TaskSpec, order: dict[str, Any]) -> None:
        entry = self.slurm.own(self.agent.key).get(token)
        if spec.batch is msgspec.UNSET or spec.batch.cluster != self.slurm.name or spec.ports:
            self.slurm.sim.broken(
                f"{token} was sent to {self.slurm.name} with {spec.batch}, ports {spec.ports}"
            )
        if entry is None:
            entry = self.slurm.own(self.agent.key)[token] = Entry(token=token, order=order)
            self._move(entry)
        else:
            entry.acknowledged = False
            self.time.saw("an order came for a batch job that was known")
        self.say(entry)

    def stop(self, token: Token, reason: str, grace: float) -> None:
        own = self.slurm.own(self.agent.key)
        entry = own.get(token)
        if entry is None:
            entry = own[token] = Entry(token=token, order={}, stop_reason=reason)
            entry.exit = ExitInfo(source="start", detail="never to start", stop_reason=reason)
        elif entry.own is not None:
            self.time.saw("a stop came when a batch job had ended by itself")
        elif entry.exit is None:
            # report nothing until there is something new: a report that the job lives would trigger
            # another stop
            entry.stop_reason, entry.grace = entry.stop_reason or reason, grace
            self._move(entry)
            return
        else:
            entry.acknowledged = False
        self.say(entry)

    def forget(self, tokens: tuple[Token, ...]) -> None:
        for token in tokens:
            entry = self.slurm.own(self.agent.key).get(token)
            if entry is not None and entry.exit is not None:
                entry.acknowledged = True

    def say(self, entry: Entry) -> None:
        if not entry.acknowledged:
            self.agent.do(
                self.agent.session.record_states([self._execution(entry)], self.agent.host.mono)
            )

    def _execution(self, entry: Entry) -> Execution:
        token, op, p = entry.token, op_id(entry.token, "run"), entry.process
        batch = self.slurm.state(entry)
        if entry.exit is not None:
            return Execution(
                token=token,
                state="ended",
                op_id=op,
                pid=p.pid if p is not None else None,
                exit=entry.exit,
            )
        if p is None:
            return Execution(token=token, state="starting", op_id=op, batch=batch)
        # for some jobs only Slurm's state is known
        pid = 0 if zlib.crc32(str(token).encode()) % 4 == 0 else p.pid
        return Execution(
            token=token,
            state="running",
            op_id=op,
            pid=pid,
            start_ticks=0,
            started_at=p.started + self.time.wall_offset,
            elapsed_secs=(p.ended or self.time.now) - p.started,
            batch=batch,
            exit=entry.own,
        )


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
        if not self.sim.supervisor.life.awake:
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
