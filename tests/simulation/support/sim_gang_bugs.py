"""Planted bugs for gangs, attempts, policies, holds and dependencies (see `sim_bugs`)."""

from collections.abc import Callable
from typing import Any

import msgspec

from jobscribe.diagnosis.exit_table import Diagnosis
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.effects import SetTimer
from jobscribe.supervisor.core.resources import gang_allocator, node_pool
from jobscribe.supervisor.core.resources.limit_pools import ArrayPool, LimitPool
from jobscribe.supervisor.core.runs import attempts, debug_hold, dependencies, termination
from jobscribe.supervisor.core.runs.attempt_policies import Verdict
from jobscribe.supervisor.core.scheduling import dispatch, gang_placement
from jobscribe.supervisor.core.state.world import World

Patch = tuple[Any, str, Any]


def places_less_than_the_gang() -> list[Patch]:
    original = gang_placement._place

    def place(tx: Any, ticket: Any, run: Any, hold: Any) -> Any:
        if len(hold.places) == 1:
            return original(tx, ticket, run, hold)
        hold.places = hold.places[:-1]
        launch, dispatch.launch = dispatch.launch, lambda tx, key, tokens: None
        try:
            return original(tx, ticket, run, hold)
        finally:
            dispatch.launch = launch

    return [(gang_placement, "_place", place)]


def keeps_what_a_task_had() -> list[Patch]:
    return [(gang_placement, "task_ended", lambda tx, key, token: None)]


def forgets_what_gangs_have_at_a_restart() -> list[Patch]:
    return [(gang_allocator, "record_placed", lambda *_: None)]


def gives_cores_twice() -> list[Patch]:
    original = node_pool._add_usage

    def add(books: Any, role: Any, place: Any, sign: int) -> None:
        original(books, msgspec.structs.replace(role, cpu=role.cpu // 2), place, sign)

    return [(node_pool, "_add_usage", add)]


def gives_a_port_twice() -> list[Patch]:
    def next_ports(node: Any, books: Any, count: int, but: Any = ()) -> list[int]:
        return [p for p in node.ports if p not in books.avoided and p not in but][:count]

    return [(node_pool, "_next_ports", next_ports)]


def starts_the_next_attempt_too_early() -> list[Patch]:
    return [
        (
            attempts,
            "SetTimer",
            lambda timer, secs: SetTimer(
                timer, 0.0 if isinstance(timer, timers.AttemptRetry) else secs
            ),
        )
    ]


def tries_again_without_counting() -> list[Patch]:
    original = attempts.again
    return [
        (
            attempts,
            "again",
            lambda policy, behavior, before, chance: original(policy, behavior, (), chance),
        )
    ]


def tries_again_what_cannot_help() -> list[Patch]:
    original = attempts.again

    def again(policy: Any, behavior: Any, before: Any, chance: float) -> Any:
        return original(policy, "unknown" if behavior == "permanent" else behavior, before, chance)

    return [(attempts, "again", again)]


def fails_at_the_first_failure() -> list[Patch]:
    original = attempts.decided

    def decided(roles: Any, finals: Any) -> Any:
        if not finals[-1].ok:
            return Verdict(
                succeeded=False, reason="planted", role=finals[-1].role, index=finals[-1].index
            )
        return original(roles, finals)

    return [(attempts, "decided", decided)]


def waits_for_all_to_succeed() -> list[Patch]:
    original = attempts.decided

    def decided(roles: Any, finals: Any) -> Any:
        return original(
            tuple(msgspec.structs.replace(r, min_succeeded=None) for r in roles), finals
        )

    return [(attempts, "decided", decided)]


def leaves_the_others_of_a_decided_attempt() -> list[Patch]:
    return [(attempts, "_stop_others", lambda tx, run, attempt: None)]


def takes_what_was_stopped_for_a_success() -> list[Patch]:
    return [(ExitInfo, "succeeded", property(lambda self: self.code == 0))]


def keeps_what_the_platform_did() -> list[Patch]:
    original = debug_hold.is_wanted

    def wanted(tx: Any, task: Any, exit_: Any, diagnosis: Diagnosis | None) -> bool:
        other = None if diagnosis is None else msgspec.structs.replace(diagnosis, type="unknown")
        return original(tx, task, exit_, other)

    return [(debug_hold, "is_wanted", wanted)]


def forgets_holds_at_a_restart() -> list[Patch]:
    return [(debug_hold, "arm", lambda tx, job: None)]


def gives_back_what_is_kept() -> list[Patch]:
    original = debug_hold.hold

    def keep(tx: Any, task: Any, exit_: Any, diagnosis: Any) -> None:
        original(tx, task, exit_, diagnosis)
        gang_placement.task_ended(tx, task.agent_key, task.token)

    return [(debug_hold, "hold", keep)]


def ends_a_hold_with_another_exit() -> list[Patch]:
    original = attempts.task_ended

    def over(tx: Any, task: Any, exit_: Any, diagnosis: Any) -> None:
        lost = ExitInfo(source="lost", detail="planted")
        original(tx, task, lost if task.held is not None else exit_, diagnosis)

    return [(attempts, "task_ended", over)]


def begins_while_what_it_waits_for_runs() -> list[Patch]:
    original = dependencies._ended

    def ended(job: Any, serial: int) -> str | None:
        run = job.run
        if run is not None and run.serial == serial and run.attempts:
            return "completed"
        return original(job, serial)

    return [(dependencies, "_ended", ended)]


def tells_followers_nothing_after_a_restart() -> list[Patch]:
    return [(dependencies, "schedule_all", lambda tx: None)]


def takes_no_turn_in_an_array() -> list[Patch]:
    original = World.pools_of

    def pools_of(self: World, key: Any, ticket: Any) -> tuple[LimitPool, ...]:
        return tuple(p for p in original(self, key, ticket) if not isinstance(p, ArrayPool))

    return [(World, "pools_of", pools_of)]


def goes_on_after_a_cancel() -> list[Patch]:
    """Ignore a cancel between two attempts, as if the run were over."""
    original = termination._stop

    def stop(tx: Any, run: Any, jid: str, reason: str, **fields: Any) -> None:
        if run.retry is None:
            original(tx, run, jid, reason, **fields)

    return [(termination, "_stop", stop)]


def loses_word_of_a_hold() -> list[Patch]:
    """Never repeat an unanswered query about a held task."""
    return [
        (
            gang_placement,
            "SetTimer",
            lambda timer, secs: SetTimer(
                timers.ReservationRetry(*msgspec.structs.astuple(timer))
                if isinstance(timer, timers.ReservationDeadline)
                else timer,
                secs,
            ),
        )
    ]


#: Each is found within 60 seeds, most in the first.
GANG_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    places_less_than_the_gang,
    keeps_what_a_task_had,
    forgets_what_gangs_have_at_a_restart,
    gives_cores_twice,
    gives_a_port_twice,
    starts_the_next_attempt_too_early,
    tries_again_without_counting,
    tries_again_what_cannot_help,
    fails_at_the_first_failure,
    waits_for_all_to_succeed,
    leaves_the_others_of_a_decided_attempt,
    keeps_what_the_platform_did,
    gives_back_what_is_kept,
    ends_a_hold_with_another_exit,
    begins_while_what_it_waits_for_runs,
    takes_no_turn_in_an_array,
    goes_on_after_a_cancel,
    loses_word_of_a_hold,
)
#: Bugs that need many seeds.
RARE_GANG_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    takes_what_was_stopped_for_a_success,
    tells_followers_nothing_after_a_restart,
    forgets_holds_at_a_restart,
)
