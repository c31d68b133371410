"""The command `demo`: a real computation on a temporary supervisor, from submission to result, with
the paths of all files.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...client.local_site import child_processes
from ...protocol.errors import Refusal
from ..session.session import Session, command, session
from ..terminal.output_stream import OutputStreamer
from ..terminal.quantities import duration
from .computations import Computation, choose

if TYPE_CHECKING:
    from ...client.api.replies import LogPart, RunState
    from ...client.sync_client import Client, Job

READY_SECS = 30.0
STOP_SECS = 10.0
#: A record may lag behind the log by less than a second.
RECORD_SECS = 5.0
#: A job whose explanation can be seen.
FAILING = (sys.executable, "-c", 'open("temperatures.csv")')
FAILING_TITLE = "A job that fails: its input file is missing"


@command()
@click.option(
    "--keep",
    is_flag=True,
    default=None,
    help="Leave the supervisor running (also: KEEP=1 in the environment).",
)
def demo(keep: bool | None) -> None:
    """Run a real computation (LAMMPS, or numpy if LAMMPS is not available) from submission to
    result.

    Creates a root in a temporary folder, starts a supervisor and its pages there on free loopback
    ports, and shows progress and output. A second job fails, so that its explanation can be seen.
    At the end it prints the paths of result, record, logs and events, and the job's history. At a
    terminal, the pages stay until Enter is pressed.
    """
    s = session()
    keep = os.environ.get("KEEP", "").lower() in ("1", "yes", "true") if keep is None else keep
    screen = _DemoScreen(s)
    root = _fresh_root(s)
    try:
        computation = choose(screen.message, root)
    except RuntimeError as e:
        raise Refusal("badConfig", str(e)) from None
    child_processes.adopt()
    # a closed terminal also stops everything
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    supervisor, address = _start_supervisor(root, screen)
    try:
        code = _compute(s, root, computation, screen, address)
        if not keep and not s.screen.json and sys.stdin.isatty():
            screen.wait_for_enter(address)
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            supervisor.terminate()
            child_processes.stop_all(STOP_SECS)
    screen.ended(root, supervisor.pid if keep else None)
    raise SystemExit(code)


class _DemoScreen:
    """Prints the demo's stages with the time since its start, and the job's output with its
    progress.
    """

    def __init__(self, s: Session) -> None:
        self._screen = s.screen
        self._begun = time.monotonic()
        self._rest = b""

    def message(self, text: str) -> None:
        self._screen.message(f"[{time.monotonic() - self._begun:6.2f} s] {text}")

    def output(self, part: "LogPart", computation: Computation) -> None:
        """Print the complete lines of the job's output with the computation's progress."""
        *lines, self._rest = (self._rest + part.data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            permille = computation.permille(text)
            progress = "     " if permille is None else f"{permille / 10:3.0f} %"
            (self._screen.message if self._screen.json else self._screen.line)(
                f"{progress} | {text}"
            )

    def wait_for_enter(self, address: str) -> None:
        """Leave the pages to the user until Enter, Ctrl-C, or the end of the terminal."""
        self.message(f"the pages are at {address} until you press Enter")
        with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
            input()

    def ended(self, root: Path, pid: int | None) -> None:
        self.message("done" if pid is None else f"done; the supervisor keeps running as pid {pid}")
        if pid is None:
            self._screen.message(
                f"the supervisor is stopped; all files are in {root} (to remove them: rm -r {root})"
            )
        else:
            self._screen.message(
                f"  jobscribe job list --root {root}\n  kill {pid}   # stop the supervisor; its agents and jobs keep running"
            )


def _fresh_root(s: Session) -> Path:
    given = s.options.get("root")
    if not given:
        return Path(tempfile.mkdtemp(prefix="jobscribe-demo-"))
    root = Path(given).absolute()
    if root.exists() and any(root.iterdir()):
        raise Refusal("badConfig", f"the demo needs an empty root, and {root} is not empty")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def _start_supervisor(root: Path, screen: _DemoScreen) -> "tuple[subprocess.Popen[bytes], str]":
    """Start a supervisor with default settings, without the JOBSCRIBE_ variables of this
    environment, and wait until it is ready. Return it with the address of its pages.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
    error_file = root / "supervisor.err"
    with error_file.open("wb") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "jobscribe.cli",
                "up",
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
            f"the supervisor did not start; its output: {error_file.read_text(errors='replace')[-2000:].strip() or 'none'}",
        )
    screen.message(line)
    address = f"{line.split()[3]}/sign-in?page=jobs"
    screen.message(f"to see the jobs in a browser, open {address}")
    return process, address


def _first_line(process: "subprocess.Popen[bytes]") -> str:
    """Return the first line of the supervisor's output; empty if it ended or took longer than
    READY_SECS.
    """
    import select

    assert process.stdout is not None
    with process.stdout as out:
        ready, _, _ = select.select([out], [], [], READY_SECS)
        return out.readline().decode("utf-8", "replace").strip() if ready else ""


def _compute(
    s: Session, root: Path, computation: Computation, screen: _DemoScreen, address: str
) -> int:
    """Submit a job that fails and the computation, follow the computation, print all paths, and
    return its exit code.
    """
    from ...client.sync_client import Client

    with Client.from_root(root) as client:
        failing = client.run(FAILING, sim_name=FAILING_TITLE)
        screen.message(f"submitted {failing.jid}: {FAILING_TITLE}")
        job = client.run(computation.command, env=computation.env, sim_name=computation.title)
        screen.message(f"submitted {job.jid}: {computation.title}")
        streamers = [
            _stream(client, job, "stdout", screen, computation),
            _stream(client, job, "stderr", screen, computation),
        ]
        try:
            state = job.wait()
        except KeyboardInterrupt:
            s.screen.message("canceling")
            job.cancel("Ctrl-C at jobscribe demo")
            state = job.wait()
        for streamer in streamers:
            streamer.join()
        took = "" if state.elapsed_time is None else f" after {duration(state.elapsed_time)}"
        screen.message(f"{job.jid} {state.sentence()}{took}")
        _wait_for_records(root, {job.jid: state.state, failing.jid: failing.wait().state})
        _print_paths(s, root, computation, job, state, {"page": address, "failed": failing.jid})
        return state.shell_code


def _stream(
    client: "Client", job: "Job", stream: Any, screen: _DemoScreen, computation: Computation
) -> OutputStreamer:
    def sink(part: "LogPart") -> None:
        if stream == "stdout":
            screen.output(part, computation)
        else:
            screen.message(part.data.decode("utf-8", "replace").rstrip())

    return OutputStreamer(
        client.copy(), lambda c: c.logs(job.jid, stream, follow=True), sink, lambda _: None
    )


def _record(root: Path, jid: str) -> Path:
    return root / "supervisor-job" / f"{jid}.json"


def _wait_for_records(root: Path, statuses: dict[str, str]) -> None:
    """Wait until the records show these final statuses of the runs, at most RECORD_SECS."""
    deadline = time.monotonic() + RECORD_SECS
    for jid, status in statuses.items():
        while not _has_status(_record(root, jid), status) and time.monotonic() < deadline:
            time.sleep(0.05)


def _has_status(record: Path, status: str) -> bool:
    try:
        return bool(json.loads(record.read_bytes())["status"] == status)
    except FileNotFoundError:
        return False


def _print_paths(
    s: Session,
    root: Path,
    computation: Computation,
    job: "Job",
    state: "RunState",
    others: dict[str, str],
) -> None:
    """Print the paths of result, record, logs and events, and the job's history. others: values of
    the JSON form alone.
    """
    story, logs = job.story(), job.why().get("logs") or []
    paths = {
        "result": os.path.join(state.run_dir or "", computation.result),
        "record": str(_record(root, job.jid)),
        "output": [str(path) for path in logs],
        "log": str(root / "log" / "supervisor.log"),
        "events": str(root / "db" / "events.sqlite"),
    }
    if s.screen.json:
        summary = {"computeJid": job.jid, "status": state.raw, "root": str(root), **others}
        s.screen.value("jobscribe.demo/1", {**summary, **paths, "story": story["lines"]})
        return
    s.screen.line("")
    for name, value in paths.items():
        for i, path in enumerate(value if isinstance(value, list) else [value]):
            s.screen.line(f"{name if i == 0 else '':<8}{path}")
    s.screen.line("story")
    for line in story["lines"]:
        s.screen.line(f"  {line}")
