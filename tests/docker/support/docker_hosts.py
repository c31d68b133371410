"""Two real Docker hosts for these tests (etc/engines/docker.sh), and supervisors that use them.

All folders and ports are unique to the session. Leftovers of a test are removed from a host by the
label of its deployment.
"""

import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from supervisor_process import SupervisorProcess

from jobscribe.drivers.deployment_name import deployment

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "etc" / "engines" / "docker.sh"
AGENT, BASE, BUSYBOX, NOSHELL = (
    "jobscribe-test/agent:1",
    "jobscribe-test/base:12",
    "jobscribe-test/busybox:1",
    "jobscribe-test/noshell:1",
)
NAMES = ("a", "b")
#: Five times the slowest call on a busy machine.
CALL_SECS = 100.0
#: A daemon that does not answer for this time is frozen or overloaded (seconds).
PING_SECS = 10.0
#: Number of this xdist worker. Workers use other ports and ids, so that two may have hosts at once.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
#: Unix ids for test containers; no machine has users with such high ids.
UNIX_USERS = (1_900_000_000 + 1000 * WORKER, 1_900_000_999 + 1000 * WORKER)


class Refused(Exception):
    """A command ended with an unexpected exit code; the message is its output."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, secs: float) -> None:
        super().__init__("localhost", timeout=secs)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Host:
    """One of the two hosts. Commands use its daemon's own socket, which works even if its port is
    blocked. What tests ask often is asked without a docker command: that takes a tenth of the
    processor time.
    """

    def __init__(self, hosts: "Hosts", name: str, port: int) -> None:
        self._hosts, self.name, self.port = hosts, name, port
        self.address = f"tcp://127.0.0.1:{port}"
        self.tls = hosts.place / "tls" / name
        self.sock = hosts.place / name / "sock"
        self.command = ("docker", "-H", f"unix://{self.sock}")
        #: whether its daemon or port may be in another state than `well` leaves them in
        self._disturbed = False

    def call(
        self, method: str, path: str, secs: float = CALL_SECS, **query: object
    ) -> tuple[int, Any]:
        """Return status and answer of the Docker API (None without a body). query: a dict is
        encoded as JSON.
        """
        words = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in query.items()}
        connection = _Connection(self.sock, secs)
        try:
            connection.request(method, f"/v1.41{path}?{urllib.parse.urlencode(words)}")
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        isjson = (answer.getheader("Content-Type") or "").startswith("application/json")
        return answer.status, json.loads(text) if isjson else text.decode() or None

    def _got(self, path: str, **query: object) -> Any:
        code, said = self.call("GET", path, **query)
        if code != 200:
            raise Refused(f"{path} on {self.name}: {code} {said}")
        return said

    def docker(self, *args: str, code: int | None = 0, given: str | None = None) -> str:
        """Return the command's output (both streams if it may fail). code: required exit code;
        None: any.
        """
        done = subprocess.run(
            [*self.command, *args],
            input=given,
            capture_output=True,
            text=True,
            timeout=CALL_SECS,
            env=_environment(),
        )
        if code is not None and done.returncode != code:
            raise Refused(
                f"docker {' '.join(args)} on {self.name}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout if code == 0 else done.stdout + done.stderr

    def inspect(self, name: str) -> dict[str, Any]:
        """Return the daemon's data about a container, or {} if it does not exist."""
        code, said = self.call("GET", f"/containers/{name}/json")
        if code not in (200, 404):
            raise Refused(f"inspect {name} on {self.name}: {code} {said}")
        found: dict[str, Any] = said if code == 200 else {}
        return found

    def containers(self, *labels: str, running: bool = False) -> list[str]:
        """Return the names of containers with these labels (`jobscribe.part=agent`), including
        ended ones unless `running`.
        """
        found = self._got("/containers/json", all=int(not running), filters={"label": list(labels)})
        return [name[1:] for c in found for name in c["Names"] if "/" not in name[1:]]

    def run(self, *args: str, image: str = BASE) -> str:
        """Run a container manually with minimal rights; return its output."""
        return self.docker(
            "run",
            "--rm",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            *args[:-1],
            image,
            "/bin/sh",
            "-c",
            args[-1],
        )

    def pid(self) -> int:
        """Pid of the daemon."""
        return int((self._hosts.place / self.name / "pid").read_text())

    def start(self) -> None:
        self._hosts.script("start", self.name)

    def stop(self) -> None:
        self._disturbed = True
        self._hosts.script("stop", self.name)

    def restart(self) -> None:
        self._disturbed = True
        self._hosts.script("restart", self.name)

    def crash(self) -> None:
        """Kill the daemon; its containers run on. `start` restarts it."""
        self._disturbed = True
        self._hosts.script("crash", self.name)

    def freeze(self) -> None:
        self._disturbed = True
        self._hosts.script("freeze", self.name)

    def thaw(self) -> None:
        self._hosts.script("thaw", self.name)

    def cut(self, way: str = "drop") -> None:
        """Block the port with a firewall rule. way: drop (no answer) or reject."""
        self._disturbed = True
        self._hosts.script("cut", self.name, way)

    def mend(self) -> None:
        self._hosts.script("mend", self.name)

    def well(self) -> None:
        """Restore the original state."""
        if self._disturbed or not self._answers():
            self._hosts.script("well", self.name)
        self._disturbed = False

    def _answers(self) -> bool:
        try:
            return self.call("GET", "/_ping", PING_SECS)[0] == 200
        except OSError:
            return False

    def clear(self, deployments: Sequence[str]) -> None:
        """Remove every container, network and volume of these deployments, including those still
        being created when the supervisor was killed.
        """
        for left in (3, 2, 1, 0):
            try:
                return self._clear(deployments)
            except Refused:
                if not left:
                    raise
                time.sleep(1.0)  # a daemon may count a removed container for a moment

    def _clear(self, deployments: Sequence[str]) -> None:
        for whose in deployments:
            mark = {"label": [f"jobscribe.deployment={whose}"]}
            containers = self._got("/containers/json", all=1, filters=mark)
            self._remove("containers", [c["Id"] for c in containers], force=1)
            self._remove("networks", [n["Id"] for n in self._got("/networks", filters=mark)])
            volumes = self._got("/volumes", filters=mark)["Volumes"] or ()
            self._remove("volumes", [v["Name"] for v in volumes], force=1)
            self.call("DELETE", f"/volumes/jobscribe-links-{whose}", force=1)

    def _remove(self, kind: str, ids: Sequence[str], **query: object) -> None:
        if not ids:
            return
        with ThreadPoolExecutor(8) as pool:
            done = pool.map(lambda id_: self.call("DELETE", f"/{kind}/{id_}", **query), ids)
            wrong = [said for code, said in done if code not in (200, 204, 404)]
        if wrong:
            raise Refused(f"{kind} of {self.name} cannot be removed: {wrong}")

    def deployments(self) -> dict[str, set[str]]:
        """Return the deployments with containers here, with their containers' details."""
        rows = self._got("/containers/json", all=1, filters={"label": ["jobscribe.deployment"]})
        out: dict[str, set[str]] = {}
        for said in filter(None, (self.inspect(row["Id"]) for row in rows)):
            out.setdefault(said["Config"]["Labels"]["jobscribe.deployment"], set()).add(
                json.dumps(said)
            )
        return out


class Hosts:
    """Both hosts. `up` starts them, `clean` removes everything."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="jobscribe-docker-", dir="/var/tmp"))
        self.place.chmod(0o755)
        self.port = _free_ports()
        self.image = AGENT
        self.hosts = {name: Host(self, name, self.port + n) for n, name in enumerate(NAMES)}

    def script(self, *args: str) -> str:
        """Run a verb of the script."""
        env = _environment() | {
            "DIR": str(self.place),
            "PORT": str(self.port),
            "HOSTS": " ".join(NAMES),
            "PYTHON": sys.executable,
        }
        # no pipes: the daemons left running would hold them open
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [SCRIPT, *args],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=3 * CALL_SECS,
            )
            said.seek(0)
            text = said.read().decode(errors="replace")
        if done.returncode:
            raise Refused(f"docker.sh {' '.join(args)}: {text[-3000:].strip()}")
        return text

    def up(self) -> None:
        self.script("up")
        self.script("agent", self.image)

    def clean(self) -> None:
        self.script("clean")
        shutil.rmtree(self.place, ignore_errors=True)

    def file(
        self,
        path: Path,
        hosts: Sequence[str] = NAMES,
        host: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Path:
        """Write a pool file of these hosts. host: fields of each host; fields: of the pool, by
        their names in the file (JSON is YAML).
        """
        each = [
            {
                "name": n,
                "address": self.hosts[n].address,
                "cpu": 4,
                "memoryMb": 4096,
                "sequential": 4,
                "parallel": 4,
                "ports": "30000-30099",
                **(host or {}),
            }
            for n in hosts
        ]
        pool = {
            "image": self.image,
            "tlsDir": str(self.place / "tls"),
            "hosts": each,
            "pull": "never",
            "sequential": {"memoryMb": 256},
            "unixUsers": "{}-{}".format(*UNIX_USERS),
            **fields,
        }
        path.write_text(json.dumps(pool, indent=1), encoding="utf-8")
        return path

    def clear(self, site: SupervisorProcess) -> None:
        """Remove everything of this site from the hosts, and nothing of others, which may be
        running.
        """
        key = site.root / "secret" / "agents"
        for host in self.hosts.values():
            host.well()
            if key.exists():
                host.clear([deployment(key.read_bytes().strip())])


class Sites:
    """Supervisors run from the source tree, each on a fresh root with a pool of these hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.sites: list[SupervisorProcess] = []

    def make(
        self, *sets: str, use: str = "docker", pool: dict[str, Any] | None = None, **options: Any
    ) -> SupervisorProcess:
        """Return an unstarted supervisor. pool: arguments of `Hosts.file`; options: those of the
        supervisor.
        """
        site = SupervisorProcess((f"drivers.use={use}", *sets), disk=True, **options)
        site.pool = self._hosts.file(site.place / "pool.yml", **(pool or {}))  # type: ignore[attr-defined]
        site.add_environment(JOBSCRIBE_DOCKER_POOL=str(site.place / "pool.yml"))
        self.sites.append(site)
        return site

    def end(self) -> None:
        """End all supervisors and everything they started, even if some steps fail."""
        with contextlib.ExitStack() as ending:
            for site in self.sites:
                ending.callback(site.end)
                ending.callback(self._hosts.clear, site)
                # a running supervisor would restart removed containers
                ending.callback(_stopped, site)


def _stopped(site: SupervisorProcess) -> None:
    if site.process is not None and site.process.poll() is None:
        site.process.kill()
        site.process.wait()


@contextlib.contextmanager
def sites(hosts: Hosts) -> Iterator[Sites]:
    made = Sites(hosts)
    try:
        yield made
    finally:
        made.end()


def _environment() -> dict[str, str]:
    """Return the environment for the docker command and the script, without settings that select
    other daemons or configurations.
    """
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("JOBSCRIBE_", "DOCKER_"))
        and k not in ("DIR", "PORT", "HOSTS", "SUBNETS")
    }


def _free_ports() -> int:
    """Return the first of a row of free ports, one for each host, whose bridge names are
    free too.
    """
    while True:
        port = 20_000 + 1000 * WORKER + random.randrange(1000 - len(NAMES))
        if not any(_taken(port + n) for n in range(len(NAMES))):
            return port


def _taken(port: int) -> bool:
    if os.path.exists(f"/sys/class/net/jsd{port}"):
        return True
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
