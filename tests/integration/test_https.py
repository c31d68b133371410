"""The HTTPS interface for other machines: tokens, renewed certificates, and what is refused."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import supervisor_process
from certificate_authority import Authority
from supervisor_process import UID, SupervisorProcess, until

#: The supervisor looks at its certificates every 5 s.
RENEWED_SECS = 25


def settings(cert: Path, key: Path) -> tuple[str, ...]:
    return (
        f"supervisor.tls_cert={cert}",
        f"supervisor.tls_key={key}",
        "supervisor.tls_ip=127.0.0.1",
        "supervisor.tls_port=0",
    )


def ask(
    site: SupervisorProcess, ca: Path, path: str, token: str, body: Any = None
) -> tuple[int, Any]:
    port = urlsplit(public(site)).port
    context = ssl.create_default_context(cafile=str(ca))
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
    try:
        connection.request(
            "GET" if body is None else "POST",
            path,
            None if body is None else json.dumps(body),
            {"Authorization": f"Bearer {token}"},
        )
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def public(site: SupervisorProcess) -> str:
    return str(json.loads((site.root / "client.json").read_text())["publicUrl"])


def test_a_user_works_with_a_token_over_https(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    """Only the certificate authority and the token come from the site."""
    authority = Authority("jobscribe test")
    cert, key = authority.issue(tmp_path)
    ca = authority.write(tmp_path / "ca.pem")
    site = make_site(*settings(cert, key)).start()
    made = site.post("token-create", uid=UID, name="laptop", scopes=["read", "control"])
    token = made["secret"]
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "SSL_CERT_FILE": str(ca),
        "PYTHONPATH": supervisor_process.PYTHON_PATH,
    }

    def jobscribe(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jobscribe.cli", *words],
            env=env,
            cwd=home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = jobscribe("auth", "login", public(site), stdin=token + "\n")
    assert done.returncode == 0 and UID in done.stdout, (done.stdout, done.stderr)
    done = jobscribe("run", "--", "echo", "over https")
    assert (done.returncode, done.stdout) == (0, "over https\n"), done.stderr
    assert "completed" in jobscribe("job", "status", "last").stdout
    strangers = Authority("somebody else").write(tmp_path / "other.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(site, strangers, "/api/whoami", token)
    assert ask(site, ca, "/api/whoami", "wrong")[0] == 401
    assert token not in site.log()


def test_plain_http_gets_no_answer_there(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    site = make_site(*settings(*Authority("jobscribe test").issue(tmp_path))).start()
    port = urlsplit(public(site)).port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"200" not in sock.recv(1000)
    assert site.ready()["state"] == "ok"


def test_a_renewed_certificate_is_used_and_a_wrong_one_is_not(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    first, second = Authority("first"), Authority("second")
    old, new = first.write(tmp_path / "first.pem"), second.write(tmp_path / "second.pem")
    cert, key = first.issue(tmp_path)
    site = make_site(*settings(cert, key)).start()

    def accepted(ca: Path) -> bool:
        try:
            return ask(site, ca, "/api/whoami", site.token)[0] == 200
        except ssl.SSLError:
            return False

    assert accepted(old) and not accepted(new)
    second.issue(tmp_path)
    until(lambda: accepted(new), "the new certificate is in use", RENEWED_SECS)
    assert not accepted(old)
    cert.write_text("no certificate")
    until(
        lambda: "the earlier one stays in use" in site.log(),
        "the wrong one was seen",
        RENEWED_SECS,
    )
    assert accepted(new), "running on with the last valid one"


@pytest.mark.parametrize(
    ("sets", "part"),
    [
        (("supervisor.ip=0.0.0.0",), "keep it on loopback"),
        (("supervisor.tls_cert=/nowhere/cert.pem",), "needs certificate and key"),
        (
            ("supervisor.tls_cert=/nowhere/cert.pem", "supervisor.tls_key=/nowhere/key.pem"),
            "/nowhere/key.pem",
        ),
    ],
)
def test_an_unsafe_or_incomplete_interface_is_refused(
    tmp_path: Path, sets: tuple[str, ...], part: str
) -> None:
    options = [word for setting in sets for word in ("--set", setting)]
    command = ["--root", str(tmp_path / "r"), "supervisor", "--set", "supervisor.development=true"]
    done = supervisor_process.run_command(*command, *options)
    assert done.returncode == 78 and part in done.stderr, done.stderr
