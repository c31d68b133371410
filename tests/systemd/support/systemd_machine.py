"""A machine with its own systemd (etc/engines/systemd.sh), with jobscribe installed as
docs/operations.md says.

Tests see its files below /proc/<pid of its process 1>/root, and reach its loopback network through
a socket created inside it.
"""

import ctypes
import http.client
import io
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "etc" / "engines" / "systemd.sh"
#: Twenty times the longest duration of anything here on an idle machine.
DEADLINE_SECS = 40.0
STATE = "/var/lib/jobscribe"
SUPERVISOR, SERVER = "jobscribe-supervisor", "jobscribe-server"
UID = "SystemU1"
#: Shorter than the shipped values where tests would only wait.
HURRY = "[Service]\nRestartSec=300ms\n"

#: Folders that `PrivateTmp=` replaces.
PRIVATE = ("/tmp/", "/var/tmp/")

_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count(1)


def until(true: Callable[[], Any], what: str, secs: float = DEADLINE_SECS) -> Any:
    """Return the first truthy result of `true`; fail after a deadline."""
    deadline = time.monotonic() + secs
    while not (found := true()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {secs:g} s: {what}")
        time.sleep(0.03)
    return found


def recipes(page: str = "docs/operations.md") -> list[str]:
    """Return the commands in each code block of a documentation page."""
    return [
        block.split("```")[0]
        for block in (ROOT / page).read_text(encoding="utf-8").split("```sh\n")[1:]
    ]


#: Arguments of env(1) for commands in a machine.
_INSIDE = (
    "--chdir=/",
    "-i",
    "HOME=/root",
    "LANG=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)


class Machine:
    """A systemd machine; `up` starts it. cgroup: CGROUP of the script."""

    def __init__(self, name: str, cgroup: str = "") -> None:
        self.name = f"{name}-{os.getpid()}"
        self._place = tempfile.mkdtemp(prefix="jobscribe-systemd-", dir="/tmp")
        self._env = {
            "PATH": os.environ["PATH"],
            "DIR": self._place,
            "BIND": " ".join(_hidden()),
            "CGROUP": cgroup,
        }
        self._ticks = 0

    # ---- the machine

    def up(self) -> "Machine":
        """Start the machine, or skip the test if such a machine is not available."""
        checked = subprocess.run(
            [SCRIPT, "check"], env=self._env, capture_output=True, text=True, timeout=110
        )
        if checked.returncode:
            pytest.skip(
                f"no systemd of one's own: {checked.stderr.strip()} (etc/engines/systemd.sh check)"
            )
        self._script("up")
        # the test environment may lie below a folder that only root may enter
        self.sh(
            "chmod a+x "
            + " ".join({str(p) for path in _needed() for p in Path(path).parents})
            + " || true"
        )
        return self

    def down(self) -> None:
        self._script("down")
        os.rmdir(self._place)

    def reboot(self) -> None:
        before = self._first
        self.run("systemctl", "reboot", code=None)
        until(
            lambda: (
                self._first != before
                and self.run("systemctl", "is-system-running", code=None).strip() == "running"
            ),
            "it is up again",
        )

    @property
    def _first(self) -> str:
        return Path(self._place, self.name, "pid").read_text().strip()

    @property
    def files(self) -> Path:
        """Return the machine's root folder as seen from outside."""
        return Path(f"/proc/{self._first}/root")

    def at(self, path: str) -> Path:
        return self.files / path.lstrip("/")

    def run(self, *command: str, code: int | None = 0, given: bytes = b"") -> str:
        """Run a command in the machine and return its output; `code` is the required exit code."""
        # as `systemd.sh exec` does, which takes twice the processor time: tests ask often
        done = subprocess.run(
            ["nsenter", "--target", self._first, "--all", "--root", "env", *_INSIDE, *command],
            env=self._env,
            input=given,
            capture_output=True,
            timeout=100,
        )
        said = done.stdout.decode(errors="replace")
        assert code is None or done.returncode == code, (
            command,
            done.returncode,
            said[-2000:],
            done.stderr.decode(errors="replace")[-3000:],
        )
        return said if code == 0 else said + done.stderr.decode(errors="replace")

    def sh(self, text: str, code: int | None = 0) -> str:
        return self.run("sh", "-ec", text, code=code)

    def _script(self, verb: str) -> str:
        # no pipes: background processes of the command would keep them open
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [SCRIPT, verb, self.name],
                env=self._env,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                timeout=100,
            )
            said.seek(0)
            text = said.read().decode(errors="replace")
        assert done.returncode == 0, text
        return text

    # ---- what is installed

    def install(self) -> None:
        """Follow all of "Install" in docs/operations.md, but use the packages of the test
        environment instead of an index.
        """
        account, program, configuration, units = recipes()[:4]
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in ("etc", "protocol/version.py"):
                tar.add(ROOT / name, name, filter=_readable)
        self.run(
            "sh", "-ec", "mkdir -p /root/source && tar -xC /root/source", given=archive.getvalue()
        )
        self.sh("cd /root/source\n" + account)
        install = "/opt/jobscribe/$version/bin/pip install .\n"
        assert program.count(install) == 1 and program.count("python3 -m venv ") == 1
        base = os.path.realpath(sys.executable)
        self.sh(
            "cd /root/source\n"
            + program.replace(install, "").replace(
                "python3 -m venv ", f"{base} -m venv --without-pip "
            )
        )
        self.fill(self.current())
        probe = "import jobscribe.supervisor.app, jobscribe.web.server.processes, jobscribe.agent.process"
        said = self.run(
            "runuser",
            "-u",
            "jobscribe",
            "--",
            "/opt/jobscribe/current/bin/python",
            "-c",
            probe,
            code=None,
        )
        if "PermissionError" in said or "ModuleNotFoundError" in said:
            pytest.skip(
                "another user cannot read the packages that the tests run with: install them with umask 022"
            )
        assert said == "", said
        self.sh("cd /root/source\n" + configuration)
        assert units.count("jobscribe install-units --config /etc/jobscribe.toml --now") == 1
        self.drop_in("hurry", HURRY)
        # the front end has a private /tmp and /var/tmp, which hide these tests' packages there
        shown = sorted({*_hidden(), *(p for p in _needed() if p.startswith(PRIVATE))})
        self.drop_in("hurry", HURRY + f"BindReadOnlyPaths={' '.join(shown)}\n", SERVER)
        self.sh("cd /root/source\n" + units, code=None)
        assert self.shows("ActiveState") == "active", "\n".join(self.journal()[-40:])

    def fill(self, version: str) -> None:
        """Write the files that `pip install .` would create in the environment of this version."""
        inside = f"/opt/jobscribe/{version}"
        (packages,) = self.at(inside).glob("lib/python3*/site-packages")
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in (*_product(), "etc/systemd"):
                tar.add(ROOT / name, f"jobscribe/{name}", filter=_compiled)
        self.run(
            "tar", "-xC", "/" + str(packages.relative_to(self.files)), given=archive.getvalue()
        )
        packages.joinpath("tests-environment.pth").write_text(
            "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) + "\n"
        )
        script = self.at(inside) / "bin" / "jobscribe"
        script.write_text(
            f"#!{inside}/bin/python\nimport sys\nfrom jobscribe.cli.main import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)

    def current(self) -> str:
        """Return the version that is started."""
        return os.readlink(self.at("/opt/jobscribe/current"))

    def drop_in(self, name: str, text: str, unit: str = SUPERVISOR) -> None:
        """Change a unit as docs/operations.md says; an empty text removes the change. Takes effect
        at the next restart.
        """
        path = self.at(f"/etc/systemd/system/{unit}.service.d/{name}.conf")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text:
            path.write_text(text)
        else:
            path.unlink(missing_ok=True)
        self.run("systemctl", "daemon-reload")

    # ---- units

    def systemctl(self, verb: str, *more: str, unit: str = SUPERVISOR, code: int | None = 0) -> str:
        return self.run("systemctl", verb, *more, unit, code=code)

    def shows(self, name: str, unit: str = SUPERVISOR) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def main_pid(self, unit: str = SUPERVISOR) -> int:
        """Return the pid of the unit's main process inside the machine; 0 if none."""
        return int(self.shows("MainPID", unit))

    def cursor(self) -> str:
        """Return the current end of the journal."""
        return (
            self.run("journalctl", "--show-cursor", "-n", "0").rpartition("-- cursor: ")[2].strip()
        )

    def journal(self, *, unit: str = SUPERVISOR, since: str = "", own: bool = False) -> list[str]:
        """Return the journal lines about a unit, oldest first. own: only lines that its processes
        wrote.
        """
        self.run("journalctl", "--sync")
        after = [f"--after-cursor={since}"] if since else []
        chosen = [f"_SYSTEMD_UNIT={unit}.service"] if own else ["-u", unit]
        return self.run(
            "journalctl", "--no-pager", "-o", "cat", "--all", *after, *chosen
        ).splitlines()

    def serving(self, session: int | None = None) -> None:
        """Wait until the supervisor's unit is active, as an operator would."""
        until(lambda: self.shows("ActiveState") == "active", "the supervisor is active")

    # ---- processes

    def ticks(self, pid: int) -> str | None:
        """Return the start time of a process in the machine; None if it does not exist or is a
        zombie.
        """
        try:
            fields = (self.files / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else fields[19]

    def titled(self, name: str) -> list[int]:
        """Return the machine's pids whose title is `jobscribe <name>`."""
        wanted = f"jobscribe {name} {STATE}".encode()
        return [
            int(p.name)
            for p in (self.files / "proc").iterdir()
            if p.name.isdigit() and _cmdline(p).rstrip(b"\0") == wanted
        ]

    # ---- requests

    def connection(self, port: int, timeout: float = 30.0) -> http.client.HTTPConnection:
        """Connect to a port of the machine's loopback network."""
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        made.sock = self.socket(lambda: socket.create_connection(("127.0.0.1", port), timeout))
        return made

    def socket(self, make: Callable[[], socket.socket]) -> socket.socket:
        """Create a socket in the machine's network. A socket stays in the network where it was
        created, wherever it is used.
        """
        made: list[socket.socket | OSError] = []

        def enter() -> None:
            try:
                with open(f"/proc/{self._first}/ns/net", "rb") as net:
                    if _libc.setns(net.fileno(), _NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "its network cannot be entered")
                made.append(make())
            except OSError as e:
                made.append(e)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        port: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return status and JSON of one request; without a port, send it to the supervisor with its
        secret.
        """
        said = json.loads(self.at(f"{STATE}/client.json").read_text())
        port = port or int(said["url"].rpartition(":")[2])
        sent = {"Authorization": "Bearer " + said["token"]} if headers is None else headers
        connection = self.connection(port)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body).encode(), sent
            )
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> Any:
        try:
            code, answer = self.ask("POST", "/api/" + path, body)
        except ConnectionRefusedError:
            pytest.fail("the supervisor is not there:\n" + "\n".join(self.journal()[-40:]))
        assert code == 200, (path, code, answer)
        return answer


class Job:
    """A run of a shell command on the machine. It writes its pid into `pid` before the command
    starts.
    """

    def __init__(self, machine: Machine, text: str) -> None:
        number = next(_numbers)
        self._machine, self._sid = machine, f"s{number:07d}"
        run = {
            "uid": UID,
            "simulationId": self._sid,
            "command": ["/bin/sh", "-c", f"echo $$ > pid.new; mv pid.new pid; {text}"],
        }
        self.jid = f"{UID}-{self._sid}-command"
        machine.post("run-simulation", reqId=f"request-{os.getpid()}-{number}", run=run)
        self.pid, self.ticks = 0, ""

    @property
    def folder(self) -> Path:
        """Return the run directory."""
        return self._machine.at(f"{STATE}/user/{UID}/command/{self._sid}/command")

    def running(self) -> "Job":
        """Wait until the job runs and the supervisor knows it."""
        until(lambda: (self.folder / "pid").exists(), f"{self.jid} begins")
        self.pid = int((self.folder / "pid").read_text())
        self.ticks = self._machine.ticks(self.pid) or ""
        assert self.ticks
        until(lambda: self.status()["state"] == "running", f"{self.jid} is known to run")
        return self

    def lives(self) -> bool:
        """Return whether the original process is still alive."""
        return bool(self.ticks) and self._machine.ticks(self.pid) == self.ticks

    def let_go(self) -> None:
        """Release a job that waits for the file `go`."""
        (self.folder / "go").touch()

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._machine.post("run-status", uid=UID, computeJid=self.jid)
        return answer

    def over(self) -> dict[str, Any]:
        """Wait until no process of the job is left; return its status."""
        answer: dict[str, Any] = until(
            lambda: (said := self.status())["over"] and said, f"{self.jid} is over"
        )
        return answer


#: Exits with code 7 once released.
WAITS = "while [ ! -e go ]; do sleep 0.1; done; exit 7"


def _product() -> list[str]:
    packages = re.search(
        r"^PRODUCT = \((.*?)\)",
        (ROOT / "setup.py").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert packages is not None
    return ["__init__.py", *re.findall(r'"(\w+)"', packages[1])]


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else _compiled(entry)


def _compiled(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry that everybody can read, also of bytecode: pip compiles what it installs."""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    entry.uid = entry.gid = 0
    return entry


def _needed() -> list[str]:
    """Return the paths that the test interpreter needs."""
    return sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix)})


def _hidden() -> list[str]:
    """Return the paths that the machine cannot see: those on another file system than / or in /tmp."""
    return [
        p
        for p in _needed()
        if os.stat(p).st_dev != os.stat("/").st_dev or p.startswith(("/tmp/", "/run/", "/dev/"))
    ]


def _cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
