"""The tabs of a job in a real browser: usage with plots, parameters and clones, files with previews
and uploads, debugging and profiles.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, jid_of, spec, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from chromium_user import IS_FIREFOX, needs_browser
from pages_user import PagesUser

pytestmark = needs_browser

#: Writes files of each kind; the SVG and the HTML would show an alert, were they drawn. Runs until
#: its usage was sampled.
PROGRAM = r"""
import base64, time
png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
open("dot.png", "wb").write(base64.b64decode(png))
open("loss.csv", "w").write("step,loss (eV)\n" + "".join(f"{n},{1 / (n + 1)}\n" for n in range(50)))
open("page.svg", "w").write("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
open("long.txt", "w").write("0123456789abcde\n" * 5000 + "the end\n")
open("raw.bin", "wb").write(bytes(range(256)))
end = time.time() + 2.5
while time.time() < end:
    sum(n * n for n in range(50_000))
"""
STOP = "def here():\n    breakpoint()\nhere()"


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(("slots.local_sequential=4",), web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.fixture
def ann(browser: Any, site: SupervisorProcess) -> Iterator[PagesUser]:
    ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800})
    yield ann
    ann.close()


def test_the_tabs_of_a_job(ann: PagesUser, site: SupervisorProcess, tmp_path: Path) -> None:
    page = ann.page
    names = {"env": {"STEPS": "5"}, "simName": "train", "timeLimitSecs": 60, "profile": "cpu"}
    run = spec(["python3", "-c", PROGRAM], ann.uid, **names)
    site.submit(run)
    rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    env = {"JOBSCRIBE_DEBUG": "breakpoint", **rank}
    stopped = spec(["python3", "-c", STOP], ann.uid, env=env)
    site.submit(stopped)
    job = f"/jobs/{jid_of(run)}"
    ann.expected.append("/page-data/run-files")  # the run may not have its directory yet

    # a process that waits for a debugger, with the command that attaches
    ann.open(f"/jobs/{jid_of(stopped)}?tab=debug")
    stop = ann.until(".stop", r"<string>:2 here")
    assert "jobscribe debug attach " in stop and "continues by itself in" in stop
    assert "main/0, rank 0, process" in stop
    ann.until(".job-head .debugging", "^Remote debugging is on: ")
    site.cancel(stopped)

    # usage over time, with the keyboard and as a file
    assert site.wait(run)["state"] == "completed"
    ann.open(f"{job}?tab=usage")
    ann.until(".efficiency", r"CPU efficiency\s+\d\.\d cores on average; no cores were requested")
    plot = page.get_by_role("region", name="Memory", exact=True)
    plot.locator("canvas").wait_for()
    plot.locator(".plot-canvas").press("Home")
    until(lambda: "MiB" in plot.locator("[role=status]").inner_text(), "the value is told")
    plot.locator(".plot-canvas").press("+")
    plot.get_by_role("button", name="Reset zoom").click()
    plot.get_by_role("button", name="Log scale").click()
    if not IS_FIREFOX:  # its driver tells no downloads of files that the page has made
        with page.expect_download() as wanted:
            plot.get_by_role("button", name="CSV").click()
        head = Path(wanted.value.path()).read_text().splitlines()[0]
        assert head == "Time (UTC),Time since start (s),main/0 (B)"
        with page.expect_download() as wanted:
            plot.get_by_role("button", name="PNG").click()
        assert Path(wanted.value.path()).read_bytes().startswith(b"\x89PNG")
    plot.get_by_text("Values as a table").click()
    assert "MiB" in plot.locator("table").inner_text()
    assert ann.violations() == []

    # files: pictures by their bytes, markup as text, numbers as a plot, and more of a long text
    ann.open(f"{job}?tab=files&file=loss.csv")
    ann.until(".preview", "50 rows")
    assert ann.chosen("Horizontal axis") == "Over step"
    page.locator(".preview canvas").wait_for()
    page.get_by_label("Shown as").select_option("table")
    ann.until(".preview table", r"loss \(eV\)\s+0\s+1\.0")
    page.get_by_role("link", name="dot.png", exact=True).click()
    until(lambda: page.evaluate(_WIDTH) == 1, "the picture is drawn")
    ann.until_url("file=dot.png$")
    page.get_by_role("link", name="page.svg", exact=True).click()
    ann.until(".preview pre", "^<svg .*alert")
    page.get_by_role("link", name="raw.bin", exact=True).click()
    ann.until(".preview", "This file is no text and no picture")
    page.get_by_role("link", name="long.txt", exact=True).click()
    page.get_by_role("button", name="More (").click()
    ann.until(".preview pre", "the end$")
    assert page.locator(".preview svg script, .preview iframe").count() == 0
    (tmp_path / "in.txt").write_text("first")
    ann.expected.append("/page-data/job-file")
    page.locator("input[type=file]").set_input_files(tmp_path / "in.txt")
    page.get_by_role("link", name="in.txt", exact=True).click()
    ann.until(".preview pre", "^first$")
    (tmp_path / "in.txt").write_text("second")
    page.locator("input[type=file]").set_input_files(tmp_path / "in.txt")
    page.get_by_role("button", name="Replace").click()
    ann.until(".preview pre", "^second$")
    assert ann.violations() == []

    # a recorded profile is a flame graph that the keyboard walks
    page.get_by_role("tab", name="Debug").click()
    page.get_by_role("link", name="Flame graph of main/0").click()
    ann.until(".flame", "all")
    page.locator(".flame button").first.press("ArrowDown")
    ann.until(".flame-said", r"% with what it calls")
    assert ann.violations() == []

    # parameters, tags, and a new job from them, whose problems are beside their fields
    page.get_by_role("button", name="Add tags").click()
    page.get_by_label("Tags, separated by spaces").fill("night gpu-test")
    page.reload()  # what was typed is kept
    page.get_by_role("button", name="Add tags").click()
    assert page.get_by_label("Tags, separated by spaces").input_value() == "night gpu-test"
    page.get_by_role("button", name="Save").click()
    ann.until(".facts", r"Tags\s+gpu-test\s*night")
    page.get_by_role("tab", name="Parameters").click()
    ann.until("#tab-panel", r"python3 -c[\s\S]*60 s[\s\S]*STEPS\s+5")
    assert ann.violations() == []
    page.get_by_role("link", name="Clone and edit").click()
    ann.until_url(r"tab=parameters&edit=1$")
    page.get_by_label("Command").fill("echo $STEPS")
    page.get_by_label("Value of STEPS").fill("seven")
    page.get_by_label("Time limit").fill("-1")
    ann.expected.append("/page-data/job-clone")
    page.get_by_role("button", name="Submit the new job").click()
    ann.until(".field-problem", r"It is -1\. Right is: ")
    assert page.get_by_label("Time limit").evaluate("e => e === document.activeElement")
    assert ann.violations() == []
    # what was typed stays while another tab is shown
    page.get_by_role("tab", name="Events").click()
    page.go_back()
    page.get_by_label("Time limit").fill("30")
    # and while the session ends and the page is reloaded
    ann.expected.append("/page-data/|/live")
    ann.context.clear_cookies()
    page.get_by_label("Priority").fill("3")
    page.get_by_role("button", name="Submit the new job").click()
    ann.until("main [role=alert]", "You are not signed in")
    ann.until(".clone", "What you typed is kept")
    page.reload()
    ann.until("main", "You are not signed in")
    ann.context.request.post(ann.site.front + "/sign-in", data={"name": "ann"})
    ann.open(f"{job}?tab=parameters&edit=1")
    ann.until(".clone", "New job from this one")
    labels = ("Command", "Value of STEPS", "Time limit", "Priority")
    assert [page.get_by_label(text).input_value() for text in labels] == [
        "echo $STEPS",
        "seven",
        "30",
        "3",
    ]
    page.get_by_role("button", name="Submit the new job").click()
    ann.until(".notices", "The new job is submitted")
    ann.until(".log", "^seven$")
    ann.until("h1", "^train$")
    assert ann.troubles == []


_WIDTH = "() => document.querySelector('.preview img')?.naturalWidth"
