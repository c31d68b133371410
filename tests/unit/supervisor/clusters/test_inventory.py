"""The inventory of clusters: a user's report counts only for that user, the newest one counts, and
it expires.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from jobscribe.protocol.api.requests import ClusterList, RunSpec
from jobscribe.protocol.clusters.batch import BatchRequest, ClusterStatus, Partition
from jobscribe.protocol.clusters.cluster import Cluster, Clusters, Limits, LoginHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.wire.messages import ClusterReport
from jobscribe.supervisor.api.endpoints.hosts import clusters as route
from jobscribe.supervisor.clusters import inventory as module
from jobscribe.supervisor.clusters.inventory import STALE_SECS, ClusterInventory

ANN, BOB = "user0001", "user0002"
BOTH = Clusters(
    clusters=(
        Cluster(
            name="far",
            access="ssh",
            login=(LoginHost(host="h", keys=("k",)),),
            defaults=BatchRequest(partition="p"),
            limits=Limits(nodes=4),
            directives=("exclusive",),
        ),
        Cluster(name="here"),
    )
)


class Clock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


def news(cluster: str = "far", *names: str, **fields: Any) -> ClusterReport:
    return ClusterReport(
        news=ClusterStatus(
            **{
                "cluster": cluster,
                "at": 5.0,
                "scheduler": "up",
                "partitions": tuple(Partition(name=n, default=True, nodes=2) for n in names),
                **fields,
            }
        )
    )


def key(uid: str = ANN, cluster: str = "far", driver: str = "sbatch") -> AgentKey:
    return AgentKey(driver, "parallel", uid, cluster)


def spec(uid: str = ANN, batch: BatchRequest | None = None, driver: str = "sbatch") -> RunSpec:
    more = {} if batch is None else {"batch": batch}
    return RunSpec(uid=uid, simulation_id="sim00001", driver=driver, command=("true",), **more)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> ClusterInventory:
    return ClusterInventory(BOTH, now=clock)


def test_the_newest_word_counts_for_who_told_it(board: ClusterInventory) -> None:
    board.heard(key(), news("far", "a"))
    board.heard(key(), news("far", "p"))
    board.heard(key(BOB), news("far", "b"))
    assert [p.name for p in board.news(ANN)["far"].partitions] == ["p"] and [
        p.name for p in board.news(BOB)["far"].partitions
    ] == ["b"]
    assert board.news("user0003") == {}
    assert board.asked(spec(batch=BatchRequest(nodes=2))).batch == BatchRequest(
        cluster="far", partition="p", nodes=2
    )
    with pytest.raises(Refusal, match='no partition "p"; there are: b'):
        board.asked(spec(BOB))
    # no report for this user: Slurm decides
    assert board.asked(spec("user0003", BatchRequest(nodes=4))).batch == BatchRequest(
        cluster="far", partition="p", nodes=4
    )


def test_what_the_supervisors_own_account_sees_is_everybodys(board: ClusterInventory) -> None:
    board.heard(key(ANN, "here"), news("here", "a"))
    with pytest.raises(Refusal, match='no partition "x"'):
        board.asked(spec(BOB, BatchRequest(cluster="here", partition="x")))


def test_slurms_silence_takes_nothing_away(board: ClusterInventory) -> None:
    board.heard(key(), news("far", "p"))
    board.heard(key(), news("far", scheduler="unreachable", detail="no answer"))
    assert [p.name for p in board.news(ANN)["far"].partitions] == ["p"]
    row = board.listing(ANN)[0]
    assert (row["state"], row["detail"], [p["name"] for p in row["partitions"]]) == (
        "unreachable",
        "no answer",
        ["p"],
    )
    # but Slurm itself can report that there are no partitions
    board.heard(key(), news("far"))
    assert board.news(ANN)["far"].partitions == ()


def test_an_old_word_refuses_nothing(board: ClusterInventory, clock: Clock) -> None:
    board.heard(key(), news("far", "a"))
    with pytest.raises(Refusal):
        board.asked(spec())
    clock.at += STALE_SECS + 1
    assert board.asked(spec()).batch == BatchRequest(cluster="far", partition="p")
    assert board.listing(ANN)[0]["partitions"] is not None


@pytest.mark.parametrize(
    ("from_", "report", "code"),
    [
        (key(cluster="here"), news("far"), "foreignToken"),
        (key(cluster="gone"), news("gone"), "foreignToken"),
        (AgentKey("docker", "parallel", ANN, "far"), news("far"), "foreignToken"),
        (key(), news("far", *map(str, range(1001))), "tooLarge"),
        (key(), news("far", accounts=tuple(map(str, range(1001)))), "tooLarge"),
    ],
)
def test_an_agent_tells_of_its_own_cluster_and_not_without_end(
    board: ClusterInventory, from_: AgentKey, report: ClusterReport, code: str
) -> None:
    with pytest.raises(Refusal) as e:
        board.heard(from_, report)
    assert e.value.code == code and board.sizes() == {"far": 0, "here": 0}


def test_of_many_users_the_latest_are_kept(
    board: ClusterInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 3)
    for n in range(5):
        board.heard(key(f"user000{n}"), news("far", "p"))
    assert board.sizes()["far"] == 3 and [bool(board.news(f"user000{n}")) for n in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_the_listing_has_what_a_user_may_know_and_nothing_about_signing_in(
    board: ClusterInventory,
) -> None:
    board.heard(key(BOB), news("far", "b", accounts=("secret-project",)))
    far, here = board.listing(ANN)
    assert far == {
        "cluster": "far",
        "access": "ssh",
        "state": "unknown",
        "detail": "",
        "at": None,
        "version": None,
        "partitions": None,
        "accounts": None,
        "qos": None,
        "defaults": {"partition": "p"},
        "limits": {"nodes": 4},
        "directives": ["exclusive"],
        "runs": 1000,
        "runsPerUser": 100,
    }
    assert (
        here["cluster"] == "here"
        and "secret-project" not in str(board.listing(ANN))
        and "secret-project" in str(board.listing(BOB))
    )


def test_other_drivers_and_houses_without_clusters(board: ClusterInventory) -> None:
    for each in (board, ClusterInventory(None)):
        assert each.asked(spec(driver="local")) == spec(driver="local")
        with pytest.raises(Refusal, match="the driver local has no clusters"):
            each.asked(spec(batch=BatchRequest(), driver="local"))
    assert (ClusterInventory(None).listing(ANN), ClusterInventory(None).news(ANN)) == ([], {})


def test_a_usual_time_limit_is_cut_to_the_clusters() -> None:
    one = Clusters(clusters=(Cluster(name="a", limits=Limits(time_limit_secs=60.0)),))
    assert ClusterInventory(one, usual_secs=90.0).asked(spec()).time_limit_secs == 60.0


@pytest.mark.asyncio
async def test_the_route_answers_for_the_user_who_asks(board: ClusterInventory) -> None:
    def handler(clusters: ClusterInventory | None) -> Any:
        return SimpleNamespace(
            parsed=lambda type_: ClusterList(uid=ANN), services=SimpleNamespace(clusters=clusters)
        )

    assert await route(handler(board)) == {"state": "ok", "clusters": board.listing(ANN)}
    assert await route(handler(None)) == {"state": "ok", "clusters": []}
