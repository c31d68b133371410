"""Two real Docker hosts of these tests' own (etc/engines/docker.sh), and supervisors that use them.

Everything has a folder and ports that nobody else uses. What a test leaves on a host is removed by
the label of its deployment.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
#: Five times what the slowest call takes on a busy machine.
CALL_SECS = 100.0
#: Below these numbers are people; what containers run as in these tests is nobody on any machine.
UNIX_USERS = (1_900_000_000, 1_900_000_999)


class Refused(Exception):
    """A command ended with another code than it should have; with what it wrote."""


class Host:
    """One of the two. Its daemon's own socket is used here: it is reached also when its port is cut
    off.
    """

    def __init__(self, hosts: "Hosts", name: str, port: int) -> None:
        self._hosts, self.name, self.port = hosts, name, port
        self.address = f"tcp://127.0.0.1:{port}"
        self.tls = hosts.place / "tls" / name
        self.sock = hosts.place / name / "sock"
        self.command = ("docker", "-H", f"unix://{self.sock}")

    def docker(self, *args: str, code: int | None = 0, given: str | None = None) -> str:
        """What the command wrote (both streams where it may fail). code: that it must end with;
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
        """What the daemon says about a container; {} where there is none."""
        said = self.docker("inspect", "--type", "container", name, code=None)
        if "No such container" in said:
            return {}
        found: list[dict[str, Any]] = json.loads(said)
        return found[0]

    def containers(self, *labels: str, running: bool = False) -> list[str]:
        """Names of those that have these labels (`jobscribe.part=agent`), also of those that ended
        unless `running`.
        """
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return self.docker(
            "ps", *([] if running else ["-a"]), "--format", "{{.Names}}", *filters
        ).split()

    def run(self, *args: str, image: str = BASE) -> str:
        """A container of ours by hand, without any right that it does not need; its output."""
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
        """Of its daemon."""
        return int((self._hosts.place / self.name / "pid").read_text())

    def start(self) -> None:
        self._hosts.script("start", self.name)

    def stop(self) -> None:
        self._hosts.script("stop", self.name)

    def restart(self) -> None:
        self._hosts.script("restart", self.name)

    def crash(self) -> None:
        """Its daemon is killed; its containers go on. `start` brings it back."""
        self._hosts.script("crash", self.name)

    def freeze(self) -> None:
        self._hosts.script("freeze", self.name)

    def thaw(self) -> None:
        self._hosts.script("thaw", self.name)

    def cut(self, way: str = "drop") -> None:
        """A firewall rule between everybody and its port. way: drop (nothing comes back), or
        reject.
        """
        self._hosts.script("cut", self.name, way)

    def mend(self) -> None:
        self._hosts.script("mend", self.name)

    def well(self) -> None:
        """As it was at the beginning, whatever a test did to it."""
        self._hosts.script("well", self.name)

    def clear(self, deployments: Sequence[str]) -> None:
        """Remove every container, network and volume of these deployments; also what a call was
        making when its supervisor was killed.
        """
        for left in (3, 2, 1, 0):
            try:
                return self._clear(deployments)
            except Refused:
                if not left:
                    raise
                time.sleep(1.0)  # a daemon may count for a moment who is removed already

    def _clear(self, deployments: Sequence[str]) -> None:
        for whose in deployments:
            mark = f"label=jobscribe.deployment={whose}"
            for kind, listed in (
                ("container", ["ps", "-aq"]),
                ("network", ["network", "ls", "-q"]),
                ("volume", ["volume", "ls", "-q"]),
            ):
                found = self.docker(*listed, "--filter", mark).split()
                if found:
                    self.docker(kind, "rm", "-f", *found) if kind != "network" else self.docker(
                        "network", "rm", *found
                    )
            self.docker("volume", "rm", "-f", f"jobscribe-links-{whose}", code=None)

    def deployments(self) -> dict[str, set[str]]:
        """Who has containers here: deployment, and all that is said about its containers."""
        ids = self.docker("ps", "-aq", "--filter", "label=jobscribe.deployment").split()
        out: dict[str, set[str]] = {}
        for said in (
            json.loads(
                self.docker("inspect", "--type", "container", *ids, code=None).split("\nError")[0]
            )
            if ids
            else []
        ):
            out.setdefault(said["Config"]["Labels"]["jobscribe.deployment"], set()).add(
                json.dumps(said)
            )
        return out


class Hosts:
    """Both. `up` starts them, `clean` leaves nothing of them."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="jobscribe-docker-", dir="/var/tmp"))
        self.place.chmod(0o755)
        self.port = _free_ports()
        self.image = AGENT
        self.hosts = {name: Host(self, name, self.port + n) for n, name in enumerate(NAMES)}

    def script(self, *args: str) -> str:
        """A verb of the script."""
        env = _environment() | {
            "DIR": str(self.place),
            "PORT": str(self.port),
            "HOSTS": " ".join(NAMES),
            "PYTHON": sys.executable,
        }
        # not into pipes: a daemon that it leaves behind would hold them open
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
        """Write a pool of these hosts. host: fields of each host, fields: of the pool, by their
        names in the file (JSON is YAML).
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
        """Remove what this site has on the hosts, and nothing of others, who may run."""
        key = site.root / "secret" / "agents"
        for host in self.hosts.values():
            host.well()
            if key.exists():
                host.clear([deployment(key.read_bytes().strip())])


class Sites:
    """Supervisors of the tree, each on a fresh root with a pool of these hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.sites: list[SupervisorProcess] = []

    def make(
        self, *sets: str, use: str = "docker", pool: dict[str, Any] | None = None, **options: Any
    ) -> SupervisorProcess:
        """One that is not started. pool: as `Hosts.file` takes it; options: those of Site."""
        site = SupervisorProcess((f"drivers.use={use}", *sets), **options)
        site.pool = self._hosts.file(site.place / "pool.yml", **(pool or {}))  # type: ignore[attr-defined]
        site.add_environment(JOBSCRIBE_DOCKER_POOL=str(site.place / "pool.yml"))
        self.sites.append(site)
        return site

    def end(self) -> None:
        """End them all with everything that they started, also when some of that fails."""
        with contextlib.ExitStack() as ending:
            for site in self.sites:
                ending.callback(site.end)
                ending.callback(self._hosts.clear, site)
                # who runs would start again what is removed
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
    """What the docker command and the script are given: nothing that leads them to other daemons or
    configurations.
    """
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("JOBSCRIBE_", "DOCKER_"))
        and k not in ("DIR", "PORT", "HOSTS", "SUBNETS")
    }


def _free_ports() -> int:
    """The first of as many ports as there are hosts, all of them free, with bridges that nobody
    has.
    """
    while True:
        port = random.randrange(20_000, 29_000)
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
