"""The pages of jobs in a real browser with a real `jobscribe up`."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, shell, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import SECS, needs_browser
from pages_user import PagesUser

pytestmark = needs_browser

#: A name that would show an alert, were it not a text.
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    """Share one site; the last test kills its supervisor."""
    site = SupervisorProcess(("slots.local_sequential=4",), web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def submit(site: SupervisorProcess, uid: str, text: str, name: str | None) -> dict[str, Any]:
    run = shell(text, uid, **({} if name is None else {"simName": name}))
    site.submit(run)
    return run


#: Prints control codes and markup, then lines until it is canceled.
LINES = r"""
printf '\033[31mred\033[0m <b>bold</b>\n10 %%\r20 %%\r30 %%\n'
echo problem >&2
n=0; while :; do n=$((n + 1)); echo "line $n"; sleep 0.2; done
"""


#: The demo with a short computation instead of LAMMPS.
DEMO = """
from jobscribe.cli.demo import command, computations
from jobscribe.cli.main import main
text = 'echo step,loss >thermo.csv; for i in 1 2 3; do echo $i,0.$i; done >>thermo.csv'
short = computations.Computation("LAMMPS", ("/bin/sh", "-c", text), {}, 3, "thermo.csv")
command.choose = lambda report, folder: short
main(["demo"])
"""


def test_a_newcomer_goes_from_the_demo_to_an_explanation_and_a_plot(
    browser: Any, tmp_path: Path
) -> None:
    """The demo names one address. From there, 2 clicks lead to the explanation, and 4 more to a plot."""
    own, other = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    with subprocess.Popen(
        [sys.executable, "-c", DEMO],
        env=env | {"TMPDIR": str(tmp_path)},
        stdin=other,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        lines = (m for line in demo.stderr if (m := re.search(r"the pages are at (\S+)", line)))
        context = browser.new_context(locale="en-GB")
        try:
            page = context.new_page()
            page.set_default_timeout(SECS * 1000)
            page.goto(next(lines)[1])
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="A job that fails").click()
            page.get_by_text("No such file or directory: 'temperatures.csv'").first.wait_for()
            page.get_by_role("link", name="Jobs", exact=True).first.click()
            page.get_by_role("link", name="LAMMPS").click()
            page.get_by_role("tab", name="Files").click()
            page.get_by_role("link", name="thermo.csv", exact=True).click()
            page.locator(".preview canvas").wait_for()
        finally:
            context.close()
            os.write(own, b"\n")
            rest = demo.stderr.read()
            for fd in (own, other):
                os.close(fd)
    assert demo.returncode == 0, rest


def test_a_job_is_explained_followed_canceled_and_started_again(
    browser: Any, site: SupervisorProcess
) -> None:
    bob = PagesUser(browser, site, "bob", viewport={"width": 1280, "height": 800})
    broken = submit(site, bob.uid, "echo data > out.txt; echo no such option >&2; exit 3", HOSTILE)
    site.wait(broken)
    bob.open(f"/jobs/{jid_of(broken)}")
    bob.until("h1", f"^{re.escape(HOSTILE)}$")
    bob.until(".why-sentence", r"^Failed with exit code 3.*\.$")
    bob.until(".last-lines", "no such option")
    assert bob.violations() == []
    # stdout of a failed job is empty, so the log opens on stderr; the address names it
    bob.until_url("stream=stderr$")
    bob.until(".log", "^no such option$")
    bob.until(".log-foot", "End of the output")
    # tabs by keyboard, with addresses
    bob.page.get_by_role("tab", name="Log").press("ArrowRight")
    bob.until_url("tab=tasks&stream=stderr$")
    bob.until("#tab-panel", r"main/0\s+failed\s.*\scode 3")
    bob.page.get_by_role("link", name="Log of main/0").click()
    bob.until_url(r"\?stream=stderr&attempt=1&role=main&index=0$")
    bob.until(".log", "^no such option$")
    bob.page.go_back()
    bob.page.get_by_role("tab", name="Tasks").press("ArrowRight")
    bob.until("#tab-panel .timeline", r"queued[\s\S]*execution")
    assert bob.violations() == []
    bob.page.get_by_role("tab", name="Timeline").press("ArrowRight")
    bob.until("#tab-panel", "CPU|No usage is known")
    assert bob.violations() == []
    bob.page.get_by_role("tab", name="Usage").press("ArrowRight")
    bob.until("#tab-panel", "no such option")
    bob.page.get_by_role("tab", name="Parameters").press("ArrowRight")
    bob.until("#tab-panel", "exit code 3")
    assert bob.violations() == []
    bob.page.get_by_role("tab", name="Events").press("ArrowRight")
    with bob.page.expect_download() as wanted:
        bob.page.get_by_role("link", name="Download out.txt").click()
    assert Path(wanted.value.path()).read_text() == "data\n"
    serial = site.status(broken)["computeJobSerial"]
    bob.expected.append("/page-data/run-files")  # the files of the next run may not be there yet
    bob.page.get_by_role("button", name="Run again").click()
    bob.until(".notice", "Started again")
    until(lambda: site.status(broken)["computeJobSerial"] > serial, "another run")
    site.wait(broken)

    # output arrives while it is written: colours are classes, \r is collapsed, markup is text
    long = submit(site, bob.uid, LINES, "talks")
    bob.open(f"/jobs/{jid_of(long)}")
    bob.until(".log", r"red <b>bold</b>\n30 %\n(line \d+\n)*line 3\n")
    assert bob.page.locator(".log .t-1").inner_text() == "red"
    assert bob.page.locator(".log b").count() == 0
    bob.page.get_by_placeholder("Only lines with").fill("LINE 2")
    bob.until(".log", "^line 2$|^line 2\n")
    assert bob.violations() == []
    # a site without a stream is asked every 5 s, and no line is lost or repeated
    asking = PagesUser(browser, site, "bob")
    asking.expected.append("/live")
    refusal = {"code": "forbidden", "error": "no"}
    asking.page.route(
        re.compile(r"/live(\?|$)"), lambda route: route.fulfill(status=403, json=refusal)
    )
    asking.page.goto(f"{site.front}/jobs/{jid_of(long)}")
    asking.until(".link-state", "^Every 5 s$")
    lines = r"^red.*\n30 %\n(line \d+\n)+"
    first = asking.until(".log", lines)
    until(lambda: len(asking.text(".log")) > len(first), "more output")
    said = asking.text(".log").splitlines()[2:]
    assert said == [f"line {n + 1}" for n in range(len(said))]
    assert asking.troubles == []
    asking.close()
    bob.page.get_by_role("button", name="Cancel …").click()
    bob.page.get_by_role("button", name="Cancel job").click()
    bob.until(".page-head .state", "^canceled$")
    bob.until(".why-sentence", "Canceled")
    # another user's job is not there, and the way back is
    ann = PagesUser(browser, site, "ann")
    ann.expected.append("/page-data/|/live")
    ann.page.goto(f"{site.front}/jobs/{jid_of(long)}")
    ann.until("main", "There is no such job, or it is not yours")
    ann.page.get_by_role("link", name="All jobs").click()
    ann.until("main", "You have no jobs yet")
    assert bob.troubles == [] and ann.troubles == []
    bob.close()
    ann.close()


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
    site.process = site.fork_or_launch()
    assert site.process.stdout is not None and site.process.stdout.readline()
    site.read_address()
    assert site.front == front
    ann.until(".link-state", "^Live$")
    assert not ann.sees(".strip")
    ann.page.get_by_role("button", name="Try again").click()
    assert site.wait(long[0])["state"] == "canceled"
    ann.until(".notice", "1 job canceled")
    until(lambda: ("long 0", "canceled") in ann.rows(), "the row changes")
    jid = {"uid": ann.uid, "computeJid": jid_of(long[0])}
    assert "not needed" in str(site.post("job-story", **jid)["events"])
    assert site.status(long[1])["state"] == "running"
    site.cancel(long[1])
    assert ann.page.evaluate("() => document.images.length") == 0
    assert ann.troubles == []
    ann.close()
