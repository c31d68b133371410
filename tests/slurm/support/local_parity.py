"""Cases where commands and apps behave on a cluster as on the supervisor's own machine: live
output, results, cancels, and warnings before the time limit.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from concurrent_runs import ALICE, SECS, ConcurrentRuns, Play
from supervisor_process import PYTHON_PATH, Answer, jid_of, until

#: An app that the cluster's Python runs without extra packages: slow frames, and a report when it
#: is warned.
APP = '''
import json, sys
from pathlib import Path
from jobscribe.apps.app import App, AppError, Model, Prepared

CODE = """
import pathlib, signal, sys, time
frames, pace = int(sys.argv[1]), float(sys.argv[2])
def warned(number, frame):
    pathlib.Path("saved").touch()
    print("saved", flush=True)
    sys.exit(4)
signal.signal(signal.SIGUSR1, warned)
print("begins", flush=True)
for n in range(frames):
    time.sleep(pace)
    pathlib.Path(f"{n}.txt").write_text(str(n * n))
"""

def prepare(run):
    said = run.data["models"]["squares"]
    if said.get("refuse"):
        raise AppError("it does not like this")
    return Prepared(command=(sys.executable, "-c", CODE, str(said["frames"]), str(said["paceSecs"])))

def progress(run):
    done = len(list(run.run_dir.glob("*.txt")))
    return {"frameCount": done, "percentComplete": 100.0 * done / run.data["models"]["squares"]["frames"]}

def frame(run, which):
    path = run.run_dir / f"{which.index}.txt"
    if not path.exists():
        raise AppError("there is no such frame yet")
    return {"square": int(path.read_text())}

app = App(
    name="squares", title="Squares", version="1", models=(Model(name="squares", title="Squares", kind="parallel"),),
    parameters=lambda data, model: data["models"]["squares"], prepare=prepare, progress=progress, frame=frame,
    downloads=lambda run: ("last",), download=lambda run, suffix: "0.txt",
    analysis={"sum": lambda run, args: sum(int(p.read_text()) for p in run.run_dir.glob("*.txt"))},
)
'''
SETTING = "apps.also=squares=squares_app:app"
AS_LOCALLY: dict[str, Play] = {}


def play(function: Play) -> Play:
    AS_LOCALLY[function.__name__] = function
    return function


def squares(
    stage: ConcurrentRuns, *, batch: dict[str, Any] | None = None, **said: Any
) -> dict[str, Any]:
    run = stage.run("", batch={"memoryMb": 100, **(batch or {})})
    del run["command"]
    data = {
        "simulationType": "squares",
        "report": "squares",
        "models": {"squares": {"frames": 3, "paceSecs": 0.7, **said}},
    }
    return {
        **run,
        "simulationType": "squares",
        "computeModel": "squares",
        "jobRunMode": "parallel",
        "data": data,
    }


def call(stage: ConcurrentRuns, run: dict[str, Any], command: str, **fields: Any) -> Answer:
    body = {
        "uid": ALICE,
        "jobCmd": command,
        "simulationType": "squares",
        "computeJid": jid_of(run),
        **fields,
    }
    return stage.site.ask("POST", "/api/call", json.dumps(body).encode())


def frame(stage: ConcurrentRuns, run: dict[str, Any], index: int) -> Answer:
    return call(
        stage, run, "get_simulation_frame", args={"frameReport": "squares", "frameIndex": index}
    )


def types(stage: ConcurrentRuns, *args: str) -> "subprocess.Popen[str]":
    """Start a jobscribe command as the user."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
        "PYTHONPATH": PYTHON_PATH
    }
    argv = [sys.executable, "-m", "jobscribe.cli", "--root", str(stage.root), *args]
    return subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@play
def an_apps_progress_frames_and_files(stage: ConcurrentRuns) -> None:
    run = squares(stage, frames=4)
    stage.site.submit(run)
    counts: set[int] = set()

    def some() -> bool:
        said = stage.said(run)
        counts.add(int((said.get("parallelStatus") or {}).get("frameCount", 0)))
        return bool(max(counts))

    until(some, "a frame is reported", SECS, 0.2)
    assert frame(stage, run, 0).json()["square"] == 0
    missing = frame(stage, run, 999)
    assert missing.code != 200 and "there is no such frame yet" in missing.json()["error"], missing
    said = stage.over(run, "completed", "exit", "COMPLETED", exit=("script", 0, None))
    assert (
        said["parallelStatus"]
        == said["exit"]["report"]
        == {"frameCount": 4, "percentComplete": 100.0}
    )
    assert min(counts) < 4, "it was told while it ran"
    assert frame(stage, run, 3).json()["square"] == 9
    assert call(stage, run, "analysis_job", method="sum").json() == 14
    name = call(stage, run, "download_run_file", args={"suffix": "last"}).json()["name"]
    body = {"uid": ALICE, "computeJid": jid_of(run), "name": name}
    assert stage.site.ask("POST", "/api/run-file", json.dumps(body).encode()).body == b"0"
    assert stage.site.output(run).body == b"begins\n"


@play
def what_an_app_refuses(stage: ConcurrentRuns) -> None:
    run = squares(stage, refuse=True)
    stage.site.submit(run)
    said = stage.over(run, "error", "exit", "FAILED", exit=("script", 1, None))
    assert said["error"] == "it does not like this"


@play
def an_app_is_canceled(stage: ConcurrentRuns) -> None:
    run = squares(stage, frames=100_000, paceSecs=1.5)
    stage.site.submit(run)
    stage.running(run)
    until(lambda: stage.site.output(run).body, "its code runs", SECS, 0.2)
    assert stage.site.cancel(run)["state"] == "canceled"
    said = stage.over(
        run,
        "canceled",
        "cancel",
        "FAILED",
        exit=("script", None, signal.SIGTERM),
        never=["not by jobscribe", "without an exit code"],
    )
    assert said["exit"]["stopReason"] == "cancel"
    where = said["batch"]["runDir"].encode()
    until(
        lambda: not [line for line in stage.processes() if where in line],
        "no process of it is left",
        SECS,
    )


def warned(stage: ConcurrentRuns, run: dict[str, Any], ready: bytes) -> None:
    """When the run is ready, set its time limit so that Slurm warns it at its next check, within
    half a minute.
    """
    stage.site.submit(run)
    job = stage.running(run)
    until(lambda: ready in stage.site.output(run).body, "it is ready", SECS, 0.2)
    stage.slurm.ask("scontrol", "update", f"jobid={job}", "timelimit=10")


@play
def an_app_is_warned_before_its_time_limit(stage: ConcurrentRuns) -> None:
    """The job command survives; its code saves its data and exits as it likes."""
    run = {
        **squares(stage, frames=100_000, paceSecs=0.5, batch={"signalSecs": 600}),
        "timeLimitSecs": 1800,
    }
    warned(stage, run, b"begins")
    stage.over(run, "error", "exit", "FAILED", exit=("script", 4, None), sentence=["exit code 4"])
    assert stage.site.output(run).body == b"begins\nsaved\n"


@play
def a_command_is_warned_before_its_time_limit(stage: ConcurrentRuns) -> None:
    run = stage.run(
        "trap 'echo saved; exit 4' USR1; echo ready; while :; do sleep 0.1; done",
        batch={"signalSecs": 600},
        timeLimitSecs=1800,
    )
    warned(stage, run, b"ready")
    stage.over(run, "error", "exit", "FAILED", exit=("script", 4, None), sentence=["exit code 4"])
    assert stage.site.output(run).body == b"ready\nsaved\n"


@play
def output_is_followed(stage: ConcurrentRuns) -> None:
    flag = stage.users.home("alice") / "followed"
    run = stage.run(
        f"echo first; echo aside >&2; until [ -e {flag} ]; do sleep 0.2; done; echo last; exit 5"
    )
    stage.site.submit(run)
    stage.running(run)
    follower = types(stage, "job", "logs", "-f", jid_of(run))
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"
    assert stage.said(run)["state"] == "running"
    flag.touch()
    stage.over(run, "error", "exit", "FAILED", exit=("script", 5, None))
    rest, complaint = follower.communicate(timeout=SECS)
    assert rest == "last\n", (rest, complaint)
    assert stage.site.output(run, "stderr").body == b"aside\n"


@play
def a_cancel_is_soft_then_hard(stage: ConcurrentRuns) -> None:
    soft = stage.run(
        "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.1; done", graceSecs=60
    )
    hard, nap = stage.naps(
        "trap '' TERM; echo ready; sleep NAP & while :; do sleep NAP; done", graceSecs=0.5
    )
    queued, never = stage.naps(batch={"directives": ["begin=now+1hour"]})
    stage.site.submit(soft)
    for run in (soft, hard):
        until(lambda run=run: stage.site.output(run).body == b"ready\n", "it is ready", SECS, 0.2)
    stage.waits_for(queued, "BeginTime")
    for run in (soft, hard, queued):
        assert stage.site.cancel(run)["state"] == "canceled"
    stage.over(
        queued,
        "canceled",
        "cancel",
        "CANCELLED",
        nap=never,
        exit=("start", None, None),
        ran=False,
        never=["not by jobscribe", "unix user"],
    )
    stage.over(
        hard, "canceled", "cancel", "CANCELLED", nap=nap, never=["not by jobscribe", "unix user"]
    )
    said = stage.site.wait(soft, SECS)
    assert (said["state"], said["exit"]["code"], said["exit"]["stopReason"]) == (
        "canceled",
        3,
        "cancel",
    ), said
    assert stage.site.output(soft).body == b"ready\nbye\n"


@play
def a_run_is_typed_and_ends_with_its_code(stage: ConcurrentRuns) -> None:
    """`jobscribe run`: live output, the run's own exit code, and the requested resources in
    Slurm.
    """
    argv = (
        "run",
        "--uid",
        ALICE,
        "--driver",
        "sbatch",
        "--cluster",
        "lab",
        "--partition",
        stage.partition,
        "--memory",
        "20",
        "--tasks",
        "2",
        "--cores",
        "1",
        "--setup",
        "export COLOUR=green",
        "--time-limit",
        "4m",
        "--",
        "/bin/sh",
        "-c",
        "echo $COLOUR $SLURM_NTASKS; srun --overlap echo rank; exit 6",
    )
    done = types(stage, *argv)
    out, complaint = done.communicate(timeout=SECS)
    assert done.returncode == 6 and sorted(out.splitlines()) == ["green 2", "rank", "rank"], (
        done.returncode,
        out,
        complaint,
    )
