"""The worker process on its own: its answers to the agent, and its end together with the agent."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import process_search
import psutil
import pytest

import jobscribe
from jobscribe.agent.workers.call_handler import Outcome
from jobscribe.agent.workers.worker_process import Setting, WorkerEvent, WorkerOrder
from jobscribe.protocol.wire.messages import Call

from ..conftest import until

pytestmark = pytest.mark.process

_PATH = os.pathsep.join(
    [str(Path(jobscribe.__file__).parent / ".types"), str(Path(__file__).parents[1] / "support")]
)
_AGENT = Path(__file__).parents[1] / "support" / "calling_agent.py"
_numbers = itertools.count(1)


class Worker:
    """A worker process, as its agent sees it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "calls"
        self.folder.mkdir()
        self.opened: list[tuple[socket.socket, int]] = []
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)
        with (place / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "jobscribe.agent.workers.worker_process",
                    "--root",
                    str(place),
                    "x" * 40,
                ],
                stdin=theirs,
                cwd="/",
                env={"PATH": os.environ["PATH"], "PYTHONPATH": _PATH},
                start_new_session=True,
                stderr=stderr,
            )
        theirs.close()
        self.send(
            Setting(
                folder=str(self.folder),
                umask=0o027,
                path="/from/the/login",
                also=("probe=probe_app:app",),
            )
        )

    def send(self, what: Setting | WorkerOrder) -> None:
        self.socket.send(msgspec.msgpack.encode(what))

    def next(self) -> tuple[WorkerEvent, list[int]]:
        packet, fds, _, _ = socket.recv_fds(self.socket, 65536, 2)
        assert packet, (self.place / "stderr").read_text()
        return msgspec.msgpack.decode(packet, type=WorkerEvent), fds

    def fork(self) -> tuple[int, socket.socket, int]:
        self.send(WorkerOrder("fork"))
        news, fds = self.next()
        assert news.said == "forked" and len(fds) == 2
        channel = socket.socket(fileno=fds[0])
        channel.settimeout(10)
        self.opened += [(channel, fds[1])]
        return news.pid, channel, fds[1]

    def ask(self, channel: socket.socket, method: str, args: dict | None = None) -> None:
        body = msgspec.msgpack.encode(call(method, args))
        channel.sendall(len(body).to_bytes(4) + body)

    def close(self) -> None:
        self.socket.close()
        for channel, output in self.opened:
            channel.close()
            os.close(output)
        assert self.process.wait(60) == 0, (self.place / "stderr").read_text()
        assert (self.place / "stderr").read_text() == ""
        assert not self.folder.exists()


def call(method: str, args: dict | None = None) -> Call:
    return Call(
        op_id="0" * 32,
        job_cmd="stateless_compute",
        simulation_type="probe",
        compute_model="m",
        method=method,
        lib_dir="/lib",
        args=args or {},
        deadline_secs=10,
        reply_limit=100_000,
    )


def outcome(channel: socket.socket) -> Outcome:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
        more = channel.recv(65536)
        assert more
        data += more
    return msgspec.msgpack.decode(data[4:], type=Outcome)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.close()


def test_a_fork_answers_its_call_and_ends(worker: Worker) -> None:
    pid, channel, output = worker.fork()
    worker.ask(channel, "speak", {"text": "hello"})
    said = outcome(channel)
    assert (said.code, said.reply, said.loaded) == (None, b"1", True)
    assert "probe_app" in said.imported
    assert os.read(output, 1000) == b"hello\nand an error\n"
    news, _ = worker.next()
    assert (news.said, news.pid, news.status) == ("ended", pid, 0)
    channel.close()


def test_a_call_finds_what_its_login_says(worker: Worker) -> None:
    _, channel, _ = worker.fork()
    worker.ask(channel, "find")
    found = json.loads(outcome(channel).reply)
    assert found["umask"] == 0o027 and found["env"]["PYTHONPATH"] == "/from/the/login"
    assert (
        found["cwd"].startswith(f"{worker.folder}/")
        and str(Path(__file__).parents[1] / "support") in found["path"]
    )
    assert (
        "" not in found["path"] and "/" not in found["path"]
    )  # its working folder is not on the import path
    worker.next()
    channel.close()


def test_a_fork_that_is_not_needed_ends_with_its_channel(worker: Worker) -> None:
    pid, channel, _ = worker.fork()
    channel.close()
    news, _ = worker.next()
    assert (news.said, news.pid, news.status) == ("ended", pid, 0)


@pytest.mark.parametrize("change", ["file", "mode", "attribute", "link", "nothing"])
def test_only_a_folder_that_is_as_it_was_made_is_used_again(
    worker: Worker, tmp_path: Path, change: str
) -> None:
    _, channel, _ = worker.fork()
    folder = worker.folder / "1"
    match change:
        case "file":
            (folder / "left").touch()
        case "mode":
            folder.chmod(0o750)
        case "attribute":
            os.setxattr(folder, "user.left", b"something")
        case "link":
            folder.rmdir()
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "elsewhere")
        case "nothing":
            pass
    channel.close()
    assert worker.next()[0].said == "ended"
    _, channel, _ = worker.fork()
    worker.ask(channel, "find")
    found = json.loads(outcome(channel).reply)
    assert (found["cwd"] == str(folder)) is (change == "nothing")
    assert found["files"] == []
    worker.next()
    channel.close()


def test_what_was_loaded_is_there_in_the_next_fork_only(worker: Worker) -> None:
    _, old, _ = worker.fork()
    worker.send(WorkerOrder("load", app="probe", modules=("xmlrpc", "xmlrpc.client")))
    assert worker.next()[0] == WorkerEvent("loaded")
    _, new, _ = worker.fork()
    for channel, there in ((old, False), (new, True)):
        worker.ask(channel, "late_import")
        said = outcome(channel)
        assert json.loads(said.reply)["there"] is there and said.loaded is not there
        assert ("xmlrpc.client" in said.imported) is not there
        worker.next()
        channel.close()


def test_an_order_that_it_does_not_know_or_that_comes_late(worker: Worker) -> None:
    worker.send(WorkerOrder("dance"))
    news, _ = worker.next()
    assert news.said == "trouble" and "dance" in news.sentence
    pid, channel, _ = worker.fork()
    channel.close()
    worker.next()
    worker.send(WorkerOrder("kill", pid=pid))  # the process has already ended
    worker.send(WorkerOrder("kill", pid=os.getpid()))  # not one of the worker's forks
    worker.send(WorkerOrder("load", modules=("no_such_module",)))
    assert "no_such_module" in worker.next()[0].sentence


def test_that_no_fork_can_be_made_is_said(worker: Worker) -> None:
    worker.folder.rmdir()
    worker.send(WorkerOrder("fork"))
    news, fds = worker.next()
    assert news.said == "trouble" and "No such file" in news.sentence and not fds
    worker.folder.mkdir()
    _, channel, _ = worker.fork()
    channel.close()
    worker.next()


def test_it_wants_its_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobscribe.agent.workers.worker_process", "--help"],
        env={"PYTHONPATH": _PATH},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2 and "usage" in done.stderr


# ---- end of the agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts an agent, which makes the given calls."""
    made: list[subprocess.Popen[bytes]] = []

    def start(*calls: tuple[str, dict], path: Path = tmp_path) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{_PATH}:{path}"}
        made.append(
            subprocess.Popen(
                [sys.executable, str(_AGENT), str(tmp_path), json.dumps(calls)],
                env=env,
                stderr=subprocess.DEVNULL,
            )
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def gone(p: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return p.status() == psutil.STATUS_ZOMBIE
    return True


def test_when_its_agent_is_killed_it_ends_with_all_calls_and_what_they_have_started(
    tmp_path: Path, agent: Callable[..., subprocess.Popen[bytes]]
) -> None:
    nap = f"86400.{os.getpid()}{next(_numbers):04d}"
    daemon = f"( setsid sh -c 'sleep {nap} & exec sleep {nap}' & ); exit 0"
    process = agent(
        ("deaf", {"mark": str(tmp_path / "deaf")}), ("leave", {"shell": daemon, "wait": True})
    )
    until((tmp_path / "deaf").exists)
    until((tmp_path / "worker").exists)
    there = until(
        lambda: (
            (b := below(process.pid))
            and sum(nap in " ".join(p.cmdline()) for p in b if not gone(p)) >= 2
            and b
        )
    )
    worker = int((tmp_path / "worker").read_text())
    assert worker in [p.pid for p in there]
    process.kill()
    until(lambda: all(map(gone, there)))
    assert process_search.pids_with(nap) == []
    until(lambda: not (tmp_path / "calls").exists())


def test_when_its_agent_is_killed_while_it_imports_it_ends_too(
    tmp_path: Path, agent: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A hanging import does not notice the closed socket. Running calls end too."""
    (tmp_path / "modules").mkdir()
    trap = "import os, pathlib, time\nparent = pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_text()\n"
    trap += f"if 'calling_agent' in parent:\n    pathlib.Path('{tmp_path}/hangs').touch()\n    time.sleep(86400)\n"
    (tmp_path / "modules/trap_hangs.py").write_text(trap)
    calls = (
        ("late_import_of_a_trap", {"folder": str(tmp_path / "modules"), "how": "trap_hangs"}),
        ("hang", {"mark": str(tmp_path / "mark")}),
    )
    process = agent(*calls, path=tmp_path / "modules")
    until((tmp_path / "hangs").exists)
    until((tmp_path / "mark").exists)
    there = below(process.pid)
    assert len(there) >= 2
    process.kill()
    until(lambda: all(map(gone, there)))
