"""Planted bugs, one at a time, to show that the simulator finds them. Each breaks something that a
guarantee depends on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from sim_batch_bugs import BATCH_BUGS, RARE_BATCH_BUGS
from sim_execution_bugs import EXECUTION_BUGS
from sim_gang_bugs import GANG_BUGS, RARE_GANG_BUGS, Patch
from sim_host_bugs import HOST_BUGS, RARE_HOST_BUGS
from sim_hour_bugs import HOUR_BUGS
from sim_lease_bugs import LEASE_BUGS

from jobscribe.agent.session.state_machine import Session
from jobscribe.db.events import agent_fold
from jobscribe.supervisor.core import decide
from jobscribe.supervisor.core.agents import lifecycle
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.effects import ListTasks, SetTimer
from jobscribe.supervisor.core.resources import concurrency_limits
from jobscribe.supervisor.core.resources.fair_share import FairShare
from jobscribe.supervisor.core.runs import reconciler, retention, termination
from jobscribe.supervisor.core.scheduling import dispatch, placement
from jobscribe.supervisor.core.state.transaction import Transaction
from jobscribe.supervisor.core.state.world import World
from jobscribe.supervisor.engine.decision_loop import Engine
from jobscribe.supervisor.engine.deferred_inputs import DeferredInputs
from jobscribe.supervisor.streams.job_changes import JobChanges


def acts_before_it_is_durable() -> list[Patch]:
    original = Engine._append

    def take(self: Engine, pending: Any) -> None:
        caused = pending.decision.caused
        pending.decision = msgspec.structs.replace(pending.decision, caused=())
        original(self, pending)
        for c in caused:
            self.ports.perform(c.effect, c.cause)

    return [(Engine, "_append", take)]


def forgets_what_a_request_led_to() -> list[Patch]:
    return [(Engine, "_with_known_request", lambda self, input_: input_)]


def keeps_what_was_decided_on_a_failed_commit() -> list[Patch]:
    original = Engine._load

    def load(self: Engine) -> None:
        if self._paused_until is None:
            original(self)

    return [(Engine, "_load", load)]


def tells_no_ends_in_snapshots() -> list[Patch]:
    original = Session._snapshot

    def snapshot(self: Session, mono: float) -> list[Any]:
        whole = self._known
        self._known = {t: k for t, k in whole.items() if k.execution.state != "ended"}
        try:
            return original(self, mono)
        finally:
            self._known = whole

    return [(Session, "_snapshot", snapshot)]


def never_repeats_an_end() -> list[Patch]:
    return [(Session, "tick", lambda self, mono: [])]


def forgets_what_a_keeper_adopted() -> list[Patch]:
    return [(Session, "keeper_hello", lambda self, executions, mono: [])]


def launches_again_after_a_reboot() -> list[Patch]:
    return [(reconciler, "_restarted", lambda tx, task: False)]


def gives_nothing_back_at_an_end() -> list[Patch]:
    return [
        (placement, "task_ended", lambda tx, key, token: tx.world.agent(key).placed.discard(token))
    ]


def takes_no_slots_after_a_restart() -> list[Patch]:
    return [
        (concurrency_limits, "restore", lambda slots_, ticket, number, pools, released=(): None)
    ]


def asks_for_a_snapshot_once() -> list[Patch]:
    def sync_deadline(tx: Any, key: Any, epoch: int) -> None:
        tx.emit(ListTasks(key))

    return [(reconciler, "sync_deadline", sync_deadline)]


def asks_for_nothing_that_is_owed() -> list[Patch]:
    return [(decide, "restarted", lambda tx: None)]


def waits_by_the_wall_clock() -> list[Patch]:
    return [
        (Transaction, "secs_since", lambda self, at, mono, boot_id: max(0.0, self.now.wall - at))
    ]


def sends_a_stop_once() -> list[Patch]:
    original = dispatch.stop

    def stop(tx: Any, token: Any, wanted: Any) -> None:
        original(tx, token, wanted)
        tx.caused = [
            c
            for c in tx.caused
            if not (isinstance(c.effect, SetTimer) and c.effect.timer == timers.StopReminder(token))
        ]

    return [(dispatch, "stop", stop)]


def calls_a_run_over_its_limit_canceled() -> list[Patch]:
    def time_limit(tx: Any, token: Any) -> None:
        run = termination._live(tx, token.jid, token.serial)
        if run is not None:
            termination._stop(tx, run, token.jid, "timeLimit", by="supervisor")

    return [(termination, "time_limit", time_limit)]


def names_no_job_of_a_lost_agent() -> list[Patch]:
    return [(JobChanges, "decided", lambda self, world, inputs: None)]


def remembers_one_token_of_an_agent() -> list[Patch]:
    return [(agent_fold, "TOKENS_KEPT", 1)]


def takes_silence_for_death() -> list[Patch]:
    original = lifecycle.found

    def found(tx: Any, input_: Any) -> None:
        if input_.state != "gone":
            view = tx.world.agent(input_.key)
            for token in sorted(view.placed):
                task = tx.world.task(token)
                if task is not None and task.pid is not None:
                    reconciler.finish(
                        tx, task, reconciler.ExitInfo(source="lost", detail="planted")
                    )
        original(tx, input_)

    return [(lifecycle, "found", found)]


def purges_what_runs() -> list[Patch]:
    def purge(tx: Any, input_: Any) -> None:
        job = tx.world.jobs.get(input_.jid)
        if job is not None and job.run is not None and job.run.serial == input_.serial:
            tx.emit(retention.RemoveRunDir(job.jid, job.run.serial, job.run.run_dir))

    return [(retention, "purge", purge)]


def queues_anew_in_any_order() -> list[Patch]:
    original = World.restore

    def restore(self: World, jobs: Any, agents: Any) -> None:
        original(self, [(job, -number) for job, number in jobs], agents)

    return [(World, "restore", restore)]


def serves_users_in_the_order_of_submission() -> list[Patch]:
    return [(FairShare, "level", lambda self, account: 0.0)]


def drops_deferred_ends() -> list[Patch]:
    original = DeferredInputs.join

    def join(self: DeferredInputs, inputs: Any) -> Any:
        original(self, inputs)
        return inputs

    return [(DeferredInputs, "join", join)]


#: Each is found within 60 seeds, most in the first.
BUGS: tuple[Callable[[], list[Patch]], ...] = (
    acts_before_it_is_durable,
    forgets_what_a_request_led_to,
    keeps_what_was_decided_on_a_failed_commit,
    tells_no_ends_in_snapshots,
    forgets_what_a_keeper_adopted,
    launches_again_after_a_reboot,
    gives_nothing_back_at_an_end,
    takes_no_slots_after_a_restart,
    asks_for_nothing_that_is_owed,
    sends_a_stop_once,
    names_no_job_of_a_lost_agent,
    remembers_one_token_of_an_agent,
    takes_silence_for_death,
    purges_what_runs,
    queues_anew_in_any_order,
    serves_users_in_the_order_of_submission,
    drops_deferred_ends,
    *GANG_BUGS,
    *HOST_BUGS,
    *HOUR_BUGS,
    *BATCH_BUGS,
    *EXECUTION_BUGS,
    *LEASE_BUGS,
)
#: Bugs that need hundreds of seeds.
RARELY_FOUND: tuple[Callable[[], list[Patch]], ...] = (
    never_repeats_an_end,
    waits_by_the_wall_clock,
    calls_a_run_over_its_limit_canceled,
    asks_for_a_snapshot_once,
    *RARE_GANG_BUGS,
    *RARE_HOST_BUGS,
    *RARE_BATCH_BUGS,
)


@contextmanager
def planted(bug: Callable[[], list[Patch]]) -> Iterator[None]:
    before = [(where, name, getattr(where, name)) for where, name, _ in bug()]
    for where, name, wrong in bug():
        setattr(where, name, wrong)
    try:
        yield
    finally:
        for where, name, right in before:
            setattr(where, name, right)
