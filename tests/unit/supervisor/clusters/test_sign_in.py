"""Signing in to clusters: one attempt at a time, a limit of attempts per account, and typed secrets
never appear again.
"""

import asyncio
import json
import urllib.error
import urllib.request

import msgspec
import pytest
from in_memory_supervisor import Agent, InMemorySupervisor, Lines, until
from login_nodes_fake import CLUSTERS, Api, FakeLoginNodes

from jobscribe.db.events.state import AgentRecord
from jobscribe.protocol.api.requests import SbatchLogin, SbatchLoginStatus, SbatchLogout
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.redaction import REDACTED, Redactor
from jobscribe.protocol.wire.messages import Kill
from jobscribe.runtime.log.logger import Log
from jobscribe.supervisor.clusters.sign_in import MOST as MOST_AT_ONCE
from jobscribe.supervisor.clusters.sign_in import SignIns
from jobscribe.supervisor.clusters.sign_in_throttle import (
    FIRST_SECS,
    FORGOTTEN_SECS,
    FREE,
    LONGEST_SECS,
    MOST,
    SignInThrottle,
    folded,
)
from jobscribe.supervisor.core.state.agent_state import AgentState
from jobscribe.supervisor.process.counters import Counters

U, V = "user0001", "user0002"
KEY = AgentKey("sbatch", "parallel", U, "alpha")
GOOD = {"password": "correct horse", "otp": "123456"}


class Counter:
    """A sign-in service with its own clock."""

    def __init__(self, **options):
        self.login_nodes, self.lines, self.counters, self.mono = (
            FakeLoginNodes(),
            Lines(),
            Counters(),
            1000.0,
        )
        self.redactor = Redactor()
        log = Log("supervisor", self.redactor, self.lines)
        options = {"linger_secs": 0.0, **options}
        self.sign_ins = SignIns(
            CLUSTERS,
            self.login_nodes,
            self.redactor,
            self.counters,
            log,
            now=lambda: self.mono,
            **options,
        )

    async def login(self, username="joe", uid=U, cluster="alpha", **secrets):
        return await self.sign_ins.login(
            SbatchLogin(uid=uid, cluster=cluster, username=username, **(secrets or GOOD))
        )

    async def refused(self, code, **request):
        with pytest.raises(Refusal) as e:
            await self.login(**request)
        assert e.value.code == code, e.value.sentence
        return e.value

    async def wrong(self, times, **request):
        for _ in range(times):
            await self.refused("signInRefused", **{"password": "wrong answer", **request})


async def test_who_has_the_right_answers_is_signed_in_and_asked_no_more():
    c = Counter()
    assert c.sign_ins.needed(U, None) == {
        "routeName": "sbatchLogin",
        "params": {
            "isModal": True,
            "isSbatchLogin": True,
            "reason": "no-creds",
            "cluster": "alpha",
            "host": "login.example.org",
            "sentence": "nobody is signed in at alpha for user0001",
        },
    }
    assert c.sign_ins.status(SbatchLoginStatus(uid=U))["ready"] is False
    reply = await c.login(cluster=None)
    assert (reply["loginSuccess"], reply["ready"], reply["user"], reply["cluster"]) == (
        True,
        True,
        "joe",
        "alpha",
    )
    assert c.login_nodes.tried == [(U, "alpha", "joe", "correct horse", "123456")]
    assert (
        c.sign_ins.needed(U, None) is None and c.sign_ins.status(SbatchLoginStatus(uid=U))["ready"]
    )
    assert c.sign_ins.needed(V, None) is not None and c.sign_ins.needed(U, "beta") is not None, (
        "only this user, only there"
    )
    # a code is valid once: a signed-in user sends none
    assert (await c.login(password="x", otp="y"))["loginSuccess"] and len(c.login_nodes.tried) == 1
    assert c.counters.all() == {"signIn.ok": 1, "signIn.tried": 1}


async def test_who_is_signed_in_is_not_signed_in_as_somebody_else():
    c = Counter()
    await c.login()
    e = await c.refused("signedInAlready", username="ann", password="wrong")
    assert (
        "as joe" in e.sentence
        and "jobscribe logout alpha" in e.sentence
        and (e.http, e.more) == (409, {"user": "joe"})
    )
    assert len(c.login_nodes.tried) == 1 and c.login_nodes.signed_in_as(KEY) == "joe"
    assert (await c.login("joe@example.org", password="x"))["loginSuccess"], (
        "another way to write it"
    )
    # after a restart of the supervisor the agent reconnects by itself; its record has the account
    record = AgentRecord(key=KEY, handle={"user": "joe"})
    up = Counter(agent_up=lambda key: True, view=lambda key: AgentState(record=record))
    await up.refused("signedInAlready", username="ann")
    assert (await up.login())["user"] == "joe" and up.login_nodes.tried == []


async def test_after_a_sign_out_anybody_may_sign_in_there_and_it_says_what_goes_on():
    ended = []

    async def dismiss(key):
        ended.append(key)
        return True

    view = AgentState(
        record=AgentRecord(key=KEY, handle={"user": "joe"}), placed={"a token", "another"}
    )
    c = Counter(view=lambda key: view, dismiss=dismiss)
    await c.login()
    reply = await c.sign_ins.logout(SbatchLogout(uid=U))
    assert {
        k: reply[k] for k in ("cluster", "user", "ready", "signedOut", "agentEnded", "runs")
    } == {
        "cluster": "alpha",
        "user": "joe",
        "ready": False,
        "signedOut": True,
        "agentEnded": True,
        "runs": 2,
    }
    assert ended == [KEY] and c.sign_ins.needed(U, "alpha") is not None
    assert (await c.login("ann", password="battery staple"))["user"] == "ann"
    out = await c.sign_ins.logout(SbatchLogout(uid=V, cluster="beta"))
    assert out["signedOut"] is False
    with pytest.raises(Refusal, match="gamma") as e:
        await c.sign_ins.logout(SbatchLogout(uid=U, cluster="gamma"))
    assert e.value.code == "badRequest"


async def test_an_agent_that_is_connected_is_told_to_end_without_its_jobs():
    in_memory = InMemorySupervisor()
    assert not await in_memory.hub.dismiss(KEY), "there is none"
    agent = Agent(in_memory, KEY)
    dismissing = asyncio.create_task(in_memory.hub.dismiss(KEY))
    assert not (await agent.asked(Kill)).stop_jobs and not dismissing.done()
    agent.gone()
    assert await dismissing
    Agent(in_memory, KEY)
    assert not await in_memory.hub.dismiss(KEY, 0.05), "it does not go"


async def test_an_agent_that_cannot_be_reached_is_not_said_to_have_ended():
    c = Counter(view=lambda key: AgentState(record=AgentRecord(key=KEY, handle={"user": "joe"})))
    assert (await c.sign_ins.logout(SbatchLogout(uid=U)))["agentEnded"] is False


async def test_nobody_signs_in_where_nobody_has_to():
    c = Counter()
    assert c.sign_ins.needed(U, "gamma") is None
    assert (await c.login(cluster="gamma"))["loginSuccess"] and c.login_nodes.tried == []
    up = Counter(agent_up=lambda key: key == AgentKey("sbatch", "parallel", U, "beta"))
    assert (await up.login(cluster="beta"))["loginSuccess"] and up.login_nodes.tried == [], (
        "its agent is up by itself"
    )
    assert up.sign_ins.needed(U, "alpha") is not None


async def test_what_cannot_be_a_sign_in_is_never_sent():
    c = Counter()
    assert "alpha, beta, gamma" in (await c.refused("badRequest", cluster="delta")).sentence
    await c.refused("badRequest", password="")
    await c.refused("badRequest", certificate="cert only")
    assert c.login_nodes.tried == [] and c.sign_ins.needed(U, "delta") is None


async def test_after_three_refusals_in_a_row_it_says_when_the_next_try_is_allowed():
    c = Counter()
    await c.wrong(FREE + 1)
    e = await c.refused("tooManyRequests")
    assert (
        e.sentence.endswith("try again in 60 s") and e.more == {"waitSecs": 60.0} and e.http == 429
    )
    assert len(c.login_nodes.tried) == 3, "not even the right answer is sent"
    c.mono += FIRST_SECS - 0.1
    await c.refused("tooManyRequests")
    c.mono += 0.1
    await c.wrong(1)
    assert (await c.refused("tooManyRequests")).more == {"waitSecs": 2 * FIRST_SECS}, (
        "each time twice as long"
    )
    c.mono += 2 * FIRST_SECS
    assert (await c.login())["loginSuccess"]
    c.login_nodes.inside.clear()
    await c.wrong(FREE)
    assert (await c.login())["loginSuccess"], "in a row: success ends it"
    assert c.counters.all()["signIn.slowed"] == 3


async def test_one_user_is_slowed_down_whatever_names_he_tries_and_one_name_whoever_tries_it():
    c = Counter()
    for name in ("joe", "ann", "sue"):
        await c.wrong(1, username=name)
    await c.refused("tooManyRequests", username="tom")
    # one name from many users, in all its spellings
    c = Counter()
    for uid, name in ((U, "joe"), (V, "Joe"), ("user0003", "joe@example.org")):
        await c.wrong(1, uid=uid, username=name)
    await c.refused("tooManyRequests", uid="user0004", username="JOE")
    await c.refused("tooManyRequests", uid="user0004", cluster="beta")
    assert len(c.login_nodes.tried) == 3
    assert (await c.login("ann", uid="user0004", password="battery staple"))["loginSuccess"], (
        "other names are free"
    )


async def test_whose_account_it_is_proves_it_once_and_is_not_kept_out_by_strangers():
    c = Counter()
    await c.login()
    c.login_nodes.inside.clear()
    for n in range(FREE + 1):
        await c.wrong(1, uid=f"stran{n:03d}")
    await c.refused("tooManyRequests", uid="stranger")
    assert (await c.login())["loginSuccess"]


async def test_only_refusals_count():
    c = Counter()
    c.login_nodes.answer = lambda given: Refusal(
        "signInUnreachable", "login.example.org does not answer"
    )
    for _ in range(5):
        await c.refused("signInUnreachable")
    c.login_nodes.answer = None
    assert (await c.login())["loginSuccess"]
    assert c.counters.all() == {"signIn.ok": 1, "signIn.tried": 6, "signIn.unreachable": 5}


async def test_there_is_one_attempt_of_a_user_and_one_for_a_name_at_a_time():
    c = Counter(attempt_secs=5.0)
    c.login_nodes.gate = asyncio.Event()
    first = asyncio.ensure_future(c.login())
    await until(lambda: c.login_nodes.entered == 1, "it is under way")
    await c.refused("tooManyRequests")
    await c.refused("tooManyRequests", uid=V)
    other = asyncio.ensure_future(c.login("ann", uid=V, password="battery staple"))
    beside = asyncio.ensure_future(c.login("ann2", cluster="beta", password="x"))
    await until(lambda: c.login_nodes.entered == 3, "others are free")
    c.login_nodes.gate.set()
    assert (await first)["loginSuccess"] and (await other)["loginSuccess"]
    with pytest.raises(Refusal):
        await beside
    assert c.sign_ins.sizes()["underWay"] == 0 and c.counters.all()["signIn.busy"] == 2


async def test_so_many_at_once_and_no_more():
    c = Counter()
    c.login_nodes.gate = asyncio.Event()
    crowd = [
        asyncio.ensure_future(c.login(f"name{n}", uid=f"crowd{n:03d}")) for n in range(MOST_AT_ONCE)
    ]
    await until(lambda: c.login_nodes.entered == MOST_AT_ONCE, "all are under way")
    await c.refused("tooManyRequests")
    c.login_nodes.gate.set()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert (await c.login())["loginSuccess"]


async def test_an_attempt_that_never_ends_is_ended():
    c = Counter(attempt_secs=0.05)
    c.login_nodes.gate = asyncio.Event()
    e = await c.refused("signInUnreachable")
    assert "login.example.org did not answer" in e.sentence and c.sign_ins.sizes()["underWay"] == 0


@pytest.mark.parametrize(
    "error",
    [
        lambda g: Refusal("signInRefused", f"it said: {g.password} is wrong for {g.user}"),
        lambda g: Refusal("signInRefused", f"code {g.code}"),
        lambda g: RuntimeError(f"{g.user} {g.password} {g.code}"),
        lambda g: KeyError(g.password),
        lambda g: Refusal("signInUnreachable", f"{g.key} {g.passphrase}"),
    ],
)
async def test_nothing_that_was_typed_is_in_what_is_said_or_logged(error):
    c = Counter()
    c.login_nodes.answer = error
    typed = {
        "username": "Secret-Name",
        "password": "pw1",
        "otp": "777",
        "private_key": "-----BEGIN K-----\nAAAAlongsecretline0000\n-----END K-----\n",
        "passphrase": "open sesame",
        "certificate": "ssh-cert AAAAcert",
    }
    with pytest.raises(Refusal) as e:
        await c.login(**typed)
    said = " ".join(
        [
            e.value.sentence,
            str(e.value.more),
            *c.lines.lines,
            json.dumps(c.counters.all()),
            repr(SbatchLogin(uid=U, **typed)),
        ]
    )
    for secret in (*typed.values(), "longsecretline"):
        assert secret not in said
    assert e.value.__cause__ is None and e.value.__suppress_context__, "no trace leads back to it"
    assert any("sign-in of user0001 at alpha" in line for line in c.lines.lines), (
        "that it was tried is told"
    )


async def test_what_was_typed_is_kept_out_of_the_log_while_it_is_known_and_then_forgotten():
    c = Counter(linger_secs=0.05)
    log = Log("supervisor", c.redactor, c.lines)
    c.redactor.add("the house's own secret")
    c.login_nodes.gate = asyncio.Event()
    first = asyncio.ensure_future(
        c.login(
            password="the house's own secret",
            otp="123456",
            private_key="head\nAAAABBBBCCCCDDDDEEEE\n",
        )
    )
    await until(lambda: c.login_nodes.entered == 1, "it is under way")
    log("asked with {} and 123456", "AAAABBBBCCCCDDDDEEEE")
    assert c.lines.lines[-1] == f"asked with {REDACTED} and {REDACTED}"
    c.login_nodes.gate.set()
    with pytest.raises(Refusal):
        await first
    assert c.redactor.text("123456") == REDACTED, "the log may lag behind"
    await until(
        lambda: c.redactor.text("123456 AAAABBBBCCCCDDDDEEEE") == "123456 AAAABBBBCCCCDDDDEEEE",
        "it is forgotten",
    )
    assert c.redactor.text("the house's own secret") == REDACTED, "what was known before stays so"


def test_the_pace_forgets_in_time_and_never_grows():
    at = 0.0
    pace = SignInThrottle(lambda: at)
    for n in range(12):
        pace.refused(U, "joe")
        at += pace.wait_secs(U, "joe")
        assert n < FREE or pace.wait_secs(U, "joe") == 0
    pace.refused(U, "joe")
    assert pace.wait_secs(U, "joe") == LONGEST_SECS, "never longer"
    at += FORGOTTEN_SECS
    for _ in range(FREE):
        pace.refused(U, "joe")
        assert pace.wait_secs(U, "joe") == 0
    for n in range(MOST + 50):
        pace.refused(f"u{n}", f"n{n}")
        pace.succeeded(f"s{n}", f"s{n}")
    assert len(pace) <= 2 * MOST
    assert folded("Joe@EXAMPLE.org") == folded("joe")


# ---- over HTTP


@pytest.fixture
def api():
    api = Api()
    yield api
    api.close()


def ask(api, path, body, secret="secret", raw=None):
    data = raw if raw is not None else json.dumps(body).encode()
    request = urllib.request.Request(
        api.url + path,
        data,
        {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


RUN = {"uid": U, "simulationId": "sim00001", "command": ["true"], "driver": "sbatch"}


def test_a_run_that_was_accepted_says_that_its_user_has_to_sign_in_first(api):
    code, reply = ask(
        api, "/api/run-simulation", {"reqId": "request-1", "run": RUN, "forceRun": True}
    )
    assert (code, reply["state"]) == (200, "pending"), reply
    params = reply["srException"]["params"]
    assert (
        reply["srException"]["routeName"] == "sbatchLogin"
        and params["reason"] == "no-creds"
        and params["isModal"]
    )
    assert (params["computeJid"], params["simulationId"], params["computeModel"]) == (
        f"{U}-sim00001-command",
        "sim00001",
        "command",
    )
    asked = {"uid": U, "computeJid": params["computeJid"]}
    assert ask(api, "/api/run-status", asked)[1]["srException"] == reply["srException"]
    code, said = ask(api, "/api/sbatch-login", {"uid": U, "username": "joe", **GOOD})
    assert (code, said["state"], said["loginSuccess"], said["user"]) == (200, "ok", True, "joe")
    assert "srException" not in ask(api, "/api/run-status", asked)[1]
    assert ask(api, "/api/sbatch-login-status", {"uid": U})[1]["ready"] is True
    assert (
        "srException"
        not in ask(
            api,
            "/api/run-simulation",
            {"reqId": "request-2", "run": {**RUN, "driver": "local"}, "forceRun": True},
        )[1]
    )


def test_wrong_answers_have_their_own_codes(api):
    code, said = ask(api, "/api/sbatch-login", {"uid": U, "username": "joe", "password": "no"})
    assert (code, said["code"], said["retry"]) == (401, "signInRefused", False)
    assert said["error"] == "login.example.org has not accepted the password of this user"
    assert (
        ask(api, "/api/sbatch-login", {"uid": U, "username": "joe", **GOOD}, secret="wrong")[1][
            "code"
        ]
        == "unauthenticated"
    )
    assert len(api.login_nodes.tried) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"uid": U, "username": "joe", "canary-value": "x"},
        {"uid": U, "username": "canary value"},
        {"uid": U, "username": "joe", "password": ["canary"]},
        {"uid": "canary", "username": "joe"},
        {"uid": U, "username": "joe", "password": "canary" * 20_000},
        b'{"canary": ',
        b"\xffcanary",
        b'{"uid": "user0001", "username": "joe", "password": "canary", "password": "canary"}',
        ["canary"],
    ],
)
def test_what_does_not_fit_is_refused_without_repeating_it(api, body):
    code, said = ask(api, "/api/sbatch-login", body, raw=body if isinstance(body, bytes) else None)
    assert code in (400, 413) and said["code"] in ("badRequest", "tooLarge")
    assert "canary" not in json.dumps(said) + api.log() and api.login_nodes.tried == []


def test_a_house_without_clusters_says_so():
    api = Api(has_clusters=False)
    try:
        code, said = ask(api, "/api/sbatch-login", {"uid": U, "username": "joe", **GOOD})
        assert (code, said["code"]) == (400, "badRequest") and "no clusters" in said["error"]
        code, reply = ask(
            api,
            "/api/run-simulation",
            {"reqId": "request-1", "run": {**RUN, "driver": "local"}, "forceRun": True},
        )
        assert code == 200 and "srException" not in reply
    finally:
        api.close()


def test_the_shape_of_a_sign_in_shows_nothing():
    request = SbatchLogin(uid=U, username="joe", **GOOD)
    for shown in (repr(request), f"{[request]}", str(Redactor().value({"a": request}))):
        assert "joe" not in shown and "correct horse" not in shown
    assert msgspec.json.decode(msgspec.json.encode(request), type=SbatchLogin) == request
