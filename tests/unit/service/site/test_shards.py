"""A shard gets its own root, schema and listeners, and its part of each limit that spans users."""

import dataclasses
import os
import pathlib
from typing import Any

import pytest

from jobscribe.protocol.clusters.cluster import Cluster, Clusters
from jobscribe.protocol.clusters.container_pool import Pool, PoolHost
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.shards import Shard
from jobscribe.service.settings.loader import load
from jobscribe.service.settings.settings import Settings
from jobscribe.service.site import shards

URL = "postgresql:///jobs?host=/run/postgresql&schema=site"


def made(root: pathlib.Path, number: int | None = 0, count: int = 3, **more: Any) -> Settings:
    given = {
        "root": str(root),
        "store.url": URL,
        "shards.count": count,
        "shards.number": number,
        "supervisor.development": True,
        "slots.local_sequential": 7,
        "slots.local_parallel": 4,
        "resources.local_cpu": 8,
        "resources.local_memory_mb": 1000,
        "resources.local_ports": "30000-30010",
    }
    return load({**given, **more}, env={})


def test_the_parts_of_all_shards_make_the_whole_and_overlap_nowhere(tmp_path: pathlib.Path) -> None:
    parts = [shards.of_shard(made(tmp_path, k)) for k in range(3)]
    assert [p.slots.local_sequential for p in parts] == [3, 2, 2]
    assert [p.slots.local_parallel for p in parts] == [2, 1, 1]
    # a user alone on the site may use what other shards do not need
    assert [p.slots.op_run for p in parts] == [7, 7, 7]
    assert parts[0].site_limits == {
        "slots.local_sequential": 7,
        "slots.local_parallel": 4,
        "resources.local_cpu": 8,
        "resources.local_memory_mb": 1000,
    }
    assert [p.resources.local_cpu for p in parts] == [3, 3, 2]
    assert sum(p.resources.local_memory_mb for p in parts) == 1000
    ports = [p.resources.local_ports for p in parts]
    assert ports == [(30000, 30003), (30004, 30007), (30008, 30010)]
    assert [p.store.url for p in parts] == [
        f"postgresql:///jobs?host=/run/postgresql&schema=site_{k}" for k in range(3)
    ]
    assert [p.root for p in parts] == [f"{tmp_path}/shards/{k}" for k in range(3)]
    assert [p.user_root for p in parts] == [f"{tmp_path}/shards/{k}/user" for k in range(3)]
    assert {p.supervisor.server_secret_file for p in parts} == {f"{tmp_path}/secret/server"}
    assert [p.shard for p in parts] == [Shard(k, 3) for k in range(3)]


def test_a_tree_of_users_and_ports_are_apart(tmp_path: pathlib.Path) -> None:
    found = shards.of_shard(
        made(
            tmp_path,
            2,
            **{
                "user_root": "/data",
                "supervisor.agents_port": 9000,
                "supervisor.agents_others": "b.example.org:9000",
                "supervisor.port": 8001,
                "supervisor.tls_cert": "c",
                "supervisor.tls_key": "k",
            },
        )
    )
    assert found.user_root == "/data/shards/2"
    assert (found.supervisor.agents_port, found.supervisor.port) == (9002, 0)
    assert found.supervisor.agents_others == ("b.example.org:9002",)
    assert found.supervisor.tls_cert is None, "the public address is the router's"
    given = {"supervisor.tls_cert": "c", "supervisor.tls_key": "k", "shards.tls_port": 9100}
    open_ = shards.of_shard(made(tmp_path, 2, **given)).supervisor
    assert (open_.tls_port, open_.tls_cert) == (9102, "c")


@pytest.mark.parametrize(
    "name, value",
    (
        ("slots.local_sequential", 2),
        ("slots.local_parallel", 2),
        ("resources.local_cpu", 2),
        ("resources.local_ports", "30000-30001"),
    ),
)
def test_a_limit_below_the_number_of_shards_is_refused(
    tmp_path: pathlib.Path, name: str, value: Any
) -> None:
    with pytest.raises(Refusal) as e:
        shards.of_shard(made(tmp_path, 0, **{name: value}))
    assert e.value.code == "badConfig" and name in e.value.sentence and "3" in e.value.sentence


@pytest.mark.parametrize(
    "given, word",
    (
        ({"shards.number": 3}, "0 to 2"),
        ({"store.url": None}, "store.url"),
        ({"shards.addresses": "http://a:1 http://b:2"}, "names 2 shards"),
        ({"shards.count": None}, "shards.number"),
        ({"supervisor.sockets": True}, "supervisor.sockets"),
        ({"shards.count": 65}, "1 to 64"),
        ({"shards.addresses": "a.example.org"}, "addresses"),
    ),
)
def test_settings_that_make_no_site_are_refused(
    tmp_path: pathlib.Path, given: dict[str, Any], word: str
) -> None:
    with pytest.raises(Refusal) as e:
        made(tmp_path, **given) if given.get("shards.number", 0) != 3 else made(tmp_path, 3)
    assert e.value.code == "badConfig" and word in e.value.sentence


def test_a_supervisor_of_the_whole_site_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refusal, match="--shard"):
        shards.of_shard(made(tmp_path, None))
    plain = load({"root": str(tmp_path)}, env={})
    assert shards.of_shard(plain) is plain
    (tmp_path / "shards").mkdir()
    with pytest.raises(Refusal, match=r"set shards\.count"):
        shards.of_shard(plain)


def test_each_host_belongs_to_one_shard() -> None:
    def host(name: str, **more: Any) -> PoolHost:
        return PoolHost(name=name, address="unix:///run/d", cpu=1, memory_mb=1, **more)

    pool = Pool(
        hosts=(host("a"), host("b"), host("c", shard=0), host("d")),
        image="i",
        unix_users=(1000, 1006),
    )
    parts = [shards.pool_of(pool, Shard(k, 2)) for k in range(2)]
    assert [[h.name for h in p.hosts] for p in parts] == [["a", "c"], ["b", "d"]]
    assert [p.unix_users for p in parts] == [(1000, 1003), (1004, 1006)]
    assert shards.pool_of(pool, None) is pool
    with pytest.raises(Refusal, match="shard 4 of 5"):
        shards.pool_of(pool, Shard(4, 5))
    with pytest.raises(Refusal, match="the hosts x"):
        shards.pool_of(Pool(hosts=(host("x", shard=7), host("y")), image="i"), Shard(1, 2))


def test_runs_on_a_cluster_are_divided() -> None:
    cluster = Cluster(name="c", login="login", runs=5)
    parts = [shards.clusters_of(Clusters(clusters=(cluster,)), Shard(k, 2)) for k in range(2)]
    assert [p.clusters[0].runs for p in parts] == [3, 2]
    with pytest.raises(Refusal, match="cluster c"):
        shards.clusters_of(Clusters(clusters=(cluster,)), Shard(0, 6))


def test_gpus_belong_to_shards_in_turn() -> None:
    gpus = ("0", "1", "2")
    assert [shards.in_turn(gpus, Shard(k, 2)) for k in range(2)] == [("0", "2"), ("1",)]
    assert shards.in_turn(gpus, None) == gpus


def test_shared_secrets_are_created_once(tmp_path: pathlib.Path) -> None:
    settings = made(tmp_path / "r")
    shards.make_secrets(settings)
    names = {n: (tmp_path / "r/secret" / n).read_text() for n in os.listdir(tmp_path / "r/secret")}
    shards.make_secrets(settings)
    assert set(names) == {"server", "metrics", "uid"}
    assert all((tmp_path / "r/secret" / n).read_text() == text for n, text in names.items())
    service = dataclasses.replace(
        settings, supervisor=dataclasses.replace(settings.supervisor, development=False)
    )
    assert shards.of_shard(service).supervisor.server_secret_file is None, "it must be configured"
