"""The page in a real browser on a site with clusters: the choice of a cluster, sign-in, and Slurm's
reasons while a run waits.
"""

import os
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
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

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from apps_user import AppsUser
from chromium_user import ChromiumUser, needs_browser

pytestmark = needs_browser

HEAT = "Heat in a plate"
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
        #: the files of the user's library
        self.library: dict[str, str] = {}
        self.clusters = [{**ALPHA, "partitions": None, "accounts": None}]
        stub.answers |= {
            "/api/clusters": lambda body: {"state": "ok", "clusters": self.clusters},
            "/api/begin-session": {"state": "ok"},
            "/api/job-list": {"jobs": [], "next": None},
            "/api/run-simulation": self.run,
            "/api/run-status": lambda body: self.told(),
            "/api/job-story": {"events": []},
            "/api/job-why": lambda body: {"state": self.status.get("state", "missing")},
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

    def files(self) -> Any:
        """Answer requests for the library; None for others."""
        path, name = flask.request.path, flask.request.path.rpartition("/")[2]
        if path.startswith("/lib-files/"):
            return {"files": [{"name": n, "size": 1, "sha256": "0" * 64} for n in self.library]}
        if not path.startswith("/lib-file/"):
            return None
        if flask.request.method == "PUT":
            self.library[name] = flask.request.get_data(as_text=True)
            return {}
        return flask.Response(self.library[name], mimetype="application/json")

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
        if not self.status:
            return Refusal("notFound", "there is no job")
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
    app.before_request(house.files)
    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join(10)
    server.server_close()
    app.extensions["jobscribe"].close()


class ClusterUser(AppsUser):
    """A user of a site with a sign-in of its own."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        ChromiumUser.__init__(self, browser, "about:blank", "ann", **context)
        self.site: Any = SimpleNamespace(front=url.rstrip("/"))
        self.uid = ANN
        # this site has no stream, and no user is signed in to the cluster at first
        self.expected += ["/live", "/run-simulation$", "/sbatch-login$", "/page-data/"]


@pytest.fixture
def ann(browser: Any, url: str) -> Iterator[ClusterUser]:
    user = ClusterUser(browser, url)
    yield user
    troubles = user.troubles
    user.close()
    assert troubles == []


def sign_in(ann: ClusterUser, password: str = PASSWORD, code: str = CODE) -> None:
    ann.page.get_by_label("User name there").fill(" joe ")
    ann.page.get_by_label("Password").fill(password)
    ann.page.get_by_label("One-time code").fill(code)
    ann.page.get_by_label("One-time code").press("Enter")


WISHES = {"sbatchProject": "m123", "sbatchHours": "0.5", "sbatchNodes": "2"}
WISHES |= {"tasksPerNode": "4", "sbatchCores": "2"}


def test_a_run_waits_for_the_sign_in_and_then_shows_what_slurm_says(
    ann: ClusterUser, house: House, stub: StubSupervisor, lines: Lines
) -> None:
    ann.new(HEAT, where="alpha", **WISHES)
    ann.start()
    # the dialog opens by itself and names the cluster
    ann.until("dialog", r"login\.example\.org")
    run = house.runs[0]
    assert (run["driver"], run["timeLimitSecs"]) == ("sbatch", 1800.0)
    wishes = {k: v for k, v in run["batch"].items() if v not in (None, [], "")}
    numbers = {"nodes": 2, "tasksPerNode": 4, "cores": 2}
    assert wishes == {"cluster": "alpha", "account": "m123", **numbers}
    # a wrong answer is reported, and is neither kept nor sent again
    ann.page.get_by_text("With a private key").click()
    ann.page.get_by_label("Private key").fill("canary-key")
    ann.page.get_by_label("Passphrase of the key").fill("canary-phrase")
    sign_in(ann, password="canary-wrong")
    ann.until("dialog [role=alert]", "has not accepted the password")
    for secret in ("Password", "Private key", "Passphrase of the key"):
        assert ann.page.get_by_label(secret).input_value() == ""
    (wrong,) = stub.sent("/api/sbatch-login")
    assert (wrong["privateKey"], wrong["passphrase"]) == ("canary-key", "canary-phrase")
    assert not wrong.get("certificate")
    sign_in(ann)
    until(lambda: not ann.sees("dialog"), "the dialog is gone")
    sent = stub.sent("/api/sbatch-login")[-1]
    assert [sent[k] for k in ("uid", "cluster", "username", "otp")] == [ANN, "alpha", "joe", CODE]
    # the waiting run continues, and Slurm's reason is shown
    ann.until(".stage", r"other jobs come first \(Priority\)\.")
    batch = "on alpha · Slurm job 4711 · partition debug · PENDING"
    ann.until(".facts", re.escape(f"{batch} (Priority)"))
    assert len(house.runs) == 1
    batch_now = {**house.status["batch"], "state": "RUNNING", "reason": "None", "nodes": "n[1-2]"}
    house.status |= {"state": "running", "queueState": None, "batch": batch_now}
    ann.until(".facts", r"RUNNING · nodes n\[1-2\]")
    # no secret is left in the page or in the log
    page = ann.page.evaluate(_KEPT)
    for secret in (PASSWORD, CODE, "canary"):
        assert secret not in page + lines.text() + " ".join(r.url for r in ann.live)
        assert secret not in str(house.library)


_KEPT = """() => document.documentElement.outerHTML + JSON.stringify(localStorage)
  + JSON.stringify(sessionStorage) + document.cookie
  + [...document.querySelectorAll("input, textarea")].map((i) => i.value).join(" ")"""


def test_who_does_not_sign_in_now_can_do_it_later_also_on_a_phone(
    browser: Any, url: str, house: House, stub: StubSupervisor
) -> None:
    view = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    ann = ClusterUser(browser, url, **view)
    ann.new(HEAT, where="alpha")
    ann.start()
    until(lambda: ann.sees("dialog"), "the dialog is there")
    box = ann.page.locator("dialog").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert ann.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ann.page.get_by_label("Password").fill(PASSWORD)
    ann.page.keyboard.press("Escape")
    until(lambda: not ann.sees("dialog"), "the dialog is gone")
    ann.until(".stage", "Waiting for a sign-in at alpha")
    assert stub.sent("/api/sbatch-login") == []
    for wrong, words in (("unreachable", "does not answer"), ("slow", "try again in 60 s")):
        house.wrong = wrong
        ann.page.get_by_role("button", name="Sign in to alpha").click()
        assert ann.page.get_by_label("Password").input_value() == ""
        sign_in(ann)
        ann.until("dialog [role=alert]", words)
        ann.page.get_by_role("button", name="Not now").click()
    house.wrong = ""
    ann.page.get_by_role("button", name="Sign in to alpha").click()
    assert not ann.sees("dialog [role=alert]")
    sign_in(ann)
    ann.until(".facts", "Slurm job 4711")
    # after sign-out during the run, the page reports that the status is unknown
    house.signed_in = False
    house.status |= {"state": "running", "known": False}
    ann.until(".stage", "Nobody is signed in. The run goes on.")
    assert ann.page.get_by_role("button", name="Sign in to alpha").is_visible()
    assert ann.troubles == []
    ann.close()


def test_what_a_partition_allows_is_shown_and_kept_to(ann: ClusterUser, house: House) -> None:
    # before a sign-in the partitions are unknown, so their names can be typed
    sid = ann.new(HEAT, where="alpha")
    assert ann.field("sbatchQueue").evaluate("e => e.tagName") == "INPUT"
    house.signed_in, house.clusters = True, [ALPHA]
    ann.page.reload()
    ann.until("form.values", "16 GB each")
    options = ann.page.locator("#field-sbatchQueue option").all_inner_texts()
    assert options == ["the cluster's own choice", "debug (default)", "long"], (
        "what is down is not offered"
    )
    assert ann.field("sbatchQueue").input_value() == "debug"
    assert "up to 0.5 h, 2 nodes, 8 cores each, 16 GB each." in ann.text("form.values")
    assert ann.page.locator("#field-sbatchProject-known option").evaluate_all(
        "os => os.map((o) => o.value)"
    ) == ["m123", "m456"]
    for name, value, words in (
        ("sbatchHours", "0.6", "at most 0.5 here"),
        ("sbatchNodes", "3", "at most 2 here"),
        ("sbatchCores", "0", "a whole number of at least 1"),
    ):
        ann.fill(**{name: value})
        ann.start()
        ann.until(f"#field-{name}-wrong", words)
        assert ann.page.evaluate("document.activeElement.id") == f"field-{name}"
        assert house.runs == []
        ann.fill(**{name: ""})
    ann.fill(sbatchQueue="long")
    ann.until("form.values", "up to 48 h.")
    # errors from the cluster appear above the form, errors from the front end at their field
    ann.fill(sbatchHours="47.5", sbatchProject="m999")
    ann.start()
    ann.until("form.values [role=alert]", "The account m999 is not yours on alpha")
    ann.fill(sbatchProject="a b")
    ann.start()
    ann.until("#field-sbatchProject-wrong", "^Account must be a name as Slurm has them")
    # cluster and resources are stored with the simulation
    ann.fill(sbatchProject="m456")
    ann.page.keyboard.press("Tab")  # closes the list of known accounts, which would take the click
    ann.start()
    until(lambda: house.runs and house.runs[-1]["batch"]["account"] == "m456", "it is sent")
    ann.page.goto(f"{ann.site.front}/apps/heat/{sid}")
    ann.until("form.values", "Saved")
    names = ("where", "sbatchQueue", "sbatchProject", "sbatchHours")
    assert [ann.field(n).input_value() for n in names] == ["alpha", "long", "m456", "47.5"]
    # without clusters nobody is asked where
    ann.fill(where="")
    assert not ann.field("sbatchQueue").is_visible()
    house.clusters = []
    ann.page.reload()
    ann.until("form.values", "Pause before each frame")
    assert not ann.field("where").is_visible()
    ann.start()
    until(lambda: house.runs[-1]["driver"] == "", "it runs on this machine")
