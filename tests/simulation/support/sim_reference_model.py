"""Reference model built from durable events alone: gangs, attempts, retries, holds and
dependencies.

It reads each event when it becomes durable and knows the required next event of each job. Apart
from events, it reads only the machines' live processes.
"""

from typing import TYPE_CHECKING, Any

import msgspec
from sim_expected_exits import by_itself, comes_to, follows, good, kind, status_of
from sim_runs import Kept, Run

from jobscribe.db.events.events import (
    AttemptDecided,
    AttemptEnded,
    DependencyEnded,
    LateStopRequested,
    RunEnded,
    RunRequested,
    StopRequested,
    TaskEnded,
    TaskExited,
    TaskHeld,
    TaskPlaced,
    TaskStarted,
    TaskSubmitted,
)
from jobscribe.protocol.ids import Token, parse_token
from jobscribe.supervisor.core.resources.subnets import subnet_of

if TYPE_CHECKING:
    from sim_machine import Process
    from simulator import Simulator

#: A hold may last longer than its time by this much if the supervisor is well.
LATE_SECS = 6.0


class Obligation(msgspec.Struct):
    """The required next event of a job, and its required fields."""

    type: type
    fields: dict[str, Any]


class ReferenceModel:
    def __init__(self, sim: "Simulator") -> None:
        self.sim, self.time, self.machine = sim, sim.time, sim.machine
        self.runs: dict[tuple[str, int], Run] = {}
        self.current: dict[str, Run] = {}
        #: tasks that are placed and not over
        self.live: dict[Token, Run] = {}
        self.kept: dict[Token, Kept] = {}
        self._owed: dict[str, Obligation] = {}
        self._at = 0
        self._placed: dict[tuple[str, int], Run] = {}

    # ---- events

    def advance(self) -> None:
        """Process all events that have become durable since the last call."""
        log = self.sim.supervisor.store._log
        if self._at == len(log):
            return
        while self._at < len(log):
            stored = log[self._at]
            self._at += 1
            if stored.stream.startswith("job/"):
                self._take(stored.stream.removeprefix("job/"), stored.event)
        for jid, owed in self._owed.items():
            self.sim.broken(
                f"{jid}: {owed.type.__name__} {owed.fields} had to come with what led to it"
            )
        for run in self._placed.values():
            self._whole(run)
        if self._placed:
            self._room_in_books()
            self._placed.clear()

    def _take(self, jid: str, e: Any) -> None:
        owed = self._owed.pop(jid, None)
        if owed is not None and not (
            isinstance(e, owed.type) and all(getattr(e, f) == v for f, v in owed.fields.items())
        ):
            self.sim.broken(f"{jid}: {owed.type.__name__} {owed.fields} had to come, and {e} came")
        match e:
            case RunRequested():
                self._requested(jid, e)
            case TaskPlaced():
                self._place(e)
            case TaskSubmitted():
                self._submitted(self.runs[jid, e.token.serial], e)
            case TaskStarted():
                self.runs[jid, e.token.serial].started.add(e.token)
            case StopRequested():
                self._stop(self.runs[jid, e.serial], e)
            case LateStopRequested():
                self._late_stop(self.runs[jid, e.serial], e)
            case TaskExited():
                self._exited(self.runs[jid, e.token.serial], e)
            case TaskHeld():
                self._hold(self.runs[jid, e.token.serial], e)
            case TaskEnded():
                self._end(self.runs[jid, e.token.serial], e)
            case AttemptDecided():
                self._decided(self.runs[jid, e.serial], owed, e)
            case AttemptEnded():
                self._attempt_ended(self.runs[jid, e.serial], owed, e)
            case RunEnded():
                self._run_ended(self.runs[jid, e.serial], owed, e)
            case DependencyEnded():
                self._dependency(self.runs[jid, e.serial], e)
            case _:
                pass

    def _owe(self, run: Run, type_: type, **fields: Any) -> None:
        self._owed[run.jid] = Obligation(type_, fields)

    # ---- handlers by event

    def _requested(self, jid: str, e: RunRequested) -> None:
        before = self.current.get(jid)
        if before is not None and before.status is None:
            self.sim.broken(f"{jid}/{e.serial} was accepted while {before.serial} was not over")
        run = Run(jid=jid, serial=e.serial, spec=e.spec)
        for after in e.spec.after:
            there = self.current.get(after.compute_jid)
            serial = after.compute_job_serial or (there.serial if there else 0)
            run.waits.append((after.compute_jid, serial, after.on))
        self.runs[jid, e.serial] = self.current[jid] = run

    def _place(self, e: TaskPlaced) -> None:
        token = e.token
        run = self.runs[token.jid, token.serial]
        if token in run.placed:
            self.sim.broken(f"{token} was placed twice")
        if self.current[run.jid] is not run or run.status is not None or run.stop is not None:
            self.sim.broken(f"{token} was placed, and its run is over or to be stopped")
        if token.attempt != run.attempt:
            self._new_attempt(run, token)
        run.placed[token] = e
        self.live[token] = run
        self._placed[run.jid, run.serial] = run

    def _new_attempt(self, run: Run, token: Token) -> None:
        if token.attempt != run.attempt + 1 or (run.attempt and run.retry is None):
            self.sim.broken(f"{token} was placed, and attempt {run.attempt} led to no other one")
        left = [t for t in self.live if t.jid == run.jid]
        if left:
            self.sim.broken(f"{token} was placed while {left} were not over")
        if run.retry is not None:
            if self.time.now < run.not_before and run.retry_boot == self.machine.home.boot:
                self.sim.broken(
                    f"{token} was placed {run.not_before - self.time.now:.2f} s before the end of the pause"
                )
            self.time.saw(f"a run was tried again: {run.retry}")
        for jid, serial, on in run.waits:
            past = self.runs.get((jid, serial))
            if past is None or not past.fits(on):
                self.sim.broken(
                    f"{token} was placed, and {jid}/{serial} ({on}), which it waits for, is {past}"
                )
            self.time.saw("a run began after what it had waited for")
        if run.spec.at_once is not None:
            self._turn_in_array(run)
        run.attempt, run.decided, run.retry, run.ends = token.attempt, None, None, []

    def _submitted(self, run: Run, e: TaskSubmitted) -> None:
        if e.token not in self.live or e.token in run.submitted or e.token in run.started:
            self.sim.broken(
                f"{e.token} was submitted, and it was before, or had started, or does not live"
            )
        run.submitted.add(e.token)
        self.time.saw("a batch job is on record")

    def _turn_in_array(self, run: Run) -> None:
        array, at_once = run.jid.rsplit("-", 1)[0], run.spec.at_once or 0
        others = {
            t.jid
            for t in self.live
            if t.jid.rsplit("-", 1)[0] == array
            and self.runs[t.jid, t.serial].spec.at_once == at_once
        }
        if len(others - {run.jid}) >= at_once:
            self.sim.broken(
                f"{run.jid} began, and {others} of its array run; {at_once} may at once"
            )
        self.time.saw("a run of an array began")

    def _stop(self, run: Run, e: StopRequested) -> None:
        if run.status is not None or run.stop is not None:
            self.sim.broken(f"{run.jid}/{run.serial} was stopped twice, or after its end")
        if self._all_exited(run):
            self.sim.broken(
                f"{run.jid}/{run.serial} was stopped, and all that lived of it had exited"
            )
        run.stop = e
        held = [t for t in self.kept if (t.jid, t.serial) == (run.jid, run.serial)]
        live = [t for t in self.live if (t.jid, t.serial) == (run.jid, run.serial)]
        if run.waits and not run.attempt and not run.waited:
            self.time.saw("a run was canceled while it waited for another one")
        if run.retry is not None:
            self.time.saw("a run was canceled between two attempts")
        if held:
            self.time.saw("a run was canceled while a task of it was kept for debugging")
        if not live or len(held) < len(live):
            self._owe(run, RunEnded, status="canceled", reason=e.reason)

    def _all_exited(self, run: Run) -> bool:
        live = [t for t in self.live if (t.jid, t.serial) == (run.jid, run.serial)]
        return all(t in run.exited or t in self.kept for t in live) and any(
            t in run.exited for t in live
        )

    def _late_stop(self, run: Run, e: LateStopRequested) -> None:
        if (
            run.status is not None
            or run.stop is not None
            or run.late is not None
            or not self._all_exited(run)
        ):
            self.sim.broken(
                f"{run.jid}/{run.serial} was stopped too late, and not all of it had exited, or it was before"
            )
        run.late = e
        self.time.saw("a run was canceled after its command had ended")

    def _exited(self, run: Run, e: TaskExited) -> None:
        if (
            e.token not in self.live
            or e.token in self.kept
            or e.token in run.exited
            or e.token not in run.started
        ):
            self.sim.broken(
                f"{e.token} exited, and it had before, or had not started, or does not live"
            )
        run.exited[e.token] = e.exit
        self.time.saw(
            "an exit was on record before the end"
            + ("" if run.stop is None else ", of a run that was canceled")
        )

    def _hold(self, run: Run, e: TaskHeld) -> None:
        if (
            e.token not in self.live
            or e.token in self.kept
            or run.status is not None
            or run.decided is not None
        ):
            self.sim.broken(f"{e.token} was kept for debugging, and it or its attempt was over")
        run.exited.pop(e.token, None)
        if run.spec.debug_secs is None or not by_itself(e.exit) or run.late is not None:
            self.sim.broken(f"{e.token} was kept for debugging, and that was not wanted: {e.exit}")
        secs = min(run.spec.debug_secs or 0.0, self.sim.policy.debug_secs)
        if self.sim.policy.batch and e.secs < secs:  # the allocation was held before that was known
            secs = e.secs
            self.time.saw("a held allocation had less time left")
        self.kept[e.token] = Kept(
            exit=e.exit,
            secs=secs,
            since=(e.mono or 0.0) + self.machine.home.booted_at,
            boot=self.machine.home.boot,
            session=self.sim.supervisor.sessions,
        )
        self.time.saw("a task was kept for debugging")

    def _end(self, run: Run, e: TaskEnded) -> None:
        token = e.token
        if token not in self.live:
            self.sim.broken(f"{token} ended twice, or was never placed")
        kept = self.kept.pop(token, None)
        if kept is not None:
            self._end_of_hold(run, token, kept, e)
        elif (
            run.spec.debug_secs
            and not self.sim.policy.batch  # there its allocation may be gone
            and run.status is None
            and run.decided is None
            and run.late is None
            and by_itself(e.exit)
        ):
            self.sim.broken(f"{token} was to be kept for debugging: {e.exit}")
        known = run.exited.pop(token, None)
        if known is not None and (known.code, known.signal, known.stop_reason) != (
            e.exit.code,
            e.exit.signal,
            e.exit.stop_reason,
        ):
            self.sim.broken(f"{token} had exited with {known}, and ended with {e.exit}")
        del self.live[token]
        run.ended[token] = e.exit
        run.ends.append((token, e.exit))
        if self.current[run.jid] is not run:
            return
        if run.status is None and run.decided is None and run.spec.roles:
            verdict = comes_to(run.spec.roles, run.ends)
            if verdict is not None:
                deciding = (
                    {}
                    if verdict[1] is None
                    else {"role": verdict[1].role, "index": verdict[1].index}
                )
                self._owe(
                    run, AttemptDecided, attempt=run.attempt, succeeded=verdict[0], **deciding
                )
                return
        self._all_over(run)

    def _all_over(self, run: Run) -> None:
        if not any(t.jid == run.jid and t.serial == run.serial for t in self.live):
            self._owe(run, AttemptEnded, attempt=run.attempt)

    def _end_of_hold(self, run: Run, token: Token, kept: Kept, e: TaskEnded) -> None:
        if e.exit != kept.exit:
            self.sim.broken(f"{token} was kept with {kept.exit} and ended with {e.exit}")
        left = kept.since + kept.secs - self.time.now
        released = self.sim.clients.released_at.get((token.jid, token.serial))
        if kept.session != self.sim.supervisor.sessions:
            self.time.saw("a hold outlived the supervisor")
        if left <= 0.01:
            self.time.saw("a hold ended at its deadline")
        elif released is not None:
            self.time.saw("a hold was released")
        elif (
            run.stop is None
            and run.late is None
            and run.decided is None
            and kept.boot == self.machine.home.boot
            and not self.sim.policy.batch  # there the allocation may be taken away
        ):
            self.sim.broken(f"{token} was kept for debugging, and ended {left:.1f} s too early")

    def _decided(self, run: Run, owed: Obligation | None, e: AttemptDecided) -> None:
        if owed is None or owed.type is not AttemptDecided:
            self.sim.broken(
                f"{run.jid}: attempt {e.attempt} was decided, and nothing decided it: {run.ends}"
            )
        run.decided = e
        failed = sum(not good(x) for _, x in run.ends)
        many = len(run.placed_now) > 1
        if many and len(run.ends) < len(run.placed_now):
            self.time.saw(
                "an attempt was decided while tasks of it ran: "
                + ("succeeded" if e.succeeded else "failed")
            )
        if e.succeeded and failed:
            self.time.saw("an attempt succeeded although tasks of it had failed")
        self._all_over(run)

    def _attempt_ended(self, run: Run, owed: Obligation | None, e: AttemptEnded) -> None:
        if owed is None or owed.type is not AttemptEnded:
            self.sim.broken(f"{run.jid}: attempt {e.attempt} ended, and not all of it was over")
        expected = None
        status, exit_ = self._result(run)
        if run.status is None:
            if run.stop is None and run.late is None and status == "error" and exit_ is not None:
                expected = follows(run.spec.retry, kind(exit_), run.retries)
                if expected is None and run.spec.retry is not None:
                    self.time.saw(
                        "a run was not tried again: "
                        + ("permanent" if kind(exit_) == "permanent" else "no retry left")
                    )
            if expected is None:
                self._owe(run, RunEnded, status=status)
        if (expected is None) != (e.retry is None):
            self.sim.broken(
                f"{run.jid}: attempt {e.attempt} ended with {exit_} after {run.retries}, and {e.retry or e.not_retried} follows"
            )
        if expected is None or e.retry is None:
            return
        if (
            e.retry.behavior != kind(exit_)
            or not expected[0] - 1e-6 <= e.retry.delay_secs <= expected[1] + 1e-6
        ):
            self.sim.broken(
                f"{run.jid}: {e.retry} follows on {exit_}, after {run.retries}; a pause of {expected} was due"
            )
        run.retries.append(e.retry.behavior)
        home = self.machine.home
        # a slow commit may arrive after a reboot
        same = e.retry.boot_id in (None, home.boot_id)
        run.retry, run.retry_boot = e.retry.behavior, home.boot if same else -1
        decided_at = (e.retry.mono or 0.0) + self.machine.home.booted_at
        run.not_before = decided_at + e.retry.delay_secs - 0.001

    def _result(self, run: Run) -> tuple[str, Any]:
        """Return (status, deciding exit) of an attempt whose tasks are all over."""
        decided = run.decided
        if decided is not None and decided.succeeded:
            return "completed", None
        if decided is not None:
            exit_ = next(
                x for t, x in run.ends if (t.role, t.index) == (decided.role, decided.index)
            )
        else:
            exit_ = run.ends[0][1]
        return status_of(exit_), exit_

    def _run_ended(self, run: Run, owed: Obligation | None, e: RunEnded) -> None:
        if run.status is not None:
            self.sim.broken(f"{run.jid}/{run.serial} ended twice")
        if owed is None:
            unfit = any(
                past is not None and past.over and not past.fits(on)
                for past, on in self._waited(run)
            )
            live = any((t.jid, t.serial) == (run.jid, run.serial) for t in self.live)
            if not (
                (e.reason == "dependency" and unfit)
                or (e.reason == "agentStartFailed" and not live)
            ):
                self.sim.broken(f"{run.jid}/{run.serial} ended, and nobody knows why: {e}")
            if e.reason == "dependency":
                self.time.saw("a run was canceled, for what it waited for ended otherwise")
        run.status, run.retry = e.status, None

    def _waited(self, run: Run) -> list[tuple[Run | None, str]]:
        return [(self.runs.get((jid, serial)), on) for jid, serial, on in run.waits]

    def _dependency(self, run: Run, e: DependencyEnded) -> None:
        past = self.runs.get((e.compute_jid, e.compute_job_serial))
        if past is None or not past.over:
            self.sim.broken(
                f"{run.jid} was told that {e.compute_jid}/{e.compute_job_serial} is over, and it is {past}"
            )
        run.waited = True

    # ---- gangs and capacity

    def _whole(self, run: Run) -> None:
        """Check that all tasks of the attempt were placed in one durable step."""
        now = run.placed_now
        seats = {(t.role, t.index) for t in now}
        if seats != run.seats:
            self.sim.broken(f"of {run.jid}/{run.serial} only {seats} were placed")
        if len(now) > 1:
            self.time.saw("a gang of several tasks was placed")
        hosts = {e.agent_key.host for e in now.values()}
        if len(hosts) > 1:
            self.time.saw("a gang was placed on two hosts")
        if any(n.subnets for n in self.sim.policy.nodes["local"]) and run.spec.roles:
            self.time.saw("a gang with a network of its own was placed")
            networks = {subnet_of(e.address) for e in now.values()}
            if (
                len(hosts) > 1
                or len(networks) > 1
                or len({e.address for e in now.values()}) < len(now)
            ):
                self.sim.broken(f"{run.jid} is on {hosts} with {[e.address for e in now.values()]}")
        for token, e in now.items():
            role = run.role(token)
            asked = {p.label: p.count for p in role.all_ports()} if role is not None else {}
            gpus = 0 if role is None or self.sim.policy.batch else role.gpu
            if {label: len(ports) for label, ports in e.ports.items()} != asked or (
                role is not None and len(e.gpus) != gpus
            ):
                self.sim.broken(f"{token} has {e.ports} and {e.gpus}, and asked for {role}")

    def _room_in_books(self) -> None:
        self.sim.hosts.slots()
        self._fits(self.live, "is placed")

    def _fits(self, tokens: Any, what: str) -> None:
        """Check that no host is overcommitted and that each port and GPU has one owner. Nodes of a
        cluster are not checked.
        """
        if self.sim.policy.batch:
            return
        nodes = {n.host: n for n in self.sim.policy.nodes.get("local", ())}
        taken: dict[str, list[int]] = {host: [0, 0] for host in nodes}
        owners: dict[tuple[str, object], Token] = {}
        networks: dict[tuple[str, str], tuple[str, int]] = {}
        for token in tokens:
            run = self.runs[token.jid, token.serial]
            role, e = run.role(token), run.placed[token]
            if role is None:
                continue
            host = e.agent_key.host
            taken[host][0] += role.cpu
            taken[host][1] += role.memory_mb
            gang = (token.jid, token.serial)
            network = subnet_of(e.address) if any(n.subnets for n in nodes.values()) else None
            if network is not None and networks.setdefault((host, network), gang) != gang:
                self.sim.broken(f"{gang} and {networks[host, network]} have {network} of {host}")
            for thing in (*e.gpus, *(p for ports in e.ports.values() for p in ports)):
                other = owners.setdefault((host, thing), token)
                if other != token:
                    self.sim.broken(
                        f"{thing} of {host} has two owners: {token} and {other}, as each {what}"
                    )
        for host, (cpu, memory) in taken.items():
            if cpu > nodes[host].cpu or memory > nodes[host].memory_mb:
                self.sim.broken(
                    f"{host} has {nodes[host].cpu} cores and {nodes[host].memory_mb} MiB; of what {what}, {cpu} and {memory} are taken"
                )

    # ---- machines

    def spawned(self, p: "Process") -> None:
        """Check that a process that has started was meant to start."""
        token = parse_token(p.token)
        run = self.runs.get((token.jid, token.serial))
        if (
            run is None
            or token not in run.placed
            or run.attempt != token.attempt
            or {(t.role, t.index) for t in run.placed_now} != run.seats
        ):
            self.sim.broken(f"{token} was started before all tasks of its attempt were placed")
            return
        if token in run.ended:
            self.sim.broken(f"{token} was started after its end had become durable")
        e = run.placed[token]
        ports = (
            set()
            if e.agent_key.kind == "container"
            else {n for ports in e.ports.values() for n in ports}
        )
        if not self.sim.policy.batch and (p.host != e.agent_key.host or set(p.ports) != ports):
            self.sim.broken(
                f"{token} was placed on {e.agent_key.host} with {e.ports}, and started on {p.host} with {p.ports}"
            )
        really = [parse_token(q.token) for q in self.machine.live.values()]
        self._fits([*really, *(t for t in self.kept if t not in really)], "runs or is kept")

    # ---- after every step

    def step(self) -> None:
        self.advance()
        supervisor = self.sim.supervisor
        if not self.kept or not supervisor.awake or supervisor.commit_secs > 0.01:
            return
        for token, kept in self.kept.items():
            # across a reboot only the wall clock counts; if it was set back, each supervisor waits
            # the whole time
            since = (
                kept.since
                if kept.boot == self.machine.home.boot
                else max(kept.since, supervisor.well_since)
            )
            if self.time.now > max(since + kept.secs, supervisor.well_since) + LATE_SECS:
                self.sim.broken(
                    f"{token} is kept for debugging for longer than {kept.secs} s: {self.time.now - kept.since:.1f} s"
                )

    def reckon(self) -> None:
        """Check at the end of a life that nothing is left."""
        for run in self.runs.values():
            if run.status is None or not run.over:
                self.sim.broken(f"{run.jid}/{run.serial} never ended: {run}")
        if self.live or self.kept:
            self.sim.broken(f"left at the end: {list(self.live)}, {list(self.kept)}")
