"""Checks of the test hosts themselves: cut-offs work, containers survive a killed daemon, and
isolated networks cannot reach each other.
"""

import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_hosts import BASE, BUSYBOX, NOSHELL, SCRIPT, Host, Hosts
from supervisor_process import until

ENGINES = SCRIPT.parent
ASKS = "timeout 3 nc -w 2 {} {} </dev/null || true"


def answer(host: Host, tls: Path | None = None, timeout: float = 3.0) -> str:
    """Return one word for the port's answer to a client with these certificates."""
    folder = tls or host.tls
    context = ssl.create_default_context(cafile=str(folder / "cacert.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    try:
        with (
            socket.create_connection(("127.0.0.1", host.port), timeout) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as s,
        ):
            s.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return "ok" if s.recv(4096).startswith(b"HTTP/1.0 200") else "odd"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except ssl.SSLCertVerificationError:
        return "not trusted"
    except (ssl.SSLError, ConnectionResetError):
        return "turned away"


def test_each_host_has_the_images_and_none_knows_the_others_containers(
    host_a: Host, host_b: Host
) -> None:
    assert host_a.run("echo $((6 * 7)); id -u", image=BUSYBOX).split() == ["42", "0"]
    assert host_b.docker("run", "--rm", NOSHELL, "/sleep", "0") == ""
    assert "no such file" in host_b.docker(
        "run", "--rm", NOSHELL, "/bin/sh", "-c", "true", code=127
    )
    assert (
        host_a.run(
            "python3 -c 'import ssl, sqlite3, sys; print(sys.version_info[:2])'", image=BASE
        ).strip()
        == "(3, 11)"
    )
    name = host_a.docker("run", "-d", "--label", "jobscribe.test=1", BUSYBOX, "sleep", "60").strip()
    try:
        assert (
            host_a.containers("jobscribe.test=1")
            and not host_b.containers("jobscribe.test=1")
            and host_b.inspect(name) == {}
        )
    finally:
        host_a.docker("rm", "-f", name)


def test_who_has_no_right_certificate_is_turned_away(pool: Hosts, host_a: Host) -> None:
    bad = pool.place / "bad"
    assert [
        answer(host_a),
        answer(host_a, bad / "expired"),
        answer(host_a, bad / "stranger"),
        answer(host_a, bad / "otherca"),
    ] == ["ok", "turned away", "turned away", "not trusted"]


def test_a_container_outlives_its_daemon(host_a: Host) -> None:
    name = host_a.docker("run", "-d", BUSYBOX, "sleep", "600").strip()
    try:
        before = host_a.inspect(name)["State"]
        host_a.crash()
        assert answer(host_a) == "refused" and os.path.exists(f"/proc/{before['Pid']}")
        host_a.start()
        assert (
            host_a.inspect(name)["State"]["Pid"] == before["Pid"]
            and host_a.inspect(name)["State"]["Running"]
        )
        daemon = host_a.pid()
        host_a.restart()
        assert host_a.pid() != daemon and host_a.inspect(name)["State"]["Pid"] == before["Pid"]
    finally:
        host_a.docker("rm", "-f", name)


def test_a_host_can_be_cut_off_and_frozen_while_the_other_is_not(
    host_a: Host, host_b: Host
) -> None:
    for way, word in (("drop", "silent"), ("reject", "refused")):
        host_a.cut(way)
        assert [answer(host_a, timeout=0.5), answer(host_b)] == [word, "ok"]
        assert host_a.docker("ps", "-q") is not None, "its own socket is no matter of firewalls"
        host_a.mend()
        assert answer(host_a) == "ok"
    host_a.freeze()
    assert [answer(host_a, timeout=0.5), answer(host_b)] == ["silent", "ok"]
    host_a.thaw()
    assert answer(host_a) == "ok"


@pytest.fixture
def listener() -> Iterator[int]:
    """Listen on all addresses of this machine, as a target for containers; return the port."""
    with socket.create_server(("0.0.0.0", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    with server.accept()[0] as s:
                        s.sendall(b"the host\n")
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_gang_reaches_itself_and_nobody_else(host_a: Host, host_b: Host, listener: int) -> None:
    """Two networks like those of the driver, the second with a subnet that also exists on the other
    host. The firewall of docs/docker.md isolates them.
    """
    servers = []
    asks = {}
    try:
        for host, name, subnet in (
            (host_a, "g1", "10.208.0"),
            (host_a, "g2", "10.208.4"),
            (host_b, "g1", "10.208.0"),
        ):
            host.docker("network", "create", "--internal", "--subnet", f"{subnet}.0/22", name)
            servers.append(
                (
                    host,
                    host.docker(
                        "run",
                        "-d",
                        "--cap-drop",
                        "ALL",
                        "--network",
                        name,
                        "--ip",
                        f"{subnet}.10",
                        BASE,
                        "nc",
                        "-ll",
                        "-p",
                        "9000",
                        "-e",
                        "echo",
                        f"{host.name} {name}",
                    ).strip(),
                )
            )
        outside = subprocess.run(
            ["hostname", "-I"], capture_output=True, text=True, check=True
        ).stdout.split()
        addresses = [
            "10.208.0.1",
            "10.208.4.1",
            *[a for a in outside if ":" not in a and not a.startswith("10.208.")][:2],
            "169.254.169.254",
        ]
        wanted = {
            "own": ("10.208.0.10", 9000),
            "other": ("10.208.4.10", 9000),
            **{a: (a, listener) for a in addresses},
        }
        script = (
            "; ".join(
                f"(echo {name}=$({ASKS.format(*to)}) >/tmp/{name}) &" for name, to in wanted.items()
            ).replace("&;", "&")
            + " wait; cat /tmp/*"
        )
        for host in (host_a, host_b):
            said = host.run("--network", "g1", script)
            asks[host.name] = dict(line.split("=", 1) for line in said.splitlines())
    finally:
        for host, server in servers:
            host.docker("rm", "-f", server)
        for host in (host_a, host_b):
            host.docker("network", "prune", "-f")
    for host in (host_a, host_b):
        said = asks[host.name]
        assert said.pop("own") == f"{host.name} g1", said
        assert set(said.values()) == {""}, said


def test_the_registry_wants_its_password(tmp_path: Path, host_a: Host) -> None:
    if not os.path.exists("/usr/bin/docker-registry"):
        pytest.skip("there is no docker-registry here: etc/engines/registry.sh install")
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    env = {"PATH": os.environ["PATH"], "DIR": str(tmp_path / "registry"), "PORT": str(port)}

    def registry(verb: str) -> str:
        with (tmp_path / "said").open("w+") as said:
            done = subprocess.run(
                [ENGINES / "registry.sh", verb],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=60,
            )
            said.seek(0)
            text = said.read()
        assert done.returncode == 0, text
        return text

    address = registry("up").strip()
    try:
        image = f"{address}/busybox:1"
        host_a.docker("tag", BUSYBOX, image)
        assert "no basic auth" in host_a.docker("push", image, code=1)
        password = (tmp_path / "registry" / "password").read_text()
        try:
            host_a.docker("login", "-u", "puller", "--password-stdin", address, given=password)
            host_a.docker("push", image)
        finally:
            host_a.docker("logout", address)
        assert registry("up").strip() == address
        host_a.docker("rmi", image)
    finally:
        registry("down")
    assert not (tmp_path / "registry").exists()


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a journal of one's own takes root: run the tests as root"
)
def test_a_journal_is_started_where_there_is_none_and_only_there(tmp_path: Path) -> None:
    """Runs in separate namespaces, where no journal exists."""
    if not os.path.exists("/lib/systemd/systemd-journald"):
        pytest.skip("there is no systemd-journald here: etc/engines/journald.sh install")
    script = f"""
        mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /dev/shm
        {ENGINES}/journald.sh status && exit 3
        {ENGINES}/journald.sh up; {ENGINES}/journald.sh up
        test -S /run/systemd/journal/socket || exit 4
        DIR=$DIR-other {ENGINES}/journald.sh up; DIR=$DIR-other {ENGINES}/journald.sh down
        {ENGINES}/journald.sh status || exit 5
        {ENGINES}/journald.sh down
        {ENGINES}/journald.sh status && exit 6
        exit 0
    """
    env = {"PATH": os.environ["PATH"], "DIR": str(tmp_path / "journal")}
    with (tmp_path / "said").open("w+") as said:
        done = subprocess.run(
            ["unshare", "--mount", "--net", "sh", "-ec", script],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            timeout=100,
        )
        said.seek(0)
        lines = said.read().splitlines()
    assert done.returncode == 0, lines
    assert [line.split(",")[0] for line in lines] == ["ours", "ours", "somebody else's", "ours"], (
        lines
    )
    until(lambda: not (tmp_path / "journal").exists(), "nothing of it is left")
