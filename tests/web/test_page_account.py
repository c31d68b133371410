"""The pages of the account, documentation and API reference in a real browser."""

import re
from collections.abc import Iterator
from typing import Any

import httpcore
import pytest
from supervisor_process import SupervisorProcess, jid_of, shell, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import IS_FIREFOX, needs_browser
from pages_user import PagesUser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(("purge.after_secs=2", "purge.every_secs=0.2"), web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def status_of(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpcore.request("GET", f"{url}/api/whoami", headers=headers).status


def test_a_token_works_until_it_is_revoked_and_usage_is_shown(
    browser: Any, site: SupervisorProcess
) -> None:
    ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800})
    other = PagesUser(browser, site, "ann")
    run = shell("true", ann.uid)
    site.submit(run)
    site.wait(run)
    purged_job(ann, f"/jobs/{jid_of(run)}")
    ann.open("/account")
    ann.until("main", "You have no valid token")
    ann.until(".tiles", r"Jobs ended\s+1")
    assert ann.violations() == []
    ann.page.get_by_role("button", name="CPU time").click()
    ann.until_url("measure=cpu$")
    # the address has the measure; and Firefox 153 crashes in a dialog that is opened after axe ran
    ann.page.reload()
    ann.until(".tiles [aria-pressed=true]", "CPU time")

    ann.page.get_by_role("button", name="New token").click()
    ann.page.get_by_label("Name", exact=True).fill("laptop")
    assert ann.page.get_by_label("admin").count() == 0, "a user without a role"
    assert ann.violations() == []
    ann.page.get_by_role("button", name="Create token").click()
    token = ann.until(".secret >> nth=0 >> code", r"^jst_\w{8}_[\w-]{43}$")
    login = ann.text(".secret >> nth=1 >> code")
    assert login.startswith("jobscribe auth login --with-token ")
    url = login.rpartition(" ")[2]
    assert ann.violations() == []
    if not IS_FIREFOX:  # it needs no permission to copy, and no program may read what was copied
        ann.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ann.page.get_by_role("button", name="Copy the token").click()
    ann.until(".secret >> nth=0 >> [role=status]", "^Copied$")
    if not IS_FIREFOX:
        assert ann.page.evaluate("() => navigator.clipboard.readText()") == token
    # a page without encryption has no interface of the clipboard
    ann.page.evaluate(
        """() => {
          Object.defineProperty(navigator, "clipboard", {value: undefined});
          const field = document.createElement("textarea");
          field.id = "pasted";
          document.querySelector("dialog[open]").append(field);
        }"""
    )
    ann.page.locator(".secret >> nth=1 >> button").click()
    ann.until(".secret >> nth=1 >> [role=status]", "^Copied$")
    ann.page.locator("#pasted").focus()
    ann.page.keyboard.press("Control+v")
    assert ann.page.locator("#pasted").input_value() == login
    assert status_of(url, token) == 200
    ann.page.get_by_role("button", name="I have copied it").click()
    row = ann.page.locator(f"tr[data-token='{token[4:12]}']")
    assert re.search(r"laptop[\s\S]*read, control", row.inner_text())
    # the text is nowhere any more
    kept = (
        "() => document.documentElement.outerHTML + JSON.stringify([localStorage, sessionStorage])"
    )
    assert token not in ann.page.evaluate(kept)
    row.get_by_role("button", name="Revoke laptop").click()
    ann.page.get_by_label("Reason").fill("laptop lost")
    ann.page.get_by_role("button", name="Revoke token").click()
    ann.until("main", "1 token no longer valid")
    assert status_of(url, token) == 401
    ann.page.locator("summary", has_text="no longer valid").click()
    ended = row.inner_text()
    assert re.search(r"laptop[\s\S]*revoked\s+(just now|\d+ s ago)", ended), ended

    cluster_sign_in(ann)
    # the other browser is signed out from here
    ann.page.locator(".rows li[data-current=false]").first.get_by_role("button").click()
    ann.until(".notices", "Signed out there")
    refused = other.context.request.post(site.front + "/page-data/sign-ins", data={})
    assert refused.status == 401
    assert ann.troubles == []
    ann.close()
    other.close()


def purged_job(ann: PagesUser, address: str) -> None:
    """A link to a job whose files were removed: a sentence and a way on."""
    ann.open(address)
    ann.until(".page-head .state", "^cleared away$")
    for tab in ("Files", "Log"):
        ann.page.get_by_role("tab", name=tab).click()
        ann.until("#tab-panel", "^Output and files of this job have been cleared away")
    assert ann.page.get_by_role("button", name="Run again").is_visible()
    assert ann.violations() == []


def a_part_that_does_not_arrive(bob: PagesUser) -> None:
    """A page whose file is lost once is shown all the same; one that is away says so."""
    lost, away = 0, False

    def lose(route: Any) -> None:
        nonlocal lost
        lost += 1
        if lost == 1 or away:
            route.abort()
        else:
            route.continue_()

    bob.expected.append("/page-files/part-")
    bob.page.route(re.compile("/page-files/part-"), lose)
    bob.page.get_by_role("link", name="Queues", exact=True).click()
    bob.until("h1", "^Queues and hosts$")
    assert lost >= 1
    bob.page.evaluate("() => sessionStorage.setItem('jobscribe-reloaded', String(Date.now()))")
    away = True
    bob.page.get_by_role("link", name="New job", exact=True).click()
    bob.until("main [role=alert]", "A part of this page did not arrive")
    bob.page.unroute_all()
    bob.page.get_by_role("button", name="Load the page again").click()
    bob.until("h1", "^New job$")
    # without its first file a page has no program, and its document says how to go on
    bob.page.route(re.compile("/page-files/main-.*js"), lambda route: route.abort())
    bob.expected.append("/page-files/main-")
    bob.page.reload()
    bob.until("#app", "^This page is still loading. If it stays so, load it again.$")
    bob.page.unroute_all()
    bob.page.get_by_role("link", name="load it again").click()
    bob.until("h1", "^New job$")


_RECORD_SIGN_INS = """
window.sent = [];
const send = window.fetch;
window.fetch = (address, options) => {
  if (String(address).endsWith("/sbatch-login")) sent.push(options.body);
  return send(address, options);
};
"""


def cluster_sign_in(ann: PagesUser) -> None:
    """Sign in to a cluster and out again; tests/slurm has real ones."""
    tries = 0
    signed_in = False

    def answer(route: Any) -> None:
        nonlocal signed_in, tries
        path = route.request.url.removeprefix(ann.site.front)
        if path == "/clusters":
            said: Any = {"clusters": [{"cluster": "alpha"}]}
        elif path == "/sbatch-login-status":
            said = {"ready": signed_in, "cluster": "alpha", "host": "login.alpha", "access": "ssh"}
            said["user"] = "ann1" if signed_in else None
        elif path == "/sbatch-logout":
            signed_in, said = False, {"runs": 2}
        else:
            tries += 1
            signed_in = tries == 2
            params = {"reason": "invalid-creds", "sentence": "alpha refuses this password"}
            said = {"loginSuccess": True} if signed_in else {"srException": {"params": params}}
        route.fulfill(json=said)

    # the driver of Firefox does not tell what is sent
    ann.page.add_init_script(_RECORD_SIGN_INS)
    ann.page.route(re.compile("/(clusters|sbatch-.*)$"), answer)
    ann.open("/account")
    ann.page.get_by_role("button", name="Sign in … to alpha").click()
    ann.page.get_by_label("User name there").fill("ann1")
    for password in ("wrong-one", "right-one"):
        ann.until("dialog", "login.alpha")
        ann.page.get_by_label("Password").fill(password)
        ann.page.get_by_label("Password").press("Enter")
        if password == "wrong-one":
            ann.until("dialog .problem", "Alpha refuses this password")
            assert ann.page.get_by_label("Password").input_value() == "", "it is not kept"
            assert ann.violations() == []
    ann.until(".notices", "Signed in to alpha")
    ann.until("main", "signed in as ann1")
    credentials = {"username": "ann1", "password": "right-one", "otp": ""}
    sent = ann.page.evaluate("() => sent.map((body) => JSON.parse(body).sbatchCredentials)")
    assert sent[1] == credentials and len(sent) == tries == 2
    ann.page.get_by_role("button", name="Sign out of alpha").click()
    ann.until(".notices", "2 jobs there go on")
    ann.until("main", "not signed in")


def test_documentation_and_reference_are_found_by_words(
    browser: Any, site: SupervisorProcess
) -> None:
    bob = PagesUser(browser, site, "bob", viewport={"width": 1280, "height": 800})
    bob.page.goto(site.front + "/docs")
    bob.until("h1", "^Documentation")
    assert bob.violations() == []
    bob.page.reload()  # Firefox 153 crashes in a field that is focused after axe ran
    bob.page.get_by_label("Search the documentation").press_sequentially("rotate secrets")
    bob.until_url(r"/docs\?q=rotate%20secrets$")
    first = bob.page.locator(".hits li").first
    until(lambda: "Rotate secrets" in first.inner_text(), "the section is found first")
    assert first.locator("mark").count() > 0
    assert bob.violations() == []
    first.get_by_role("link").click()
    bob.until_url(r"/docs/site\?q=rotate%20secrets#rotate-secrets$")
    bob.until("article h1", "Users of a site")
    heading = bob.page.locator("#rotate-secrets")
    until(lambda: abs(heading.bounding_box()["y"]) < 100, "the page shows this section")
    assert bob.violations() == []
    # links between pages, and back to the place
    bob.page.locator("#doc-pages").get_by_role("link", name="Arrays and groups").click()
    bob.until("article h1", "Arrays and groups")
    bob.page.go_back()
    bob.until("article h1", "Users of a site")
    bob.page.go_back()
    bob.until(".hits h1", "Search")

    bob.page.goto(site.front + "/reference")
    bob.page.get_by_label("Search the operations").fill("job-search")
    bob.until_url("q=job-search$")
    bob.page.locator("article").get_by_role("link", name="/api/job-search").click()
    bob.until("article", r"POST\s+/api/job-search[\s\S]*Authorization: Bearer \$TOKEN")
    bob.until("table.fields", "ascending")
    assert bob.violations() == []
    bob.page.locator("article summary").click()
    bob.until(".codes", "tokenRevoked")
    bob.page.get_by_role("link", name="Site", exact=True).click()
    bob.until("article h1", "API reference: site")
    assert bob.violations() == []
    a_part_that_does_not_arrive(bob)
    assert bob.troubles == []
    bob.close()
