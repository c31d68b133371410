"""Every route with every kind of sender: what is allowed follows from the declared scope and
subject, a refusal is counted and changes nothing, and acts for other users are on record.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from unittest.mock import MagicMock
from urllib.parse import urlencode

import pytest
import tornado.httpclient
import tornado.httpserver
import tornado.testing
from access_kit import Clock, access
from in_memory_supervisor import InMemorySupervisor

from jobscribe.db.events.events import AUDIT, ActedForUser
from jobscribe.db.events.usage_row import UsageRow
from jobscribe.db.store.contract import Batch
from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.api.tokens import SCOPES
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.wire.handshake import ACTOR, SIGNED_IN, TOKEN_SCOPES
from jobscribe.service.site.secret_rotation import fixed
from jobscribe.service.site.users_file import Group, Users
from jobscribe.supervisor.access import request_rates
from jobscribe.supervisor.access.principal import OPERATOR
from jobscribe.supervisor.access.request_rates import RequestRates
from jobscribe.supervisor.api import openapi
from jobscribe.supervisor.api.routes import ROUTES, application
from jobscribe.supervisor.api.transport.authorization import Subject
from jobscribe.supervisor.api.transport.request_handler import ApiContext, Route
from jobscribe.supervisor.api.transport.response_limits import ResponseLimits

ANN, BOB, CHIEF, ADMIN = "user0001", "user0002", "chief001", "admin001"
SECRET = "the-server-secret"
JID = f"{ANN}-sim00001-command"
USERS = Users(
    admins=(ADMIN,),
    groups={
        "physics": Group(admins=(CHIEF,), members=(ANN, ADMIN, CHIEF)),
        "chemistry": Group(admins=("chief002",), members=(ANN,)),
    },
)
API = [r for r in ROUTES if r.scope is not None]
#: Routes that act as the user: not for administrators of a group, whose refusals leave no record.
AS_USER = {"/api/shell-open", "/api/shell-use"}
#: Routes about all users or the site. Written here again, so that none becomes public by mistake.
SITE = {
    "/api/metrics",
    "/api/pool",
    "/api/pool-check",
    "/api/notify",
    "/api/notify-test",
    "/api/notify-retry",
    "/api/retention",
    "/api/retention-sweep",
    "/api/log-exchange",
    "/api/job-changes",
    "/api/audit",
    "/api/created-tokens-revoke",
    "/api/device-begin",
    "/api/device-end",
    "/api/site-health",
    "/api/site-drain",
    "/api/site-drains",
    "/api/site-supervisors",
    "/api/site-handover",
    "/api/site-load",
    "/api/site-users",
    "/api/site-tokens",
    "/api/site-configuration",
    "/metrics",
    "/health",
}
BODIES = (Subject.BODY, Subject.BODY_OR_ALL, Subject.BODY_OR_MEMBERS)
OPEN = {
    "/live",
    "/livez",
    "/readyz",
    "/.*",
    "/api/v[12]/.*",
    "/api/device-start",
    "/api/device-token",
    "/api/openapi.json",
}
#: open to all authenticated senders: they concern no user, or the user of the token
ANYBODY = {
    "/api/apps",
    "/api/whoami",
    "/api/v1/token",
    "/api/v2/jobs",
    *(f"/api/{v}/virtual-clusters{one}" for v in ("v1", "v2") for one in ("", "/{name}")),
}


class Answer(NamedTuple):
    code: int
    body: Any


class Reached:
    """Stands for the action of each route, and for its receiver of an upload."""

    limit = 1000

    def __init__(self) -> None:
        self.paths: list[str] = []

    def action(self, h: Any) -> Any:
        self.paths.append(h.request.path if hasattr(h, "request") else h._route.path)
        return {"reached": True, "body": json.loads(bytes(h._body) or b"null")}

    async def sink(self, h: Any) -> "Reached":
        return self

    async def take(self, data: bytes) -> None:
        pass

    def abandon(self) -> None:
        pass


class Site:
    """The API listener of an in-memory supervisor on loopback. real: with the real actions."""

    def __init__(self, *, real: bool) -> None:
        self.in_memory = InMemorySupervisor()
        self.clock, self.reached = Clock(), Reached()
        self.access = access(
            SECRET,
            on=self.in_memory.engine,
            users=USERS,
            clock=self.clock,
            monitors=lambda header: header == "Bearer monitoring",
        )
        here = {
            "runs": self.in_memory.desk,
            "calls": self.in_memory.calls,
            "live": self.in_memory.live,
            "metering": self.in_memory.metering,
            "secret": fixed(SECRET),
            "access": self.access,
            "unsent": ResponseLimits(),
            "monitoring": MagicMock(),
        }
        services = ApiContext(**{**dict.fromkeys(ApiContext._fields), **here})
        stand_in = [
            r._replace(action=self.reached.action, sink=self.reached.sink if r.sink else None)
            for r in ROUTES
        ]
        self._server = tornado.httpserver.HTTPServer(
            application(services, ROUTES if real else stand_in)
        )
        socket, self.port = tornado.testing.bind_unused_port()
        self._server.add_sockets([socket])

    async def close(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()

    async def token(self, uid: str, *scopes: str, secs: float = 1000.0) -> str:
        text, _ = await self.access.tokens.create(OPERATOR, uid, "a token", scopes or SCOPES, secs)  # type: ignore[arg-type]
        return str(text)

    async def ask(
        self, method: str, path: str, bearer: str | None, body: Any = None, **headers: str
    ) -> Answer:
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        reply = await tornado.httpclient.AsyncHTTPClient(force_instance=True).fetch(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            body=None if body is None else json.dumps(body),
            headers=headers,
            raise_error=False,
        )
        return Answer(reply.code, json.loads(reply.body))

    async def send(
        self, route: Route, bearer: str | None, uid: str | None, **headers: str
    ) -> Answer:
        """Send a request of this route that names the user; None: that names nobody."""
        method = next((m for m in ("POST", "GET") if m in route.methods), route.methods[0])
        body: Any = None if method in ("GET", "DELETE") else {}
        path = route.path
        for part in re.findall(r"{(\w+)}", path):
            path = path.replace(f"{{{part}}}", (uid or ANN) if part == "uid" else "0")
        if uid is not None:
            match route.subject:
                case Subject.BODY | Subject.BODY_OR_ALL | Subject.BODY_OR_MEMBERS:
                    body = {"uid": uid, "computeJid": JID}
                case Subject.RUN:
                    body = {"run": {"uid": uid, "simulationId": "sim00001"}}
                case Subject.RUNS:
                    body = {"runs": [{"uid": uid, "simulationId": "sim00001"}]}
                case Subject.QUERY | Subject.QUERY_OR_ALL:
                    path += "?" + urlencode({"uid": uid})
                case Subject.USERNAMES_OR_ALL:
                    path += "?" + urlencode({"username": uid})
        elif route.subject is Subject.RUN:
            body = {"run": {"simulationId": "sim00001"}}
        elif route.subject is Subject.RUNS:
            body = {"runs": [{"simulationId": "sim00001"}]}
        self.sent = path
        return await self.ask(method, path, bearer, body, **headers)

    def acts(self) -> list[ActedForUser]:
        return [s.event for s in self.in_memory.store.read(AUDIT)]  # type: ignore[misc]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site(real=False)
    yield made
    await made.close()


@pytest.fixture
async def real() -> AsyncIterator[Site]:
    made = Site(real=True)
    yield made
    await made.close()


def test_every_route_declares_its_rights() -> None:
    assert {r.path for r in ROUTES if r.scope is None} == OPEN
    assert {r.path for r in ROUTES if r.subject is Subject.ALL} == SITE
    nobody = {r.path for r in ROUTES if r.subject is Subject.NOBODY}
    assert nobody == OPEN | ANYBODY
    assert all(r.scope == "admin" for r in ROUTES if r.subject is Subject.ALL)


@pytest.mark.parametrize(
    ("uid", "scopes"),
    ((ANN, ("read",)), (ADMIN, ("read", "admin")), (ADMIN, ("read", "control")), (CHIEF, SCOPES)),
)
async def test_a_router_passes_on_exactly_the_rights_of_a_token(
    site: Site, uid: str, scopes: tuple[str, ...]
) -> None:
    """With the server secret, the user and the scopes, a router gets what the token would get."""
    token = await site.token(uid, *scopes)
    routers = {SIGNED_IN: uid, TOKEN_SCOPES: ",".join(scopes)}
    for route in API:
        for named in (uid, BOB, None):
            own = await site.send(route, token, named)
            acts = site.acts()[-1:]
            passed = await site.send(route, SECRET, named, **routers)
            assert (passed.code, passed.body.get("code")) == (own.code, own.body.get("code")), (
                route.path,
                named,
            )
            assert [a.actor_role for a in site.acts()[-1:]] == [a.actor_role for a in acts]
    # a client has no secret, so the headers mean nothing
    who = await site.ask("GET", "/api/whoami", token, **{SIGNED_IN: ADMIN, TOKEN_SCOPES: "admin"})
    assert who.code == 200
    assert (await site.ask("GET", "/api/whoami", None, **routers)).code == 401


def concerns_users(route: Route) -> bool:
    return route.subject not in (Subject.NOBODY, Subject.ALL)


#: kind of sender -> the expected code for a route, None if it is allowed
def expected(kind: str, route: Route) -> str | None:
    others = "forbidden" if concerns_users(route) else None
    site = "forbidden" if route.subject is Subject.ALL else None
    match kind:
        case "anonymous" | "wrong secret" | "truncated" | "longer" | "unknown":
            return "unauthenticated"
        case "expired":
            return "tokenExpired"
        case "revoked":
            return "tokenRevoked"
        case "wrong scope":
            return None if route.scope == "any" else "scopeMissing"
        case "user":
            return "scopeMissing" if route.scope == "admin" else site
        case "other user":
            return "scopeMissing" if route.scope == "admin" else others
        case "other user, scope admin":
            return site or others
        case "group admin" | "group admin of others":
            acts = kind == "group admin" and route.path not in AS_USER
            return site or (None if acts else others)
        case "admin without scope":
            return "scopeMissing" if route.scope == "admin" else others
        case "signed-in user":
            return "scopeMissing" if route.scope == "admin" else others
        case "signed-in group admin":
            return site or (None if route.path not in AS_USER else others)
        case "admin" | "server secret" | "front end" | "signed-in admin":
            return None
        case _:
            raise AssertionError(kind)


KINDS = (
    "anonymous",
    "wrong secret",
    "truncated",
    "longer",
    "unknown",
    "user",
    "other user",
    "other user, scope admin",
    "wrong scope",
    "expired",
    "revoked",
    "group admin",
    "group admin of others",
    "admin",
    "admin without scope",
    "server secret",
    "front end",
    "signed-in user",
    "signed-in group admin",
    "signed-in admin",
)
#: Users whom a front end names.
SIGNED_IN_AS = {
    "signed-in user": BOB,
    "signed-in group admin": CHIEF,
    "signed-in admin": ADMIN,
}


async def bearer(site: Site, kind: str, route: Route) -> str | None:
    """Return what this kind of sender sends."""
    match kind:
        case "anonymous":
            return None
        case "wrong secret":
            return SECRET + "x"
        case "truncated":
            return (await site.token(ANN))[:-1]
        case "longer":
            return (await site.token(ANN)) + "x"
        case "unknown":
            return f"jst_Zz{'9' * 6}_{(await site.token(ANN)).split('_', 2)[2]}"
        case "user":
            return await site.token(ANN, "read", "control", "debug")
        case "other user":
            return await site.token(BOB, "read", "control", "debug")
        case "other user, scope admin":
            return await site.token(BOB)
        case "wrong scope":
            return await site.token(ANN, *(s for s in SCOPES if s != route.scope))
        case "expired":
            token = await site.token(ANN, secs=3600.0)
            site.clock.at += 3600.0
            return token
        case "revoked":
            token = await site.token(ANN)
            await site.access.tokens.revoke(OPERATOR, ANN, token.split("_")[1], "lost")
            return token
        case "group admin" | "group admin of others":
            return await site.token(CHIEF)
        case "admin":
            return await site.token(ADMIN)
        case "admin without scope":
            return await site.token(ADMIN, "read", "control", "debug")
        case _:
            return SECRET


@pytest.mark.parametrize("kind", KINDS)
async def test_each_sender_gets_what_the_route_declares(site: Site, kind: str) -> None:
    sent: dict[str | None, str | None] = {}
    for route in API:
        if route.scope not in sent:
            sent[route.scope] = await bearer(site, kind, route)
        try:
            await check(site, route, kind, sent[route.scope])
        except AssertionError as e:
            e.add_note(f"{route.methods} {route.path}")
            raise


#: Senders that act for others, as the audit trail names them.
ACTORS = {
    "group admin": (CHIEF, "groupAdmin"),
    "admin": (ADMIN, "admin"),
    "front end": (BOB, "secretHolder"),
    "signed-in group admin": (CHIEF, "groupAdmin"),
    "signed-in admin": (ADMIN, "admin"),
}


async def check(site: Site, route: Route, kind: str, sent: str | None) -> None:
    headers = {ACTOR: BOB} if kind == "front end" else {}
    if kind in SIGNED_IN_AS:
        headers = {SIGNED_IN: SIGNED_IN_AS[kind]}
    named = BOB if kind == "group admin of others" else ANN
    code = expected(kind, route)
    before, recorded, head = refusals(site), len(site.acts()), site.in_memory.store.head()
    answer = await site.send(route, sent, named, **headers)
    if code is not None:
        if route.errors is Refusal.body:
            assert (answer.code >= 400, answer.body["code"]) == (True, code), answer
            assert answer.body["advice"] and answer.body["error"]
        else:
            assert answer.code in (401, 403) and answer.body.keys() == {"code", "message"}, answer
        assert site.reached.paths == [] and site.in_memory.store.head() == head
        assert refusals(site) - before == Counter({"refused." + code: 1})
        return
    assert answer.code == 200 and answer.body["reached"], answer
    assert site.reached.paths.pop() == site.sent.partition("?")[0]
    acts = concerns_users(route) and kind in ACTORS
    new = site.acts()[recorded:]
    assert [(a.subject, a.action, a.outcome, a.peer) for a in new] == [
        (ANN, route.rights.name, "allowed", "127.0.0.1")
    ] * acts
    if acts:
        (act,) = new
        assert (act.actor, act.actor_role) == ACTORS[kind]


def refusals(site: Site) -> Counter[str]:
    counts = site.in_memory.counters.all()
    return Counter({k: n for k, n in counts.items() if k.startswith("refused")})


@pytest.mark.parametrize("route", [r for r in API if r.monitors], ids=lambda r: r.path)
async def test_the_token_for_monitoring_is_as_before(site: Site, route: Route) -> None:
    assert (await site.send(route, "monitoring", None)).code == 200
    assert (await site.send(API[0], "monitoring", ANN)).body["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "route",
    [r for r in API if concerns_users(r) and r.subject is not Subject.RUNS],
    ids=lambda r: r.path,
)
@pytest.mark.parametrize("null", [False, True])
async def test_a_request_without_a_user_is_that_of_the_token(
    site: Site, route: Route, null: bool
) -> None:
    token = await site.token(ANN)
    if null and route.subject in BODIES:
        # the body is as long with a uid as with blanks and null
        answer = await site.ask("POST", route.path, token, {"uid": None, "a": [1, 2, 3]})
    else:
        answer = await site.send(route, token, None)
    assert answer.code == 200, answer
    if route.subject in BODIES:
        assert answer.body["body"]["uid"] == ANN
    elif route.subject is Subject.RUN:
        assert answer.body["body"]["run"]["uid"] == ANN


async def test_the_length_of_a_body_does_not_hide_that_its_user_was_set(site: Site) -> None:
    body = '{ "uid":   null , "a":1}'
    filled = f'{{"uid":"{ANN}","a":1}}'
    assert len(body) == len(filled)
    reply = await tornado.httpclient.AsyncHTTPClient(force_instance=True).fetch(
        f"http://127.0.0.1:{site.port}/api/job-list",
        method="POST",
        body=body,
        headers={"Authorization": "Bearer " + await site.token(ANN)},
    )
    assert json.loads(reply.body)["body"]["uid"] == ANN


async def test_an_administrator_without_a_user_gets_data_of_all_users(site: Site) -> None:
    answer = await site.ask("POST", "/api/job-list", await site.token(ADMIN), {})
    assert answer.body["body"] == {} and site.acts() == []


@pytest.mark.parametrize("uid", ["", "x", "user0001'", "user00012", "a" * 1000])
async def test_a_name_that_is_none_is_refused_and_not_recorded(site: Site, uid: str) -> None:
    answer = await site.ask("POST", "/api/run-status", await site.token(ADMIN), {"uid": uid})
    assert answer.body["code"] == "badRequest" and site.acts() == []


async def test_events_of_a_job_are_those_of_its_user(site: Site) -> None:
    token = await site.token(BOB)
    answer = await site.ask("GET", f"/api/events?uid={BOB}&computeJid={JID}", token)
    assert answer.body["code"] == "forbidden"


async def test_reads_of_the_same_job_are_recorded_once_an_hour(site: Site) -> None:
    token = await site.token(ADMIN, secs=10_000.0)
    status, cancel = (
        next(r for r in API if r.path == f"/api/run-{w}") for w in ("status", "cancel")
    )
    for _ in range(3):
        await site.send(status, token, ANN)
        await site.send(cancel, token, ANN)
    assert [a.action for a in site.acts()] == ["run-status", *["run-cancel"] * 3]
    assert site.acts()[0].jid == JID
    site.clock.at += 3601.0
    await site.send(status, token, ANN)
    assert [a.action for a in site.acts()][4:] == ["run-status"]


@pytest.mark.parametrize("path", ["/api/run-status", "/api/run-cancel"])
async def test_an_act_is_on_record_before_it_is_done(site: Site, path: str) -> None:
    route = next(r for r in API if r.path == path)
    token, seen = await site.token(ADMIN), []
    act = site.reached.action
    site.reached.paths = Seen(lambda: seen.append(len(site.acts())))  # type: ignore[assignment]
    assert callable(act) and (await site.send(route, token, ANN)).code == 200
    assert seen == [1]


class Seen(list):
    """Calls a function when something is appended."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def append(self, item: Any) -> None:
        self._call()


@pytest.mark.parametrize("path", ["/api/run-status", "/api/run-cancel"])
async def test_what_cannot_be_recorded_is_not_done(
    site: Site, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, token = next(r for r in API if r.path == path), await site.token(ADMIN)

    def fails(point: str) -> None:
        if point == "taken":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(site.in_memory.store, "_point", fails)
    answer = await site.send(route, token, ANN)
    assert answer.body["code"] == "storageUnavailable" and site.reached.paths == []
    assert site.acts() == []


async def test_a_site_file_gives_no_way_to_the_rights_of_an_administrator(site: Site) -> None:
    chief = await site.token(CHIEF)
    for uid in (ADMIN, BOB):
        answer = await site.ask("POST", "/api/token-create", chief, {"uid": uid})
        assert answer.body["code"] == "forbidden"


async def test_a_site_may_let_its_users_read_lists_and_states_of_openpai(site: Site) -> None:
    site.access.open_lists = True
    token, open_ = await site.token(BOB), []
    for route in API:
        answer = await site.send(route, token, ANN)
        if concerns_users(route) and answer.code == 200:
            open_.append((route.path, route.methods))
    jobs = "/api/v1/user/{uid}/jobs"
    assert open_ == [(p, ("GET",)) for p in ("/api/v1/jobs", jobs, f"{jobs}/{{job}}")]
    assert site.acts() == []
    for path in (f"/api/v1/user/{ANN}/jobs", "/api/v1/jobs"):
        assert (await site.ask("GET", path, None)).code == 401


# ---- with the real actions


OWN = {
    "run-status": {},
    "run-cancel": {"reqId": "request-1"},
    "run-release": {},
    "run-purge": {},
    "job-tag": {"add": ["a"]},
    "job-tasks": {},
    "job-log": {},
    "job-core": {"name": "core.1"},
    "shell-open": {"shellId": "s" * 32},
    "shell-use": {"shellId": "s" * 32},
    "job-metrics": {},
    "job-story": {},
    "job-why": {},
    "run-file": {"name": "a"},
    "run-files": {},
    "run-file-digest": {"name": "a"},
    "run-file-part": {"name": "a", "size": 1, "sha256": "0" * 64},
    "call": {"jobCmd": "sequential_result", "simulationType": "myapp"},
}


@pytest.mark.parametrize("name", OWN)
async def test_the_answer_about_a_job_of_another_user_does_not_say_whether_it_exists(
    real: Site, name: str
) -> None:
    spec = RunSpec(uid=ANN, simulation_id="sim00001", simulation_type="command", command=("true",))
    await real.in_memory.desk.submit(RunSimulation(req_id="request-0", run=spec))
    head = real.in_memory.store.head()
    token, said = await real.token(BOB), []
    for sid in ("sim00001", "sim00009"):
        for uid in (BOB, ANN):
            jid = f"{ANN}-{sid}-command"
            body = {"uid": uid, "computeJid": jid, **OWN[name]}
            answer = await real.ask("POST", f"/api/{name}", token, body)
            said.append((answer.code, json.dumps(answer.body).replace(sid, "SID")))
    assert said[:2] == said[2:], said
    assert real.in_memory.store.head() == head + 1, "only the token"


async def test_a_run_waits_for_runs_of_its_own_user_only(real: Site) -> None:
    spec = RunSpec(uid=ANN, simulation_id="sim00001", simulation_type="command", command=("true",))
    await real.in_memory.desk.submit(RunSimulation(req_id="request-0", run=spec))
    token, said = await real.token(BOB), []
    for sid in ("sim00001", "sim00009"):
        after = [{"computeJid": f"{ANN}-{sid}-command"}]
        run = {"uid": BOB, "simulationId": "sim00002", "command": ["true"], "after": after}
        body = {"reqId": f"request-{sid}", "run": run}
        answer = await real.ask("POST", "/api/run-simulation", token, body)
        assert answer.code >= 400, answer
        said.append((answer.code, json.dumps(answer.body).replace(sid, "SID")))
    assert said[0] == said[1]


async def test_only_a_front_end_names_the_plan_of_a_run(real: Site) -> None:
    token = await real.token(ANN)
    plans = []
    for n, sender in enumerate((SECRET, token), 1):
        run = {
            "uid": ANN,
            "simulationId": f"sim0000{n}",
            "command": ["true"],
            "activePlan": "premium",
        }
        many = [run | {"simulationId": f"sim0001{n}"}]
        for path, body in (
            ("run-simulation", {"reqId": f"request-{n}", "run": run}),
            ("run-many", {"reqId": f"request-1{n}", "runs": many}),
        ):
            answer = await real.ask("POST", f"/api/{path}", sender, body)
            assert answer.code == 200, answer
        for sid in (f"sim0000{n}", f"sim0001{n}"):
            entry = real.in_memory.engine.durable(f"{ANN}-{sid}-command")
            assert entry is not None and entry.job.run is not None
            plans.append(entry.job.run.spec.active_plan)
    assert plans == ["premium", "premium", None, None]


def test_every_address_of_the_document_has_a_summary() -> None:
    operations = [o for p in openapi.document(ROUTES)["paths"].values() for o in p.values()]
    assert all(" " in o["summary"] for o in operations), [o["summary"] for o in operations]


async def test_a_token_gives_no_more_than_it_has(real: Site) -> None:
    mine = await real.token(ANN, "read", "control", secs=1000.0)

    async def create(**fields: Any) -> Answer:
        body = {"name": "laptop", "scopes": ["read"], **fields}
        return await real.ask("POST", "/api/token-create", mine, body)

    made = await create()
    assert made.code == 200 and made.body["uid"] == ANN
    assert made.body["expiresAt"] == pytest.approx(real.clock.at + 1000.0)
    assert (await create(scopes=["read", "debug"])).body["code"] == "scopeMissing"
    assert (await create(expiresSecs=1001.0)).body["code"] == "badRequest"
    assert (await create(expiresSecs=367 * 86400.0)).body["code"] == "badRequest"
    assert (await create(scopes=["admin"])).body["code"] == "forbidden"
    assert (await create(uid=BOB)).body["code"] == "forbidden"
    assert (await create(scopes=["everything"])).body["code"] == "badRequest"
    token = made.body["secret"]
    assert (await real.ask("GET", "/api/whoami", token)).body["uid"] == ANN
    # and what is listed has neither secret nor digest
    listed = await real.ask("POST", "/api/token-list", token, {})
    assert len(listed.body["tokens"]) == 2
    assert token.split("_", 2)[2] not in json.dumps(listed.body)
    assert {"secret", "secretHash"}.isdisjoint(listed.body["tokens"][1])
    # revoked by its id, once or twice
    for _ in range(2):
        revoked = await real.ask("POST", "/api/token-revoke", mine, {"id": made.body["id"]})
        assert (revoked.code, revoked.body["status"]) == (200, "revoked")
    assert (await real.ask("GET", "/api/whoami", token)).body["code"] == "tokenRevoked"
    bob = await real.token(BOB)
    foreign = await real.ask("POST", "/api/token-revoke", bob, {"id": made.body["id"]})
    unknown = await real.ask("POST", "/api/token-revoke", bob, {"id": "Zz999999"})
    assert foreign.body["code"] == unknown.body["code"] == "notFound"


async def test_a_trace_with_log_lines_needs_the_scope_debug(real: Site) -> None:
    token = await real.token(ANN, "read", "control")
    answer = await real.ask("POST", "/api/trace", token, {"id": JID, "logs": True})
    assert answer.body["code"] == "scopeMissing"


async def test_a_stream_of_events_ends_with_the_token(real: Site) -> None:
    token = await real.token(ANN)
    reader, writer = await asyncio.open_connection("127.0.0.1", real.port)
    request = f"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(request.encode())

    async def submit(uid: str, sid: str) -> None:
        spec = RunSpec(uid=uid, simulation_id=sid, simulation_type="command", command=("true",))
        await real.in_memory.desk.submit(RunSimulation(req_id=f"request-{sid}", run=spec))

    async with asyncio.timeout(10):
        await reader.readuntil(b"id: 0\n\n")
        # its own events only, although none are named
        await submit(BOB, "sim00001")
        await submit(ANN, "sim00002")
        said = await reader.readuntil(b"RunRequested")
        said += await reader.readuntil(b"sim00002")
        assert b"sim00001" not in said and b"secretHash" not in said
        await real.access.tokens.revoke(OPERATOR, ANN, token.split("_")[1], "")
        await submit(ANN, "sim00003")
        assert b"sim00003" not in await reader.read()
    writer.close()


async def test_the_audit_trail_is_read_in_pages(real: Site) -> None:
    admin = await real.token(ADMIN)
    for n in range(5):
        await real.ask("POST", "/api/job-list", admin, {"uid": f"user100{n}", "limit": 1})
    seen, after = [], 0
    while after is not None:
        page = await real.ask("POST", "/api/audit", SECRET, {"after": after, "limit": 2})
        seen += [e["event"]["subject"] for e in page.body["events"]]
        after = page.body["next"]
    assert seen == [f"user100{n}" for n in range(5)]
    none = await real.ask("POST", "/api/audit", SECRET, {"actor": ANN})
    recent = await real.ask("POST", "/api/audit", SECRET, {"sinceSecs": 60})
    real.clock.at += 61
    late = await real.ask("POST", "/api/audit", SECRET, {"sinceSecs": 60})
    assert len(recent.body["events"]) == 5 and none.body["events"] == late.body["events"] == []


async def test_a_flood_with_one_token_is_slowed_down_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on the addresses that are answered without the request handler."""
    site = Site(real=True)
    monkeypatch.setattr(site.access, "rates", RequestRates(0.5, 4, lambda: 0.0, failures=3))
    try:
        flood, other = await site.token(ANN), await site.token(BOB)
        body = {"uid": ANN, "computeJid": JID}
        codes = [(await site.ask("POST", "/api/run-status", flood, body)).code for _ in range(7)]
        assert codes[:4].count(429) == 0 and codes[4:] == [429, 429, 429]
        refused = await site.ask("GET", "/api/whoami", flood)
        assert (refused.body["code"], refused.body["retryAfterSecs"]) == ("tooManyRequests", 2)
        assert (await site.ask("GET", "/api/whoami", other)).code == 200
        assert (await site.ask("GET", "/api/whoami", SECRET)).code == 200
        wrong = [(await site.ask("GET", "/api/whoami", "wrong")).code for _ in range(5)]
        assert wrong == [401, 401, 401, 429, 429]
        assert (await site.ask("GET", "/api/whoami", other)).code == 200, (
            "a valid token counts alone"
        )
    finally:
        await site.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/job-tag", {"computeJid": JID, "add": ["a"]}),
        ("/api/shell-open", {"computeJid": JID, "shellId": "s" * 32}),
    ],
)
async def test_requests_that_only_write_events_are_limited_for_each_user(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    site = Site(real=True)
    for name in ("TAGS", "SHELLS"):
        monkeypatch.setattr(request_rates, name, 2)
    monkeypatch.setattr(site.access, "rates", RequestRates(10.0, 50, lambda: 0.0))
    try:
        own = await site.token(ANN)
        asked = {"uid": ANN, **body}
        codes = [(await site.ask("POST", path, who, asked)).code for who in (SECRET, own, SECRET)]
        assert 429 not in codes[:2] and codes[2] == 429, codes
        other = {**asked, "uid": BOB}
        assert (await site.ask("POST", path, SECRET, other)).code != 429
    finally:
        await site.close()


# ---- usage by group


@pytest.fixture
async def used() -> AsyncIterator[Site]:
    made = Site(real=True)
    for n, uid in enumerate((ANN, BOB, CHIEF, ADMIN)):
        usage = UsageRow(
            start=1_700_000_000 // 3600 * 3600,
            span="hour",
            uid=uid,
            queue="default",
            driver="local",
            kind="sequential",
            simulation_type="myapp",
            core_ms=1000 * 2**n,
        )
        made.in_memory.store.append(Batch(writes=(), usage=(usage,)), lambda result: None)
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("sender", "named", "groups", "users"),
    [
        # the group has an administrator as a member, whose role a group admin does not outrank
        (CHIEF, None, {"physics": 5.0}, {ANN: 1.0, CHIEF: 4.0}),
        (CHIEF, ANN, {"physics": 1.0}, {ANN: 1.0}),
        (CHIEF, CHIEF, {"physics": 4.0}, {CHIEF: 4.0}),
        (
            ADMIN,
            None,
            {"-": 2.0, "chemistry": 1.0, "physics": 13.0},
            {ANN: 1.0, BOB: 2.0, CHIEF: 4.0, ADMIN: 8.0},
        ),
        (ANN, None, {"chemistry": 1.0, "physics": 1.0}, {ANN: 1.0}),
        (BOB, None, {"-": 2.0}, {BOB: 2.0}),
        (
            None,
            None,
            {"-": 2.0, "chemistry": 1.0, "physics": 13.0},
            {ANN: 1.0, BOB: 2.0, CHIEF: 4.0, ADMIN: 8.0},
        ),
    ],
)
async def test_a_sender_sees_its_own_groups(
    used: Site,
    sender: str | None,
    named: str | None,
    groups: dict[str, float],
    users: dict[str, float],
) -> None:
    bearer = SECRET if sender is None else await used.token(sender)
    body = {"by": ["group"]} if named is None else {"by": ["group"], "uid": named}
    answer = await used.ask("POST", "/api/usage", bearer, body)
    assert answer.code == 200, answer
    assert {r["group"]: r["coreSecs"] for r in answer.body["rows"]} == groups
    assert answer.body["total"]["coreSecs"] == sum(users.values())
    answer = await used.ask("POST", "/api/usage", bearer, body | {"by": ["user"]})
    assert {r["user"]: r["coreSecs"] for r in answer.body["rows"]} == users
    if sender == CHIEF:
        subjects = {act.subject for act in used.acts()}
        assert subjects == ({ANN} if named != CHIEF else set()), "reads of others are on record"


@pytest.mark.parametrize("sender", [CHIEF, ANN])
async def test_another_group_is_refused(used: Site, sender: str) -> None:
    answer = await used.ask(
        "POST", "/api/usage", await used.token(sender), {"by": ["group"], "uid": BOB}
    )
    assert (answer.code, answer.body["code"]) == (403, "forbidden")


async def test_a_group_admin_without_the_scope_sees_only_itself(used: Site) -> None:
    answer = await used.ask("POST", "/api/usage", await used.token(CHIEF, "read"), {"by": ["user"]})
    assert [r["user"] for r in answer.body["rows"]] == [CHIEF]
