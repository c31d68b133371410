"""Limits of the site of which this shard has a part that changes: runs start within it, and nothing is
stopped if it becomes smaller.
"""

import pytest

from jobscribe.protocol.grants import Use
from jobscribe.protocol.ids import AgentKey
from jobscribe.supervisor.core.interface.effects import GrantsApplied
from jobscribe.supervisor.core.interface.grants import CPU, MEMORY, Grant, runs_name
from jobscribe.supervisor.core.interface.inputs import GrantsChanged
from jobscribe.supervisor.core.resources.gang_allocator import Node
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.scheduling import site_limits
from jobscribe.supervisor.core.status.queue_report import slot_rows
from jobscribe.supervisor.core.status.run_status import status

SLOTS = "slots.local_sequential"


@pytest.fixture
def stage(kit):
    """This shard has an even part of 4 slots, 4 cores and 4,096 MiB."""
    place = HostCapacity(host="localhost", slots={"sequential": 4, "parallel": 1})
    node = Node(host="localhost", address="127.0.0.1", cpu=4, memory_mb=4096)
    slots = {("local", kind): 8 for kind in ("sequential", "parallel")}
    return kit.Stage(
        places={"local": (place,)},
        op_run_slots=slots,
        nodes={"local": (node,)},
        moving=frozenset((SLOTS, CPU, MEMORY)),
    )


def grant(stage, others=0, **limits):
    """Change the limits; return what the shard says it uses."""
    named = {"slots": SLOTS, "cpu": CPU, "memory": MEMORY}
    found = {
        named[name]: Grant(limit=n, capacity=8 if name != "memory" else 8192, others=others)
        for name, n in limits.items()
    }
    stage.tell(GrantsChanged({**stage.world.grants, **found}, 7))
    (applied,) = (e for e in stage.effects if isinstance(e, GrantsApplied))
    assert applied.number == 7
    return applied.use


def placed(stage, numbers):
    return [n for n in numbers if stage.job(n).run.live_tasks]


def why(stage, n):
    said = status(stage.world, stage.job(n), 1, stage.now())
    return said["queueState"], said["jobStatusMessage"]


def test_runs_start_within_the_part_that_the_shard_has_now(stage, kit):
    for n in range(1, 10):
        stage.submit(n)
    stage.up(kit.key_of())
    everything = range(1, 10)
    assert placed(stage, everything) == [], "nothing starts before the first exchange"
    assert "not agreed with the others" in why(stage, 1)[1]
    assert grant(stage, slots=1)[SLOTS] == Use(1, 9 - 1), "the ninth waits for its user's slot"
    assert grant(stage, slots=6, others=2)[SLOTS].used == 6, "more than the even part"
    state, sentence = why(stage, 7)
    assert state == "cpu_slot"
    assert sentence.endswith(
        "; this shard may use 6 of the site's 8 slots now, and other shards use 2"
    )
    (slots,) = (r for r in slot_rows(stage.world, ["local"]) if r["kind"] == "sequential")
    assert (slots["used"], slots["total"], slots["siteUsed"], slots["siteTotal"]) == (6, 6, 8, 8)
    # what runs is left alone, and nothing new starts until less runs than the new limit
    assert grant(stage, slots=3)[SLOTS].used == 6
    for n in (1, 2, 3):
        stage.end(stage.token(n))
    assert placed(stage, everything) == [4, 5, 6]
    assert site_limits.use(stage.world)[SLOTS].used == 3
    stage.end(stage.token(4))
    assert placed(stage, everything) == [5, 6, 7]


def test_limits_survive_a_fold_of_the_log(stage, kit):
    for n in range(1, 6):
        stage.submit(n)
    stage.up(kit.key_of())
    grant(stage, slots=2)
    stage.restarted()
    stage.up(kit.key_of())
    assert placed(stage, range(1, 6)) == [1, 2]


def test_gangs_start_within_the_cores_and_the_memory_of_the_shard(stage, kit):
    roles = (kit.role("w", tasks=3, cpu=1, memory_mb=1000),)
    stage.submit(1, roles=roles)
    stage.submit(2, roles=roles)
    stage.up(kit.key_of())
    use = grant(stage, cpu=2, memory=8000, others=6)
    assert (use[CPU], use[MEMORY]) == (Use(0, 6), Use(0, 6000))
    assert placed(stage, (1, 2)) == []
    state, sentence = why(stage, 1)
    assert state == "resources"
    assert (
        "2 of 2 are free" in sentence and "this shard may use 2 of the site's 8 cores" in sentence
    )
    use = grant(stage, cpu=8)
    assert (use[CPU], use[MEMORY]) == (Use(6, 6), Use(6000, 6000))
    assert grant(stage, cpu=1)[CPU].used == 6


def test_nothing_is_placed_ahead_in_slots_that_are_to_be_given_back(kit):
    place = HostCapacity(host="localhost", slots={"sequential": 4})
    stage = kit.Stage(
        places={"local": (place,)},
        op_run_slots={("local", "sequential"): 8},
        moving=frozenset((SLOTS,)),
        ahead_secs=9.0,
    )
    stage.agents_run_ahead = True
    for n in range(1, 20):
        stage.submit(n)
    stage.up()
    grant(stage, slots=3)
    grant(stage, slots=1)
    stage.reports(kit.ended(stage.token(1)))
    assert placed(stage, range(1, 20)) == [2, 3], "one more is to end before another one starts"
    stage.reports(kit.ended(stage.token(2)))
    assert placed(stage, range(1, 20))[:2] == [3, 4], "the next one waits for the slot of the third"
    assert site_limits.use(stage.world)[SLOTS].used == 1


def test_runs_of_a_cluster_start_within_the_part_of_the_shard(kit):
    place = HostCapacity(host="hpc", slots={"parallel": 2}, user_runs=9)
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (place,)},
        moving=frozenset((runs_name("hpc"),)),
    )
    for n in range(1, 6):
        stage.submit(n, driver="sbatch")
    stage.up(AgentKey("sbatch", "parallel", kit.UID, "hpc"))
    stage.tell(GrantsChanged({"runs.hpc": Grant(limit=3, capacity=4, others=1)}, 1))
    assert placed(stage, range(1, 6)) == [1, 2, 3]
    assert site_limits.use(stage.world) == {"runs.hpc": Use(3, 5)}
    assert why(stage, 4)[1].endswith(
        "; this shard may use 3 of the site's 4 slots now, and other shards use 1"
    )
