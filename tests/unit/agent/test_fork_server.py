"""The fork server starts keepers that outlive it. A keeper started by a new interpreter behaves the
same.
"""

import errno
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jobscribe
from jobscribe.agent import fork_server as template_module
from jobscribe.runtime import processes

from .conftest import until

pytestmark = pytest.mark.process

# `make venv` creates this folder; it prevents imports of another `jobscribe` beside the checkout
_PATH = str(Path(jobscribe.__file__).parent / ".types")
#: Replaces jobscribe.agent.process: sends its identity, then echoes each message until the keeper
#: ends.
_AGENT = """
import json, os, socket
def run_agent(keeper_fd, root):
    assert isinstance(keeper_fd, int)
    with socket.socket(fileno=keeper_fd) as keeper, open(os.path.join(root, "agents"), "a") as seen:
        line = keeper.makefile("rb").readline()
        said = {"pid": os.getpid(), "ppid": os.getppid(), "sid": os.getsid(0), "root": root, "hello": json.loads(line),
                "open": sorted(os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)),
                "environ": dict(os.environ)}
        keeper.sendall(b'{"do": "here"}\\n')
        seen.write(json.dumps(said) + "\\n")
        seen.flush()
        while keeper.recv(65536):
            pass
"""
_numbers = itertools.count(1)


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="template-"))
    (path / "agents").touch()
    yield path
    for folder in path.glob("folder*"):
        said = json.loads((folder / "keeper.json").read_text())
        processes.send_signal(said["pid"], said["startTicks"], signal.SIGTERM)
        until(lambda said=said: not processes.alive(said["pid"], said["startTicks"]))
    shutil.rmtree(path)


@pytest.fixture
def package(tmp_path: Path) -> str:
    """Return an import path of this package with the stand-in agent above."""
    package = tmp_path / "jobscribe"
    package.mkdir()
    real = Path(jobscribe.__file__).parent
    for entry in real.iterdir():
        if entry.name not in ("agent", "__pycache__") and not entry.name.startswith("."):
            (package / entry.name).symlink_to(entry.resolve())
    shutil.copytree(real / "agent", package / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "agent" / "process.py").write_text(_AGENT)
    (package / "agent" / "__main__.py").write_text(
        "import sys\nfrom .process import run_agent\nrun_agent(int(sys.argv[sys.argv.index('--keeper-fd') + 1]), sys.argv[sys.argv.index('--root') + 1])\n"
    )
    return str(tmp_path)


class Template:
    def __init__(self, root: Path, package: str) -> None:
        self.root = root
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobscribe.agent.fork_server", "--root", str(root), "-" * 200],
            stdin=theirs,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": package,
                "HOME": "/",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        theirs.close()
        self.socket.settimeout(20)

    def ask(self, **request: Any) -> dict[str, Any]:
        self.socket.send(json.dumps(request).encode())
        answer: dict[str, Any] = json.loads(self.socket.recv(65536))
        return answer

    def keeper(self, **config: Any) -> dict[str, Any]:
        number = next(_numbers)
        return self.ask(
            id=number,
            keeper={
                "folder": str(self.root / f"folder{number}"),
                "agent": {"token": f"s3cret{number}"},
                **config,
            },
        )

    def agents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "agents").read_text().splitlines()]

    def close(self) -> None:
        self.socket.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def template(root: Path, package: str) -> Iterator[Template]:
    template = Template(root, package)
    yield template
    template.close()


def test_a_request_gets_a_keeper_with_an_agent(template: Template) -> None:
    answer = template.keeper()
    assert processes.alive(answer["pid"], answer["startTicks"])
    agent = until(template.agents)[0]
    assert agent["hello"]["agent"] == {"token": f"s3cret{answer['id']}"}
    assert (agent["hello"]["keeperPid"], agent["ppid"], agent["sid"]) == (
        answer["pid"],
        answer["pid"],
        agent["pid"],
    )
    assert os.getsid(answer["pid"]) == answer["pid"]
    assert agent["root"] == str(template.root)


def test_everybody_shows_in_ps_who_he_is_and_no_secret(template: Template) -> None:
    assert template.ask(id=1, ping=True) == {"id": 1, "pong": True}
    keeper = template.keeper()["pid"]
    until(template.agents)

    def title(pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()

    assert title(template.process.pid) == f"jobscribe template {template.root}"
    assert title(keeper) == f"jobscribe keeper {template.root}"
    assert Path(f"/proc/{keeper}/comm").read_text() == "jobscribe keepe\n"


def test_an_agent_inherits_nothing_but_its_end_of_the_link(template: Template) -> None:
    template.keeper(), template.keeper()
    for agent in until(lambda: len(template.agents()) == 2 and template.agents()):
        kinds = [
            o.split(":")[0]
            for o in agent["open"]
            if o not in (str(template.root / "agents"), "/dev/null")
        ]
        stdio = {os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in (1, 2)}
        assert kinds.count("socket") == 1 and set(kinds) <= {"socket"} | stdio
        assert not [o for o in agent["open"] if "lock" in o or "ledger" in o]
        assert "s3cret" not in str(agent["environ"])


def test_the_same_folder_twice_has_one_keeper(template: Template) -> None:
    first = template.keeper()
    until(lambda: (template.root / f"folder{first['id']}" / "keeper.json").exists())
    folder = template.root / f"folder{first['id']}"
    second = template.keeper(folder=str(folder))
    assert (
        second["error"]
        == f"the keeper ended with exit code 3: another keeper uses {folder}; this keeper ends"
    )
    assert processes.alive(first["pid"], first["startTicks"])
    until(
        lambda: (
            [p.pid for p in psutil.Process(template.process.pid).children()]
            == [psutil.Process(first["pid"]).ppid()]
        )
    )  # the reaper of the first keeper; the fork server leaves no zombies


# ---- failures before the agent starts are reported at once


def _broken(package: str, module: str, text: str) -> None:
    path = Path(package) / "jobscribe" / "agent" / module
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import no_such_module_of_anybody",
            "exit code 1: ModuleNotFoundError: No module named 'no_such_module_of_anybody'",
        ),
        (
            "def run_agent(fd, root):\n    raise OSError(28, 'No space left on device', root)",
            "exit code 1: OSError: [Errno 28] No space left on device",
        ),
        ("import os\ndef run_agent(fd, root):\n    os.kill(os.getpid(), 9)", "by signal 9"),
        ("def run_agent(fd, root):\n    raise SystemExit(7)", "exit code 7"),
    ],
)
def test_an_agent_that_ends_at_once_is_told_by_its_words_and_exit(
    root: Path, package: str, text: str, words: str
) -> None:
    _broken(package, "process.py", text)
    template = Template(root, package)
    began = time.monotonic()
    answer = template.keeper()
    assert (
        "pid" not in answer
        and answer["error"].startswith("the agent ended right after its start, ")
        and words in answer["error"]
    )
    assert time.monotonic() - began < 5 * 2
    keeper = json.loads((root / f"folder{answer['id']}" / "keeper.json").read_text())
    until(lambda: processes.find(keeper["pid"]) is None)  # no process is left, not even a zombie
    template.close()


def test_a_keeper_that_is_killed_before_it_has_an_agent_is_told(root: Path, package: str) -> None:
    _broken(
        package,
        "keeper/process.py",
        "TITLE = 'jobscribe keeper'\ndef run(config, spawn, first):\n    import os\n    os.kill(os.getpid(), 9)",
    )
    template = Template(root, package)
    assert "the keeper ended by signal 9" in template.keeper()["error"]
    template.close()
    for folder in root.glob("folder*"):
        shutil.rmtree(folder)


def test_a_keeper_that_cannot_use_its_folder_says_so(template: Template) -> None:
    (template.root / "a file").touch()
    answer = template.keeper(folder=str(template.root / "a file" / "below"))
    assert answer["error"].startswith(
        "the keeper ended with exit code 5: the keeper cannot use its folder: Not a directory"
    )


def test_no_process_left_is_told_by_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails as at a real limit, which would also affect the tests' own user."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    packet = json.dumps({"id": 7, "keeper": {"folder": "/nowhere", "agent": {}}}).encode()
    before = len(os.listdir("/proc/self/fd"))
    answer = template_module._handle_request(packet, "/", {}, select.poll())
    assert answer is not None and answer["id"] == 7
    assert answer["error"].startswith("cannot fork a keeper: cannot create another process")
    assert len(os.listdir("/proc/self/fd")) == before


def test_keepers_outlive_the_template(root: Path, package: str) -> None:
    template = Template(root, package)
    answer = template.keeper()
    until(template.agents)
    template.close()
    time.sleep(0.1)
    agent = template.agents()[0]
    assert processes.alive(answer["pid"], answer["startTicks"]) and psutil.pid_exists(agent["pid"])


def test_a_killed_agent_is_forked_anew(template: Template) -> None:
    answer = template.keeper()
    first = until(template.agents)[0]
    os.kill(first["pid"], signal.SIGKILL)
    second = until(lambda: len(template.agents()) == 2 and template.agents())[1]
    assert second["ppid"] == answer["pid"] and second["hello"]["agent"] == first["hello"]["agent"]


def test_an_agent_notices_that_its_keeper_is_gone(template: Template) -> None:
    answer = template.keeper()
    agent = until(template.agents)[0]
    os.kill(answer["pid"], signal.SIGKILL)
    until(
        lambda: (
            not psutil.pid_exists(agent["pid"])
            or psutil.Process(agent["pid"]).status() == psutil.STATUS_ZOMBIE
        )
    )


@pytest.mark.parametrize(
    "request_",
    [{"id": 3}, {"id": 3, "keeper": "x"}, {"id": 3, "keeper": {}}, {"id": 3, "dance": True}],
)
def test_what_is_no_request_is_answered_with_a_sentence(
    template: Template, request_: dict[str, Any]
) -> None:
    answer = template.ask(**request_)
    assert answer["id"] == 3 and "accepts only" in answer["error"]


def test_noise_is_answered_too(template: Template) -> None:
    for noise in (b"\xff\xfe", b"[]", b"{}", b'"x"'):
        template.socket.send(noise)
        assert "not a request" in json.loads(template.socket.recv(65536))["error"]
    assert template.ask(id=9, ping=True)["pong"]


def test_the_executed_form_does_the_same(root: Path, package: str) -> None:
    """Run `python -m jobscribe.agent.keeper` with its configuration on stdin, and stdout and stderr
    closed.
    """
    folder = root / "folder-exec"
    command = [
        sys.executable,
        "-m",
        "jobscribe.agent.keeper",
        "--root",
        str(root),
        "--folder",
        str(folder),
    ]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command],
        stdin=subprocess.PIPE,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": package,
            "JOBSCRIBE_SERVER_SECRET": "s3cret-of-the-server",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert process.stdin is not None
    process.stdin.write(
        json.dumps({"agent": {"token": "s3cret"}, "python": sys.executable}).encode()
    )
    process.stdin.close()

    def agents() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (root / "agents").read_text().splitlines()]

    agent = until(agents)[0]
    assert agent["hello"]["agent"] == {"token": "s3cret"}
    keeper = psutil.Process(agent["ppid"])
    assert (keeper.ppid(), agent["sid"]) == (process.pid, agent["pid"])
    assert "s3cret" not in str(agent["environ"]) and agent["environ"]["PYTHONPATH"] == package
    titles = [
        Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
        for pid in (process.pid, keeper.pid)
    ]
    assert titles == [f"jobscribe reaper {root}", f"jobscribe keeper {root}"]
    assert b"s3cret" not in Path(f"/proc/{agent['pid']}/cmdline").read_bytes()
    os.kill(agent["pid"], signal.SIGKILL)
    until(lambda: len(agents()) == 2)
    process.terminate()  # a reaper ends with its keeper only
    keeper.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        ([], b"{}", "usage"),
        (["--root", "/r"], b"{}", "usage"),
        (["--root", "/r", "--folder", "/f"], b"nonsense", "JSON"),
        (["--root", "/r", "--folder", "/f"], b"[]", "JSON"),
        (["--root", "/r", "--folder", "/f"], b"{}", "agent"),
    ],
)
def test_a_keeper_without_a_configuration_says_so(
    arguments: list[str], stdin: bytes, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobscribe.agent.keeper", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env={"PYTHONPATH": _PATH},
        timeout=20,
    )
    assert done.returncode == 2
    assert said in done.stderr.decode() or "Expecting value" in done.stderr.decode()


def test_the_keeper_imports_nothing_but_small_parts_of_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "jobscribe").symlink_to(Path(jobscribe.__file__).parent)
    program = "import sys, jobscribe.agent.keeper.process; print(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    # no site module: the package's installation does not matter here
    alone = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, env=alone
    )
    loaded = {m for m in done.stdout.split() if not m.startswith("_")}
    assert loaded - set(sys.stdlib_module_names) <= {
        "jobscribe",
        "sitecustomize",
        "usercustomize",
        "distutils-precedence",
    }
    assert not loaded & {
        "asyncio",
        "threading",
        "logging",
        "subprocess",
        "typing",
        "dataclasses",
        "argparse",
        "tempfile",
        "urllib",
        "ssl",
    }


def test_the_answer_comes_while_the_keeper_is_on_its_way(template: Template) -> None:
    """The fork server does not wait for its keepers: it answers sixteen requests at once."""
    for n in range(100, 116):
        template.socket.send(
            json.dumps(
                {"id": n, "keeper": {"folder": str(template.root / f"folder{n}"), "agent": {}}}
            ).encode()
        )
    answered = set()
    while len(answered) < 16:
        assert select.select([template.socket], [], [], 10)[0]
        answered.add(json.loads(template.socket.recv(65536))["id"])
    assert answered == set(range(100, 116))
    until(lambda: len(template.agents()) == 16, 20)
