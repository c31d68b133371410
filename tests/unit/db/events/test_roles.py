"""Runs with roles in the log: the fold of their events, the messages about them, and the stored
data.
"""

import json
from typing import Any

import pytest
from event_strategies import JID, UID, spec

from jobscribe.db.events.events import (
    AttemptDecided,
    AttemptEnded,
    DependencyEnded,
    JobEvent,
    JobFolded,
    RunEnded,
    RunPurged,
    RunRequested,
    StopRequested,
    TaskEnded,
    TaskHeld,
    TaskPlaced,
    TaskStarted,
    decode,
    encode,
    job_stream,
    schema_of,
    type_of,
)
from jobscribe.db.events.job_fold import ATTEMPTS_KEPT, ATTEMPTS_WHOLE, evolve, fold
from jobscribe.db.events.state import Job, Retrying
from jobscribe.db.maintenance.checkpoints import NOT_KEPT, Rules, checkpoint, trimmed
from jobscribe.db.records.event_text import sentence
from jobscribe.db.records.job_record import record, record_bytes
from jobscribe.db.store.contract import Stored
from jobscribe.diagnosis.exit_table import Diagnosis
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import After, TaskRole

T = 1.7e9
ROLES = (
    TaskRole(name="ps", tasks=2, command=("serve",)),
    TaskRole(name="worker", tasks=3, command=("work",), min_succeeded=3),
)
OTHER = "EPRSuser-simBBB02-command"
USER_FAULT = Diagnosis(
    code=1,
    phrase="UserError",
    type="user",
    behavior="unknown",
    reason="it failed",
    solutions=("mend it",),
)


def token(role: str, index: int = 0, attempt: int = 1, serial: int = 7) -> Token:
    return Token(JID, serial, attempt, role, index)


def seats() -> list[tuple[str, int]]:
    return [(r.name, n) for r in ROLES for n in range(r.tasks)]


def requested(serial: int = 7, **fields: Any) -> RunRequested:
    waits = fields.pop("waits_for", ())
    run = spec(command=(), roles=ROLES, job_run_mode="parallel", **fields)
    return RunRequested(
        at=T, serial=serial, spec=run, run_dir="/r", req_id="request-7", waits_for=waits
    )


def placed(attempt: int = 1, serial: int = 7) -> list[JobEvent]:
    return [
        TaskPlaced(
            at=T + 1,
            token=(t := token(r, n, attempt, serial)),
            agent_key=AgentKey("local", "parallel", UID, f"node{n}"),
            op_id=op_id(t, "run"),
            address=f"10.0.0.{n}",
            ports={"http": (30_000 + n,), "ssh": (31_000 + n,)},
            gpus=(f"GPU-{n}",) if r == "ps" else (),
        )
        for r, n in seats()
    ]


def started(t: Token) -> TaskStarted:
    return TaskStarted(
        at=T + 2, token=t, pid=50 + t.index, start_ticks=5, started_at=T + 2, host="h", boot_id="b"
    )


def ended(
    t: Token,
    at: float = T + 3,
    code: int | None = 0,
    diagnosis: Diagnosis | None = None,
    **exit_: Any,
) -> TaskEnded:
    return TaskEnded(at=at, token=t, exit=ExitInfo(code=code, **exit_), diagnosis=diagnosis)


def success() -> list[JobEvent]:
    """Three workers succeed, which completes the attempt, and the servers are stopped."""
    workers = [token("worker", n) for n in range(3)]
    return [
        requested(),
        *placed(),
        *(started(token(r, n)) for r, n in seats()),
        *(ended(t, T + 3 + t.index) for t in workers),
        AttemptDecided(
            at=T + 5,
            serial=7,
            attempt=1,
            succeeded=True,
            reason="[worker]: enough",
            role="worker",
            index=2,
        ),
        *(ended(token("ps", n), T + 6, None, signal=15, stop_reason="decided") for n in (0, 1)),
        AttemptEnded(at=T + 6, serial=7, attempt=1, reason="exit"),
        RunEnded(at=T + 6, serial=7, status="completed", reason="exit"),
    ]


def failure() -> list[JobEvent]:
    """One worker fails, is held and released, and the attempt fails; the next attempt fails, too."""
    bad = token("worker", 1)
    fault = ExitInfo(code=3)
    again = Retrying(at=T + 9, delay_secs=2.0, behavior="unknown", reason="once more")
    events: list[JobEvent] = [
        requested(retry=None, debug_secs=9.0),
        *placed(),
        started(bad),
        ended(token("worker", 0)),
        TaskHeld(at=T + 3, token=bad, exit=fault, secs=9.0, diagnosis=USER_FAULT),
        ended(bad, T + 8, 3, USER_FAULT),
        AttemptDecided(
            at=T + 8,
            serial=7,
            attempt=1,
            succeeded=False,
            reason="[worker]: failed",
            role="worker",
            index=1,
        ),
        *(
            ended(token(r, n), T + 9, None, signal=15, stop_reason="decided")
            for r, n in seats()
            if (r, n) not in (("worker", 0), ("worker", 1))
        ),
        AttemptEnded(at=T + 9, serial=7, attempt=1, reason="exit", retry=again),
        *placed(2),
        *(ended(token(r, n, 2), T + 20, 4) for r, n in seats()),
        AttemptEnded(at=T + 20, serial=7, attempt=2, reason="exit", not_retried="each was used"),
        RunEnded(at=T + 20, serial=7, status="error", reason="exit", error="worker/1: exit code 4"),
    ]
    return events


HISTORIES = {"success": success(), "failure": failure()}


@pytest.mark.parametrize("which", HISTORIES)
def test_every_event_is_stored_as_it_is(which: str) -> None:
    for event in HISTORIES[which]:
        assert decode(type_of(event), schema_of(event), encode(event)) == event


@pytest.mark.parametrize("which", HISTORIES)
def test_folded_into_a_checkpoint_it_is_the_same_job(which: str) -> None:
    history = HISTORIES[which]
    job = fold(JID, history)
    assert not job.busy
    rows = [Stored(n, job_stream(JID), n, e) for n, e in enumerate(history, 1)]
    folded = checkpoint(job_stream(JID), rows, Rules(before=1e12, history=10, at=T + 99))
    assert folded is not None and isinstance(folded.row.event, JobFolded)
    event = decode("JobFolded", schema_of(folded.row.event), encode(folded.row.event))
    went_on = evolve(Job(jid=JID), event)  # type: ignore[arg-type]
    assert went_on == job and record_bytes(went_on, 9, T) == record_bytes(job, 9, T)


@pytest.mark.parametrize("which", HISTORIES)
def test_of_a_purged_run_neither_roles_nor_attempts_are_kept_and_that_it_failed_is(
    which: str,
) -> None:
    job = trimmed(fold(JID, [*HISTORIES[which], RunPurged(at=T + 99, serial=7)]), 10)
    assert job.run is not None
    assert (job.run.attempts, job.run.spec.roles, job.run.spec.after) == ((), (), ())
    assert job.run.error == (NOT_KEPT if which == "failure" else None)
    assert trimmed(job, 10) == job and record(job, 1, T)["roles"] is None


def test_at_every_moment_it_is_known_what_stands_for_the_run() -> None:
    job, seen = Job(jid=JID), []
    for event in failure():
        job = evolve(job, event)
        assert job.run is not None
        telling = job.run.telling
        state = (
            job.status,
            None
            if telling is None
            else (telling.token.attempt, telling.token.role, telling.token.index),
            job.run.attempt,
        )
        if not seen or seen[-1] != state:
            seen.append(state)
    assert seen == [
        ("pending", None, 0),
        ("pending", None, 1),
        ("running", None, 1),
        ("running", (1, "worker", 0), 1),
        ("running", (1, "worker", 1), 1),
        ("pending", (1, "worker", 1), 1),
        ("pending", (1, "worker", 1), 2),
        ("pending", (2, "ps", 0), 2),
        ("error", (2, "ps", 0), 2),
    ]
    assert job.run is not None and job.run.exit is not None and job.run.exit.code == 4
    assert job.run.started_at == T + 2 and job.run.ended_at == T + 20


def test_the_deciding_task_stands_for_the_run_and_not_who_was_stopped() -> None:
    run = fold(JID, success()).run
    assert run is not None and run.telling is not None and run.telling.token == token("worker", 2)
    assert run.exit is not None and run.exit.ok and run.diagnosis is None
    failed = fold(JID, failure()[:-9]).run
    assert failed is not None and failed.diagnosis == USER_FAULT


def test_of_many_attempts_the_last_are_kept_whole_and_a_number_of_them_at_all() -> None:
    job = fold(JID, [requested()])
    counts = []
    for number in range(1, ATTEMPTS_WHOLE + 4):
        again = Retrying(at=T, delay_secs=0.0, behavior="unknown", reason="again")
        for event in (
            *placed(number),
            *(ended(token(r, n, number), code=1) for r, n in seats()),
            AttemptEnded(at=T, serial=7, attempt=number, reason="exit", retry=again),
        ):
            job = evolve(job, event)
        assert job.run is not None
        counts.append(sum(bool(a.tasks) for a in job.run.attempts))
        assert [a.number for a in job.run.attempts] == list(range(1, number + 1))
    assert counts == [*range(1, ATTEMPTS_WHOLE + 1), *[ATTEMPTS_WHOLE] * 3]
    assert job.run is not None and all(a.retry is not None for a in job.run.attempts), (
        "what was counted is kept"
    )
    before = job
    for event in (ended(token("ps", 0, 1), code=9), started(token("ps", 0, 1))):
        job = evolve(job, event)
    assert (
        job.run is not None and before.run is not None and job.run.attempts == before.run.attempts
    )
    for number in range(ATTEMPTS_WHOLE + 4, ATTEMPTS_KEPT + 4):
        job = evolve(evolve(job, placed(number)[0]), ended(token("ps", 0, number), code=1))
    assert job.run is not None
    assert (len(job.run.attempts), job.run.attempts[0].number, job.run.attempt) == (
        ATTEMPTS_KEPT,
        4,
        ATTEMPTS_KEPT + 3,
    )


def test_a_run_that_another_one_took_the_place_of_keeps_what_its_tasks_hold_until_they_are_over() -> (
    None
):
    stop = StopRequested(at=T + 2, serial=7, reason="cancel", by=UID, grace_secs=1.0)
    over = RunEnded(at=T + 2, serial=7, status="canceled", reason="cancel")
    job = fold(
        JID, [requested(at_once=3), *placed(), ended(token("ps", 0)), stop, over, requested(8)]
    )
    (past,) = job.history
    assert (past.roles, past.at_once, len(past.live_tasks)) == (ROLES, 3, 4) and past.exit_code == 0
    for n, (r, index) in enumerate(seats()[1:]):
        assert job.busy and job.history[0].roles == ROLES
        job = evolve(job, ended(token(r, index), code=None, signal=15))
        assert len(job.history[0].live_tasks) == 3 - n
    assert (job.history[0].roles, job.history[0].at_once) == ((), None)
    whole = fold(JID, [*success(), requested(8)])
    assert (whole.history[0].roles, whole.history[0].at_once) == ((), None)


def test_waits_are_struck_one_run_at_a_time() -> None:
    waits = tuple(
        After(compute_jid=OTHER, compute_job_serial=s, on=on)
        for s, on in ((1, "ok"), (1, "any"), (2, "ok"))
    )
    job = fold(JID, [requested(waits_for=waits)])
    assert (
        record(job, 1, T)["queueState"] == "dependency" and len(record(job, 1, T)["waitsFor"]) == 3
    )
    job = evolve(
        job,
        DependencyEnded(
            at=T, serial=7, compute_jid=OTHER, compute_job_serial=1, status="completed"
        ),
    )
    assert job.run is not None and job.run.waits_for == waits[2:]
    assert (
        evolve(
            job,
            DependencyEnded(
                at=T, serial=6, compute_jid=OTHER, compute_job_serial=2, status="completed"
            ),
        ).run
        == job.run
    )


def test_the_record_of_a_run_with_roles() -> None:
    history = success()
    decided = next(n for n, e in enumerate(history) if isinstance(e, AttemptDecided))
    on_file = json.loads(record_bytes(fold(JID, history[: decided + 2]), 9, T))
    assert on_file["roles"] == {
        "ps": {
            "tasks": 2,
            "placed": 0,
            "running": 1,
            "held": 0,
            "succeeded": 0,
            "failed": 0,
            "stopped": 1,
        },
        "worker": {
            "tasks": 3,
            "placed": 0,
            "running": 0,
            "held": 0,
            "succeeded": 3,
            "failed": 0,
            "stopped": 0,
        },
    }
    assert (on_file["queueState"], on_file["status"]) == ("stopping", "running")
    (attempt,) = on_file["attempts"]
    assert attempt["decided"] == {
        "at": T + 5,
        "succeeded": True,
        "reason": "[worker]: enough",
        "role": "worker",
        "index": 2,
    }
    server = attempt["tasks"][0]
    assert (server["role"], server["index"], server["state"], server["address"]) == (
        "ps",
        0,
        "stopped",
        "10.0.0.0",
    )
    assert (server["ports"], server["gpus"]) == ({"http": [30_000], "ssh": [31_000]}, ["GPU-0"])
    assert server["exit"]["stopReason"] == "decided"


@pytest.mark.parametrize(
    ("upto", "state", "states"),
    [
        (1, "queued", []),
        (6, "starting", ["placed"] * 5),
        (7, None, ["placed"] * 3 + ["running", "placed"]),
        (9, None, ["placed"] * 2 + ["succeeded", "held", "placed"]),
        (11, "stopping", ["placed"] * 2 + ["succeeded", "failed", "placed"]),
        (15, "retry_wait", ["stopped"] * 2 + ["succeeded", "failed", "stopped"]),
        (20, "starting", ["placed"] * 5),
        (27, None, ["failed"] * 5),
    ],
)
def test_the_record_says_where_it_is_at_every_moment(
    upto: int, state: str | None, states: list[str]
) -> None:
    on_file = record(fold(JID, failure()[:upto]), 1, T)
    assert (
        on_file["queueState"],
        [t["state"] for t in (on_file["attempts"] or [{"tasks": []}])[-1]["tasks"]],
    ) == (state, states)


def test_the_record_says_what_it_means_and_that_nothing_follows() -> None:
    on_file = record(fold(JID, failure()), 1, T)
    assert [(a["reason"], a["retry"], a["notRetried"]) for a in on_file["attempts"]] == [
        ("exit", {"behavior": "unknown", "delaySecs": 2.0, "reason": "once more"}, None),
        ("exit", None, "each was used"),
    ]
    kept = on_file["attempts"][0]["tasks"][3]
    assert kept["heldUntil"] is None and kept["diagnosis"]["phrase"] == "UserError"
    assert (
        record(fold(JID, failure()[:9]), 1, T)["attempts"][0]["tasks"][3]["heldUntil"]
        == T + 3 + 9.0
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            requested(waits_for=(After(compute_jid=OTHER),)),
            "(request request-7): 2 x ps, 3 x worker; waits for 1 other run",
        ),
        (
            DependencyEnded(
                at=T, serial=7, compute_jid=OTHER, compute_job_serial=3, status="error"
            ),
            f"run 7 no longer waits for run 3 of {OTHER}, which is error",
        ),
        (
            TaskHeld(at=T, token=token("worker", 1), exit=ExitInfo(code=3), secs=9.0),
            "task worker/1 of run 7 attempt 1 failed and is held for 9 s for debugging: exit code 3",
        ),
        (
            ended(token("worker", 1), code=3, diagnosis=USER_FAULT),
            "task worker/1 of run 7 attempt 1 ended: exit code 3 (UserError, user)",
        ),
        (
            ended(token("ps", 1), code=None, signal=15, stop_reason="decided"),
            "task ps/1 of run 7 attempt 1 ended: ended by signal 15 (SIGTERM), stopped by jobscribe (decided)",
        ),
        (
            AttemptDecided(
                at=T, serial=7, attempt=1, succeeded=True, reason="enough", role="worker", index=2
            ),
            "run 7 attempt 1 decided by worker/2, success: enough",
        ),
        (
            AttemptDecided(at=T, serial=7, attempt=2, succeeded=False, reason="too many"),
            "run 7 attempt 2 decided, failure: too many",
        ),
        (failure()[14], "run 7 attempt 1 ended: exit; next attempt in 2 s: once more"),
        (failure()[25], "run 7 attempt 2 ended: exit; no retry: each was used"),
    ],
)
def test_the_story_says_it(event: JobEvent, said: str) -> None:
    assert sentence(event).endswith(said)
