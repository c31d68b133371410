"""The pages of queues and of operations in a real browser with a real `jobscribe up`: what an
administrator sees and does, and what a plain user does not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, shell, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import needs_browser
from pages_user import PagesUser

from jobscribe.web.server.development_login import uid_of

pytestmark = needs_browser

CHIEF, ANN, BOB = (uid_of(name, "") for name in ("chief", "ann", "bob"))
POOL = """
image: jobscribe:none
unixUsers: 200000-200010
hosts:
  - {name: node1, address: "unix://FOLDER/none", cpu: 4, memoryMb: 4096, sequential: 2, parallel: 1}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorProcess]:
    """A site with an administrator, limits, and a Docker host that cannot be reached."""
    folder = tmp_path_factory.mktemp("site")
    files = {
        "auth.users": f"admins: [{CHIEF}]\n",
        "queues.file": "limits: {running: 1, coreHours: 500}\n",
        "docker.pool": POOL.replace("FOLDER", str(folder)),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    sets = [f"{name}={folder / name}" for name in files]
    site = SupervisorProcess(("drivers.use=local,docker", *sets), web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def user(browser: Any, site: SupervisorProcess, name: str, width: int = 1280) -> PagesUser:
    return PagesUser(browser, site, name, viewport={"width": width, "height": 800})


def test_an_administrator_finds_faults_revokes_a_token_and_drains(
    browser: Any, site: SupervisorProcess, tmp_path: Path
) -> None:
    token = site.post("token-create", uid=ANN, name="laptop", scopes=["read"])
    whoami = {"Authorization": f"Bearer {token['secret']}"}
    assert site.ask("GET", "/api/whoami", headers=whoami).code == 200
    chief = user(browser, site, "chief").open("/operations")
    chief.until(".reasons", r"Host node1 of docker is down[\s\S]*What to do: jobscribe pool check")
    chief.until(".stats", r"Active runs\s+0\s+In the queue")
    assert chief.violations() == []
    # a token, with a reason, and the act is on record
    chief.page.get_by_role("tab", name="Tokens").click()
    chief.until(".tokens tbody", rf"laptop\s+{token['id']}")
    chief.page.get_by_role("button", name="Revoke …").click()
    chief.page.get_by_label("Reason, for the record").fill("lost on a train")
    chief.page.get_by_role("button", name="Revoke token").click()
    chief.until(".tab-panel", "No user has a valid API token")
    assert site.ask("GET", "/api/whoami", headers=whoami).json()["code"] == "tokenRevoked"
    chief.page.get_by_role("tab", name="Audit").click()
    chief.until(".audit tbody", rf"{CHIEF}\s+administrator\s+{ANN}\s+token-revoke")
    assert chief.violations() == []
    chief.page.get_by_role("tab", name="Configuration").click()
    chief.page.get_by_placeholder("Only settings with").fill("auth.users")
    chief.until(".settings tbody", r"^auth.users\s+/\S+\s+option --users")
    chief.page.get_by_role("tab", name="Upkeep").click()
    chief.page.get_by_role("button", name="What would go now?").click()
    chief.until(".tab-panel", "nothing was removed")

    # a host, then the site
    chief.open("/queues")
    chief.page.get_by_role("button", name="Drain … node1").click()
    chief.page.get_by_label("Reason, for users").fill("new disks")
    chief.page.get_by_role("button", name="Drain host").click()
    chief.until("[data-host=node1]", r"node1\s+down\s+drained[\s\S]*New disks\.")
    chief.open("/operations")
    chief.page.get_by_role("button", name="Drain the site …").click()
    chief.page.get_by_label("Reason, for users").fill("power work until 18:00")
    chief.page.get_by_role("button", name="Drain site").click()
    chief.until(".strip", "starts no new runs.*Power work until 18:00")
    chief.until(".reasons", "This site is drained by")

    runs = [shell("true", uid, simName=f"run of {uid}") for uid in (ANN, BOB)]
    for run in runs:
        site.submit(run)
    chief.open("/queues")
    chief.until(".waits", rf"run of {ANN}[\s\S]*run of {BOB}")
    assert chief.violations() == []

    # a plain user: the banner, own waits as `job why` says them, and nothing of others
    ann = user(browser, site, "ann", width=360)
    ann.expected.append("/page-data/site/site-health")
    ann.open("/queues")
    ann.until(".strip", "Power work until 18:00")
    said = ann.until(".waits", r"the end of a drain\s+run of")
    sentence = site.status(runs[0])["jobStatusMessage"]
    assert sentence.partition(", since")[0] in said.replace("This site", "this site")
    text = ann.text("main")
    assert BOB not in text and "500 h" in text
    assert "Docker hosts" not in text and "Operations" not in ann.text(".bar")
    assert ann.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert ann.violations() == []
    ann.open("/operations")
    ann.until("main", "This page is for administrators of the site")
    for name in ("site-load", "site-tokens", "site-users", "site-configuration", "audit", "pool"):
        refused = ann.context.request.post(
            f"{site.front}/page-data/site/{name}", data={}, headers={"Origin": site.front}
        )
        assert (refused.status, refused.json()["code"]) == (403, "scopeMissing"), name

    chief.open("/operations")
    chief.page.get_by_role("button", name="End drain of the site").click()
    for page in (chief.page, ann.page):  # also for a user whose page is open
        until(lambda page=page: page.locator(".strip").count() == 0, "the banner is gone")
    for run in runs:
        assert site.wait(run)["state"] == "completed"
    ann.open("/queues")
    ann.until("main", "None of your runs waits")
    ann.page.get_by_role("button", name="Log").first.click()
    ann.until("dialog .log", "agent .* starts")
    assert str(site.root) not in ann.text("dialog h2")
    assert chief.troubles == [] and ann.troubles == [], (chief.troubles, ann.troubles)
    chief.close()
    ann.close()
