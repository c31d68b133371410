"""The page in a real browser on a site with clusters: the choice of a cluster, sign-in, and Slurm's
reasons while a run waits.
"""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
import werkzeug.serving
from front_end_fixture import ANN, Lines
from stub_supervisor import StubSupervisor
from supervisor_process import until

from jobscribe.client.transport.address import Address
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.log.logger import Log
from jobscribe.web import create_blueprint
from jobscribe.web.server.application import POLICY, STATIC

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright's Python package is not installed"
)

from chromium_user import CHROMIUM, FLAGS, ChromiumUser

pytestmark = pytest.mark.skipif(
    not os.access(CHROMIUM, os.X_OK),
    reason="chromium is not here; etc/engines/chromium.sh installs it",
)

PASSWORD, CODE = "canary-correct-horse", "271828"
DEBUG = {
    "name": "debug",
    "default": True,
    "up": True,
    "nodes": 4,
    "maxNodes": 2,
    "coresPerNode": 8,
    "memoryMbPerNode": 16_384,
    "timeLimitSecs": 1800.0,
}
ALPHA = {
    "cluster": "alpha",
    "access": "ssh",
    "state": "up",
    "detail": "",
    "accounts": ["m123", "m456"],
    "qos": None,
    "defaults": {},
    "limits": {},
    "partitions": [
        DEBUG,
        {"name": "long", "up": True, "timeLimitSecs": 172_800.0},
        {"name": "old", "up": False},
    ],
}


class House:
    """A supervisor with one cluster and no signed-in user. Tests change the state of its run."""

    def __init__(self, stub: StubSupervisor) -> None:
        self.signed_in, self.wrong = False, "invalid"
        self.status: dict[str, Any] = {}
        self.runs: list[dict[str, Any]] = []
        self.clusters = [{**ALPHA, "partitions": None, "accounts": None}]
        stub.answers |= {
            "/api/clusters": lambda body: {"state": "ok", "clusters": self.clusters},
            "/api/begin-session": {"state": "ok"},
            "/api/job-list": {"jobs": [], "next": None},
            "/api/run-simulation": self.run,
            "/api/run-status": lambda body: self.told(),
            "/api/run-cancel": self.cancel,
            "/api/sbatch-login": self.login,
            "/api/sbatch-login-status": lambda body: {
                "ready": self.signed_in,
                "cluster": "alpha",
                "host": "login.example.org",
                "access": "ssh",
            },
            "/api/job-log": (
                200,
                {
                    "X-Jobscribe-Offset": "0",
                    "X-Jobscribe-Next-Offset": "0",
                    "X-Jobscribe-Dropped": "0",
                    "X-Jobscribe-End": "false",
                },
                b"",
            ),
        }

    def run(self, body: Any) -> Any:
        run = body["run"]
        self.runs.append(run)
        if run.get("batch") and run["batch"].get("account") == "m999":
            return Refusal("batchRefused", "the account m999 is not yours on alpha")
        self.status = {
            "state": "pending",
            "computeJid": f"{ANN}-{run['simulationId']}-heatAnimation",
            "computeJobHash": run["computeJobHash"],
            "computeJobSerial": 1_700_000_000 + len(self.runs),
            "computeJobQueued": 1_700_000_000.0,
            "queueState": "sign_in",
            "known": True,
            "jobStatusMessage": "waiting for a sign-in at alpha",
            "over": False,
            "simulationType": "heat",
            "nextRequestSeconds": 1,
        }
        return self.told()

    def told(self) -> Any:
        said = {**self.status, "cluster": "alpha"}
        if self.signed_in or self.status.get("state") not in ("pending", "running"):
            return said
        params = {
            "isModal": True,
            "isSbatchLogin": True,
            "reason": "no-creds",
            "cluster": "alpha",
            "host": "login.example.org",
            "sentence": "nobody is signed in",
        }
        return {**said, "srException": {"routeName": "sbatchLogin", "params": params}}

    def login(self, body: Any) -> Any:
        if self.wrong == "slow":
            return Refusal(
                "tooManyRequests",
                "too many wrong answers in a row; try again in 60 s",
            )
        if self.wrong == "unreachable":
            return Refusal("signInUnreachable", "login.example.org does not answer")
        if (body["username"], body["password"], body.get("otp")) != ("joe", PASSWORD, CODE):
            return Refusal("signInRefused", "login.example.org has not accepted the password")
        self.signed_in = True
        self.clusters = [ALPHA]
        self.status |= {
            "queueState": "slurm",
            "jobStatusMessage": "Slurm has queued it: other jobs come first (Priority)",
            "batch": {
                "cluster": "alpha",
                "jobId": "4711",
                "state": "PENDING",
                "reason": "Priority",
                "partition": "debug",
            },
        }
        return {"state": "ok", "loginSuccess": True, "cluster": "alpha", "user": "joe"}

    def cancel(self, body: Any) -> Any:
        self.status |= {"state": "canceled", "over": True, "queueState": None}
        return self.told()


@pytest.fixture
def house(stub: StubSupervisor) -> House:
    return House(stub)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def url(stub: StubSupervisor, house: House, lines: Lines) -> Iterator[str]:
    """Serve the blueprint and the page in front of the stub, on a site with its own users. Yield
    its address.
    """
    app = flask.Flask("a_site", static_folder=None)
    app.register_blueprint(
        create_blueprint(
            supervisor=Address(url=stub.url, token=stub.address.token, uid=ANN),
            user=lambda request: ANN,
            log=Log("web", Redactor(), lines),
        )
    )

    def page(name: str) -> flask.Response:
        answer = flask.send_from_directory(STATIC, name)
        answer.headers["Content-Security-Policy"] = POLICY
        return answer

    app.add_url_rule("/", "index", lambda: page("index.html"))
    app.add_url_rule("/static/<path:name>", "static", page)
    app.add_url_rule(
        "/who", "who", lambda: ({"code": "notFound", "error": "there is nothing"}, 404)
    )
    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join(10)
    server.server_close()
    app.extensions["jobscribe"].close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def ann(browser: Any, url: str) -> Iterator[ChromiumUser]:
    chromium = ChromiumUser(browser, url, "ann")
    # this site has no live news stream, and no user is signed in to the cluster at first
    chromium.expected += ["/live", "/run-simulation$", "/sbatch-login$", "/run-log/"]
    chromium.until("#link", "^asking")
    yield chromium
    troubles = chromium.troubles
    chromium.close()
    assert troubles == []


def picture(chromium: ChromiumUser, path: Path) -> None:
    """Save a screenshot for manual inspection, only with SOAK: a full screenshot takes longer than
    the rest of a test.
    """
    if os.environ.get("SOAK"):
        chromium.page.screenshot(path=path, full_page=True)


def field(ann: ChromiumUser, name: str) -> Any:
    return ann.page.locator(f"#batch-{name}")


def ask_for(ann: ChromiumUser, **fields: str) -> None:
    ann.page.locator("#where").select_option("alpha")
    for name, value in fields.items():
        field(ann, name).fill(value)


def started(ann: ChromiumUser) -> str:
    before = ann.jid()
    ann.page.locator("#start").click()
    found: str = until(lambda: (now := ann.jid()) != before and now, "another run is shown")
    return found


def sign_in(ann: ChromiumUser, password: str = PASSWORD, code: str = CODE) -> None:
    ann.page.locator("#cluster-user").fill(" joe ")
    ann.page.locator("#cluster-password").fill(password)
    ann.page.locator("#cluster-code").fill(code)
    ann.page.locator("#cluster-code").press("Enter")


def test_a_run_waits_for_the_sign_in_and_then_shows_what_slurm_says(
    ann: ChromiumUser, house: House, stub: StubSupervisor, lines: Lines, tmp_path: Path
) -> None:
    ask_for(
        ann,
        sbatchProject="m123",
        sbatchHours="0.5",
        sbatchNodes="2",
        tasksPerNode="4",
        sbatchCores="2",
    )
    started(ann)
    run = house.runs[0]
    assert (run["driver"], run["timeLimitSecs"]) == ("sbatch", 1800.0)
    wishes = {k: v for k, v in run["batch"].items() if v not in (None, [], "")}
    assert wishes == {
        "cluster": "alpha",
        "account": "m123",
        "nodes": 2,
        "tasksPerNode": 4,
        "cores": 2,
    }

    # the dialog opens by itself, names the cluster, and has fields that browsers recognise
    ann.until("#cluster-host", r"^login\.example\.org$")
    assert ann.page.evaluate("document.activeElement.id") == "cluster-user"
    kinds = [
        ann.page.locator(f"#cluster-{n}").evaluate("e => [e.type, e.autocomplete]")
        for n in ("user", "password", "code")
    ]
    assert kinds == [
        ["text", "username"],
        ["password", "current-password"],
        ["text", "one-time-code"],
    ]
    picture(ann, tmp_path / "dialog.png")

    # a wrong answer is reported, and is neither kept nor sent again
    sign_in(ann, password="canary-wrong")
    ann.until("#cluster-wrong", "has not accepted the password. .*next code")
    assert [ann.page.locator(f"#cluster-{n}").input_value() for n in ("password", "code")] == [
        "",
        "",
    ]
    assert ann.page.evaluate("document.activeElement.id") == "cluster-password"
    assert len(stub.sent("/api/sbatch-login")) == 1
    sign_in(ann)
    until(lambda: not ann.sees("#cluster-sign-in"), "the dialog is gone")
    assert stub.sent("/api/sbatch-login")[-1] == {
        "uid": ANN,
        "cluster": "alpha",
        "username": "joe",
        "password": PASSWORD,
        "otp": CODE,
        "privateKey": None,
        "passphrase": None,
        "certificate": None,
    }

    # the waiting run continues, and Slurm's reason is shown
    ann.until("#sentence", r"other jobs come first \(Priority\)\.$")
    assert (
        ann.text("#batch-state")
        == "on alpha · Slurm job 4711 · partition debug · PENDING (Priority)"
    )
    assert not ann.sees("#sign-in-row") and len(house.runs) == 1
    picture(ann, tmp_path / "waits.png")
    house.status |= {
        "state": "running",
        "queueState": None,
        "batch": {**house.status["batch"], "state": "RUNNING", "reason": "None", "nodes": "n[1-2]"},
    }
    ann.until("#batch-state", r"RUNNING · nodes n\[1-2\]$")

    # no secret is left in the page or in the log
    page = ann.page.evaluate(
        "document.documentElement.outerHTML + JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
    )
    values = ann.page.evaluate(
        "[...document.querySelectorAll('input')].map((i) => i.value).join(' ')"
    )
    for secret in (PASSWORD, CODE, "canary"):
        assert secret not in page + values + lines.text() + " ".join(r.url for r in ann.live)
    ann.page.locator("#cancel").click()
    ann.until("#chip", "^canceled$")


def test_who_does_not_sign_in_now_can_do_it_later(
    ann: ChromiumUser, house: House, stub: StubSupervisor
) -> None:
    ask_for(ann)
    started(ann)
    until(lambda: ann.sees("#cluster-sign-in"), "the dialog is there")
    ann.page.locator("#cluster-password").fill(PASSWORD)
    ann.page.keyboard.press("Escape")
    until(lambda: not ann.sees("#cluster-sign-in"), "the dialog is gone")
    # the close event of a dialog comes a moment after the dialog is hidden
    until(lambda: not ann.page.locator("#cluster-password").input_value(), "nothing stays in it")
    ann.until("#sentence", "^Waiting for a sign-in at alpha.$")
    assert stub.sent("/api/sbatch-login") == []
    for wrong, words in (("unreachable", "does not answer"), ("slow", "try again in 60 s")):
        house.wrong = wrong
        ann.page.locator("#cluster-open").click()
        sign_in(ann)
        ann.until("#cluster-wrong", words)
        ann.page.locator("#cluster-cancel").click()
    house.wrong = ""
    ann.page.locator("#cluster-open").click()
    assert (
        not ann.sees("#cluster-wrong")
        and ann.page.locator("#cluster-user").input_value().strip() == "joe"
    )
    sign_in(ann)
    ann.until("#batch-state", "Slurm job 4711")
    # after sign-out during the run, the page reports that the status is unknown
    house.signed_in = False
    house.status |= {"state": "running", "known": False}
    ann.until("#sentence", "^Nobody is signed in. It goes on, and will be heard of after that.$")
    assert ann.sees("#cluster-open")


def test_what_a_partition_allows_is_shown_and_kept_to(ann: ChromiumUser, house: House) -> None:
    # before a sign-in the partitions are unknown, so their names can be typed
    ann.page.locator("#where").select_option("alpha")
    assert ann.page.locator("#queue").evaluate("e => e.tagName") == "INPUT"
    house.signed_in, house.clusters = True, [ALPHA]
    ann.page.reload()
    ann.until("#link", "^asking")
    ann.page.locator("#where").select_option("alpha")
    options = ann.page.locator("#queue option").all_inner_texts()
    assert options == ["the cluster's own choice", "debug (default)", "long"], (
        "what is down is not offered"
    )
    assert ann.page.locator("#queue").input_value() == "debug"
    assert ann.text("#batch-hint") == "up to 0.5 h, 2 nodes, 8 cores each, 16 GB each."
    assert ann.page.locator("#batch-sbatchProject-known option").evaluate_all(
        "os => os.map((o) => o.value)"
    ) == ["m123", "m456"]

    for name, value, words in (
        ("sbatchHours", "0.6", "at most 0.5 here"),
        ("sbatchNodes", "3", "at most 2 here"),
        ("sbatchCores", "0", "a whole number of at least 1"),
    ):
        field(ann, name).fill(value)
        ann.page.locator("#start").click()
        ann.until(f"#batch-{name}-wrong", words)
        assert (
            ann.page.evaluate("document.activeElement.id") == f"batch-{name}" and house.runs == []
        )
        field(ann, name).fill("")
    ann.page.locator("#queue").select_option("long")
    assert ann.text("#batch-hint") == "up to 48 h."
    field(ann, "sbatchHours").fill("47.5")

    # errors from the cluster appear above the form, errors from the front end at their field
    field(ann, "sbatchProject").fill("m999")
    ann.page.locator("#start").click()
    ann.until("#notices", "The account m999 is not yours on alpha")
    field(ann, "sbatchProject").fill("a b")
    ann.page.locator("#start").click()
    ann.until("#batch-sbatchProject-wrong", "^Account must be a name as Slurm has them")

    # the values of a run can be restored together with its cluster, without a request to the
    # cluster
    field(ann, "sbatchProject").fill("m456")
    one = started(ann)
    ann.page.locator("#defaults").click()
    assert ann.page.locator("#where").input_value() == "" and not ann.sees("#batch")
    started(ann)
    assert (house.runs[-1]["driver"], house.runs[-1].get("batch")) == ("", None)
    ann.show(one)
    ann.page.locator("#reuse").click()
    again = [
        ann.page.locator(s).input_value()
        for s in ("#where", "#queue", "#batch-sbatchProject", "#batch-sbatchHours")
    ]
    assert again == ["alpha", "long", "m456", "47.5"]


def test_a_house_without_clusters_asks_nobody_where(ann: ChromiumUser, house: House) -> None:
    house.clusters = []
    ann.page.reload()
    ann.until("#link", "^asking")
    assert not ann.sees("#where-row") and not ann.sees("#batch")
    started(ann)
    assert house.runs[-1]["driver"] == ""


def test_the_dialog_can_be_used_on_a_phone_in_the_dark(
    browser: Any, url: str, tmp_path: Path
) -> None:
    chromium = ChromiumUser(
        browser,
        url,
        "ann",
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
        device_scale_factor=2,
        has_touch=True,
    )
    chromium.expected += ["/live", "/run-log/"]
    try:
        chromium.until("#link", "^asking")
        ask_for(chromium)
        started(chromium)
        until(lambda: chromium.sees("#cluster-sign-in"), "the dialog is there")
        box = chromium.page.locator("#cluster-sign-in").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert chromium.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        colour = chromium.page.evaluate(
            "getComputedStyle(document.getElementById('cluster-sign-in')).backgroundColor"
        )
        assert max(map(int, re.findall(r"\d+", colour)[:3])) < 80, "dark where dark is wished"
        picture(chromium, tmp_path / "phone.png")
        # every control can be reached with the Tab key
        reached = []
        for _ in range(6):
            reached.append(chromium.page.evaluate("document.activeElement.id"))
            chromium.page.keyboard.press("Tab")
        assert reached[:5] == [
            "cluster-user",
            "cluster-password",
            "cluster-code",
            "cluster-enter",
            "cluster-cancel",
        ]
        assert chromium.troubles == []
    finally:
        chromium.close()
