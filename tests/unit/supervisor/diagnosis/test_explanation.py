"""Explanations of run states: a sentence for each cause, and its evidence."""

import pytest

from jobscribe.db.events.state import Job
from jobscribe.diagnosis.causes import CAUSES
from jobscribe.diagnosis.exit_table import Diagnosis
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.protocol.jobs.roles import Retry
from jobscribe.protocol.wire.messages import KeeperReport
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import DriverFailed
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis.containers import is_command
from jobscribe.supervisor.diagnosis.explanation import why
from jobscribe.supervisor.diagnosis.phrases import resume_keeper_command
from jobscribe.supervisor.diagnosis.surroundings import Surroundings


def ask(stage, folder=None, since=None, n=1, **kwargs):
    job = stage.job(n)
    return why(
        status(stage.world, job, 1, stage.now(), **kwargs),
        job,
        Surroundings(folder=folder, store_fails_since=since),
    )


def ended(kit, exit_=None, **fields):
    stage = kit.Stage()
    stage.submit(**fields)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    if exit_ is not None:
        stage.reports(kit.replace(kit.ended(token), exit=exit_))
    return stage


def test_there_is_none(stage, kit):
    job = Job(jid=kit.jid_of())
    answer = why(status(stage.world, job, 0, stage.now()), job)
    assert (answer["cause"], answer["sentence"]) == ("missing", "no such run (noRun)")
    stage.submit()
    assert ask(stage, hash_="0" * 32)["sentence"] == "no such run (computeJobHash-mismatch)"


def test_it_waits(stage, kit):
    stage.submit()
    answer = ask(stage)
    assert answer["cause"] == "agent"
    since = "since 2023-11-14 22:13:20 UTC"
    assert (
        answer["sentence"]
        == f"not started: its agent is being started, try 1 of 3, {since} ({kit.key_of()})"
    )
    assert answer["try"]
    assert answer["logs"] == []


def test_it_runs(kit):
    stage = ended(kit)
    answer = ask(stage, "/agent/run/x")
    assert answer["cause"] == "running"
    assert answer["sentence"] == "running since 2023-11-14 22:13:20 UTC as pid 100 on node1"
    assert answer["try"] == [f"jobscribe job logs -f {kit.jid_of()}"]
    assert answer["logs"][0] == "/agent/run/x/stdout.log"


def test_nobody_knows(kit):
    stage = ended(kit)
    stage.pass_time(60)
    stage.disconnect()
    assert ask(stage)["evidence"] == [
        "no contact with its agent since 2023-11-14 22:14:20 UTC; this answer shows the last known state",
    ]
    stage.world.agents.clear()
    assert "since ?" in ask(stage)["evidence"][0]


def test_a_keeper_that_does_not_answer_is_named_with_its_remedy(kit):
    stage = kit.Stage()
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    stage.says(KeeperReport(answers=False, since=kit.WALL))
    answer = ask(stage)
    assert answer["evidence"] == [
        "its keeper, pid 9 on node1, does not answer, since 2023-11-14 22:13:20 UTC; this answer shows the last known state",
    ]
    assert answer["try"][0].startswith("kill -CONT 9   # on node1, if 'ps -o stat= -p 9' shows T")
    stage.submit(2)
    answer = ask(stage, n=2)
    assert (
        answer["cause"] == "agent"
        and "its keeper, pid 9 on node1" in answer["sentence"]
        and answer["try"][0].startswith("kill -CONT 9 ")
    )
    assert resume_keeper_command(1, "c1").startswith("docker kill --signal=CONT CONTAINER")


def test_a_store_that_cannot_be_written_is_not_an_agent_that_is_silent(kit):
    stage = ended(kit)
    stage.disconnect()
    answer = ask(stage, since=stage.wall - 5)
    assert [line.split(" since ")[0] for line in answer["evidence"]] == [
        "the event store cannot be written"
    ]
    assert answer["try"][0].startswith("jobscribe health ")
    over = ended(kit, ExitInfo(code=3))
    assert "event store" not in str(ask(over, since=over.wall - 5)) or over.job().run.busy


@pytest.mark.parametrize(
    ("exit_", "reason", "cause", "confidence", "sentence"),
    [
        (ExitInfo(code=0), "exit", "completed", "certain", "completed with exit code 0"),
        (ExitInfo(code=3), "exit", "exit", "certain", "failed with exit code 3"),
        (
            ExitInfo(code=126),
            "exit",
            "notExecutable",
            "likely",
            "failed with exit code 126 (the command was found but cannot be executed)",
        ),
        (
            ExitInfo(code=127),
            "exit",
            "notFound",
            "likely",
            "failed with exit code 127 (the command was not found)",
        ),
        (
            ExitInfo(code=137),
            "exit",
            "exit",
            "possible",
            "failed with exit code 137 (a shell returns 137 if SIGKILL killed its command; a program can also return it itself)",
        ),
        (
            ExitInfo(signal=11),
            "signal",
            "crash",
            "certain",
            "killed by SIGSEGV (not sent by jobscribe)",
        ),
        (
            ExitInfo(source="start", detail="no directory"),
            "startFailed",
            "startFailed",
            "certain",
            "could not be started: no directory",
        ),
        (
            ExitInfo(source="lost", detail="gone"),
            "lost",
            "lost",
            "unknown",
            "exit status unknown: gone",
        ),
        (
            ExitInfo(code=0, stop_reason="timeLimit"),
            "timeLimit",
            "timeLimit",
            "certain",
            "stopped by its time limit of 9 s",
        ),
    ],
)
def test_it_ended(kit, exit_, reason, cause, confidence, sentence):
    answer = ask(ended(kit, exit_, time_limit_secs=9.0))
    assert (answer["reason"], answer["cause"], answer["confidence"], answer["sentence"]) == (
        reason,
        cause,
        confidence,
        sentence,
    )
    logs = [f"jobscribe job logs --stderr {kit.jid_of()}"] if answer["state"] == "error" else []
    usual = (
        []
        if cause == "completed"
        else [line.replace(" JOB", f" {kit.jid_of()}") for line in CAUSES[cause].todo]
    )
    assert answer["try"] == [*usual, *logs]
    assert (answer["attempt"], answer["index"]) == (1, 0)
    assert (
        answer["evidence"][0]
        == f"exit: {exit_.sentence()} (reported by the {'supervisor' if exit_.source == 'lost' else exit_.source})"
    )


def test_the_evidence_of_an_exit(kit):
    exit_ = ExitInfo(
        code=1,
        max_rss_bytes=50 * 2**20,
        survivors_killed=2,
        dropped_bytes=77,
        last_lines="boom",
        termination_message="disk quota",
    )
    answer = ask(ended(kit, exit_))
    assert (answer["lastLines"], answer["terminationMessage"]) == ("boom", "disk quota")
    assert answer["evidence"][1:] == [
        "largest memory of one process: 50 MiB",
        "2 processes outlived the main process and were killed",
        "77 bytes of output were dropped",
    ]
    assert answer["not"] == ["canceled by anyone", "a time limit"]


def test_canceled_with_and_without_a_note(kit):
    stage = ended(kit)
    stage.cancel()
    answer = ask(stage)
    assert answer["sentence"] == "canceled by user0001"
    assert "its own exit" in answer["not"]
    stop = kit.replace(stage.job().run.stop, note="wrong input")
    job = kit.replace(stage.job(), run=kit.replace(stage.job().run, stop=stop))
    assert (
        why(status(stage.world, job, 1, stage.now()), job)["sentence"]
        == "canceled by user0001: wrong input"
    )
    job = kit.replace(job, run=kit.replace(job.run, stop=None))
    assert why(status(stage.world, job, 1, stage.now()), job)["sentence"] == "canceled"


def test_limits(stage, kit):
    stage.submit(queue_limit_secs=3.0)
    stage.fire(timers.QueueLimit(kit.jid_of(), stage.job().run.serial))
    assert ask(stage)["sentence"] == "waited longer than its queue limit and never started"


def test_a_time_limit_of_the_house(kit):
    stage = kit.Stage(time_limit_secs=8.0)
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token), kit.ended(token, None, signal=15, stop_reason="timeLimit"))
    assert "time limit" in ask(stage)["sentence"]


def test_its_agent_could_not_be_started(stage, kit):
    stage.submit()
    for attempt in (1, 2, 3):
        stage.tell(DriverFailed(kit.key_of(), attempt, "no room"))
        stage.fire(timers.AgentStartRetry(kit.key_of(), attempt))
    answer = ask(stage)
    assert answer["sentence"] == "its agent could not be started: no room"
    assert answer["not"] == ["a fault of the job: it never started"]


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("startFailed", "could not be started"),
        ("agentStartFailed", "its agent could not be started"),
        ("lost", "exit status unknown"),
        ("exit", "failed"),
    ],
)
def test_a_run_that_says_nothing_of_itself(stage, kit, reason, sentence):
    """The record is old or truncated: it has no exit and no error."""
    stage.submit()
    job = kit.replace(
        stage.job(), run=kit.replace(stage.job().run, status="error", reason=reason, ended_at=1.0)
    )
    assert why(status(stage.world, job, 1, stage.now()), job)["sentence"] == sentence


def test_a_run_of_before_is_not_explained_by_the_run_of_now(stage, kit):
    """The request names the earlier run's serial while the next run waits."""
    stage.submit()
    serial = stage.job().run.serial
    stage.cancel()
    stage.submit(force=True)
    answer = ask(stage, serial=serial)
    assert answer["state"] == "canceled"
    assert (answer["reason"], answer["cause"], answer["confidence"]) == (
        "cancel",
        "canceled",
        "certain",
    )
    assert "has not started" not in answer["sentence"]


@pytest.mark.parametrize(
    ("exit_", "sentence", "evidence", "denied"),
    [
        (
            ExitInfo(signal=9, out_of_memory=True),
            "killed by SIGKILL (not sent by jobscribe): memory ran out",
            "the kernel's own count",
            "",
        ),
        (
            ExitInfo(code=137, out_of_memory=True),
            "failed with exit code 137",
            "memory ran out",
            "",
        ),
        (
            ExitInfo(code=0, out_of_memory=True),
            "completed with exit code 0, but memory ran out, so the kernel killed one of its processes",
            "memory ran out",
            "",
        ),
        (
            ExitInfo(signal=9, out_of_memory=False),
            "killed by SIGKILL",
            "",
            "out of memory: the kernel killed no process",
        ),
        (
            ExitInfo(signal=9),
            "killed by SIGKILL",
            "unknown whether memory ran out",
            "",
        ),
        (ExitInfo(code=1, out_of_memory=False), "failed with exit code 1", "", ""),
    ],
)
def test_whether_memory_ran_out(kit, exit_, sentence, evidence, denied):
    answer = ask(ended(kit, exit_))
    assert answer["sentence"].startswith(sentence)
    assert evidence in " ".join(answer["evidence"][1:]) and (
        evidence or "memory" not in " ".join(answer["evidence"][1:])
    )
    assert (
        any(denied in d for d in answer["not"])
        if denied
        else "memory" not in " ".join(answer["not"])
    )
    assert any("more memory" in t for t in answer["try"]) is (exit_.out_of_memory is True)
    if exit_.code == 0:
        assert answer["state"] == "completed"


# ---- in its own container


def contained(kit, exit_, image="python:3.11"):
    """Return the answer for a one-task run that ended with `exit_` in a container on host h1."""
    stage = kit.Stage(nodes={"local": (kit.node(cpu=4),)})
    (token,) = stage.placed(kit.role("main", 1, image=image))
    stage.reports(kit.running(token), key=kit.key_of(kind="parallel"))
    if exit_ is not None:
        stage.reports(kit.replace(kit.ended(token), exit=exit_), key=kit.key_of(kind="parallel"))
    run = stage.job().run
    place = AgentKey("docker", "container", kit.UID, "h1")
    tasks = tuple(kit.replace(t, agent_key=place) for t in run.attempts[-1].tasks)
    job = kit.replace(
        stage.job(), run=kit.replace(run, attempts=(kit.replace(run.attempts[-1], tasks=tasks),))
    )
    return why(status(stage.world, job, 1, stage.now()), job)


def test_it_runs_in_its_agents_container(kit):
    stage = ended(kit)
    job = stage.job()
    (task,) = job.run.attempts[-1].tasks
    task = kit.replace(
        task, agent_key=AgentKey("docker", "sequential", kit.UID, "h1"), host="3e6d438cd021"
    )
    job = kit.replace(
        job, run=kit.replace(job.run, attempts=(kit.replace(job.run.attempts[-1], tasks=(task,)),))
    )
    assert why(status(stage.world, job, 1, stage.now()), job)["sentence"].endswith(
        " as pid 100 in container 3e6d438cd021 on h1"
    )


CONTAINER = "container: image python:3.11, on h1"


def test_a_container_that_was_killed_by_somebody_else(kit):
    answer = contained(
        kit,
        ExitInfo(
            signal=9,
            source="engine",
            out_of_memory=False,
            detail="its container was ended from outside",
        ),
    )
    assert answer["sentence"] == (
        "killed by SIGKILL (not sent by jobscribe; 'docker kill' or a stopping Docker engine sends it)"
    )
    assert (
        answer["evidence"][0]
        == "exit: ended by signal 9 (SIGKILL) (reported by the container engine of h1)"
    )
    assert {CONTAINER, "its container was ended from outside"} <= set(answer["evidence"]) and any(
        "out of memory" in n for n in answer["not"]
    )
    assert any(
        t.startswith(
            f"docker events --since 24h --filter label=jobscribe.jid={kit.jid_of()}   # on h1"
        )
        for t in answer["try"]
    )


@pytest.mark.parametrize(
    ("exit_", "sentence", "completed"),
    [
        (
            ExitInfo(signal=9, source="engine", out_of_memory=True),
            "killed by SIGKILL (not sent by jobscribe): memory ran out",
            False,
        ),
        (
            ExitInfo(code=3, source="engine", out_of_memory=True),
            "failed with exit code 3: memory ran out",
            False,
        ),
        (
            ExitInfo(code=0, source="engine", out_of_memory=True),
            "but memory ran out, so the kernel killed one of its processes",
            True,
        ),
    ],
)
def test_a_container_in_which_memory_ran_out(kit, exit_, sentence, completed):
    answer = contained(kit, exit_)
    assert sentence in answer["sentence"] and (answer["state"] == "completed") is completed
    assert "docker kill" not in answer["sentence"] and not any(
        "docker events" in t for t in answer["try"]
    )
    assert CONTAINER in answer["evidence"]


@pytest.mark.parametrize(
    ("fault", "image", "words"),
    [
        (
            "imageMissing",
            "python:3.11",
            [
                "docker pull python:3.11   # on h1: shows the error of the registry",
                "jobscribe pool check",
            ],
        ),
        (
            "pullDenied",
            "python:3.11",
            [
                "docker pull python:3.11   # on h1: shows the error of the registry",
                "jobscribe pool check",
            ],
        ),
        (
            "registryUnreachable",
            "python:3.11",
            [
                "docker pull python:3.11   # on h1: shows the error of the registry",
                "jobscribe pool check",
            ],
        ),
        ("pullTimeout", None, ["jobscribe pool check"]),
        ("noShell", "python:3.11", ["docker run --rm --entrypoint /bin/sh python:3.11 -c true"]),
        ("noShell", None, ["jobscribe pool check"]),
        ("engineRefused", "python:3.11", ["jobscribe pool check"]),
        ("subnetTaken", "python:3.11", ["jobscribe pool check"]),
    ],
)
def test_a_container_that_could_not_be_had_says_what_to_type(kit, fault, image, words):
    answer = contained(kit, ExitInfo(source="start", detail="the words of h1", fault=fault), image)
    assert answer["sentence"] == "could not be started: the words of h1"
    assert f"start failure: {fault}" in answer["evidence"]
    assert (
        f"container: {'the image of the pool' if image is None else 'image ' + image}, on h1"
        in answer["evidence"]
    )
    assert [w for w in words if not any(t.startswith(w) for t in answer["try"])] == []
    assert ("docker pull" in " ".join(t for t in answer["try"] if t.startswith("docker"))) is any(
        w.startswith("docker pull") for w in words
    )


def test_an_image_in_a_command_is_quoted_for_a_shell(kit):
    answer = contained(kit, ExitInfo(source="start", detail="x", fault="imageMissing"), "a;id")
    assert any(t.startswith("docker pull 'a;id' ") for t in answer["try"])


def test_a_container_that_was_removed(kit):
    answer = contained(kit, ExitInfo(source="lost", detail="its container was removed from h1"))
    assert answer["cause"] == "lost" and answer["sentence"].endswith(
        "exit status unknown: its container was removed from h1"
    )
    assert (
        any(t.startswith("docker events") for t in answer["try"])
        and CONTAINER in answer["evidence"]
    )


def test_a_container_that_runs_is_named_and_what_is_in_none_has_no_such_words(kit):
    assert CONTAINER in contained(kit, None)["evidence"]
    plain = ask(ended(kit, ExitInfo(signal=9, out_of_memory=False)))
    assert "docker" not in str(plain) and "container" not in str(plain)


def test_commands_stay_beside_what_the_exit_table_says(kit):
    lines = [
        "Check the spelling.",
        "docker pull x   # by hand",
        "jobscribe pool check",
        "docker events --since 24h",
    ]
    assert [line for line in lines if is_command(line)] == lines[1:]


def test_a_start_that_failed_for_want_of_something_says_what_to_do(kit):
    answer = ask(
        ended(
            kit,
            ExitInfo(source="start", detail="no further process can be made", fault="noProcesses"),
        )
    )
    assert answer["sentence"] == "could not be started: no further process can be made"
    assert "start failure: noProcesses" in answer["evidence"]
    assert any("ulimit -u" in t for t in answer["try"])


# ---- diagnosis by the exit table


def diagnosed(stage, kit, **changes):
    """Return the answer for the same run with another diagnosis of its task."""
    run = stage.job().run
    found = Diagnosis(
        code=3011, phrase="crash", type="user", behavior="unknown", reason="It crashed.", **changes
    )
    tasks = tuple(kit.replace(t, diagnosis=found) for t in run.attempts[-1].tasks)
    job = kit.replace(
        stage.job(), run=kit.replace(run, attempts=(kit.replace(run.attempts[-1], tasks=tasks),))
    )
    return why(status(stage.world, job, 1, stage.now()), job)


def test_the_diagnosis_of_the_task_that_stands_for_the_run_is_told_in_words(kit):
    stage = ended(kit, ExitInfo(signal=11, last_lines="a\nb"))
    answer = diagnosed(
        stage, kit, solutions=("Look.", "Try less."), hint="disk full", matched="b", excerpt="a\nb"
    )
    assert answer["diagnosis"] == {
        "code": 3011,
        "phrase": "crash",
        "type": "user",
        "whose": "caused by the job: its program, its input, or its request",
        "behavior": "unknown",
        "again": "the effect of a retry is unknown",
        "reason": "It crashed.",
        "solutions": ["Look.", "Try less."],
        "hint": "disk full",
        "matched": "b",
        "excerpt": "a\nb",
        "task": None,
    }
    assert answer["try"] == ["Look.", "Try less.", f"jobscribe job logs --stderr {kit.jid_of()}"]
    # the raw exit is the first evidence
    assert answer["evidence"][0].startswith("exit: ended by signal 11 (SIGSEGV)")


def test_solutions_of_the_table_take_the_place_of_general_ones_but_commands_stay(kit):
    stage = ended(kit, ExitInfo(signal=9, out_of_memory=True))
    assert diagnosed(stage, kit, solutions=("Look.",))["try"] == [
        "Look.",
        f"jobscribe job logs --stderr {kit.jid_of()}",
    ]
    assert "more memory" in diagnosed(stage, kit)["try"][0]
    stage = ended(kit, ExitInfo(signal=15, stop_reason="shutdown"))
    assert f"jobscribe trace {kit.jid_of()}" in diagnosed(stage, kit, solutions=("Look.",))["try"]


def test_a_run_that_completed_or_is_not_over_has_no_diagnosis(kit):
    assert ask(ended(kit, ExitInfo(code=0, out_of_memory=True)))["diagnosis"] is None
    assert diagnosed(ended(kit, ExitInfo(code=0)), kit)["diagnosis"] is None
    assert ask(ended(kit))["diagnosis"] is None


# ---- runs with roles


def gang(kit, *roles, **fields):
    stage = kit.Stage(nodes={"local": (kit.node(cpu=4),)})
    return stage, stage.placed(*(roles or (kit.role("a", 2),)), **fields)


def reports(kit, stage, *executions):
    stage.reports(*executions, key=kit.key_of(kind="parallel"))


def test_what_is_kept_is_told_with_how_to_enter_and_release_it(kit):
    stage, (first, second) = gang(kit, debug_secs=60.0)
    reports(
        kit,
        stage,
        kit.running(first),
        kit.running(second),
        kit.ended(second, 3, last_lines="no such file"),
    )
    answer = ask(stage)
    assert (answer["state"], answer["cause"]) == ("running", "debug_hold")
    assert answer["sentence"].startswith(
        "held for debugging: a/1 failed (exit code 3) and can be inspected, until 2023-11-14 22:14:20 UTC"
    )
    assert answer["try"][:2] == [
        f"jobscribe job shell {kit.jid_of()} --role a --index 1",
        f"jobscribe job release {kit.jid_of()}   # frees its resources; its exit status stays the same",
    ]
    assert (
        "exit: exit code 3 (reported by the keeper)" in answer["evidence"]
        and answer["lastLines"] == "no such file"
    )
    assert answer["diagnosis"]["task"] == "a/1"


def test_what_was_canceled_while_it_was_kept_says_that_it_had_failed(kit):
    stage, (token,) = gang(kit, kit.role(), debug_secs=60.0)
    reports(kit, stage, kit.running(token), kit.ended(token, 3))
    stage.cancel()
    answer = ask(stage)
    assert (answer["state"], answer["cause"], answer["sentence"]) == (
        "error",
        "exit",
        "failed with exit code 3",
    )
    assert (
        f"{kit.UID} requested its end (cancel) while it was held for debugging; its exit status did not change"
        in (answer["evidence"])
    )
    assert "canceled by anyone" not in answer["not"]


def test_retries_are_told_with_their_reasons_while_it_waits_and_when_no_other_follows(kit):
    stage, (token,) = gang(kit, kit.role(), retry=Retry(count=1))
    reports(kit, stage, kit.running(token), kit.ended(token, 3))
    answer = ask(stage)
    assert answer["cause"] == "retry_wait" and answer["sentence"].startswith(
        "waiting for its next attempt: attempt 1 ended ("
    )
    assert any(e.startswith("attempt 1 ended (exit) and is retried: ") for e in answer["evidence"])
    assert (
        f"jobscribe job cancel {kit.jid_of()}   # stops the retries" in answer["try"]
        and answer["diagnosis"]
    )
    stage.fire(timers.AttemptRetry(kit.jid_of(), token.serial))
    assert ask(stage)["sentence"].startswith("attempt 2 not started: ")
    stage.answer()
    again = stage.token()
    reports(kit, stage, kit.running(again), kit.ended(again, 3))
    answer = ask(stage)
    assert answer["state"] == "error"
    assert any(e.startswith("attempt 2 is not retried: ") for e in answer["evidence"])
    assert not any("was decided" in e for e in answer["evidence"]), "it has one task"
    assert f"jobscribe job tasks {kit.jid_of()}" in answer["try"]


def test_a_gang_that_runs_or_is_decided(kit):
    stage, (first, second, third) = gang(kit, kit.role("a", 2), kit.role("b", min_succeeded=1))
    reports(kit, stage, kit.running(first), kit.running(third))
    assert ask(stage)["sentence"] == "running since 2023-11-14 22:13:20 UTC, 2 of 3 tasks now"
    reports(kit, stage, kit.ended(third))
    answer = ask(stage)
    assert answer["cause"] == "stopping" and answer["sentence"].startswith(
        "stopping: 2 tasks are being stopped: [b]: "
    )
    reports(
        kit,
        stage,
        kit.ended(first, None, stop_reason="decided", signal=15),
        kit.ended(second, None, stop_reason="decided", signal=15),
    )
    assert ask(stage)["sentence"] == "completed: its tasks met the conditions of their roles"


def test_who_waits_for_others_is_told_for_which_and_what_became_of_that(kit):
    stage = kit.Stage()
    stage.submit(2)
    stage.submit(after=kit.after(2))
    answer = ask(stage)
    assert answer["cause"] == "dependency"
    assert answer["evidence"] == [f"it runs after {kit.jid_of(2)}, if that run completes"]
    assert answer["try"] == [f"jobscribe job why {kit.jid_of(2)}"]
    stage.cancel(2)
    stage.fire(timers.FollowerCheck(kit.jid_of(2)))
    answer = ask(stage)
    assert (answer["state"], answer["reason"], answer["cause"]) == (
        "canceled",
        "dependency",
        "dependency",
    )
    assert answer["sentence"] == "canceled: a run that it depends on did not end as required"
    assert (
        answer["try"] == [f"jobscribe job why {kit.jid_of(2)}"]
        and "canceled by anyone" in answer["not"]
    )


@pytest.mark.parametrize(
    ("stdout", "stderr", "command"), [(9, 0, "job logs"), (9, 9, "job logs --stderr")]
)
def test_what_is_to_be_read_is_where_it_wrote(kit, stdout, stderr, command):
    stage = ended(kit, ExitInfo(code=3, stdout_bytes=stdout, stderr_bytes=stderr))
    answer = ask(stage, "/e")
    assert f"jobscribe {command} {kit.jid_of()}" in answer["try"]
    assert [name for name in ("stdout.log", "stderr.log") if f"/e/{name}" in answer["logs"]] == [
        "stdout.log",
        "stderr.log",
    ][: 1 + bool(stderr)]


def test_of_a_job_that_wrote_nothing_nothing_is_to_be_read(kit):
    stage = ended(kit, ExitInfo(code=3, stdout_bytes=0, stderr_bytes=0))
    answer = ask(stage, "/e")
    assert answer["logs"] == ["/e/exit.json", "/e/script.sh"]
    assert answer["try"] == [
        "Make the program report its progress: it wrote no output.",
    ]
    assert answer["sentence"] == "failed with exit code 3; it wrote no output"


def test_of_a_job_that_never_ran_there_is_its_exit_at_most(stage, kit):
    stage.submit()
    stage.up()
    stage.reports(
        kit.ended(
            stage.token(),
            None,
            source="start",
            pid=None,
            detail="the disk is full",
            fault="diskFull",
        )
    )
    answer = ask(stage, "/e")
    assert (
        answer["reason"] == "startFailed"
        and answer["logs"] == ["/e/exit.json"]
        and not any("job logs" in line for line in answer["try"])
    )
    stage.submit(2)
    stage.cancel(2)
    job = stage.job(2)
    assert (
        why(status(stage.world, job, 1, stage.now()), job, Surroundings(folder="/e"))["logs"] == []
    )


def test_the_first_line_of_a_lost_task_says_what_was_lost(kit):
    stage, (token,) = gang(kit, kit.role())
    reports(
        kit,
        stage,
        kit.running(token),
        kit.ended(token, None, source="lost", detail="its container was removed from outside"),
    )
    answer = ask(stage)
    assert answer["sentence"] == "exit status unknown: its container was removed from outside"
    assert not any("TaskCount" in line for line in answer["evidence"])


def test_a_class_of_an_older_version_that_contradicts_the_cause_is_not_told(kit):
    """The older version blamed the platform for SIGKILL, even if the job had set its own limit."""
    facts = ExitFacts(ulimits=("ulimit -t 1",), memory_kills=0)
    stage = ended(kit, ExitInfo(signal=9, user_secs=0.9, system_secs=0.08, facts=facts))
    answer = ask(stage)
    assert (answer["cause"], answer["diagnosis"]["type"], answer["diagnosis"]["behavior"]) == (
        "cpuLimit",
        "user",
        "permanent",
    )
    assert (
        any("ulimit -t 1" in line for line in answer["evidence"])
        and "Submit it again." not in answer["try"]
    )
    job = stage.job()
    old = Diagnosis(
        code=3009,
        phrase="killed from outside",
        type="platform",
        behavior="transient",
        reason="So.",
        solutions=("Submit it again.",),
    )
    tasks = tuple(kit.replace(t, diagnosis=old) for t in job.run.attempts[-1].tasks)
    job = kit.replace(
        job, run=kit.replace(job.run, attempts=(kit.replace(job.run.attempts[-1], tasks=tasks),))
    )
    answer = why(status(stage.world, job, 1, stage.now()), job)
    assert (
        answer["diagnosis"] is None
        and "Submit it again." not in answer["try"]
        and answer["try"][0] == CAUSES["cpuLimit"].todo[0]
    )


def test_a_time_limit_is_no_cancel_that_anyone_asked_for(kit):
    answer = ask(ended(kit, ExitInfo(signal=15, stop_reason="timeLimit"), time_limit_secs=9.0))
    assert answer["cause"] == "timeLimit" and answer["not"] == [
        "canceled by anyone",
        "its own exit",
    ]
