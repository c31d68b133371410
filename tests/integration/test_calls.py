"""App calls, files and live news on a real supervisor with real agents, workers and runs, including
refusals, kills and restarts.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import (
    PYTHON_PATH,
    UID,
    Answer,
    SupervisorProcess,
    jid_of,
    req_id,
    rss,
    shell,
    spec,
    until,
)

from jobscribe.client.api.server_sent_events import Message, Parser
from jobscribe.runtime import processes
from jobscribe.service import tickets

OTHER_UID = "SystemU2"
#: An app that misbehaves in the way its arguments request.
SLY = """
import os, sys, time
from pathlib import Path
from jobscribe.apps.app import App, Model, Prepared

def hang(lib, args):
    lib.mkdir(parents=True, exist_ok=True)
    (lib / "pid").write_text(str(os.getpid()))
    time.sleep(600)

app = App(
    name="sly", title="Sly", version="1",
    models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("/bin/sh", "-c", run.data["shell"])), result=lambda run: {},
    stateful={"hang": hang}, stateless={"echo": lambda args: args, "big": lambda args: "x" * 9_000_000, "die": lambda args: os._exit(3)},
)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorProcess]:
    """Share one supervisor with the sly app among all tests of this module."""
    place = tmp_path_factory.mktemp("apps")
    (place / "sly_app.py").write_text(SLY)
    site = SupervisorProcess(
        ("apps.also=sly=sly_app:app", "limits.upload_bytes=5000000"),
        env={"PYTHONPATH": f"{PYTHON_PATH}{os.pathsep}{place}"},
    )
    try:
        yield site.start()
        assert "Traceback" not in site.log(), "everything that went wrong was expected by somebody"
        assert "internal" not in site.ready()["counters"]
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def call(site: SupervisorProcess, job_cmd: str, app: str, uid: str = UID, **fields: Any) -> Answer:
    body = {"uid": uid, "jobCmd": job_cmd, "simulationType": app, **fields}
    return site.ask("POST", "/api/call", json.dumps(body).encode())


def said(answer: Answer) -> Any:
    assert answer.code == 200, answer.body[:2000]
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def code_of(answer: Answer) -> tuple[int, str]:
    assert len(answer.body) < 2000, "no refusal is that long"
    body = answer.json()
    assert (
        set(body) - {"problems"} == {"state", "code", "error", "advice", "retry"} and body["error"]
    ), body
    return answer.code, body["code"]


def app_run(
    app: str,
    model: str,
    kind: str = "sequential",
    uid: str = UID,
    data: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    run = spec((), uid, simulationType=app, computeModel=model, jobRunMode=kind)
    return {**run, "data": {"models": {model: fields}, **(data or {})}}


def sly(text: str, uid: str = UID) -> dict[str, Any]:
    return app_run("sly", "m", uid=uid, data={"shell": text})


def file_of(
    site: SupervisorProcess, run: dict[str, Any], name: str, uid: str = UID, **fields: Any
) -> Answer:
    body = {"uid": uid, "computeJid": jid_of(run), "name": name, **fields}
    return site.ask("POST", "/api/run-file", json.dumps(body).encode())


# ---- calls


def test_what_apps_compute_without_a_run(shared: SupervisorProcess) -> None:
    assert said(
        call(shared, "stateless_compute", "myapp", method="idealWeight", args={"height": 58})
    ) == {"weight": 30.95}
    assert said(
        call(
            shared,
            "stateful_compute",
            "myapp",
            method="addDog",
            args={"name": "Rex", "height": 50, "weight": 20},
        )
    )["dogs"]
    assert (
        said(call(shared, "stateful_compute", "myapp", method="listDogs"))["dogs"][0]["name"]
        == "Rex"
    )
    assert said(call(shared, "stateful_compute", "myapp", OTHER_UID, method="listDogs")) == {
        "dogs": []
    }
    assert said(shared.ask("GET", "/api/apps")) == {"apps": ["command", "heat", "myapp", "sly"]}


def test_what_apps_read_of_a_run(shared: SupervisorProcess) -> None:
    run = app_run("myapp", "heightWeightReport", breed="Pug")
    serial = shared.finished(run)["computeJobSerial"]
    of_run = {"computeJid": jid_of(run), "computeJobSerial": serial}
    assert len(said(call(shared, "sequential_result", "myapp", **of_run))["plots"]) == 2
    assert set(
        said(call(shared, "analysis_job", "myapp", method="ageAt", args={"share": 0.5}, **of_run))
    ) == {"height", "weight"}
    name = said(call(shared, "download_run_file", "myapp", args={"suffix": "csv"}, **of_run))[
        "name"
    ]
    answer = file_of(shared, run, name, computeJobSerial=serial)
    assert answer.code == 200 and answer.body.startswith(b"week,")
    assert code_of(
        call(shared, "sequential_result", "myapp", **{**of_run, "computeJobSerial": serial - 1})
    ) == (409, "staleSerial")
    assert code_of(call(shared, "sequential_result", "myapp", OTHER_UID, **of_run)) == (
        404,
        "notFound",
    )


def test_frames_of_a_run_that_goes_on(shared: SupervisorProcess) -> None:
    run = app_run("heat", "heatAnimation", "parallel", size=10, frames=2000, steps=1, paceSecs=0.1)
    shared.submit(run)
    reached = until(
        lambda: (shared.status(run)["parallelStatus"] or {}).get("frameCount", 0),
        "a frame is there",
    )
    frame = said(
        call(
            shared,
            "get_simulation_frame",
            "heat",
            computeJid=jid_of(run),
            args={"frameReport": "heatAnimation", "frameIndex": reached - 1},
        )
    )
    assert frame["frameIndex"] == reached - 1 and frame["zMatrix"]
    missing = call(
        shared,
        "get_simulation_frame",
        "heat",
        computeJid=jid_of(run),
        args={"frameReport": "heatAnimation", "frameIndex": 1999},
    )
    assert code_of(missing) == (422, "appRefused")
    shared.cancel(run)
    assert shared.wait(run)["state"] == "canceled"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"job_cmd": "stateless_compute", "app": "nosuch", "method": "m"}, (404, "unknownApp")),
        ({"job_cmd": "stateless_compute", "app": "sly", "method": "nosuch"}, (404, "notFound")),
        ({"job_cmd": "nosuch", "app": "sly"}, (400, "badRequest")),
        ({"job_cmd": "stateless_compute", "app": "sly", "method": "big"}, (413, "replyTooLarge")),
        ({"job_cmd": "stateless_compute", "app": "sly", "method": "die"}, (422, "appFailed")),
        (
            {"job_cmd": "stateful_compute", "app": "sly", "method": "hang", "deadlineSecs": 0.3},
            (504, "deadline"),
        ),
        (
            {
                "job_cmd": "stateless_compute",
                "app": "sly",
                "method": "echo",
                "args": {"x": "y" * 300_000},
            },
            (413, "tooLarge"),
        ),
    ],
)
def test_a_clear_answer_to_each_that_cannot_be(
    shared: SupervisorProcess, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    fields = dict(fields)
    assert code_of(call(shared, fields.pop("job_cmd"), fields.pop("app"), **fields)) == expected
    assert said(
        call(shared, "stateless_compute", "sly", method="echo", args={"still": "here"})
    ) == {"still": "here"}


def hanging(site: SupervisorProcess, uid: str) -> int:
    """Return the pid of the process in which the app hangs."""
    path = site.root / "user" / uid / "sly" / "lib" / "pid"
    return int(until(lambda: path.exists() and path.read_text(), "the app hangs"))


def gone(pid: int) -> bool:
    return pid not in {p.pid for p in processes.table().values() if not p.over}


def in_the_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(work()))
    thread.start()
    return thread, out


def hang_elsewhere(site: SupervisorProcess, uid: str, deadline: float = 60.0) -> Answer:
    """Send the hanging call on a separate connection."""
    connection = site.connection()
    with contextlib.closing(connection):
        body = {
            "uid": uid,
            "jobCmd": "stateful_compute",
            "simulationType": "sly",
            "method": "hang",
            "deadlineSecs": deadline,
        }
        connection.request(
            "POST", "/api/call", json.dumps(body), {"Authorization": "Bearer " + site.token}
        )
        reply = connection.getresponse()
        return Answer(reply.status, reply.headers, reply.read())


def test_who_goes_away_takes_the_call_along(shared: SupervisorProcess) -> None:
    body = json.dumps(
        {
            "uid": "SystemU3",
            "jobCmd": "stateful_compute",
            "simulationType": "sly",
            "method": "hang",
            "deadlineSecs": 60,
        }
    ).encode()
    host, _, port = shared.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as s:
        s.sendall(
            f"POST /api/call HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shared.token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        pid = hanging(shared, "SystemU3")
    until(lambda: gone(pid), "the call is ended", 10)
    assert shared.ready()["counters"]["callAbandoned"] >= 1


def test_an_agent_that_is_killed_answers_who_waits_at_once(shared: SupervisorProcess) -> None:
    uid = "SystemU4"
    thread, out = in_the_background(lambda: hang_elsewhere(shared, uid))
    pid = hanging(shared, uid)
    begun = time.monotonic()
    shared.kill(shared.agent_pid(uid))
    thread.join(30)
    assert code_of(out[0]) == (503, "agentUnavailable")
    assert time.monotonic() - begun < 15, "not at the deadline"
    until(lambda: gone(pid), "the call ended with its agent", 10)
    assert said(call(shared, "stateless_compute", "sly", uid, method="echo", args={})) == {}


def test_a_frozen_agent_does_not_keep_its_callers_for_ever(shared: SupervisorProcess) -> None:
    uid = "SystemU5"
    assert said(call(shared, "stateless_compute", "sly", uid, method="echo", args={})) == {}
    agent = shared.agent_pid(uid)
    os.kill(agent, signal.SIGSTOP)
    try:
        assert code_of(
            call(shared, "stateless_compute", "sly", uid, method="echo", args={}, deadlineSecs=0.2)
        ) == (504, "deadline")
    finally:
        os.kill(agent, signal.SIGCONT)
    until(
        lambda: call(shared, "stateless_compute", "sly", uid, method="echo", args={}).code == 200,
        "it answers again",
    )


def test_new_users_at_once_are_all_served(shared: SupervisorProcess) -> None:
    users = [f"NewUser{n}" for n in range(8)]
    answers: list[Answer] = []

    def one(uid: str) -> None:
        connection = shared.connection()
        with contextlib.closing(connection):
            body = {
                "uid": uid,
                "jobCmd": "stateless_compute",
                "simulationType": "sly",
                "method": "echo",
                "args": {"me": uid},
            }
            connection.request(
                "POST", "/api/call", json.dumps(body), {"Authorization": "Bearer " + shared.token}
            )
            reply = connection.getresponse()
            answers.append(Answer(reply.status, reply.headers, reply.read()))

    threads = [threading.Thread(target=one, args=(uid,)) for uid in users]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert sorted(said(a)["me"] for a in answers) == users


def test_a_session_has_an_agent_ready(shared: SupervisorProcess) -> None:
    uid = "SystemU6"
    assert shared.post("begin-session", uid=uid) == {"state": "ok"}
    folder = shared.root / "agent" / str(shared.agent_key(uid))
    until(lambda: (folder / "keeper.json").exists(), "the keeper runs")
    shared.agent_pid(uid)


def test_one_line_of_the_log_for_a_call_and_nothing_of_what_is_in_it(
    shared: SupervisorProcess,
) -> None:
    said(call(shared, "stateless_compute", "sly", method="echo", args={}))
    mark, end = req_id(), req_id()
    shared.ask("POST", "/api/" + mark)
    before = until(
        lambda: max(0, shared.log().find(mark)), "what was logged before is written", pause=0.01
    )
    said(
        call(shared, "stateless_compute", "sly", method="echo", args={"canary": "sings-a-payload"})
    )
    shared.ask("POST", "/api/" + end)
    until(lambda: end in shared.log(), "so is this")
    lines = [
        line
        for line in shared.log()[before:].splitlines()
        if " supervisor/" in line and ("analysis" in line or "Compute" in line)
    ]
    assert len(lines) == 1, lines
    op = re.search(
        rf"ServerReq\(api_statelessCompute, {UID}-sly\.echo\) _Op\(analysis, ([A-Za-z0-9]{{6}})\)$",
        lines[0],
    )
    assert op, lines[0]
    until(
        lambda: f"opName=analysis o={op[1]}" in shared.log()[before:],
        "the agent's line names the same op",
    )
    assert "sings-a-payload" not in shared.log()[before:]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/call"),
        ("POST", "/api/apps"),
        ("POST", "/api/lib-file"),
        ("GET", "/api/run-file"),
        ("PUT", "/live"),
    ],
)
def test_another_method_is_said_to_be_one(
    shared: SupervisorProcess, method: str, path: str
) -> None:
    assert code_of(shared.ask(method, path, b"{}")) == (405, "methodNotAllowed")


# ---- files of runs


def test_files_of_a_run_and_nothing_else(shared: SupervisorProcess) -> None:
    run = sly(
        "mkdir d; printf 0123456789 > d/f; : > empty; ln -s d/f link; ln -s /etc out; mkfifo p; ln -s d dd"
    )
    shared.finished(run)
    answer = file_of(shared, run, "d/f")
    assert (answer.code, answer.body) == (200, b"0123456789")
    headers = {
        k: answer.headers[k]
        for k in ("Content-Length", "X-Jobscribe-Size", "ETag", "Last-Modified")
    }
    assert (headers["Content-Length"], headers["X-Jobscribe-Size"]) == ("10", "10") and headers[
        "ETag"
    ].startswith('"')
    assert headers["Last-Modified"].endswith("GMT")
    for offset, length, expected in (
        (3, 4, b"3456"),
        (9, 100, b"9"),
        (10, None, b""),
        (99, 5, b""),
        (0, 0, b""),
    ):
        part = file_of(shared, run, "d/f", offset=offset, length=length)
        assert (part.code, part.body, part.headers["X-Jobscribe-Size"], part.headers["ETag"]) == (
            200,
            expected,
            "10",
            headers["ETag"],
        )
    assert file_of(shared, run, "empty").body == b""
    for name in ("link", "out/passwd", "p", "d", "nosuch", "dd/f"):
        assert code_of(file_of(shared, run, name)) == (404, "notFound"), name
    for name in (
        "../m/d/f",
        "/etc/passwd",
        "d/../d/f",
        "d//f",
        "a\0b",
        ".jobscribe/latest/stdout.log",
    ):
        assert code_of(file_of(shared, run, name)) == (400, "badRequest"), name
    assert code_of(file_of(shared, run, "x" * 1025)) == (400, "badRequest")
    assert code_of(file_of(shared, run, "d/f", uid=OTHER_UID)) == (404, "notFound")


def test_whether_the_run_directory_is_there(shared: SupervisorProcess) -> None:
    run = sly("true")
    directory = Path(shared.finished(run)["runDir"])
    assert (file_of(shared, run, "").code, file_of(shared, run, "").body) == (200, b"")
    directory.rename(directory.with_name("away"))
    assert code_of(file_of(shared, run, "")) == (404, "notFound")


def test_a_large_file_goes_through_in_pieces(shared: SupervisorProcess) -> None:
    run = sly("head -c 60000000 /dev/zero > big")
    shared.finished(run)
    connection = shared.connection()
    with contextlib.closing(connection):
        before = rss(shared.pid)
        body = {"uid": UID, "computeJid": jid_of(run), "name": "big"}
        connection.request(
            "POST", "/api/run-file", json.dumps(body), {"Authorization": "Bearer " + shared.token}
        )
        reply = connection.getresponse()
        most, size = before, 0
        while piece := reply.read(1 << 20):
            size += len(piece)
            most = max(most, rss(shared.pid))
    assert size == 60_000_000
    assert most - before < 30_000_000, "not all of it at once"


def test_a_file_that_is_cut_short_while_it_is_read_is_not_taken_for_whole(
    shared: SupervisorProcess,
) -> None:
    run = sly("head -c 60000000 /dev/zero > big")
    directory = Path(shared.finished(run)["runDir"])
    connection = shared.connection()
    with contextlib.closing(connection):
        body = {"uid": UID, "computeJid": jid_of(run), "name": "big"}
        connection.request(
            "POST", "/api/run-file", json.dumps(body), {"Authorization": "Bearer " + shared.token}
        )
        reply = connection.getresponse()
        size = len(reply.read(1000))
        os.truncate(directory / "big", 1000)
        while piece := reply.read(1 << 20):
            size += len(piece)
    assert size < 60_000_000 == int(reply.headers["Content-Length"])
    assert shared.ready()["counters"]["refused.conflict"] >= 1


# ---- libraries


def lib(
    site: SupervisorProcess, method: str, name: str, body: bytes | None = None, uid: str = UID
) -> Answer:
    return site.ask(method, f"/api/lib-file?uid={uid}&simulationType=sly&name={name}", body)


def listed(site: SupervisorProcess, uid: str = UID) -> list[str]:
    return [
        f["name"]
        for f in said(site.ask("GET", f"/api/lib-files?uid={uid}&simulationType=sly"))["files"]
    ]


def test_a_library_over_http(shared: SupervisorProcess) -> None:
    uid = "SystemU7"
    content = os.urandom(3_000_000)
    put = said(lib(shared, "PUT", "a%20b.dat", content, uid))
    assert (put["name"], put["size"], len(put["sha256"])) == ("a b.dat", 3_000_000, 64)
    assert (shared.root / "user" / uid / "sly" / "lib" / "a b.dat").read_bytes() == content
    assert listed(shared, uid) == ["a b.dat"] and listed(shared, "SystemU8") == []
    assert said(lib(shared, "DELETE", "a%20b.dat", uid=uid)) == {"state": "ok"}
    assert code_of(lib(shared, "DELETE", "a%20b.dat", uid=uid)) == (404, "notFound")
    assert listed(shared, uid) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"uid={UID}&simulationType=sly&name=../x", (400, "badRequest")),
        (f"uid={UID}&simulationType=sly&name=%00", (400, "badRequest")),
        (f"uid={UID}&simulationType=sly", (400, "badRequest")),
        ("uid=short&simulationType=sly&name=a", (400, "badRequest")),
        (f"uid={UID}&simulationType=nosuch&name=a", (404, "unknownApp")),
        (f"uid={UID}&simulationType=../x&name=a", (400, "badRequest")),
        (f"uid={UID}&simulationType=sly&name=%ff", (400, "badRequest")),
        *(
            (f"uid={UID}&simulationType=sly&name={name}", (400, "badRequest"))
            for name in (
                "a%00b",
                "a%01b",
                "a%0ab",
                "a%7fb",
                "a%C2%85b",
                "%20a",
                "a%20",
                "a%2Fb",
                "a%5Cb",
                "a%E2%80%AEb",
                "A%CC%8A",
                "%C3%85",
                "a" * 129,
                "a&name=b",
                "",
            )
        ),
        (f"uid=%20{UID}&simulationType=sly&name=a", (400, "badRequest")),
        (f"uid={UID}%00&simulationType=sly&name=a", (400, "badRequest")),
    ],
)
def test_uploads_to_nowhere(
    shared: SupervisorProcess, query: str, expected: tuple[int, str]
) -> None:
    before = listed(shared)
    for method, body in (("PUT", b"x" * 100_000), ("DELETE", None)):
        assert code_of(shared.ask(method, "/api/lib-file?" + query, body)) == expected
    assert listed(shared) == before


def test_an_upload_that_is_too_large_is_refused_before_it_is_there(
    shared: SupervisorProcess,
) -> None:
    assert code_of(lib(shared, "PUT", "big", b"x" * 5_000_001)) == (413, "tooLarge")
    host, _, port = shared.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as s:
        s.sendall(
            f"PUT /api/lib-file?uid={UID}&simulationType=sly&name=big HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {shared.token}\r\nContent-Length: 99999999999\r\n\r\n".encode()
        )
        assert b" 413 " in s.recv(1000), "its declared length is enough"
    assert "big" not in listed(shared)


def test_an_upload_without_the_secret_touches_no_disk(shared: SupervisorProcess) -> None:
    path = "/api/lib-file?uid=SystemU9&simulationType=sly&name=a"
    assert code_of(
        shared.ask("PUT", path, b"x" * 3_000_000, headers={"Authorization": "Bearer wrong"})
    ) == (401, "unauthenticated")
    assert not (shared.root / "user" / "SystemU9").exists()


def test_an_upload_that_breaks_off_leaves_nothing(shared: SupervisorProcess) -> None:
    uid = "SystemUa"
    host, _, port = shared.url.removeprefix("http://").partition(":")
    folder = shared.root / "user" / uid / "sly" / "lib"
    with socket.create_connection((host, int(port))) as s:
        s.sendall(
            f"PUT /api/lib-file?uid={uid}&simulationType=sly&name=a HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {shared.token}\r\nContent-Length: 4000000\r\n\r\n".encode()
            + b"x" * 2_000_000
        )
        until(lambda: folder.exists() and os.listdir(folder), "it begins to be written")
        assert listed(shared, uid) == []
    until(lambda: os.listdir(folder) == [], "it is cleared away")


# ---- ports


def test_ports_are_leased_over_a_restart(site: SupervisorProcess) -> None:
    ask = {"uid": UID, "simulationType": "heat", "simulationId": "i9btqxdR", "ports": 2}
    first = site.post("global-resources", **ask)
    assert len(set(first["ports"])) == 2 and first["until"] > time.time()
    site.stop(signal.SIGKILL)
    site.start()
    assert site.post("global-resources", **ask)["ports"] == first["ports"]
    assert not set(
        site.post("global-resources", **{**ask, "simulationId": "i9btqxdS"})["ports"]
    ) & set(first["ports"])
    assert site.post("global-resources", **ask, release=True) == {
        "ports": [],
        "ip": "127.0.0.1",
        "until": None,
    }
    assert code_of(
        site.ask("POST", "/api/global-resources", json.dumps({**ask, "ports": 17}).encode())
    ) == (400, "badRequest")


# ---- live news


class News:
    """A live news stream as a page reads it. `read` reads until an event matches."""

    def __init__(
        self,
        site: SupervisorProcess,
        query: str,
        uid: str = UID,
        last_id: str = "",
        ticket: str | None = None,
    ) -> None:
        ticket = tickets.sign(site.token, uid, time.time()) if ticket is None else ticket
        self.connection = site.connection()
        headers = {tickets.HEADER: ticket} | ({"Last-Event-ID": last_id} if last_id else {})
        self.connection.request("GET", "/live" + query, headers=headers)
        self.reply = self.connection.getresponse()
        self._parser = Parser()
        self.events: list[Message] = []
        self.text = b""

    def read(
        self, name: str = "", true: Callable[[dict[str, Any]], bool] = lambda data: True
    ) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            chunk = self.reply.read1(65536)
            assert chunk, (name, self.events, self.text[-300:])
            self.text += chunk
            found: list[dict[str, Any]] = []
            for event in self._parser.feed(chunk):
                self.events.append(event)
                if event.event == name and true(json.loads(event.data)):
                    found.append(json.loads(event.data))
            if found:
                return found[0]
        pytest.fail(f"no {name}: {self.events}")

    @property
    def last_id(self) -> str:
        return self._parser.last_id

    def states(self) -> list[str]:
        states = [json.loads(e.data)["state"] for e in self.events if e.event == "status"]
        return [s for i, s in enumerate(states) if i == 0 or states[i - 1] != s]

    def output(self) -> str:
        return "".join(json.loads(e.data)["text"] for e in self.events if e.event == "log")

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def news() -> Iterator[Callable[..., News]]:
    opened: list[News] = []

    def open_(*args: Any, **kwargs: Any) -> News:
        opened.append(News(*args, **kwargs))
        return opened[-1]

    yield open_
    for n in opened:
        n.close()


def test_a_page_sees_a_run_from_the_first_to_the_last(
    shared: SupervisorProcess, news: Callable[..., News]
) -> None:
    run = sly(
        'for i in 1 2 3; do echo "{\\"frameCount\\": $i}" >> $JOBSCRIBE_REPORT; echo line $i é; sleep 0.2; done'
    )
    jid = jid_of(run)
    early = news(shared, f"?computeJid={jid}")
    assert early.reply.status == 200 and early.reply.headers["Content-Type"] == "text/event-stream"
    assert early.read("status")["state"] == "missing"
    shared.submit(run)
    page = news(shared, f"?computeJid={jid}&logs={jid}")
    assert page.read("progress")["parallelStatus"]["frameCount"] in (1, 2, 3)
    page.read("log", lambda d: bool(d["end"]))
    for n in (early, page):
        if n.states()[-1] != "completed":
            n.read("status", lambda d: bool(d["over"]))
        assert n.states()[-2:] == ["running", "completed"]
    assert page.output() == "line 1 é\nline 2 é\nline 3 é\n"
    shared.wait(run)


@pytest.mark.parametrize("ticket", ["", "nonsense", "AAAA", "\xe9", "old", "foreign", "secret"])
def test_a_ticket_that_is_old_or_forged_opens_nothing(
    shared: SupervisorProcess, news: Callable[..., News], ticket: str
) -> None:
    made = {
        "old": tickets.sign(shared.token, UID, time.time() - 60),
        "foreign": tickets.sign("another secret", UID, time.time()),
        "secret": shared.token,
    }.get(ticket, ticket)
    n = news(shared, "", ticket=made)
    assert n.reply.status == 401
    assert json.loads(n.reply.read())["code"] == "unauthenticated"


def test_the_secret_alone_opens_no_stream(shared: SupervisorProcess) -> None:
    assert code_of(shared.ask("GET", "/live")) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "query",
    [
        "?computeJid=x",
        "?logs=x",
        "?stream=both",
        "?tail=-1",
        "?tail=9999999",
        "?" + "&".join(f"computeJid={UID}-sim{n:05d}-m" for n in range(21)),
    ],
)
def test_a_wish_that_is_none(
    shared: SupervisorProcess, news: Callable[..., News], query: str
) -> None:
    n = news(shared, query)
    assert n.reply.status == 400 and json.loads(n.reply.read())["code"] == "badRequest"


def test_others_jobs_are_not_told_of(shared: SupervisorProcess, news: Callable[..., News]) -> None:
    theirs, mine = shell("echo secret", OTHER_UID), shell("true")
    shared.finished(theirs)
    page = news(shared, f"?computeJid={jid_of(theirs)}&computeJid={jid_of(mine)}")
    assert page.read("status", lambda d: d["computeJid"] == jid_of(theirs))["state"] == "missing"
    every = news(shared, "")
    shared.finished(theirs | {"computeJobHash": "another"})
    shared.finished(mine)
    for n in (page, every):
        n.read("status", lambda d: d["computeJid"] == jid_of(mine) and d["over"])
        assert {
            json.loads(e.data)["state"]
            for e in n.events
            if json.loads(e.data).get("computeJid") == jid_of(theirs)
        } <= {"missing"}
    refused = news(shared, f"?logs={jid_of(theirs)}")
    assert refused.reply.status == 404


def test_who_comes_back_after_a_restart_misses_nothing_and_sees_nothing_twice(
    site: SupervisorProcess, news: Callable[..., News]
) -> None:
    run = shell("i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.01; done")
    query = f"?computeJid={jid_of(run)}&logs={jid_of(run)}"
    site.submit(run)
    output, states, last_id = "", [], ""
    for number in (signal.SIGTERM, signal.SIGKILL):
        page = news(site, query, last_id=last_id)
        page.read("log", lambda d: bool(d["text"]))
        page.read("log", lambda d: bool(d["text"]))
        threading.Thread(target=os.kill, args=(site.pid, number)).start()
        with contextlib.suppress(AssertionError, OSError, http.client.HTTPException):
            while True:
                page.read("log", lambda d: bool(d["end"]))
        if number == signal.SIGTERM:
            assert page.text.rstrip().endswith(
                b": the supervisor is stopping; open the stream again"
            )
        output, last_id = output + page.output(), page.last_id
        states += page.states()
        site.stop()
        site.start()
    page = news(site, query, last_id=last_id)
    page.read("log", lambda d: bool(d["end"]))
    if "completed" not in page.states():
        page.read("status", lambda d: bool(d["over"]))
    assert output + page.output() == "".join(f"line {i}\n" for i in range(400))
    assert (states + page.states())[-1] == "completed"
    assert site.wait(run)["state"] == "completed"


def test_a_page_that_never_reads_costs_little(shared: SupervisorProcess) -> None:
    run = shell("head -c 30000000 /dev/zero | tr '\\0' x; sleep 0.5")
    shared.submit(run)
    host, _, port = shared.url.removeprefix("http://").partition(":")
    before = rss(shared.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            s = stack.enter_context(socket.create_connection((host, int(port))))
            ticket = tickets.sign(shared.token, UID, time.time())
            s.sendall(
                f"GET /live?computeJid={jid_of(run)}&logs={jid_of(run)} HTTP/1.1\r\nHost: x\r\n{tickets.HEADER}: {ticket}\r\n\r\n".encode()
            )
        shared.wait(run)
        assert rss(shared.pid) - before < 32 * 1024 * 1024
        assert said(call(shared, "stateless_compute", "sly", method="echo", args={"a": 1})) == {
            "a": 1
        }


def test_requests_have_not_become_events(shared: SupervisorProcess) -> None:
    head = shared.ready()["head"]
    said(call(shared, "stateless_compute", "sly", method="echo", args={}))
    lib(shared, "PUT", "x", b"1")
    shared.post("global-resources", uid=UID, simulationType="sly", simulationId="i9btqxdR")
    assert shared.ready()["head"] == head


# ---- a run directory on the command line


def test_the_files_of_a_run_are_listed_and_copied_and_its_command_is_in_the_list(
    shared: SupervisorProcess,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jobscribe.cli.main import call as command_line

    monkeypatch.setenv("JOBSCRIBE_ROOT", str(shared.root))
    run = shell(
        "mkdir -p frames/.jobscribe; ln -s /etc/passwd link; head -c 900000 /dev/zero > frames/big; for i in 1 2 3; do echo $i > frames/$i; done; exit 3"
    )
    assert shared.finished(run)["exit"]["code"] == 3
    listed = shared.post("run-files", uid=UID, computeJid=jid_of(run), limit=2)
    assert ([f["name"] for f in listed["files"]], listed["next"]) == (
        ["frames/1", "frames/2"],
        "frames/2",
    )
    rest = shared.post("run-files", uid=UID, computeJid=jid_of(run), after="frames/2")
    assert ([(f["name"], f["size"]) for f in rest["files"]], rest["next"], rest["skipped"]) == (
        [("frames/3", 2), ("frames/big", 900_000)],
        None,
        1,
    )
    assert (
        command_line(
            [
                "--uid",
                UID,
                "job",
                "get",
                jid_of(run),
                "frames/big",
                "frames/[13]",
                "-o",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert sorted((p.name, p.stat().st_size) for p in (tmp_path / "frames").iterdir()) == [
        ("1", 2),
        ("3", 2),
        ("big", 900_000),
    ]
    capfd.readouterr()
    assert command_line(["--uid", UID, "job", "status", "--porcelain", jid_of(run)]) == 0
    assert capfd.readouterr().out == "failed\n"
    assert command_line(["--uid", UID, "job", "list", "--json", "--limit", "1"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["items"]
    assert (row["state"], row["command"][:27]) == ("error", "/bin/sh -c 'mkdir -p frames")
