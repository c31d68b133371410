"""The example Flask site, whose modules have the same names as jobscribe folders. Tests start it
for real, with its WSGI server, its own supervisor, and two customers who run `heat` at the same
time.
"""

import http.cookiejar
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from supervisor_process import DEADLINE_SECS, PYTHON_PATH, SupervisorProcess, until

FOLDER = Path(__file__).resolve().parents[2] / "etc/examples/flask_site"
PASSWORDS = {"ada": "a long password", "bob": "another password"}
SLOW = {"frames": 400, "steps": 1, "size": 20, "paceSecs": 0.05}


class Reply(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """One visitor with a cookie jar."""

    def __init__(self, url: str) -> None:
        self.url, self.cookies = url, http.cookiejar.CookieJar()
        # ignore proxies of the environment
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self.cookies)
        )

    def get(self, path: str) -> Reply:
        return self._sent(urllib.request.Request(self.url + path))

    def form(self, path: str, headers: dict[str, str] | None = None, **fields: str) -> Reply:
        return self._sent(
            urllib.request.Request(
                self.url + path, urllib.parse.urlencode(fields).encode(), headers or {}
            )
        )

    def post(self, path: str, **body: Any) -> Reply:
        return self._sent(
            urllib.request.Request(
                self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
        )

    def signed_in(self, name: str) -> "Browser":
        reply = self.form("/sign-in", name=name, password=PASSWORDS[name])
        assert reply.status == 200 and f"{name}, your agent is" in reply.body.decode(), reply
        return self

    def plate(self) -> str:
        """Return the simulation id that the page works with."""
        return self.get("/").body.decode().split('data-plate="')[1].split('"')[0]

    def _sent(self, request: urllib.request.Request) -> Reply:
        try:
            with self._opener.open(request, timeout=DEADLINE_SECS) as answer:
                return Reply(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read())


def environment(place: Path, root: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "PYTHONPATH": PYTHON_PATH,
        "PYTHONDONTWRITEBYTECODE": "1",
        "SITE_SECRET": "not a secret, this is a test",
        "SITE_DB": str(place / "customers.sqlite"),
        "JOBSCRIBE_ROOT": str(root),
        "PORT": "0",
    }


@pytest.fixture(scope="module")
def supervisor() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess()
    try:
        site.start()
        yield site
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.fixture(scope="module")
def url(supervisor: SupervisorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the site as its README says and create its customers; yield its URL."""
    place = tmp_path_factory.mktemp("shop")
    env = environment(place, supervisor.root)
    for name, password in PASSWORDS.items():
        subprocess.run(
            [sys.executable, "-m", "flask", "--app", "website", "add-customer", name],
            input=password + "\n",
            text=True,
            cwd=FOLDER,
            env=env,
            check=True,
            capture_output=True,
            timeout=DEADLINE_SECS,
        )
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "website.py"],
            cwd=FOLDER,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("Hot Plates at http://127.0.0.1:"), (
            said,
            (place / "log").read_text(),
        )
        try:
            yield said.removeprefix("Hot Plates at ").strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_SECS)
    assert "Traceback" not in (place / "log").read_text()


@pytest.fixture
def ada(url: str) -> Browser:
    return Browser(url).signed_in("ada")


@pytest.fixture
def bob(url: str) -> Browser:
    return Browser(url).signed_in("bob")


def heat(browser: Browser, **fields: Any) -> dict[str, Any]:
    """Start `heat`; return the reply."""
    reply = browser.post(
        "/jobs/run-simulation", **simulation(browser.plate()), models={"heatAnimation": fields}
    )
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json()
    return answer


def simulation(plate: str) -> dict[str, str]:
    return {"simulationType": "heat", "simulationId": plate, "report": "heatAnimation"}


def status(browser: Browser, plate: str, **fields: Any) -> dict[str, Any]:
    reply = browser.post("/jobs/run-status", **simulation(plate), **fields)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json()
    return answer


def frame(browser: Browser, plate: str, run: dict[str, Any], index: int) -> Reply:
    return browser.get(
        f"/jobs/simulation-frame/{index}*heatAnimation*{plate}*heat*{run['computeJobHash']}*{run['computeJobSerial']}"
    )


def frames(browser: Browser, plate: str) -> dict[str, Any]:
    """Return the status as soon as two frames exist and the run is still running."""

    def look() -> dict[str, Any] | None:
        said = status(browser, plate)
        assert said["state"] in ("pending", "running"), said
        return said if said["state"] == "running" and said["frameCount"] >= 2 else None

    found: dict[str, Any] = until(look, "two frames are there while it runs")
    return found


# ---- the modules


def test_the_sites_db_and_agent_are_its_own_and_ours_are_ours(tmp_path: Path) -> None:
    code = (
        "import json, db, agent, website, jobscribe.db, jobscribe.agent;"
        "print(json.dumps([m.__file__ for m in (db, agent, website.db, website.agent, jobscribe.db, jobscribe.agent)]))"
    )
    env = environment(tmp_path, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
    )
    assert done.returncode == 0, done.stderr
    found = [Path(f).resolve() for f in json.loads(done.stdout)]
    assert found[:4] == [FOLDER / "db.py", FOLDER / "agent.py"] * 2
    assert (
        [f.name for f in found[4:]] == ["__init__.py"] * 2
        and FOLDER not in found[4].parents
        and FOLDER not in found[5].parents
    )


def test_it_does_not_start_without_a_secret(tmp_path: Path) -> None:
    env = environment(tmp_path, tmp_path)
    del env["SITE_SECRET"]
    done = subprocess.run(
        [sys.executable, "website.py"],
        cwd=FOLDER,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
    )
    assert done.returncode == 1 and "SITE_SECRET" in done.stderr and done.stdout == ""


# ---- authentication


def test_nobody_is_let_in_without_signing_in(url: str) -> None:
    visitor = Browser(url)
    assert b"Sign in" in visitor.get("/").body
    for reply in (
        visitor.post("/jobs/own-jobs"),
        visitor.post("/jobs/run-simulation", **simulation("12345678"), models={}),
    ):
        assert reply.status == 401 and reply.json()["code"] == "unauthenticated", reply
    for name, password in (("ada", PASSWORDS["bob"]), ("eve", PASSWORDS["ada"]), ("", "")):
        assert visitor.form("/sign-in", name=name, password=password).status == 401
    assert visitor.post("/jobs/own-jobs").status == 401


def test_who_has_signed_out_is_nobody(ada: Browser) -> None:
    assert ada.post("/jobs/own-jobs").status == 200
    assert b"Sign in" in ada.form("/sign-out").body
    assert ada.post("/jobs/own-jobs").status == 401


def test_another_site_can_make_a_browser_do_nothing(ada: Browser) -> None:
    reply = ada.form("/sign-out", {"Sec-Fetch-Site": "cross-site"})
    assert reply.status == 403
    assert ada.form("/jobs/run-simulation", simulationType="heat").json()["code"] == "crossSite"
    assert ada.post("/jobs/own-jobs").status == 200, "still signed in"


# ---- two customers at once


def test_two_customers_heat_their_plates_at_once_and_each_sees_only_their_own(
    ada: Browser, bob: Browser
) -> None:
    plates = {ada: ada.plate(), bob: bob.plate()}
    assert plates[ada] != plates[bob]
    heat(ada, seed=1, **SLOW)
    heat(bob, seed=2, **SLOW)
    runs = {who: frames(who, plate) for who, plate in plates.items()}
    shown = {who: frame(who, plates[who], runs[who], 1).json() for who in plates}
    assert shown[ada]["zMatrix"] != shown[bob]["zMatrix"], "the seeds are different ones"
    for who, other in ((ada, bob), (bob, ada)):
        rows = who.post("/jobs/own-jobs", active=True).json()["jobs"]
        assert [r["simulationId"] for r in rows] == [plates[who]] and rows[0]["state"] == "running"
        # the other customer's runs must look nonexistent, even to somebody who knows all their
        # names
        asked = status(
            who,
            plates[other],
            computeJobHash=runs[other]["computeJobHash"],
            computeJobSerial=runs[other]["computeJobSerial"],
        )
        assert asked["state"] == "missing"
        theirs, nowhere = (
            frame(who, plates[other], runs[other], 1),
            frame(who, "Nowhere1", runs[other], 1),
        )
        assert theirs.status == nowhere.status == 404
        assert theirs.body.decode().replace(plates[other], "Nowhere1") == nowhere.body.decode()
        canceled = who.post(
            "/jobs/run-cancel",
            **simulation(plates[other]),
            computeJobSerial=runs[other]["computeJobSerial"],
        )
        assert canceled.json()["state"] == "missing", canceled
    for who, plate in plates.items():
        assert status(who, plate)["state"] == "running", "somebody else has canceled it"
    assert ada.post("/jobs/run-cancel", **simulation(plates[ada])).json()["state"] == "canceled"
    assert status(bob, plates[bob])["state"] == "running"
    assert bob.post("/jobs/run-cancel", **simulation(plates[bob])).json()["state"] == "canceled"


def test_a_plate_that_is_warm_is_not_heated_again(ada: Browser) -> None:
    plate = ada.plate()
    first = heat(ada, frames=5, steps=1, size=20)
    until(lambda: status(ada, plate)["state"] == "completed", "it is warm")
    again = heat(ada, frames=5, steps=1, size=20)
    assert (again["state"], again["computeJobSerial"]) == ("completed", first["computeJobSerial"])
    assert again["frameCount"] == 5 and frame(ada, plate, again, 4).status == 200


# ---- the page


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no chromium here (Debian package chromium)"
)
def test_the_page_shows_the_plate_getting_warm(url: str, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        page.fill("[name=name]", "bob")
        page.fill("[name=password]", PASSWORDS["bob"])
        page.click("button")
        page.fill("#hotSpots", "7")
        page.click("#start")
        page.wait_for_function("said.textContent.startsWith('running') && canvas.width === 100")
        page.wait_for_function("/running, [1-9]/.test(said.textContent)")
        drawn = page.evaluate("canvas.toDataURL()")
        page.wait_for_function("before => canvas.toDataURL() !== before", arg=drawn)
        page.click("#cancel")
        page.wait_for_function("said.textContent.startsWith('canceled')")
        page.screenshot(path=os.environ.get("SCREENSHOT", str(tmp_path / "plate.png")))
        chromium.close()
    assert wrong == []
