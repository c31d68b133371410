"""Pages in a real Chromium: first paint and transfer, and the list with 100,000 jobs:
`python tests/bench/pages_bench.py`. Prints tables; asserts nothing.

The jobs are written into the store before the site starts, as if they had ended. Times are from the click
until the page shows the answer, as the browser measures them.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chromium_user import CHROMIUM, FLAGS
from front_bench import up
from history import fill
from playwright.sync_api import Page as Tab
from playwright.sync_api import sync_playwright

from jobscribe.web.server.development_login import uid_of

REPEATS = 5
_PAINT = """() => {
  const files = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint.startTime, files.reduce((sum, e) => sum + e.transferSize, 0), files.length];
}"""
#: Wait in the page, without the round trips of a driver, until the list has changed and is complete.
_SHOWN = """([before, what]) => new Promise((done, fail) => {
  const began = performance.now();
  const look = () => {
    const rows = [...document.querySelectorAll("table.jobs tbody tr .title")].map((t) => t.innerText).join();
    const busy = document.querySelector("[aria-busy=true]");
    if (rows !== before && !busy && rows.includes(what)) done(performance.now());
    else if (performance.now() - began > 60_000) fail(`no ${what} in 60 s: ${rows.slice(0, 200)}`);
    else requestAnimationFrame(look);
  };
  look();
})"""
_ROWS = """() => [performance.now(),
  [...document.querySelectorAll("table.jobs tbody tr .title")].map((t) => t.innerText).join()]"""


def median(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ms (worst {max(values):.0f})"


def shown(tab: Tab, act: Callable[[], Any], what: str = "run ") -> float:
    """Return the milliseconds from the act until the list has other rows with this text."""
    began, rows = tab.evaluate(_ROWS)
    act()
    return float(tab.evaluate(_SHOWN, [rows, what])) - float(began)


def paint(context: Any, url: str) -> tuple[float, float, int]:
    tab = context.new_page()
    tab.goto(url)
    tab.wait_for_selector("h1")
    tab.wait_for_timeout(500)
    first, size, files = tab.evaluate(_PAINT)
    tab.close()
    return first, size, files


def work(tab: Tab, url: str, count: int) -> dict[str, list[float]]:
    """Filter, search, sort and turn pages."""
    times: dict[str, list[float]] = {}

    def note(name: str, ms: float) -> None:
        times.setdefault(name, []).append(ms)

    for _ in range(REPEATS):
        tab.goto(url)
        tab.wait_for_selector("table.jobs tbody tr")
        note("first page", tab.evaluate("() => performance.now()"))
        note("next page", shown(tab, tab.get_by_role("link", name="Next page").click))
        tab.goto(url)
        tab.wait_for_selector("table.jobs tbody tr")
        note("filter: failed", shown(tab, tab.locator(".chip[data-state=error]").click))
        tab.goto(url)
        tab.wait_for_selector("table.jobs tbody tr")
        search = tab.get_by_label("Search by name, command or id")
        word = f"seed={count // 2 + 7}"
        note("words of one job", shown(tab, lambda: search.fill(word), f"run {count // 2 + 7}"))
        tab.goto(url)
        tab.wait_for_selector("table.jobs tbody tr")
        note("sort: oldest first", shown(tab, lambda: twice(tab, "Submitted")))
        tab.goto(url)
        tab.wait_for_selector("table.jobs tbody tr")
        note("sort: duration", shown(tab, tab.get_by_role("button", name="Duration").click))
    return times


def twice(tab: Tab, name: str) -> None:
    for _ in range(2):
        tab.get_by_role("button", name=name).click()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        root = Path(folder).resolve() / "r"
        uid = uid_of("ann", "")
        print(f"{args.jobs} jobs written in {fill(root, args.jobs, 0, (uid,)):.0f} s")
        browser = p.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        with up(root) as front:
            print("| page | first paint, nothing cached | cached | transfer | requests |")
            for path in ("/jobs", f"/jobs/{uid}-{args.jobs - 1:08}-command", "/apps", "/queues"):
                cold, warm = [], []
                for _ in range(REPEATS):
                    context = browser.new_context()
                    context.request.post(front + "/sign-in", data={"name": "ann"})
                    first, size, files = paint(context, front + path)
                    cold.append(first)
                    warm.append(paint(context, front + path)[0])
                    context.close()
                print(
                    f"| `{path.replace(uid, 'UID')}` | {median(cold)} | {median(warm)} | {size / 1000:.0f} kB | {files} |"
                )
            context = browser.new_context()
            context.request.post(front + "/sign-in", data={"name": "ann"})
            tab = context.new_page()
            for name, values in work(tab, front + "/jobs", args.jobs).items():
                print(f"| {name} | {median(values)} |")
        browser.close()


if __name__ == "__main__":
    main()
