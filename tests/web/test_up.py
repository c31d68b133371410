"""`jobscribe up` and `jobscribe server` as processes: one address, a child that is restarted, and
no process left at the end.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import supervisor_process
from supervisor_process import SupervisorProcess, until

from jobscribe.cli.services import front_end

from .conftest import SETS

KILLED = "the front end ended (exit code -9)"


class Person:
    """A browser with cookies, signed in at the front end."""

    def __init__(self, site: SupervisorProcess, name: str) -> None:
        self.url, self.session = site.front, requests.Session()
        self.uid = self.post("/sign-in", {"name": name}).json()["uid"]

    def post(self, path: str, body: Any = None, **more: Any) -> requests.Response:
        return self.session.post(self.url + path, json=body or {}, timeout=20, **more)

    def close(self) -> None:
        self.session.close()


def server_pid(site: SupervisorProcess) -> int:
    return int(until(lambda: next(iter(site.titled("server")), None), "the front end runs"))


@pytest.fixture(scope="module")
def up() -> Iterator[SupervisorProcess]:
    """A site of tests after which supervisor and front end run."""
    site = SupervisorProcess(SETS, web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def test_the_ready_line_is_the_front_door_and_client_json_names_both(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(web=True)
    site.process = site.fork_or_launch()
    assert site.process.stdout is not None
    line = site.process.stdout.readline().decode()
    site.read_address()
    assert line == f"jobscribe ready at {site.front} root={site.root}\n"
    assert site.front != site.url
    assert requests.get(site.front + "/healthz", timeout=10).json() == {"state": "ok"}
    assert requests.get(site.front + "/", timeout=10).status_code == 200
    assert site.ready()["state"] == "ok"
    assert requests.post(site.front + "/api/run-status", json={}, timeout=10).status_code == 404, (
        "the supervisor's own interface is not there"
    )


def test_a_run_from_sign_in_to_its_live_news(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    said = ann.post(
        "/run-simulation",
        {"simulationType": "odd", "simulationId": "live0001", "report": "oddReport"},
    ).json()
    ticket = ann.post("/live-ticket").json()
    live = ann.session.get(
        up.front + f"/live?computeJid={said['computeJid']}",
        headers={ticket["header"]: ticket["ticket"]},
        stream=True,
        timeout=20,
    )
    assert live.status_code == 200 and live.headers["Content-Type"].startswith("text/event-stream")
    states = []
    for line in live.iter_lines(chunk_size=1):
        if line.startswith(b"data: "):
            states.append(json.loads(line[6:]).get("state"))
            if states[-1] == "completed":
                break
    live.close()
    assert states[-1] == "completed"
    assert requests.get(up.front + "/live", timeout=10).status_code == 401
    assert (
        ann.post(
            "/run-status",
            {"simulationType": "odd", "simulationId": "live0001", "report": "oddReport"},
        ).json()["title"]
        == "fine"
    )
    ann.close()


def test_many_open_streams_hold_no_worker(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    streams = []
    for _ in range(40):  # more connections than threads
        ticket = ann.post("/live-ticket").json()
        connection = http.client.HTTPConnection(up.front.removeprefix("http://"), timeout=20)
        connection.request("GET", "/live", headers={ticket["header"]: ticket["ticket"]})
        streams.append((connection, connection.getresponse()))
    held = [s for s in streams if s[1].status == 200]
    assert len(held) >= 8, [s[1].status for s in streams]
    assert ann.post("/own-jobs").status_code == 200
    for connection, answer in streams:
        answer.close()
        connection.close()
    ann.close()


def test_a_front_end_that_dies_is_started_again_at_the_same_address(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    first, said = server_pid(up), up.log().count(KILLED)
    up.kill(first)
    ann.session.close()  # the kept connection was closed with the server; browsers open a new one
    assert ann.post("/own-jobs").status_code == 200, (
        "the request waits for the next one, and the cookie is still good"
    )
    assert server_pid(up) != first
    until(lambda: up.log().count(KILLED) == said + 1, "its end is logged")
    ann.close()


def test_what_runs_is_not_touched_by_the_death_of_the_front_end(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    run = {
        "simulationType": "odd",
        "simulationId": "goeson01",
        "report": "oddAnimation",
        "models": {"oddAnimation": {"secs": 60.0}},
    }
    said = ann.post("/run-simulation", run).json()
    until(
        lambda: ann.post("/run-status", said["nextRequest"]).json()["state"] == "running", "it runs"
    )
    up.kill(server_pid(up))
    ann.session.close()
    assert ann.post("/run-status", said["nextRequest"]).json()["state"] == "running"
    assert ann.post("/run-cancel", said["nextRequest"]).json()["state"] == "canceled"
    ann.close()


#: An app whose version is `{}`. A call answers with the version; `kept` tells whether the app was
#: imported before the call.
CHANGING = """
import os, sys
PID = os.getpid()
from jobscribe.apps.app import App, Frame, Model, Prepared
MODEL = Model(name="newAnimation", title="New", kind="parallel")
app = App(
    name="changing", title="Changing", version="{}", models=(MODEL,), parameters=lambda data, model: dict(data["models"]),
    prepare=lambda run: Prepared(command=(sys.executable, "-c", "pass")), frame=lambda run, frame: dict(),
    stateless=dict(version=lambda args: dict(version="{}", kept=PID != os.getpid())),
)
"""


def test_apps_and_versions_that_change_while_an_agent_lives(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    module = tmp_path / "changing_app.py"
    paths = os.pathsep.join((supervisor_process.PYTHON_PATH, str(tmp_path)))
    site = make_site(web=True, env={"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}).start()
    ann = Person(site, "ann")
    keeps = {
        "simulationType": "odd",
        "simulationId": "keeps001",
        "report": "oddAnimation",
        "models": {"oddAnimation": {"secs": 600.0}},
    }
    kept = ann.post("/run-simulation", keeps).json()
    assert "nextRequest" in kept, kept
    until(
        lambda: ann.post("/run-status", kept["nextRequest"]).json()["state"] == "running",
        "its agent lives",
    )
    agents = site.titled("agent")

    def ended(number: int) -> Any:
        """Run the new app with new inputs each time. Return the last status."""
        run = {
            "simulationType": "changing",
            "simulationId": f"changed{number}",
            "report": "newAnimation",
            "models": {"n": {"n": number}},
        }
        said = ann.post("/run-simulation", run).json()
        assert said["state"] != "error", said
        return until(
            lambda: (
                (s := ann.post("/run-status", said["nextRequest"]).json())["state"]
                not in ("pending", "running")
                and s
            ),
            "its end",
        )

    def version() -> Any:
        said = ann.post(
            "/stateless-compute", {"simulationType": "changing", "method": "version"}
        ).json()
        return said["kept"] and said["version"]

    ann.close()
    site.stop(signal.SIGKILL)
    module.write_text(CHANGING.format("1", "1"))
    site._sets = (
        *(s for s in site._sets if not s.startswith("apps.also")),
        "apps.also=odd=odd_app:app,changing=changing_app:app",
    )
    site.start()
    ann = Person(site, "ann")
    assert ended(1)["state"] == "completed"
    until(lambda: version() == "1", "calls find the app, imported already")
    assert set(agents) <= set(site.titled("agent")), "the agent is the one that was there"
    # an upgrade that the front end has not loaded yet; the file's length must change, because
    # Python uses its old bytecode for a file of the same length written within the same second
    module.write_text(CHANGING.format("2.0", "2.0"))
    refused = ended(2)
    assert (
        refused["state"] == "error"
        and "the front end has changing 1, but " in refused["error"]
        and "jobscribe server" in refused["error"]
    )
    site.kill(server_pid(site))
    ann.session.close()
    assert ended(3)["state"] == "completed"
    until(lambda: version() == "2.0", "calls are answered by the new version, too")
    assert ann.post("/run-status", kept["nextRequest"]).json()["state"] == "running", (
        "what ran goes on"
    )
    ann.post("/run-cancel", kept["nextRequest"])
    ann.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_front_end_ends_with_up_however_that_ends(
    make_site: Callable[..., SupervisorProcess], number: int
) -> None:
    up = make_site(web=True).start()
    child = server_pid(up)
    up.stop(number)
    until(lambda: not Path(f"/proc/{child}").exists(), "the front end is gone", 10)
    assert "Fatal Python error" not in up.log()
    with pytest.raises(requests.ConnectionError):
        requests.get(up.front + "/healthz", timeout=5)


def test_a_supervisor_that_stands_still_is_no_reason_for_the_page_to(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    os.kill(up.pid, signal.SIGSTOP)
    try:
        assert requests.get(up.front + "/healthz", timeout=10).status_code == 200
        assert requests.get(up.front + "/sign-in", timeout=10).status_code == 200
    finally:
        os.kill(up.pid, signal.SIGCONT)
    assert ann.post("/own-jobs").status_code == 200
    ann.close()


def test_no_secret_in_what_others_can_see_of_the_front_end(up: SupervisorProcess) -> None:
    ann = Person(up, "ann")
    pid = server_pid(up)
    seen = (
        Path(f"/proc/{pid}/cmdline").read_bytes() + up.log().encode() + up.logged("server").encode()
    )
    assert up.token.encode() not in seen
    if os.geteuid() == 0:
        assert up.token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    ann.close()


def test_up_does_not_start_off_loopback_or_on_a_port_that_is_taken(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(web=True)
    outside = site.fork_or_launch("--ip", "0.0.0.0")
    assert outside.wait(30) == 78, "as of `server` with that option"
    assert "requires a loopback address" in site.log()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        process = site.fork_or_launch("--port", str(port))
        assert process.wait(30) == 125
    assert f"port {port} of 127.0.0.1 cannot be used" in site.log()
    assert not (site.root / "client.json").exists(), "nothing was started"
    for p in (outside, process):
        assert p.stdout is not None
        p.stdout.close()


def test_up_whose_front_end_cannot_start_says_so_and_ends(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    (tmp_path / "waitress.py").write_text("raise ImportError('no waitress here')\n")
    site = make_site(web=True, env={})
    before = supervisor_process.PYTHON_PATH
    supervisor_process.PYTHON_PATH = before + os.pathsep + str(tmp_path)
    try:
        # installed packages come after PYTHONPATH, so this module is found first
        process = site.launch()
        assert process.wait(40) == 125
    finally:
        supervisor_process.PYTHON_PATH = before
    assert "no waitress here" in site.log()
    assert process.stdout is not None
    assert process.stdout.read() == b"", "no ready line"
    process.stdout.close()


HOOKS = """
def user(request):
    return request.headers.get("X-Remote-User")

def admin(uid):
    return uid == "AdmAdm03"
"""


def test_a_production_server_beside_a_supervisor_of_its_own(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    (tmp_path / "their_hooks.py").write_text(HOOKS)
    site = make_site().start()
    arguments = [
        sys.executable,
        "-m",
        "jobscribe.cli",
        "--root",
        str(site.root),
        "server",
        "--port",
        "0",
    ]
    env = {**os.environ, "PYTHONPATH": supervisor_process.PYTHON_PATH + os.pathsep + str(tmp_path)}
    refused = subprocess.run(
        arguments, env=env, capture_output=True, timeout=60, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (78, "") and "user_hook" in refused.stderr
    hooks = [
        "--set",
        "server.user_hook=their_hooks:user",
        "--set",
        "server.admin_hook=their_hooks:admin",
        "--set",
        "limits.request_secs=1",
    ]
    with subprocess.Popen(
        [*arguments, *hooks], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.split()[3]
            assert line == f"jobscribe ready at {url} root={site.root}\n"

            def post(path: str, uid: str | None) -> requests.Response:
                headers = {"X-Remote-User": uid} if uid else {}
                return requests.post(url + path, json={}, headers=headers, timeout=20)

            assert post("/own-jobs", None).status_code == 401
            assert post("/own-jobs", "AnnAnn01").json()["jobs"] == []
            assert (
                post("/adm-jobs", "AnnAnn01").status_code,
                post("/adm-jobs", "AdmAdm03").status_code,
            ) == (403, 200)
            assert post("/sign-in", None).status_code == 404
            _takes_nothing_of_strangers(url)
            site.stop()
            assert post("/own-jobs", "AnnAnn01").status_code == 503
            site.start()
            assert post("/own-jobs", "AnnAnn01").status_code == 200, (
                "the restarted supervisor is found"
            )
        finally:
            process.terminate()
        assert process.wait(15) == 0


def _takes_nothing_of_strangers(url: str) -> None:
    """Check that unauthenticated connections cannot send large bodies or stay idle."""
    place = url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((place[0], int(place[2])), timeout=5.0))
            for _ in range(3)
        ]
        slow[1].sendall(b"POST /own-jobs HTTP/1.1\r\nHost: x\r\n")
        slow[2].sendall(b"POST /own-jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        for framing in ("Content-Length: 99000000", "Transfer-Encoding: chunked"):
            with socket.create_connection((place[0], int(place[2])), timeout=20) as s:
                s.sendall(
                    f"PUT /lib-file/myapp/a HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
                )
                assert s.recv(20).startswith(b"HTTP/1.1 401 "), framing
        for s in slow:
            assert s.recv(100) == b"", "it is ended"


def test_an_upload_is_taken_in_from_who_is_signed_in_only(up: SupervisorProcess) -> None:
    """An unauthenticated client is refused before its body is sent. Otherwise the whole body would
    be written to disk.
    """
    host = up.front.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.putrequest("PUT", "/lib-file/myapp/large.csv")
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["code"]) == (401, "unauthenticated")
    connection.close()
    ann = Person(up, "ann")
    body = b"x" * (1 << 20)
    put = ann.session.put(
        f"{up.front}/lib-file/myapp/large.csv", data=body, headers={"X-Jobscribe": "1"}, timeout=20
    )
    assert put.status_code == 200 and put.json()["size"] == len(body), put.text


def test_eight_people_at_once_are_all_served(up: SupervisorProcess) -> None:
    done: list[str] = []

    def one(n: int) -> None:
        chromium = Person(up, f"person {n}")
        run = {"simulationType": "odd", "simulationId": "crowd001", "report": "oddReport"}
        said = chromium.post("/run-simulation", run).json()
        deadline = time.monotonic() + 60
        while "nextRequest" in said and time.monotonic() < deadline:
            time.sleep(0.1)
            said = chromium.post("/run-status", said["nextRequest"]).json()
        done.append(said["state"])
        chromium.close()

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(90)
    assert done == ["completed"] * 8


def test_a_free_port_is_that_of_the_start_before_if_nobody_else_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with front_end._previous_or_free_port(str(tmp_path), "127.0.0.1") as first:
        port = first.getsockname()[1]
    (tmp_path / "client.json").write_text(
        json.dumps(
            {
                "url": "http://127.0.0.1:1",
                "token": "t",
                "uid": supervisor_process.UID,
                "front": f"http://127.0.0.1:{port}",
            }
        )
    )
    with front_end._previous_or_free_port(str(tmp_path), "127.0.0.1") as again:
        assert again.getsockname()[1] == port
        leaving = threading.Timer(0.3, again.close)
        leaving.start()
        with front_end._previous_or_free_port(str(tmp_path), "127.0.0.1") as third:
            assert third.getsockname()[1] == port, (
                "the front end that is about to leave it is waited for"
            )
            leaving.join()
            monkeypatch.setattr(front_end, "PORT_RELEASE_SECS", 0.1)
            with front_end._previous_or_free_port(str(tmp_path), "127.0.0.1") as elsewhere:
                assert elsewhere.getsockname()[1] != port
    (tmp_path / "client.json").write_text(
        '{"url": "", "token": "", "uid": "", "front": "nonsense:http"}'
    )
    front_end._previous_or_free_port(str(tmp_path), "127.0.0.1").close()
