"""The pages of jobs in containers of a real Docker host, in a real browser: the pull of an image,
output, files, usage, memory that runs out, a shell, and a cancel after a kill of the supervisor.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import gang, role
from docker_hosts import BASE, Host, Sites
from image_registry import Registry
from supervisor_process import SupervisorProcess, jid_of, until

from .test_engine import client_of as daemon_of

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright's Python package is not installed"
)

from chromium_user import launched, needs_browser
from pages_user import PagesUser

pytestmark = [
    needs_browser,
    pytest.mark.soak("tests/web/test_page_jobs.py, which drives these pages with local jobs"),
]

#: Writes a file, and lines until it is canceled.
WORKS = r"""
printf 'step,loss\n0,1.0\n1,0.5\n' > loss.csv
n=0; while :; do n=$((n + 1)); echo "line $n"; sleep 0.2; done
"""
EATS = "echo begins; exec tail /dev/zero"
BOX: dict[str, Any] = {"memoryMb": 64, "cpu": 1}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path)
    yield made
    made.close()


@pytest.fixture
def site(
    docker_sites: Sites, host_a: Host, registry: Registry, tmp_path: Path
) -> SupervisorProcess:
    registries = registry.credentials(tmp_path / "registries.json")
    pool = {"hosts": ["a"], "pull": "missing", "registries": registries}
    return docker_sites.make("limits.agent_start_secs=50", web=True, pool=pool).start()


def test_jobs_in_containers(site: SupervisorProcess, host_a: Host, registry: Registry) -> None:
    with playwright.sync_playwright() as p:
        browser = launched(p)
        ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800})
        ann.expected.append("/page-data/run-files")  # a run may not have its directory yet
        image = f"{registry.host}/team/solver:1"
        registry.push(daemon_of(host_a), BASE, "team/solver:1")
        run = gang(role("main", WORKS, image=image, **BOX), uid=ann.uid, simName="works")
        eats = gang(role("main", EATS, **BOX), uid=ann.uid, simName="eats")
        for each in (run, eats):
            site.submit({**each, "retry": {"count": 0, "platform": 0}})
        _read(ann, run)
        _memory_ran_out(ann, eats)
        _enter(ann, site, run)
        _kill_and_cancel(ann, site, run)
        assert ann.troubles == []
        ann.close()
        browser.close()


def _read(ann: PagesUser, run: dict[str, Any]) -> None:
    """Output while it is written, the pull of the image, files and usage."""
    job = f"/jobs/{jid_of(run)}"
    ann.open(job)
    ann.until(".log", r"line \d+\nline \d+")
    ann.until(".why-sentence", "^Running")
    ann.page.get_by_role("tab", name="Timeline").click()
    ann.until(".timeline", r"queued[\s\S]*image pull[\s\S]*execution")
    ann.page.get_by_role("tab", name="Files").click()
    ann.page.get_by_role("link", name="main/0/loss.csv", exact=True).click()
    ann.until(".preview", "2 rows")
    ann.open(f"{job}?tab=usage")
    ann.until(".usage", "Memory efficiency")
    ann.page.get_by_role("region", name="Memory", exact=True).locator("canvas").wait_for()
    assert ann.violations() == []


def _memory_ran_out(ann: PagesUser, eats: dict[str, Any]) -> None:
    ann.open(f"/jobs/{jid_of(eats)}")
    ann.until(".why-sentence", "[Mm]emory ran out")
    ann.page.get_by_role("tab", name="Usage").click()
    ann.until(".usage", r"Memory efficiency[\s\S]*64.0 MiB[\s\S]*Memory ran out\. Request more")
    ann.page.get_by_role("tab", name="Log").click()
    ann.until(".log", "^begins$")


def _enter(ann: PagesUser, site: SupervisorProcess, run: dict[str, Any]) -> None:
    """A shell of the page enters this task."""
    ann.open(f"/jobs/{jid_of(run)}?tab=shell")
    ann.page.get_by_role("button", name="Open a shell").click()
    ann.until(".shell-head [role=status]", "^Connected")
    ann.types("cat loss.csv; exit 3")
    ann.until_screen("1,0.5")
    ann.until(".shell-head [role=status]", r"exit status 3\.$")


def _kill_and_cancel(ann: PagesUser, site: SupervisorProcess, run: dict[str, Any]) -> None:
    ann.open(f"/jobs/{jid_of(run)}")
    last = int(ann.until(".log", r"line \d+\nline \d+").split()[-1])
    ann.expected.append(".")
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not site.titled("server"), "its front end has left the port")
    front = site.front
    assert site.start().front == front
    ann.until(".link-state", "^Live$")
    until(lambda: int(ann.text(".log").split()[-1]) > last, "output after the kill")
    ann.page.get_by_role("button", name="Cancel …").click()
    ann.page.get_by_role("button", name="Cancel job").click()
    ann.until(".page-head .state", "^canceled$")
    assert site.wait(run)["state"] == "canceled"
    ann.page.get_by_role("tab", name="Timeline").click()
    ann.until(".timeline", "Supervisor was away")
