"""Checks of the guaranteed times: long after the faults, single deaths happen while all else is
well.

One after the other: a short run ends; a canceled run is gone within its grace and a second; a
running one is known again after the death of the supervisor (5 s), of its agent, and of its keeper;
an unobserved end is reported; a reboot is reported as a reboot (10 s each).
"""

from typing import TYPE_CHECKING

from sim_clients import USERS
from sim_machine import HOME
from sim_site import FAILOVER_SECS, QUEUE_SECS

from jobscribe.supervisor.core.status.run_status import status

if TYPE_CHECKING:
    from sim_clients import Asked
    from sim_keeper import Keeper
    from sim_supervisor import Supervisor
    from simulator import Simulator

#: Seconds after the faults; by then the queues are empty.
LATE_SECS = 300.0
GRACE_SECS = 1.0


class SteadyState:
    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self.clients, self.machine = sim, sim.time, sim.clients, sim.machine
        #: additional time for a takeover
        self._takeover = 0.0 if sim.site is None else FAILOVER_SECS
        self._late = LATE_SECS + (0.0 if sim.site is None else QUEUE_SECS)

    @property
    def supervisor(self) -> "Supervisor":
        return self.sim.supervisor

    @property
    def on_cluster(self) -> bool:
        return bool(self.sim.policy.batch)

    def begin(self) -> None:
        self.time.after(self._late, self._ask)

    def _ask(self) -> None:
        if self.supervisor.engine.world.jobs:
            self.sim.broken(
                f"G14: {self._late:g} s after the storm there is still {list(self.supervisor.engine.world.jobs)}"
            )
        self.sim.checks.calm_since = None
        short = self.clients.submit_plain(USERS[0], 0.5)
        self.time.after(10.0, lambda: self._is(short, "completed", "exit", 10))
        self.time.after(10.0, self._then_long_ones)

    def _then_long_ones(self) -> None:
        long = self.clients.submit_plain(USERS[1], 500.0)
        late = self._takeover
        steps = (
            (7.0, lambda: self._runs(long, 7)),
            (7.0, self._one_is_canceled),
            (7.0, self._gang_begins),
            (13.0, self._supervisor_dies),
            (18.0 + late, lambda: self._runs(long, 5 + late)),
            (18.0 + late, lambda: self._keeper(long).agent.die()),  # type: ignore[union-attr]
            (28.0 + late, lambda: self._runs(long, 10)),
            (28.0 + late, lambda: self._keeper(long).die()),
            (38.0 + late, lambda: self._runs(long, 10)),
            (38.0 + late, lambda: self._all_die(long)),
            (
                48.0 + late,
                lambda: self._is(long, "error", "signal" if self.on_cluster else "lost", 10),
            ),
            (48.0 + late, self._before_the_reboot),
        )
        for secs, act in steps:
            self.time.after(secs, act)

    def _one_is_canceled(self) -> None:
        unwanted = self.clients.submit_plain(USERS[0], 500.0)
        self.time.after(3.0, lambda: self.clients.cancel(unwanted, 0))
        self.time.after(3.0 + GRACE_SECS + 1, lambda: self._gone(unwanted))

    def _gang_begins(self) -> None:
        """Start a gang that lives through deaths of the supervisor and of a keeper until its
        cancel.
        """
        gang, late = self.clients.submit_gang(USERS[2], 500.0), self._takeover
        self.time.after(5.9, lambda: self._runs(gang, 6))
        self.time.after(11.0 + late, lambda: self._runs(gang, 5 + late))
        self.time.after(11.0 + late, lambda: self._keeper(gang).die())
        self.time.after(21.0 + late, lambda: self._runs(gang, 10))
        self.time.after(21.0 + late, lambda: self.clients.cancel(gang, 0))
        self.time.after(21.0 + late + GRACE_SECS + 1, lambda: self._gone(gang))

    def _before_the_reboot(self) -> None:
        doomed = self.clients.submit_plain(USERS[1], 500.0)
        self.time.after(5.0, lambda: self._runs(doomed, 5))
        self.time.after(5.0, self._reboot)
        late = 15.0 + self._takeover
        if not self.on_cluster:
            self.time.after(late, lambda: self._is(doomed, "error", "lost", late - 5))
            return
        # the login node was rebooted, not the node on which the run lives
        self.time.after(late, lambda: self._runs(doomed, late - 5))
        self.time.after(late, lambda: self.clients.cancel(doomed, 0))
        self.time.after(late + GRACE_SECS + 1, lambda: self._gone(doomed))

    # ---- deaths

    def _supervisor_dies(self) -> None:
        self.supervisor.crash()
        self.supervisor.start()

    def _all_die(self, asked: "Asked") -> None:
        keeper = self._keeper(asked)
        keeper.die()
        if keeper.agent is not None:
            keeper.agent.vanish()
        for p in self.machine.of_job(asked.jid):
            self.machine.kill(p, 9, with_recorder=True)

    def _reboot(self) -> None:
        self.machine.reboot()
        for supervisor in self.sim.supervisors:
            supervisor.crash()
            supervisor.start()

    def _keeper(self, asked: "Asked") -> "Keeper":
        if self.on_cluster:
            return next(
                k
                for k in self.machine.live_keepers()
                if k.key.uid == asked.uid and k.key.host == HOME
            )
        return next(
            k
            for k in self.machine.live_keepers()
            if any(e.token.startswith(asked.jid) for e in k.table.known.values())
        )

    # ---- state that must be true by now

    def _is(self, asked: "Asked", state: str, reason: str, secs: float) -> None:
        durable = self.supervisor.engine.durable(asked.jid)
        run = durable.job.run if durable else None
        if run is None or (run.status, run.reason) != (state, reason) or run.busy:
            self.sim.broken(f"{asked.jid} is not {state}, {reason} after {secs:g} s: {run}")

    def _runs(self, asked: "Asked", secs: float) -> None:
        durable = self.supervisor.engine.durable(asked.jid)
        assert durable is not None
        said = status(
            self.supervisor.engine.world,
            durable.job,
            durable.position,
            self.supervisor.now_of_checks(),
        )
        many = sum(r.tasks for r in asked.request.run.roles) or 1
        if (
            said["state"] != "running"
            or not said["known"]
            or len(self.machine.of_job(asked.jid)) != many
        ):
            self.sim.broken(f"G3, G4: {asked.jid} is not known to run after {secs:g} s: {said}")

    def _gone(self, asked: "Asked") -> None:
        self._is(asked, "canceled", "cancel", GRACE_SECS + 1)
        if self.machine.of_job(asked.jid):
            self.sim.broken(f"G13: {asked.jid} lives {GRACE_SECS + 1:g} s after its cancel")
