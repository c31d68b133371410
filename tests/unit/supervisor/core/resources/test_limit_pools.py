"""Pools of concurrency limits are values: equal if and only if type and fields are equal."""

import typing

from jobscribe.supervisor.core.resources.limit_pools import (
    ArrayPool,
    CpuPool,
    JobPool,
    LimitPool,
    OpPool,
    RunDirPool,
    UserPool,
    UserTotal,
    cpu_pool,
)

JID = "user0001-sim00001-command"


def pools():
    return [
        JobPool(JID),
        RunDirPool(JID),
        ArrayPool("user0001", "sim00001", 2),
        ArrayPool("user0001", "sim00001", 3),
        UserPool("user0001", 2),
        UserTotal("user0001", "cores"),
        UserTotal("user0001", "gpus"),
        OpPool("local", "sequential", "a", None),
        OpPool("local", "sequential", "a", "a"),
        CpuPool("local", "sequential", "a"),
    ]


def test_pools_of_different_types_with_equal_fields_do_not_collide():
    assert {type(pool) for pool in pools()} == set(typing.get_args(LimitPool))
    holders = {pool: n for n, pool in enumerate(pools())}
    assert [holders[pool] for pool in pools()] == list(range(len(pools())))


def test_a_user_has_no_part_in_the_slots_of_a_host(kit):
    one, other = (cpu_pool(kit.key_of(uid, host="a")) for uid in (kit.UID, kit.OTHER_UID))
    assert one == other == CpuPool("local", "sequential", "a")
    assert one != cpu_pool(kit.key_of(kit.UID, host="b"))
