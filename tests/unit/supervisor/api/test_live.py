"""Who may open a stream of updates, and what ends it: roles, hooks and API tokens that change."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from access_kit import Clock, access
from in_memory_supervisor import InMemorySupervisor

from jobscribe.db.events.events import AUDIT
from jobscribe.protocol.errors import Refusal
from jobscribe.service import tickets
from jobscribe.service.site.users_file import Group, Users
from jobscribe.supervisor.access.principal import Principal
from jobscribe.supervisor.api.endpoints import live_updates
from jobscribe.supervisor.streams.live_updates import Subscription

ANN, BOB, LEAD, ADMIN = "user0001", "user0002", "lead0001", "admin001"
USERS = Users(admins=(ADMIN,), groups={"physics": Group(admins=(LEAD,), members=(ANN,))})
ANNS, BOBS = f"{ANN}-sim00001-command", f"{BOB}-sim00001-command"


class Live:
    """A supervisor with users, and requests for its stream."""

    def __init__(self) -> None:
        self.in_memory = InMemorySupervisor()
        self.clock = Clock()
        self.access = access("secret", on=self.in_memory.engine, users=USERS, clock=self.clock)

    async def open(self, uid: str, **options: Any) -> tuple[Any, Subscription]:
        h = self.request(uid, **options)
        viewer = live_updates._Viewer(h)
        return viewer, await live_updates._subscription(h, viewer)

    def request(
        self,
        uid: str,
        *,
        admin: bool = False,
        sender: Principal | None = None,
        shells: Any = None,
        **query: Any,
    ) -> Any:
        headers = {}
        if sender is None:
            now = self.in_memory.now().wall
            headers[tickets.HEADER] = tickets.sign("secret", uid, now, admin=admin)
        return SimpleNamespace(
            services=SimpleNamespace(
                access=self.access,
                secret=SimpleNamespace(try_all=lambda use: use(("secret",))),
                shells=shells,
            ),
            runs=self.in_memory.desk,
            sender=sender,
            request=SimpleNamespace(headers=headers),
            peer="127.0.0.1",
            argument=query.get,
            arguments=lambda name: query.get(name, []),
            log=SimpleNamespace(bound=lambda **ids: None),
            authenticated=lambda: None,
        )


async def test_roles_decide_whose_jobs_a_stream_has_and_acts_are_on_record() -> None:
    site = Live()
    _, own = await site.open(BOB, of="group")
    assert own.owners == {BOB}
    lead, group = await site.open(LEAD, of="group", computeJid=[ANNS, BOBS])
    assert group.users == {ANN} and lead.sees(ANN) and not lead.sees(BOB)
    for uid in (ANN, LEAD):
        with pytest.raises(Refusal, match="only a site administrator"):
            await site.open(uid, of="all")
    assert (await site.open(ADMIN, of="all"))[1].of == "all"
    assert (await site.open(BOB, admin=True, of="all"))[0].sees(ANN)
    with pytest.raises(Refusal, match="own, group or all"):
        await site.open(ADMIN, of="everything")
    for _ in range(2):  # once in an hour
        await site.open(ADMIN, logs=BOBS)
    events: Any = [s.event for s in site.in_memory.store.read(AUDIT)]
    found = [(e.actor, e.subject, e.action, e.jid) for e in events]
    assert found == [(LEAD, ANN, "live", ANNS), (ADMIN, BOB, "live", BOBS)]


async def test_a_stream_ends_when_its_user_loses_a_right() -> None:
    site = Live()
    mono = site.in_memory.mono
    opened = {
        "lead": await site.open(LEAD, of="group"),
        "job": await site.open(LEAD, computeJid=[ANNS, BOBS]),
        "admin": await site.open(ADMIN, of="all"),
        "own": await site.open(ANN),
        "hook": await site.open(BOB, admin=True, of="all"),
    }

    def still(mono: float = mono) -> set[str]:
        return {name for name, (viewer, wish) in opened.items() if viewer.may_read(wish, mono)}

    assert still() == set(opened)
    site.access.users = Users(admins=(ADMIN,), groups={"physics": Group(admins=(LEAD,))})
    assert still() == {"admin", "own", "hook"}
    site.access.users = Users()
    assert still() == {"own", "hook"}
    assert still(mono + live_updates.HOOK_SECS) == {"own"}, "only the front end asks the hook"


async def test_an_api_token_opens_a_stream_until_it_is_revoked() -> None:
    site = Live()
    text, token = await site.access.tokens.create(
        site.access.person(ADMIN), ADMIN, "watch", ("read", "admin"), None
    )
    sender = site.access.principal(f"Bearer {text}", None, monitors=False)
    viewer, wish = await site.open(ADMIN, sender=sender, of="all")
    assert viewer.may_read(wish, site.in_memory.mono)
    await site.access.tokens.revoke(sender, ADMIN, token.id, "lost")
    assert not viewer.may_read(wish, site.in_memory.mono)
    _, token = await site.access.tokens.create(
        site.access.person(ADMIN), ADMIN, "no read", ("control",), None
    )
    with pytest.raises(Refusal, match="has no scope read"):
        await site.open(ADMIN, sender=site.access.holder(token))
    with pytest.raises(Refusal, match="ticket"):
        await site.open(ADMIN, sender=Principal())


class Ended:
    """Shells of which none is open."""

    async def output(self, uid: str, jid: str, shell_id: str, offset: int) -> AsyncIterator[Any]:
        raise Refusal("notFound", f"no shell of {uid}")
        yield


async def test_the_stream_of_a_shell_has_the_rules_of_shells() -> None:
    """Administrators of groups see jobs of members, and may not enter them."""
    site = Live()

    async def refused(uid: str, **options: Any) -> str:
        query = {"shell": "s" * 32, "computeJid": ANNS, **options}
        with pytest.raises(Refusal) as e:
            await live_updates.live(site.request(uid, shells=Ended(), **query))
        return e.value.sentence

    assert await refused(ANN) == await refused(ADMIN) == f"no shell of {ANN}"
    for uid in (BOB, LEAD):
        assert await refused(uid) == f"user {uid} may not act for another user"
    assert "shellId" in await refused(ANN, shell="../x")
    assert "computeJid" in await refused(ANN, computeJid="x")
    assert "offset is a number" in await refused(ANN, offset="-1")
    viewer, _ = await site.open(ADMIN)
    _, token = await site.access.tokens.create(
        viewer.principal, ADMIN, "t", ("read", "control"), None
    )
    sender = site.access.holder(token)
    assert "has no scope debug" in await refused(ADMIN, sender=sender)
    events: Any = [s.event for s in site.in_memory.store.read(AUDIT)]
    assert (ADMIN, ANN, "shell-use", ANNS) in [
        (e.actor, e.subject, e.action, e.jid) for e in events if type(e).__name__ == "ActedForUser"
    ]
    mono = site.in_memory.mono
    own, _ = await site.open(ANN)
    assert viewer.may_use_shell(ANN, mono) and own.may_use_shell(ANN, mono)
    site.access.users = Users()
    assert not viewer.may_use_shell(ANN, mono) and own.may_use_shell(ANN, mono)
