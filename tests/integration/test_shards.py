"""A site of two shards on a real PostgreSQL, behind a router: users of both are served at once, and a
failure in one shard does not concern the other.
"""

import contextlib
import hashlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import requests
from certificate_authority import Authority
from supervisor_fork_server import ForkedProcess, fork_server
from supervisor_process import PYTHON_PATH, SupervisorProcess, jid_of, req_id, shell, spec, until

from jobscribe.client import Client
from jobscribe.db.maintenance.move import move_shard
from jobscribe.protocol.shards import shard_of
from jobscribe.protocol.wire.handshake import ACTOR, HOME_TOKEN, PEER, SIGNED_IN, TOKEN_SCOPES
from jobscribe.runtime.store_address import parsed
from jobscribe.service.site.shards import with_schema
from jobscribe.supervisor.access import site_revocations
from jobscribe.web.server.development_login import uid_of

pytestmark = pytest.mark.process

TOTAL = 2
#: Slots of the whole site.
SLOTS = 6
CORES = 6
#: Longer than any failover; the machine is busy.
DEADLINE_SECS = 60.0
SCOPES = ("read", "control", "debug")


def users_of(shard: int, count: int) -> list[str]:
    names = (f"Shards{n:02d}" for n in range(99))
    return [u for u in names if shard_of(u, TOTAL) == shard][:count]


#: Uid of a person of this name at the front end.
CHIEF = uid_of("chief", "")
ANN, ADAM, ADMIN = users_of(0, 3)
BOB, GROUP_ADMIN = users_of(1, 2)


class Sharded:
    """A site with shards. tokens: of users, by user."""

    def __init__(self, site: SupervisorProcess) -> None:
        self.site, self.tokens = site, dict[str, str]()
        self._more: list[ForkedProcess] = []

    def token(self, uid: str, *scopes: str) -> str:
        made = self.site.post("token-create", uid=uid, name="t", scopes=list(scopes))
        return str(made["secret"])

    def ask(
        self,
        token: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        source: str = "127.0.0.1",
        url: str = "",
    ) -> tuple[int, Any]:
        """Return status and answer. source: the client's address."""
        address = (url or self.site.url).removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=40, source_address=(source, 0))
        given = {"Authorization": "Bearer " + token} if token else {}
        try:
            connection.request(
                "GET" if body is None else "POST",
                path,
                None if body is None else json.dumps(body),
                given | (headers or {}),
            )
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data[:1] in (b"{", b"[") else data
        finally:
            connection.close()

    def root(self, shard: int) -> Path:
        return self.site.root / "shards" / str(shard)

    def address(self, shard: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root(shard) / "client.json").read_text())
        return found

    def start(self, *words: str) -> tuple[ForkedProcess, str]:
        """Start another process of the site; return it with its address."""
        site = self.site
        sets = [a for s in site._sets for a in ("--set", s)]
        with (site.place / "up.log").open("ab") as log:
            process = fork_server(PYTHON_PATH).fork(
                ["--root", str(site.root), *words, "--port", "0", *sets],
                site._environment(),
                log.fileno(),
            )
        self._more.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("jobscribe ready at "), (line, site.log()[-3000:])
        return process, line.split()[3]

    def end(self) -> None:
        for process in self._more:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
        self._more.clear()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    roles = tmp_path_factory.mktemp("roles") / "users.yml"
    roles.write_text(
        f"admins: [{ADMIN}, {CHIEF}]\ngroups:\n  lab:\n    admins: [{GROUP_ADMIN}]\n    members: [{ANN}, {BOB}]\n"
    )
    roles.chmod(0o600)
    site = SupervisorProcess(
        (
            f"store.url={postgres_server.shared_durable().url()}",
            "store.standby=true",
            f"shards.count={TOTAL}",
            f"slots.local_sequential={SLOTS}",
            f"resources.local_cpu={CORES}",
            f"auth.users={roles}",
            "supervisor.development=true",
        ),
        web=True,
    )
    found = Sharded(site)
    try:
        site.start()
        for uid in (ANN, ADAM, BOB):
            found.tokens[uid] = found.token(uid, *SCOPES)
        yield found
    finally:
        found.end()
        left = site.end()
    assert left == {}, f"processes outlived their keeper: {left}"


def test_users_of_both_shards_are_served_by_their_shard(sharded: Sharded) -> None:
    site = sharded.site
    runs = {}
    for uid, token in sharded.tokens.items():
        with Client(site.url, token) as client:
            assert client.uid == uid
            job = client.run(["sh", "-c", f"echo hello of {uid}"])
            assert job.wait(30).state == "completed"
            assert b"".join(part.data for part in job.logs()) == f"hello of {uid}\n".encode()
        runs[uid] = job.jid
        code, listed = sharded.ask(token, "/api/job-list", {})
        assert code == 200 and [j["jid"] for j in listed["jobs"]] == [job.jid]
    for uid, jid in runs.items():
        shard = shard_of(uid, TOTAL)
        until(
            (sharded.root(shard) / "supervisor-job" / f"{jid}.json").exists, "the record is written"
        )
        assert not (sharded.root(1 - shard) / "supervisor-job" / f"{jid}.json").exists()
    # the server secret names any user, as a front end does
    assert site.finished(shell("exit 3", BOB))["exit"]["code"] == 3
    code, who = sharded.ask(site.token, "/api/whoami", headers={SIGNED_IN: BOB})
    assert (code, who["uid"], who["role"]) == (200, BOB, "user")
    # a supervisor refuses users of another shard
    other = sharded.address(0)["url"]
    body = {"reqId": req_id(), "run": shell("exit 0", BOB)}
    code, refused = sharded.ask(site.token, "/api/run-simulation", body, url=other)
    assert (code, refused["code"]) == (421, "wrongShard")
    code, ready = sharded.ask("", "/readyz")
    assert (code, ready["state"], ready["shards"]) == (200, "ok", TOTAL) and "missing" not in ready


def test_bodies_and_streams_are_passed_on_piece_by_piece(sharded: Sharded) -> None:
    site, token = sharded.site, sharded.tokens[BOB]
    headers = {"Authorization": "Bearer " + token}
    content = bytes(range(256)) * 40_000  # more than the buffers of the connections
    path = f"/api/lib-file?uid={BOB}&simulationType=myapp&name=big.dat"
    answer = site.ask("PUT", path, content, headers)
    assert answer.code == 200, answer
    want = {"uid": BOB, "simulationType": "myapp", "name": "big.dat"}
    got = site.ask("POST", "/api/read-lib-file", json.dumps(want).encode(), headers)
    assert hashlib.sha256(got.body).digest() == hashlib.sha256(content).digest()
    # events of a user, as they happen
    connection = site.connection()
    connection.request("GET", f"/api/events?after=-1&uid={BOB}", headers=headers)
    stream = connection.getresponse()
    assert stream.readline().startswith(b"id: ")
    run = shell("exit 0", BOB)
    code, _ = sharded.ask(token, "/api/run-simulation", {"reqId": req_id(), "run": run})
    assert code == 200
    for line in stream:
        if line.startswith(b"data: ") and jid_of(run).encode() in line:
            break
    connection.close()
    # a request that needs no authentication has an answer, and one with a wrong token has none
    assert sharded.ask("", "/livez")[0] == 200
    assert sharded.ask("jst_wrong", "/api/whoami")[0] == 401
    assert sharded.ask(token[:-1] + "x", "/api/job-list", {})[0] == 401


def test_headers_of_clients_give_no_rights(sharded: Sharded) -> None:
    forged = {
        SIGNED_IN: ADMIN,
        ACTOR: ADMIN,
        TOKEN_SCOPES: "read,control,debug,admin",
        PEER: "192.0.2.1 00",
    }
    token = sharded.tokens[ANN]
    code, who = sharded.ask(token, "/api/whoami", headers=forged)
    assert (code, who["uid"], who["role"], who["scopes"]) == (200, ANN, "user", sorted(SCOPES))
    for uid in (ADAM, BOB):
        code, refused = sharded.ask(token, "/api/job-list", {"uid": uid}, forged)
        assert (code, refused["code"]) == (403, "forbidden"), refused
    assert sharded.ask("", "/api/whoami", headers=forged)[0] == 401
    assert sharded.ask("", "/api/job-list", {"uid": ANN}, forged)[0] == 401


def test_an_administrator_acts_in_another_shard_with_the_rights_of_the_token(
    sharded: Sharded,
) -> None:
    site, run = sharded.site, shell("sleep 60", BOB)
    site.submit(run)
    status, cancel = (
        {"uid": BOB, "computeJid": jid_of(run)},
        {"uid": BOB, "computeJid": jid_of(run), "reqId": req_id()},
    )
    plain, reads = sharded.token(ADMIN, *SCOPES), sharded.token(ADMIN, "read", "admin")
    assert sharded.ask(plain, "/api/run-status", status)[1]["code"] == "forbidden"
    code, said = sharded.ask(reads, "/api/run-status", status, source="127.0.0.9")
    assert code == 200 and said["computeJid"] == jid_of(run)
    code, refused = sharded.ask(reads, "/api/run-cancel", cancel)
    assert (code, refused["code"]) == (403, "scopeMissing"), refused
    # on record in the shard of the job, with the address of the client
    audit = sharded.ask(site.token, "/api/audit", {}, url=sharded.address(1)["url"])[1]
    rows = [e["event"] for e in audit["events"] if e["event"].get("action") == "run-status"]
    assert [(r["actor"], r["actorRole"], r["subject"], r["peer"]) for r in rows] == [
        (ADMIN, "admin", BOB, "127.0.0.9")
    ]
    # a token that was revoked a moment ago is worth nothing in any shard
    tokens = site.post("token-list", uid=ADMIN)["tokens"]
    for token in tokens:
        site.post("token-revoke", uid=ADMIN, id=token["id"], reason="test")
    assert sharded.ask(reads, "/api/run-status", status)[1]["code"] == "tokenRevoked"
    # an administrator of a group, whose token is in the shard of the group's member
    boss = sharded.token(GROUP_ADMIN, *SCOPES, "admin")
    assert sharded.ask(boss, "/api/run-cancel", cancel)[0] == 200
    assert site.wait(run)["state"] == "canceled"
    assert sharded.ask(boss, "/api/job-list", {"uid": ANN})[0] == 200, "a member in the other shard"
    assert sharded.ask(boss, "/api/job-list", {"uid": ADAM})[1]["code"] == "forbidden"


def test_a_token_of_another_shard_ends_with_the_token_that_created_it(sharded: Sharded) -> None:
    site = sharded.site
    made = site.post("token-create", uid=ADMIN, name="t", scopes=["read", "control", "admin"])
    boss = str(made["secret"])
    given = {"uid": BOB, "name": "x", "scopes": ["read", "control"]}
    code, child = sharded.ask(boss, "/api/token-create", given)
    assert code == 200 and child["createdBy"] == ADMIN
    assert child["expiresAt"] == pytest.approx(made["expiresAt"]), "it does not outlive its creator"
    assert sharded.ask(child["secret"], "/api/whoami")[1]["uid"] == BOB
    # no more rights than its creator has, and none for others without the role
    for wrong, code in (
        ({**given, "scopes": ["debug"]}, "scopeMissing"),
        ({**given, "scopes": ["admin"]}, "forbidden"),
        ({**given, "expiresSecs": 364 * 86400.0}, "badRequest"),
    ):
        assert sharded.ask(boss, "/api/token-create", wrong)[1]["code"] == code, wrong
    plain, unprivileged = sharded.tokens[ANN], sharded.token(ADMIN, "read", "control")
    for token in (plain, unprivileged):  # a role counts with the scope admin alone
        assert sharded.ask(token, "/api/token-create", given)[1]["code"] == "forbidden"
    forged = {HOME_TOKEN: "abcdefgh 1e12", SIGNED_IN: ADMIN, TOKEN_SCOPES: "control,admin"}
    assert sharded.ask(plain, "/api/token-create", given, forged)[1]["code"] == "forbidden"
    for path, body in (
        ("created-tokens-revoke", {"ids": [made["id"]], "by": "x"}),
        ("device-end", {"userCode": "BCDF-GHJK"}),
    ):
        for sender in (boss, site.token):
            assert sharded.ask(sender, f"/api/{path}", body)[0] in (403, 501), path
        url = sharded.address(0)["url"]
        assert sharded.ask(boss, f"/api/{path}", body, url=url)[0] in (401, 403), path
    # also if a supervisor alone is asked to revoke it
    alone = site.post("token-create", uid=ADMIN, name="t", scopes=["read", "control", "admin"])
    second = sharded.ask(alone["secret"], "/api/token-create", given)[1]
    revoke = {"uid": ADMIN, "id": alone["id"]}
    code, ended = sharded.ask(
        site.token, "/api/token-revoke", revoke, url=sharded.address(0)["url"]
    )
    assert code == 200 and ended["alsoRevoked"] == []
    until(
        lambda: sharded.ask(second["secret"], "/api/whoami")[1].get("code") == "tokenRevoked",
        "the other shard revokes what it created",
        5 * 2 * site_revocations.LOOK_SECS,
    )
    assert sharded.ask(child["secret"], "/api/whoami")[0] == 200
    code, ended = sharded.ask(boss, "/api/token-revoke", {"uid": ADMIN, "id": made["id"]})
    assert code == 200 and ended["alsoRevoked"] == [child["id"]], ended
    assert sharded.ask(child["secret"], "/api/whoami")[1]["code"] == "tokenRevoked"


@pytest.mark.parametrize("uid", (ANN, BOB))
def test_a_machine_gets_a_token_by_code_in_the_shard_of_its_user(
    sharded: Sharded, uid: str
) -> None:
    site = sharded.site

    def poll(begun: dict[str, Any]) -> dict[str, Any]:
        return posted("device-token", {"Authorization": f"Bearer {begun['deviceCode']}"})

    def posted(path: str, headers: dict[str, str]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(site.ask("POST", f"/api/{path}", b"", headers).body)
        return answer

    begun = posted("device-start?name=laptop&scope=read", {})
    assert begun["userCode"] in begun["verificationUriComplete"]
    assert poll(begun)["state"] == "authorizationPending"
    shown = site.post("device-show", uid=uid, userCode=begun["userCode"])
    assert (shown["name"], shown["scopes"], shown["address"]) == ("laptop", ["read"], "127.0.0.1")
    site.post("device-answer", uid=uid, userCode=begun["userCode"], approve=True)
    for other in (ANN, BOB):  # it is answered once in the whole site
        body = {"uid": other, "userCode": begun["userCode"], "approve": True}
        assert sharded.ask(site.token, "/api/device-answer", body)[1]["code"] == "deviceCodeUnknown"
    got = poll(begun)
    assert sharded.ask(got["secret"], "/api/whoami")[1]["uid"] == uid
    # an administrator's token approves it for users of its own shard and of others
    boss = site.post("token-create", uid=ADMIN, name="t", scopes=["read", "control", "admin"])
    for revoked in (False, True):
        begun = posted("device-start?name=laptop&scope=read", {})
        body = {"uid": uid, "userCode": begun["userCode"], "approve": True}
        assert sharded.ask(boss["secret"], "/api/device-answer", body)[0] == 200
        if revoked:  # before the machine has its token
            site.post("token-revoke", uid=ADMIN, id=boss["id"], reason="test")
            assert poll(begun)["code"] == "deviceDenied"
            assert sharded.ask(got["secret"], "/api/whoami")[1]["code"] == "tokenRevoked"
        else:
            got = poll(begun)
            assert (got["uid"], got["createdBy"], got["scopes"]) == (uid, ADMIN, ["read"])
            assert got["expiresAt"] <= boss["expiresAt"]
    assert poll(begun)["code"] == "deviceCodeUnknown"
    begun = posted("device-start?name=laptop&scope=read", {})
    site.post("device-answer", uid=uid, userCode=begun["userCode"], approve=False)
    assert poll(begun)["code"] == "deviceDenied"


def test_requests_about_all_users_have_the_answers_of_all_shards(sharded: Sharded) -> None:
    site = sharded.site
    runs = {uid: shell("exit 0", uid) for uid in (ANN, ADAM, BOB)}
    done = site.post("run-many", reqId=req_id(), runs=list(runs.values()))
    assert [r["computeJid"] for r in done["runs"]] == [jid_of(run) for run in runs.values()]
    for run in runs.values():
        site.wait(run)
    # pages of all jobs: each once, in the order of their changes
    pages, cursor = [], None
    while pages == [] or cursor is not None:
        page = site.post("job-list", limit=2, before=cursor)
        cursor = page["next"]
        pages += page["jobs"]
    listed = [j["jid"] for j in pages]
    assert {jid_of(run) for run in runs.values()} <= set(listed)
    assert len(listed) == len(set(listed))
    assert {shard_of(j["uid"], TOTAL) for j in pages} == {0, 1}
    found, cursor = [], ""
    while found == [] or cursor is not None:
        page = site.post("job-search", limit=2, cursor=cursor, sort="submitted")
        cursor = page["next"]
        found += page["jobs"]
    assert sorted(j["jid"] for j in found) == sorted(listed)
    assert [j["queuedAt"] for j in found] == sorted((j["queuedAt"] for j in found), reverse=True)
    report = site.post("usage", by=["user"])
    assert {ANN, ADAM, BOB} <= {row["user"] for row in report["rows"]}
    assert report["total"]["runs"] == sum(row["runs"] for row in report["rows"])
    # an administrator's token sees all, a group's its members, and a user the own jobs
    admin, boss = sharded.token(ADMIN, "read", "admin"), sharded.token(GROUP_ADMIN, "read", "admin")
    everybody = {j["uid"] for j in sharded.ask(admin, "/api/job-list", {})[1]["jobs"]}
    assert {ANN, ADAM, BOB} <= everybody
    members = {j["uid"] for j in sharded.ask(boss, "/api/job-search", {})[1]["jobs"]}
    assert {ANN, BOB} <= members and ADAM not in members
    own = {j["uid"] for j in sharded.ask(sharded.tokens[ANN], "/api/job-list", {})[1]["jobs"]}
    assert own == {ANN}
    for path in ("/api/site-users", "/metrics", "/health", "/api/site-configuration"):
        assert sharded.ask(sharded.tokens[ANN], path)[0] == 403, path
    users = sharded.ask(admin, "/api/site-users")[1]["users"]
    assert {ANN, BOB, ADMIN, GROUP_ADMIN} <= {u["uid"] for u in users}
    code, text = sharded.ask(site.token, "/metrics")
    assert code == 200 and b'jobscribe_shard_up{shard="1"} 1' in text
    assert re.search(rb'router_requests_total{result="ok",shard="all"} [1-9]', text)
    assert re.search(rb'router_request_duration_seconds_count{shard="1"} [1-9]', text)
    code, health = sharded.ask(site.token, "/health")
    assert code == 200 and "missing" not in health
    # the list of OpenPAI: pages of all users, and of users in both shards
    code, jobs = sharded.ask(site.token, "/api/v2/jobs?withTotalCount=true&order=jobName,ASC")
    names = [j["name"] for j in jobs["data"]]
    assert code == 200 and jobs["totalCount"] == len(names) >= 3 and names == sorted(names)
    paged: list[str] = []
    for offset in range(len(names)):
        path = f"/api/v2/jobs?order=jobName,ASC&limit=1&offset={offset}"
        paged += [j["name"] for j in sharded.ask(site.token, path)[1]]
    assert paged == names
    for version in ("v1", "v2"):
        code, jobs = sharded.ask(site.token, f"/api/{version}/jobs?username={ANN},{BOB}")
        assert code == 200 and {j["username"] for j in jobs} == {ANN, BOB}
    # what has no rule is refused by name
    code, refused = sharded.ask(site.token, "/api/log-exchange", {})
    assert (code, refused["code"]) == (501, "notSharded")


def test_people_of_both_shards_use_the_front_end(sharded: Sharded) -> None:
    """The front end, which has the server secret, needs nothing of its own for shards."""
    site, shards = sharded.site, set[int]()
    for name in (f"person{n}" for n in range(20)):
        with requests.Session() as session:

            def post(
                path: str, body: Any = None, session: requests.Session = session
            ) -> requests.Response:
                return session.post(site.front + path, json=body or {}, timeout=20)

            uid = post("/sign-in", {"name": name}).json()["uid"]
            if shard_of(uid, TOTAL) in shards:
                continue
            shards.add(shard_of(uid, TOTAL))
            ticket = post("/live-ticket").json()
            live = session.get(
                site.front + "/live",
                headers={ticket["header"]: ticket["ticket"]},
                stream=True,
                timeout=20,
            )
            assert live.status_code == 200
            run = shell("exit 0", uid)
            site.submit(run)
            for line in live.iter_lines(chunk_size=1):
                if line.startswith(b"data: ") and '"completed"' in line.decode():
                    break
            live.close()
            listed = post("/own-jobs", {"active": None}).json()["jobs"]
            assert [j["computeJid"] for j in listed] == [jid_of(run)], listed
        if len(shards) == TOTAL:
            break
    assert shards == set(range(TOTAL))


def test_a_browser_pages_through_the_lists_of_all_shards(sharded: Sharded) -> None:
    """A browser has doubles for numbers, so a number over 2^53 would skip or repeat entries."""
    site, reads = sharded.site, sharded.token(ADMIN, "read", "admin")
    for uid in (ANN, ADAM, BOB, GROUP_ADMIN):
        assert sharded.ask(reads, "/api/job-list", {"uid": uid})[0] == 200

    def every(post: Callable[[dict[str, Any]], str], rows: str, first: dict[str, Any]) -> list[Any]:
        found, page = list[Any](), first
        while True:
            got = json.loads(post({**page, "limit": 1}), parse_int=lambda d: int(float(d)))
            found += got[rows]
            if got["cursor"] is None:
                return found
            page = {**first, "cursor": got["cursor"]}

    with requests.Session() as session:
        session.post(site.front + "/sign-in", json={"name": "chief"}, timeout=20)
        url = site.front + "/page-data/site/audit"
        found = every(
            lambda body: session.post(url, json=body, timeout=20).text, "events", {"before": 0}
        )
        # the page Operations
        url = site.front + "/page-data/site/site-supervisors"
        listed = session.post(url, json={}, timeout=20).json()
        for shard in range(TOTAL):
            rows = listed["shards"][str(shard)]["supervisors"]
            serving = next(s for s in rows if s["role"] == "serving")
            assert serving["pid"] == sharded.address(shard)["pid"]
            assert serving["epoch"] >= 1 and serving["leaseEndsInSecs"] > 0
    events = [(e["event"]["at"], e["event"].get("subject")) for e in found]
    whole = site.post("audit", before=0, limit=1000)["events"]
    assert [e["event"] for e in found] == [e["event"] for e in whole]
    assert events == sorted(events, key=lambda e: -e[0])
    assert {shard_of(str(subject), TOTAL) for _, subject in events} == {0, 1}
    jobs = every(lambda body: json.dumps(site.post("job-list", **body)), "jobs", {})
    assert [j["jid"] for j in jobs] == [j["jid"] for j in site.post("job-list", limit=1000)["jobs"]]
    code, refused = sharded.ask(site.token, "/api/audit", {"cursor": "7"})
    assert (code, refused["code"]) == (400, "badRequest")
    # a supervisor alone has texts, too
    url = sharded.address(0)["url"]
    code, got = sharded.ask(site.token, "/api/audit", {"limit": 1}, url=url)
    code, after = sharded.ask(
        site.token, "/api/audit", {"limit": 1, "cursor": got["cursor"]}, url=url
    )
    same = sharded.ask(site.token, "/api/audit", {"limit": 1, "after": got["next"]}, url=url)[1]
    assert code == 200 and after == same and got["cursor"] == str(got["next"])


def test_events_of_all_users_are_resumed_in_each_shard(sharded: Sharded) -> None:
    site = sharded.site

    def read(after: str, jids: set[str]) -> str:
        """Return the position after the first events of these jobs."""
        connection = site.connection()
        headers = {"Authorization": "Bearer " + site.token, "Last-Event-ID": after}
        connection.request("GET", "/api/events", headers=headers)
        stream, position, left, seen = connection.getresponse(), "", set(jids), list[str]()
        for line in stream:
            if line.startswith(b"id: "):
                position = line[4:].strip().decode()
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                assert str(event["position"]) == position, "an event has the position of the stream"
                seen.append(f"{event['stream']} {event['version']}")
                left -= {jid for jid in jids if jid in event["stream"]}
                if not left:
                    break
            elif line == b"\n" and not jids:
                break
        connection.close()
        assert len(seen) == len(set(seen)), "no event comes twice"
        return position

    start = read("-1", set())
    first = {jid_of(run): run for run in (shell("exit 0", ANN), shell("exit 0", BOB))}
    for run in first.values():
        site.finished(run)
    middle = read(start, set(first))
    assert int(middle) > int(start)
    second = {jid_of(run): run for run in (shell("exit 0", ADAM), shell("exit 0", BOB))}
    for run in second.values():
        site.finished(run)
    assert int(read(middle, set(second))) > int(middle)


THREE = ("shards.count=3", "slots.local_parallel=3")


def published(site: SupervisorProcess) -> str | None:
    """Return the address file, once it is that of a router with TLS."""
    text = (site.root / "client.json").read_text()
    return text if "public" in text else None


class Asking:
    """A user who asks all the time. worst: longest time of an answer in seconds. wrong: other answers."""

    def __init__(self, sharded: Sharded, uid: str) -> None:
        self.worst, self.wrong, self.count = 0.0, list[object](), 0
        self._stop = threading.Event()
        self._sharded, self._uid = sharded, uid
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        token = self._sharded.tokens[self._uid]
        while not self._stop.wait(0.02):
            begun = time.monotonic()
            try:
                code, said = self._sharded.ask(token, "/api/job-list", {})
            except (OSError, http.client.HTTPException) as e:
                code, said = 0, repr(e)
            self.worst = max(self.worst, time.monotonic() - begun)
            self.count += 1
            if code != 200:
                self.wrong.append(said)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


def test_a_supervisor_is_listed_and_drained_by_its_name_alone(sharded: Sharded) -> None:
    site = sharded.site
    process, _ = sharded.start("supervisor", "--shard", "1")
    sets = [a for s in site._sets for a in ("--set", s)]

    def shards() -> dict[int, Any]:
        listed = json.loads(site.command("--json", "supervisors", *sets).stdout)
        assert {m["shard"] for m in listed["supervisors"]} == {0, 1}
        return {row["shard"]: row for row in listed["shards"]}

    host = socket.gethostname()
    standby = f"{host}:{process.pid}"
    found = until(
        lambda: (rows := shards())[1]["standbys"] == [standby] and rows, "the standby is listed"
    )
    for shard, row in found.items():
        address = sharded.address(shard)
        assert row["owner"] == f"{host}:{address['pid']}"
        assert row["addresses"]["api"] == address["url"]
        assert row["epoch"] >= 1 and row["leaseEndsInSecs"] > 0
    assert (found[0]["standbys"], found[0]["lagSecs"]) == ([], None) and found[1]["lagSecs"] >= 0
    table = site.command("supervisors", *sets).stdout
    assert table.startswith("SHARD") and f"{standby}" in table and "none" in table, table
    one = json.loads(site.command("--json", "supervisors", "--shard", "0", *sets).stdout)
    assert [m["role"] for m in one["supervisors"]] == ["serving"]
    # its name says which shard hands over; a name that both shards have is refused
    refused = site.command("drain", "supervisor", host)
    assert refused.returncode == 125 and "of shard 0" in refused.stderr, refused.stderr
    refused = site.command("drain", "supervisor", "nobody:1")
    assert refused.returncode == 125 and "has the name" in refused.stderr, refused.stderr
    done = site.command("drain", "supervisor", found[1]["owner"])
    assert done.returncode == 0 and "hands over" in done.stderr, done.stderr
    until(lambda: shards()[1]["owner"] == standby, "the standby serves", DEADLINE_SECS)
    assert shards()[0]["owner"] == found[0]["owner"]
    assert sharded.ask(sharded.tokens[BOB], "/api/job-list", {})[0] in (200, 503)


def test_users_of_one_shard_notice_nothing_of_the_death_of_another_supervisor(
    sharded: Sharded,
) -> None:
    site = sharded.site
    sharded.start("supervisor", "--shard", "1")
    before = sharded.address(1)["pid"]
    gate = site.place / "gate"
    run = shell(f"until [ -e {gate} ]; do sleep 0.05; done; exit 4", BOB)
    site.submit(run, request := req_id())
    site.running(run)
    asking = Asking(sharded, ANN)
    try:
        site.kill(before)
        with Client(site.url, sharded.tokens[BOB], budget_secs=DEADLINE_SECS) as client:
            assert client.status(jid_of(run)).state == "running", "the client repeats its request"
        assert sharded.address(1)["pid"] != before
        assert site.submit(run, request)["state"] == "running", "the request is not done twice"
        until(lambda: asking.count > 20, "the other user asked")
    finally:
        asking.stop()
    assert asking.wrong == []
    gate.touch()
    assert site.wait(run)["exit"]["code"] == 4
    # `up` starts a supervisor for the shard again, which stands by
    until(lambda: "starting it again" in site.log(), "the supervisor is started again")


def test_a_router_can_be_killed(sharded: Sharded, tmp_path: Path) -> None:
    site = sharded.site
    authority = Authority("this site")
    cert, key = authority.issue(tmp_path)
    sets = (f"supervisor.tls_cert={cert}", f"supervisor.tls_key={key}", "supervisor.tls_port=0")
    router, url = sharded.start("router", *(a for s in sets for a in ("--set", s)))
    # it has the interface for other machines, with TLS
    public = json.loads(until(lambda: published(site), "the router has written its address"))[
        "public"
    ]
    trusted = ssl.create_default_context(cafile=str(authority.write(tmp_path / "ca.pem")))
    connection = http.client.HTTPSConnection(
        f"127.0.0.1:{public.rpartition(':')[2]}", timeout=20, context=trusted
    )
    connection.request("GET", "/readyz")
    assert connection.getresponse().status == 200
    connection.close()
    with Client(f"{url},{site.url}", sharded.tokens[ANN]) as client:
        job = client.run(["sh", "-c", "exit 5"])
        router.kill()
        found = job.wait(30).exit
        assert found is not None and found.code == 5


def most_at_once(stamps: Path) -> int:
    """Return how many jobs ran at once at most, by the lines that they wrote at their starts and ends."""
    now = most = 0
    for line in stamps.read_text().splitlines():
        now += 1 if line == "+" else -1
        most = max(most, now)
    return most


class Gated:
    """Runs of a user that write stamps, and end when their gates are opened."""

    def __init__(self, sharded: Sharded, place: Path, stamps: Path, uid: str) -> None:
        self._sharded, self._place, self._stamps, self._uid = sharded, place, stamps, uid
        self.runs: list[dict[str, Any]] = []

    def submit(self, count: int) -> None:
        for _ in range(count):
            self.runs.append(shell(self._text(), self._uid))
            request = req_id()
            until(lambda request=request: self._sent(request), "it is submitted", DEADLINE_SECS)

    def _sent(self, request: str) -> bool:
        """Submit the last run. A client repeats what a supervisor did not answer before its end."""
        try:
            return bool(self._sharded.site.submit(self.runs[-1], request))
        except http.client.RemoteDisconnected:
            return False

    def _text(self) -> str:
        gate = f"until [ -e {self._place}/{self._uid}{len(self.runs)} ]; do sleep 0.05; done"
        return f"echo + >>{self._stamps}; {gate}; echo - >>{self._stamps}"

    def gang(self, tasks: int) -> dict[str, Any]:
        """Return a run with roles, of which each task uses a core."""
        command = ["/bin/sh", "-c", self._text()]
        first = {"name": "first", "command": command, "tasks": tasks - 1, "cpu": 1, "memoryMb": 20}
        second = {**first, "name": "second", "tasks": 1}
        run = spec([], self._uid, roles=[first, second])
        del run["command"]
        return run

    def submit_gang(self, tasks: int) -> None:
        self.runs.append(self.gang(tasks))
        self._sharded.site.submit(self.runs[-1])

    def open(self, count: int) -> None:
        """Let the first runs end."""
        for n in range(count):
            self.end(n)

    def end(self, n: int) -> None:
        (self._place / f"{self._uid}{n}").touch()

    def running(self) -> set[int]:
        """Return the numbers of runs that run; requests are repeated while nobody serves the shard."""
        site, token = self._sharded.site, self._sharded.tokens[self._uid]
        with Client(site.url, token, budget_secs=DEADLINE_SECS) as client:
            return {
                n
                for n, run in enumerate(self.runs)
                if client.status(jid_of(run)).state == "running"
            }


def test_a_shard_uses_what_another_one_leaves_idle_and_gives_it_back_as_runs_end(
    sharded: Sharded, tmp_path: Path
) -> None:
    site, stamps = sharded.site, tmp_path / "stamps"
    lent, own = (Gated(sharded, tmp_path, stamps, uid) for uid in (BOB, ANN))
    lent.submit(8)
    until(lambda: len(lent.running()) == SLOTS, "one user has all slots", DEADLINE_SECS)
    own.submit(4)

    def why() -> str | None:
        said = str(site.status(own.runs[0])["jobStatusMessage"])
        return said if "other shards use 6" in said else None

    said = until(why, "the run says who has its slot", DEADLINE_SECS)
    assert said.endswith(
        "(0 of 0 in use, 0 ahead); this shard may use 0 of the site's 6 slots now, and other shards use 6"
    )
    # its next supervisor, which stands by since an earlier test, keeps to what the shard has
    site.kill(sharded.address(1)["pid"])
    assert lent.running() == set(range(SLOTS))
    lent.open(SLOTS // 2)
    until(lambda: len(own.running()) == SLOTS // 2, "the other user has a half", DEADLINE_SECS)
    assert lent.running() == set(range(SLOTS // 2, SLOTS)), "nothing new starts"
    lent.open(8)
    own.open(4)
    for run in (*lent.runs, *own.runs):
        assert site.wait(run)["exit"]["code"] == 0
    assert most_at_once(stamps) == SLOTS
    assert stamps.read_text().count("+") == 12, "each job ran once"


def test_runs_with_roles_use_cores_that_another_shard_leaves_idle(
    sharded: Sharded, tmp_path: Path
) -> None:
    stamps, part = tmp_path / "stamps", CORES // TOTAL
    lent, own = (Gated(sharded, tmp_path, stamps, uid) for uid in (BOB, ANN))
    for _ in range(3):
        lent.submit_gang(part)
    until(lambda: len(lent.running()) == 2, "one user has all cores", DEADLINE_SECS)
    own.submit_gang(part)
    for run, said in (
        (own.runs[0], "may use 0 of the site's 6 cores now, and other shards use 6"),
        (lent.runs[2], "may use 3 of the site's 6 cores now"),
    ):
        until(
            lambda run=run, said=said: said in str(sharded.site.status(run)["jobStatusMessage"]),
            f"a run says: {said}",
            DEADLINE_SECS,
        )
    (first, second) = lent.running()
    lent.end(first)
    until(lambda: own.running() == {0}, "the other user has its part", DEADLINE_SECS)
    assert lent.running() == {second}, "nothing new starts"
    own.end(0)
    until(lambda: len(lent.running()) == 2, "its cores are lent again", DEADLINE_SECS)
    lent.open(3)
    for run in (*lent.runs, *own.runs):
        assert sharded.site.wait(run)["state"] == "completed"
    assert most_at_once(stamps) == CORES
    assert stamps.read_text().count("+") == 4 * part, "each task ran once"
    # one that needs more than the part of a shard could wait for ever
    body = {"reqId": req_id(), "run": lent.gang(part + 1)}
    code, refused = sharded.ask(sharded.site.token, "/api/run-simulation", body)
    assert code == 400 and "4 cores together" in refused["error"], refused


class HeldWrites:
    """Holds statements that write grants, in PostgreSQL before they look at anything. In a transaction a
    statement sees the rows as they are when it goes on, as if its message arrived then.
    """

    def __init__(self, sharded: Sharded) -> None:
        (url,) = (s for s in sharded.site._sets if s.startswith("store.url="))
        self.schema = parsed(url.partition("=")[2]).schema
        self._raw = postgres_server.shared_durable().connect()
        self._raw.execute(f"""
            CREATE TABLE {self.schema}.held (pattern text PRIMARY KEY, since timestamptz NOT NULL);
            CREATE FUNCTION {self.schema}.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                WHILE EXISTS (
                    SELECT FROM {self.schema}.held
                    WHERE strpos(current_query(), pattern) > 0 AND statement_timestamp() >= since
                ) LOOP PERFORM pg_sleep(0.01); END LOOP;
                RETURN NULL;
            END $$;
            CREATE TRIGGER hold BEFORE INSERT ON {self.schema}.grants
                FOR EACH STATEMENT EXECUTE FUNCTION {self.schema}.hold()""")

    def _lease(self, shard: int) -> str:
        return f'"{self.schema}_{shard}".lease'

    def hold(self, shard: int, *, later: bool = False) -> None:
        """Hold the writes of a shard. later: those that are held go on."""
        since = "clock_timestamp()" if later else "'-infinity'"
        self._raw.execute(
            f"INSERT INTO {self.schema}.held VALUES (%s, {since})"
            " ON CONFLICT (pattern) DO UPDATE SET since = excluded.since",
            (self._lease(shard),),
        )

    def held(self, shard: int) -> list[int]:
        """Return the backends of writes that are held now and will not go on."""
        rows = self._raw.execute(
            f"SELECT a.pid FROM pg_stat_activity a JOIN {self.schema}.held h ON strpos(a.query, h.pattern) > 0"
            " AND a.query_start >= h.since WHERE h.pattern = %s AND a.wait_event = 'PgSleep'",
            (self._lease(shard),),
        )
        return [pid for (pid,) in rows]

    def works(self, backend: int) -> bool:
        rows = self._raw.execute(
            "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active'", (backend,)
        )
        return rows.fetchone() is not None

    def turn(self) -> int:
        """Return the number of writes."""
        return int(self._raw.execute(f"SELECT turn FROM {self.schema}.grant_turn").fetchone()[0])

    def epoch(self, shard: int) -> int:
        query = f"SELECT epoch FROM {self.schema}_{shard}.lease"
        return int(self._raw.execute(query).fetchone()[0])

    def row(self, shard: int) -> tuple[int, int]:
        """Return what a shard has of the slots, and wants."""
        query = f"SELECT granted, wanted FROM {self.schema}.grants WHERE name = %s AND shard = %s"
        found = self._raw.execute(query, ("slots.local_sequential", shard)).fetchone()
        return int(found[0]), int(found[1])

    def end(self) -> None:
        self._raw.execute(f"DELETE FROM {self.schema}.held")
        self._raw.execute(
            f"DROP TRIGGER hold ON {self.schema}.grants; DROP FUNCTION {self.schema}.hold;"
            f" DROP TABLE {self.schema}.held"
        )
        self._raw.close()


@pytest.mark.parametrize("part", ("borrower", "lender"))
def test_a_supervisor_that_is_frozen_within_an_exchange_changes_no_grant(
    sharded: Sharded, tmp_path: Path, part: str
) -> None:
    site, stamps = sharded.site, tmp_path / "stamps"
    ann = Gated(sharded, tmp_path, stamps, ANN)
    bob = Gated(sharded, tmp_path, stamps, BOB)
    sharded.start("supervisor", "--shard", "1")
    frozen = int(sharded.address(1)["pid"])
    writes = HeldWrites(sharded)
    try:
        ann.submit(SLOTS if part == "borrower" else SLOTS // 2)
        until(lambda: len(ann.running()) == len(ann.runs), "runs of one user", DEADLINE_SECS)
        if part == "borrower":  # its write would raise its grant
            bob.submit(SLOTS)
            writes.hold(1)
            ann.open(SLOTS // 2)
            until(lambda: writes.row(0)[0] == SLOTS // 2, "the lender gives back", DEADLINE_SECS)
        else:  # it has told its core that it may use nothing, and its write would say so
            writes.hold(1)
            ann.submit(SLOTS // 2)
            until(lambda: writes.row(0)[1] == SLOTS, "the other one asks", DEADLINE_SECS)
        writes.hold(0)
        writes.hold(1, later=True)  # decided on what the other shard wrote
        (late,) = until(lambda: writes.held(1), "it writes", DEADLINE_SECS)
        epoch, turn = writes.epoch(1), writes.turn()
        site.kill(frozen, signal.SIGSTOP)
        until(lambda: writes.epoch(1) > epoch, "another supervisor serves", DEADLINE_SECS)
        writes.hold(1, later=True)
        until(lambda: not writes.works(late), "the late write was executed", DEADLINE_SECS)
        assert writes.turn() == turn, "a supervisor without the lease wrote grants"
    except BaseException:
        site.kill(frozen, signal.SIGCONT)
        raise
    finally:
        writes.end()
    mine, other = (bob, ann) if part == "borrower" else (ann, bob)
    wanted = SLOTS // 2 if part == "borrower" else SLOTS
    until(lambda: len(mine.running()) == wanted, "slots are lent again", DEADLINE_SECS)
    site.kill(frozen, signal.SIGCONT)
    until(lambda: frozen not in site.everybody(), "the frozen one has ended", DEADLINE_SECS)
    # what was lent comes back
    other.submit(SLOTS // 2)
    mine.open(len(mine.runs))
    until(lambda: len(other.running()) >= SLOTS // 2, "its part is back", DEADLINE_SECS)
    other.open(len(other.runs))
    for run in (*ann.runs, *bob.runs):
        assert site.wait(run)["exit"]["code"] == 0
    assert most_at_once(stamps) == SLOTS
    assert stamps.read_text().count("+") == len(ann.runs) + len(bob.runs), "each job ran once"


@pytest.mark.parametrize(
    "words, sets, said",
    (
        (("--shard", "1"), THREE, "has 2 shards"),
        (("--shard", "2"), THREE, "has 2 shards"),
        (("--shard", "7"), (), "0 to 1"),
        ((), (), "--shard 0"),
        ((), ("shards.count=none",), "root"),
    ),
)
def test_a_wrong_start_is_refused_by_name(
    sharded: Sharded, words: tuple[str, ...], sets: tuple[str, ...], said: str
) -> None:
    site = sharded.site
    given = [a for s in (*site._sets, *sets) for a in ("--set", s)]
    done = site.command("supervisor", *words, "--port", "0", *given)
    assert done.returncode == 78 and said in done.stderr, done.stderr


def test_a_root_with_shards_is_not_used_without_them(sharded: Sharded) -> None:
    for words in (("up",), ("up", "--no-web")):
        done = sharded.site.command(*words, "--port", "0")
        assert done.returncode == 78 and "shards.count" in done.stderr, done.stderr
    for words in (("db", "init", "--accept-loss"), ("db", "adopt")):
        done = sharded.site.command(*words)
        assert done.returncode == 125 and "shards/0" in done.stderr, (words, done.stderr)
    done = sharded.site.command("--root", str(sharded.root(1)), "db", "check")
    assert done.returncode == 0, done.stderr


def test_commands_read_the_logs_of_all_shards(sharded: Sharded) -> None:
    site = sharded.site
    runs = {uid: shell("exit 0", uid) for uid in (ANN, BOB)}
    for run in runs.values():
        site.finished(run)
    checked = json.loads(site.command("--json", "db", "check").stdout)
    assert checked["ok"] and set(checked["shards"]) == {"0", "1"}
    lines = site.command("db", "check", "--shard", "1").stdout.splitlines()
    assert lines and all(line.startswith("shard 1: ") for line in lines)
    for uid, run in runs.items():
        told = json.loads(site.command("--json", "db", "story", jid_of(run)).stdout)
        assert told["stream"] == f"job/{jid_of(run)}"
        other = str(1 - shard_of(uid, TOTAL))
        refused = site.command("db", "story", jid_of(run), "--shard", other)
        assert refused.returncode != 0 and "no events" in refused.stderr
    last = json.loads(site.command("--json", "db", "story", "last").stdout)
    assert last["stream"] == f"job/{jid_of(runs[BOB])}"
    # each supervisor exchanges its own log
    done = site.command("--json", "db", "compact", "--older-than", "0", "--no-keep")
    assert done.returncode == 0, done.stderr
    compacted = json.loads(done.stdout)["shards"]
    assert {k: c["changed"] for k, c in compacted.items()} == {"0": True, "1": True}
    again = site.command("db", "compact", "--older-than", "0", "--dry-run", "--shard", "1")
    assert again.stdout.startswith("shard 1: "), again.stderr
    for run in runs.values():
        assert site.status(run)["state"] == "completed"
    events = [json.loads(line) for line in site.command("db", "export").stdout.splitlines()]
    for uid, run in runs.items():
        streams = {e["shard"] for e in events if e["stream"] == f"job/{jid_of(run)}"}
        assert streams == {shard_of(uid, TOTAL)}
    for words, said in (
        (("export", "--after", "3"), "--shard K"),
        (("story", "system"), "--shard K"),
        (("check", "--shard", "7"), "no shard 7"),
        (("move", "--to-file"), "cannot move into files"),
        (("rebuild",), "in use"),
    ):
        refused = site.command("db", *words)
        assert refused.returncode == 125 and said in refused.stderr, (words, refused.stderr)


def test_a_shard_that_nobody_serves_is_named(sharded: Sharded) -> None:
    site = sharded.site
    for pid, line in site.everybody().items():
        if line.startswith(b"jobscribe supervisor ") and line.rstrip(b"\0").endswith(b"shards/1"):
            site.kill(pid)
    code, drains = sharded.ask(site.token, "/api/site-drains")
    assert (code, drains["drains"], drains["missing"]) == (200, [], [1])
    code, health = sharded.ask(site.token, "/health")
    assert (code, health["state"]) == (200, "failing") and "--shard 1" in str(health["reasons"])
    code, refused = sharded.ask(sharded.tokens[BOB], "/api/job-list", {})
    assert (code, refused["code"], refused["missing"]) == (503, "noSupervisor", [1])
    # a browser gets a page that loads itself again
    headers = {"Accept": "text/html", "Authorization": "Bearer " + sharded.tokens[BOB]}
    shown = site.ask("GET", f"/api/lib-files?uid={BOB}&simulationType=myapp", headers=headers)
    assert (shown.code, shown.headers["Retry-After"]) == (503, "2")
    assert shown.headers["Content-Type"].startswith("text/html")
    assert b"No supervisor serves shard 1" in shown.body and b'http-equiv="refresh"' in shown.body
    text = sharded.ask(site.token, "/metrics")[1]
    assert b'jobscribe_shard_up{shard="1"} 0' in text and b'jobscribe_shard_up{shard="0"} 1' in text
    assert re.search(rb'router_requests_total{result="noSupervisor",shard="1"} [1-9]', text)
    assert sharded.ask(sharded.tokens[ANN], "/api/job-list", {})[0] == 200
    until(  # `up` starts the supervisor again
        lambda: "missing" not in sharded.ask(site.token, "/api/site-drains")[1],
        "the shard is served again",
        DEADLINE_SECS,
    )


def test_a_site_with_shards_moves_to_another_database_and_is_restored(
    sharded: Sharded, tmp_path: Path
) -> None:
    site = sharded.site
    run = shell("exit 6", BOB)
    site.finished(run)
    before = {
        k: sharded.ask(site.token, "/api/job-list", {"uid": u}) for k, u in ((0, ANN), (1, BOB))
    }
    target = postgres_server.shared_durable().url()
    saved = str(tmp_path / "saved")
    made = site.command("--json", "db", "backup", saved)  # while supervisors serve
    assert made.returncode == 0 and set(json.loads(made.stdout)["shards"]) == {"0", "1"}
    for words in (("move", target), ("restore", saved, "--replace"), ("repair", "--yes")):
        busy = site.command("db", *words)
        assert busy.returncode == 125, (words, busy.stderr)
    lost = shell("exit 4", ANN)
    site.finished(lost)
    sharded.end()  # standbys of other tests would serve
    site.stop()
    rebuilt = site.command("--json", "db", "rebuild")
    assert rebuilt.returncode == 0 and set(json.loads(rebuilt.stdout)["shards"]) == {"0", "1"}
    # a move that was interrupted between the databases continues
    note = sharded.root(1) / "db/moving-shard.json"

    def interrupted(at: str) -> None:
        raise InterruptedError(at)

    to = parsed(with_schema(target, 1))
    with pytest.raises(InterruptedError):
        move_shard(sharded.root(1), 1, to, None, lambda: None, point=interrupted)
    assert note.exists()
    refused = site.command(
        "supervisor", "--shard", "1", "--port", "0", *(a for s in site._sets for a in ("--set", s))
    )
    assert refused.returncode == 78 and "store.url" in refused.stderr, refused.stderr
    # one shard, then all: what has moved stays
    for words, said in ((("--shard", "1"), "shard 1: "), ((), "shard 1: its log is there already")):
        done = site.command("db", "move", target, *words)
        assert done.returncode == 0 and said in done.stdout, done.stderr
    assert not note.exists()
    checked = json.loads(site.command("--json", "db", "check").stdout)
    assert checked["ok"], checked
    restored = site.command("--json", "db", "restore", saved, "--replace")
    assert restored.returncode == 0, restored.stderr
    events = {k: s["events"] for k, s in json.loads(made.stdout)["shards"].items()}
    there = json.loads(restored.stdout)["shards"]
    assert {k: r["events"] for k, r in there.items()} == events
    assert there["0"]["lostUpTo"] > there["0"]["position"], "the run after the backup is lost"
    repaired = site.command("db", "repair")
    assert repaired.stdout.splitlines() == ["shard 0: no fault found", "shard 1: no fault found"]
    site._sets = (f"store.url={target}", *(s for s in site._sets if not s.startswith("store.url")))
    site.start()
    after = {
        k: sharded.ask(site.token, "/api/job-list", {"uid": u}) for k, u in ((0, ANN), (1, BOB))
    }
    assert [j["jid"] for j in after[1][1]["jobs"]] == [j["jid"] for j in before[1][1]["jobs"]]
    assert [j["jid"] for j in after[0][1]["jobs"]] == [j["jid"] for j in before[0][1]["jobs"]]
    assert site.finished(shell("exit 2", BOB))["exit"]["code"] == 2
