"""`jobscribe demo`: a real computation through a fresh supervisor, from submission to result, and
where everything lies then.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...protocol.errors import Refusal
from ..session.session import Session, command, session
from ..terminal.output_stream import OutputStreamer
from ..terminal.quantities import duration
from . import child_processes
from .computations import Computation, chosen

if TYPE_CHECKING:
    from ...client.api.replies import LogPart, RunState
    from ...client.sync_client import Client, Job

READY_SECS = 30.0
STOP_SECS = 10.0
#: A record may lag behind the log by less than a second.
RECORD_SECS = 5.0


@command()
@click.option(
    "--keep",
    is_flag=True,
    default=None,
    help="Leave the supervisor running (also: KEEP=1 in the environment).",
)
def demo(keep: bool | None) -> None:
    """Run a real computation nobody here wrote (LAMMPS; numpy where it cannot be had) from
    submission to result.

    Makes a fresh root in a temporary folder, starts a supervisor there on free loopback ports,
    shows progress and output as they come, and ends by saying where result, record, logs and events
    are, with the job's story.
    """
    s = session()
    keep = os.environ.get("KEEP", "").lower() in ("1", "yes", "true") if keep is None else keep
    shown = _Shown(s)
    root = _fresh_root(s)
    try:
        computation = chosen(shown.say, root)
    except RuntimeError as e:
        raise Refusal("badConfig", str(e)) from None
    child_processes.adopt()
    supervisor = _started(root, shown)
    try:
        code = _computed(s, root, computation, shown)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            supervisor.terminate()
            child_processes.stop_all(STOP_SECS)
    shown.ended(root, supervisor.pid if keep else None)
    raise SystemExit(code)


class _Shown:
    """What the demo tells as it goes: stages with the time since its start, and the job's output
    with its progress.
    """

    def __init__(self, s: Session) -> None:
        self._screen = s.screen
        self._begun = time.monotonic()
        self._rest = b""

    def say(self, text: str) -> None:
        self._screen.message(f"[{time.monotonic() - self._begun:6.2f} s] {text}")

    def output(self, part: "LogPart", computation: Computation) -> None:
        """Whole lines of the job's output, each with how far the computation is."""
        *lines, self._rest = (self._rest + part.data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            permille = computation.permille(text)
            progress = "     " if permille is None else f"{permille / 10:3.0f} %"
            (self._screen.message if self._screen.json else self._screen.line)(
                f"{progress} | {text}"
            )

    def ended(self, root: Path, pid: int | None) -> None:
        self.say("done" if pid is None else f"done; the supervisor runs on as pid {pid}")
        if pid is None:
            self._screen.message(
                f"stopped; everything is still in {root} (remove it with: rm -r {root})"
            )
        else:
            self._screen.message(
                f"  jobscribe job list --root {root}\n  kill {pid}   # stops it; its agents and jobs would live on"
            )


def _fresh_root(s: Session) -> Path:
    given = s.options.get("root")
    if not given:
        return Path(tempfile.mkdtemp(prefix="jobscribe-demo-"))
    root = Path(given).absolute()
    if root.exists() and any(root.iterdir()):
        raise Refusal("badConfig", f"the demo wants a fresh root, and {root} is not empty")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def _started(root: Path, shown: _Shown) -> "subprocess.Popen[bytes]":
    """A supervisor of its own, ready. Its settings are the defaults, whatever the environment here
    says.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    said = root / "supervisor.err"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "jobscribe.cli",
                "up",
                "--no-web",
                "--root",
                str(root),
                "--port",
                "0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
            start_new_session=True,
        )
    line = _first_line(process)
    if not line.startswith("jobscribe ready "):
        process.kill()
        process.wait()
        raise Refusal(
            "internal",
            f"the supervisor did not start; it said: {said.read_text(errors='replace')[-2000:].strip() or 'nothing'}",
        )
    shown.say(line)
    return process


def _first_line(process: "subprocess.Popen[bytes]") -> str:
    """What it printed first, or nothing when it ended or took too long."""
    import select

    assert process.stdout is not None
    with process.stdout as out:
        ready, _, _ = select.select([out], [], [], READY_SECS)
        return out.readline().decode("utf-8", "replace").strip() if ready else ""


def _computed(s: Session, root: Path, computation: Computation, shown: _Shown) -> int:
    """Submit it, follow it, and tell where everything is; returns the job's exit code."""
    from ...client.sync_client import Client

    with Client.from_root(root) as client:
        job = client.run(computation.command, env=computation.env, sim_name=computation.title)
        shown.say(f"submitted {job.jid}: {computation.title}")
        pumps = [
            _pump(client, job, "stdout", shown, computation),
            _pump(client, job, "stderr", shown, computation),
        ]
        try:
            state = job.wait()
        except KeyboardInterrupt:
            s.screen.message("canceling")
            job.cancel("Ctrl-C at jobscribe demo")
            state = job.wait()
        for pump in pumps:
            pump.join()
        took = "" if state.elapsed_time is None else f" after {duration(state.elapsed_time)}"
        shown.say(f"{job.jid} {state.sentence()}{took}")
        _told(s, root, computation, job, state)
        return state.shell_code


def _pump(
    client: "Client", job: "Job", stream: Any, shown: _Shown, computation: Computation
) -> OutputStreamer:
    def sink(part: "LogPart") -> None:
        if stream == "stdout":
            shown.output(part, computation)
        else:
            shown.say(part.data.decode("utf-8", "replace").rstrip())

    return OutputStreamer(
        client.copy(), lambda c: c.logs(job.jid, stream, follow=True), sink, lambda _: None
    )


def _says(record: Path, status: str) -> bool:
    """Has the record come as far as the run?"""
    try:
        return bool(json.loads(record.read_bytes())["status"] == status)
    except FileNotFoundError:
        return False


def _told(s: Session, root: Path, computation: Computation, job: "Job", state: "RunState") -> None:
    """Where result, record, logs and events are, and the story."""
    record = root / "supervisor-job" / f"{job.jid}.json"
    deadline = time.monotonic() + RECORD_SECS
    while not _says(record, state.state) and time.monotonic() < deadline:
        time.sleep(0.05)
    story, logs = job.story(), job.why().get("logs") or []
    places = {
        "result": os.path.join(state.run_dir or "", computation.result),
        "record": str(record),
        "output": [str(path) for path in logs],
        "log": str(root / "log" / "supervisor.log"),
        "events": str(root / "db" / "events.sqlite"),
    }
    if s.screen.json:
        what = {"computeJid": job.jid, "status": state.raw, "root": str(root)}
        s.screen.value("jobscribe.demo/1", {**what, **places, "story": story["lines"]})
        return
    s.screen.line("")
    for name, place in places.items():
        for i, path in enumerate(place if isinstance(place, list) else [place]):
            s.screen.line(f"{name if i == 0 else '':<8}{path}")
    s.screen.line("story")
    for line in story["lines"]:
        s.screen.line(f"  {line}")
