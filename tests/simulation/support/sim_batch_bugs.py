"""Planted bugs in the code for runs on clusters."""

from collections.abc import Callable
from typing import Any

import msgspec
from sim_gang_bugs import Patch

from jobscribe.db.events.events import TaskSubmitted
from jobscribe.supervisor.core.agents import lifecycle
from jobscribe.supervisor.core.runs import attempts, reconciler, termination
from jobscribe.supervisor.core.state import cluster_assignment
from jobscribe.supervisor.core.status import batch_status


def hears_no_sign_in() -> list[Patch]:
    return [(lifecycle, "signed_in", lambda tx, key: None)]


def forgets_a_sign_in_that_was_faster_than_the_answer() -> list[Patch]:
    original = lifecycle._signed_out

    def signed_out(tx: Any, view: Any, sentence: str) -> None:
        view.signed_in = False
        original(tx, view, sentence)

    return [(lifecycle, "_signed_out", signed_out)]


def keeps_what_schedulers_said() -> list[Patch]:
    original = attempts.task_ended

    def ended(tx: Any, task: Any, exit_: Any, diagnosis: Any) -> None:
        report = tx.world.batch.get(task.token)
        original(tx, task, exit_, diagnosis)
        if report is not None:
            tx.world.batch[task.token] = report

    return [(attempts, "task_ended", ended)]


def records_a_batch_job_at_every_word() -> list[Patch]:
    def heard(tx: Any, task: Any, said: Any) -> None:
        tx.world.batch[task.token] = said
        if said.job_id is not None:
            tx.record(task.token.jid, TaskSubmitted(at=tx.now.wall, token=task.token, batch=said))

    return [(reconciler, "_batch_reported", heard)]


def calls_known_what_its_scheduler_does_not_say() -> list[Patch]:
    return [(batch_status, "unknown_since", lambda world, tasks: None)]


def gives_up_a_queue_limit_where_slurm_s_queue_begins() -> list[Patch]:
    return [(cluster_assignment, "queue_limit_continues", lambda policy, run: False)]


def forgets_a_queue_limit_over_a_restart() -> list[Patch]:
    original = termination.arm

    def arm(tx: Any, job: Any) -> None:
        if job.run is None or not job.run.attempts:
            original(tx, job)

    return [(termination, "arm", arm)]


def sends_wishes_for_another_cluster() -> list[Patch]:
    return [
        (
            cluster_assignment,
            "batch_request",
            lambda spec, host: cluster_assignment.BatchRequest(cluster="other"),
        )
    ]


def counts_what_a_cluster_takes_back_as_its_own_failure() -> list[Patch]:
    original = reconciler.diagnose

    def diagnose(exit_: Any, table: Any) -> Any:
        return original(msgspec.structs.replace(exit_, batch=msgspec.UNSET), table)

    return [(reconciler, "diagnose", diagnose)]


BATCH_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    hears_no_sign_in,
    forgets_a_sign_in_that_was_faster_than_the_answer,
    keeps_what_schedulers_said,
    records_a_batch_job_at_every_word,
    calls_known_what_its_scheduler_does_not_say,
    gives_up_a_queue_limit_where_slurm_s_queue_begins,
    forgets_a_queue_limit_over_a_restart,
    sends_wishes_for_another_cluster,
)
#: Needs about fifty seeds.
RARE_BATCH_BUGS: tuple[Callable[[], list[Patch]], ...] = (
    counts_what_a_cluster_takes_back_as_its_own_failure,
)
