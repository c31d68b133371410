"""Jobs that write output as fast as possible: memory stays bounded, other clients are served,
output is capped, and the dropped amount is reported.
"""

from pathlib import Path

import pytest
from flooding import OTHER, Memory, metrics, p99, polled, served, shell
from loop_lag import check_lag
from site_locations import ROOM, share
from supervisor_process import SupervisorProcess, jid_of, spec

FLOODERS = 8
SECS = share(2, 60)
CAP = 1 << 20


@pytest.fixture
def site(make_site) -> SupervisorProcess:
    site = make_site(
        None,
        f"output.head_bytes={CAP}",
        f"output.tail_bytes={CAP}",
        f"slots.local_sequential={FLOODERS + 2}",
    )
    return site.start()


@pytest.mark.timeout(600)
def test_eight_jobs_of_yes(site: SupervisorProcess, tmp_path: Path) -> None:
    """G15. Latency is compared with the same requests before the flood, in the same test run."""
    known = spec(["/bin/true"], OTHER)
    site.finished(known)
    site.finished(spec(["/bin/true"]))
    quiet = p99(polled(site, known, 1.5))
    memory = Memory(supervisor=site.pid, agent=site.agent_pid())
    go = tmp_path / "go"
    runs = [
        shell(f"echo FIRST; until [ -e {go} ]; do sleep 0.05; done; exec timeout {SECS} yes {n}")
        for n in range(FLOODERS)
    ]
    for run in runs:
        site.submit(run)
    for run in runs:
        site.running(run)
    go.touch()
    flooded = p99(polled(site, known, SECS, memory.look))
    served(site)
    ended = [site.wait(run, 60 + SECS) for run in runs]
    memory.look()
    grown = memory.grown()
    print(
        f"{SECS} s of {FLOODERS} x yes: grown {grown} MiB; status p99 {quiet * 1000:.1f} ms quiet, {flooded * 1000:.1f} ms flooded"
    )
    assert grown["supervisor"] <= 32
    assert grown["agent"] <= 16
    # the flooding jobs use all CPU time that the kernel leaves them: assert a ratio and a minimum
    assert flooded <= max(2 * ROOM * quiet, 0.05 * ROOM)
    for run, said in zip(runs, ended, strict=True):
        _capped(site, run, said)
    assert check_lag(site) == []


def _capped(site: SupervisorProcess, run: dict, said: dict) -> None:
    """The beginning and end exist, the middle does not, and every interface reports the missing
    amount.
    """
    exit_ = said["exit"]
    assert exit_["code"] == 124, "it was ended by its own timeout"
    assert exit_["droppedBytes"] > 10 * CAP
    first = site.output(run, limit=CAP // 4)
    assert first.body.startswith(b"FIRST\n")
    middle = site.output(run, offset=CAP, limit=1024)
    assert int(middle.headers["X-Jobscribe-Dropped"]) == exit_["droppedBytes"]
    last = site.output(run, tail=1000, limit=1000)
    assert last.headers["X-Jobscribe-End"] == "true" and len(last.body) == 1000
    why = site.post("job-why", uid=run["uid"], computeJid=jid_of(run))
    assert f"{exit_['droppedBytes']} bytes of output were dropped" in why["evidence"]
    (file,) = site.root.glob(f"agent/*/run/*{run['simulationId']}*/stdout.log")
    assert file.stat().st_blocks * 512 <= 3 * CAP + 64 * 1024


APP = """
from jobscribe.apps.app import App, Model, Prepared

app = App(
    name="flood", title="Flood", version="1", models=(Model(name="m", title="m", kind="sequential"),), parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("/bin/sh", "-c", run.data["shell"])), result=lambda run: {},
)
"""
#: Writes one report per line, each immediately.
REPORTS = """awk 'BEGIN { f = ENVIRON["JOBSCRIBE_REPORT"]
    for (i = 1; i <= %d; i++) { printf "{\\"frameCount\\": %%d}\\n", i >> f; fflush(f) } }'"""


@pytest.mark.timeout(300)
def test_a_job_that_reports_without_end(make_site) -> None:
    """100,000 reports from one run: clients see the newest, a few per second, and no queue grows."""
    count = share(30_000, 100_000)
    site: SupervisorProcess = make_site(
        None, "apps.also=flood=flood_app:app", modules={"flood_app.py": APP}
    )
    site.start()
    site.finished(spec(["/bin/true"]))
    memory = Memory(supervisor=site.pid, agent=site.agent_pid())
    run = spec((), simulationType="flood", computeModel="m", data={"shell": REPORTS % count})
    site.submit(run)
    said = site.wait(run, 120)
    memory.look()
    assert said["state"] == "completed", said
    assert said["parallelStatus"]["frameCount"] == count, "the last one is durable"
    print(f"{count} reports: grown {memory.grown()} MiB")
    assert memory.grown()["supervisor"] <= 32 and memory.grown()["agent"] <= 16
    assert metrics(site)["run_service"]["reported"] == 0
    assert check_lag(site) == []
