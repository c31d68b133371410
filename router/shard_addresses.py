"""The addresses of the supervisors of each shard: those of the settings, or those that the shards' roots
name.
"""

from collections.abc import Sequence

from ..client.api.errors import ClientError
from ..client.transport.address import in_root
from ..protocol.errors import Refusal
from ..service.settings.settings import Settings
from ..service.site.shards import root_of
from .upstream import Unreached

#: Time after which clients send a request again, in seconds.
RETRY_SECS = 1.0


class ShardAddresses:
    """total: number of shards."""

    def __init__(self, settings: Settings) -> None:
        assert settings.shards.count is not None
        self.total = settings.shards.count
        self._given = [[u for u in text.split(",") if u] for text in settings.shards.addresses]
        self._sources = [in_root(root_of(settings.root, k)) for k in range(self.total)]
        self._read: dict[int, str] = {}

    def of(self, shard: int) -> Sequence[str]:
        """Return the addresses to try in this order. Raises Unreached if none is known."""
        if self._given:
            return list(self._given[shard])
        if shard not in self._read:
            try:
                self._read[shard] = self._sources[shard]().url
            except ClientError as e:
                raise Unreached(e.sentence) from None
        return [self._read[shard]]

    def others(self, shard: int, url: str) -> list[str]:
        """Return the other addresses of the shard: those of the settings, or the one that its root names now."""
        if self._given:
            return [u for u in self._given[shard] if u != url]
        try:
            found = self._sources[shard]().url
        except ClientError:
            return []
        self._read[shard] = found
        return [] if found == url else [found]

    def serves(self, shard: int, url: str) -> None:
        """Try this address first from now on."""
        if self._given and self._given[shard][0] != url:
            self._given[shard].remove(url)
            self._given[shard].insert(0, url)

    def moved(self, shard: int, url: str) -> bool:
        """Forget an address that does not serve. Return whether the root of the shard names another one."""
        if self._read.pop(shard, None) is None:
            return False
        try:
            return url not in self.of(shard)
        except Unreached:
            return False


def no_supervisor(shards: Sequence[int]) -> Refusal:
    """Return the refusal of a request for shards that no supervisor serves."""
    names = ", ".join(map(str, sorted(shards)))
    return Refusal(
        "noSupervisor",
        f"no supervisor serves shard {names} of the site at the moment; other shards are not concerned",
        {"retryAfterSecs": RETRY_SECS, "missing": sorted(shards)},
    )
