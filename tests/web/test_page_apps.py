"""The pages of apps in a real browser with a real `jobscribe up`: the work of a scientist."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import SupervisorProcess, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from apps_site import HEAT, People, apps_site, apps_users, told
from chromium_user import IS_FIREFOX, needs_browser

#: A name that would show an alert, were it not a text.
HOSTILE = "<img src=x onerror=alert(1)>"

pytestmark = needs_browser


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    with apps_site() as site:
        yield site


@pytest.fixture
def people(browser: Any, site: SupervisorProcess) -> Iterator[People]:
    with apps_users(browser, site) as people:
        yield people


def test_heat_is_named_started_watched_and_downloaded(
    people: People, site: SupervisorProcess, tmp_path: Path
) -> None:
    ann = people("ann", viewport={"width": 1280, "height": 800})
    # who is not signed in gets to the page of apps by the sign-in
    ann.context.clear_cookies()
    ann.page.goto(site.front + "/")
    ann.page.get_by_label("User name").fill(ann.name)
    ann.page.keyboard.press("Enter")
    ann.until("main", "There are no simulations yet")
    assert ann.violations() == []
    sid = ann.new(HEAT, frames=30, paceSecs=0.2, size=5)
    assert ann.page.url == f"{site.front}/apps/heat/{sid}"
    ann.page.get_by_role("button", name="Rename").click()
    ann.page.get_by_label("Name", exact=True).fill(HOSTILE)
    ann.page.keyboard.press("Enter")
    ann.until("h1", f"^{re.escape(HOSTILE)}$")
    # a value out of its bounds is not sent
    ann.start()
    ann.until("#field-size-wrong", "^This must be a number: 10 to 1000.$")
    assert ann.page.evaluate("document.activeElement.id") == "field-size"
    assert ann.violations() == []
    ann.fill(size=100)
    ann.start()
    ann.until_state("running")

    # progress, picture and output change together
    first = ann.until_frame(0)
    early = ann.frames_done()
    later = ann.until_frame(first.frame + 5)
    until(lambda: ann.frames_done() > early, "the number of frames grows")
    assert early >= 1 and "of 30 frames" in ann.text(".facts")
    assert first.digest != later.digest and min(first.colours, later.colours) > 50
    assert re.match(r"t = .* s\. Colour map with values from", later.label)
    ann.until(".log", r"frame +\d+ of 30")
    assert ann.violations() == []
    # an earlier frame is an address, and stays while newer ones arrive
    ann.page.get_by_label("Frame", exact=True).press("Home")
    ann.until_exact_frame(0)
    back = ann.picture()
    assert back is not None
    assert not ann.page.get_by_label("Newest").is_checked()
    ann.until_url(r"\?frame=1$")
    ann.until_state("completed")
    assert ann.picture() == back and ann.text(".frame-number") == "frame 1 of 30"
    ann.page.reload()
    ann.until_exact_frame(0)
    ann.page.get_by_role("button", name="Play").click()
    last = ann.until_frame(29)
    assert last.digest != back.digest
    ann.page.get_by_label("Newest").check()
    ann.until_url(rf"/{sid}$")
    assert ann.text(".facts").startswith("Progress\n30 of 30 frames")

    # values under the pointer, exports, files
    ann.page.locator("canvas[data-report=heatAnimation]").hover()
    ann.until(".picture figcaption", r"x \S+ cm +y \S+ cm +Temperature \S+ °C")
    plate = ann.page.locator(".report[data-report=heatAnimation]")
    curves = ann.page.locator(".report[data-report=temperatureAnimation]")
    if not IS_FIREFOX:  # its driver tells no downloads of files that the page has made
        name, content = ann.saved(plate.get_by_role("button", name="CSV"))
        assert name == "temperature-of-the-plate.csv" and content.count(b"\n") == 101
        name, content = ann.saved(plate.get_by_role("button", name="PNG"))
        assert name == "temperature-of-the-plate.png" and content.startswith(b"\x89PNG")
        name, content = ann.saved(curves.get_by_role("button", name="CSV"))
        assert content.startswith(b"Time (s),Mean (") and content.count(b"\n") == 31
    ann.page.get_by_role("tab", name="Files").click()
    name, content = ann.saved(ann.page.get_by_role("link", name="history.csv"))
    folder = site.root / "user" / ann.uid / "heat" / sid / "heatAnimation"
    assert (name, content) == ("history.csv", (folder / "history.csv").read_bytes())
    ann.page.screenshot(path=tmp_path / "completed.png", full_page=True)
    # the page of jobs knows the name, too
    ann.open("/jobs")
    ann.until_rows((HOSTILE, "completed"))


def test_values_are_stored_and_equal_values_are_not_computed_again(
    people: People, site: SupervisorProcess
) -> None:
    ann = people("ann")
    sid = ann.new(HEAT, frames=2, seed=7)
    # what was typed survives a reload, and what was saved also another browser
    ann.page.reload()
    until(lambda: ann.field("seed").input_value() == "7", "the typed value is there")
    ann.until(".values-head", "Not saved")
    ann.page.get_by_role("button", name="Save").click()
    ann.until(".values-head", "(?<!Not )[Ss]aved")
    other = people("ann")
    other.open(f"/apps/heat/{sid}")
    assert [other.field(f).input_value() for f in ("frames", "seed")] == ["2", "7"]

    def serial() -> int:
        return int(told(site, ann, sid, "heatAnimation")["computeJobSerial"])

    ann.start()
    ann.until_state("completed")
    first = serial()
    until(lambda: other.sees(".page-head .state"), "the other page hears of the run")
    ended = told(site, ann, sid, "heatAnimation")["computeJobEnd"]
    # a run that ended this second may be the one that is started
    until(lambda: time.time() > ended + 1.1, "the run is over for a second")
    ann.start()
    ann.until(".notice", "These values were computed before")
    assert serial() == first
    ann.page.get_by_role("button", name="Compute again").click()
    until(lambda: serial() > first, "it is computed again")
    ann.until_state("completed")

    # another tab is told of values that were saved here, and loses nothing that was typed
    tab = ann.tab()
    tab.open(f"/apps/heat/{sid}")
    tab.fill(seed=9)
    ann.fill(seed=8)
    ann.page.get_by_role("button", name="Save").click()
    tab.until(".values .elsewhere", "These values were changed elsewhere")
    tab.page.set_viewport_size({"width": 360, "height": 740})
    assert tab.sees(".values .elsewhere") and tab.violations() == []
    # what is typed now is no answer to the question
    tab.fill(seed=9)
    tab.page.reload()
    tab.until(".values .elsewhere", "What you typed is still here")
    assert tab.field("seed").input_value() == "9"
    tab.page.get_by_role("button", name="Keep mine").click()
    tab.page.get_by_role("button", name="Save").click()
    tab.until(".values-head", "(?<!Not )[Ss]aved")
    # nothing was typed here since, so the new values are taken
    until(lambda: ann.field("seed").input_value() == "9", "the first tab has the new values")
    # another machine hears of them from its stream
    until(lambda: other.field("seed").input_value() == "9", "the other machine has the new values")
    other.fill(seed=12)
    ann.fill(seed=8)
    ann.page.get_by_role("button", name="Save").click()
    other.until(".values .elsewhere", "These values were changed elsewhere")
    other.page.get_by_role("button", name="Take those values").click()
    # without a stream it is told when it saves
    other.expected.append("/live")
    refusal = {"code": "forbidden", "error": "no"}
    other.page.route(
        re.compile(r"/live(\?|$)"), lambda route: route.fulfill(status=403, json=refusal)
    )
    other.goto(f"/apps/heat/{sid}")
    other.until(".link-state", "^Every 5 s$")
    other.expected.append("/lib-file/")
    other.fill(seed=11)
    ann.fill(seed=10, frames=3)
    ann.page.get_by_role("button", name="Save").click()
    ann.until(".values-head", "(?<!Not )[Ss]aved")
    other.start()
    other.until(".values .elsewhere", "These values were changed elsewhere")
    other.page.get_by_role("button", name="Take those values").click()
    assert [other.field(f).input_value() for f in ("frames", "seed")] == ["3", "10"]
    other.until(".values-head", "(?<!Not )[Ss]aved")
    ann.fill(frames=2, seed=7)
    ann.page.get_by_role("button", name="Save").click()

    # other values than those of the results are named, and can be taken back
    ann.fill(seed=8)
    ann.page.get_by_role("button", name="Use those values").click()
    assert ann.field("seed").input_value() == "7"
    ann.page.get_by_role("button", name="Duplicate").click()
    ann.until("h1", r" \(copy\)$")
    assert ann.sid != sid and ann.field("seed").input_value() == "7"
    ann.until("main", "No results yet")
    ann.page.get_by_role("button", name="Delete …").click()
    ann.page.get_by_role("button", name="Delete", exact=True).click()
    ann.until_url("/apps$")
    until(lambda: ann.cards().get(sid) == "completed", "the other one is still there")
    until(lambda: ann.page.locator("canvas.thumbnail").count() >= 1, "it has a preview")
    assert ann.violations() == []


def test_the_third_run_waits_until_one_is_canceled(people: People, site: SupervisorProcess) -> None:
    ann, watcher = people("ann"), people("ann")
    sids = []
    for seed, word in ((1, "running"), (2, "running"), (3, "waiting")):
        sids.append(ann.new(HEAT, frames=2000, paceSecs=0.1, seed=seed))
        ann.start()
        ann.until_state(word)
    ann.until(".why-sentence", r"waiting for .* \(2 of 2 in use, 0 ahead\)\.$")
    assert ann.violations() == []
    watcher.open("/apps")
    states = dict(zip(sids, ("running", "running", "pending"), strict=True))
    until(lambda: states.items() <= watcher.cards().items(), "the cards have them, too")
    ann.open(f"/apps/heat/{sids[1]}")
    ann.cancel()
    ann.until_state("canceled")
    ann.until(".why-sentence", "Canceled")
    states = dict(zip(sids, ("running", "canceled", "running"), strict=True))
    until(lambda: states.items() <= watcher.cards().items(), "the third has its place")


def test_nobody_sees_the_simulations_of_another(people: People, site: SupervisorProcess) -> None:
    ann, bob = people("ann"), people("<b>bob</b>")
    sid = ann.new(HEAT, frames=3)
    ann.start()
    ann.until_state("completed")
    status = told(site, ann, sid, "heatAnimation")
    bob.expected.append("/lib-file/|/simulation-frame/|/run-log/|/run-files/")
    bob.open(f"/apps/heat/{sid}")
    bob.until("main", "There is no such simulation, or it is not yours")
    bob.page.get_by_role("link", name="All apps and simulations").click()
    bob.until("main", "There are no simulations yet")
    serial, hash_ = status["computeJobSerial"], status["computeJobHash"]
    theirs = [
        f"/simulation-frame/0*heatAnimation*{sid}*heat*{hash_}*{serial}",
        f"/run-log/heat/{sid}/heatAnimation",
        f"/run-files/heat/{sid}/heatAnimation",
        f"/lib-file/heat/simulation.{sid}.json",
    ]
    code = "async p => (await fetch(p)).status"
    assert [ann.page.evaluate(code, p) for p in theirs] == [200] * 4
    assert [bob.page.evaluate(code, p) for p in theirs] == [404] * 4
