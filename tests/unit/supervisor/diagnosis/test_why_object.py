"""The object shared by `job why` and the `why` of status replies, for runs that wait, ended, never
ran or are gone.
"""

from typing import get_args

import pytest
from in_memory_supervisor import UID, InMemorySupervisor

from jobscribe.diagnosis.causes import CAUSES, QueueState
from jobscribe.diagnosis.exit_table import Diagnosis
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.supervisor.core.interface.inputs import DriverFailed
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis.explanation import brief, why
from jobscribe.supervisor.diagnosis.surroundings import Surroundings

KEYS = {
    "computeJid",
    "state",
    "reason",
    "cause",
    "confidence",
    "sentence",
    "says",
    "evidence",
    "not",
    "lastLines",
    "terminationMessage",
    "traceback",
    "faulthandler",
    "logs",
    "try",
    "diagnosis",
    "next",
    "attempt",
    "role",
    "index",
}
OOM = "Memory cgroup out of memory: Killed process 100 (solve)"


def ask(stage, folder=None, **changes):
    job = stage.job()
    return why(status(stage.world, job, 1, stage.now()) | changes, job, Surroundings(folder=folder))


def ended(kit, exit_, **fields):
    stage = kit.Stage()
    stage.submit(**fields)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.reports(kit.replace(kit.ended(token), exit=exit_))
    return stage


@pytest.mark.parametrize("word", get_args(QueueState))
def test_each_thing_that_a_run_can_wait_for_has_a_whole_answer(stage, kit, word):
    if word == "dependency":
        stage.submit(2)
    stage.submit(after=kit.after(2) if word == "dependency" else ())
    said = "3 of 4 in use, 2 ahead"
    answer = ask(
        stage,
        queueState=word,
        jobStatusMessage=said,
        **({"signInTo": "hpc"} if word == "sign_in" else {}),
    )
    assert set(answer) == KEYS
    assert (answer["reason"], answer["cause"], answer["confidence"]) == (
        word,
        word,
        "certain",
    ) and word in CAUSES
    assert (
        said in answer["sentence"]
        and answer["try"]
        and len(set(answer["try"])) == len(answer["try"])
    )
    assert answer["not"] or word == "stopping"
    assert any(line.startswith("jobscribe ") for line in answer["try"]) or word == "dependency", (
        "something that can be typed"
    )
    assert not any(line.endswith(" JOB") or " JOB " in line for line in answer["try"])
    short = brief(
        status(stage.world, stage.job(), 1, stage.now())
        | {
            "queueState": word,
            "jobStatusMessage": said,
            **({"signInTo": "hpc"} if word == "sign_in" else {}),
        },
        stage.job(),
    )
    assert short == {
        "cause": word,
        "confidence": "certain",
        "sentence": answer["sentence"],
        "try": answer["try"][:3],
    }


def test_the_last_error_of_an_agent_that_does_not_start_is_in_the_sentence(stage, kit):
    stage.submit()
    stage.tell(DriverFailed(kit.key_of(), 1, "no room"))
    answer = ask(stage)
    assert (
        answer["cause"] == "agent"
        and "try 2 of 3" in answer["sentence"]
        and "last failure: no room" in answer["sentence"]
    )
    assert answer["try"][0].startswith(f"jobscribe trace {kit.jid_of()} ") and answer[
        "evidence"
    ] == ["it has not run yet, so it has no output"]


def test_what_was_measured_decides_and_stands_in_the_evidence(kit):
    measured = ExitFacts(
        memory_peak_bytes=2**30,
        memory_limit_bytes=2**30,
        memory_kills=1,
        kernel=(OOM,),
        via_shell=True,
    )
    answer = ask(ended(kit, ExitInfo(code=137, out_of_memory=True, facts=measured)), "/agent/run/x")
    assert (answer["reason"], answer["cause"], answer["confidence"]) == (
        "exit",
        "outOfMemory",
        "certain",
    )
    assert answer["evidence"] == [
        "exit: exit code 137; memory ran out, so the kernel killed one of its processes (reported by the keeper)",
        "memory ran out, so the kernel killed one of its processes (the kernel's own count in its cgroup rose by 1 while it ran)",
        "its memory peaked at 1.00 GiB of the 1.00 GiB that it may have",
        f"the kernel's log names it: {OOM}",
        "used: CPU time not measured, memory peak 1.00 GiB; limits: memory 1.00 GiB, time none",
    ]
    assert (
        answer["try"][0]
        == "give it more memory than its limit of 1.00 GiB, or reduce its memory use"
    )
    assert {"canceled by anyone", "a time limit"} <= set(answer["not"]) and len(answer["logs"]) == 4


def test_a_kernel_log_that_could_not_be_read_is_said_where_it_would_have_helped(kit):
    unread = ExitFacts(kernel_unread="not permitted to read the kernel log", memory_kills=0)
    answer = ask(ended(kit, ExitInfo(signal=9, out_of_memory=False, facts=unread)))
    assert (answer["cause"], answer["confidence"]) == ("killed", "unknown")
    assert (
        "the kernel's log could not be read here: not permitted to read the kernel log"
        in answer["evidence"]
    )
    assert any(
        line.startswith("possible senders of SIGKILL") for line in answer["evidence"]
    ) and any("out of memory" in line for line in answer["not"])
    assert "kernel's log" not in str(ask(ended(kit, ExitInfo(code=3, facts=unread))))


@pytest.mark.parametrize(
    ("exit_", "sentence"),
    [
        (
            ExitInfo(code=137, facts=ExitFacts(via_shell=True)),
            "failed with exit code 137: SIGKILL killed its command (not sent by jobscribe)",
        ),
        (
            ExitInfo(code=139),
            "failed with exit code 139: SIGSEGV killed its command (likely; not sent by jobscribe)",
        ),
        (
            ExitInfo(code=137, facts=ExitFacts(via_shell=False)),
            "failed with exit code 137",
        ),
        (
            ExitInfo(code=141, last_lines="x: Broken pipe"),
            "failed with exit code 141: it wrote to a pipe or connection that no process read from any more (likely)",
        ),
        *(
            (
                ExitInfo(code=code),
                f"failed with exit code {code} (a shell returns {code} if {name} killed its command; a program can also return it itself)",
            )
            for code, name in ((130, "SIGINT"), (137, "SIGKILL"), (141, "SIGPIPE"))
        ),
        (
            ExitInfo(signal=13),
            "killed by SIGPIPE (not sent by jobscribe): it wrote to a pipe or connection that no process read from any more",
        ),
        (
            ExitInfo(signal=1),
            "killed by SIGHUP (not sent by jobscribe): its terminal or session was closed",
        ),
        (
            ExitInfo(code=1, last_lines="cp: x: No space left on device"),
            "failed with exit code 1: a disk that it wrote to was full (likely)",
        ),
        (
            ExitInfo(
                code=1,
                last_lines='Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError: 7',
            ),
            "failed with exit code 1: a Python program ended with an uncaught exception (KeyError: 7) (likely)",
        ),
    ],
)
def test_the_sentence_says_what_the_bare_exit_does_not(kit, exit_, sentence):
    assert ask(ended(kit, exit_))["sentence"] == sentence


def test_an_exception_and_a_fault_are_told_with_their_places(kit):
    lines = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nKeyError: 7'
    answer = ask(ended(kit, ExitInfo(code=1, last_lines=lines)))
    assert (
        answer["traceback"] == {"last": "KeyError: 7", "frames": ["a.py:3 in f"]}
        and answer["faulthandler"] is None
    )
    lines = 'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'
    answer = ask(ended(kit, ExitInfo(signal=6, core_dumped=True, last_lines=lines)))
    assert (answer["cause"], answer["faulthandler"]) == (
        "crash",
        ["Fatal Python error: Aborted", "a.py:3 in f"],
    )
    assert any(
        line.startswith("a core was written: 'core*' in its run directory")
        for line in answer["evidence"]
    )
    assert any(
        "submitted with --core" in line for line in ask(ended(kit, ExitInfo(signal=6)))["evidence"]
    )


def test_a_success_with_a_child_that_memory_was_taken_from_is_said_and_stays_one(kit):
    stage = ended(
        kit,
        ExitInfo(
            code=0,
            out_of_memory=True,
            last_lines='Traceback (most recent call last):\n  File "a", line 1, in f\nE: 1',
        ),
    )
    answer = ask(stage)
    assert (answer["state"], answer["cause"], answer["confidence"]) == (
        "completed",
        "completed",
        "certain",
    )
    assert "memory ran out" in answer["sentence"] and answer["traceback"] is None


def test_our_own_intent_is_told_with_who_had_it_and_when(kit):
    stage = kit.Stage()
    stage.submit()
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.cancel()
    stage.reports(kit.ended(token, None, signal=9, stop_reason="cancel"))
    answer = ask(stage)
    assert (answer["reason"], answer["cause"], answer["confidence"]) == (
        "cancel",
        "canceled",
        "certain",
    )
    assert (
        "user0001 requested its end at 2023-11-14 22:13:20 UTC, and jobscribe recorded that before it stopped any process"
        in answer["evidence"]
    )
    assert (
        "jobscribe recorded its decision to stop before the first signal (cancel)"
        in answer["evidence"]
    )
    assert answer["not"] == ["a time limit", "its own exit"]


def test_what_never_ran_says_so(stage, kit):
    stage.submit()
    stage.cancel()
    answer = ask(stage)
    assert (answer["cause"], answer["attempt"], answer["role"]) == ("canceled", None, None)
    assert "it never ran, so it has no output" in answer["evidence"] and not any(
        "job logs" in line for line in answer["try"]
    )


def test_a_run_whose_files_were_removed_says_so(kit):
    stage = ended(kit, ExitInfo(code=0, dropped_bytes=9))
    job = stage.job()
    job = kit.replace(job, run=kit.replace(job.run, status="job_run_purged"))
    answer = why(status(stage.world, job, 1, stage.now()), job, Surroundings(folder="/agent/run/x"))
    assert (answer["state"], answer["cause"]) == ("job_run_purged", "purged") and answer[
        "logs"
    ] == []
    assert answer["sentence"] == "ended, and its files were purged later" and answer["try"] == [
        "Submit it again to have its files back."
    ]
    assert "9 bytes of output were dropped" in answer["evidence"]


@pytest.mark.parametrize(
    ("exit_", "cause", "confidence"),
    [
        (ExitInfo(code=0), "completed", "certain"),
        (ExitInfo(signal=9), "killed", "unknown"),
        (ExitInfo(code=127), "notFound", "likely"),
    ],
)
def test_of_an_earlier_run_its_exit_tells_what_it_can(kit, exit_, cause, confidence):
    stage = ended(kit, exit_)
    serial = stage.job().run.serial
    stage.submit(force=True)
    job = stage.job()
    answer = why(status(stage.world, job, 1, stage.now(), serial=serial), job)
    assert (answer["cause"], answer["confidence"]) == (cause, confidence) and answer["try"] == [
        f"jobscribe trace {kit.jid_of()}"
    ]
    assert any("earlier runs" in line for line in answer["evidence"])


def told_by_the_table(stage, kit, **found):
    """Return the answer for an exit table with this diagnosis."""
    run = stage.job().run
    fields = {
        "code": 4137,
        "phrase": "child killed",
        "type": "platform",
        "behavior": "transient",
        "reason": "So.",
        "solutions": ("Ask for more memory.",),
    }
    tasks = tuple(
        kit.replace(t, diagnosis=Diagnosis(**fields | found)) for t in run.attempts[-1].tasks
    )
    job = kit.replace(
        stage.job(), run=kit.replace(run, attempts=(kit.replace(run.attempts[-1], tasks=tasks),))
    )
    return why(status(stage.world, job, 1, stage.now()), job)


def test_a_shells_killed_does_not_have_people_ask_for_memory_first_where_the_kernel_took_none(kit):
    for memory, first in ((False, CAUSES["killed"].todo[0]), (None, "Ask for more memory.")):
        stage = ended(
            kit,
            ExitInfo(
                code=137, out_of_memory=memory, last_lines="Killed", facts=ExitFacts(via_shell=True)
            ),
        )
        assert told_by_the_table(stage, kit, hint="no memory", matched="Killed")["try"][0] == first


def test_where_the_table_knows_nothing_of_an_exit_what_is_found_here_comes_first(kit):
    stage = ended(kit, ExitInfo(code=2, last_lines="ls: unrecognized option '--x'"))
    answer = told_by_the_table(stage, kit, type="unknown", behavior="unknown", solutions=("Read.",))
    assert answer["try"][:2] == [*CAUSES["usage"].todo, "Read."]
    assert (
        told_by_the_table(
            ended(kit, ExitInfo(code=2)),
            kit,
            type="unknown",
            behavior="unknown",
            solutions=("Read.",),
        )["try"][0]
        == "Read."
    )


async def test_a_status_reply_has_it_in_short_where_something_is_to_be_explained() -> None:
    in_memory = InMemorySupervisor()
    agent = in_memory.agent()
    jid, token = await in_memory.running(agent)

    def told():
        return in_memory.desk.describe(in_memory.desk.job(UID, jid))

    assert told()["why"] is None, "it runs"
    agent.ended(token, code=1, last_lines="x: No space left on device")
    short = told()["why"]
    assert set(short) == {"cause", "confidence", "sentence", "try"}
    assert (short["cause"], short["confidence"]) == ("diskFull", "likely") and 1 <= len(
        short["try"]
    ) <= 3
    jid, token = await in_memory.running(agent, n=2)
    agent.ended(token)
    assert told()["state"] == "completed" and told()["why"] is None
