"""The agents' listener with TLS. An agent trusts only the certificate authority that its
configuration names.
"""

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from certificate_authority import Authority
from consistency_check import check_books
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from supervisor_process import SupervisorProcess, shell, spec, until


def settings(cert: Path, key: Path, ca: Path) -> tuple[str, ...]:
    return (
        f"supervisor.agents_tls_cert={cert}",
        f"supervisor.agents_tls_key={key}",
        f"supervisor.agents_tls_ca={ca}",
    )


def test_agents_come_by_wss_and_trust_the_pinned_authority(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    authority = Authority("the right one")
    cert, key = authority.issue(tmp_path)
    site = make_site(
        *settings(cert, key, authority.write(tmp_path / "ca.pem")), "limits.request_secs=2"
    )
    site.start()
    run = shell("echo over TLS")
    assert site.finished(run)["state"] == "completed"
    assert site.output(run).body == b"over TLS\n"
    url = json.loads((site.root / "agents.json").read_text())["agentsUrl"]
    assert url.startswith("wss://127.0.0.1:")
    host, port = url.removeprefix("wss://").removesuffix("/agent").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        contextlib.suppress(ConnectionResetError),
    ):
        plain.sendall(b"GET /agent HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with (
        socket.create_connection((host, int(port)), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname=host) as wrapped,
    ):
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")
        with (
            socket.create_connection((host, int(port)), timeout=5 * 2.0) as silent,
            contextlib.suppress(ConnectionResetError),
        ):
            assert silent.recv(1) == b"", "who does not begin to speak TLS is sent away"
            assert wrapped.recv(1) == b"", "and who says nothing then"
    check_books(site)


@pytest.mark.parametrize("wrong", ["another authority", "another address"])
def test_an_agent_does_not_talk_to_who_is_not_vouched_for(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path, wrong: str
) -> None:
    authority = Authority("the right one")
    cert, key = authority.issue(
        tmp_path, "127.0.0.1" if wrong == "another authority" else "127.0.0.2"
    )
    trusted = Authority("another one") if wrong == "another authority" else authority
    site = make_site(
        *settings(cert, key, trusted.write(tmp_path / "ca.pem")),
        "limits.agent_start_secs=4",
        "limits.agent_start_tries=1",
    )
    site.start()
    run = spec(["true"])
    site.submit(run)
    logs = (site.root / "agent").glob
    until(
        lambda: any(
            "certificate verify failed" in p.read_text().lower() for p in logs("*/agent.log")
        ),
        "the agent has tried",
    )
    said = site.wait(run)
    assert (said["state"], said["reason"], said["attempt"]) == ("error", "agentStartFailed", 0)
    assert "opName=alive" not in site.log()
    until(lambda: not site.titled("keeper"), "the agent that could not connect was ended")
    check_books(site)


def test_a_key_that_others_can_read_is_refused(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    authority = Authority("the right one")
    cert, key = authority.issue(tmp_path)
    key.chmod(0o644)
    site = make_site(*settings(cert, key, authority.write(tmp_path / "ca.pem")))
    process = site.fork_or_launch()
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode > 0) == (b"", True)
    assert "chmod 600" in site.log() and str(key) in site.log()


def test_a_certificate_that_is_none_is_refused_without_a_trace(
    make_site: Callable[..., SupervisorProcess], tmp_path: Path
) -> None:
    authority = Authority("the right one")
    cert, key = authority.issue(tmp_path)
    cert.write_text("this is no certificate")
    site = make_site(*settings(cert, key, authority.write(tmp_path / "ca.pem")))
    process = site.fork_or_launch()
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode > 0) == (b"", True)
    assert "Traceback" not in site.log() and str(cert) in site.log(), site.log()
