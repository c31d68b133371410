"""Unauthenticated connections to both listeners of a real supervisor. They are not read, are closed
in time, and block no other client.
"""

import contextlib
import http.client
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, rss, shell, until

NOBODY = 65534
MIB = 2**20
#: Deadlines of the site in seconds. Tests allow five times as much.
REQUEST, BODY, IDLE = 1.0, 1.0, 2.0
#: Opens as many connections as it can and holds them until its standard input ends. Prints a line
#: when all were opened once.
GREEDY = """
import select, socket, sys
ports, held = [int(p) for p in sys.argv[1:]], []
for n in range(300):
    s = socket.socket()
    s.settimeout(2)
    try:
        s.connect(("127.0.0.1", ports[n % len(ports)]))
        s.sendall(b"GET /livez HTTP/1.1\\r\\n")
    except OSError:
        pass
    held.append(s)
print("open", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    s = held.pop(0)
    s.close()
    s = socket.socket()
    s.settimeout(0.2)
    ports.append(ports.pop(0))
    try:
        s.connect(("127.0.0.1", ports[0]))
    except OSError:
        pass
    held.append(s)
"""


@pytest.fixture(scope="module")
def hasty() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(
        (f"limits.request_secs={REQUEST}", f"limits.body_secs={BODY}", f"limits.idle_secs={IDLE}")
    )
    try:
        yield site.start()
    finally:
        site.end()


def ports(site: SupervisorProcess) -> dict[str, int]:
    agents = json.loads((site.root / "agents.json").read_text())["agentsUrl"]
    return {
        "api": int(site.url.rsplit(":", 1)[1]),
        "agents": int(agents.rsplit(":", 1)[1].partition("/")[0]),
    }


def dialed(port: int, *lines: str) -> socket.socket:
    s = socket.create_connection(("127.0.0.1", port), timeout=20)
    s.sendall("".join(f"{line}\r\n" for line in lines).encode())
    return s


def answer(s: socket.socket) -> bytes:
    """Read until the peer closes the connection. Data that is still in transit then is lost."""
    out = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := s.recv(65536):
            out += piece
    return out


def metrics(site: SupervisorProcess) -> dict[str, Any]:
    """Return the metrics over a new connection, because the kept connection may have been closed as
    idle.
    """
    with contextlib.closing(site.connection(timeout=10)) as new:
        new.request("GET", "/api/metrics", headers={"Authorization": "Bearer " + site.token})
        found: dict[str, Any] = json.loads(new.getresponse().read())
    return found


def is_over(s: socket.socket) -> bool:
    if not select.select([s], [], [], 0)[0]:
        return False
    try:
        return s.recv(65536) == b""
    except ConnectionResetError:
        return True


# ---- bodies


@pytest.mark.parametrize(
    ("listener", "line"),
    [
        ("agents", "POST /agent HTTP/1.1"),
        ("agents", "POST /elsewhere HTTP/1.1"),
        ("api", "POST /api/run-many HTTP/1.1"),
        ("api", "PUT /api/lib-file?uid=SystemU1&simulationType=heat&name=a HTTP/1.1"),
        ("api", "POST /livez HTTP/1.1"),
        ("api", "POST /x HTTP/1.1"),
        ("api", "GET /live HTTP/1.1"),
        ("api", "POST /metrics HTTP/1.1"),
    ],
)
@pytest.mark.parametrize("framing", ["Content-Length: 99000000", "Transfer-Encoding: chunked"])
def test_a_body_of_somebody_unknown_is_not_kept(
    hasty: SupervisorProcess, listener: str, line: str, framing: str
) -> None:
    before, head = rss(hasty.pid), metrics(hasty)["engine"]
    piece = b"100000\r\n" + b"x" * MIB + b"\r\n" if "chunked" in framing else b"x" * MIB
    peers = [
        dialed(ports(hasty)[listener], line, "Host: x", "Authorization: Bearer wrong", framing, "")
        for _ in range(4)
    ]
    for s in peers:
        with contextlib.closing(s):
            with contextlib.suppress(ConnectionError):
                for _ in range(93):
                    s.sendall(piece)
            said = answer(s)
            assert not said or said.startswith(b"HTTP/1.1 401 "), said[:200]
    assert rss(hasty.pid) - before < 32 * MIB
    assert metrics(hasty)["engine"] == head


@pytest.mark.parametrize("listener", ["api", "agents"])
def test_a_small_body_of_somebody_unknown_is_answered(
    hasty: SupervisorProcess, listener: str
) -> None:
    """The response also arrives if the client is still sending the body."""
    with contextlib.closing(
        dialed(
            ports(hasty)[listener], "POST /agent HTTP/1.1", "Host: x", "Content-Length: 3000000", ""
        )
    ) as s:
        s.sendall(b"x" * 3_000_000)
        said = answer(s)
    assert said.startswith(b"HTTP/1.1 401 ") and b"was not read" in said
    counter = "refused.unauthenticated" if listener == "api" else "rejected.unauthenticated"
    assert metrics(hasty)["counters"][counter] >= 1


# ---- deadlines


def test_whoever_sends_no_request_does_not_stay(hasty: SupervisorProcess) -> None:
    secret = "Authorization: Bearer " + hasty.token
    begun: dict[str, Callable[[], socket.socket]] = {
        "nothing, to agents": lambda: dialed(ports(hasty)["agents"]),
        "nothing, to the API": lambda: dialed(ports(hasty)["api"]),
        "half of its headers": lambda: dialed(
            ports(hasty)["api"], "POST /api/run-status HTTP/1.1", "Host: x", secret
        ),
        "half of its headers, to agents": lambda: dialed(
            ports(hasty)["agents"], "GET /agent HTTP/1.1", "Upgrade: websocket"
        ),
        "half of a body": lambda: dialed(
            ports(hasty)["api"],
            "POST /api/run-status HTTP/1.1",
            "Host: x",
            secret,
            "Content-Length: 100",
            "",
            "{",
        ),
        "a second request, half": lambda: dialed(
            ports(hasty)["api"], "GET /api/metrics HTTP/1.1", "Host: x", secret, "", "GET /api/met"
        ),
        "a handshake without a token": lambda: dialed(
            ports(hasty)["agents"],
            "GET /agent HTTP/1.1",
            "Host: x",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            "",
        ),
        "liveness, and then nothing": lambda: dialed(
            ports(hasty)["api"], "GET /livez HTTP/1.1", "Host: x", ""
        ),
    }
    run = shell("sleep 60")
    hasty.submit(run)
    hasty.running(run)
    follower = dialed(ports(hasty)["api"], "GET /api/events HTTP/1.1", "Host: x", secret, "")
    peers = {name: begin() for name, begin in begun.items()}
    with contextlib.ExitStack() as stack:
        for s in (follower, *peers.values()):
            stack.callback(s.close)
        for name, s in peers.items():
            until(
                lambda s=s: is_over(s),
                f"{name}: the connection is ended",
                5 * max(REQUEST, BODY, IDLE),
            )  # type: ignore[misc]
        assert not is_over(follower), "who follows events may be silent"
        assert (
            metrics(hasty)["hub"]["connections"] == 1 and hasty.log().count("opName=alive") == 1
        ), "the agent is still connected"
        ended = {k: n for k, n in metrics(hasty)["counters"].items() if k.startswith("connection.")}
        assert (
            ended["connection.headers"] >= 4
            and ended["connection.body"] >= 1
            and ended["connection.idle"] >= 1
        ), ended
    hasty._disconnect()
    hasty.cancel(run)
    assert hasty.wait(run)["state"] == "canceled"


def test_an_upload_that_goes_on_slowly_is_not_ended(hasty: SupervisorProcess) -> None:
    began = time.monotonic()
    with contextlib.closing(
        dialed(
            ports(hasty)["api"],
            "PUT /api/lib-file?uid=SystemU1&simulationType=heat&name=slow HTTP/1.1",
            "Host: x",
            "Authorization: Bearer " + hasty.token,
            "Content-Length: 6",
            "",
        )
    ) as s:
        for n in range(6):
            s.sendall(b"x")
            until(lambda n=n: time.monotonic() - began > n * BODY / 3, "its time")  # type: ignore[misc]
        assert time.monotonic() - began > BODY
        assert s.recv(1000).startswith(b"HTTP/1.1 200 ")


# ---- too many connections


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another unix user")
def test_another_users_connections_lock_nobody_out(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site("limits.connections_per_peer=200", web=True).start()
    front, processes = int(site.front.rsplit(":", 1)[1]), [site.pid, *site.titled("server")]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in processes}
    for pid, (_, most) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (128, most))
    greedy = subprocess.Popen(
        [sys.executable, "-c", GREEDY, *map(str, (*ports(site).values(), front))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
    )
    assert greedy.stdin is not None and greedy.stdout is not None
    try:
        assert greedy.stdout.readline() == b"open\n"
        for _ in range(20):
            counters = metrics(site)["counters"]
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", front, timeout=10)
            ) as browser:
                browser.request("GET", "/healthz")
                assert browser.getresponse().status == 200
        run = shell("exit 3")
        site.submit(run)
        assert site.wait(run)["exit"]["code"] == 3, "its agent has connected"
        assert site.ask("GET", "/health").code == 200
        assert counters["connection.descriptors"] > 20, counters
        assert "unix user 65534" in site.log() and site.log().count("a connection of") < 50
    finally:
        for pid, before in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        greedy.stdin.close()
        greedy.wait(10)
        greedy.stdout.close()
