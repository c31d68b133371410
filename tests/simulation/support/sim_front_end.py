"""A front end that keeps every status that it may keep, and compares each with the supervisor's
answer until its job is named.
"""

import itertools
from typing import TYPE_CHECKING, Any

from jobscribe.db.events.state import Job
from jobscribe.supervisor.core.status.run_status import is_cacheable, status
from jobscribe.supervisor.streams.job_changes import ChangeReader, JobChanges

if TYPE_CHECKING:
    from sim_supervisor import Supervisor
    from simulator import Simulator

#: Steps between two comparisons, of one job each.
LOOK_EVERY = 3


class FrontEnd:
    def __init__(self, sim: "Simulator") -> None:
        self.sim = sim
        self.started()

    @property
    def supervisor(self) -> "Supervisor":
        return self.sim.supervisor

    def started(self) -> None:
        """Follow the stream of a supervisor that is about to fold its log."""
        self._changes, self._reader = JobChanges(), ChangeReader()
        self._changes._readers.add(self._reader)
        #: statuses with the time at which the run began
        self._kept: dict[str, tuple[dict[str, Any], float]] = {}
        self._next = 0

    def follow(self) -> None:
        self.started()
        engine = self.supervisor.engine
        engine.decided, engine.folded = self._changes.decided, self._changes.folded

    def projected(self, job: Job) -> None:
        self._changes.changed(job.jid)

    def step(self) -> None:
        if not self.supervisor.awake or self.sim.time.steps % LOOK_EVERY:
            return
        deadline = self.supervisor.deadline
        if deadline is not None and not deadline.held:
            return  # the process ends before it answers, and names nothing any more
        named, self._reader._names = self._reader._names, {}
        for jid in named:
            if self._kept.pop(jid, None) is not None:
                self.sim.time.saw("a front end dropped the status of a running run")
        self._next += 1
        jobs = self.supervisor.engine.world.jobs.keys() | self._kept.keys()
        if jobs:
            self._look(next(itertools.islice(sorted(jobs), self._next % len(jobs), None)))

    def _look(self, jid: str) -> None:
        engine, now = self.supervisor.engine, self.supervisor.now_of_checks()
        entry = engine.durable(jid)
        if entry is None:
            return
        reply = status(engine.world, entry.job, entry.position, now)
        cacheable = is_cacheable(engine.world, entry.job, reply)
        began = now.mono - (reply.pop("elapsedTime", None) or 0.0)
        if jid not in self._kept:
            if cacheable:
                self._changes.watch(jid)
                self._kept[jid] = (reply, began)
            return
        kept, kept_began = self._kept[jid]
        if kept != reply or abs(began - kept_began) > 1e-6:
            self.sim.broken(f"G3: {jid} is kept as {kept}, and not named: {reply}")
