"""`job repro` and `job clone` with an API token, as on another machine: jobs that really ran are run
again from a folder, and submitted again as new jobs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import UID, SupervisorProcess, jid_of, req_id, shell, spec

OTHER = "Fgtr5tyH"
MODEL = "heightWeightReport"


def report(site: SupervisorProcess, run: dict[str, Any]) -> Any:
    """Return what a run of the app `myapp` computed."""
    folder = site.root / "user" / UID / "myapp" / run["simulationId"] / MODEL
    return json.loads((folder / "out.json").read_text())


def app_run(breed: str) -> dict[str, Any]:
    run = spec((), simulationType="myapp", computeModel=MODEL)
    data = {"simulationType": "myapp", "simulationId": run["simulationId"], "report": MODEL}
    return {**run, "data": {**data, "models": {MODEL: {"breed": breed}}}}


@pytest.fixture
def typed(
    shared: SupervisorProcess,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Callable[..., Any]]:
    """`typed(uid, word, ...)` runs a command line of this user in this process: (code, out, err)."""
    from jobscribe.cli.main import call

    for name in [n for n in os.environ if n.startswith("JOBSCRIBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JOBSCRIBE_URL", shared.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    tokens = {
        uid: shared.post("token-create", uid=uid, name="t", scopes=["read", "control"])
        for uid in (UID, OTHER)
    }

    def typed(uid: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("JOBSCRIBE_SECRET", tokens[uid]["secret"])
        capfd.readouterr()
        return (call(list(words)), *capfd.readouterr())

    yield typed


def again(folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(
        [str(folder / "run.sh")],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_jobs_that_ran_are_run_again_from_a_folder(
    shared: SupervisorProcess, typed: Any, tmp_path: Path
) -> None:
    command = shell('cat in.txt; echo "$A" >&2; exit 5', env={"A": "it's"})
    worker = [
        "/bin/bash",
        "-c",
        "echo $PAI_TASK_ROLE_worker_HOST_LIST; exit $((PAI_TASK_INDEX * 4))",
    ]
    gang = spec(
        [], roles=[{"name": "worker", "tasks": 2, "command": worker}], jobRunMode="parallel"
    )
    del gang["command"]
    app = app_run("Pug")
    runs = (command, gang, app)
    for run in runs:
        shared.submit(run)
    ends = [shared.wait(run) for run in runs]
    assert [e["state"] for e in ends] == ["error", "error", "completed"]
    # a file that was put there before the next run is its input
    (tmp_path / "in.txt").write_text("words\n")
    assert typed(UID, "job", "put", jid_of(command), str(tmp_path / "in.txt"))[0] == 0
    assert typed(UID, "job", "retry", jid_of(command))[0] == 0
    shared.wait(command)
    folders = [tmp_path / f"repro{n}" for n in range(3)]
    for run, folder in zip(runs, folders, strict=True):
        code, out, err = typed(UID, "job", "repro", jid_of(run), "-o", str(folder))
        assert (code, out) == (0, f"{folder}\n"), err

    first = again(folders[0])
    assert (first.returncode, first.stdout) == (5, "words\n"), first
    assert first.stderr.splitlines()[0] == "it's" and "exit code 5" in first.stderr.splitlines()[1]
    # the task that failed is chosen, with the addresses that it had
    second = again(folders[1])
    hosts = shared.output(gang, role="worker", index=1).body.decode()
    assert (second.returncode, second.stdout) == (4, hosts)
    third = again(folders[2], PYTHON=sys.executable)
    assert third.returncode == 0, third
    done = json.loads((folders[2] / "work" / "out.json").read_text())
    assert done == report(shared, app)

    code, _, err = typed(OTHER, "job", "repro", jid_of(command), "-o", str(tmp_path / "no"))
    assert code == 125 and not (tmp_path / "no").exists(), err


def test_jobs_are_cloned_by_their_user_only(shared: SupervisorProcess, typed: Any) -> None:
    command = shell("echo $A; exit 6", env={"A": "x"})
    app = app_run("Pug")
    for run in (command, app):
        shared.finished(run)
    clones = []
    for run, change in ((command, "env.A=y"), (app, f"data.models.{MODEL}.breed=Beagle")):
        code, out, err = typed(UID, "job", "clone", jid_of(run), "--set", change, "--name", "again")
        assert code == 0, err
        uid, sid, model = out.strip().split("-")
        clones.append({**run, "uid": uid, "simulationId": sid, "computeModel": model})
        assert clones[-1]["simulationId"] != run["simulationId"]
    ends = [shared.wait(run) for run in clones]
    assert [e["exit"]["code"] for e in ends] == [6, 0]
    assert shared.output(clones[0]).body == b"y\n"
    assert report(shared, clones[1])["plots"]
    for run, origin in zip(clones, (command, app), strict=True):
        story = shared.post("job-story", uid=UID, computeJid=jid_of(run))
        assert f"cloned from {jid_of(origin)}" in story["lines"][0]

    code, _, err = typed(OTHER, "job", "clone", jid_of(command))
    assert code == 125 and "only the user of a job can clone it" in err
    # a request by hand cannot name the job of another user either
    forged = {**shell("true", uid=OTHER), "clonedFrom": jid_of(command)}
    body = json.dumps({"reqId": req_id(), "run": forged}).encode()
    answer = shared.ask("POST", "/api/run-simulation", body)
    assert answer.code == 400 and "job of another user" in answer.json()["error"]
