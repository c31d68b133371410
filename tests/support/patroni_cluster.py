"""Two PostgreSQL servers that a real Patroni with etcd runs on loopback, one of them as the synchronous
replica of the other (see etc/engines/patroni.sh).
"""

import contextlib
import getpass
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ENGINES = pathlib.Path(__file__).resolve().parents[2] / "etc/engines"
DEADLINE_SECS = 120.0
#: `pg` and `rest` are the ports of a node. Patroni allows no shorter `ttl`.
NODE = """
scope: site
name: {name}
restapi: {{listen: "127.0.0.1:{rest}", connect_address: "127.0.0.1:{rest}"}}
etcd3: {{host: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    synchronous_mode: true
    synchronous_mode_strict: false
    postgresql: {{use_pg_rewind: true, parameters: {{wal_keep_size: 64MB}}}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}, {{auth: trust}}, no-sync]
postgresql:
  listen: "127.0.0.1:{pg}"
  connect_address: "127.0.0.1:{pg}"
  bin_dir: {bin}
  data_dir: {folder}/data
  pgpass: {folder}/pgpass
  pg_hba: [local all all trust, host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust]
  authentication: {{superuser: {{username: {user}}}, replication: {{username: {user}}}}}
  parameters: {{unix_socket_directories: {folder}, shared_buffers: 16MB}}
"""


class Node:
    def __init__(self, name: str, ports: tuple[int, int]) -> None:
        self.name, (self.pg, self.rest) = name, ports
        self.process: subprocess.Popen[bytes] | None = None

    def role(self) -> str:
        """Return `master`, `replica`, or an empty text without an answer."""
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/patroni", timeout=5) as r:
                said: dict[str, Any] = json.load(r)
            return str(said["role"]) if said["state"] == "running" else ""
        return ""


class Cluster:
    def __init__(self, place: pathlib.Path) -> None:
        self._place, ports = place, _free_ports(6)
        self._etcd_ports = ports[:2]
        self._nodes = [Node("one", (ports[2], ports[3])), Node("two", (ports[4], ports[5]))]
        self._cache = pathlib.Path(_where("patroni.sh"))
        self._bin, self._processes = _where("postgres.sh"), list[subprocess.Popen[bytes]]()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{n.pg}" for n in self._nodes)
        user = getpass.getuser()
        return f"postgresql://{user}@{hosts}/postgres?target_session_attrs=read-write&schema=site"

    def start(self) -> None:
        client, peer = (f"http://127.0.0.1:{p}" for p in self._etcd_ports)
        etcd = [
            self._cache / "usr/bin/etcd",
            "--data-dir",
            self._place / "etcd",
            "--unsafe-no-fsync",
        ]
        etcd += ["--listen-client-urls", client, "--advertise-client-urls", client]
        etcd += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._spawn([*etcd, "--initial-cluster", f"default={peer}"], "etcd")
        for node in self._nodes:
            self._start(node)
            if node is self._nodes[0]:
                _until(lambda: self._nodes[0].role() == "master", "a primary")
        self._healthy()

    def switch_over(self) -> None:
        """Exchange the roles of primary and replica, as before maintenance."""
        primary, other = self._roles()
        body = json.dumps({"leader": primary.name, "candidate": other.name}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{primary.rest}/switchover", body)

        def accepted() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):  # the replica is not noted yet
                urllib.request.urlopen(request, timeout=60).close()
                return True
            return False

        _until(accepted, "the switchover is accepted")
        _until(lambda: self._roles()[0] is other, "the switchover")
        self._healthy()

    def kill_primary(self) -> None:
        """Kill the primary with its Patroni, as a power cut does."""
        primary, _ = self._roles()
        assert primary.process is not None
        pid = int((self._place / primary.name / "data/postmaster.pid").read_text().split()[0])
        primary.process.kill()
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        for node in self._nodes:
            data = self._place / node.name / "data"
            if (data / "postmaster.pid").exists():
                stop = [f"{self._bin}/pg_ctl", "-D", str(data), "-m", "immediate", "stop"]
                subprocess.run([*_as_server(), *stop], capture_output=True, cwd="/")

    def _start(self, node: Node) -> None:
        folder = self._place / node.name
        folder.mkdir(exist_ok=True)
        config = self._place / f"{node.name}.yml"
        fields = {"etcd": self._etcd_ports[0], "bin": self._bin, "folder": folder}
        config.write_text(NODE.format(**fields, **vars(node), user=getpass.getuser()))
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        command = ["/usr/bin/python3", str(self._cache / "usr/bin/patroni"), str(config)]
        node.process = self._spawn([*_as_server(), *command], node.name)

    def _spawn(self, command: list[Any], name: str) -> subprocess.Popen[bytes]:
        modules = str(self._cache / "usr/lib/python3/dist-packages")
        with (self._place / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(c) for c in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": modules, "HOME": "/tmp"},
                cwd="/",
            )
        self._processes.append(process)
        return process

    def _roles(self) -> tuple[Node, Node]:
        """Return primary and replica, once both are known."""
        one, two = self._nodes
        pairs = ((one, two), (two, one))
        is_set: Callable[[], Any] = lambda: next(
            (p for p in pairs if p[0].role() == "master" and p[1].role() == "replica"), None
        )
        found: tuple[Node, Node] = _until(is_set, "a primary and a replica")
        return found

    def _healthy(self) -> None:
        """Wait until the replica may take over: it is synchronous, and etcd has it as that."""

        def synchronous() -> bool:
            for node in self._nodes:
                with contextlib.suppress(OSError, ValueError):
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{node.rest}/cluster", timeout=5
                    ) as r:
                        roles = sorted(m["role"] for m in json.load(r)["members"])
                    return bool(roles == ["leader", "sync_standby"])
            return False

        _until(synchronous, "a synchronous replica")


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Run a cluster. Skips the test if its programs are missing."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="jspg-", dir="/tmp"))
    place.chmod(0o755)
    cluster = Cluster(place)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        for log in sorted(place.glob("*.log")):
            print(log.name, log.read_text(errors="replace")[-3000:], sep="\n")
        raise
    finally:
        cluster.close()
        shutil.rmtree(place, ignore_errors=True)


def _where(engine: str) -> str:
    done = subprocess.run([ENGINES / engine, "where"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return done.stdout.strip()


def _as_server() -> list[str]:
    """Return the prefix of a command that runs as the unix user of servers."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECS
    while not (found := true()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)
    return found
