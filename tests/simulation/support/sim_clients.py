"""The clients: they repeat each request until it is answered, and record the answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import sim_hours
from sim_recipes import Recipes, command, one_fits, too_much

from jobscribe.protocol.api.requests import RunCancel, RunRelease, RunSimulation, RunSpec
from jobscribe.protocol.clusters.batch import BatchRequest
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, base62
from jobscribe.protocol.jobs.roles import After, TaskRole
from jobscribe.protocol.wire.messages import Call, CancelCall
from jobscribe.supervisor.core.interface.inputs import (
    Cancel,
    Input,
    Purge,
    ReleaseHold,
    RequireAgent,
    Submit,
)
from jobscribe.supervisor.core.resources.gang_allocator import Node

if TYPE_CHECKING:
    from sim_supervisor import Supervisor
    from simulator import Simulator

USERS = ("AAAAAAAA", "BBBBBBBB", "CCCCCCCC")
#: A request is answered or refused within this time if the supervisor is well and its disk is not
#: slow.
ANSWER_SECS = 6.0
#: A client without an answer repeats its request after this time.
AGAIN_SECS = 7.0
#: As in the run service: the wait for an agent, and the extra time after which the supervisor ends
#: a call that its agent did not end.
WANT_SECS, SLACK_SECS = 32.0, 2.0
#: Refusals after which the client repeats the same request.
RETRYABLE = frozenset({"storageUnavailable", "draining", "internal"})


class Asked(msgspec.Struct):
    """A client's request, kept until it is answered."""

    uid: str
    jid: str
    req_id: str
    request: Any
    serial: int | None = None
    refused: str | None = None
    asked: int = 0
    answered: int = 0

    @property
    def over(self) -> bool:
        return self.answered > 0 or self.refused is not None


class Clients:
    """All clients. Each sends its requests to the supervisor that serves."""

    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self._broken, policy = sim, sim.time, sim.broken, sim.policy
        r = self.time.random
        self.runs: list[Asked] = []
        self.cancels: list[Asked] = []
        self.releases: list[Asked] = []
        #: first request to release the held tasks, by (computeJid, serial)
        self.released_at: dict[tuple[str, int], float] = {}
        #: time of the acknowledged cancel, by (computeJid, serial)
        self.canceled: dict[tuple[str, int], float] = {}
        #: (computeJid, serial) of purge requests
        self.purged: set[tuple[str, int]] = set()
        #: deadline of each open call or starting session
        self.calls: dict[int, float] = {}
        self._handles = 0
        #: whether a user had hours left when a request was decided, by handle
        self._had_hours: dict[int, bool] = {}
        self._users = USERS[: r.choice((1, 2, 3))]
        self._kinds = r.choice((("sequential",), ("sequential", "parallel")))
        self._sims = r.choice((3, 12, 40))
        self._limits = r.random() < 0.5
        self._models = [command(r, ("0", "0", "0", "3", "0,1", "0,s6", "200,0")) for _ in range(6)]
        self._plans = (None, "gold") if policy.places else (None,)
        self.nodes = policy.nodes.get("local", ())
        self._clusters = [p.host for p in policy.places["local"]] if policy.batch else []
        self.recipes = Recipes(r, self.nodes)

    @property
    def supervisor(self) -> "Supervisor":
        return self.sim.supervisor

    # ---- requests

    def submit(self) -> None:
        self._ask(self._new_run())

    def submit_plain(self, uid: str, secs: float) -> Asked:
        """Submit a new simulation without a limit; it ends at once on SIGTERM."""
        return self._submit_late(uid, command=("job", "0", str(secs), "dies"))

    def submit_gang(self, uid: str, secs: float) -> Asked:
        """Submit a similar simulation with two tasks of one role, which ignore SIGTERM."""
        return self._submit_late(
            uid, roles=(TaskRole(name="late", tasks=2, command=("job", "0", str(secs), "ignores")),)
        )

    def _submit_late(self, uid: str, **what: Any) -> Asked:
        spec = RunSpec(
            uid=uid,
            simulation_id=f"late{len(self.runs):04d}",
            driver="local",
            grace_secs=1.0,
            active_plan=sim_hours.UNLIMITED if self.supervisor.policy.queues.plans else None,
            **what,
        )
        asked = Asked(uid, f"{uid}-{spec.simulation_id}-command", f"run-{len(self.runs):06d}", None)
        asked.request = RunSimulation(req_id=asked.req_id, run=spec)
        self.runs.append(asked)
        self._ask(asked)
        return asked

    def submit_many(self) -> None:
        """Submit a bulk request: all runs are decided together."""
        self._ask_together([self._new_run() for _ in range(self.time.random.randint(3, 12))])

    def submit_array(self) -> None:
        """Submit runs of one simulation with a concurrency limit."""
        r = self.time.random
        uid, sid, at_once = r.choice(self._users), f"array{r.randint(1, 3):03d}", r.choice((1, 2))
        some = [self._run(uid, sid, f"a{n}", at_once=at_once) for n in range(r.randint(2, 6))]
        self._ask_together(some)

    def submit_chain(self) -> None:
        """Submit runs that each wait for the previous one, some for two."""
        r = self.time.random
        uid, many = r.choice(self._users), []
        for n in range(r.randint(2, 6)):
            after = [
                After(compute_jid=a.jid, on=r.choice(("ok", "ok", "any", "failed")))
                for a in many[-r.choice((1, 1, 2)) :]
            ]
            many.append(
                self._run(uid, f"chain{r.randint(1, 999):03d}", f"c{n}", after=tuple(after))
            )
        self._ask_together(many)

    def _ask_together(self, many: list[Asked]) -> None:
        supervisor = self.supervisor
        if supervisor.running:
            inputs = [self._input(a) for a in many]
            supervisor.life.meet(lambda: self._tell(supervisor, inputs))
        else:
            for asked in many:
                self._ask(asked)

    def _new_run(self) -> Asked:
        r = self.time.random
        uid, sid = r.choice(self._users), f"sim{r.randint(1, self._sims):05d}"
        waits: dict[str, Any] = {}
        if r.random() < self.recipes.waiting:
            known = [
                a
                for a in self.runs
                if a.uid == uid and a.serial is not None and a.jid.split("-")[1] != sid
            ]
            some = r.sample(known, min(len(known), r.choice((1, 1, 2))))
            waits["after"] = tuple(
                After(
                    compute_jid=a.jid,
                    compute_job_serial=r.choice((0, a.serial or 0)),
                    on=r.choice(("ok", "any", "failed")),
                )
                for a in some
            )
        return self._run(uid, sid, "command", **waits)

    def _run(self, uid: str, sid: str, model: str, **fields: Any) -> Asked:
        r = self.time.random
        what: dict[str, Any] = (
            {"roles": self.recipes.roles()}
            if r.random() < self.recipes.gangs
            else {"command": r.choice(self._models)}
        )
        spec = RunSpec(
            uid=uid,
            simulation_id=sid,
            compute_model=model,
            driver="local",
            grace_secs=r.choice((0.0, 0.5, 3.0)),
            job_run_mode=r.choice(self._kinds),
            time_limit_secs=r.choice((0.3, 3.0, 12.0))
            if self._limits and r.random() < 0.4
            else None,
            queue_limit_secs=r.choice((0.2, 2.0, 20.0))
            if self._limits and r.random() < 0.3
            else None,
            active_plan=r.choice(self._plans),
            **what,
            **self.recipes.policies(),
            **fields,
            **(
                {"batch": BatchRequest(cluster=r.choice((None, *self._clusters)))}
                if self._clusters
                else {}
            ),
        )
        jid = f"{uid}-{sid}-{model}"
        known = [a.serial for a in self.runs if a.jid == jid and a.serial is not None]
        request = RunSimulation(
            req_id=f"run-{len(self.runs):06d}",
            run=spec,
            force_run=r.random() < 0.2,
            compute_job_serial=r.choice(known) if known and r.random() < 0.15 else 0,
        )
        asked = Asked(uid, jid, request.req_id, request)
        self.runs.append(asked)
        return asked

    def release_one(self) -> None:
        """Release a held task, if there is one."""
        r, supervisor = self.time.random, self.supervisor
        jobs = supervisor.engine.world.jobs if supervisor.running else {}
        held = [
            (jid, job.run, t.token)
            for jid, job in jobs.items()
            if job.run
            for t in job.run.live_tasks
            if t.held is not None
        ]
        if not held:
            return
        jid, run, token = r.choice(held)
        which = {"role": token.role, "index": token.index} if r.random() < 0.4 else {}
        request = RunRelease(
            uid=jid.split("-")[0], compute_jid=jid, compute_job_serial=run.serial, **which
        )
        self.releases.append(Asked(request.uid, jid, f"release-{len(self.releases):06d}", request))
        self.released_at.setdefault((jid, run.serial), self.time.now)
        self._ask(self.releases[-1])

    def cancel_one(self, *, of: list[Asked] | None = None) -> None:
        r = self.time.random
        known = of or [a for a in self.runs if a.serial is not None]
        if known:
            target = r.choice(known)
            self.cancel(target, 0 if r.random() < 0.3 else target.serial or 0)

    def cancel(self, target: Asked, serial: int) -> None:
        request = RunCancel(
            req_id=f"cancel-{len(self.cancels):06d}",
            uid=target.uid,
            compute_jid=target.jid,
            compute_job_serial=serial,
        )
        self._see_race(target.jid)
        self.cancels.append(Asked(target.uid, target.jid, request.req_id, request))
        self._ask(self.cancels[-1])

    def cancel_burst(self) -> None:
        """Cancel all runs that are starting, and some more."""
        if not self.supervisor.running:
            return
        jobs = self.supervisor.engine.world.jobs
        starting = {
            jid for jid, j in jobs.items() if j.run and j.run.status == "pending" and j.run.attempts
        }
        near = [a for a in self.runs if a.jid in starting and a.serial is not None]
        for _ in range(3):
            self.cancel_one(of=near or None)

    def _see_race(self, jid: str) -> None:
        job = self.supervisor.engine.world.jobs.get(jid) if self.supervisor.running else None
        if job is not None and job.run is not None and job.run.status == "pending":
            self.time.saw(
                "a cancel met a task that was being started"
                if job.run.attempts
                else "a queued run was canceled"
            )

    def _ask(self, asked: Asked) -> None:
        """Repeat the request until it is answered: replies get lost with the connection or the
        supervisor.
        """
        if asked.over:
            return
        supervisor = self.supervisor
        if supervisor.running:
            input_ = self._input(asked)
            supervisor.life.meet(lambda: self._tell(supervisor, [input_]))
        else:
            self.time.after(AGAIN_SECS, lambda: self._ask(asked))

    def _tell(self, supervisor: "Supervisor", inputs: list[Input]) -> None:
        """Have the requests decided; the answers may come later."""
        if sim_hours.limited(supervisor.policy):
            for input_ in inputs:
                if isinstance(input_, Submit):
                    uid = input_.request.run.uid
                    left = sim_hours.refused_for_nothing(self, supervisor, uid)
                    self._had_hours[input_.handle] = left
        supervisor.tell(*inputs)

    def _input(self, asked: Asked) -> Input:
        self._handles += 1
        handle = self._handles
        asked.asked += 1
        self.supervisor.request(
            handle, lambda reply: self._answer(asked, reply, handle), ANSWER_SECS
        )
        self.time.after(AGAIN_SECS + self.time.random.random(), lambda: self._ask(asked))
        match asked.request:
            case RunSimulation():
                return Submit(handle, asked.request, "/run")
            case RunRelease():
                return ReleaseHold(handle, asked.request)
            case _:
                return Cancel(handle, asked.request)

    def _answer(self, asked: Asked, reply: dict[str, Any] | Refusal, handle: int) -> None:
        self.time.say("client", asked.req_id, "<-", reply)
        if isinstance(reply, Refusal):
            self.time.saw("refused: " + reply.code)
            if reply.code == "hoursUsedUp" and self._had_hours.pop(handle, False):
                self._broken(f"{asked.req_id} was refused, and {asked.uid} has hours left: {reply}")
            if reply.code == "resourceExceeded" and one_fits(
                self._may(asked), asked.request.run.roles
            ):
                self._broken(
                    f"{asked.req_id} was refused, and there is a host for it: {asked.request.run.roles}"
                )
            if reply.code not in RETRYABLE and not asked.answered:
                asked.refused = reply.code
            return
        if (
            isinstance(asked.request, RunSimulation)
            and not self._clusters
            # an answer with an earlier run is about that one, which may have had another plan
            and not any(
                a is not asked and (a.jid, a.serial) == (asked.jid, reply["serial"])
                for a in self.runs
            )
            and too_much(self._may(asked), asked.request.run.roles)
        ):
            self._broken(
                f"{asked.req_id} was accepted, and there is no host for it: {asked.request.run.roles}"
            )
        if asked.serial not in (None, reply["serial"]):
            self._broken(
                f"G11: {asked.req_id} was answered with serial {asked.serial}, then {reply['serial']}"
            )
        if asked.serial is not None:
            self.time.saw("a repeated request got the same answer")
        elif isinstance(asked.request, RunSimulation):
            if any(a.serial == reply["serial"] and a.jid == asked.jid for a in self.runs):
                self.time.saw("a run was joined, or a finished one reused")
            elif asked.request.force_run:
                self.time.saw("a run was forced")
        asked.serial = reply["serial"]
        # a late stop means that the run had ended by itself
        if isinstance(asked.request, RunCancel) and reply.get("lateStop") is None:
            self.canceled.setdefault((asked.jid, reply["serial"]), self.time.now)
        if not self.time.strikes("a reply was lost"):
            asked.answered += 1

    def _may(self, asked: Asked) -> tuple[Node, ...]:
        """Return the hosts that this run may use."""
        plan = asked.request.run.active_plan
        return tuple(n for n in self.nodes if plan in n.plans) or tuple(
            n for n in self.nodes if not n.plans
        )

    # ---- other requests

    def purge_one(self) -> None:
        supervisor = self.supervisor
        known = [a for a in self.runs if a.serial is not None]
        if known and supervisor.running:
            target = self.time.random.choice(known)
            assert target.serial is not None
            self.purged.add((target.jid, target.serial))
            supervisor.life.meet(
                lambda: supervisor.tell(Purge(target.jid, target.serial or 0, supervisor.time.wall))
            )

    def begin_session(self) -> None:
        self._want(
            lambda key, number: self._done(number, "an agent was ready before anybody needed it")
        )

    def call(self) -> None:
        self._want(self._send_call)

    def _want(self, go: Callable[[AgentKey, int], None]) -> None:
        supervisor, life = self.supervisor, self.supervisor.life
        if not supervisor.awake:
            return
        self._handles += 1
        handle = self._handles
        key = supervisor.engine.world.host_assignment.agent_for_calls(
            "local", self.time.random.choice(self._users), None
        )
        self.calls[handle] = self.time.now + WANT_SECS + 1

        def answer(reply: dict[str, Any] | Refusal) -> None:
            if isinstance(reply, Refusal):
                self._done(handle, f"a call was refused: {reply.code}")
            else:
                go(key, handle)

        def late() -> None:
            if supervisor.replies.pop(handle, None) is not None:
                self._done(handle, "a call's agent was not up in time")

        supervisor.request(handle, answer, WANT_SECS + 1)
        life.after(WANT_SECS, late)
        supervisor.tell(RequireAgent(handle, key))

    def _send_call(self, key: AgentKey, number: int) -> None:
        supervisor, r = self.supervisor, self.time.random
        link = supervisor.links.get(key)
        if link is None:
            self._done(number, "a call's agent was gone again")
            return
        op_id, deadline = base62(r.randbytes(32), 32), r.choice((0.2, 1.0, 5.0))
        self.calls[number] = self.time.now + deadline + SLACK_SECS + 1
        link.asked[op_id] = lambda what: self._done(number, f"a call was over: {what}")

        def late() -> None:
            if link.asked.pop(op_id, None) is not None:
                self._done(number, "a call was given up by the supervisor")
                if supervisor.links.get(key) is link:
                    link.to_agent(CancelCall(op_id=op_id))

        supervisor.life.after(deadline + SLACK_SECS, late)
        link.to_agent(
            Call(
                op_id=op_id,
                job_cmd="stateless_compute",
                simulation_type="command",
                compute_model="none",
                lib_dir="/lib",
                deadline_secs=deadline,
                reply_limit=1000,
            )
        )

    def _done(self, number: int, what: str) -> None:
        if self.calls.pop(number, None) is not None:
            self.time.saw(what)
