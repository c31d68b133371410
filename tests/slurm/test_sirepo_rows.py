"""Promises of Sirepo's own batch run tests, through the front end and a login node that asks for
password and code.

Row 35: a run is in Slurm's queue once, and a cancel removes it within 25 s. Row 36: a run is
computed within 90 s, and its frames and file exist. (Row 37, sign-in, is in test_front_real.py.)
"""

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from front_end_fixture import ANN, Browser, FrontEnd
from login_nodes import Sshd, Users
from slurm_cluster import Slurm, sites
from supervisor_process import until

#: Limits of these rows in seconds; a busy machine gets five times as much.
CANCEL_SECS, RUN_SECS, ROOM = 25.0, 90.0, 5.0
BATCH = {
    "jobRunMode": "sbatch",
    "sbatchQueue": "batch",
    "sbatchHours": 0.1,
    "sbatchNodes": 1,
    "sbatchCores": 1,
}
NAME = "two"


@pytest.fixture(scope="module")
def observed(
    _cluster: tuple[Slurm, Users], _servers: Sshd
) -> Iterator[tuple[Browser, Slurm, Users]]:
    """A signed-in browser."""
    slurm, users = _cluster
    with sites(slurm, users, lambda: _servers) as made:
        modules = users.place / "modules"
        clusters = {
            "lab": {"access": "ssh", "link": "direct", "setup": f"export PYTHONPATH={modules}"}
        }
        site = made.make(clusters=clusters).start()
        web = FrontEnd(str(site.root))
        try:
            lay_numpy(modules)
            browser = web.as_(ANN)
            said = browser.said(
                "/sbatch-login",
                {
                    **wish("rows0000"),
                    "sbatchCredentials": {
                        "username": users[NAME],
                        "password": users.password,
                        "otp": users.code(NAME),
                    },
                },
            )
            assert said["loginSuccess"], said
            until(
                lambda: browser.said("/sbatch-login-status", wish("rows0000"))["ready"],
                "signed in",
                100,
            )
            yield browser, slurm, users
        finally:
            web.close()
            shutil.rmtree(modules, ignore_errors=True)


def lay_numpy(modules: Path) -> None:
    """Install numpy for users who may not read the interpreter of these tests and whose own has
    none: the tests' copy, if it fits.
    """
    theirs = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if theirs.split() != [str(n) for n in sys.version_info[:2]]:
        pytest.skip(
            "heat needs numpy on the nodes: apt-get install python3-numpy (that of these tests is for another Python)"
        )
    spec = importlib.util.find_spec("numpy")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent
    for folder in (source, source.with_name("numpy.libs")):
        if folder.is_dir():
            shutil.copytree(
                folder,
                modules / folder.name,
                ignore=shutil.ignore_patterns("tests", "__pycache__", "*.pyi"),
            )


def wish(sid: str, **values: Any) -> dict[str, Any]:
    model = {"size": 12, "steps": 1, **values}
    return {
        "simulationType": "heat",
        "simulationId": sid,
        "report": "heatAnimation",
        "models": {"heatAnimation": {**BATCH, **model}},
    }


def state(browser: Browser, first: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = browser.said("/run-status", first["nextRequest"])
    return said


def started(browser: Browser, sim: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = browser.said("/run-simulation", sim)
    assert first["state"] in ("pending", "running") and first["nextRequest"], first
    return first


def test_35_a_run_is_in_the_queue_once_and_a_cancel_takes_it_out(
    observed: tuple[Browser, Slurm, Users],
) -> None:
    browser, slurm, users = observed
    assert slurm.queued(user=users[NAME]) == []
    sim = wish("rows0035", frames=4000, paceSecs=0.2)
    first = started(browser, sim)
    # its own script reports that it runs; Slurm reports the nodes a little later
    running = until(
        lambda: (
            (s := state(browser, first))["state"] == "running" and s["batch"].get("nodes") and s
        ),
        "it runs, and where",
        RUN_SECS * ROOM,
    )
    assert running["nextRequest"]["computeJobStart"], running
    (job,) = slurm.queued(user=users[NAME])
    assert (job.id, job.state) == (running["batch"]["jobId"], "RUNNING")
    # the same request again returns the same run
    assert (
        browser.said("/run-simulation", sim)["state"] == "running"
        and len(slurm.queued(user=users[NAME])) == 1
    )
    began = time.monotonic()
    assert browser.said("/run-cancel", first["nextRequest"])["state"] == "canceled"
    until(lambda: slurm.queued(user=users[NAME]) == [], "the queue is empty", CANCEL_SECS * ROOM)
    print(f"out of the queue after {time.monotonic() - began:.1f} s")
    assert state(browser, first)["state"] == "canceled"


def test_36_a_run_has_its_frames_and_its_file(observed: tuple[Browser, Slurm, Users]) -> None:
    browser, slurm, users = observed
    began = time.monotonic()
    first = started(browser, wish("rows0036", frames=5))
    done = until(
        lambda: (s := state(browser, first))["state"] not in ("pending", "running") and s,
        "it is over",
        RUN_SECS * ROOM,
    )
    print(f"computed in {time.monotonic() - began:.1f} s")
    assert (
        done["state"] == "completed" and done["frameCount"] == 5 and done["percentComplete"] == 100
    ), (done["error"], done)
    assert slurm.until_state(done["batch"]["jobId"]).user == users[NAME]
    for index in (0, 4):
        id_ = f"{index}*heatAnimation*rows0036*heat*{first['nextRequest']['computeJobHash']}*{done['computeJobSerial']}"
        frame = browser.get(f"/simulation-frame/{id_}")
        assert frame.status_code == 200 and frame.get_json()["frameIndex"] == index, frame.get_data(
            as_text=True
        )[:500]
    got = browser.get("/download-run-file/heat/rows0036/heatAnimation/-1?suffix=csv")
    assert (
        got.status_code == 200
        and got.data.count(b"\n") == 6
        and "attachment" in got.headers["Content-Disposition"]
    ), got.headers
