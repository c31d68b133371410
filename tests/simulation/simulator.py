"""One seeded life of the whole system: clients, supervisor, agents and machine, with faults; then calm, and a reckoning.

`run(seed)` returns what happened; it raises `Violation` with the seed's command the moment a guarantee is broken.
"""

import sys
from collections import Counter
from typing import Any

import msgspec
from sim_machine import Machine
from sim_supervisor import POLICY, Supervisor
from sim_time import Time

from jobscribe.db.events import RunRequested, job_stream
from jobscribe.db.job import Job, evolve
from jobscribe.db.store import Stored
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.requests import RunCancel, RunSimulation, RunSpec
from jobscribe.supervisor.core import slots
from jobscribe.supervisor.core.inputs import Cancel, Input, Submit

USERS = ("AAAAAAAA", "BBBBBBBB", "CCCCCCCC")
STORM_SECS = 60.0
#: After the storm everything must have ended within this (virtual) time.
CALM_SECS = 300.0


class Violation(AssertionError):
    """A guarantee was broken."""


class Asked(msgspec.Struct):
    """What a client asked for, until it was answered: it repeats the very same request as a client library would."""

    uid: str
    jid: str
    req_id: str
    request: Any
    serial: int | None = None
    canceled: bool = False
    refused: str | None = None


class Simulator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.time = Time(seed)
        self.machine = Machine(self.time, lambda agent: self.supervisor.connect(agent))
        self.supervisor = Supervisor(self.time, self.machine)
        self.supervisor.on_projected = self._projected
        self.runs: list[Asked] = []
        self.cancels: list[Asked] = []
        #: computeJid/serial whose cancel was acknowledged
        self.canceled: set[tuple[str, int]] = set()
        self.final: dict[tuple[str, int], str] = {}
        self._handles = 0

    # ---- the life

    def run(self) -> Counter[str]:
        self.supervisor.start()
        r = self.time.random
        for _ in range(r.randint(5, 25)):
            self.time.after(r.random() * STORM_SECS * 0.8, self._submit)
        for _ in range(r.randint(0, 8)):
            self.time.after(r.random() * STORM_SECS, self._cancel_one)
        for _ in range(r.randint(0, 4)):
            self.time.after(r.random() * STORM_SECS, self._kill_supervisor)
        for _ in range(r.randint(0, 6)):
            self.time.after(r.random() * STORM_SECS, self._hurt_an_agent)
        for _ in range(r.randint(0, 3)):
            self.time.after(r.random() * STORM_SECS, self._fail_the_disk)
        if r.random() < 0.3:
            self.time.after(r.random() * STORM_SECS, self._jump_the_clock)
        self._poke()
        self._until(1000.0 + STORM_SECS)
        self.time.calm = True
        self._until(1000.0 + STORM_SECS + CALM_SECS)
        self._reckon()
        return self.time.happened

    def _until(self, at: float) -> None:
        while self.time.next_at() <= at:
            self.time.step()
            self._check()
        self.time.now = at

    # ---- clients

    def _submit(self) -> None:
        r = self.time.random
        uid = r.choice(USERS)
        sid = f"sim{r.randint(1, 6):05d}"
        spec = RunSpec(
            uid=uid, simulation_id=sid, grace_secs=r.choice((0.0, 0.5, 3.0)),
            command=("job", str(r.choice((0, 0, 0, 3))), f"{r.choice((0.01, 0.5, 4.0, 15.0)) * r.random():.3f}"),
        )
        req_id = f"run-{len(self.runs):06d}"
        asked = Asked(uid, f"{uid}-{sid}-command", req_id, RunSimulation(req_id=req_id, run=spec, force_run=False))
        self.runs.append(asked)
        self._ask(asked)

    def _cancel_one(self) -> None:
        known = [a for a in self.runs if a.serial is not None]
        if known:
            target = self.time.random.choice(known)
            req_id = f"cancel-{len(self.cancels):06d}"
            request = RunCancel(req_id=req_id, uid=target.uid, compute_jid=target.jid, compute_job_serial=target.serial or 0)
            self.cancels.append(Asked(target.uid, target.jid, req_id, request, canceled=True, serial=target.serial))
            self._ask(self.cancels[-1])

    def _ask(self, asked: Asked) -> None:
        """Send, and send again until there is an answer: replies get lost with the connection or the supervisor."""
        answered = [False]
        if self.supervisor.running:
            self._handles += 1
            handle = self._handles
            self.supervisor.replies[handle] = lambda reply: self._answer(asked, reply, answered)
            input_: Input = Cancel(handle, asked.request) if asked.canceled else Submit(handle, asked.request, "/run")
            self.supervisor.tell(input_)
        self.time.after(1.0 + self.time.random.random(), lambda: None if answered[0] else self._ask(asked))

    def _answer(self, asked: Asked, reply: dict[str, Any] | Refusal, answered: list[bool]) -> None:
        if self.time.sometimes("a reply was lost", 0.05):
            return
        if isinstance(reply, Refusal):
            if reply.code == "storageUnavailable":
                return
            asked.refused = reply.code
            answered[0] = True
            return
        answered[0] = True
        if asked.serial not in (None, reply["serial"]):
            self._broken(f"{asked.req_id} was answered with serial {asked.serial}, then {reply['serial']}")
        asked.serial = reply["serial"]
        if asked.canceled:
            self.canceled.add((asked.jid, reply["serial"]))

    # ---- faults

    def _kill_supervisor(self) -> None:
        if self.supervisor.running:
            self.time.happened["the supervisor was killed"] += 1
            self.supervisor.crash()
            self.time.after(self.time.random.random() * 5, self.supervisor.start)

    def _hurt_an_agent(self) -> None:
        keepers = [k for k in self.machine.keepers.values() if k.alive]
        if not keepers:
            return
        keeper = self.time.random.choice(keepers)
        fault = self.time.random.choice(("agent", "keeper", "link", "job"))
        self.time.happened[f"killed or cut: {fault}"] += 1
        match fault:
            case "agent" if keeper.agent is not None:
                keeper.agent.die()
                keeper.agent_died()
            case "keeper":
                keeper.die()
            case "link" if keeper.agent is not None and keeper.agent.link is not None:
                keeper.agent.link.cut()
            case "job":
                live = [p for p in self.machine.processes.values() if p.ended is None]
                if live:
                    self.machine.kill(self.time.random.choice(live), 9)

    def _fail_the_disk(self) -> None:
        self.time.happened["the disk refused a write"] += 1
        self.supervisor.faults.fail()

    def _jump_the_clock(self) -> None:
        self.time.happened["the wall clock jumped"] += 1
        self.time.wall_offset += self.time.random.choice((-3600.0, 3600.0, 86400.0))

    def _poke(self) -> None:
        if self.supervisor.running:
            self.supervisor.engine.poke()
            self.supervisor.tell()
        self.time.after(0.5, self._poke)

    # ---- guarantees, after every step

    def _check(self) -> None:
        for token, n in self.machine.starts.items():
            if n > 1:
                self._broken(f"G2: {token} was started {n} times")
        live = [p for p in self.machine.processes.values() if p.ended is None]
        jobs = Counter(p.token.split("/")[0] for p in live)
        for jid, n in jobs.items():
            if n > 1:
                self._broken(f"G2: {n} live executions of {jid}: {[p.token for p in live if p.token.startswith(jid)]}")
        if self.supervisor.running and (wrong := slots.broken(self.supervisor.engine.world.slots)):
            self._broken(f"slots: {wrong}")

    def _projected(self, job: Job) -> None:
        """A status became durable: it must be true, and final ones stay."""
        run = job.run
        if run is None:
            return
        key = (job.jid, run.serial)
        if key in self.final and self.final[key] != run.status:
            self._broken(f"{key} was {self.final[key]} and became {run.status}")
        if not run.active:
            self.final[key] = run.status
        if key in self.canceled and run.status in ("pending", "running"):
            self._broken(f"G13: {key} is {run.status} after an acknowledged cancel")
        processes = [p for p in self.machine.processes.values() if p.token.startswith(f"{job.jid}/{run.serial}/")]
        if run.status == "running" and not processes:
            self._broken(f"{key} is running and no process ever was")
        if run.status == "completed" and not any(p.ended is not None and p.signal is None and p.code == 0 for p in processes):
            self._broken(f"{key} is completed, but the machine says {processes}")
        for attempt in run.attempts:
            for task in attempt.tasks:
                if task.exit is not None and any(p.ended is None and p.token == str(task.token) for p in processes):
                    self._broken(f"{task.token} is over in the books and still runs")

    # ---- the reckoning

    def _reckon(self) -> None:
        events = self.supervisor.store.read_all(0, 1_000_000)
        folded = _folded(events)
        for asked in self.runs:
            if asked.refused is not None:
                continue
            if asked.serial is None:
                self._broken(f"{asked.req_id} was never answered")
            job = folded.get(asked.jid)
            if job is None or not _mentions(events, asked.jid, asked.serial or 0):
                self._broken(f"G1: {asked.req_id} was acknowledged and is not in the log")
        for jid, job in folded.items():
            if job.busy:
                self._broken(f"G14: {jid} never ended: {job.run}")
            durable = self.supervisor.engine.durable(jid)
            if durable is None or durable.job != job:
                self._broken(f"G8: {jid}: the fold is not the live state")
        for token in (p.token for p in self.machine.processes.values() if p.ended is None):
            self._broken(f"{token} still runs")
        self._exits(folded)
        if self.supervisor.engine.world.jobs or self.supervisor.engine.world.slots.claims:
            self._broken(f"G19: left in memory: {list(self.supervisor.engine.world.jobs)} {self.supervisor.engine.world.slots.claims}")
        if POLICY.cpu_slots and any(p.holders for p in self.supervisor.engine.world.slots.pools.values()):
            self._broken("slots are held after the end")

    def _exits(self, folded: dict[str, Job]) -> None:
        """What the log says of an end is what the machine saw."""
        ends = {p.token: p for p in self.machine.processes.values()}
        for job in folded.values():
            for attempt in job.run.attempts if job.run else ():
                for task in attempt.tasks:
                    p = ends.get(str(task.token))
                    assert task.exit is not None
                    if p is None and task.exit.source not in ("start", "lost"):
                        self._broken(f"{task.token} never ran, and ended with {task.exit}")
                    if p is not None and (task.exit.code, task.exit.signal) != ((p.code, None) if p.signal is None else (None, p.signal)):
                        self._broken(f"G4: {task.token} ended with {p}, the log says {task.exit}")

    def _broken(self, sentence: str) -> None:
        raise Violation(
            f"{sentence}\nat {self.time.now - 1000:.3f} s; to see it again: "
            f".venv/bin/python tests/simulation/run.py --seed {self.seed}"
        )


def _folded(events: list[Stored]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for stored in events:
        if stored.stream.startswith("job/"):
            jid = stored.stream.removeprefix("job/")
            jobs[jid] = evolve(jobs.get(jid) or Job(jid=jid), stored.event)
    return jobs


def _mentions(events: list[Stored], jid: str, serial: int) -> bool:
    stream = job_stream(jid)
    return any(s.stream == stream and isinstance(s.event, RunRequested) and s.event.serial == serial for s in events)


def run(seed: int) -> Counter[str]:
    """One life; raises Violation."""
    try:
        return Simulator(seed).run()
    except Violation:
        raise
    except Exception as e:
        raise Violation(
            f"{type(e).__name__}: {e}\nto see it again: .venv/bin/python tests/simulation/run.py --seed {seed}"
        ) from e


if __name__ == "__main__":
    sys.exit("run tests/simulation/run.py")
