"""The router finds the shards of a request, and trusts no header of a client."""

import pytest
from tornado.httputil import HTTPHeaders

from jobscribe.protocol.shards import shard_of
from jobscribe.protocol.wire.handshake import (
    ACTOR,
    FRONT_END,
    HOME_TOKEN,
    PEER,
    SIGNED_IN,
    TOKEN_SCOPES,
)
from jobscribe.router.routing import Aim, Table, aim, headers_for
from jobscribe.router.senders import Sender
from jobscribe.supervisor.access.api_tokens import HomeToken
from jobscribe.supervisor.access.principal import Principal
from jobscribe.supervisor.api.routes import ROUTES
from jobscribe.supervisor.api.transport.authorization import Subject

TOTAL = 3
TABLE = Table(ROUTES)
#: A user of each shard.
USERS = [next(u for n in range(99) if shard_of(u := f"user{n}", TOTAL) == k) for k in range(TOTAL)]

USER = Sender(
    Principal(uid=USERS[0], role="user", scopes=frozenset({"read"})), 0, HomeToken("qwertyui", 7.5)
)
ADMIN = Sender(Principal(uid=USERS[1], role="admin"), 1)
OPERATOR = Sender(Principal(secret="mark"))
FRONT_END_USER = Sender(Principal(uid=USERS[2], role="user", secret="mark"))
FORGED = {
    SIGNED_IN: USERS[1],
    ACTOR: USERS[1],
    TOKEN_SCOPES: "read,control,debug,admin",
    HOME_TOKEN: "abcdefgh 1e12",
    PEER: "192.0.2.1 00",
    FRONT_END: "9",
    "X-Forwarded-For": "192.0.2.1",
    "Authorization": "Bearer theirs",
    "Accept": "x/y",
    "Connection": "close, X-Private",
    "X-Private": "1",
}


def sent(sender: Sender, shard: int | None, **given: str) -> dict[str, str]:
    headers = headers_for(
        HTTPHeaders(FORGED | given), sender, shard, secret="hidden", signed_peer="peer mark"
    )
    return {name.lower(): value for name, value in headers.get_all()}


def test_nobody_names_another_user_or_more_scopes_by_a_header() -> None:
    for sender in (USER, Sender(None)):
        assert sent(sender, sender.home) == {
            "accept": "x/y",
            "authorization": "Bearer theirs",
            PEER.lower(): "peer mark",
        }


def test_another_shard_gets_the_user_with_the_scopes_of_the_token() -> None:
    found = sent(USER, 2)
    assert found["authorization"] == "Bearer hidden"
    assert found[SIGNED_IN.lower()] == USERS[0] and found[TOKEN_SCOPES.lower()] == "read"
    assert found[HOME_TOKEN.lower()] == "qwertyui 7.5"
    assert ACTOR.lower() not in found and FRONT_END.lower() not in found


def test_a_front_end_names_its_user_and_no_scopes() -> None:
    found = sent(FRONT_END_USER, 1)
    assert found[SIGNED_IN.lower()] == USERS[1] and found[FRONT_END.lower()] == "9"
    assert found["authorization"] == "Bearer theirs" and TOKEN_SCOPES.lower() not in found
    assert found[PEER.lower()] == "peer mark"


@pytest.mark.parametrize("uid", USERS)
def test_a_request_goes_to_the_shard_of_the_user_whom_it_names(uid: str) -> None:
    shard = USERS.index(uid)
    for sender in (USER, ADMIN, OPERATOR):
        for path in ("/api/run-status", "/api/job-list", "/api/events"):
            route = TABLE.find(path, "GET").route
            assert aim(route, sender, [uid], TOTAL) == Aim((shard,)), (sender, path)


def test_a_request_without_a_user_is_the_senders_own_or_about_all() -> None:
    everywhere = Aim((0, 1, 2), whole=True)
    for route in ROUTES:
        many = route.subject.name.endswith("_OR_ALL") or route.subject.name == "BODY_OR_MEMBERS"
        all_ = route.subject is Subject.ALL
        assert aim(route, USER, [], TOTAL) == (everywhere if all_ else Aim((0,))), route.path
        assert aim(route, FRONT_END_USER, [], TOTAL) == (everywhere if all_ else Aim((2,)))
        for_admin = everywhere if all_ or many else Aim((1,))
        assert aim(route, ADMIN, [], TOTAL) == for_admin, route.path
        for_secret = everywhere if all_ or many else Aim(())
        assert aim(route, OPERATOR, [], TOTAL) == for_secret, route.path


def test_users_of_several_shards_are_a_request_for_these() -> None:
    route = TABLE.find("/api/run-many", "POST").route
    assert aim(route, OPERATOR, USERS[:2], TOTAL) == Aim((0, 1), whole=True)


def test_routes_are_found_as_the_supervisor_finds_them() -> None:
    found = TABLE.find("/api/v2/jobs/alice~job1/config", "GET")
    assert found.parts == {"uid": "alice", "job": "job1"}
    assert TABLE.find("/api/v1/user/%61lice/jobs", "GET").parts == {"uid": "alice"}
    assert TABLE.find("/api/v2/jobs/alice~job1/tag", "DELETE").route.methods == ("DELETE",)
    assert TABLE.find("/api/run-many", "GET").route.methods == ("POST",)
    assert TABLE.find("/api/v1/nothing/there", "GET").route.path == "/api/v[12]/.*"
    assert TABLE.find("/nothing", "GET").route.path == "/.*"
