"""Sign-in by the site's reverse proxy: a real nginx with TLS in front of `jobscribe server`. Whoever is
not the proxy cannot name a user.
"""

import contextlib
import http.client
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import supervisor_process
from certificate_authority import Authority
from supervisor_process import SupervisorProcess
from waitress.server import create_server

from jobscribe.protocol.redaction import Redactor
from jobscribe.runtime.connections.admission import Limits
from jobscribe.runtime.connections.http_server import Peers
from jobscribe.runtime.log.logger import Log
from jobscribe.web.server.waitress_server import guard
from jobscribe.web.sign_in.attempt_limits import CLIENT

ROOT = Path(__file__).resolve().parents[2]
HEADER, PROXY = "X-Remote-User", "nobody"
NGINX = """
daemon off;
pid {place}/pid;
error_log {place}/error.log;
user {user} nogroup;
events {{}}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {place}/cert.pem;
        ssl_certificate_key {place}/key.pem;
        auth_basic site;
        auth_basic_user_file {place}/users;
        location / {{
            proxy_pass {front};
            proxy_set_header Host $host;
            proxy_set_header X-Remote-User $remote_user;
        }}
    }}
}}
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# ---- the header alone


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_peer_names_the_user(trusted: bool) -> None:
    seen: list[str | None] = []
    clients: set[str | None] = set()

    def app(environ: Any, start: Any) -> list[bytes]:
        seen.append(environ.get("HTTP_X_REMOTE_USER"))
        clients.add(environ.get("HTTP_X_JOBSCRIBE_CLIENT"))
        start("200 OK", [("Content-Length", "0")])
        return []

    server = create_server(app, host="127.0.0.1", port=0)
    peers = Peers([_own_name()] if trusted else [])
    log = Log("web", Redactor(), _Quiet())
    guard(server, Limits(), peers, lambda parser: False, log, 100, proxy_header=HEADER)

    def serve() -> None:
        with contextlib.suppress(OSError):  # its sockets are closed at the end
            server.run()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.effective_port, timeout=20)
        for name in (HEADER, HEADER.lower(), "X_Remote_User"):
            address = {"X-Forwarded-For": "192.0.2.9, 192.0.2.7", CLIENT: "192.0.2.8"}
            connection.request("GET", "/", headers={name: "ann", **address})
            connection.getresponse().read()
        connection.close()
    finally:
        server.close()
        thread.join(20)
    assert seen == (["ann", "ann", None] if trusted else [None, None, None])
    assert clients == ({"192.0.2.7"} if trusted else {None}), "the last address is the proxy's word"


class _Quiet:
    def write(self, record: Any) -> None:
        return


def _own_name() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


# ---- nginx


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def nginx() -> Path:
    if os.geteuid() != 0:
        pytest.skip("nginx needs root here, to run as another unix user than the front end")
    engine = ROOT / "etc/engines/unpacked.sh"
    done = subprocess.run([engine, "where", "nginx", "nginx"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{done.stderr.strip()} (make engines does it)")
    return Path(done.stdout.strip()) / "nginx"


def started(arguments: list[str], front: list[str], env: dict[str, str]) -> tuple[Any, str]:
    process = subprocess.Popen(
        [*arguments, *front], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("jobscribe ready at "), line
    return process, line.split()[3]


@pytest.fixture
def site(
    nginx: Path, make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> Iterator[tuple[str, str, Path]]:
    """Yield the address of the proxy, the address of the front end, and the proxy's certificate."""
    supervisor = make_site().start()
    place = tmp_path / "nginx"
    place.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    arguments = [sys.executable, "-m", "jobscribe.cli", "--root", str(supervisor.root), "server"]
    sets = {
        "server.port": "0",
        "server.user_header": HEADER,
        "server.uid_file": str(tmp_path / "uids.json"),
        "limits.trusted_peers": PROXY,
    }
    env = {**os.environ, "PYTHONPATH": supervisor_process.PYTHON_PATH}
    options = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    front, url = started(arguments, options, env)
    authority = Authority("jobscribe test")
    authority.issue(place)
    (place / "users").write_text("ann@example.org:{PLAIN}secret\n")
    port = free_port()
    (place / "nginx.conf").write_text(NGINX.format(place=place, port=port, front=url, user=PROXY))
    proxy = subprocess.Popen([nginx, "-c", place / "nginx.conf", "-e", place / "error.log"])
    try:
        over = time.monotonic() + 20
        while not _listens(port):
            assert time.monotonic() < over and proxy.poll() is None, (
                place / "error.log"
            ).read_text()
            time.sleep(0.02)
        yield f"https://127.0.0.1:{port}", url, authority.write(place / "ca.pem")
    finally:
        for process in (proxy, front):
            process.terminate()
            process.wait(20)
        front.stdout.close()


def test_the_user_of_the_proxy_is_signed_in_and_nobody_else(site: tuple[str, str, Path]) -> None:
    proxy, front, certificate = site

    def post(url: str, path: str, **options: Any) -> requests.Response:
        return requests.post(url + path, json={}, verify=str(certificate), timeout=20, **options)

    ann = {"auth": ("ann@example.org", "secret")}
    assert post(proxy, "/own-jobs").status_code == 401, "nginx asks for a password"
    assert post(proxy, "/own-jobs", **ann).json()["jobs"] == []
    run = {"simulationType": "myapp", "simulationId": "abcdefgh", "report": "heightWeightReport"}
    said = requests.post(
        proxy + "/run-status", json=run, verify=str(certificate), timeout=20, **ann
    )
    assert said.status_code == 200, said.text
    forged = {HEADER: "root@example.org"}
    assert post(proxy, "/own-jobs", headers=forged, **ann).status_code == 200
    assert post(front, "/own-jobs", headers=forged).status_code == 401, "not the proxy"
    uids = (certificate.parent.parent / "uids.json").read_text()
    assert "ann@example.org" in uids and "root@example.org" not in uids


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        ((f"server.user_header={HEADER}",), "limits.trusted_peers is empty"),
        (
            (f"server.user_header={HEADER}", "server.user_hook=a:b", "limits.trusted_peers=root"),
            "are both set",
        ),
        (("server.user_header=X_Remote_User",), "letters, digits and -"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(
    tmp_path: Path, sets: tuple[str, ...], part: str
) -> None:
    arguments = [sys.executable, "-m", "jobscribe.cli", "--root", str(tmp_path), "server"]
    options = [word for setting in sets for word in ("--set", setting)]
    env = {**os.environ, "PYTHONPATH": supervisor_process.PYTHON_PATH}
    done = subprocess.run(
        [*arguments, *options], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78 and part in done.stderr
