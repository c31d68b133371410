"""The pages of jobs on a real Slurm cluster, in a real browser: partitions with nodes that take no
jobs, the reason why a job waits, output, files, usage, a shell, memory that runs out, and a cancel
after a kill of the supervisor.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from slurm_cluster import Slurm
from supervisor_process import SupervisorProcess, jid_of, shell, until

from jobscribe.web.server.development_login import uid_of

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright's Python package is not installed"
)

from chromium_user import launched, needs_browser
from pages_user import PagesUser

pytestmark = [
    needs_browser,
    pytest.mark.soak("tests/web/test_page_jobs.py, which drives these pages with local jobs"),
]

ANN = uid_of("ann", "")
WORKS = r"""
printf 'step,loss\n0,1.0\n1,0.5\n' > loss.csv
n=0; while :; do n=$((n + 1)); echo "line $n"; sleep 0.2; done
"""
EATS = "echo begins; sleep 1; head -c 300M /dev/zero | tail"
EVERYWHERE = {"nodes": 3, "directives": ["exclusive"]}


@pytest.fixture
def site(make_cluster_site: Callable[..., SupervisorProcess], slurm: Slurm) -> SupervisorProcess:
    slurm.drain(slurm.nodes[2])  # before the agent reports the cluster
    lab = {"directives": ["exclusive"]}
    return make_cluster_site(clusters={"lab": lab}, people={ANN: "alice"}, web=True)


def submit(site: SupervisorProcess, name: str, text: str, **batch: Any) -> dict[str, Any]:
    run = shell(text, ANN, simName=name, graceSecs=2.0, batch={"memoryMb": 50, **batch})
    site.submit(run)
    return run


def test_jobs_on_a_cluster(site: SupervisorProcess, slurm: Slurm) -> None:
    with playwright.sync_playwright() as p:
        browser = launched(p)
        ann = PagesUser(browser, site, "ann", viewport={"width": 1280, "height": 800})
        ann.expected.append("/page-data/run-files")  # a run may not have its directory yet
        run, eats = submit(site, "works", WORKS), submit(site, "eats", EATS)
        waits = submit(site, "waits", "true", **EVERYWHERE)
        _read(ann, run)
        _processor_time(ann, site)
        _enter(ann, site, run)
        _partitions(ann)
        if "CGROUP=0" not in (slurm.place / "parameters").read_text():
            _memory_ran_out(ann, eats)
        _wait_and_kill(ann, site, run, waits)
        assert ann.troubles == []
        ann.close()
        browser.close()


def _read(ann: PagesUser, run: dict[str, Any]) -> None:
    """Output while it is written, files and usage."""
    job = f"/jobs/{jid_of(run)}"
    ann.open(job)
    ann.until(".log", r"line \d+\nline \d+")
    ann.page.get_by_role("tab", name="Timeline").click()
    ann.until(".timeline", "[Ii]n Slurm's queue")
    ann.page.get_by_role("tab", name="Files").click()
    ann.page.get_by_role("link", name="loss.csv", exact=True).click()
    ann.until(".preview", "2 rows")
    ann.open(f"{job}?tab=usage")
    plot = ann.page.get_by_role("region", name="Memory", exact=True)
    plot.locator("canvas").wait_for()
    assert ann.violations() == []


def _processor_time(ann: PagesUser, site: SupervisorProcess) -> None:
    """After the end, accounting has what the steps used, also those that srun began."""
    text = "srun --overlap --mem=0 timeout 2 sh -c 'while :; do :; done'; true"
    burns = submit(site, "burns", text)
    assert site.wait(burns)["state"] == "completed"
    ann.open(f"/jobs/{jid_of(burns)}?tab=usage")
    ann.until(".efficiency", r"CPU efficiency\s+[0-3]\.[1-9] cores on average")


def _enter(ann: PagesUser, site: SupervisorProcess, run: dict[str, Any]) -> None:
    """A shell of the page enters this task on its node."""
    ann.open(f"/jobs/{jid_of(run)}?tab=shell")
    ann.page.get_by_role("button", name="Open a shell").click()
    ann.until(".shell-head [role=status]", "^Connected")
    ann.types("cat loss.csv; exit 3")
    ann.until_screen("1,0.5")
    ann.until(".shell-head [role=status]", r"exit status 3\.$")


def _partitions(ann: PagesUser) -> None:
    ann.open("/queues")
    ann.until("main", r"Slurm: lab[\s\S]*batch[\s\S]*1 drained\s+Maintenance\.")
    assert ann.violations() == []


def _memory_ran_out(ann: PagesUser, eats: dict[str, Any]) -> None:
    ann.open(f"/jobs/{jid_of(eats)}")
    ann.until(".why-sentence", "[Mm]emory")
    ann.page.get_by_role("tab", name="Usage").click()
    ann.until(".usage", r"Memory efficiency[\s\S]*50.0 MiB[\s\S]*Memory ran out\. Request more")


def _wait_and_kill(
    ann: PagesUser, site: SupervisorProcess, run: dict[str, Any], waits: dict[str, Any]
) -> None:
    """Slurm's reason is there before and after a kill, and the job can be canceled."""
    ann.open(f"/jobs/{jid_of(waits)}?tab=timeline")
    ann.until(".timeline .span-reason", "nodes that it needs are down, drained or reserved")
    ann.expected.append(".")
    assert site.stop(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not site.titled("server"), "its front end has left the port")
    front = site.front
    assert site.start().front == front
    ann.until(".link-state", "^Live$")
    ann.until(".timeline .span-reason", "nodes that it needs are down, drained or reserved")
    for each in (waits, run):
        ann.open(f"/jobs/{jid_of(each)}?tab=timeline")
        ann.page.get_by_role("button", name="Cancel …").click()
        ann.page.get_by_role("button", name="Cancel job").click()
        ann.until(".page-head .state", "^canceled$")
        assert site.wait(each)["state"] == "canceled"
    ann.open(f"/jobs/{jid_of(waits)}?tab=timeline")
    ann.until(".timeline", r"Supervisor was away[\s\S]*In Slurm's queue \(Slurm job \d+ on lab\)")
