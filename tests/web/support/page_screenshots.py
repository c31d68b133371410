"""Screenshots of each page, light and dark, wide and narrow, and what moves on a page while it loads:
`make pages`.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path += [str(p) for p in TESTS.glob("*/support")] + [str(TESTS / "support")]

from apps_user import AppsUser
from chromium_user import IS_FIREFOX, launched
from pages_user import PagesUser
from playwright.sync_api import sync_playwright
from supervisor_process import SupervisorProcess, jid_of, shell

from jobscribe.web.server.development_login import uid_of

TRAIN = "i=0; while :; do i=$((i + 1)); printf 'step %s \\033[32mok\\033[0m\\n' $i; sleep 0.2; done"
JOBS = (
    ("train, rate 0.1", TRAIN),
    (
        "preprocess",
        'echo 12 files; seq 50 | awk \'BEGIN{print "step,loss"}{print $1 "," 1/$1}\' > result.csv',
    ),
    (None, "python3 -c 'open(\"/data/input.csv\")'"),
    ("evaluate on the test set", "seq 5; exit 3"),
    ("train, rate 0.01", TRAIN),
)
#: App and values of simulations, and the state for which the pictures wait.
SIMULATIONS: dict[str, tuple[str, dict[str, object], str]] = {
    "running": ("Heat in a plate", {"frames": 400, "paceSecs": 0.3}, "running"),
    "done": ("A growing dog", {}, "completed"),
}
#: Records the layout shifts of the page: the score of each, and what moved.
_SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const e of list.getEntries())
      shifts.push([e.value, e.sources.map(({node, previousRect: a, currentRect: b}) =>
        `${node?.className || node?.nodeName || node?.parentElement?.className} ${a.x},${a.y} -> ${b.x},${b.y}`)]);
  }).observe({type: "layout-shift", buffered: true});
}"""
#: Smaller shifts are not printed. Browsers call a sum of up to 0.1 good.
_LEAST_SHIFT = 0.002
SIZES = ((1280, 800), (360, 740), (1920, 1080))


@contextlib.contextmanager
def filled_site() -> Iterator[tuple[SupervisorProcess, dict[str, str]]]:
    """Yield a site with jobs of a user, and the addresses of its pages by name."""
    users = Path(tempfile.mkdtemp()) / "users.yml"  # read once, at the start
    users.write_text(f"admins: [{uid_of('ann', '')}]\n")
    sets = ("slots.local_sequential=2", f"auth.users={users}")
    site = SupervisorProcess(sets, web=True)
    site.start()
    try:
        with sync_playwright() as p:
            browser = launched(p)
            uid = PagesUser(browser, site, "ann").uid
            ann = AppsUser(browser, site, "ann")
            apps = {name: _simulation(ann, *wanted) for name, wanted in SIMULATIONS.items()}
            browser.close()
        runs = []
        for name, text in JOBS:
            runs.append(shell(text, uid, **({} if name is None else {"simName": name})))
            site.submit(runs[-1])
        site.wait(runs[1])
        site.wait(runs[2])
        running, done, failed = (f"/jobs/{jid_of(r)}" for r in (runs[0], runs[1], runs[2]))
        yield (
            site,
            {
                "jobs": "/jobs",
                "jobs-none": "/jobs?text=nothing",
                "submit": "/submit",
                "submit-file": "/submit?tab=file",
                "job-running": running,
                "job-failed": f"{failed}?stream=stderr",
                "job-tasks": f"{running}?tab=tasks",
                "job-timeline": f"{running}?tab=timeline",
                "job-usage": f"{running}?tab=usage",
                "job-parameters": f"{running}?tab=parameters",
                "job-clone": f"{running}?tab=parameters&edit=1",
                "job-debug": f"{running}?tab=debug",
                "job-shell": f"{running}?tab=shell",
                "job-shell-intro": f"{running}?tab=shell",
                "job-events": f"{failed}?tab=events",
                "job-files": f"{done}?tab=files&file=result.csv",
                "account": "/account",
                "docs": "/docs/site#api-tokens",
                "docs-search": "/docs?q=rotate%20secrets",
                "reference": "/reference/supervisor?op=post%20/api/job-search",
                "queues": "/queues",
                "operations": "/operations",
                "operations-tokens": "/operations?tab=tokens",
                "operations-upkeep": "/operations?tab=upkeep",
                "apps": "/apps",
                "apps-library": f"{apps['done']}?tab=library",
                **{f"apps-{name}": path for name, path in apps.items()},
            },
        )
    finally:
        site.end()


def _simulation(ann: AppsUser, app: str, values: dict[str, object], state: str) -> str:
    """Start a simulation and return the address of its page."""
    ann.new(app, **values)
    ann.start()
    ann.until_state(state)
    return ann.page.url.removeprefix(ann.site.front)


def _open_shell(ann: PagesUser) -> None:
    ann.page.get_by_role("button", name="Open a shell").click()
    ann.until(".shell-head [role=status]", "^Connected")
    ann.types(r"printf '\033[31mred\033[0m \033[32mgreen\033[0m \033[1;34mblue\033[0m\n'; ls -la")
    ann.until_screen(r"total \d+")


def _print_shifts(ann: PagesUser, name: str, width: int) -> None:
    for score, moved in ann.page.evaluate("() => shifts"):
        if score >= _LEAST_SHIFT:
            print(
                f"{name} at {width} px moved by {score:.3f}: {'; '.join(moved)[:300]}", flush=True
            )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with filled_site() as (site, pages), sync_playwright() as p:
        browser = launched(p)
        for scheme in ("light", "dark"):
            for width, height in SIZES:
                view = {"width": width, "height": height}
                ann = PagesUser(browser, site, "ann", viewport=view, color_scheme=scheme)
                ann.page.add_init_script(f"({_SHIFTS})()")
                for name, path in pages.items():
                    ann.page.goto(site.front + path)
                    ann.page.wait_for_timeout(700)
                    if name == "job-shell":
                        _open_shell(ann)
                    ann.page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")
                    if scheme == "light" and not IS_FIREFOX:
                        _print_shifts(ann, name, width)
                ann.close()
        browser.close()
    print(f"{len(pages) * 2 * len(SIZES)} pictures are in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
