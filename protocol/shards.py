"""The division of users into shards. Pure.

`shard_of` may never change: users of existing sites would be looked for in the wrong shard.
"""

from hashlib import blake2b
from typing import NamedTuple

#: Largest number of shards of a site.
MOST = 64


class Shard(NamedTuple):
    """One shard of a site. total: number of shards of the site."""

    number: int
    total: int

    @property
    def name(self) -> str:
        """Return the shard in words, for messages."""
        return f"shard {self.number} of {self.total}"

    def has(self, uid: str) -> bool:
        """Return whether this user belongs to the shard."""
        return shard_of(uid, self.total) == self.number

    def part(self, whole: int) -> int:
        """Return the part of a limit that this shard has. The parts of all shards make the whole."""
        return whole // self.total + (self.number < whole % self.total)


def shard_of(uid: str, count: int) -> int:
    """Return the number of the shard of this user, by rendezvous hashing: the shard with the highest
    digest of its number and the user.
    """
    return max(range(count), key=lambda number: (_weight(uid, number), number))


def _weight(uid: str, number: int) -> bytes:
    return blake2b(f"{number}:{uid}".encode(), digest_size=8, person=b"jobscribe-shard").digest()
