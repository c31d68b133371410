"""Batch requests of runs: defaults are filled in, and a request that exceeds the cluster or its
partition is refused with the names and numbers.
"""

import os

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as how
from hypothesis import strategies as st

from jobscribe.agent.slurm.sbatch_directives import request_lines
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.clusters.batch import BatchRequest, ClusterStatus, Partition
from jobscribe.protocol.clusters.cluster import Cluster, Clusters, Limits
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs.roles import TaskRole
from jobscribe.schema.jobs.batch_rules import (
    RESERVED,
    NodeLimits,
    directive_problem,
    gang_request,
    nodes_of,
    setup_problem,
    tasks_of,
)
from jobscribe.supervisor.clusters.batch_validation import check, check_none

PARTITIONS = (
    Partition(
        name="debug",
        default=True,
        nodes=4,
        max_nodes=3,
        cores_per_node=8,
        memory_mb_per_node=16_000,
        gpus_per_node=0,
        time_limit_secs=3600.0,
    ),
    Partition(
        name="big",
        nodes=100,
        min_nodes=10,
        cores_per_node=8,
        time_limit_secs=86_400.0,
        accounts=("m1",),
        qos=("large",),
    ),
    Partition(name="gpu", nodes=2, cores_per_node=16, memory_mb_per_node=64_000, gpus_per_node=4),
    Partition(name="open"),
)
NEWS = {
    "a": ClusterStatus(
        cluster="a",
        at=1.0,
        scheduler="up",
        partitions=PARTITIONS,
        accounts=("m1", "m2"),
        qos=("normal", "large"),
    )
}


def spec(
    batch: BatchRequest | None = None,
    *,
    roles: tuple[TaskRole, ...] = (),
    secs: float | None = None,
) -> RunSpec:
    made = RunSpec(
        uid="user0001",
        simulation_id="sim00001",
        driver="sbatch",
        time_limit_secs=secs,
        roles=roles,
        command=() if roles else ("true",),
    )
    return (
        made
        if batch is None
        else RunSpec(**{**{f: getattr(made, f) for f in made.__struct_fields__}, "batch": batch})
    )


def cluster(**fields: object) -> Clusters:
    return Clusters(clusters=(Cluster(name="a", **fields), Cluster(name="b", folder="/x")))  # type: ignore[arg-type]


def asked(
    batch: BatchRequest | None = None,
    clusters: Clusters | None = None,
    news: dict[str, ClusterStatus] | None = None,
    **more: object,
) -> BatchRequest:
    done = check(spec(batch, **more), clusters or cluster(), NEWS if news is None else news)  # type: ignore[arg-type]
    assert isinstance(done.batch, BatchRequest)
    return done.batch


def refused(
    batch: BatchRequest | None = None, clusters: Clusters | None = None, **more: object
) -> tuple[str, str]:
    with pytest.raises(Refusal) as e:
        asked(batch, clusters, **more)  # type: ignore[arg-type]
    return e.value.code, e.value.sentence


def test_who_asks_for_nothing_gets_the_first_cluster_and_its_defaults() -> None:
    defaults = BatchRequest(
        partition="gpu", account="m1", cores=4, gpus=1, modules=("gcc",), setup="x", signal_secs=60
    )
    assert asked(None, cluster(defaults=defaults)) == BatchRequest(
        cluster="a",
        partition="gpu",
        account="m1",
        cores=4,
        gpus=1,
        modules=("gcc",),
        setup="x",
        signal_secs=60,
    )
    assert asked(None) == BatchRequest(cluster="a")
    assert asked(BatchRequest(cluster="b"), cluster(defaults=defaults)) == BatchRequest(cluster="b")


def test_what_is_asked_comes_before_the_defaults() -> None:
    defaults = BatchRequest(
        partition="gpu",
        nodes=2,
        tasks=8,
        tasks_per_node=4,
        gpus=1,
        modules=("gcc",),
        directives=("exclusive", "reservation=x"),
    )
    many = cluster(defaults=defaults, directives=("exclusive", "reservation", "nice"))
    done = asked(
        BatchRequest(gpus=0, modules=("python",), directives=("nice=5", "reservation=y")), many
    )
    assert (done.gpus, done.modules, done.directives) == (
        0,
        ("python",),
        ("exclusive", "nice=5", "reservation=y"),
    )
    assert (done.nodes, done.tasks, done.tasks_per_node) == (2, 8, 4)
    # one task cannot use the default of two nodes
    done = asked(BatchRequest(tasks=1), many)
    assert (done.nodes, done.tasks, done.tasks_per_node) == (None, 1, None)


def test_a_run_that_was_checked_passes_again() -> None:
    defaults = BatchRequest(partition="gpu", cores=4, directives=("exclusive",))
    roles = (TaskRole(name="a", tasks=4, cpu=6, memory_mb=10_000, command=("true",)),)
    for roles_ in ((), roles):
        first = check(
            spec(BatchRequest(modules=("m",)), roles=roles_),
            cluster(defaults=defaults, directives=("exclusive",)),
            NEWS,
        )
        assert check(first, cluster(defaults=defaults, directives=("exclusive",)), NEWS) == first


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (BatchRequest(cluster="c"), ['there is no cluster "c"; there are: a, b']),
        (
            BatchRequest(partition="gpus"),
            ["cluster 'a' has no partition \"gpus\"; there are: debug, big, gpu, open"],
        ),
        (
            BatchRequest(account="m3"),
            ["you may not use the account \"m3\" on cluster 'a'; you may use: m1, m2"],
        ),
        (
            BatchRequest(qos="premium"),
            ["you may not use the QOS \"premium\" on cluster 'a'; you may use: normal, large"],
        ),
        (
            BatchRequest(partition="big", account="m2", nodes=10),
            ["partition 'big' does not accept the account \"m2\"; it accepts: m1"],
        ),
        (
            BatchRequest(partition="big", qos="normal", nodes=10),
            ["partition 'big' does not accept the QOS \"normal\"; it accepts: large"],
        ),
        (
            BatchRequest(partition="big", nodes=2),
            [
                "`nodes`: 2 are requested; partition 'big' of cluster 'a' accepts no run with fewer than 10"
            ],
        ),
        (BatchRequest(nodes=3, tasks=2), ["3 `nodes` are more than 2 `tasks`"]),
        (
            BatchRequest(nodes=2, tasks=9, tasks_per_node=4),
            ["9 `tasks` do not fit on 2 `nodes` with 4 `tasksPerNode` (at most 8)"],
        ),
        (BatchRequest(modules=("a", "b", "a")), ['`modules` name "a" twice']),
        (
            BatchRequest(directives=("exclusive",)),
            ["`directives`: cluster 'a' does not allow \"exclusive\"; none are"],
        ),
        (
            BatchRequest(directives=("output=/etc/x",)),
            ['`directives`: "output" is not for directives: jobscribe sets it'],
        ),
        (
            BatchRequest(directives=("arr=1-9",)),
            ['sbatch may read "arr" as array: use `array`'],
        ),
        (BatchRequest(setup="a\r\nb"), ["`setup`: its lines end with CR LF (Windows)"]),
        (
            BatchRequest(setup="a\n\x1b[2J"),
            ['`setup`: it contains the character "\\x1b" in line 2'],
        ),
        (BatchRequest(setup="ok\n  #SBATCH --uid=0"), ["`setup`: line 2 begins with #SBATCH"]),
    ],
)
def test_what_cannot_be_is_refused_by_name_with_what_there_is(
    wishes: BatchRequest, words: list[str]
) -> None:
    code, sentence = refused(wishes)
    assert code == "batchRefused" and [w for w in words if w not in sentence] == [], sentence


@pytest.mark.parametrize(
    ("wishes", "secs", "words"),
    [
        (
            BatchRequest(nodes=4),
            None,
            "`nodes`: 4 are needed; partition 'debug' of cluster 'a' gives a run at most 3",
        ),
        (
            BatchRequest(partition="gpu", nodes=3),
            None,
            "`nodes`: 3 are needed; partition 'gpu' of cluster 'a' has 2",
        ),
        (
            BatchRequest(tasks=25),
            None,
            "`nodes`: 4 are needed (25 tasks with 1 cores each); partition 'debug'",
        ),
        (BatchRequest(tasks=7, cores=5), None, "`nodes`: 7 are needed (7 tasks with 5 cores each)"),
        (
            BatchRequest(cores=9),
            None,
            "`cores`: 9 are requested; a node of partition 'debug' of cluster 'a' has 8",
        ),
        (
            BatchRequest(cores=3, tasks_per_node=3),
            None,
            "`cores`: 3 are requested by each of 3 tasks of a node; a node",
        ),
        (
            BatchRequest(nodes=2, tasks=5, cores=4),
            None,
            "`tasks`: 5 with 4 cores each are requested; 2 nodes of partition 'debug' of cluster 'a' can run 4",
        ),
        (
            BatchRequest(memory_mb=16_001),
            None,
            "`memory`: 16001 MB are requested on each node; a node of partition 'debug' of cluster 'a' has 16000",
        ),
        (
            BatchRequest(gpus=1),
            None,
            "`gpus`: 1 GPUs are requested on each node; a node of partition 'debug' of cluster 'a' has 0",
        ),
        (BatchRequest(partition="gpu", gpus=5), None, "has 4"),
        (
            BatchRequest(),
            3601.0,
            "`timeLimit`: 3601 s are requested; partition 'debug' of cluster 'a' gives a run 3600 s",
        ),
    ],
)
def test_more_than_the_partition_has_is_refused_with_both_numbers(
    wishes: BatchRequest, secs: float | None, words: str
) -> None:
    code, sentence = refused(wishes, secs=secs)
    assert code == "resourceExceeded" and words in sentence, sentence
    # if the cluster's resources are unknown, Slurm decides
    assert asked(wishes, news={}, secs=secs).cluster == "a"


@pytest.mark.parametrize(
    "wishes",
    [
        BatchRequest(nodes=3),
        BatchRequest(tasks=24),
        BatchRequest(nodes=3, tasks=24),
        BatchRequest(cores=8, memory_mb=16_000, gpus=0),
        BatchRequest(cores=4, tasks_per_node=2, nodes=3),
        BatchRequest(partition="gpu", nodes=2, tasks=8, cores=4, gpus=4),
        BatchRequest(partition="open", nodes=10_000, gpus=9),
        BatchRequest(account="M1", qos="NORMAL"),
        BatchRequest(partition="big", nodes=10, account="m1", qos="large"),
        BatchRequest(partition="big"),
    ],
)
def test_what_just_fits_is_taken(wishes: BatchRequest) -> None:
    assert asked(wishes, secs=3600.0 if wishes.partition is None else None).cluster == "a"


@pytest.mark.parametrize(
    ("limits", "wishes", "secs", "words"),
    [
        (
            Limits(nodes=2),
            BatchRequest(nodes=3),
            None,
            "`nodes`: 3 are needed; the limit of cluster 'a' for a run is 2",
        ),
        (Limits(nodes=2), BatchRequest(tasks=17), None, "`nodes`: 3 are needed"),
        (
            Limits(tasks=4),
            BatchRequest(nodes=3, tasks_per_node=2),
            None,
            "`tasks`: 6 are requested; the limit",
        ),
        (
            Limits(cores=10),
            BatchRequest(tasks=4, cores=3),
            None,
            "`cores`: 12 are requested for all tasks together; the limit of cluster 'a' for a run is 10",
        ),
        (
            Limits(memory_mb=1000),
            BatchRequest(memory_mb=1001),
            None,
            "`memory`: 1001 MB are requested on each node; the limit of cluster 'a' for a run is 1000",
        ),
        (
            Limits(gpus=1),
            BatchRequest(partition="gpu", gpus=2),
            None,
            "`gpus`: 2 are requested on each node; the limit of cluster 'a' for a run is 1",
        ),
        (Limits(gpus=0), BatchRequest(partition="gpu", gpus=1), None, "is 0"),
        (
            Limits(time_limit_secs=60.0),
            BatchRequest(),
            61.0,
            "`timeLimit`: 61 s are requested; cluster 'a' gives a run 60 s",
        ),
    ],
)
def test_more_than_the_operator_allows_is_refused(
    limits: Limits, wishes: BatchRequest, secs: float | None, words: str
) -> None:
    code, sentence = refused(wishes, cluster(limits=limits), secs=secs)
    assert code == "resourceExceeded" and words in sentence, sentence


def test_all_that_is_wrong_is_told_at_once() -> None:
    code, sentence = refused(
        BatchRequest(partition="nope", account="m9", directives=("exclusive",), setup="\r"),
        secs=1.0,
    )
    assert code == "batchRefused" and sentence.count("; ") >= 3
    for word in ("nope", "m9", "exclusive", "Windows"):
        assert word in sentence
    code, sentence = refused(BatchRequest(cores=9, gpus=1, memory_mb=10**6), secs=99_999.0)
    assert (
        code == "resourceExceeded"
        and [w for w in ("`cores`", "`gpus`", "`memory`", "`timeLimit`") if w not in sentence] == []
    )


def test_a_usual_time_limit_is_cut_to_what_the_cluster_gives() -> None:
    def secs(
        own: float | None, usual: float | None, limit: float | None = None, partition: str = "debug"
    ) -> float | None:
        where = cluster(limits=Limits(time_limit_secs=limit))
        return check(
            spec(BatchRequest(partition=partition), secs=own), where, NEWS, usual_secs=usual
        ).time_limit_secs

    assert secs(None, None) is None and secs(None, 99_999.0) == 3600.0 and secs(None, 60.0) == 60.0
    assert secs(None, None, 7200.0) == 3600.0 and secs(None, None, 7200.0, "open") == 7200.0
    assert secs(30.0, 60.0) == 30.0 and secs(100.0, 60.0) == 100.0


def test_old_slurm_words_count_as_everything() -> None:
    news = {
        "a": ClusterStatus(
            cluster="a",
            at=1.0,
            scheduler="up",
            partitions=(Partition(name="p", default=True, accounts=("ALL",)),),
        )
    }
    assert asked(BatchRequest(account="x", qos="y"), news=news).account == "x"


def test_other_drivers_take_no_wishes() -> None:
    check_none(spec(), "local")
    with pytest.raises(Refusal, match="the driver local has no clusters"):
        check_none(spec(BatchRequest()), "local")


# ---- roles


def role(name: str, tasks: int, cpu: int = 1, memory_mb: int = 100, gpu: int = 0) -> TaskRole:
    return TaskRole(
        name=name, tasks=tasks, cpu=cpu, memory_mb=memory_mb, gpu=gpu, command=("true",)
    )


def test_a_type_of_gpus_is_refused_with_the_way_to_choose_them_on_a_cluster() -> None:
    typed = msgspec.structs.replace(role("w", 1, gpu=1), gpu_type="A100")
    code, sentence = refused(BatchRequest(partition="gpu"), roles=(typed,))
    assert code == "batchRefused" and "`constraint` of `batch`" in sentence


def test_tasks_of_all_roles_are_one_allocation_with_their_sum() -> None:
    done = asked(
        BatchRequest(), roles=(role("ps", 2, memory_mb=500), role("w", 3, cpu=2, memory_mb=1000))
    )
    assert (done.nodes, done.tasks, done.tasks_per_node, done.cores, done.memory_mb, done.gpus) == (
        1,
        1,
        None,
        8,
        4000,
        None,
    )
    assert asked(BatchRequest(partition="gpu"), roles=(role("w", 3, gpu=1),)).gpus == 3


def test_a_gang_that_no_node_can_hold_gets_the_fewest_nodes_that_may() -> None:
    done = asked(BatchRequest(), roles=(role("ps", 1), role("w", 5, cpu=4, memory_mb=3000)))
    assert (done.nodes, done.tasks, done.tasks_per_node, done.cores, done.memory_mb) == (
        3,
        6,
        2,
        4,
        6000,
    )
    assert asked(BatchRequest(), news={}, roles=(role("w", 500, cpu=4),)).nodes == 1


def test_nodes_may_be_asked_for_with_roles_and_the_defaults_of_sizes_do_not_count() -> None:
    done = asked(
        BatchRequest(nodes=2),
        cluster(defaults=BatchRequest(tasks=64, cores=8, memory_mb=9, gpus=4, partition="gpu")),
        roles=(role("w", 4),),
    )
    assert (
        done.nodes,
        done.tasks,
        done.tasks_per_node,
        done.cores,
        done.memory_mb,
        done.gpus,
        done.partition,
    ) == (2, 4, 2, 1, 200, None, "gpu")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (BatchRequest(nodes=5), "5 `nodes` are more than the 4 tasks of all roles"),
        (BatchRequest(tasks=7), "`tasks` is 7, but the roles have 4 tasks"),
        (BatchRequest(tasks_per_node=3), "`tasksPerNode` is for runs without roles"),
        (
            BatchRequest(memory_mb=399),
            "`memory` of a node is 399, and the tasks of the roles need 400",
        ),
        (
            BatchRequest(partition="gpu", gpus=3),
            "`gpus` of a node is 3, and the tasks of the roles need 4",
        ),
    ],
)
def test_what_roles_contradict_is_refused(wishes: BatchRequest, words: str) -> None:
    code, sentence = refused(wishes, roles=(role("w", 4, gpu=1 if wishes.gpus else 0),))
    assert code == "batchRefused" and words in sentence


def test_a_gang_that_fits_nowhere_is_refused_with_numbers() -> None:
    assert refused(roles=(role("w", 1, cpu=9),)) == (
        "resourceExceeded",
        "`cores`: 9 are requested; a node of partition 'debug' of cluster 'a' has 8",
    )
    code, sentence = refused(roles=(role("w", 30, cpu=1, memory_mb=8000),))
    assert (
        code == "resourceExceeded"
        and "`memory`: 80000 MB are requested on each node; a node of partition 'debug' of cluster 'a' has 16000"
        in sentence
    )
    code, sentence = refused(None, cluster(limits=Limits(tasks=3)), roles=(role("w", 4),))
    assert code == "resourceExceeded" and "`tasks`: 4 are requested" in sentence


MANY = 2000 if os.environ.get("SOAK") else 100
_counts = st.none() | st.integers(1, 70)


@how(max_examples=MANY, deadline=None)
@given(
    st.lists(
        st.builds(
            role,
            st.sampled_from("abc"),
            st.integers(1, 9),
            st.integers(1, 9),
            st.integers(1, 20_000),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=3,
    ),
    st.builds(
        NodeLimits,
        cores=_counts,
        memory_mb=st.none() | st.integers(1, 90_000),
        gpus=st.none() | st.integers(0, 8),
        nodes=_counts,
    ),
    st.none() | st.integers(1, 9),
)
def test_an_allocation_has_what_its_tasks_need(
    roles: list[TaskRole], room: NodeLimits, nodes: int | None
) -> None:
    made, wrong = gang_request(roles, BatchRequest(nodes=nodes), room)
    count = sum(r.tasks for r in roles)
    assert (
        bool(wrong) == ((nodes or 0) > count)
        and made.nodes is not None
        and 1 <= made.nodes <= count
        and made.cores is not None
    )
    assert made.nodes * (made.memory_mb or 0) >= sum(r.tasks * r.memory_mb for r in roles)
    assert made.nodes * (made.gpus or 0) >= sum(r.tasks * r.gpu for r in roles)
    assert tasks_of(made) * made.cores >= sum(r.tasks * r.cpu for r in roles)
    assert made.nodes == 1 or (
        tasks_of(made) >= count
        and made.cores >= max(r.cpu for r in roles)
        and (made.tasks_per_node or 0) * made.nodes == made.tasks
    )
    # a gang that fits on one node gets one node
    if nodes is None and all(
        h is None or n <= h
        for n, h in (
            (sum(r.tasks * r.cpu for r in roles), room.cores),
            (sum(r.tasks * r.memory_mb for r in roles), room.memory_mb),
            (sum(r.tasks * r.gpu for r in roles), room.gpus),
        )
    ):
        assert made.nodes == 1


@how(max_examples=MANY, deadline=None)
@given(
    _counts,
    _counts,
    _counts,
    _counts,
    st.none() | st.integers(0, 99_999),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, "debug", "big", "gpu", "open"]),
)
def test_what_is_taken_fits_its_partition(
    nodes: int | None,
    tasks: int | None,
    per_node: int | None,
    cores: int | None,
    memory: int | None,
    gpus: int | None,
    name: str | None,
) -> None:
    """Recompute the resources from the Slurm request. A refused request does not fit."""
    wishes = BatchRequest(
        nodes=nodes,
        tasks=tasks,
        tasks_per_node=per_node,
        cores=cores,
        memory_mb=memory or None,
        gpus=gpus,
        partition=name,
    )
    p = next(p for p in PARTITIONS if p.name == (name or "debug"))
    each = cores or 1
    count = tasks if tasks is not None else (nodes or 1) * (per_node or 1)
    node = min(n for n in (per_node, (p.cores_per_node or 10**9) // each, 10**9) if n is not None)
    most = min(n for n in (p.nodes, p.max_nodes, 10**9) if n is not None)
    fits = (
        (p.cores_per_node is None or each * (per_node or 1) <= p.cores_per_node)
        and node > 0
        and count <= (nodes or most) * node
        and (nodes or 1) <= most
        and (nodes is None or tasks is None or nodes <= tasks)
        and (p.min_nodes is None or nodes is None or nodes >= p.min_nodes)
        and (memory or 0) <= (p.memory_mb_per_node or 10**9)
        and (gpus or 0) <= (p.gpus_per_node if p.gpus_per_node is not None else 10**9)
    )
    try:
        asked(wishes)
    except Refusal as e:
        assert not fits, e.sentence
    else:
        assert fits and nodes_of(wishes, p.cores_per_node) <= most


@how(max_examples=MANY, deadline=None)
@given(
    st.sampled_from(["exclusive", "reservation"])
    | st.text(st.characters(codec="utf-8"), max_size=30)
    | st.sampled_from([*RESERVED]).map(lambda n: n[:-1]),
    st.text(max_size=10) | st.text("ab= #\"'`$\\;-\n\t\u00a0%{}", max_size=6),
)
@example("exclusive", "user --array=1-9")
@example("reservation", "x #")
def test_a_directive_that_passes_is_one_option_of_those_allowed(name: str, value: str) -> None:
    """An accepted directive becomes one `#SBATCH` line with exactly this option."""
    import msgspec

    text = f"{name}={value}" if value else name
    try:
        (directive,) = msgspec.convert({"directives": [text]}, BatchRequest).directives
        done = asked(
            BatchRequest(directives=(directive,)), cluster(directives=("exclusive", "reservation"))
        )
    except (msgspec.ValidationError, Refusal):
        return
    (line,) = request_lines(done, allowed=("exclusive", "reservation"), time_limit_secs=None)
    assert (
        name in ("exclusive", "reservation")
        and len(line.split()) == 2
        and "#" not in line[1:]
        and directive_problem(directive) is None
    )


@how(max_examples=MANY, deadline=None)
@given(st.text(max_size=60))
def test_set_up_is_lines_of_text_or_refused(setup: str) -> None:
    if setup_problem(setup) is None:
        assert all(c in "\t\n" or ord(c) >= 32 for c in setup) and "#SBATCH" not in [
            line.strip().split(" ")[0] for line in setup.split("\n")
        ]
        setup.encode()
