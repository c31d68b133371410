"""The page in a real browser with a real `jobscribe up`: the work of a scientist, and the display
of errors.
"""

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import supervisor_process
from consistency_check import check_books
from supervisor_process import SupervisorProcess, jid_of, shell, until

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright's Python package is not installed"
)

from chromium_user import CHROMIUM, FLAGS, ChromiumUser

HERE = Path(__file__).resolve().parent
LAMMPS = HERE.parents[1] / "etc/examples/lammps"
SETS = ("apps.also=odd=odd_app:app", "slots.local_sequential=4", "slots.local_parallel=2")

pytestmark = pytest.mark.skipif(
    not os.access(CHROMIUM, os.X_OK),
    reason="chromium is not here; etc/engines/chromium.sh installs it",
)

People = Callable[..., ChromiumUser]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site() -> Iterator[SupervisorProcess]:
    """Share one site among all tests that do not stop it."""
    site = SupervisorProcess(SETS, web=True)
    try:
        yield site.start()
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


@pytest.fixture
def people(browser: Any, site: SupervisorProcess) -> Iterator[People]:
    """`people(name)`: a user who has opened the page. At the end no browser may have found a
    problem on the page.
    """
    there: list[ChromiumUser] = []

    def chromium(name: str, at: SupervisorProcess = site, **context: Any) -> ChromiumUser:
        there.append(ChromiumUser(browser, at.front + "/", name, **context))
        return there[-1]

    yield chromium
    troubles = [t for p in there for t in p.troubles]
    for p in there:
        p.close()
    end_all(site)
    assert troubles == []


def end_all(site: SupervisorProcess) -> None:
    """End all runs, so that the next test finds all slots free."""
    for row in site.post("job-list", active=True)["jobs"]:
        site.post(
            "run-cancel",
            reqId=supervisor_process.req_id(),
            uid=row["jid"].split("-")[0],
            computeJid=row["jid"],
        )
    until(lambda: not site.post("job-list", active=True)["jobs"], "nothing runs any more")


def run_dir(site: SupervisorProcess, jid: str, app: str = "heat") -> Path:
    uid, sid, model = jid.split("-")
    return site.root / "user" / uid / app / sid / model


def told(site: SupervisorProcess, jid: str) -> dict[str, Any]:
    """Return the status of the run from the supervisor."""
    reply: dict[str, Any] = site.post("run-status", uid=jid.split("-")[0], computeJid=jid)
    return reply


def frames_in(log: str) -> list[int]:
    """Return the numbers of the frames in the complete lines of heat's log."""
    return [int(n) for n in re.findall(r"^frame +(\d+) of .*degC$", log, re.MULTILINE)]


def test_heat_is_started_watched_and_downloaded(
    people: People, site: SupervisorProcess, tmp_path: Path
) -> None:
    ann = people("ann").sign_in()
    jid = ann.start("heat", frames=80, paceSecs=0.1)
    ann.until("#chip", "^running$")
    assert ann.text("#sentence") == "It is being computed."

    # progress and picture change together
    first = ann.until_frame(0)
    early = ann.percent()
    later = ann.until_frame(first.frame + 5)
    assert ann.percent() > early >= 0
    assert first.digest != later.digest and min(first.colours, later.colours) > 50
    assert re.match(r"t = .* s\. Colour map with values from", later.label)
    assert re.fullmatch(r"\d+\.\d s", ann.text("#elapsed"))
    ann.until("#log", r"frame +\d+ of 80")
    ann.page.screenshot(path=tmp_path / "running.png", full_page=True)

    # the slider returns to an earlier frame while newer frames arrive
    ann.page.locator("#slider").press("Home")
    back = until(lambda: (p := ann.picture()).frame == 0 and p, "the first frame is drawn again")
    assert not ann.page.locator("#follow").is_checked()
    assert ann.text("#frame-number").startswith("frame 1 of ")
    ann.until("#chip", "^completed$")
    assert ann.picture() == back
    ann.page.locator("#slider").press("End")
    last = ann.until_frame(79)
    assert last.digest != back.digest and ann.page.locator("#follow").is_checked()
    assert ann.text("#percent") == "100 %" and not ann.sees("#cancel")
    assert told(site, jid)["state"] == "completed"

    # the newest 4096 bytes of the log, and the whole log
    written = until(
        lambda: "frame    80 of 80" in ann.text("#log") and ann.page.locator("#log").text_content(),
        "the end of the log",
    )
    whole = (run_dir(site, jid) / ".jobscribe/latest/stdout.log").read_text()
    assert len(whole) > 4096 and written == whole[-4096:]
    ann.page.locator("#whole").click()
    until(lambda: ann.page.locator("#log").text_content() == whole, "the whole log")
    assert frames_in(whole) == list(range(1, 81))

    name, data = ann.download("history.csv")
    assert (name, data) == ("history.csv", (run_dir(site, jid) / "history.csv").read_bytes())

    # the other report of the same run, and the value under the pointer
    ann.page.locator("#reports button", has_text="Mean and highest").click()
    curves = until(
        lambda: (p := ann.picture()).label.startswith("Mean and highest temperature. Curves") and p,
        "the curves are drawn",
    )
    assert curves.digest != last.digest
    ann.page.locator("#canvas").hover()
    ann.until("#readout", r"Time \[s\] \S+ +Mean \[degC\] \S+ +Highest")

    # a reload shows the same state
    ann.page.reload()
    ann.until("#chip", "^completed$")
    assert ann.jid() == jid and ann.until_frame(79).digest == last.digest
    ann.page.screenshot(path=tmp_path / "completed.png", full_page=True)


def test_one_of_several_runs_is_canceled_and_a_third_says_why_it_waits(
    people: People, site: SupervisorProcess
) -> None:
    ann = people("ann").sign_in()
    one = ann.start("heat", frames=2000, paceSecs=0.1, seed=2)
    ann.until_state("running")
    two = ann.start("heat", frames=2000, paceSecs=0.1, seed=3)
    ann.until_state("running")
    three = ann.start("heat", frames=2000, paceSecs=0.1, seed=4)
    ann.until("#sentence", r"^Waiting for .* \(2 of 2 in use, 0 ahead\)\.$")
    shown = {one: "running", two: "running", three: "waiting"}
    until(lambda: shown.items() <= ann.runs().items(), "the list has them, too")

    ann.show(two)
    ann.page.locator("#cancel").click()
    ann.until("#chip", "^canceled$")
    ann.until("#sentence", "^It was canceled.$")
    until(lambda: ann.runs()[three] == "running", "the third has its place")
    assert ann.runs()[one] == "running"
    assert [told(site, j)["state"] for j in (one, two, three)] == ["running", "canceled", "running"]

    # the values of an earlier run can be restored
    ann.page.locator("#defaults").click()
    ann.page.locator("#reuse").click()
    assert ann.page.locator("#field-seed").input_value() == "3"
    for jid in (one, three):
        ann.show(jid)
        ann.page.locator("#cancel").click()
        ann.until("#chip", "^canceled$")


def test_nobody_sees_the_runs_of_another(people: People, site: SupervisorProcess) -> None:
    ann, bob = people("ann").sign_in(), people("<b>bob</b>")
    jid = ann.start("heat", frames=3)
    ann.until_state("completed")
    hash_, serial = told(site, jid)["computeJobHash"], told(site, jid)["computeJobSerial"]
    bob.sign_in()
    assert bob.text("#user") == "<b>bob</b>", "a name is text, whatever it looks like"
    assert bob.runs() == {} and bob.sees("#no-runs") and bob.sees("#empty")
    sid = jid.split("-")[1]
    bob.expected.append("/simulation-frame/|/run-log/|/run-files/")
    theirs = [
        f"simulation-frame/0*heatAnimation*{sid}*heat*{hash_}*{serial}",
        f"run-log/heat/{sid}/heatAnimation",
        f"run-files/heat/{sid}/heatAnimation",
    ]
    status = "async p => (await fetch(p)).status"
    assert [ann.page.evaluate(status, p) for p in theirs] == [200, 200, 200]
    assert [bob.page.evaluate(status, p) for p in theirs] == [404, 404, 404]


def test_what_goes_wrong_is_said_in_sentences(people: People, site: SupervisorProcess) -> None:
    ann = people("ann").sign_in()
    ann.expected.append("/run-simulation$")

    # a value out of its bounds is not sent
    ann.fill("heat", size=5)
    ann.page.locator("#start").click()
    assert ann.text("#field-size-wrong") == "This must be a number between 10 and 1000."
    assert ann.page.evaluate("document.activeElement.id") == "field-size"
    # an error that only the app detects appears at its field
    ann.fill("odd", number="1.5")
    ann.page.locator("#start").click()
    ann.until("#field-number-wrong", "^Anything must be of type int.$")
    # an error without a field appears above the form, with advice
    ann.fill("odd", number="13")
    ann.page.locator("#start").click()
    assert (
        ann.until("#notices", "13")
        == "13 is no number for us.\n\nChange the input that the message names, then try again.\n\nClose"
    )
    ann.fill("odd", number="14")
    assert ann.text("#notices") == "", "a refusal of other values is over"
    ann.page.locator("#start").click()
    ann.until("#notices", "KeyError.*fourteen")
    assert ann.page.locator("#notices [role=alert]").count() == 1
    ann.page.get_by_role("button", name="Close").click()

    ann.start("odd", number="1", answer="raise")
    ann.until("#chip", "^failed$")
    ann.until("#sentence", r"^Odd failed in result: ZeroDivisionError")
    # the page also shows the explanation of `job why`, in words for users without a command line
    assert not ann.sees("#why-lists")
    ann.page.locator("#why summary").click()
    ann.until(
        "#why-lists", "(?s)What shows it.*exit code 1.*What it is not.*a time limit.*What to try"
    )
    assert "jobscribe " not in ann.text("#why") and str(site.root) not in ann.text("#why")
    assert "Traceback" not in ann.text("#run-title") + ann.text("#sentence") + ann.text("#notices")
    # the app reports false states and times while it runs; the page believes none
    ann.start("odd", number="1", answer="liar")
    ann.until("#chip", "^completed$")
    assert ann.text("#sentence") == "It was computed." and not ann.sees("#why")
    ann.start("odd", number="1", answer="fine")
    until(
        lambda: (
            ann.sees("#canvas")
            and ann.picture().label.startswith("fine. Curves over x: a ends at 2")
        ),
        "the result is drawn",
    )


def test_an_answer_that_is_older_than_the_news_takes_nothing_back(
    people: People, site: SupervisorProcess
) -> None:
    ann = people("ann").sign_in()
    jid = ann.start("heat", frames=2000, paceSecs=0.1)
    ann.until_state("running")
    asked: list[str] = []

    def older(route: Any) -> None:
        response = route.fetch()
        said = response.json()
        assert said["state"] == "running" and said["computeJobPosition"] > 0
        route.fulfill(
            response=response,
            json={**said, "state": "pending", "computeJobPosition": said["computeJobPosition"] - 1},
        )
        asked.append(jid)

    ann.page.route(re.compile(r"/run-status$"), older)
    try:
        # The second request follows the first answer. An answer to an earlier request does not
        # count.
        for _ in range(20):
            with ann.page.expect_response(re.compile(r"/run-status$")):
                ann.show(jid)
            if len(asked) >= 2:
                break
        assert len(asked) >= 2
        assert ann.state() == "running"
    finally:
        ann.page.unroute_all(behavior="wait")
    ann.page.locator("#cancel").click()
    ann.until("#chip", "^canceled$")


def test_where_the_stream_is_refused_the_page_asks(people: People) -> None:
    ann = people("ann")
    ann.expected.append("/live")
    ann.page.route(
        re.compile(r"/live(\?|$)"),
        lambda route: route.fulfill(status=403, json={"code": "forbidden", "error": "no"}),
    )
    ann.page.locator("#name").fill("ann")
    ann.page.locator("#name").press("Enter")
    ann.until("#link", "^asking")
    ann.start("heat", frames=30, paceSecs=0.2, seed=7)
    first = ann.until_frame(0)
    assert ann.until_frame(first.frame + 3).digest != first.digest
    ann.until("#log", r"frame +\d+ of 30")
    ann.until("#chip", "^completed$")


def test_all_runs_are_listed_whoever_submitted_them(
    people: People, site: SupervisorProcess
) -> None:
    ann = people("lister").sign_in()
    first = ann.start("heat", frames=1)
    ann.until_state("completed")
    uid = first.split("-")[0]
    fails = shell("printf 'half\\rWHOLE\\n\\033[31mred\\033[0m\\n'; exit 3", uid)
    runs = [shell("true", uid) for _ in range(60)]
    site.post("run-many", reqId=supervisor_process.req_id(), runs=runs)
    site.submit(fails)
    until(lambda: jid_of(fails) in ann.runs(), "commands appear while the page is open")
    site.finished(fails)
    until(lambda: not site.post("job-list", uid=uid, active=True)["jobs"], "all are over")

    ann.page.reload()
    ann.until("#link", "^live$")
    until(lambda: len(ann.runs()) == 30 and ann.sees("#more"), "the newest thirty")
    ann.page.locator("#more").click()
    until(lambda: len(ann.runs()) == 60, "thirty more")
    ann.page.locator("#more").click()
    until(
        lambda: (
            ann.runs().keys() == {first, jid_of(fails), *map(jid_of, runs)}
            and not ann.sees("#more")
        ),
        "all of them",
    )
    ann.page.locator("#kind").select_option("command")
    until(lambda: len(ann.runs()) == 30 and first not in ann.runs(), "commands")
    ann.page.reload()
    until(
        lambda: len(ann.runs()) == 30 and first not in ann.runs(),
        "the newest ones, which are commands",
    )
    ann.page.locator("#kind").select_option("app")
    until(lambda: ann.runs() == {first: "completed"}, "a run of an app, although older")

    # status, log and diagnosis of a command, and its end
    ann.page.locator("#kind").select_option("")
    ann.show(jid_of(fails))
    ann.until("#sentence", "exit code 3")
    ann.until("#log", r"\AWHOLE\nred\n?\Z")
    assert (
        ann.page.locator("#log .t-1").inner_text() == "red" and ann.text("#run-title") == "Command"
    )
    ann.page.locator("#why summary").click()
    ann.until("#why-lists", "exit code 3")
    assert not ann.sees("#files-card") and not ann.sees("#reuse")
    sleeps = shell("sleep 100", uid)
    site.submit(sleeps)
    until(lambda: ann.runs().get(jid_of(sleeps)) == "running", "it runs")
    ann.show(jid_of(sleeps))
    ann.page.locator("#cancel").click()
    ann.until("#chip", "^canceled$")
    assert told(site, jid_of(sleeps))["state"] == "canceled"


def test_a_sequential_run_shows_its_progress(people: People) -> None:
    ann = people("ann").sign_in()
    jid = ann.start("odd", number=1, secs=4)
    ann.until("#percent", "^30 %$")
    assert ann.page.locator("#progress").evaluate("e => e.value") == 30
    ann.until(f"#runs > li[data-run='{jid}']", "30 %$")
    ann.until("#chip", "^completed$")
    assert ann.text("#percent") == "100 %"


def test_a_page_that_was_opened_while_nobody_answered_begins_by_itself(people: People) -> None:
    ann = people("ann")
    ann.expected.append("/own-jobs$")
    ann.page.route(re.compile("/own-jobs$"), lambda route: route.abort())
    ann.page.locator("#name").fill("ann")
    ann.page.locator("#name").press("Enter")
    ann.until("#notices", "^The site does not answer.")
    ann.page.unroute_all(behavior="wait")
    ann.until("#link", "^live$")
    assert ann.text("#notices") == ""


def test_events_are_read_right_however_they_are_cut(people: People) -> None:
    read = """async ([text, at]) => {
        const {eventParser} = await import("./static/live.js");
        const found = [];
        const parse = eventParser((e) => found.push([e.name, e.data, e.id ?? null]));
        for (const piece of at === null ? [...text] : [text.slice(0, at), text.slice(at)]) parse(piece);
        return found;
    }"""
    text = 'id: 7-a\n\n: nothing new\n\nevent: status\r\ndata: {"a":\r\ndata:1}\r\n\r\nid: 8\nevent: log\ndata:  two: three\n\ndata: half'
    wanted = [["message", "", "7-a"], ["status", '{"a":\n1}', None], ["log", " two: three", "8"]]
    ann = people("ann")
    assert [ann.page.evaluate(read, [text, at]) for at in (*range(len(text) + 1), None)] == [
        wanted
    ] * (len(text) + 2)


def test_of_the_log_nothing_is_shown_twice_and_never_more_than_the_newest(people: People) -> None:
    shown = """async (pieces) => {
        const {logView} = await import("./static/log.js");
        const log = logView({onWish: () => {}, onError: () => {}});
        log.show({key: "j", simulationType: "heat", simulationId: "s", model: "m", serial: 5});
        for (const [serial, offset, text, dropped] of pieces) {
            const nextOffset = offset + new TextEncoder().encode(text).length;
            log.piece({computeJid: "j", computeJobSerial: serial, stream: "stdout", offset, nextOffset, dropped: dropped ?? 0, text, end: false});
        }
        return document.getElementById("log").textContent;
    }"""
    ann = people("ann")
    for pieces, wanted in (
        ([[5, 0, "one "], [5, 4, "two"]], "one two"),
        ([[5, 0, "one two"], [5, 4, "two three"]], "one two three"),
        ([[5, 0, "one two"], [5, 4, "two"], [5, 0, "one"]], "one two"),
        ([[5, 0, "old "], [6, 0, "new"], [5, 4, "late"]], "new"),
        ([[5, 0, "one"], [5, 10, "two", 7]], "one\n[7 bytes are not kept]\ntwo"),
        ([[5, 0, "é" * 2000], [5, 4000, "x" * 97]], "é" * 1999 + "x" * 97),
    ):
        assert ann.page.evaluate(shown, pieces) == wanted, pieces


def test_a_log_is_shown_as_a_terminal_shows_it_however_it_is_cut(people: People) -> None:
    shown = """async ([text, size]) => {
        const {logView} = await import("./static/log.js");
        const log = logView({onWish: () => {}, onError: () => {}});
        for (const id of ["welcome", "bench", "shown"]) document.getElementById(id).hidden = id === "welcome";
        log.show({key: "j", simulationType: "heat", simulationId: "s", model: "m", serial: 5});
        for (let offset = 0; offset < text.length; offset += size) {
            const [piece, nextOffset] = [text.slice(offset, offset + size), Math.min(text.length, offset + size)];
            log.piece({computeJid: "j", computeJobSerial: 5, stream: "stdout", offset, nextOffset, dropped: 0, text: piece, end: false});
        }
        const place = document.getElementById("log");
        const spans = [...place.children].map((e) => [e.tagName, e.className, e.textContent]);
        return [place.textContent, spans, place.scrollWidth <= place.clientWidth];
    }"""
    ann = people("ann")
    red = [["SPAN", "t-1", "red"]]
    for text, wanted, spans in (
        ("  5%\r 50%\r100%\ndone\r\n", "100%\ndone\n", []),
        ("long\rX\nab\b!\n12345\r\x1b[Kend", "Xong\na!\nend", []),
        ("a \x1b[31mred\x1b[0m b\x1b[38;5;200m \x1b[2Jc\x1b]0;title\x07d\x1b(B", "a red b cd", red),
        (
            "<img src=x onerror=alert(1)>\x1b[1;32m<b>bold</b>",
            "<img src=x onerror=alert(1)><b>bold</b>",
            [["SPAN", "t-bold t-2", "<b>bold</b>"]],
        ),
        ("x" * 3800 + "".join(f"\r{n:4d} of 9" for n in range(20)), "  19 of 9" + "x" * 3791, []),
        # the newest 4096 bytes begin inside a control sequence
        *((f"\x1b[31mred\x1b[0m{'x' * (4096 - cut)}", "x" * (4096 - cut), []) for cut in range(5)),
    ):
        for size in (1, 2, 3, 5, len(text)) if len(text) < 200 else (1000, len(text)):
            assert ann.page.evaluate(shown, [text, size]) == [wanted, spans, True], (
                text[:200],
                size,
            )
    plain = "async (text) => (await import('./static/terminal.js')).plain(text)"
    assert ann.page.evaluate(plain, "x" * 18_000 + "\nnext").endswith(
        "x [8000 more characters in this line]\nnext"
    )
    assert (
        ann.page.evaluate(
            "async (text) => (await import('./static/words.js')).sentenceOf(text)",
            "\x1b[31mbad\x1b[0m",
        )
        == "Bad."
    )


def test_what_is_heard_late_undoes_nothing(people: People) -> None:
    heard = """async (statuses) => {
        const {runsStore} = await import("./static/runs.js");
        const row = {computeJid: "j", simulationType: "heat", simulationId: "s", computeModel: "m", state: "running", computeJobSerial: 5};
        window.fetch = async () => new Response(JSON.stringify({jobs: [row]}));
        const store = runsStore({onChange: () => {}, onError: (e) => { throw e; }});
        await store.load(new Map([["heat", {models: []}]]));
        for (const s of statuses) s.parallelStatus && !s.state ? store.progressed(s) : store.hear({computeJid: "j", ...s});
        const {state, percentComplete, error} = store.get("j").status;
        return [store.get("j").serial, state, percentComplete ?? null, error ?? null];
    }"""
    ann = people("ann")
    running = {
        "state": "running",
        "computeJobSerial": 5,
        "parallelStatus": {"percentComplete": 10, "state": "error", "error": "a lie"},
    }
    more = {
        "computeJid": "j",
        "computeJobSerial": 5,
        "parallelStatus": {"percentComplete": 20, "error": "a lie"},
    }
    over = {"state": "completed", "computeJobSerial": 5, "parallelStatus": {"percentComplete": 100}}
    for statuses, wanted in (
        ([running], [5, "running", 10, None]),
        ([running, more], [5, "running", 20, None]),
        ([running, {"state": "running", "computeJobSerial": 5}], [5, "running", 10, None]),
        ([running, over, running, more], [5, "completed", 100, None]),
        (
            [
                over,
                {**running, "computeJobSerial": 4},
                {**over, "state": "canceled", "computeJobSerial": 4},
            ],
            [5, "completed", 100, None],
        ),
        (
            [over, {"state": "pending", "computeJobSerial": 6}, over, more],
            [6, "pending", None, None],
        ),
    ):
        assert ann.page.evaluate(heard, statuses) == wanted, statuses


def test_pixels_are_where_the_axes_say(people: People) -> None:
    """Every value of a small matrix and every value of a few points has its colour at its place.
    The first row is at the bottom.
    """
    drawn = """async (data) => {
        const {draw} = await import("./static/pictures.js");
        const canvas = document.createElement("canvas");
        canvas.style.width = "600px";
        document.body.append(canvas);
        const under = draw(canvas, data, {map: "grey", range: [0, 3]});
        const context = canvas.getContext("2d"), found = [];
        for (let y = 0; y < canvas.height; y += 6) for (let x = 0; x < canvas.width; x += 6) {
            const said = under(x + 0.5, y + 0.5).match(/^x (\\S+) +y (\\S+) +value (\\S+)/);
            if (said) found.push([...said.slice(1).map(Number), context.getImageData(x, y, 1, 1).data[0]]);
        }
        canvas.remove();
        return found;
    }"""
    ann = people("ann")
    matrix = {"xRange": [0, 2, 2], "yRange": [10, 12, 2], "zMatrix": [[0, 1], [2, 3]]}
    found = ann.page.evaluate(drawn, matrix)
    shades = {0: 16, 1: 92, 2: 168, 3: 244}
    for x, y, value, shade in found:
        if abs(x - 1) > 0.05 and abs(y - 11) > 0.05 and min(x, 2 - x, y - 10, 12 - y) > 0.05:
            assert (
                value == matrix["zMatrix"][int(y > 11)][int(x > 1)]
                and abs(shade - shades[value]) <= 1
            ), (x, y, value, shade)  # type: ignore[index]
    assert {v for _, _, v, _ in found} == {0, 1, 2, 3}

    points = {
        "xRange": [0, 10],
        "yRange": [0, 10],
        "x": [1, 9, 9],
        "y": [1, 1, 9],
        "value": [0.0, 1.5, 3.0],
    }
    found = ann.page.evaluate(drawn, points)
    near = {
        (x, y): {s for *_, v, s in found if v == value}
        for x, y, value in ((1, 1, 0.0), (9, 1, 1.5), (9, 9, 3.0))
    }
    assert 16 in near[1, 1] and {129, 130, 131} & near[9, 1] and 244 in near[9, 9]


def test_no_label_of_a_picture_is_cut_off(people: People) -> None:
    """Every text lies within its canvas, no texts on an axis overlap, and all numbers of an axis
    have one format.
    """
    drawn = """async ([width, data]) => {
        const {draw} = await import("./static/pictures.js");
        const [canvas, texts] = [document.createElement("canvas"), []];
        canvas.style.width = `${width}px`;
        document.body.append(canvas);
        const context = canvas.getContext("2d");
        context.fillText = (text, x, y) => {
            const {actualBoundingBoxLeft: left, actualBoundingBoxRight: right} = context.measureText(text);
            const there = context.getTransform();
            const [a, b] = [x - left, x + right].map((at) => there.transformPoint({x: at, y}));
            const [ends, most] = there.b ? [[a.y, b.y], canvas.height] : [[a.x, b.x], canvas.width];
            const ratio = devicePixelRatio;
            texts.push([text, Math.min(...ends) / ratio, Math.max(...ends) / ratio, most / ratio, there.b ? -1 : y]);
        };
        draw(canvas, data, {map: "grey", range: data.zMatrix ? [0, 1.5e7] : null});
        canvas.remove();
        return texts;
    }"""
    ann = people("ann")
    long = "a label that is much longer than any picture of it could be, " * 3
    pairs = (
        (0, 100_000),
        (0, 5e6),
        (0, 1e7),
        (1e9, 1e9 + 500),
        (-1e-5, 5e-5),
        (1e17, 1e17 + 32),
        (0.1, 0.12),
        (-3e7, 0),
        (0, 1e300),
    )
    for width in (260, 390, 900):
        for low, high in pairs:
            for label in ("x", long):
                curve = {
                    "title": label,
                    "xLabel": label,
                    "yLabel": label,
                    "x": [low, high],
                    "plots": [{"label": label, "points": [low, high]}],
                }
                matrix = {
                    "title": label,
                    "xLabel": label,
                    "yLabel": label,
                    "xRange": [low, high],
                    "yRange": [low, high],
                    "zMatrix": [[0, 1], [2, 3]],
                }
                for data in (curve, matrix):
                    texts = ann.page.evaluate(drawn, [width, data])
                    assert all(
                        left >= -0.5 and right <= most + 0.5 for _, left, right, most, _ in texts
                    ), (width, low, high, texts)
                    lowest = max(y for *_, y in texts if y > 0)
                    row = [t for t in texts if t[-1] == lowest - 18]
                    assert row and all(a[2] < b[1] for a, b in itertools.pairwise(row)), (
                        width,
                        low,
                        high,
                        row,
                    )
                    assert (
                        len({t[0].partition("e")[2] for t in row if t[0] not in ("", "0")}) <= 1
                    ), row
    wide = ann.page.evaluate(
        drawn, [600, {"x": [0, 1e7], "plots": [{"label": "a", "points": [0, 5e6]}]}]
    )
    assert [t[0] for t in wide][:6] == ["0", "2e6", "4e6", "6e6", "8e6", "10e6"]


def test_it_can_be_used_by_keyboard_on_a_phone_in_the_dark(people: People, tmp_path: Path) -> None:
    ann = people(
        "ann",
        viewport={"width": 390, "height": 844},
        color_scheme="dark",
        device_scale_factor=2,
        has_touch=True,
    ).sign_in()
    page = ann.page
    page.locator("#app").select_option("heat")
    # the run outlasts this test, because the available controls depend on its state
    page.locator("#field-frames").fill("5000")
    page.locator("#field-size").fill("300")
    page.locator("#field-frames").press("Enter")
    ann.until_state("running")
    ann.until_frame(1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "nothing is cut off on the right"
    )
    assert page.evaluate(
        "document.getElementById('run').getBoundingClientRect().top < innerHeight"
    ), "the run came into sight"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60, "dark where dark is wished"
    page.screenshot(path=tmp_path / "phone.png", full_page=True)

    # the Tab key reaches every control in visual order
    standing = "document.activeElement.id || document.activeElement.closest('li, summary, [role=alert]')?.parentElement.id"
    reached: list[str] = []
    page.locator("#sign-out").focus()
    while (now := page.evaluate(standing)) and now != "log":
        reached.append(now)
        page.keyboard.press("Tab")
        assert len(reached) < 80
    places = [
        "sign-out",
        "app",
        "field-size",
        "start",
        "runs",
        "reuse",
        "cancel",
        "why",
        "canvas",
        "play",
        "slider",
        "follow",
        "files",
    ]
    assert [i for i in dict.fromkeys(reached) if i in places] == places
    # tabs are one stop, and the arrow keys move between them
    page.locator("#tab-heatAnimation").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-temperatureAnimation"
    until(lambda: "Curves" in ann.picture().label, "the other report is drawn")
    assert page.locator("#sentence").get_attribute("aria-live") == "polite"
    ann.until("#chip", "^running$")
    # after a cancel by keyboard the focus stays at the button's place
    page.locator("#cancel").focus()
    page.keyboard.press("Enter")
    ann.until_state("canceled")
    page.keyboard.press("Tab")
    assert page.evaluate(standing) == "why"


def test_it_survives_a_killed_supervisor_and_tells_the_truth_then(
    people: People, make_site: Callable[..., SupervisorProcess]
) -> None:
    site = make_site(web=True).start()
    before_kill = site.front
    ann = people("ann", site).sign_in()
    short = ann.start("heat", frames=30, paceSecs=0.1)
    ann.until_state("running")
    long = ann.start("heat", frames=2000, paceSecs=0.1, seed=2)
    before = ann.until_frame(3)
    ann.until("#log", r"frame +\d+ of 2000")
    # the browser logs an unreachable server in the console
    ann.expected.append(".")

    site.stop(signal.SIGKILL)
    ann.until("#link", "^no connection")
    assert ann.sees("#shown") and ann.state() == "running", "what was known stays"
    ann.page.locator("#cancel").click()
    ann.until("#notices", "^The cancel was not confirmed: the site does not answer.")
    ann.until("#notices", f"No connection to {before_kill}")
    until(
        lambda: _lines(run_dir(site, short) / "history.csv") == 31,
        "the short one ends while nobody watches",
    )
    until(lambda: not site.titled("server"), "its front end has left the port")
    site.process = site.launch()
    assert site.process.stdout is not None and site.process.stdout.readline().startswith(
        b"jobscribe ready at "
    )
    site.read_address()
    assert site.front == before_kill, "a free port is the one before, where it can be"

    ann.until("#link", "^live$")
    ann.until("#chip", "^running$")
    until(lambda: ann.text("#notices") == "", "no banner stays when its reason is over")
    until(lambda: ann.runs() == {short: "completed", long: "running"}, "both as they are")
    assert ann.until_frame(before.frame + 30).digest != before.digest
    opened = [r.headers for r in ann.live]
    tickets = [h["x-jobscribe-ticket"] for h in opened]
    assert len(set(tickets)) == len(tickets) >= 3, "each time a ticket of its own"
    assert opened[-1].get("last-event-id"), "it goes on where it was"
    shown = until(
        lambda: (f := frames_in(ann.text("#log"))) and f[-1] > before.frame + 30 and f,
        "the log goes on",
    )
    assert shown == list(range(shown[0], shown[0] + len(shown))), "no line twice, none left out"

    ann.page.locator("#cancel").click()
    ann.until("#chip", "^canceled$")
    assert told(site, long)["state"] == "canceled"
    check_books(site)


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.skipif(
    not (LAMMPS / "jobscribe_lammps/__init__.py").exists()
    or shutil.which("lmp") is None
    or not Path("/usr/share/lammps/examples/crack/in.crack").exists(),
    reason="LAMMPS is not here; etc/engines/lammps.sh installs it",
)
def test_the_crack_is_watched_as_it_grows(
    people: People,
    make_site: Callable[..., SupervisorProcess],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(
        supervisor_process, "PYTHON_PATH", supervisor_process.PYTHON_PATH + os.pathsep + str(LAMMPS)
    )
    site = make_site(
        "apps.also=lammps=jobscribe_lammps.plugin:app",
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        web=True,
    ).start()
    ann = people("ann", site).sign_in()
    ann.page.locator("#app").select_option("lammps")
    jid = ann.start("lammps", steps=3000, dumpEvery=100)
    first = ann.until_frame(0)
    assert "points" in first.label
    grown = ann.until_frame(first.frame + 3)
    assert grown.digest != first.digest
    ann.page.locator("#reports button", has_text="Atoms by potential energy").click()
    energy = until(
        lambda: "potential energy" in (p := ann.picture()).label and p, "the energies are drawn"
    )
    assert energy.colours > grown.colours, "quantities have more colours than kinds"
    ann.until("#chip", "^completed$", 80)
    ann.until_frame(30)
    ann.page.screenshot(path=tmp_path / "crack.png", full_page=True)
    ann.page.locator("#reports button", has_text="Energy per atom").click()
    until(
        lambda: "Curves over step: potential energy ends at" in ann.picture().label,
        "the curves are drawn",
    )
    ann.page.screenshot(path=tmp_path / "energy.png", full_page=True)
    name, data = ann.download("log.lammps")
    assert (
        name == "log.lammps"
        and data.startswith(b"LAMMPS")
        and data == (run_dir(site, jid, "lammps") / name).read_bytes()
    )
    check_books(site)
