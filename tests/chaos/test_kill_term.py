"""SIGTERM to the supervisor: accepted requests are durable, jobs continue, no client hangs, and the
supervisor exits in time.
"""

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from consistency_check import check_books
from load_clients import UIDS, Load, Poll, Waiting, let_all_go, wait
from oracle import Oracle
from site_locations import ROOM
from supervisor_process import SupervisorProcess, jid_of, req_id, spec, until

from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client

#: Seconds until a status is true again after a restart, and until a drained supervisor has exited.
TRUE_SECS = END_SECS = 5
#: Requests that a connection has sent when the supervisor begins to stop. They fit into its buffers.
REQUESTS = 100
#: A supervisor may end as soon as it has answered the first of them, which it had accepted: number of tries.
TRIES = 5

APP = """
import time
from jobscribe.apps.app import App, Model, Prepared

app = App(
    name="slow", title="Slow", version="1", models=(Model(name="m", title="m", kind="sequential"),),
    parameters=lambda data, model: {}, prepare=lambda run: Prepared(command=("/bin/true",)), result=lambda run: {},
    stateless={"hang": lambda args: time.sleep(600), "echo": lambda args: args},
)
"""


def test_told_to_stop_it_drains(
    make_site: Callable[..., SupervisorProcess], who: int | None
) -> None:
    """Streams, an upload, a call and long polls are under way, and new requests arrive all the
    time.
    """
    site = make_site(
        who, "slots.local_sequential=3", "apps.also=slow=slow_app:app", modules={"slow_app.py": APP}
    ).start()
    oracle = Oracle(site)
    running = oracle.gated(uid=UIDS[0])
    oracle.submit(running, req_id())
    until(lambda: oracle.started(running), "it runs")
    site.post(
        "call",
        uid=UIDS[0],
        jobCmd="stateless_compute",
        simulationType="slow",
        method="echo",
        args={},
    )

    with Load(site, oracle, f"drain/{who}") as load:
        until(lambda: load.answered > 20, "there is load")
        for _ in range(TRIES):
            said = _drained(site, running)
            assert oracle.alive(running)
            site.start()
            until(lambda: oracle.status(running)["known"], "it is known again", TRUE_SECS * ROOM)
            if "draining" in said:
                break
    assert said.get("draining", 0) > 0
    assert oracle.status(running)["state"] == "running"
    let_all_go(site, oracle, "gate", [running])
    assert "Traceback" not in site.log()
    check_books(site)
    oracle.check()


def _drained(site: SupervisorProcess, running: dict[str, Any]) -> dict[str, int]:
    """Stop the supervisor while it has requests of all kinds. Return how often each answer came to
    those that one connection had sent before.
    """
    open_ends = _open_ends(site)
    poll = Poll(site, running)
    kept = site.connection(10)
    kept.request("GET", "/livez")
    kept.getresponse().read()
    begun = time.monotonic()
    assert site.process is not None
    # its connection has requests when it begins to stop, however little time the test gets
    site.process.send_signal(signal.SIGSTOP)
    _send_requests(kept, site.token)
    site.process.send_signal(signal.SIGTERM)
    site.process.send_signal(signal.SIGCONT)
    said = _answers(kept)
    code = site.process.wait(END_SECS * ROOM)
    print(f"exit code {code} after {time.monotonic() - begun:.1f} s; meanwhile: {said}")
    assert code == 0
    site.stop()
    _check_retryable(poll)
    for end in (*open_ends, kept):
        end.close()
    return said


def _open_ends(
    site: SupervisorProcess,
) -> list[http.client.HTTPConnection | http.client.HTTPResponse]:
    """Open requests that never end by themselves."""
    key = {"Authorization": "Bearer " + site.token}
    stream, upload, call = (site.connection(20) for _ in range(3))
    stream.request("GET", "/api/events?after=0", headers=key)
    events_ = stream.getresponse()
    upload.putrequest("PUT", f"/api/lib-file?uid={UIDS[0]}&simulationType=slow&name=half.dat")
    for name, value in {**key, "Content-Length": "1000000"}.items():
        upload.putheader(name, value)
    upload.endheaders(b"x" * 1000)
    body = {
        "uid": UIDS[0],
        "jobCmd": "stateless_compute",
        "simulationType": "slow",
        "method": "hang",
        "args": {},
    }
    call.request("POST", "/api/call", json.dumps(body), key)
    return [events_, stream, upload, call]


def _send_requests(connection: http.client.HTTPConnection, token: str) -> None:
    """Send many requests at once on an open connection."""
    for _ in range(REQUESTS):
        body = json.dumps({"reqId": req_id(), "run": spec(["true"], UIDS[1])})
        head = f"POST /api/run-simulation HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        connection.sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())


def _answers(connection: http.client.HTTPConnection) -> dict[str, int]:
    """Return how often each answer came until the connection was closed."""
    told: dict[str, int] = {}
    with connection.sock.makefile("rb") as answers, contextlib.suppress(OSError):
        while line := answers.readline():
            headers = http.client.parse_headers(answers)
            status = int(line.split()[1])
            body = json.loads(answers.read(int(headers["Content-Length"])))
            if status != 200:
                assert (status, body["code"], body["retry"]) == (503, "draining", True), body
            told[body.get("code", "accepted")] = told.get(body.get("code", "accepted"), 0) + 1
    return told


def _check_retryable(poll: Poll) -> None:
    """Check that the answer is true or retryable, or that the connection was cut."""
    try:
        status, body = poll.answer()
    except (http.client.HTTPException, OSError):
        return
    assert (status, body.get("state")) == (200, "running") or body.get("retry"), (status, body)


def test_a_client_of_ours_survives_the_restart_of_a_drained_one(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(None).start()
    oracle = Oracle(site)
    run = oracle.gated(uid=UIDS[0])
    oracle.submit(run, req_id())
    waiting, asking = Waiting(lambda: wait(site, run)), Waiting(lambda: _ask_until_over(site, run))
    for _ in range(2):
        until(lambda: oracle.started(run), "it runs")
        assert site.stop() == 0
        with (
            Client.from_root(site.root, uid=UIDS[0], budget_secs=0) as impatient,
            pytest.raises(ClientError) as refused,
        ):
            impatient.status(jid_of(run))
        assert refused.value.retry
        site.start()
    let_all_go(site, oracle, "gate", [run])
    assert waiting.get().state == "completed"
    states = asking.get()
    assert states[-1] == "completed" and set(states) <= {"pending", "running", "completed"}
    oracle.check()


def _ask_until_over(site: SupervisorProcess, run: dict[str, Any]) -> list[str]:
    """Poll until the run is over and return every state seen."""
    states: list[str] = []
    with Client.from_root(site.root, uid=run["uid"], budget_secs=120) as client:
        while True:
            state = client.status(jid_of(run))
            states.append(state.state)
            if state.over:
                return states
