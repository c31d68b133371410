"""Several supervisors of one site on a real PostgreSQL: one serves, the others stand by and take over
after a kill, a freeze and a stop. Jobs go on, and nothing that was acknowledged is lost.
"""

import contextlib
import http.client
import json
import os
import pwd
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from standby_site import DEADLINE_SECS, Clients, Supervisors, url_of
from supervisor_process import SupervisorProcess, jid_of, req_id, shell, until

from jobscribe.db.postgres import lease, lease_protocol, opening
from jobscribe.db.postgres import supervisors as supervisors_table
from jobscribe.db.postgres.connection import connect
from jobscribe.db.postgres.opening import Site
from jobscribe.db.store.head_file import NOTHING
from jobscribe.protocol.errors import Refusal
from jobscribe.runtime.lease_deadline import LeaseDeadline
from jobscribe.runtime.store_address import parsed
from jobscribe.supervisor.standby import lookout

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("KILLS", "200" if os.environ.get("SOAK") == "1" else "0"))


class Link:
    """A TCP address of the database that can be cut: then nothing passes, and nothing is closed."""

    def __init__(self, target: str) -> None:
        self._target, self._ends = target, list[socket.socket]()
        self._passing = threading.Event()
        self._passing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def cut(self) -> None:
        self._passing.clear()

    def close(self) -> None:
        self._passing.set()
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _spawn(self, run: Callable[..., None], *args: socket.socket) -> None:
        threading.Thread(target=run, args=args, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._ends += near, far
                self._spawn(self._copy, near, far)
                self._spawn(self._copy, far, near)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def linked(
    make_site: Callable[..., SupervisorProcess],
) -> Iterator[tuple[Supervisors, Link]]:
    server = postgres_server.shared_durable()
    site = make_site(f"store.url={server.url()}", "store.standby=true", "slots.local_sequential=4")
    found = Supervisors(site)
    link = Link(f"{server.folder}/.s.PGSQL.5432")
    yield found, link
    link.close()
    found.end()


def get(url: str, path: str, token: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": "Bearer " + token})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.timeout(400)
def test_a_standby_takes_over_after_a_kill_a_freeze_a_cut_and_a_stop(
    linked: tuple[Supervisors, Link],
) -> None:
    supervisors, link = linked
    site = supervisors.site
    first = supervisors.start()
    assert supervisors.serving() == first.pid
    clients = supervisors.clients = Clients(site)
    second = supervisors.start()
    gate, runs = site.place / "gate", site.place / "runs"
    run = shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.05; done; echo out; exit 3")
    request = req_id()
    site.submit(run, request)
    site.running(run)

    # the standby answers its own health, and passes everything else to the holder
    own = supervisors.urls[second.pid]
    code, health = get(own, "/health", site.token)
    assert (code, health["role"], health["state"]) == (200, "standby", "ok"), health
    assert health["holder"]["pid"] == first.pid and 0 <= health["lagSecs"] < 6, health
    assert get(own, "/health", "wrong")[0] == 401
    site.url = own
    assert site.submit(run, request)["state"] == "running", "the holder answers"

    assert supervisors.fails(first, first.kill) == second.pid
    supervisors.ended(first)
    assert site.submit(run, request)["state"] == "running", "no job is lost or doubled"
    (url,) = (s for s in site._sets if s.startswith("store.url"))
    name = pwd.getpwuid(os.geteuid()).pw_name
    schema = url.partition("schema=")[2]
    through = f"postgresql://{name}@127.0.0.1:{link.port}/postgres?schema={schema}"
    third = supervisors.start("--set", f"store.url={through}")

    assert supervisors.fails(second, lambda: second.send_signal(signal.SIGSTOP)) == third.pid
    second.send_signal(signal.SIGCONT)
    assert supervisors.ended(second) == 75, "the frozen supervisor does nothing more"
    assert "the lease of the site ended" in site.log()
    assert supervisors.serving() == third.pid and site.submit(run, request)["state"] == "running"
    assert site.finished(shell("exit 0"))["state"] == "completed", "its agent has followed"

    fourth = supervisors.start()
    # cut from its database, the holder ends before another one serves
    assert supervisors.fails(third, link.cut) == fourth.pid
    assert supervisors.ended(third) == 75
    fifth = supervisors.start()
    listed = json.loads(site.command("--json", "supervisors", *url_of(site)).stdout)
    roles = [(m["role"], m["pid"]) for m in listed["supervisors"]]
    assert roles[:2] == [("serving", fourth.pid), ("standby", fifth.pid)], roles
    assert supervisors.fails(fourth, fourth.terminate) == fifth.pid
    assert supervisors.ended(fourth) == 0
    sixth = supervisors.start()
    name = f"{socket.gethostname()}:{fifth.pid}"

    def drain() -> str:
        done = site.command("drain", "supervisor", name)
        assert done.returncode == 0, done
        return done.stderr

    assert supervisors.fails(fifth, drain) == sixth.pid
    assert supervisors.ended(fifth) == 75, "a service manager starts it again, and it stands by"
    seventh = supervisors.start()
    site.read_address()
    refused = site.command("drain", "supervisor", "nobody:1")
    assert refused.returncode != 0 and "has the name nobody:1" in refused.stderr, refused
    name = f"{socket.gethostname()}:{seventh.pid}"
    assert f"{name} does not serve the site" in drain()
    gate.touch()
    said = site.wait(run)
    assert (said["state"], said["exit"]["code"]) == ("error", 3)
    assert site.output(run, tail=100).body == b"out\n" and runs.read_text() == "x\n"
    assert site.story(run).count("RunRequested") == site.story(run).count("RunEnded") == 1
    clients.check()
    print("seconds until another supervisor served:", [round(s, 1) for s in supervisors.took])


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.skipif(not KILLS, reason="the test above has one kill; SOAK=1 or KILLS=N")
def test_random_kills_lose_and_double_nothing(linked: tuple[Supervisors, Link]) -> None:
    supervisors, _ = linked
    site, folder = supervisors.site, supervisors.site.place / "starts"
    folder.mkdir()
    supervisors.start()
    supervisors.serving()
    clients = supervisors.clients = Clients(site)
    accepted: list[dict[str, Any]] = []

    def submit() -> None:
        """Submit a job, with the same request until it is answered."""
        number, request = len(accepted), req_id()
        run = shell(f"echo x >> {folder}/{number}; sleep 0.{number % 10}; exit {number % 5}")

        def taken() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
                site.read_address()
                site.submit(run, request)
                return True
            return False

        until(taken, "a request is answered", DEADLINE_SECS, 0.05)
        accepted.append(run)

    for turn in range(KILLS):
        supervisors.start()
        for _ in range(5):
            submit()
        holder = supervisors.of(supervisors.serving())
        if turn % 4 == 3:
            supervisors.fails(holder, lambda p=holder: p.send_signal(signal.SIGSTOP))
            holder.send_signal(signal.SIGCONT)
            assert supervisors.ended(holder) == 75
        else:
            supervisors.fails(holder, holder.kill)
            supervisors.ended(holder)
    for number, run in enumerate(accepted):
        said = site.wait(run)
        code = number % 5
        assert said["state"] == ("error" if code else "completed"), (jid_of(run), said)
        assert said["exit"]["code"] == code, (jid_of(run), said)
        assert (folder / str(number)).read_text() == "x\n", "started once"
    clients.check()
    took = sorted(supervisors.took)
    print(f"{KILLS} faults: median {took[len(took) // 2]:.1f} s, longest {took[-1]:.1f} s")


NGINX = """
daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    upstream supervisors {{ server {first} max_fails=0; server {second} max_fails=0; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://supervisors;
            proxy_next_upstream error timeout http_503 non_idempotent;
            proxy_next_upstream_tries 2;
        }}
    }}
}}
"""


def test_clients_of_an_nginx_in_front_need_one_address(
    linked: tuple[Supervisors, Link], tmp_path: Path
) -> None:
    engine = Path(__file__).resolve().parents[2] / "etc/engines/unpacked.sh"
    where = subprocess.run([engine, "where", "nginx", "nginx"], capture_output=True, text=True)
    if where.returncode:
        pytest.skip(where.stderr.strip())
    supervisors, _ = linked
    site = supervisors.site
    first = supervisors.start()
    assert supervisors.serving() == first.pid
    second = supervisors.start()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urls = [supervisors.urls[p.pid].removeprefix("http://") for p in (first, second)]
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(place=tmp_path, port=port, first=urls[0], second=urls[1]))
    program = Path(where.stdout.strip()) / "nginx"
    nginx = subprocess.Popen([program, "-c", config, "-e", tmp_path / "error.log"])
    try:
        runs = [shell("exit 0") for _ in range(40)]

        def submitted(run: dict[str, Any]) -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                body = json.dumps({"reqId": f"of-{jid_of(run)}", "run": run})
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                headers = {"Authorization": "Bearer " + site.token}
                connection.request("POST", "/api/run-simulation", body, headers)
                with contextlib.closing(connection):
                    answer = connection.getresponse()
                    told = json.loads(answer.read() or b"null") if answer.status < 500 else None
                    assert answer.status in (200, 502, 503, 504), told
                    return answer.status == 200
            return False

        site.read_address()
        for number, run in enumerate(runs):
            if number == 20:
                first.kill()
            until(lambda run=run: submitted(run), "a request is answered", DEADLINE_SECS)
        assert supervisors.serving(first.pid) == second.pid
        site.read_address()
        for run in runs:
            assert site.wait(run)["state"] == "completed"
            assert site.story(run).count("RunRequested") == 1
        supervisors.ended(first)
    finally:
        nginx.terminate()
        nginx.wait(30)


def test_a_lease_is_taken_when_its_holder_can_no_longer_act(tmp_path: Path) -> None:
    server = postgres_server.shared_durable()
    site = Site(parsed(server.url()), None, tmp_path / "db", "root")
    about = supervisors_table.About("a", 1, "b", "1", {}, "/r")

    def take(holder: str, dead: str | None = None) -> lease_protocol.Lease | None:
        try:
            return lease.take(raw, holder, site.address.schema, "db", dead)
        except Refusal as e:
            assert e.code == "rootBusy"
            return None

    with connect(site.address, None) as raw:
        opening.create(site, raw)
        opening.create(site, raw)  # two supervisors start at once
        supervisors_table.create(raw)
        with connect(site.address, None) as gone:
            supervisors_table.beat(gone, "first", about)
            assert lease.take(gone, "first", site.address.schema, "db").epoch == 1
            supervisors_table.prove(gone, "first", "hash")
        seen = supervisors_table.look(raw)
        assert (seen.free, seen.holder, seen.about, seen.proof) == (False, "first", about, "hash")
        assert 0 < seen.expires_in <= lease_protocol.LEASE_SECS
        until(lambda: lease._is_gone(raw, site.address.schema, 1), "its session has ended")
        assert take("second") is None, "it may answer requests without a session"
        assert take("second", dead="other") is None
        taken = take("second", dead="first")
        assert taken is not None and taken.epoch == 2
        raw.execute("UPDATE lease SET expires = clock_timestamp() - interval '1 ms'")
        assert supervisors_table.look(raw).free and not lease.take_again(raw, "first", "s")
        supervisors_table.beat(raw, "third", about)
        taken = take("third")
        assert taken is not None and taken.epoch == 3
        lease.release(raw, 3)
        assert [m.role for m in supervisors_table.members(raw)] == ["standby", "standby"]
        assert take("fourth") is not None


def test_a_root_that_is_not_shared_and_a_holder_that_stays_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "LOOK_SECS", 0.01)
    server = postgres_server.shared_durable()
    address = parsed(server.url())

    def site_of(root: str, holder: str) -> Site:
        deadline = LeaseDeadline(60.0, 0.0, lambda late: None)
        claim = supervisors_table.Claim(holder, deadline)
        return Site(address, None, tmp_path / root / "db", "root", claim)

    def look(
        root: str, holder: str, host: str = "a", **more: bool
    ) -> tuple[lookout.Lookout, list[lookout.News]]:
        site = site_of(root, holder)
        claim = site.claim
        assert claim is not None
        about = supervisors_table.About(host, 1, f"boot of {host}", "1", {}, "/r", "other boot")
        news: list[lookout.News] = []
        out = lookout.Lookout(site, claim, about, news.append, **more)
        out.start()
        return out, news

    first, news = look("one", "first")
    until(lambda: news and isinstance(news[-1], lookout.Taken), "it has the lease")
    first.stop()
    _, news = look("one", "second", "z", local=True)
    until(lambda: isinstance(news[-1:] and news[-1], Refusal), "its jobs are elsewhere")
    assert "Remove local from drivers.use" in str(news[-1])
    _, news = look("two", "second")
    until(lambda: isinstance(news[-1:] and news[-1], Refusal), "another folder is refused")
    assert "is not the root of the supervisor that serves" in str(news[-1])
    with connect(address, None) as raw:
        _frozen_while_it_takes_the_lease(raw, site_of("one", "frozen"), monkeypatch)
        raw.execute("UPDATE lease SET released = true")
        lease.take(raw, "alone", address.schema, "db")
        _, news = look("one", "third")
        until(lambda: isinstance(news[-1:] and news[-1], Refusal), "a lasting holder is named")
        assert "has no store.standby" in str(news[-1])


def _frozen_while_it_takes_the_lease(raw: Any, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that goes on after the lease that it took has ended writes nothing to the root."""
    clock = [100.0]

    def lost(late: float) -> None:
        raise SystemExit

    def take(*args: Any) -> lease_protocol.Lease:
        clock[0] += 60.0  # frozen between the commit of the lease and its answer
        return lease_protocol.Lease(9, NOTHING)

    deadline = LeaseDeadline(6.0, 1.0, lost, lambda: clock[0])
    monkeypatch.setattr(deadline, "watch", lambda: None)  # its thread may come later
    claim = supervisors_table.Claim("frozen", deadline)
    about = supervisors_table.About("a", 1, "boot", "1", {}, "/r")
    before = (site.folder / lookout.SHARED).read_bytes()
    with monkeypatch.context() as m:
        m.setattr(lease, "take", take)
        with pytest.raises(SystemExit):
            lookout.Lookout(site._replace(claim=claim), claim, about, print)._take(raw, None)
    assert (site.folder / lookout.SHARED).read_bytes() == before
