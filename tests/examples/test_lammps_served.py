"""The LAMMPS plug-in through a real supervisor, installed with pip into its own environment as a
user would.

That environment sees all installed packages of the test environment, so pip downloads nothing, and
the test environment does not change. Agents, job commands and workers run with their supervisor's
interpreter, so they can find the plug-in only by its entry point.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import PYTHON_PATH, Answer, SupervisorProcess, jid_of, until

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "etc/examples/lammps"
#: A simulation computes for a few seconds; beside a whole test run, its low priority leaves it a
#: small part of a processor.
COMPUTE_SECS = 180.0

pytestmark = pytest.mark.skipif(
    shutil.which("lmp") is None or not os.path.exists("/usr/share/lammps/examples/crack/in.crack"),
    reason="LAMMPS is not here; etc/engines/lammps.sh installs it",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter that has the plug-in and all packages of the test environment."""
    place = tmp_path_factory.mktemp("plugged")
    venv.create(place / "venv", with_pip=False, symlinks=True)
    packages = Path(
        sysconfig.get_path(
            "purelib", "venv", vars={"base": str(place / "venv"), "platbase": str(place / "venv")}
        )
    )
    (packages / "ours.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    # building leaves files beside the source
    shutil.copytree(
        PACKAGE,
        place / "source",
        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"),
    )
    made = str(place / "venv/bin/python")
    done = subprocess.run(
        [
            made,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
            str(place / "source"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": os.environ["PATH"], "HOME": str(place)},
    )
    assert done.returncode == 0, done.stderr
    assert (packages / "jobscribe_lammps/plugin.py").is_file(), "installed somewhere else"
    return made


@pytest.fixture(scope="module")
def site(python: str) -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(python=python)
    try:
        site.start()
        yield site
    finally:
        left = site.end()
    assert left == {}, "processes outlived their keeper"


def run_of(model: str, sid: str, **fields: Any) -> dict[str, Any]:
    data = {
        "simulationType": "lammps",
        "simulationId": sid,
        "report": model,
        "models": {model: fields},
    }
    return {
        "uid": "SystemU1",
        "simulationType": "lammps",
        "simulationId": sid,
        "computeModel": model,
        "jobRunMode": "parallel",
        "data": data,
    }


def call(site: SupervisorProcess, run: dict[str, Any], job_cmd: str, **fields: Any) -> Answer:
    body = {
        "uid": run["uid"],
        "jobCmd": job_cmd,
        "simulationType": "lammps",
        "computeModel": run["computeModel"],
        "data": run["data"],
        **fields,
    }
    return site.ask("POST", "/api/call", json.dumps(body).encode())


def frame(site: SupervisorProcess, run: dict[str, Any], report: str, index: int) -> Answer:
    return call(
        site,
        run,
        "get_simulation_frame",
        computeJid=jid_of(run),
        args={"frameReport": report, "frameIndex": index},
    )


def test_it_is_not_installed_where_these_tests_run() -> None:
    """Otherwise these tests would not prove that the pip install registers the plug-in."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import jobscribe_lammps"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": PYTHON_PATH},
        cwd="/",
    )
    assert done.returncode == 1 and "No module named 'jobscribe_lammps'" in done.stderr


def test_the_crack_is_watched_as_it_grows_and_ends_with_its_last_frame(
    site: SupervisorProcess,
) -> None:
    run = run_of("crackAnimation", "crack001", steps=1500, dumpEvery=30)
    site.submit(run)

    def under_way() -> dict[str, Any] | None:
        said = site.status(run)
        assert not said["over"], said
        report: dict[str, Any] = said.get("parallelStatus") or {}
        return (
            report if report.get("frameCount", 0) >= 2 and report["percentComplete"] > 0 else None
        )  # the log may be written after the frames

    seen = until(under_way, "two frames are there while it runs", COMPUTE_SECS)
    assert seen["percentComplete"] < 100
    newest = seen["frameCount"] - 1
    early = {
        report: frame(site, run, report, newest)
        for report in ("crackEnergyAnimation", "crackEnergyCurveAnimation")
    }
    assert {answer.code for answer in early.values()} == {200}, early
    said = site.wait(run, COMPUTE_SECS)
    assert said["state"] == "completed", said
    progress = {"frameCount": 51, "frameTotal": 51, "percentComplete": 100.0, "step": 1500}
    assert said["parallelStatus"] == progress
    for report, answer in early.items():
        again = frame(site, run, report, newest)
        assert answer.json() | {"frameCount": 51} == again.json(), (
            "a frame that has been shown is another one now"
        )
    last = frame(site, run, "crackAnimation", 50)
    assert len(last.json()["x"]) == 8141 and len(last.body) < 250_000
    curve = frame(site, run, "crackEnergyCurveAnimation", 50).json()
    assert curve["x"][-1] == 1500
    missing = frame(site, run, "crackAnimation", 51)
    assert missing.code == 422 and "there are 51 frames" in missing.json()["error"]


def test_what_stops_lammps_is_the_error_of_the_run(site: SupervisorProcess) -> None:
    said = site.finished(run_of("crackAnimation", "crack002", timestep=0.4), COMPUTE_SECS)
    assert said["state"] == "error"
    assert said["error"].startswith("LAMMPS stopped: "), said
    assert "a smaller time step" in said["error"]


def test_it_is_canceled_and_nothing_of_it_is_left(site: SupervisorProcess) -> None:
    run = run_of("frictionAnimation", "rubbing1", steps=1_000_000, dumpEvery=1000)
    site.submit(run)
    until(
        lambda: (site.status(run).get("parallelStatus") or {}).get("frameCount", 0) > 0,
        "a frame is there",
    )
    assert site.cancel(run)["state"] == "canceled"
    until(
        lambda: not any(b"in.friction" in line for line in site.everybody().values()),
        "LAMMPS is gone",
    )
    assert frame(site, run, "frictionAnimation", 0).code == 200, (
        "what was computed before may be looked at"
    )


def test_methods_and_downloads(site: SupervisorProcess) -> None:
    run = run_of("couetteAnimation", "couette1", steps=400, wallVelocity=1.5)
    assert site.finished(run, COMPUTE_SECS)["state"] == "completed"
    log = call(
        site,
        run,
        "analysis_job",
        method="thermodynamics",
        computeJid=jid_of(run),
        args={"columns": ["press"]},
    ).json()
    assert log["x"] == [0, 200, 400] and log["plots"][0]["label"] == "pressure"
    models = {"couetteAnimation": {"wallVelocity": 1.5}}
    deck = call(
        site,
        run,
        "stateless_compute",
        method="deck",
        args={"report": "couetteAnimation", "models": models},
    ).json()["deck"]
    assert "velocity upper set 1.5 0.0 0.0" in deck
    named = call(
        site, run, "download_run_file", computeJid=jid_of(run), args={"suffix": "in"}
    ).json()
    assert named == {"name": "in.flow.couette"}
    body = {"uid": run["uid"], "computeJid": jid_of(run), "name": "in.flow.couette"}
    sent = site.ask("POST", "/api/run-file", json.dumps(body).encode())
    assert sent.code == 200 and sent.body.decode() == deck.replace("run 10000", "run 400")


def test_without_lammps_the_run_says_what_to_install(site: SupervisorProcess) -> None:
    """Its PATH contains no LAMMPS."""
    said = site.finished(run_of("crackAnimation", "crack003") | {"env": {"PATH": "/nowhere"}})
    assert said["state"] == "error" and "apt-get install lammps lammps-examples" in said["error"], (
        said
    )
