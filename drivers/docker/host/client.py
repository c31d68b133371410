"""Connections to a Docker host: its address, its certificates, a client, and the diagnosis of
connection problems.

Clients are made only here, so that three rules hold for all: plain TCP never leaves this machine,
environment variables of the supervisor (proxies, CA bundles) do not change which certificates are
trusted, and every request has a deadline.
"""

import ipaddress
import os
import re
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.tls

from ....protocol.clusters.container_pool import PoolHost
from .errors import FOREIGN, EngineError, engine_error, tls_error

FILES = ("cacert.pem", "cert.pem", "key.pem")
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME: used only to read the dates of an expired certificate, never
#: to exchange data
_ANY_TIME = 0x200000
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+):(\d{1,5})/?")


@dataclass(frozen=True)
class Address:
    """Address of a host. path: path of a unix socket; without it, ip (or name) and port are set."""

    path: str = ""
    ip: str = ""
    port: int = 0


def parse_address(host: PoolHost) -> Address:
    """Parse the address of a host. Raises EngineError("unsafe") for an address that must not be
    used, before any connection.
    """
    if host.address.startswith("unix:///"):
        return Address(path=host.address.removeprefix("unix://"))
    m = _TCP.fullmatch(host.address)
    if m is None or not 0 < int(m[2]) < 65536:
        raise EngineError(
            "unsafe",
            f"host {host.name}: {host.address} is not a valid address of a Docker host; write tcp://ip:port or unix:///path",
        )
    ip = m[1].strip("[]")
    if host.tls is None and not _is_loopback(ip):
        raise EngineError(
            "unsafe",
            f"host {host.name}: {host.address} is plain TCP, which gives root access on that host to anybody in the network; "
            "start dockerd with --tlsverify and set `tls` to the folder of the certificates",
        )
    return Address(ip=ip, port=int(m[2]))


def new_client(host: PoolHost, api: str, secs: float) -> Any:
    """Return a client for one thread. Raises EngineError and docker's own errors."""
    address = parse_address(host)
    tls: Any = False
    if host.tls is not None and not address.path:
        cacert, cert, key = (os.path.join(host.tls, name) for name in FILES)
        for file in (cacert, cert, key):
            if problem := _unreadable(host, Path(file)):
                raise EngineError("badTls", problem)
        tls = docker.tls.TLSConfig(client_cert=(cert, key), ca_cert=cacert, verify=True)
    client = docker.APIClient(base_url=host.address.rstrip("/"), version=api, tls=tls, timeout=secs)
    # Otherwise REQUESTS_CA_BUNDLE and proxies of the environment would override the pool file.
    client.trust_env = False
    return client


def connect_once(host: PoolHost, secs: float) -> None:
    """Connect once to a unix socket. Raises OSError if no daemon listens: in this case the docker
    package would leak its own socket.
    """
    if (address := parse_address(host)).path:
        _connect(address, secs).close()


def missing_files(host: PoolHost) -> list[str]:
    """Return a sentence for each TLS file of this host that is missing or unreadable."""
    if host.tls is None or host.address.startswith("unix:"):
        return []
    folder = Path(host.tls)
    if not folder.is_dir():
        return [
            f"host {host.name}: the folder {folder} does not exist; create it and put {', '.join(FILES)} there"
        ]
    return [problem for name in FILES if (problem := _unreadable(host, folder / name)) is not None]


def certificate_problems(host: PoolHost, now: float) -> list[str]:
    """Return the problems of existing TLS files that are visible without a connection. now: unix
    seconds.
    """
    if host.tls is None or host.address.startswith("unix:"):
        return []
    folder, found = Path(host.tls), []
    key = folder / "key.pem"
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(
            f"host {host.name}: other users can read {key}, which gives root access there; 'chmod 600 {key}', and consider a new key"
        )
    authority = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        authority.load_verify_locations(str(folder / "cacert.pem"))
        for cert in authority.get_ca_certs():
            found += _date_problems(host, f"{folder}/cacert.pem", dict(cert), now)
        found += _date_problems(
            host, f"{folder}/cert.pem", _read_certificate(folder / "cert.pem", key), now
        )
    except ssl.SSLError:
        pass  # the files cannot be loaded; `probe` reports that
    return found


def probe(host: PoolHost, secs: float) -> EngineError | None:
    """Connect without the docker package and return the exact problem, or None if a daemon could
    answer. Blocks.
    """
    try:
        address = parse_address(host)
        with _connect(address, secs) as plain:
            if host.tls is None or address.path:
                return None
            context = _context(host)
            # If the connection was reset meanwhile, the ssl module would leak an open socket.
            plain.getpeername()
            with context.wrap_socket(plain, server_hostname=address.ip) as wrapped:
                # With TLS 1.3 the refusal of our certificate comes after the handshake. Nothing is
                # sent, because a reset could discard the refusal.
                wrapped.settimeout(min(secs, 0.7))
                try:
                    wrapped.recv(1)
                except TimeoutError:
                    return None
        return EngineError(
            "badTls",
            f"host {host.name} ({host.address}) closes TLS connections at once; read dockerd's log",
        )
    except ssl.SSLCertVerificationError as e:
        return tls_error(host, e, _server_validity(host, secs))
    except FOREIGN as e:
        return engine_error(host, "connecting", e)
    except EngineError as e:
        return e


def _connect(address: Address, secs: float) -> socket.socket:
    if not address.path:
        return socket.create_connection((address.ip, address.port), secs)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(secs)
    try:
        s.connect(address.path)
    except OSError:
        s.close()
        raise
    return s


def _context(host: PoolHost) -> ssl.SSLContext:
    """Raises EngineError("badTls") if the files are unusable."""
    assert host.tls is not None
    cacert, cert, key = (os.path.join(host.tls, name) for name in FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cacert)
    except ssl.SSLError:
        raise EngineError(
            "badTls",
            f"host {host.name}: {cacert} has no certificate; put the certificate of dockerd's authority there",
        ) from None
    try:
        # Without a password argument, OpenSSL would prompt at the terminal.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as e:
        if e.reason == "KEY_VALUES_MISMATCH":
            raise EngineError(
                "badTls",
                f"host {host.name}: {key} does not match {cert}; replace them by a matching pair",
            ) from None
        raise EngineError(
            "badTls",
            f"host {host.name}: {cert} and {key} cannot be used ({e.reason or e}); "
            "put a certificate and its key there, as PEM, without a password",
        ) from None
    return context


def _server_validity(host: PoolHost, secs: float) -> str:
    """Return the validity period of the daemon's certificate, or "" if our authority did not sign
    it.
    """
    context = _context(host)
    context.verify_flags |= _ANY_TIME
    address = parse_address(host)
    try:
        with (
            _connect(address, secs) as plain,
            context.wrap_socket(plain, server_hostname=address.ip) as wrapped,
        ):
            return f" ({_span(wrapped.getpeercert() or {})})"
    except OSError:
        return ""


def _is_loopback(ip: str) -> bool:
    try:
        return ip == "localhost" or ipaddress.ip_address(ip).is_loopback
    except ValueError:
        return False


def _unreadable(host: PoolHost, file: Path) -> str | None:
    try:
        with open(file, "rb") as f:
            f.read(1)
    except FileNotFoundError:
        return f"host {host.name}: the file {file} does not exist; put it there"
    except OSError as e:
        return f"host {host.name}: {file} cannot be read ({e.strerror}); make the supervisor's user its owner"
    return None


def _date_problems(host: PoolHost, file: str, cert: dict[str, Any], now: float) -> list[str]:
    if "notAfter" not in cert or "notBefore" not in cert:
        return []
    if now > ssl.cert_time_to_seconds(cert["notAfter"]):
        return [f"host {host.name}: {file} has expired ({_span(cert)}); create a new one"]
    if now < ssl.cert_time_to_seconds(cert["notBefore"]):
        return [
            f"host {host.name}: {file} is not yet valid ({_span(cert)}); correct the clock, or create a new one"
        ]
    return []


def _span(cert: dict[str, Any]) -> str:
    return f"valid from {cert.get('notBefore', '?')} to {cert.get('notAfter', '?')}"


def _read_certificate(cert: Path, key: Path) -> dict[str, Any]:
    """Return the parsed certificate, by presenting it in memory to a TLS server that trusts only
    this certificate.

    The standard library has no other public way to parse a certificate that is not an authority's.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for side in (client, server):
        # With TLS 1.2, both ends have the certificates when the handshake has ended.
        side.maximum_version = ssl.TLSVersion.TLSv1_2
        side.load_cert_chain(cert, key, password="")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cert)
    server.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(ends[1].getpeercert() or {})
