"""The next action of an answer, used resources and limits, and reactions to a stop."""

import pytest

from jobscribe.diagnosis.kill_attribution import Classification
from jobscribe.protocol.clusters.batch import Partition
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis import usage_facts
from jobscribe.supervisor.diagnosis.explanation import why
from jobscribe.supervisor.diagnosis.surroundings import Surroundings

NAMES = Surroundings(name={"user0001": "ann"}.get)


def answer_of(kit, exit_, about=NAMES, **fields):
    stage = kit.Stage()
    stage.submit(**fields)
    stage.up()
    token = stage.token()
    stage.reports(kit.running(token))
    stage.reports(kit.replace(kit.ended(token), exit=exit_))
    job = stage.job()
    return why(status(stage.world, job, 1, stage.now()), job, about), job


@pytest.mark.parametrize(
    ("exit_", "verb", "advice"),
    [
        (ExitInfo(signal=9), "retry", "SIGKILL"),
        (ExitInfo(code=127, stderr_bytes=9), "logs --stderr", "corrected command"),
        (ExitInfo(code=1, stdout_bytes=0, stderr_bytes=0), "status", "no output"),
        (ExitInfo(source="lost", detail="gone"), "retry", "output is complete"),
        (ExitInfo(signal=15, stop_reason="timeLimit"), "logs --stderr", "longer time limit"),
    ],
)
def test_an_ended_run_has_one_command(kit, exit_, verb, advice):
    answer, _ = answer_of(kit, exit_)
    step = answer["next"]
    assert step["command"] == f"jobscribe job {verb} {answer['computeJid']}"
    assert advice in step["advice"]


def test_the_name_of_the_user_is_beside_its_uid(kit):
    answer, _ = answer_of(kit, ExitInfo(code=3))
    assert "its user: user0001 (ann)" in answer["evidence"]


def test_files_that_do_not_exist_are_not_named(kit):
    about = Surroundings(folder="/e", files=frozenset({"exit.json"}))
    answer, _ = answer_of(kit, ExitInfo(code=3, stderr_bytes=9), about)
    assert answer["logs"] == ["/e/exit.json"]


def test_sigkill_tells_the_used_resources_and_the_limits(kit):
    facts = ExitFacts(memory_peak_bytes=2**20, memory_limit_bytes=2**21, ulimits=("ulimit -t 9",))
    exit_ = ExitInfo(signal=9, user_secs=1.0, system_secs=0.5, facts=facts)
    answer, _ = answer_of(kit, exit_, time_limit_secs=90)
    line = "used: 1.5 s of CPU time, memory peak 1 MiB; limits: memory 2 MiB, time 1 min 30 s, ulimit -t 9"
    assert line in answer["evidence"]


@pytest.mark.parametrize(
    ("exit_", "said"),
    [
        (ExitInfo(signal=9, stop_reason="timeLimit"), ["ignored SIGTERM for 3 s, then SIGKILL"]),
        (ExitInfo(signal=15, stop_reason="timeLimit"), []),
        (ExitInfo(signal=9, stop_reason="timeLimit", out_of_memory=True), []),
        (ExitInfo(signal=9), []),
    ],
)
def test_an_ignored_sigterm_is_named(kit, exit_, said):
    _, job = answer_of(kit, exit_)
    assert usage_facts.reaction(job.run, exit_) == said


def test_slurm_times(kit):
    _, job = answer_of(kit, ExitInfo(code=1), time_limit_secs=120)
    limit = Partition(name="debug", time_limit_secs=3600)
    assert usage_facts.batch_times(job.run, limit) == [
        "time limit: 2 min requested; partition debug allows 1 h"
    ]
    assert "not known" in usage_facts.batch_times(job.run, None)[0]


def test_a_memory_error_has_used_resources_and_an_exit_has_none(kit):
    exit_ = ExitInfo(code=1, user_secs=1.0, system_secs=0.0, max_rss_bytes=2**20)
    _, job = answer_of(kit, exit_)
    found = Classification("traceback", "likely")
    assert usage_facts.used_and_limits(job.run, exit_, found, "MemoryError")
    assert not usage_facts.used_and_limits(job.run, exit_, found, "ValueError: 3")


def test_policies_are_told_without_terms_of_openpai():
    said = usage_facts.policy_sentence("[w]: FailedTaskCount 2 has reached MinFailedTaskCount 2.")
    assert said == "2 tasks of role w failed (minFailed is 2)"
