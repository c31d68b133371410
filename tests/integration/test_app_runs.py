"""Runs of apps on a real supervisor. Progress is known during the run and the outcome is true, also
after kills.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, spec, until


def app_run(app: str, model: str, kind: str = "sequential", **fields: Any) -> dict[str, Any]:
    run = spec((), simulationType=app, computeModel=model, jobRunMode=kind)
    data = {
        "simulationType": app,
        "simulationId": run["simulationId"],
        "report": model,
        "models": {model: fields},
    }
    return {**run, "data": data}


def heat(**fields: Any) -> dict[str, Any]:
    return app_run("heat", "heatAnimation", "parallel", **{"size": 10, "steps": 1, **fields})


def run_dir(site: SupervisorProcess, run: dict[str, Any]) -> Path:
    return (
        site.root / "user" / UID / run["simulationType"] / run["simulationId"] / run["computeModel"]
    )


def frames(site: SupervisorProcess, run: dict[str, Any]) -> int:
    said = site.status(run)
    assert not said["over"], said
    return int((said.get("parallelStatus") or {}).get("frameCount", 0))


def test_a_report_is_computed_and_its_result_lies_in_the_run_directory(
    shared: SupervisorProcess,
) -> None:
    run = app_run("myapp", "heightWeightReport", breed="Pug")
    said = shared.finished(run)
    assert (said["state"], said["exit"]["code"]) == ("completed", 0)
    assert len(json.loads((run_dir(shared, run) / "out.json").read_text())["plots"]) == 2


def test_progress_is_known_while_it_runs_and_in_the_end(shared: SupervisorProcess) -> None:
    run = heat(frames=4, paceSecs=0.5)
    shared.submit(run)
    until(lambda: 1 <= frames(shared, run) <= 3, "some frames are reported")
    said = shared.wait(run)
    assert said["state"] == "completed"
    assert (
        said["parallelStatus"]
        == said["exit"]["report"]
        == {"frameCount": 4, "frameTotal": 4, "percentComplete": 100.0}
    )


def test_a_cancel_ends_app_and_program(shared: SupervisorProcess) -> None:
    run = heat(frames=1000, paceSecs=10.0)
    shared.running(shared.submit(run) and run)
    assert shared.cancel(run)["state"] == "canceled"
    said = shared.wait(run)
    assert said["state"] == "canceled" and said["exit"]["stopReason"] == "cancel"


def restarted(site: SupervisorProcess) -> None:
    """Kill the supervisor with SIGKILL and start the next one."""
    site.kill(site.pid)
    assert site.process is not None and site.process.stdout is not None
    site.process.wait()
    site.process.stdout.close()
    site.process = None
    site.start()


def test_how_far_it_was_is_known_again_although_nothing_new_was_reported(
    site: SupervisorProcess,
) -> None:
    run = heat(frames=1000, paceSecs=0.0, size=100, steps=100_000)
    site.submit(run)
    until(lambda: frames(site, run) == 1, "the first frame is reported; the second takes its time")
    restarted(site)
    until(lambda: frames(site, run) == 1, "it is known again")
    site.cancel(run)
    assert site.wait(run)["state"] == "canceled"


@pytest.mark.parametrize("victim", ["agent", "supervisor"])
def test_progress_goes_on_when_somebody_was_killed(site: SupervisorProcess, victim: str) -> None:
    run = heat(frames=5000, paceSecs=0.2)
    site.submit(run)
    until(lambda: frames(site, run) >= 1, "the first frame is reported")
    before = frames(site, run)
    if victim == "agent":
        (pid,) = site.titled("agent")
        site.kill(pid)
    else:
        restarted(site)
    until(lambda: frames(site, run) > before, "later frames are reported")
    site.cancel(run)
    assert site.wait(run)["state"] == "canceled"


def test_what_an_app_refuses_is_the_runs_error(shared: SupervisorProcess) -> None:
    run = app_run("myapp", "heightWeightReport", dog="Rex")
    said = shared.finished(run)
    assert (said["state"], said["error"]) == ("error", "you have no dog named 'Rex'")


def test_the_job_gets_no_secret_and_no_search_path_of_ours(shared: SupervisorProcess) -> None:
    run = heat(frames=100, paceSecs=10.0)
    shared.running(shared.submit(run) and run)
    evidence = Path((run_dir(shared, run) / ".jobscribe" / "latest").resolve())
    until(lambda: (run_dir(shared, run) / "in.json").exists(), "it is prepared")
    until(
        lambda: [p for p, line in shared.everybody().items() if b"parameters.py" in line],
        "its program runs",
    )
    ours = [
        pid
        for pid, line in shared.everybody().items()
        if b"parameters.py" in line or b"input.json" in line
    ]
    assert len(ours) >= 3  # the job command, the app's process and the program
    for pid in ours:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"SYSTEM_CANARY" not in environment and b"PYTHONPATH" not in environment
        assert shared.token.encode() not in environment + Path(f"/proc/{pid}/cmdline").read_bytes()
    assert jid_of(run) in evidence.name
    shared.cancel(run)
    shared.wait(run)
