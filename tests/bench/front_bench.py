"""Compare the front end with its floors: `python tests/bench/front_bench.py`. Prints a table;
asserts nothing.

The floors, in the same run, are a bare Flask handler under the same WSGI server with the same
number of threads, and a bare Tornado handler. All requests use persistent connections, as browsers
do. Rates of a floor and of what is compared with it are measured in turns.
"""

import contextlib
import http.client
import json
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

REPEATS = 3
N = 1000
CONNECTIONS = 8

FLOOR = """
import socket, sys
import flask, waitress
app = flask.Flask(__name__)

@app.post("/nothing")
def nothing():
    flask.request.get_json()
    return {"state": "ok"}

s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(128)
print(s.getsockname()[1], flush=True)
waitress.serve(app, sockets=[s], threads=%d, _quiet=True)
"""

TORNADO = """
import asyncio, json, socket
import tornado.httpserver, tornado.web

class Handler(tornado.web.RequestHandler):
    def post(self):
        json.loads(self.request.body)
        self.write({"state": "ok"})

async def main():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(128); s.setblocking(False)
    app = tornado.web.Application([("/nothing", Handler)], log_function=lambda handler: None)
    tornado.httpserver.HTTPServer(app).add_sockets([s])
    print(s.getsockname()[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Page:
    """One browser: a persistent connection and a cookie."""

    def __init__(self, url: str, cookie: str = "") -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))
        self._headers = {"Content-Type": "application/json", "Cookie": cookie}

    def sign_in(self, name: str) -> "Page":
        self._connection.request(
            "POST", "/sign-in", json.dumps({"name": name}), {"Content-Type": "application/json"}
        )
        reply = self._connection.getresponse()
        reply.read()
        if "Set-Cookie" not in reply.headers:
            raise RuntimeError(f"/sign-in: {reply.status}")
        self._headers["Cookie"] = reply.headers["Set-Cookie"].split(";")[0]
        return self

    def again(self, url: str) -> "Page":
        return Page(url, self._headers["Cookie"])

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        self._connection.request(
            method, path, None if body is None else json.dumps(body), self._headers
        )
        reply = self._connection.getresponse()
        said = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {said[:400]!r}")
        return said

    def post(self, path: str, **body: Any) -> Any:
        return json.loads(self.ask("POST", path, body))

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """Poll as often as a page does until the run is over."""
        reply: dict[str, Any] = self.post("/run-simulation", **body)
        while reply.get("nextRequest"):
            time.sleep(reply["nextRequestSeconds"])
            reply = self.post("/run-status", **reply["nextRequest"])
        return reply


def sid() -> str:
    return "".join(c for c in secrets.token_urlsafe(24) if c.isalnum())[:8]


@contextlib.contextmanager
def up(root: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "jobscribe.cli", "up", "--root", str(root), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found is not None, line
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait()
        for path in root.glob("agent/*/keeper.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)


@contextlib.contextmanager
def production(root: Path) -> Iterator[str]:
    """Start `jobscribe server` next to the running supervisor, without a proxy of the benchmark in
    between. A hook identifies users (here: the header X-User).
    """
    (root.parent / "bench_hooks.py").write_text(
        "def user(request):\n    return request.headers.get('X-User')\n"
    )
    path = os.pathsep.join(p for p in (str(root.parent), os.environ.get("PYTHONPATH", "")) if p)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "server",
            "--root",
            str(root),
            "--port",
            "0",
            "--set",
            "server.user_hook=bench_hooks:user",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def floor(program: str) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def rate(action: Callable[[], Any], n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        action()
    return n / (time.perf_counter() - began)


def rate_together(actions: list[Callable[[], Any]], n: int) -> float:
    """Return requests per second over several concurrent connections."""
    began = time.perf_counter()
    threads = [threading.Thread(target=rate, args=(a, n // len(actions))) for a in actions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return n / (time.perf_counter() - began)


def times_ms(action: Callable[[], Any], n: int) -> list[float]:
    out = []
    for _ in range(n):
        began = time.perf_counter()
        action()
        out.append((time.perf_counter() - began) * 1000)
    return out


def row(what: str, here: str, beside: str, goal: str) -> None:
    print(f"| {what} | {here} | {beside} | {goal} |", flush=True)


def rates(actions: dict[str, Callable[[], Any]], n: int = N) -> dict[str, float]:
    """Return the median rate of each action. The actions take turns."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(REPEATS):
        for name, action in actions.items():
            found[name].append(rate(action, n))
    return {name: statistics.median(values) for name, values in found.items()}


def heat(page: Page, **models: Any) -> dict[str, Any]:
    """Run `heat` to its end. Return the request for its status."""
    run = {
        "simulationType": "heat",
        "simulationId": sid(),
        "report": "heatAnimation",
        "models": {"heatAnimation": models},
    }
    done = page.run(run)
    assert done["state"] == "completed", done
    return named(run) | {k: done[k] for k in ("computeJobHash", "computeJobSerial")}


def named(run: dict[str, Any]) -> dict[str, Any]:
    return {k: run[k] for k in ("simulationType", "simulationId", "report")}


def frame_of(asked: dict[str, Any]) -> str:
    parts = ("simulationId", "simulationType", "computeJobHash", "computeJobSerial")
    address = "*".join(str(x) for x in (0, "heatAnimation", *(asked[k] for k in parts)))
    return "/simulation-frame/" + quote(address, safe="*")


def statuses(url: str, page: Page, root: Path, direct: str, bare: str, tornado: str) -> None:
    known = json.loads((root / "client.json").read_text())
    uid = json.loads(page.ask("GET", "/who"))["uid"]
    over, now = heat(page), heat(page, frames=1)
    run = {**named(now), "simulationId": sid(), "models": {"heatAnimation": {"paceSecs": 60}}}
    running = page.post("/run-simulation", **run)
    while running["state"] != "running":
        time.sleep(0.1)
        running = page.post("/run-status", **running["nextRequest"])
    active = running["nextRequest"]
    jid = running["computeJid"]
    nothing, straight, api = Page(bare), Page(direct), Page(known["url"])
    straight._headers["X-User"] = uid
    api._headers["Authorization"] = "Bearer " + known["token"]
    for name, asked in (("over", over), ("running", active)):
        found = rates(
            {
                "up": lambda asked=asked: page.ask("POST", "/run-status", asked),
                "server": lambda asked=asked: straight.ask("POST", "/run-status", asked),
                "floor": lambda: nothing.ask("POST", "/nothing", {}),
            }
        )
        bare_rate = found["floor"]
        for where in ("up", "server"):
            row(
                f"run-status of a run that is {name}, one connection, `jobscribe {where}`",
                f"{found[where]:.0f}/s",
                f"{bare_rate:.0f}/s bare Flask handler (ratio {found[where] / bare_rate:.2f})",
                ">= 0.6",
            )
    page.post("/run-cancel", **active)
    jids = {"over": f"{uid}-{over['simulationId']}-heatAnimation", "running": jid}
    bare_tornado = Page(tornado)
    for name, jid in jids.items():
        found = rates(
            {
                "api": lambda jid=jid: api.ask(
                    "POST", "/api/run-status", {"uid": uid, "computeJid": jid}
                ),
                "floor": lambda: bare_tornado.ask("POST", "/nothing", {}),
            }
        )
        row(
            f"run-status of the supervisor, {name}",
            f"{found['api']:.0f}/s",
            f"{found['floor']:.0f}/s bare Tornado handler (ratio {found['api'] / found['floor']:.2f})",
            ">= 0.9",
        )
    for cells in (100, 160):
        path = frame_of(heat(page, size=cells, frames=2))
        size = len(page.ask("GET", path))
        ms = times_ms(lambda path=path: page.ask("GET", path), 100)
        row(
            f"frame of {size / 1024:.0f} KB, median, p95",
            f"{statistics.median(ms):.1f}, {statistics.quantiles(ms, n=20)[-1]:.1f} ms",
            "",
            "10 ms for 100 KB",
        )


def first_reports(url: str) -> None:
    """Measure from the first request of a new user to the first frame, or to the result."""

    def until(page: Page, run: dict[str, Any], ready: Callable[[dict[str, Any]], bool]) -> Any:
        reply = page.post("/run-simulation", **run)
        while not ready(reply):
            time.sleep(0.005)
            reply = page.post("/run-status", **reply["nextRequest"])
        return reply

    def frame(page: Page) -> None:
        run = {
            "simulationType": "heat",
            "simulationId": sid(),
            "report": "heatAnimation",
            "models": {"heatAnimation": {}},
        }
        reply = until(page, run, lambda r: r.get("frameCount", 0) > 0)
        page.ask("GET", frame_of({**named(run), **reply}))

    def result(page: Page) -> None:
        run = {
            "simulationType": "myapp",
            "simulationId": sid(),
            "report": "heightWeightReport",
            "models": {},
        }
        until(page, run, lambda r: r["state"] == "completed")

    for what, action in (("heat, to its first frame", frame), ("myapp, to its result", result)):
        first, second = [], []
        for _ in range(9):
            page = Page(url).sign_in("first" + sid())
            first += times_ms(lambda page=page, action=action: action(page), 1)
            second += times_ms(lambda page=page, action=action: action(page), 1)
        row(
            f"first report of a new user ({what}), median (range)",
            f"{statistics.median(first):.0f} ms ({min(first):.0f}-{max(first):.0f})",
            f"the user's second: {statistics.median(second):.0f} ms",
            "250 ms",
        )


def calls(url: str, page: Page, method: str) -> None:
    body = {"simulationType": "myapp", "method": method, "args": {"height": 58}}
    page.ask("POST", "/stateless-compute", body)
    ms = times_ms(lambda: page.ask("POST", "/stateless-compute", body), 300)
    row(
        "warm stateless-compute, median, p95",
        f"{statistics.median(ms):.1f}, {statistics.quantiles(ms, n=20)[-1]:.1f} ms",
        "",
        "3 ms",
    )
    pages = [page.again(url) for _ in range(CONNECTIONS)]
    together = statistics.median(
        rate_together([lambda p=p: p.ask("POST", "/stateless-compute", body) for p in pages], N)
        for _ in range(REPEATS)
    )
    row(f"stateless-compute, {CONNECTIONS} connections", f"{together:.0f}/s", "", "500/s")


def newcomers(url: str) -> None:
    pages = [Page(url).sign_in(f"newcomer{n:02d}") for n in range(64)]
    states: list[str] = []

    def one(page: Page) -> None:
        body = {
            "simulationType": "myapp",
            "simulationId": sid(),
            "report": "heightWeightReport",
            "models": {},
        }
        states.append(page.run(body)["state"])

    began = time.perf_counter()
    threads = [threading.Thread(target=one, args=(p,)) for p in pages]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    row(
        "64 new users at once, a report each",
        f"{states.count('completed')} served in {time.perf_counter() - began:.1f} s",
        "",
        "all served",
    )


def main(method: str = "idealWeight") -> None:
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, Python {sys.version.split()[0]}\n"
    )
    print(
        "| what | here | beside it, in the same run | goal |\n| --- | --- | --- | --- |", flush=True
    )
    with (
        tempfile.TemporaryDirectory(prefix="jobscribe-bench-") as folder,
        up(Path(folder) / "r") as url,
        floor(FLOOR % 8) as bare,
        floor(TORNADO) as tornado,
    ):
        page = Page(url).sign_in("bench")
        with production(Path(folder) / "r") as direct:
            statuses(url, page, Path(folder) / "r", direct, bare, tornado)
        calls(url, page, method)
        first_reports(url)
        newcomers(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
