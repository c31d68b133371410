"""The pages of apps in a real browser with a real `jobscribe up`: errors, plots, phones and kills."""

import itertools
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from supervisor_process import SupervisorProcess, until

pytest.importorskip("playwright.sync_api", reason="playwright's Python package is not installed")

from apps_site import HEAT, People, apps_site, apps_users, told
from apps_user import AppsUser
from chromium_user import IS_FIREFOX, needs_browser

pytestmark = needs_browser


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    with apps_site() as site:
        yield site


@pytest.fixture
def people(browser: Any, site: SupervisorProcess) -> Iterator[People]:
    with apps_users(browser, site) as people:
        yield people


def test_what_goes_wrong_is_said_in_sentences(people: People, site: SupervisorProcess) -> None:
    ann = people("ann")
    ann.expected.append("/run-simulation$")
    sid = ann.new("Odd", number="1.5")
    # an error that only the app detects appears at its field
    ann.start()
    ann.until("#field-number-wrong", "^Anything must be of type int.$")
    assert ann.page.evaluate("document.activeElement.id") == "field-number"
    # an error without a field appears above the form, with advice
    ann.fill(number=13)
    ann.start()
    ann.until(".values [role=alert]", "^13 is no number for us. Change the input that the message")
    ann.fill(number=14)
    assert not ann.sees(".values [role=alert]"), "a refusal of other values is over"
    ann.start()
    ann.until(".values [role=alert]", "KeyError.*fourteen")
    # the sentence of the app is first, then what to do, then the evidence
    ann.fill(number=1, answer="raise")
    ann.start()
    ann.until_state("failed")
    ann.until(".why-sentence", r"^Odd failed in result: ZeroDivisionError: in result\.$")
    ann.page.locator(".why summary").click()
    said = ann.until(".why", "(?s)What to do.*Evidence.*exit code 1.*not: ")
    assert "Traceback" not in said and str(site.root) not in said
    # the app reports false states and times while it runs; the page believes none
    ann.fill(answer="liar")
    ann.start()
    ann.until_state("completed")
    assert not ann.sees(".why") and "1970" not in ann.text(".facts")
    # progress of a sequential model, and its result. An answer from before the report, which arrives
    # after it, takes nothing back
    answers = re.compile("/run-status$")
    held: list[Any] = []
    ann.page.route(answers, lambda route: held.append(route))
    ann.fill(answer="fine", secs=600)
    ann.start()
    ann.until(".facts", "(?s)30 %(?!.*Ended)")
    until(lambda: held or ann.page.evaluate("0"), "the page asks for the status")
    answer = held[0].fetch().json()
    for late in ("percentComplete", "frameCount"):
        answer.pop(late, None)
    with ann.page.expect_response(answers):
        held[0].fulfill(json=answer)
    ann.page.unroute(answers)
    for route in held[1:]:
        route.continue_()
    ann.page.evaluate(
        "() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))"
    )
    assert "30 %" in ann.text(".facts")
    assert ann.page.locator(".run-progress").evaluate("e => e.value") == 30
    (site.root / "user" / ann.uid / "odd" / sid / "oddReport" / "go").touch()
    ann.until_state("completed")
    ann.until(".report", "One answer[\\s\\S]*Values as a table")
    # a library file is uploaded, and deleted
    ann.page.get_by_role("tab", name="Library").click()
    ann.page.locator("input[type=file]").set_input_files(
        [{"name": "atoms.txt", "mimeType": "text/plain", "buffer": b"He"}]
    )
    assert ann.saved(ann.page.get_by_role("link", name="atoms.txt")) == ("atoms.txt", b"He")
    assert ann.violations() == []
    ann.page.get_by_role("button", name="Delete atoms.txt").click()
    ann.page.get_by_role("button", name="Delete", exact=True).last.click()
    ann.until(".library", "The library has no files yet")


def test_a_page_without_a_stream_asks_also_when_it_was_opened_without_an_answer(
    people: People,
) -> None:
    ann = people("ann")
    ann.expected.append("/live|/apps$")
    refusal = {"code": "forbidden", "error": "no"}
    ann.page.route(
        re.compile(r"/live(\?|$)"), lambda route: route.fulfill(status=403, json=refusal)
    )
    apps = re.compile("/apps$")
    ann.page.route(
        apps, lambda r: r.continue_() if r.request.is_navigation_request() else r.abort()
    )
    ann.page.goto(ann.site.front + "/apps")
    ann.until("main [role=alert]", "The site does not answer")
    ann.page.unroute(apps)
    ann.until(".apps", HEAT)
    ann.new(HEAT, frames=30, paceSecs=0.2, seed=7)
    ann.start()
    ann.until(".link-state", "^Every 5 s$")
    first = ann.until_frame(0)
    assert ann.until_frame(first.frame + 3).digest != first.digest
    ann.until(".log", r"frame +\d+ of 30")


#: Records the texts of the last picture, with their places on the canvas. A picture is drawn at once;
#: a change of the window's size has it drawn again.
_TEXTS = """() => {
  window.texts = [];
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    if (this.canvas.dataset.report === "heatAnimation") texts = [];
    clear.apply(this, box);
  };
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const {actualBoundingBoxLeft: left, actualBoundingBoxRight: right} = this.measureText(text);
    const there = this.getTransform();
    const [a, b] = [x - left, x + right].map((at) => there.transformPoint({x: at, y}));
    const isTurned = Boolean(there.b);
    const ends = isTurned ? [a.y, b.y] : [a.x, b.x];
    if (this.canvas.dataset.report === "heatAnimation") texts.push([text, Math.min(...ends), Math.max(...ends),
      isTurned ? this.canvas.height : this.canvas.width, isTurned ? -1 : y]);
    draw.call(this, text, x, y);
  };
}"""


def _texts_and_row(ann: AppsUser) -> tuple[list[Any], list[Any]] | None:
    """Return the texts that were drawn, and those of the ticks of the lower axis; None before that."""
    texts = ann.page.evaluate("() => texts")
    lowest = max((y for *_, y in texts), default=0)
    row = [t for t in texts if t[-1] == lowest - 18]
    return (texts, row) if row else None


def test_pixels_are_where_the_axes_say_and_labels_are_complete(
    people: People, site: SupervisorProcess
) -> None:
    """Each value of a matrix has its colour at its place, and the first row is at the bottom. Each
    text lies within its canvas, and texts on an axis do not overlap.
    """
    ann = people("ann", viewport={"width": 900, "height": 800})
    sid = ann.new(HEAT, frames=8)
    ann.start()
    ann.until_state("completed")
    label = "a label that is much longer than any picture of it could be, " * 3
    matrix: dict[str, Any] = {
        "xRange": [0, 2, 2],
        "yRange": [10, 12, 2],
        "zMatrix": [[0, 1], [2, 3]],
    }
    ranges = ((0, 5e6), (1e9, 1e9 + 500), (-1e-5, 5e-5), (1e17, 1e17 + 32), (-3e7, 0), (0, 1e300))
    long = {"title": label, "xLabel": label, "yLabel": label, "zLabel": label}
    frames = [matrix, *({**matrix, **long, "xRange": r, "yRange": r, "zRange": r} for r in ranges)]

    def answer(route: Any) -> None:
        found = re.search(r"(\d+)\*(\w+)", route.request.url.replace("%2A", "*"))
        assert found is not None
        if found[2] == "heatAnimation":
            route.fulfill(json=frames[min(int(found[1]), len(frames) - 1)])
        else:
            route.continue_()

    ann.page.route(re.compile("/simulation-frame/"), answer)
    ann.page.add_init_script(f"({_TEXTS})()")
    ann.page.evaluate("() => localStorage.setItem('jobscribe.colours', 'grey')")
    ann.page.goto(f"{site.front}/apps/heat/{sid}?frame=1")
    ann.until_frame(0)
    canvas = ann.page.locator("canvas[data-report=heatAnimation]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    shades = {0: 16, 1: 92, 2: 168, 3: 244}
    seen = set()
    pixel = """([x, y]) => { const c = document.querySelector("canvas[data-report=heatAnimation]");
        return c.getContext("2d").getImageData(x, y, 1, 1).data[0]; }"""
    for right, up in itertools.product(range(2, 20, 2), range(2, 20, 2)):
        at = (box["width"] * right / 20, box["height"] * up / 20)
        ann.page.mouse.move(box["x"] + at[0], box["y"] + at[1])
        said = re.match(r"x (\S+) +y (\S+) +Value (\S+)", ann.text(".picture figcaption"))
        if said is None:
            continue
        x, y, value = map(float, said.groups())
        if abs(x - 1) > 0.05 and abs(y - 11) > 0.05 and min(x, 2 - x, y - 10, 12 - y) > 0.05:
            assert value == matrix["zMatrix"][int(y > 11)][int(x > 1)], (x, y, value)
            assert abs(ann.page.evaluate(pixel, at) - shades[int(value)]) <= 1
            seen.add(value)
    assert seen == {0, 1, 2, 3}

    for width in (360, 900):
        ann.page.set_viewport_size({"width": width, "height": 800})
        for index in range(1, len(frames)):
            ann.page.get_by_label("Next frame").click()
            ann.until_exact_frame(index)
            texts, row = until(lambda: _texts_and_row(ann), "the labels are drawn")
            for text, left, end, most, _ in texts:
                assert left >= -0.5 and end <= most + 0.5, (width, index, text)
            assert all(a[2] < b[1] for a, b in itertools.pairwise(row)), (width, row)
            assert len({t[0].partition("e")[2] for t in row if t[0] not in ("", "0")}) <= 1
        ann.page.get_by_label("Frame", exact=True).press("Home")
        ann.until_exact_frame(0)


def test_it_can_be_used_by_keyboard_on_a_phone_in_the_dark(people: People, tmp_path: Path) -> None:
    ann = people(
        "ann",
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
        device_scale_factor=2,
        has_touch=True,
    )
    page = ann.page
    # the run outlasts this test, because the available controls depend on its state
    ann.new(HEAT, frames=5000, size=300)
    ann.field("frames").press("Enter")
    ann.until_state("running")
    ann.until_frame(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    if not IS_FIREFOX:  # it has no command for that
        darkest = max(map(int, re.findall(r"\d+", background)[:3]))
        assert darkest < 60, "dark where dark is wished"
    assert ann.violations() == []
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    # a page opens at its beginning, although its tabs are below the first screen
    page.reload()
    ann.until(".log", r"frame +\d+ of 5000")
    top = page.locator("#tab-log").bounding_box()
    assert top is not None and top["y"] > 844 and page.evaluate("scrollY") == 0
    # the Tab key reaches every control in the order of reading
    reached: list[str] = []
    standing = """() => { const e = document.activeElement;
        return e.getAttribute("aria-label") || e.id || e.innerText.trim(); }"""
    page.locator("a.mark").focus()
    while (now := page.evaluate(standing)) != "Defaults":
        reached.append(now)
        page.keyboard.press("Tab")
        assert len(reached) < 80
    wanted = ["Jobs", "Apps", "Sign out", "Rename", "Cancel …", "Duplicate", "PNG", "Play", "Frame"]
    wanted += ["tab-log", "Output", "field-size", "field-seed", "Start"]
    assert [r for r in dict.fromkeys(reached) if r in wanted] == wanted
    # a cancel by keyboard
    page.get_by_role("button", name="Cancel …").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Cancel job").focus()
    page.keyboard.press("Enter")
    ann.until_state("canceled")


@pytest.mark.skipif(
    shutil.which("lmp") is None or not Path("/usr/share/lammps/examples/crack/in.crack").exists(),
    reason="LAMMPS is not here; etc/engines/lammps.sh installs it",
)
def test_the_crack_is_watched_as_it_grows(
    people: People, site: SupervisorProcess, tmp_path: Path
) -> None:
    ann = people("ann", viewport={"width": 1280, "height": 800})
    sid = ann.new("Molecular dynamics with LAMMPS", steps=1500, dumpEvery=100)
    ann.start()
    canvases = ann.page.locator("canvas[data-report]")
    canvases.nth(1).wait_for()
    kinds, energies = canvases.evaluate_all("cs => cs.map((c) => c.dataset.report)")[:2]
    first = ann.until_frame(0, kinds)
    assert "points" in first.label
    grown = ann.until_frame(first.frame + 3, kinds)
    assert grown.digest != first.digest
    ann.until_state("completed", 80)
    ann.until_frame(15, energies)
    energy = ann.picture(energies)
    assert energy and energy.colours > grown.colours, "quantities have more colours than kinds"
    ann.until(".reports", "Energy per atom[\\s\\S]*potential energy")
    ann.page.screenshot(path=tmp_path / "crack.png", full_page=True)
    ann.page.get_by_role("tab", name="Files").click()
    name, content = ann.saved(ann.page.get_by_role("link", name="log.lammps"))
    folders = list((site.root / "user" / ann.uid / "lammps" / sid).iterdir())
    assert content.startswith(b"LAMMPS") and content == (folders[0] / name).read_bytes()


def test_it_survives_a_killed_supervisor_and_tells_the_truth_then(
    people: People, site: SupervisorProcess
) -> None:
    before_kill = site.front
    ann = people("ann")
    short = ann.new(HEAT, frames=30, paceSecs=0.1)
    ann.start()
    ann.until_state("running")
    long = ann.new(HEAT, frames=2000, paceSecs=0.1, seed=2)
    ann.start()
    before = ann.until_frame(3)
    ann.until(".log", r"frame +\d+ of 2000")
    # the browser logs an unreachable server in the console
    ann.expected.append(".")

    site.stop(signal.SIGKILL)
    ann.until(".strip", "Connection lost, resuming")
    ann.until_state("running")
    ann.cancel()
    ann.until(".notice", "Not canceled: 1 job. The site does not answer")
    history = site.root / "user" / ann.uid / "heat" / short / "heatAnimation/history.csv"
    until(lambda: history.read_text().count("\n") == 31, "the short one ends while nobody watches")
    until(lambda: not site.titled("server"), "its front end has left the port")
    site.process = site.fork_or_launch()
    assert site.process.stdout is not None and site.process.stdout.readline()
    site.read_address()
    assert site.front == before_kill, "a free port is the one before, where it can be"
    ann.until(".link-state", "^Live$")
    ann.until_state("running")
    assert not ann.sees(".strip")
    assert ann.until_frame(before.frame + 30).digest != before.digest
    opened = [r.headers for r in ann.live]
    tickets = [h["x-jobscribe-ticket"] for h in opened]
    assert len(set(tickets)) == len(tickets) >= 3, "each time a ticket of its own"
    lines = [int(n) for n in re.findall(r"^frame +(\d+) of .*degC$", ann.text(".log"), re.M)]
    assert lines == list(range(lines[0], lines[0] + len(lines))), "no line twice, none left out"
    ann.page.get_by_role("button", name="Try again").click()
    ann.until_state("canceled")
    assert told(site, ann, long, "heatAnimation")["state"] == "canceled"
    ann.open("/apps")
    until(lambda: ann.cards().get(short) == "completed", "both as they are")
    check_books(site)
