"""GPU types: tasks go to hosts whose GPUs have the type; otherwise a sentence names the types."""

import pytest

from jobscribe.db.events import events
from jobscribe.db.events.events import RunRequested
from jobscribe.db.records.job_record import record_bytes
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.resources import gang_allocator
from jobscribe.supervisor.core.resources.gpu_types import has_type
from jobscribe.supervisor.core.resources.node_pool import NodePool

A100, K80 = "NVIDIA A100-SXM4-40GB", "Tesla K80"


@pytest.mark.parametrize(
    "names, wanted, has",
    [
        ((A100, A100), "A100", True),
        ((A100,), "a100 40gb", True),
        ((A100,), "nvidia-A100", True),
        ((A100,), "A10", False),
        ((A100,), "V100,A100", True),
        ((A100,), "V100,K80", False),
        ((A100, K80), "A100", False),
        ((A100, ""), "A100", False),
        ((), "A100", False),
        ((), "", True),
        ((A100,), ", ", False),
    ],
)
def test_a_host_has_a_type_if_all_its_gpus_have_its_words(names, wanted, has) -> None:
    assert has_type(names, wanted) is has


@pytest.fixture
def nodes(kit):
    return (
        kit.node("node1", gpus=("0", "1"), gpu_names=(K80, K80)),
        kit.node("node2", gpus=("0", "1"), gpu_names=(A100, A100)),
        kit.node("node3", gpus=("0",)),
    )


@pytest.fixture
def stage(kit, nodes):
    return kit.Stage(nodes={"local": nodes}, op_run_slots={("local", "parallel"): 9})


def test_tasks_run_on_the_hosts_with_their_type_and_wait_for_these_alone(kit, nodes) -> None:
    pool = NodePool(nodes=nodes)
    roles = kit.role("a", gpu=2, gpu_type="A100"), kit.role("b", gpu=1, gpu_type="k80")
    ((_, places),) = gang_allocator.request(pool, ("x", 1), 1, roles, 0.0)
    assert [(p.role, p.host) for p in places] == [("a", "node2"), ("b", "node1")]
    # what is free elsewhere is no help, and the sentence of the waiting run says so
    more = (kit.role("a", gpu=1, gpu_type="A100"),)
    assert gang_allocator.request(pool, ("x", 2), 2, more, 0.0) == []
    wait = gang_allocator.wait_of(pool, ("x", 2))
    assert wait is not None and wait.code == "insufficient"
    assert "the type 'A100' (1 x 1): 0 of 2 are free on node2" in wait.sentence
    assert gang_allocator.request(pool, ("x", 3), 3, (kit.role("a", gpu=1),), 0.0) == []
    assert [t for t, _ in gang_allocator.release(pool, ("x", 1), 0.0)] == [("x", 2), ("x", 3)]


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"gpu": 1, "gpu_type": "V100"}, "asks for GPUs of the type 'V100', which no host has"),
        ({"gpu": 3, "gpu_type": "A100"}, "(1 x 3): 2 of 2 are free on node2"),
    ],
)
def test_what_no_host_has_is_refused_with_the_types_that_exist(
    kit, stage, fields, sentence
) -> None:
    (effect,) = stage.gang(kit.role("a", **fields)).effects
    assert isinstance(effect, fx.ReplyRefusal)
    assert effect.refusal.code == "resourceExceeded" and sentence in effect.refusal.sentence
    if fields["gpu_type"] == "V100":
        known = f"there are: {A100} (node2), {K80} (node1)"
        assert effect.refusal.sentence.endswith(known)


def test_only_a_run_with_a_type_needs_the_newest_version(kit, stage) -> None:
    for n, fields in enumerate(({}, {"gpu_type": "A100"}), 1):
        stage.gang(kit.role("a", gpu=1, **fields), n=n)
    requested = [e for _, e in stage.log if isinstance(e, RunRequested)]
    assert [events.schema_of(e) for e in requested] == [1, 2]
    assert [b"gpuType" in events.encode(e) for e in requested] == [False, True]
    assert b"gpuType" not in record_bytes(stage.job(1), 1, 1.0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_large_role_without_a_type_leaves_the_gpus_of_a_type_to_the_role_that_needs_them(
    kit, order: int
) -> None:
    nodes = tuple(
        kit.node(f"node{n}", cpu=64, gpus=tuple("01234567"), gpu_names=(name,) * 8)
        for n, name in enumerate((A100, K80, K80))
    )
    roles = (kit.role("w", 14, gpu=1), kit.role("t", 8, gpu=1, gpu_type="A100"))[::order]
    ((_, places),) = gang_allocator.request(NodePool(nodes=nodes), ("x", 1), 1, roles, 0.0)
    assert {p.host for p in places if p.role == "t"} == {"node0"}
