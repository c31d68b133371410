"""A random scenario of runs with roles: two users, agents on two hosts, simple simulated machines,
and a method that brings all runs to an end.
"""

import copy

from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.wire.messages import PortsProbed
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface.inputs import (
    DriverFailed,
    DriverFound,
    DriverStarted,
    DriverStopped,
    FramesLost,
)
from jobscribe.supervisor.core.interface.timers import DebugHoldDeadline, QueueLimit, TimeLimit

ACTIONS = (
    "gang",
    "gang",
    "plain",
    "cancel",
    "release",
    *("connect",) * 3,
    "disconnect",
    *("probe",) * 3,
    *("step",) * 10,
    "driver",
    "timer",
    "timer",
    "gap",
    "time",
    "lose",
    "late",
    "late",
)
#: Timers that only elapsed time may fire, because they end runs.
_ENDS = QueueLimit | TimeLimit | DebugHoldDeadline


class GangScenario:
    """`act` performs one action. `finish` reconnects all agents and lets every run end."""

    def __init__(self, kit, **policy):
        self.kit = kit
        nodes = (
            kit.node(cpu=4, first_port=30_000, last_port=30_011),
            kit.node("node2", cpu=4, first_port=30_000, last_port=30_011),
        )
        self.stage = kit.Stage(
            nodes={"local": nodes},
            hold_secs=8.0,
            hold_again_secs=5.0,
            debug_secs=50.0,
            cpu_slots={("local", "sequential"): 2},
            op_run_slots={("local", "sequential"): 2, ("local", "parallel"): 2},
            **policy,
        )
        uids = (kit.UID, kit.OTHER_UID)
        self.keys = [kit.key_of(u) for u in uids] + [
            kit.key_of(u, "parallel", h) for u in uids for h in ("localhost", "node2")
        ]
        self.machines = {k: {} for k in self.keys}
        self.stopped = {}
        self.owed = []
        #: all execution reports so far: each may arrive again, and late
        self.said = []
        #: states that occurred
        self.seen = set()

    def roles(self, n):
        role = self.kit.role
        return (
            (role("a", 2),),
            (role("a", 3, cpu=2, min_succeeded=1), role("b", min_failed=None)),
            (role("a", 2, min_failed=2, min_succeeded=2),),
            (role("a", 3), role("b", 3)),
            (role("a", 4, min_failed=None),),
            (role("a", cpu=4),),
        )[n % 6]

    def act(self, what, n, m):
        stage, kit = self.stage, self.kit
        uid = (kit.UID, kit.OTHER_UID)[n % 2]
        key = self.keys[(n + 2 * m) % len(self.keys)]
        up = stage.world.agent(key).phase == "up"
        there = [k for k in self.keys if self.machines[k]]
        match what:
            case "gang":
                more = {"retry": Retry(count=1, platform=2)} if n % 3 else {}
                more |= {"debug_secs": 40.0} if m % 2 else {}
                more |= {"queue_limit_secs": 5.0} if n % 5 == 0 else {}
                self.submit(
                    m % 3,
                    uid,
                    command=(),
                    roles=self.roles(n + m),
                    job_run_mode="parallel",
                    at_once=1 if m == 3 else None,
                    **more,
                )
            case "plain":
                known = [j for j in range(6) if kit.jid_of(j, uid) in stage.world.jobs]
                waits = tuple(
                    a
                    for j in known[: n % 3]
                    for a in kit.after(j, uid=uid, on=("ok", "any", "failed")[m % 3])
                )
                self.submit(
                    3 + m % 3,
                    uid,
                    after=tuple(a for a in waits if a.compute_jid != kit.jid_of(3 + m % 3, uid)),
                )
            case "cancel":
                stage.cancel(m, uid=uid) if kit.jid_of(m, uid) in stage.world.jobs else None
            case "release":
                stage.release(m % 3, uid=uid, index=n % 2 if m % 2 else None)
            case "connect":
                self.connect(key)
            case "disconnect" if up:
                stage.disconnect(key)
            case "gap" if up:
                stage.tell(FramesLost(key, stage.epochs[key]))
            case "probe" if stage.probes:
                self.probed(
                    stage.probes.pop(m % len(stage.probes)), (30_000 + m, 30_003) if n == 1 else ()
                )
            case "step" if there:
                self.step(there[n % len(there)], m, n)
            case "late" if (
                self.said
                and stage.world.agent(
                    (said := self.said[-1 - (6 * m + n) % len(self.said)])[0]
                ).phase
                == "up"
            ):
                stage.reports(said[1], key=said[0])
            case "lose" if self.machines[key] and not up:
                self.machines[key].pop(
                    sorted(self.machines[key], key=str)[m % len(self.machines[key])]
                )
            case "driver" if self.owed:
                self.answered(m)
            case "timer" if stage.clock:
                stage.fire(list(stage.clock)[(6 * m + n) % len(stage.clock)])
            case "time":
                stage.pass_time(5.0 * m)
        self.obey()
        self.seen |= {(v.phase, bool(v.holding)) for v in stage.world.agents.values()}
        self.seen |= {"held off"} if stage.world.gang_backoffs else set()

    def submit(self, n, uid, **fields):
        self.stage.submit(n, uid=uid, **fields)

    def connect(self, key):
        self.stage.open(key)
        self.obey()
        self.stage.snapshot(key, *self.machines[key].values())
        self.obey()

    def probed(self, probe, busy=()):
        if self.stage.world.agent(probe.key).phase == "up":
            self.stage.says(
                PortsProbed(op_id=probe.op_id, busy=tuple(p for p in busy if p in probe.ports)),
                probe.key,
            )

    def answered(self, m):
        asked = self.owed.pop(0)
        match asked:
            case fx.StartAgent():
                self.stage.tell(
                    DriverFailed(asked.key, asked.attempt, "no")
                    if m % 3 == 0
                    else DriverStarted(asked.key, asked.attempt, {"pid": 9}),
                )
            case fx.FindAgent():
                self.stage.tell(DriverFound(asked.key, ("alive", "gone", "unknown")[m % 3], "x"))
            case fx.StopAgent():
                self.stage.tell(DriverStopped(asked.key))

    def step(self, key, m, n):
        """Advance one execution by one state, and report it if its agent is up."""
        token = sorted(self.machines[key], key=str)[m % len(self.machines[key])]
        e = self.machines[key][token]
        if e.state == "starting" and token not in self.stopped:
            e = self.kit.running(token, pid=50 + m)
        elif e.state != "ended":
            how = {"signal": 9} if n == 5 else {}
            e = self.kit.ended(
                token,
                None if how else int(n % 3 != 1),
                pid=e.pid,
                stop_reason=self.stopped.get(token),
                **how,
            )
        self.machines[key][token] = e
        self.said.append((key, e))
        if self.stage.world.agent(key).phase == "up":
            self.stage.reports(e, key=key)

    def obey(self):
        while self.stage.effects:
            effects, self.stage.effects = self.stage.effects, []
            for e in effects:
                match e:
                    case fx.StartAgent() | fx.FindAgent() | fx.StopAgent():
                        self.owed.append(e)
                    case fx.LaunchTask():
                        self.launched(e.key, e.token)
                    case fx.LaunchGang():
                        for task in e.tasks:
                            self.launched(e.key, task.token)
                    case fx.StopTask():
                        self.stopped.setdefault(e.token, e.reason)
                        self.launched(e.key, e.token)
                    case fx.AcknowledgeTasks():
                        for token in e.tokens:
                            self.machines[e.key].pop(token, None)

    def launched(self, key, token):
        self.machines[key].setdefault(token, self.kit.starting(token))

    # ---- combined actions

    def up(self, *hosts):
        """Connect the first user's parallel agents of these hosts."""
        for host in hosts:
            self.connect(self.kit.key_of(kind="parallel", host=host))

    def all_probed(self, busy=()):
        while self.stage.probes:
            self.probed(self.stage.probes.pop(0), busy)
            self.obey()

    def gang(self, *roles, n=1, **fields):
        self.stage.gang(*roles, n=n, **fields)
        self.obey()

    def report(self, token, code=None, **exit_):
        """Report that the task runs, or that it has ended if there is a code."""
        key = self.stage.world.task(token).agent_key
        e = (
            self.kit.running(token)
            if code is None and not exit_
            else self.kit.ended(token, code, **exit_)
        )
        self.machines[key][token] = e
        self.stage.reports(e, key=key)
        self.obey()

    # ---- end of the scenario

    def restarted(self):
        """Return a copy of the scenario with a supervisor that knows only the log."""
        other = copy.deepcopy(self)
        # tasks that were told to stop still do; no agent is connected, and the driver replies to
        # the old supervisor are lost
        other.owed = []
        other.stage.restarted()
        other.obey()
        return other

    def finish(self):
        """Reconnect all agents and let every run complete. Return the end of each run."""
        stage = self.stage
        for _ in range(400):
            if not stage.left():
                return self.ends()
            self.once()
        raise AssertionError(f"it comes to no end: {stage.left()}")

    def once(self):
        stage = self.stage
        while self.owed:
            self.answered(1 if isinstance(self.owed[0], fx.StartAgent) else 0)
            self.obey()
        for key in self.keys:
            view = stage.world.agent(key)
            if view.needed and view.phase in ("starting", "away", "finding"):
                self.connect(key)
            if view.phase == "up" and not view.synced:
                stage.snapshot(key, *self.machines[key].values())
                self.obey()
            for token in sorted(self.machines[key], key=str):
                if token in self.machines[key]:
                    self.step(key, sorted(self.machines[key], key=str).index(token), 1)
                    self.obey()
        self.all_probed()
        stage.pass_time(10.0)
        held = [
            t for job in stage.world.jobs.values() for t in job.live_tasks() if t.held is not None
        ]
        for timer in list(stage.clock):
            if not isinstance(timer, _ENDS) or (isinstance(timer, DebugHoldDeadline) and held):
                stage.fire(timer) if timer in stage.clock else None
                self.obey()

    def ends(self):
        out = {}
        for jid, job in self.stage.world.jobs.items():
            if job.run is not None:
                out[jid] = [(p.serial, p.status, p.reason) for p in (*job.history, job.run)]
        return out
