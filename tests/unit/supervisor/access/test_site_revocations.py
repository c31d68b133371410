"""A revoked token ends what it created in other shards, whatever the database or the log refuses meanwhile."""

from collections.abc import Callable, Collection, Mapping

from access_kit import access

from jobscribe.supervisor.access.api_tokens import HomeToken
from jobscribe.supervisor.access.device_logins import DeviceLogins
from jobscribe.supervisor.access.principal import Principal
from jobscribe.supervisor.access.request_rates import RequestRates
from jobscribe.supervisor.access.site_revocations import SiteRevocations

ANN, BOSS = "user0001", "user0009"


class Table:
    """The table of a site. answers: False while the database is away."""

    def __init__(self) -> None:
        self.rows, self.answers, self.asked = dict[str, float](), True, 0

    def revoked(
        self,
        own: Mapping[str, float],
        asked: Collection[str],
        done: Callable[[frozenset[str] | None], None],
    ) -> None:
        self.asked += 1
        if not self.answers:
            return done(None)
        self.rows |= own
        done(frozenset(i for i in asked if i in self.rows))


class Life:
    """A shard of the site."""

    def __init__(self, table: Table) -> None:
        self.tokens = access("secret").tokens
        rates = RequestRates(1e6, 10, lambda: 0.0)
        logins = DeviceLogins(self.tokens, rates, lambda: 0.0, lambda n: b"x" * n, "https://x")
        self.site = SiteRevocations(self.tokens, logins, table, lambda what, why: None)


async def test_a_revocation_reaches_other_shards_along_the_chain_of_creators() -> None:
    table = Table()
    first, second = Life(table), Life(table)
    by = Principal(uid=BOSS, role="admin", scopes=frozenset({"read"}), limited=True)
    _, root = await first.tokens.create(by, BOSS, "root", ("read",), None)
    home = HomeToken(root.id, root.expires_at)
    _, child = await second.tokens.create(by, ANN, "child", ("read",), None, home)
    _, leaf = await first.tokens.create(
        by, ANN, "leaf", ("read",), None, HomeToken(child.id, child.expires_at)
    )
    await first.site.look()
    assert table.rows == {} and second.tokens.live(child)
    await first.tokens.revoke(by, BOSS, root.id, "lost")
    table.answers = False
    for shard in (first, second):
        await shard.site.look()
    assert second.tokens.live(child), "the database is away"
    table.answers = True
    for shard in (first, second, second, first):  # two looks for each step
        await shard.site.look()
    assert not second.tokens.live(child) and not first.tokens.live(leaf)
    # nothing is left to ask for; a supervisor that starts adds its revocations again
    await first.site.look()
    await second.site.look()
    asked = table.asked
    for shard in (first, second):
        await shard.site.look()
    assert table.asked == asked
    table.rows.clear()
    first.site._added = frozenset()
    await first.site.look()
    assert root.id in table.rows
