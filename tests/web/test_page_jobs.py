"""The pages of jobs in a real browser with a real `jobscribe up`."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, shell, until

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright's Python package is not installed"
)

from chromium_user import CHROMIUM, FLAGS
from pages_user import PagesUser

pytestmark = pytest.mark.skipif(
    not os.access(CHROMIUM, os.X_OK),
    reason="chromium is not here; etc/engines/chromium.sh installs it",
)

#: A name that would show an alert, were it not a text.
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> SupervisorProcess:
    site = make_site("slots.local_sequential=4", web=True)
    return site.start()


def submit(site: SupervisorProcess, uid: str, text: str, name: str | None) -> dict[str, Any]:
    run = shell(text, uid, **({} if name is None else {"simName": name}))
    site.submit(run)
    return run


def test_jobs_are_found_followed_and_canceled_also_after_a_kill(
    browser: Any, site: SupervisorProcess
) -> None:
    ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800}).open()
    ann.until("main", "You have no jobs yet")
    assert ann.violations() == []

    # jobs appear and change while the page is open
    run = submit(site, ann.uid, "exit 3", "broken")
    site.wait(run)
    submit(site, ann.uid, "echo fine", HOSTILE)
    ann.until_rows((HOSTILE, "completed"), ("broken", "error"))
    long = [submit(site, ann.uid, "sleep 1000", f"long {n}") for n in range(2)]
    everything = [("long 1", "running"), ("long 0", "running")]
    everything += [(HOSTILE, "completed"), ("broken", "error")]
    until(lambda: sorted(ann.rows()) == sorted(everything), "two jobs run")
    assert ann.violations() == []

    # filters, words and orders are in the address, and back and forward work
    ann.page.locator(".chip[data-state=error]").click()
    ann.until_rows(("broken", "error"))
    ann.until_url(r"\?state=error$")
    ann.page.reload()
    ann.until_rows(("broken", "error"))
    assert ann.page.locator(".chip[aria-pressed=true]").count() == 1
    ann.page.go_back()
    until(lambda: sorted(ann.rows()) == sorted(everything), "all jobs are back")
    ann.page.get_by_label("Search by name, command or id").fill("LONG sleep")
    ann.until_url("text=LONG")
    until(lambda: len(ann.rows()) == 2, "the words are found")
    ann.page.get_by_label("Search by name, command or id").fill(long[1]["simulationId"])
    ann.until_rows(("long 1", "running"))
    ann.page.get_by_label("Search by name, command or id").fill("nothing like it")
    ann.until("main", "No job matches")
    ann.page.get_by_role("link", name="Remove all filters").click()
    ann.page.get_by_role("button", name="Submitted").click()
    ann.until_url("sort=submitted")
    ann.page.get_by_role("button", name="Submitted").click()
    ann.until_rows(*reversed(everything))
    assert ann.page.locator("th[aria-sort=ascending]").inner_text() == "Submitted"

    # a cancel while the supervisor is killed is reported as not done, and can be repeated
    ann.page.get_by_label("Choose long 0").check()
    ann.expected.append(".")
    site.stop(signal.SIGKILL)
    ann.until(".strip", "Connection lost, resuming")
    assert ann.violations() == []
    ann.page.get_by_role("button", name="Cancel 1").click()
    ann.page.get_by_label("Reason (optional)").fill("not needed")
    assert ann.violations() == []
    ann.page.get_by_role("button", name="Cancel job").click()
    ann.until(".notice", "Not canceled: 1 job. The site does not answer")
    until(lambda: not site.titled("server"), "its front end has left the port")
    front = site.front
    site.process = site.launch()
    assert site.process.stdout is not None and site.process.stdout.readline()
    site.read_address()
    assert site.front == front
    ann.until(".link-state", "^Live$")
    assert not ann.sees(".strip")
    ann.page.get_by_role("button", name="Try again").click()
    assert site.wait(long[0])["state"] == "canceled"
    ann.until(".notice", "1 job canceled")
    until(lambda: ("long 0", "canceled") in ann.rows(), "the row changes")
    assert any("not needed" in line for line in site.story(long[0]))
    assert site.status(long[1])["state"] == "running"
    site.cancel(long[1])
    assert ann.page.evaluate("() => document.images.length") == 0
    assert ann.troubles == []
    ann.close()
