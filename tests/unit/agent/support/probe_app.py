"""An app for the worker tests: it changes its process in many ways, and reports the state that it
finds.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from jobscribe.apps.app import App, AppError, Frame, Model, Prepared, Report, Run

seen: list[str] = []


def find(args):
    """Return the process state that earlier calls could have changed."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.close(null)
    mask = os.umask(0)
    os.umask(mask)
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "cwd": os.getcwd(),
        "files": os.listdir(),
        "env": dict(os.environ),
        "umask": mask,
        "seen": seen,
        "term": str(signal.getsignal(signal.SIGTERM)),
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
        "child": str(signal.getsignal(signal.SIGCHLD)),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if n != str(null)),
        "path": sys.path,
        "random": random.random(),
        "temporary": tempfile.gettempdir(),
        "nice": os.nice(0),
        "argv": Path("/proc/self/cmdline").read_text(),
        "modules": len(sys.modules),
    }


def soil(args):
    """Change the process state that `find` reports."""
    Path("left.txt").write_text("left")
    tempfile.mkstemp()
    Path("folder/below").mkdir(parents=True)
    Path("folder/below/file").write_text("left")
    os.chdir("/")
    os.environ["SOILED"] = "yes"
    os.umask(0o007)
    seen.append("soiled")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    threading.Thread(target=time.sleep, args=(86400,), daemon=False).start()
    for _ in range(20):
        os.open("/dev/null", os.O_RDONLY)
    sys.path.append("/soiled")
    random.seed(1)
    os.nice(1)
    return "soiled"


def leave(args):
    """Start a process that tries to outlive the call."""
    subprocess.Popen(["/bin/sh", "-c", args["shell"]], start_new_session=True)
    if args.get("wait"):
        time.sleep(86400)
    if args.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 10  # wait until the process exists
    while (
        not os.path.exists("/proc/self/task/" + str(os.getpid()) + "/children") or not _children()
    ):
        assert time.monotonic() < until
    time.sleep(args.get("pause", 0.1))
    return "left"


def _children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def hang(args):
    Path(args["mark"]).touch()
    while True:
        time.sleep(86400)


def deaf(args):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    hang(args)


def in_c(args):
    """Hang in C code, where no Python signal handler runs."""
    Path(args["mark"]).touch()
    ctypes.PyDLL(None).pause()


def fail(args):
    raise ValueError("this number is no number:\n 7")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def unspeakable(args):
    raise Unspeakable


def say_no(args):
    raise AppError("the lattice must be positive")


def leave_by_exit(args):
    sys.exit(args["code"])


def leave_at_once(args):
    os._exit(args["code"])


def die(args):
    os.kill(os.getpid(), args["signal"])
    time.sleep(86400)


def crash(args):
    ctypes.string_at(0)


def write(args):
    """Write `bytes` bytes to stdout, without Python's buffers."""
    left = args["bytes"]
    while left:
        left -= os.write(args.get("fd", 1), b"x" * min(left, 1 << 20))
    return "written"


def scribble(args):
    """Write garbage to every open descriptor."""
    for name in os.listdir("/proc/self/fd"):
        try:
            os.write(int(name), bytes.fromhex(args["hex"]))
        except OSError:
            continue
    return "scribbled"


def speak(args):
    print(args["text"])
    print("and an error", file=sys.stderr)
    return 1


def close_all(args):
    os.closerange(0, 3)
    sys.stdout.close()
    return "closed"


def returns(args):
    return {
        "set": lambda: {"x": {"y": {1, 2}}},
        "nan": lambda: {"plots": [{"points": [0.0, 1.0, 2.0, float("nan")]}]},
        "bytes": lambda: [b"1"],
        "self": _circle,
        "object": lambda: object(),
        "big": lambda: "x" * args["size"],
        "half": lambda: "\ud800",
        "none": lambda: None,
    }[args["what"]]()


def _circle():
    circle: list = []
    circle.append(circle)
    return circle


def kill_parent(args):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(86400)


def nap(args):
    time.sleep(args["secs"])
    return os.getpid()


def late_import(args):
    """Import a module during the call."""
    there = "xmlrpc.client" in sys.modules
    import xmlrpc.client

    return {"there": there, "name": xmlrpc.client.__name__, "probe": "probe_app" in sys.modules}


def late_import_of_a_trap(args):
    """Import a module that only a call can import."""
    if args["how"] not in sys.modules:
        sys.path.insert(0, args["folder"])
    return __import__(args["how"]).__name__


def huge(args):
    return len(args["text"])


def frame(run: Run, asked: Frame):
    if asked.index > 2:
        raise AppError(f"there is no frame {asked.index} yet")
    return {
        "report": asked.report,
        "frameIndex": asked.index,
        "frameCount": 3,
        "args": asked.args,
        "runDir": str(run.run_dir),
        "data": run.data,
        "model": run.model,
        "lib": str(run.lib),
    }


def download(run: Run, suffix: str):
    if suffix == "outside":
        return "../secret"
    if suffix == "link":
        (run.run_dir / "link").symlink_to("/etc/passwd")
        return "link"
    if suffix == "number":
        return 7
    (run.run_dir / f"made.{suffix}").write_text("made")
    return f"made.{suffix}"


METHODS = (
    find,
    soil,
    leave,
    hang,
    deaf,
    in_c,
    fail,
    unspeakable,
    say_no,
    leave_by_exit,
    leave_at_once,
    die,
    crash,
    write,
    scribble,
    speak,
    close_all,
    returns,
    kill_parent,
    nap,
    late_import,
    late_import_of_a_trap,
    huge,
)

app = App(
    name="probe",
    title="Probe",
    version="1",
    models=(
        Model(
            name="m",
            title="M",
            kind="parallel",
            reports=(Report(name="plate", title="Plate", picture="heatmap"),),
        ),
    ),
    parameters=lambda data, model: {},
    prepare=lambda run: Prepared(command=("true",)),
    frame=frame,
    download=download,
    downloads=lambda run: tuple(sorted(p.name for p in run.run_dir.iterdir())),
    analysis={
        "where": lambda run, args: {
            "dir": str(run.run_dir),
            "lib": str(run.lib),
            "args": args,
            "data": run.data,
        }
    },
    stateful={"library": lambda lib, args: {"lib": str(lib), "args": args}},
    stateless={f.__name__: f for f in METHODS},
)
