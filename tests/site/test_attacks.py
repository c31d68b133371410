"""Attacks on a real `jobscribe up`: a hostile user, a hostile page in another tab, and an
unauthenticated client on the network.
"""

import base64
import contextlib
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_browser import Browser
from itsdangerous import URLSafeSerializer
from supervisor_process import Answer, SupervisorProcess, texts_below, until

from jobscribe.runtime import processes

#: select() cannot handle descriptors from this number on.
SELECTABLE = 1024
#: A forged log line with a terminal control sequence.
FORGED = "Nov 21 08:30:45     1     0 web/forged.py:1:forged \x1b[31m"


@pytest.fixture(scope="module")
def site(sites: Any) -> SupervisorProcess:
    """Return a site with an app whose user writes its program."""
    made: SupervisorProcess = sites.make(
        "slots.local_sequential=4",
        "slots.local_parallel=4",
        "apps.also=slow=site_hooks:slow,failing=site_hooks:failing,evil=hostile_app:evil",
    )
    return made


@pytest.fixture
def victim(site: SupervisorProcess, request: pytest.FixtureRequest) -> Browser:
    """Sign in another user, who must not be affected by the attack."""
    return Browser(site).sign_in(f"victim of {request.node.name}"[:64])


def raw(site: SupervisorProcess, *lines: str, body: bytes = b"", ends: bytes = b"\0") -> bytes:
    """Send a request with these lines. Return the answer until the connection is closed or `ends`
    has arrived.
    """
    with connected(site) as s:
        s.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode("latin1") + body)
        out = b""
        while ends not in out and (piece := s.recv(65536)):
            out += piece
        return out


def connected(site: SupervisorProcess) -> socket.socket:
    host, _, port = site.front.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def host(site: SupervisorProcess) -> str:
    return "Host: " + site.front.removeprefix("http://")


def is_well(victim: Browser) -> None:
    """Check that another user is served normally."""
    simulation = victim.simulation("heightWeightReport", "myapp")
    assert victim.finished(simulation)["state"] == "completed"
    assert victim.download(simulation, "csv").code == 200
    assert victim.ask("GET", "/lib-files/evil").code == 200


def evil(browser: Browser, sh: str, report: str = "evilAnimation") -> dict[str, Any]:
    """Run a shell script as a job, and return its simulation."""
    simulation = browser.simulation(report, "evil", sh=sh)
    assert browser.finished(simulation)["state"] == "completed"
    return simulation


def outside(site: SupervisorProcess) -> Path:
    """Return a file that no user may read. It holds no secret, because other tests search for
    secrets everywhere.
    """
    path = site.place / "outside"
    path.write_text("not for users")
    return path


# ---- an unauthenticated client on the network


def test_a_body_of_doubtful_length_reaches_nobody(
    site: SupervisorProcess, browser: Browser
) -> None:
    before = site.log().count("Traceback")
    cookie = f"Cookie: {browser._cookie}"
    smuggled = b"0\r\n\r\nPOST /sign-out HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    for lines in (
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 2", "Content-Length: 3"),
        ("Content-Length: 2, 2",),
        ("Content-Length: +2",),
        ("Content-Length: 0x2",),
        ("Content-Length: -1",),
        ("Content-Length: \xb2",),
        ("Content-Length: " + "1" * 5000,),
        ("Content-Length:",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding:", " chunked"),
        ("Content-Length : 2",),
        ("X: a\rX-Jobscribe-Peer: 0",),
        ("X: a\0b",),
    ):
        answer = raw(
            site,
            "POST /own-jobs HTTP/1.1",
            host(site),
            cookie,
            "Content-Type: application/json",
            *lines,
            body=smuggled,
        )
        assert re.match(rb"HTTP/1\.[01] 400 Bad Request\r\n", answer), (lines, answer)
        assert answer.count(b"HTTP/1.") == 1, (lines, answer)
    assert browser.ask("GET", "/who").code == 200
    assert site.log().count("Traceback") == before


def test_two_requests_in_a_row_are_two_and_their_words_stay_apart(
    site: SupervisorProcess, browser: Browser
) -> None:
    who = ("GET /who HTTP/1.1", host(site))
    answers = raw(
        site,
        *who,
        f"Cookie: {browser._cookie}",
        "Content-Length: 25",
        "",
        "GET /apps HTTP/1.1",
        "X: y",
        *who,
        "",
        "GET http://evil.example/live HTTP/1.1",
        host(site),
        "Upgrade: websocket",
        "Connection: upgrade",
        "",
        *who,
        "Connection: close",
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"401", b"404", b"401"]


def test_idle_connections_shut_nobody_out(site: SupervisorProcess, victim: Browser) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = SELECTABLE + 100
    assert hard >= 2 * most, "this machine allows too few descriptors for this test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * most), hard))
    with contextlib.ExitStack() as idle:
        idle.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(most):
            idle.enter_context(connected(site)).sendall(b"GET / HTTP/1.1\r\n")
        with ThreadPoolExecutor(12) as pool:
            codes = list(
                pool.map(lambda _: victim.another_window().ask("GET", "/who").code, range(12))
            )
        assert codes == [200] * 12
    is_well(victim)


def test_uploads_of_nobody_that_stall_shut_nobody_out(
    site: SupervisorProcess, victim: Browser
) -> None:
    with contextlib.ExitStack() as stalled:
        for _ in range(150):
            s = stalled.enter_context(connected(site))
            s.sendall(
                f"PUT /lib-file/evil/x HTTP/1.1\r\n{host(site)}\r\nContent-Length: 1000000\r\n\r\nabc".encode()
            )
        is_well(victim)


# ---- another unix user of this machine

#: Runs as that user: sends each request on a separate connection and prints the answers. A
#: `closing` request does not wait for its answer.
THIEF = """
import json, socket, sys
port, requests = json.load(sys.stdin)
answers = []
for text, how in requests:
    s = socket.socket(socket.AF_INET6 if how == "mapped" else socket.AF_INET)
    s.settimeout(20)
    s.connect(("::ffff:127.0.0.1" if how == "mapped" else "127.0.0.1", port))
    s.sendall(text.encode("latin1"))
    got = b""
    while how != "closing" and (piece := s.recv(65536)):
        got += piece
    s.close()
    answers.append(got.decode("latin1"))
print(json.dumps(answers))
"""
NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be another unix user for a while"
)


def stolen(site: SupervisorProcess, *requests: tuple[str, str]) -> list[str]:
    """Return the answers that another unix user gets."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", THIEF],
        input=json.dumps([int(site.front.rpartition(":")[2]), requests]),
        capture_output=True,
        text=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        timeout=60,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def as_text(site: SupervisorProcess, first: str, *lines: str, body: str = "") -> str:
    ends = () if "Connection: keep-alive" in lines else ("Connection: close",)
    sized = (f"Content-Length: {len(body)}", "Content-Type: application/json") if body else ()
    return "\r\n".join(
        (
            f"{first} HTTP/1.1",
            host(site),
            "X-Jobscribe: 1",
            "X-Jobscribe-Peer: 0",
            *lines,
            *sized,
            *ends,
            "",
            body,
        )
    )


@ROOT_ONLY
def test_a_cookie_and_a_ticket_that_another_unix_user_got_open_nothing(
    site: SupervisorProcess, browser: Browser
) -> None:
    simulation = browser.simulation("heightWeightReport", "myapp")
    names = "/".join(
        browser.simulation("heightWeightReport", "myapp")[k]
        for k in ("simulationType", "simulationId", "report")
    )
    cookie, ticket = (
        f"Cookie: {browser._cookie}",
        f"X-Jobscribe-Ticket: {browser.post('/live-ticket')['ticket']}",
    )
    run = as_text(site, "POST /run-simulation", cookie, body=json.dumps(simulation))
    requests = [
        *(
            (as_text(site, f"GET {path}", cookie, ticket), "")
            for path in (
                "/who",
                "/live",
                "/live?computeJid=x",
                "/",
                "/sign-in",
                "/healthz",
                f"/download-run-file/{names}/-1",
                f"/run-log/{names}",
                "/lib-files/evil",
                "http://127.0.0.1/live",
                "//live",
            )
        ),
        *(
            (as_text(site, f"POST {path}", cookie, body="{}"), "")
            for path in ("/own-jobs", "/live-ticket", "/sign-out", "/begin-session")
        ),
        (as_text(site, "POST /sign-in", body='{"name": "thief"}'), ""),
        (as_text(site, "PUT /lib-file/evil/theirs", cookie, body="x"), ""),
        (run, ""),
        (run, "mapped"),
        (as_text(site, "GET /who", cookie, "Connection: keep-alive") + run, ""),
    ]

    def refused() -> int:
        return site.logged("server").count("refused a request of unix uid")

    before, answers = refused(), stolen(site, *requests)
    for (text, _), answer in zip(requests, answers, strict=True):
        assert (
            set(re.findall(r"HTTP/1.1 (\d+)", answer)) == {"403"}
            and '"code":"forbidden"' in answer
            and "Set-Cookie" not in answer
        ), (text, answer)
    # a second request on a connection is refused, too, and not answered
    answered = before + sum(text.count(" HTTP/1.1\r\n") for text, _ in requests)
    until(lambda: refused() == answered, "the log has all of them")
    # the kernel reports user 0 for a socket that its process has closed
    stolen(site, *[(run, "closing")] * 20)
    until(lambda: refused() == answered + 20, "all of them were refused")
    assert browser.ask("GET", "/who").json()["uid"] == browser.uid, "nobody signed it out"
    assert (
        browser.post("/own-jobs", active=None)["jobs"] == []
        and browser.ask("GET", "/lib-files/evil").json()["files"] == []
    )


def test_signing_out_ends_the_session_and_its_streams_for_whoever_has_the_cookie(
    site: SupervisorProcess, browser: Browser
) -> None:
    kept = browser.another_window()
    ticket = browser.post("/live-ticket")["ticket"]
    with connected(site) as s:
        s.sendall(
            as_text(
                site, "GET /live", f"Cookie: {browser._cookie}", f"X-Jobscribe-Ticket: {ticket}"
            ).encode()
        )
        assert s.recv(12) == b"HTTP/1.1 200"
        assert browser.ask("POST", "/sign-out", {}).code == 200
        while s.recv(65536):
            continue
    for method, path in (("GET", "/who"), ("POST", "/own-jobs"), ("POST", "/live-ticket")):
        assert kept.ask(method, path, {} if method == "POST" else None).code == 401
    pid = site.titled("server")[0]
    os.kill(pid, signal.SIGKILL)
    until(lambda: site.titled("server") not in ([], [pid]), "the front end is started again")
    assert until(lambda: kept.another_window().ask("GET", "/who").code, "it answers") == 401


# ---- a page in another tab


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1@evil.example",
        "0.0.0.0",
        "localhost.",
        "",
    ],
)
def test_a_name_of_somebody_else_that_leads_here_opens_nothing(
    site: SupervisorProcess, browser: Browser, name: str
) -> None:
    port = site.front.rpartition(":")[2]
    for line in ("GET / HTTP/1.1", "GET /who HTTP/1.1", "POST /live-ticket HTTP/1.1"):
        answer = raw(
            site,
            line,
            f"Host: {name}:{port}",
            f"Origin: http://{name}:{port}",
            f"Cookie: {browser._cookie}",
            "Content-Type: application/json",
            "Sec-Fetch-Site: same-origin",
            "Connection: close",
        )
        assert b"crossSite" in answer and answer.split(b" ")[1] == b"403", (line, answer)


def test_another_tab_can_change_nothing_and_read_nothing(
    site: SupervisorProcess, browser: Browser
) -> None:
    simulation = browser.simulation("heightWeightReport", "myapp")
    port = int(site.front.rpartition(":")[2])
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": f"http://localhost:{port}"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=application/json"},
    ):
        for path in ("/run-simulation", "/live-ticket", "/sign-in", "/sign-out"):
            answer = browser.ask("POST", path, simulation, headers)
            assert (answer.code, answer.json()["code"]) == (403, "crossSite"), (
                headers,
                path,
                answer,
            )
    preflight = browser.ask(
        "OPTIONS",
        "/run-simulation",
        headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.code == 405
    for answer in (
        preflight,
        browser.ask("GET", "/who"),
        browser.ask("GET", "/apps"),
        browser.ask("GET", "/"),
    ):
        assert not [n for n in answer.headers if n.lower().startswith("access-control")]
        assert (
            answer.headers["X-Content-Type-Options"] == "nosniff"
            and "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        )
    assert browser.ask("POST", "/own-jobs", {"active": None}).json()["jobs"] == []


# ---- another user


def shown(answer: Answer, simulation: dict[str, Any]) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Return all of an answer except the date and the requested id."""
    headers = [(n, v) for n, v in answer.headers.items() if n != "Date"]
    return (
        answer.code,
        answer.body.replace(simulation["simulationId"].encode(), b"........"),
        headers,
    )


def test_another_users_job_is_answered_as_one_that_is_not_there(
    site: SupervisorProcess, browser: Browser, victim: Browser
) -> None:
    theirs, heat = (
        victim.simulation("heightWeightReport", "myapp"),
        victim.simulation("heatAnimation"),
    )
    done, animated = victim.finished(theirs), victim.finished(heat)
    jid = done["computeJid"]

    def asked(simulation: dict[str, Any]) -> list[Any]:
        names = {k: simulation[k] for k in ("simulationType", "simulationId", "report")}
        known = {
            **names,
            "computeJobSerial": done["computeJobSerial"],
            "computeJobHash": done["computeJobHash"],
            "uid": victim.uid,
            "computeJid": jid,
        }
        place = "/".join(names.values())
        answers = [
            browser.ask("POST", path, body)
            for path in ("/run-status", "/run-cancel")
            for body in (names, known)
        ]
        answers += [
            browser.ask("POST", "/analysis-job", {**names, "method": "anything"}),
            browser.download(simulation),
        ]
        answers += [browser.ask("GET", f"/{route}/{place}") for route in ("run-log", "run-files")]
        answers.append(
            browser.frame({**heat, "simulationId": simulation["simulationId"]}, animated, 0)
        )
        ticket = browser.post("/live-ticket")["ticket"]
        live = (
            f"GET /live?logs={victim.uid}-{simulation['simulationId']}-heightWeightReport HTTP/1.1"
        )
        said = raw(
            site,
            live,
            host(site),
            f"X-Jobscribe-Ticket: {ticket}",
            "Connection: close",
            ends=b"\n\n",
        ).split(b"\r\n\r\n")[1]
        return [shown(a, simulation) for a in answers] + [
            said.replace(simulation["simulationId"].encode(), b"........")
        ]

    nowhere = {**theirs, "simulationId": "Nowhere1"}
    for seen, not_there in zip(asked(theirs), asked(nowhere), strict=True):
        assert seen == not_there
        assert victim.uid.encode() not in (seen[1] if isinstance(seen, tuple) else b"")
    theirs_live, mine_live = (
        live_status(site, browser, f"{uid}-{theirs['simulationId']}-heightWeightReport")
        for uid in (victim.uid, browser.uid)
    )
    assert (
        (theirs_live["state"], theirs_live["reason"])
        == (mine_live["state"], mine_live["reason"])
        == ("missing", "noRun")
    )


def live_status(site: SupervisorProcess, browser: Browser, jid: str) -> Any:
    """Return the first message about this job in a live stream."""
    ticket = browser.post("/live-ticket")["ticket"]
    with connected(site) as s:
        s.sendall(
            f"GET /live?computeJid={jid} HTTP/1.1\r\n{host(site)}\r\nX-Jobscribe-Ticket: {ticket}\r\n\r\n".encode()
        )
        got = b""
        while b"\n\n" not in got:
            piece = s.recv(65536)
            assert piece, got
            got += piece
    return json.loads(got.partition(b"data: ")[2].partition(b"\n")[0])


def test_a_request_id_of_somebody_else_leads_to_ones_own_job(
    browser: Browser, victim: Browser
) -> None:
    simulation = victim.simulation("heightWeightReport", "myapp")
    jids = [b.run(simulation, reqId="a-known-request-id")["computeJid"] for b in (victim, browser)]
    assert [jid.partition("-")[0] for jid in jids] == [victim.uid, browser.uid]


def test_cookies_and_tickets_cannot_be_made(
    site: SupervisorProcess, browser: Browser, victim: Browser
) -> None:
    name, _, value = browser._cookie.partition("=")
    body, stamp, mac = value.rsplit(".", 2)
    other = (
        base64.urlsafe_b64encode(
            json.dumps({"uid": victim.uid, "name": "victim", "_permanent": True}).encode()
        )
        .decode()
        .rstrip("=")
    )
    for forged in (
        f"{other}.{stamp}.{mac}",
        f"{other}.{stamp}.",
        f"{body}.{stamp}.{mac[:-2]}",
        other,
        f"{body}.{stamp[::-1]}.{mac}",
    ):
        assert browser.ask("GET", "/who", headers={"Cookie": f"{name}={forged}"}).code == 401, (
            forged
        )
    good = browser.post("/live-ticket")["ticket"]
    payload, _, mac = good.rpartition(".")
    uid, until = URLSafeSerializer("").loads_unsafe(good)[1]
    assert uid == browser.uid
    tickets = [
        f"{URLSafeSerializer('').dump_payload(forged).decode()}.{mac}"
        for forged in ([victim.uid, until], [uid, 2 * until])
    ]
    tickets += [
        payload,
        f"{payload}.",
        f"{payload}.{mac[::-1]}",
        URLSafeSerializer("").dumps([uid, until]),
    ]
    for ticket in (*tickets, "", good + ",", "A" * 50_000, "\xff"):
        answer = raw(
            site,
            "GET /live HTTP/1.1",
            host(site),
            f"X-Jobscribe-Ticket: {ticket}",
            "Connection: close",
            ends=b"\n\n",
        )
        assert answer.split(b" ")[1] == b"401" and b"not valid for this site" in answer, (
            ticket[:100],
            answer[:300],
        )


def test_calls_of_one_user_leave_workers_for_the_others(
    site: SupervisorProcess, browser: Browser, victim: Browser, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    codes: Counter[int] = Counter()

    def call() -> None:
        with_file = {"simulationType": "evil", "method": "until", "args": {"file": str(go)}}
        codes[browser.another_window().ask("POST", "/stateless-compute", with_file).code] += 1

    threads = [threading.Thread(target=call) for _ in range(40)]
    for t in threads:
        t.start()
    try:
        until(lambda: codes[429] >= 30, "those that are too many are told to come back")
        is_well(victim)
        assert codes[200] == 0, "the others are still under way"
    finally:
        go.touch()
        for t in threads:
            t.join()
    assert codes[200] >= 1 and set(codes) == {200, 429}


def test_downloads_that_one_user_does_not_read_leave_places_for_the_others(
    site: SupervisorProcess, browser: Browser, victim: Browser
) -> None:
    simulation = evil(browser, "truncate -s 200M big")
    path = f"/download-run-file/evil/{simulation['simulationId']}/evilAnimation/-1?suffix=big"
    answers: Counter[bytes] = Counter()
    with contextlib.ExitStack() as unread:
        for _ in range(20):
            s = unread.enter_context(connected(site))
            s.sendall(
                f"GET {path} HTTP/1.1\r\n{host(site)}\r\nCookie: {browser._cookie}\r\n\r\n".encode()
            )
            answers[s.recv(12)] += 1
        assert set(answers) == {b"HTTP/1.1 200", b"HTTP/1.1 429"}
        is_well(victim)
    until(
        lambda: browser.ask("GET", path, headers={"Range": "bytes=0-9"}).code == 206,
        "the places are given back",
    )


# ---- files that a job leaves in its folders


def test_nothing_but_plain_files_of_the_run_directory_is_downloaded(
    site: SupervisorProcess, browser: Browser
) -> None:
    secret = site.root / "secret/server"
    simulation = evil(
        browser,
        f"""
        echo fine > plain; ln -s {secret} link; ln -s {secret.parent} folder; ln -s . here; mkfifo pipe; mkdir d; ln -s /etc d/etc
        printf x > "$(printf 'a"b;\\r\\nX-Evil: 1')"; ln {outside(site)} hard; ln plain d/plain
    """,
    )
    assert (
        browser.download(simulation, "plain").body
        == browser.download(simulation, "d/plain").body
        == b"fine\n"
    )
    for name in (
        "link",
        "hard",
        "folder/server",
        "here/plain",
        "d/etc/passwd",
        "pipe",
        "d",
        ".",
        "..",
        "../evilAnimation/plain",
        str(secret),
        "plain\0",
        "d//x",
        ".jobscribe/latest/stdout.log",
        "",
        "%2e%2e/x",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    ):
        answer = browser.download(simulation, name)
        assert (
            answer.code == 422
            and site.token.encode() not in answer.body
            and b"not for users" not in answer.body
        ), (name, answer)
    named = browser.download(simulation, 'a"b;\r\nX-Evil: 1')
    assert (
        named.code == 200
        and named.headers["X-Evil"] is None
        and "\n" not in named.headers["Content-Disposition"]
    )
    assert (
        named.headers["Content-Disposition"].startswith("attachment; ")
        and "sandbox" in named.headers["Content-Security-Policy"]
    )


@pytest.mark.parametrize("what", ["ln -s {secret}", "ln {outside}", "mkfifo", "mkdir"])
def test_a_log_that_is_something_else_tells_nothing_and_holds_nobody_up(
    site: SupervisorProcess, browser: Browser, victim: Browser, what: str
) -> None:
    simulation = evil(
        browser,
        f"cd .jobscribe/latest; rm stdout.log; {what.format(secret=site.root / 'secret/server', outside=outside(site))} stdout.log",
    )
    place = f"/run-log/evil/{simulation['simulationId']}/evilAnimation"
    for path in [place, place + "?tail=4096"] * 5:
        answer = browser.ask("GET", path)
        assert (answer.code, answer.body) == (200, b""), answer
    assert victim.ask("GET", "/lib-files/evil").code == 200


def test_a_library_gives_plain_files_only_and_one_of_holes_holds_nobody_up(
    site: SupervisorProcess, browser: Browser, victim: Browser
) -> None:
    secret = site.root / "secret/server"

    def shell(sh: str) -> str:
        return str(
            browser.post("/stateful-compute", simulationType="evil", method="sh", args={"sh": sh})[
                "said"
            ]
        )

    shell(
        f"ln -s {secret} link; ln {outside(site)} hard; mkfifo pipe; mkdir folder; truncate -s 1T holes; echo fine > plain"
    )
    for _ in range(8):
        assert [f["name"] for f in browser.ask("GET", "/lib-files/evil").json()["files"]] == [
            "plain"
        ]
    assert browser.ask("GET", "/lib-file/evil/hard").code == 404
    for name in ("link", "pipe", "folder"):
        assert [
            browser.ask(method, f"/lib-file/evil/{name}").code for method in ("GET", "DELETE")
        ] == [404, 404]
    assert browser.ask("PUT", "/lib-file/evil/link", b"mine").code == 200
    assert secret.read_text().strip() == site.token and shell("cat link") == "mine", (
        "the link was replaced, and not what it led to"
    )
    shell(f"cd ..; mv lib away; ln -s {secret.parent} lib")
    for method, path in (
        ("GET", "/lib-files/evil"),
        ("GET", "/lib-file/evil/server"),
        ("PUT", "/lib-file/evil/x"),
        ("DELETE", "/lib-file/evil/server"),
    ):
        assert browser.ask(method, path, b"x" if method == "PUT" else None).code == 404
    assert "x" not in os.listdir(secret.parent) and stat.S_ISREG(secret.lstat().st_mode)
    assert victim.ask("GET", "/lib-files/evil").code == 200


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": "\\ud800"}', '{"a": NaN}', "", "junk", '{"a": "\\xff"}']
)
def test_a_result_that_is_no_json_is_not_passed_on(
    site: SupervisorProcess, browser: Browser, text: str
) -> None:
    before = site.log().count("Traceback")
    simulation = evil(browser, "true", "evilReport")
    (browser.run_dir(simulation) / "out.json").write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    status = browser.status(simulation)
    assert (status["state"], status["resultError"]["code"]) == ("completed", "appFailed")
    (browser.run_dir(simulation) / "out.json").write_text(
        '{"state": "error", "nextRequest": {}, "error": "lies", "computeJid": "x", "fine": 1}'
    )
    status = browser.status(simulation)
    assert (status["state"], status["fine"]) == ("completed", 1) and not {
        "nextRequest",
        "error",
    } & set(status)
    assert site.log().count("Traceback") == before


# ---- malformed requests, and data that is logged


@pytest.mark.parametrize(
    "value",
    [
        "[" * 500 + "]" * 500,
        "[" * 100_000,
        '{"a":' * 90 + "1" + "}" * 90,
        str(2**64),
        "1" * 5000,
        "1e999",
        "NaN",
        '"\\ud800"',
        '{"\\udc00": 1}',
        "[" + "1," * 100_000 + "1]",
        '"' + "x" * 300_000 + '"',
    ],
)
def test_data_that_nobody_can_carry_is_refused_at_the_door(
    site: SupervisorProcess, browser: Browser, value: str
) -> None:
    for simulation_type, report in (("heat", "heatAnimation"), ("evil", "evilReport")):
        body = '{"simulationType": "%s", "simulationId": "Bombs001", "report": "%s", "models": {"%s": {"x": %s}}}'
        answer = browser.ask(
            "POST", "/run-simulation", (body % (simulation_type, report, report, value)).encode()
        )
        assert answer.code in (400, 413) and answer.json()["code"] in (
            "badRequest",
            "tooDeep",
            "tooLarge",
        ), answer
    call = f'{{"simulationType": "evil", "method": "until", "args": {{"file": "/", "x": {value}}}}}'
    assert browser.ask("POST", "/stateless-compute", call.encode()).code in (400, 413)


def test_nothing_that_is_sent_makes_a_line_of_its_own_in_a_log(
    site: SupervisorProcess, browser: Browser
) -> None:
    text = "\n" + FORGED + "\u202e\r\x9b"
    escaped = "".join(f"%{b:02x}" for b in text.encode())
    for path in (
        "/{}",
        "/run-log/evil/{}/evilReport",
        "/lib-file/evil/{}",
        "/simulation-frame/{}*a*b*c*d*e",
        "/live/{}",
        "/lib-files/{}",
    ):
        for method in ("GET", "DELETE"):
            assert browser.ask(method, path.format(escaped)).code in (400, 404, 405)
    assert (
        browser.ask(
            "POST",
            "/stateless-compute",
            {"simulationType": "evil", "method": "raise", "args": {"text": text}},
        ).code
        == 422
    )
    assert (
        browser.ask(
            "POST", "/stateless-compute", {"simulationType": "evil", "method": text[:60]}
        ).code
        == 404
    )
    assert Browser(site).ask("POST", "/sign-in", {"name": text}).code == 400
    simulation = browser.simulation(
        "evilReport", "evil", sh=f"printf '{text}' > \"$JOBSCRIBE_TERMINATION_MESSAGE\"; exit 1"
    )
    assert browser.finished(simulation)["state"] == "error"
    logs = [
        site.place / "up.log",
        *(site.root / "log").glob("*.log"),
        *(site.root / "agent").glob("*/*.log"),
    ]
    for log in logs:
        lines = log.read_bytes().decode("utf-8").split("\n")
        assert not [
            line for line in lines if line.startswith(FORGED[:20]) or not line.isprintable()
        ], log
    assert any("web/forged.py" in log.read_text() for log in logs), "it was said, all the same"


def test_no_secret_is_where_jobs_pages_or_logs_could_show_it(
    site: SupervisorProcess, browser: Browser
) -> None:
    simulation = evil(
        browser, "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; ls -l /proc/$PPID/fd"
    )
    said = browser.ask("GET", f"/run-log/evil/{simulation['simulationId']}/evilAnimation").body
    ticket = browser.post("/live-ticket")["ticket"]
    live_status(site, browser, f"{browser.uid}-Nowhere1-evilReport")
    secrets = {site.token, browser._cookie.partition("=")[2], ticket} | {
        f.read_text().strip() for f in (site.root / "secret").iterdir() if f.is_file()
    }
    shown = {"what the job sees": said}
    for path, text in (
        texts_below(site.root, most_bytes=1 << 24)
        | {site.place / "up.log": (site.place / "up.log").read_bytes()}
    ).items():
        if path.parent.name != "secret" and path.name not in ("client.json", "root.json"):
            shown[str(path)] = text
    for pid, line in site.everybody().items():
        # the environment is empty if the process hides it even from its own user
        shown[f"process {pid}"] = line + processes._read(f"/proc/{pid}/environ")
    assert len(secrets) >= 3 and len(shown) > 20 and b"JOBSCRIBE_TOKEN=" in said
    assert {
        (where, s) for where, text in shown.items() for s in secrets if s.encode() in text
    } == set()


_MARKUP = (
    rb"outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
    rb"|DOMParser|createContextualFragment|setHTML"
)


def test_the_page_makes_no_markup_out_of_text(site: SupervisorProcess, browser: Browser) -> None:
    page = browser.ask("GET", "/jobs")
    scripts = set(re.findall(rb'(?:src|href)="/page-files/([^"]+\.js)"', page.body))
    seen: set[bytes] = set()
    while scripts - seen:
        name = (scripts - seen).pop()
        seen.add(name)
        answer = browser.ask("GET", "/page-files/" + name.decode())
        assert answer.code == 200, name
        # Preact knows `dangerouslySetInnerHTML`, which lint forbids to the pages
        assert not re.search(_MARKUP, answer.body.replace(b"dangerouslySetInnerHTML", b"")), name
        scripts |= set(re.findall(rb'"\./([\w-]+\.js)"', answer.body))
    assert len(seen) > 5
    policy = page.headers["Content-Security-Policy"]
    assert (
        "default-src 'none'" in policy
        and "script-src 'self'" in policy
        and "unsafe" not in policy
        and "base-uri 'none'" in policy
    )
    assert not re.search(rb"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page.body), (
        "nothing that the policy forbids"
    )


def test_files_of_the_server_are_not_files_of_the_pages(
    site: SupervisorProcess, browser: Browser
) -> None:
    for path in (
        "../server.py",
        "%2e%2e/server.py",
        "..%2fserver.py",
        "/etc/passwd",
        "%2fetc/passwd",
        "%00",
        ".",
        "",
        "..\\x",
        "page.js%00.html",
    ):
        answer = browser.ask("GET", "/page-files/" + path)
        assert (answer.code, answer.json()["code"]) == (404, "notFound"), path
