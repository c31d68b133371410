"""Users are divided into shards, always in the same way."""

from collections import Counter

import pytest

from jobscribe.protocol.shards import Shard, shard_of

#: May never change: users of existing sites would be looked for in another shard.
PINNED = {
    "SystemU1": (0, 0, 2, 2, 50),
    "alice": (0, 0, 0, 0, 42),
    "bob": (0, 0, 0, 4, 18),
    "Zo": (0, 0, 0, 3, 53),
}


@pytest.mark.parametrize("uid", PINNED)
def test_a_user_stays_in_the_same_shard_for_ever(uid: str) -> None:
    assert tuple(shard_of(uid, total) for total in (1, 2, 3, 5, 64)) == PINNED[uid]


def test_shards_have_about_the_same_number_of_users() -> None:
    for total in (2, 3, 8):
        users = Counter(shard_of(f"user{n:05d}", total) for n in range(8_000))
        assert set(users) == set(range(total))
        assert max(users.values()) < 1.15 * 8_000 / total, users


def test_one_more_shard_moves_users_to_the_new_shard_only() -> None:
    for n in range(500):
        before, after = shard_of(f"user{n}", 3), shard_of(f"user{n}", 4)
        assert after in (before, 3)


@pytest.mark.parametrize("whole", (4, 5, 7, 64, 1000))
def test_the_parts_of_a_limit_make_the_whole(whole: int) -> None:
    parts = [Shard(k, 4).part(whole) for k in range(4)]
    assert sum(parts) == whole and max(parts) - min(parts) <= 1


def test_each_user_has_one_shard() -> None:
    assert [k for k in range(5) if Shard(k, 5).has("bob")] == [shard_of("bob", 5)]
    assert Shard(1, 5).name == "shard 1 of 5"
