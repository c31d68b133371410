"""Several supervisors on machines of a real network (namespaces) whose links are cut, slow and lossy:
one serves at a time, nothing starts twice, and no answer contradicts an earlier one.

`test_standby.py` has a cut link to the database that always runs.
"""

import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from certificate_authority import Authority
from network_machines import Machine, machines
from standby_site import PROMISED_SECS, Clients, Process, Supervisors
from supervisor_process import SupervisorProcess, jid_of, shell, until

pytestmark = [pytest.mark.process, pytest.mark.soak("test_standby.py")]

Make = Callable[..., SupervisorProcess]
#: Partitions of each kind.
ROUNDS = int(os.environ.get("ROUNDS", "3"))


class Network:
    """A database, and a site with supervisors, on machines of their own."""

    def __init__(self, make_site: Make, place: Path, found: list[Machine]) -> None:
        self.database, *self.homes = found
        self._authority = Authority("network")
        self._ca = self._authority.write(place / "ca.pem")
        self.server = self._started(place)
        #: the machine of each supervisor, by pid
        self.home: dict[int, Machine] = {}
        address = f"postgresql://{USER}@{self.database.ip}/postgres?sslmode=verify-full"
        self.site = make_site(
            f"store.url={address}&sslrootcert={self._ca}&schema=site",
            "store.standby=true",
            "slots.local_sequential=4",
            "limits.ping_interval_secs=1",
            "limits.ping_timeout_secs=1",
            f"supervisor.agents_tls_ca={self._ca}",
        )
        self.supervisors = Supervisors(self.site, self.connect)
        self._certificates = dict[str, tuple[Path, Path]]()
        for machine in self.homes:
            folder = place / machine.name
            folder.mkdir()
            self._certificates[machine.name] = self._authority.issue(folder, machine.ip)

    def _started(self, place: Path) -> postgres_server.Server:
        server = postgres_server.Server()
        server.start()  # makes its data
        server.stop()
        folder = place / "server"
        folder.mkdir()
        for file in self._authority.issue(folder, self.database.ip):
            target = server.folder / file.name
            shutil.copy(file, target)
            shutil.chown(target, "postgres")
            target.chmod(0o600)
        hba = server.folder / "data/pg_hba.conf"
        hba.write_text("hostssl all all 10.77.0.0/24 trust\n" + hba.read_text())
        files = {"ssl_cert_file": "cert.pem", "ssl_key_file": "key.pem"}
        settings = [f"{k}={server.folder / v}" for k, v in files.items()]
        listen = f"listen_addresses={self.database.ip}"
        server.start(listen, "ssl=on", *settings, within=self.database.within)
        return server

    def start(self, machine: Machine) -> Process:
        cert, key = self._certificates[machine.name]
        own = {"agents_ip": machine.ip, "agents_tls_cert": cert, "agents_tls_key": key}
        sets = [a for k, v in own.items() for a in ("--set", f"supervisor.{k}={v}")]
        with (self.site.place / "up.log").open("ab") as log:
            process = subprocess.Popen(
                [*machine.within, *self.site.arguments(), *sets],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.site._environment(),
                cwd="/",
            )
        self.home[process.pid] = machine
        return self.supervisors.started(process)

    def connect(self, named: dict[str, Any]) -> http.client.HTTPConnection:
        """Connect as a client on the machine of this supervisor."""
        out = http.client.HTTPConnection(named["url"].removeprefix("http://"), timeout=10)
        machine = self.home.get(named["pid"])
        if machine is None:
            raise ConnectionRefusedError
        out.sock = machine.connected(out.host, out.port, 10)
        return out

    def ask(self, path: str, **body: Any) -> Any:
        """Send a request to the supervisor that serves."""
        import json

        named = json.loads((self.site.root / "client.json").read_text())
        connection = self.connect(named)
        headers = {"Authorization": "Bearer " + named["token"]}
        connection.request("POST", "/api/" + path, json.dumps(body), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        assert answer.status == 200, told
        return told

    def submit(self, run: dict[str, Any]) -> None:
        self.ask("run-simulation", reqId=f"of-{jid_of(run)}", run=run)

    def status(self, run: dict[str, Any]) -> Any:
        return self.ask("run-status", uid=run["uid"], computeJid=jid_of(run))


USER = "root"


@pytest.fixture
def network(make_site: Make, tmp_path: Path) -> Iterator[Network]:
    with machines(3) as found:
        out = Network(make_site, tmp_path, found)
        yield out
        for machine in found:
            machine.mend()
        out.supervisors.end()
        out.server.remove()


@pytest.mark.timeout(120 + 90 * ROUNDS)
def test_partitions_and_bad_links_leave_one_supervisor_and_one_start(network: Network) -> None:
    supervisors, (one, two) = network.supervisors, network.homes
    place = network.site.place
    holder = network.start(one)
    assert supervisors.serving() == holder.pid
    network.site.read_address()
    clients = supervisors.clients = Clients(network.site, network.connect)
    standby = network.start(two)
    runs: list[tuple[dict[str, Any], Path]] = []
    for turn in range(ROUNDS):
        # a job that ends while the link between its agent and the holder is cut
        gate, starts = place / f"gate{turn}", place / f"starts{turn}"
        text = f"echo x >> {starts}; until [ -e {gate} ]; do sleep 0.05; done; exit 3"
        run = shell(text)
        network.submit(run)
        runs.append((run, starts))
        until(lambda run=run: network.status(run)["state"] == "running", "it runs", 60)

        # bad links of the holder: it goes on, or another one serves
        home = network.home[holder.pid]
        home.slow(2_000)
        home.lossy(0.05)
        _finishes(network)
        home.mend()
        serving = supervisors.serving()
        if serving != holder.pid:
            assert supervisors.ended(holder) == 75
            holder, standby = supervisors.of(serving), network.start(home)
            home = network.home[serving]
        away = network.home[standby.pid]

        # holder from the standby, and from agents on its machine: no one else takes the lease
        home.cut(away)
        time.sleep(PROMISED_SECS)
        assert supervisors.serving() == holder.pid, "the holder keeps the lease"
        gate.touch()
        home.mend()
        until(lambda run=run: network.status(run)["over"], "its end is reported", 60)

        # holder from the database, in each direction or both: another one serves
        ways = ({}, {"outwards": False}, {"inwards": False})[turn % 3]
        assert supervisors.fails(holder, lambda h=home, w=ways: h.cut(network.database, **w)) == (
            standby.pid
        )
        assert supervisors.ended(holder) == 75
        home.mend()
        holder, standby = standby, network.start(home)
        _finishes(network)
    for run, starts in runs:
        said = network.status(run)
        assert (said["state"], said["exit"]["code"]) == ("error", 3), said
        assert starts.read_text() == "x\n", "started once"
    clients.check()
    print("seconds until another supervisor served:", [round(s, 1) for s in supervisors.took])


def _finishes(network: Network) -> None:
    run = shell("exit 0")

    def submitted() -> bool:
        try:
            network.submit(run)
        except (OSError, AssertionError, http.client.HTTPException):
            return False
        return True

    def over() -> bool:
        try:
            return bool(network.status(run)["over"])
        except (OSError, AssertionError, http.client.HTTPException):
            return False

    until(submitted, "a run is accepted", 60)
    until(over, "a run ends", 60)
