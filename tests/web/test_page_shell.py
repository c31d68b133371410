"""The shell of a job's page in a real browser, with a real agent; a held task and its release; attempts."""

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, shell, spec, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import IS_FIREFOX, needs_browser
from pages_user import PagesUser

pytestmark = needs_browser

STATUS = ".shell-head [role=status]"
HOSTILE = r"printf '\033]0;title\007\033]8;;https://example.org\007li''nk\033]8;;\007<b>x</b>\n'"


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(("slots.local_sequential=4", "resources.local_cpu=4"), web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def test_a_terminal_in_the_page_of_a_held_job(browser: Any, site: SupervisorProcess) -> None:
    """A failed task is held and entered; the shell outlives other tabs and a lost connection; its end is
    told; a killed supervisor, too. The release ends the job.
    """
    ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800})
    page = ann.page
    held = spec([], ann.uid, simName="kept", jobRunMode="parallel", debugSecs=600.0)
    del held["command"]
    command = ["/bin/sh", "-c", "echo here > left.txt; exit 3"]
    held["roles"] = [{"name": "main", "command": command}]
    site.submit(held)
    until(lambda: site.status(held)["queueState"] == "debug_hold", "the task is held")
    job = f"/jobs/{jid_of(held)}"
    ann.open(job)
    page.get_by_role("button", name="Shell", exact=True).click()
    ann.until_url(r"\?tab=shell$")
    ann.until(STATUS, r"^Connected to main/0, attempt 1\.$")
    ann.types("PS1='$ '; cat left.txt; echo of $JOBSCRIBE_ATTEMPT")
    ann.until_screen(r"\nhere\s*\nof 1")
    # output is text: no title, no element, no link to another host
    ann.types(HOSTILE)
    ann.until_screen(r"\nlink<b>x</b>")
    assert page.locator(".shell-screen b").count() == 0 and page.title() != "title"
    assert ann.violations() == []

    if not IS_FIREFOX:  # its driver gives no access to the clipboard
        ann.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.evaluate("""() => navigator.clipboard.writeText("clear; echo pas''ted")""")
        page.keyboard.press("Control+v")
        page.keyboard.press("Enter")
        ann.until_screen(r"^pasted\s*\n")
        page.locator(".shell-screen .xterm-screen").dblclick(position={"x": 10, "y": 8})
        page.keyboard.press("Control+c")
        ann.until(".notice", "The selection is copied")
        assert page.evaluate("() => navigator.clipboard.readText()") == "pasted"

    # the size follows the window
    ann.types("stty size")
    ann.until_screen(r"\d+ \d{2,3}\s*\n")
    page.set_viewport_size({"width": 700, "height": 800})
    ann.types(
        "clear; while [ $(stty size | cut -d' ' -f2) -gt 90 ]; do sleep 0.1; done; echo sm''all"
    )
    ann.until_screen(r"(^|\n)small")
    page.set_viewport_size({"width": 1280, "height": 800})

    # other tabs leave it open, keys of its own leave it, and a lost connection loses nothing
    page.keyboard.press("Shift+F6")
    assert page.get_by_role("button", name="Close the shell").evaluate(
        "e => e === document.activeElement"
    )
    page.get_by_role("tab", name="Events").click()
    ann.until("#tab-panel", "is held for 600 s for debugging")
    page.get_by_role("tab", name="Shell").click()
    ann.until(STATUS, "^Connected")
    ann.expected.append("/live|/page-data/")
    page.locator(".shell-screen textarea").focus()
    ann.context.set_offline(True)
    ann.context.set_offline(False)
    ann.types("clear; seq 1 500 | tail -n 2; echo do''ne")
    # a shell that does not read yet would not see Ctrl+D
    ann.until_screen(r"499\s*\n500\s*\ndone\s*\n\$ ")
    page.keyboard.press("Control+d")
    ann.until(STATUS, r"^The shell has ended with exit status 0\.$")
    assert ann.violations() == []

    # a killed supervisor hangs it up; another one can be opened
    page.get_by_role("button", name="Open again").click()
    ann.until(STATUS, "^Connected")
    ann.types("echo al''ive")
    ann.until_screen("alive")
    site.stop(signal.SIGKILL)
    ann.until(STATUS, "^Connection lost, resuming")
    site.start()
    ann.until(STATUS, r"The shell has ended: supervisor or agent was restarted.*the job goes on")
    page.get_by_role("button", name="Open again").click()
    ann.until(STATUS, "^Connected")
    ann.types("echo ag''ain; exit 7")
    ann.until(STATUS, r"exit status 7\.$")
    acts = str(site.post("audit"))
    assert acts.count("ShellOpened") >= 3 and ann.uid in acts

    # the release
    until(lambda: site.status(held)["queueState"] == "debug_hold", "the hold outlives it")
    ann.until(".link-state", "^Live$")
    page.get_by_role("button", name="Release").click()
    ann.until(".notices", "Released")
    ann.until(".page-head .state", "^failed$")
    assert site.wait(held)["exit"]["code"] == 3
    assert ann.troubles == []
    ann.close()


def test_attempts_have_the_reasons_of_their_retries(browser: Any, site: SupervisorProcess) -> None:
    bob = PagesUser(browser, site, "bob", viewport={"width": 1280, "height": 800})
    text = "echo attempt $JOBSCRIBE_ATTEMPT; [ $JOBSCRIBE_ATTEMPT = 2 ] || exit 4"
    run = shell(text, bob.uid, simName="twice", retry={"count": 2})
    site.submit(run)
    assert site.wait(run)["state"] == "completed"
    bob.open(f"/jobs/{jid_of(run)}?tab=tasks")
    bob.until(
        ".attempts",
        r"Attempt 1 ended .*\. Retried: the cause may be temporary: retry 1 of 2, at once\.\s+"
        r"Attempt 2 ended .*\.$",
    )
    bob.page.get_by_role("link", name="Attempt 1").click()
    bob.until("#tab-panel table", r"main/0\s+failed\s.*\scode 4")
    bob.page.get_by_role("link", name="Log of main/0").click()
    bob.until(".log", "^attempt 1$")
    assert bob.violations() == [] and bob.troubles == []
    bob.close()


def test_a_site_without_a_stream_and_one_without_shells(
    browser: Any, site: SupervisorProcess
) -> None:
    """The terminal asks for its output; a refusal is a sentence."""
    cho = PagesUser(browser, site, "cho", viewport={"width": 360, "height": 740})
    run = shell("sleep 600", cho.uid, simName="sleeps")
    site.submit(run)
    site.running(run)
    cho.expected.append("/live|/page-data/site/shell-open")
    refusal = {"code": "forbidden", "error": "no"}
    cho.page.route(
        re.compile(r"/live(\?|$)"), lambda route: route.fulfill(status=403, json=refusal)
    )
    cho.goto(f"/jobs/{jid_of(run)}?tab=shell")
    cho.until(".link-state", "^Every 5 s$")
    cho.page.get_by_role("button", name="Open a shell").click()
    cho.until(STATUS, "^Connected")
    cho.types("echo po''lled; exit 5")
    cho.until_screen("polled")
    cho.until(STATUS, r"exit status 5\.$")
    refused = {"code": "forbidden", "error": "this site does not permit shells in tasks"}
    cho.page.route("**/shell-open", lambda route: route.fulfill(status=403, json=refused))
    cho.page.get_by_role("button", name="Open again").click()
    cho.until(STATUS, r"^This site does not permit shells in tasks\.")
    assert cho.violations() == [] and cho.troubles == []
    site.cancel(run)
    cho.close()
