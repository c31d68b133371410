"""`job why` for a run in a container: shared resources, possible causes of the end, commands for
the container engine, and memory use.
"""

import pytest

from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis.explanation import why

from .test_explanation import contained, ended


def in_agents(kit, exit_=None):
    """Return the answer for a run in its agent's container on host h1."""
    stage = ended(kit, exit_)
    job = stage.job()
    (task,) = job.run.attempts[-1].tasks
    task = kit.replace(
        task, agent_key=AgentKey("docker", "sequential", kit.UID, "h1"), host="3e6d438cd021"
    )
    job = kit.replace(
        job, run=kit.replace(job.run, attempts=(kit.replace(job.run.attempts[-1], tasks=(task,)),))
    )
    return why(status(stage.world, job, 1, stage.now()), job)


SHARED = "container: 3e6d438cd021 on h1, shared with its agent and the other runs of its user"


def test_what_shares_a_container_says_so(kit):
    answer = in_agents(kit)
    assert (
        answer["sentence"].endswith(" as pid 100 in container 3e6d438cd021 on h1")
        and SHARED in answer["evidence"]
    )


@pytest.mark.parametrize(
    ("exit_", "asked"),
    [
        (ExitInfo(source="lost", detail="its container was removed from outside"), True),
        (ExitInfo(signal=15, source="keeper", stop_reason="shutdown"), True),
        (ExitInfo(signal=9, source="keeper", out_of_memory=False), False),
        (ExitInfo(code=3, source="keeper"), False),
    ],
)
def test_an_engine_is_asked_what_was_done_to_an_agents_container(kit, exit_, asked):
    answer = in_agents(kit, exit_)
    line = "docker events --since 24h --filter container=3e6d438cd021   # on h1: shows when it was stopped, killed or removed"
    assert (line in answer["try"]) is asked and SHARED in answer["evidence"]


def test_a_container_that_was_asked_to_end(kit):
    answer = contained(kit, ExitInfo(signal=15, source="script"))
    assert answer["sentence"] == "killed by SIGTERM (not sent by jobscribe; 'docker stop' sends it)"
    assert any(
        t.startswith(
            f"docker events --since 24h --filter label=jobscribe.jid={kit.jid_of()}   # on h1"
        )
        for t in answer["try"]
    )


@pytest.mark.parametrize(
    ("peak", "memory", "line"),
    ids=("far", "near", "enough", "unseen"),
    argvalues=[
        (
            12,
            True,
            "the last measured memory peak is 12 MiB of the 64 MiB that it may have; its memory use then grew faster than the measurements",
        ),
        (62, True, "its memory peaked at 62 MiB of the 64 MiB that it may have"),
        (12, False, "its memory peaked at 12 MiB of the 64 MiB that it may have"),
        (None, True, "its memory limit is 64 MiB; its memory use was not measured"),
    ],
)
def test_a_peak_that_was_only_seen_is_not_called_one_where_memory_ran_out(kit, peak, memory, line):
    facts = ExitFacts(
        memory_peak_bytes=peak and peak << 20, memory_limit_bytes=64 << 20, memory_kills=int(memory)
    )
    assert (
        line
        in contained(kit, ExitInfo(signal=9, source="script", out_of_memory=memory, facts=facts))[
            "evidence"
        ]
    )


def test_a_missing_core_in_a_container_is_a_reason_to_recommend_the_option(kit):
    for answer in (
        in_agents(kit, ExitInfo(signal=6, source="keeper")),
        contained(kit, ExitInfo(signal=6, source="script")),
    ):
        assert answer["cause"] == "crash"
        assert any("submitted with --core" in line for line in answer["evidence"])
