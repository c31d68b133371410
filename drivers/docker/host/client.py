"""The door to a Docker host: its address, the certificates for it, a client for it, and what is
wrong with any of them.

A client is made here and nowhere else, so that three things hold for all: plain TCP never leaves
this machine, the environment of the supervisor (proxies, CA bundles) does not change whom we trust,
and every request has a deadline.
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
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME: used to read the dates of a certificate that is out of date,
#: never to talk
_ANY_TIME = 0x200000
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^:/\[\]]+):(\d{1,5})/?")


@dataclass(frozen=True)
class Address:
    """path: of a unix socket; else ip (or name) and port."""

    path: str = ""
    ip: str = ""
    port: int = 0


def address_of(host: PoolHost) -> Address:
    """Raises EngineError("unsafe") for an address that must not be used, before anybody connects to
    it.
    """
    if host.address.startswith("unix:///"):
        return Address(path=host.address.removeprefix("unix://"))
    m = _TCP.fullmatch(host.address)
    if m is None or not 0 < int(m[2]) < 65536:
        raise EngineError(
            "unsafe",
            f"host {host.name}: {host.address} is no address of a Docker host; write tcp://ip:port or unix:///path",
        )
    ip = m[1].strip("[]")
    if host.tls is None and not _is_loopback(ip):
        raise EngineError(
            "unsafe",
            f"host {host.name}: {host.address} would be plain TCP, by which anybody in the network is root there; "
            "start dockerd with --tlsverify and name the folder of the certificates in `tls`",
        )
    return Address(ip=ip, port=int(m[2]))


def new_client(host: PoolHost, api: str, secs: float) -> Any:
    """A client of one thread. Raises EngineError and docker's own errors."""
    address = address_of(host)
    tls: Any = False
    if host.tls is not None and not address.path:
        cacert, cert, key = (os.path.join(host.tls, name) for name in FILES)
        for file in (cacert, cert, key):
            if problem := _unreadable(host, Path(file)):
                raise EngineError("badTls", problem)
        tls = docker.tls.TLSConfig(client_cert=(cert, key), ca_cert=cacert, verify=True)
    client = docker.APIClient(base_url=host.address.rstrip("/"), version=api, tls=tls, timeout=secs)
    # else REQUESTS_CA_BUNDLE and proxies of the environment would stand in for what the pool file
    # says
    client.trust_env = False
    return client


def knock(host: PoolHost, secs: float) -> None:
    """Raises OSError where nobody listens at a unix socket: the docker package would leave its own
    socket open then.
    """
    if (address := address_of(host)).path:
        _connected(address, secs).close()


def missing_files(host: PoolHost) -> list[str]:
    """Which of the files for this host's TLS are not there or cannot be read, a sentence each."""
    if host.tls is None or host.address.startswith("unix:"):
        return []
    folder = Path(host.tls)
    if not folder.is_dir():
        return [
            f"host {host.name}: there is no folder {folder}; make it and put {', '.join(FILES)} there"
        ]
    return [problem for name in FILES if (problem := _unreadable(host, folder / name)) is not None]


def certificate_problems(host: PoolHost, now: float) -> list[str]:
    """What is wrong with these files, all of which are there, so far as one sees it without
    connecting. now: Unix seconds.
    """
    if host.tls is None or host.address.startswith("unix:"):
        return []
    folder, found = Path(host.tls), []
    key = folder / "key.pem"
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(
            f"host {host.name}: others can read {key}, and so be root there; 'chmod 600 {key}', and think of making a new one"
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
        pass  # they do not even load: `probe` says it
    return found


def probe(host: PoolHost, secs: float) -> EngineError | None:
    """Connects by hand and says what is wrong, more exactly than a failed request does; None where
    a daemon could answer. Blocks.
    """
    try:
        address = address_of(host)
        with _connected(address, secs) as plain:
            if host.tls is None or address.path:
                return None
            context = _context(host)
            # of a connection that was reset meanwhile the ssl module leaves a socket open that
            # nobody can close
            plain.getpeername()
            with context.wrap_socket(plain, server_hostname=address.ip) as wrapped:
                # With TLS 1.3 the refusal of our certificate comes after the handshake. Nothing is
                # sent: it could get lost behind a reset.
                wrapped.settimeout(min(secs, 0.7))
                try:
                    wrapped.recv(1)
                except TimeoutError:
                    return None
        return EngineError(
            "badTls",
            f"host {host.name} ({host.address}) ends TLS connections at once; look at dockerd's log",
        )
    except ssl.SSLCertVerificationError as e:
        return tls_error(host, e, _servers_dates(host, secs))
    except FOREIGN as e:
        return engine_error(host, "connecting", e)
    except EngineError as e:
        return e


def _connected(address: Address, secs: float) -> socket.socket:
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
    """Raises EngineError("badTls") where the files do not make one."""
    assert host.tls is not None
    cacert, cert, key = (os.path.join(host.tls, name) for name in FILES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cacert)
    except ssl.SSLError:
        raise EngineError(
            "badTls",
            f"host {host.name}: {cacert} has no certificate; put that of dockerd's authority there",
        ) from None
    try:
        # an empty password: else OpenSSL would ask for one at the terminal
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as e:
        if e.reason == "KEY_VALUES_MISMATCH":
            raise EngineError(
                "badTls",
                f"host {host.name}: {key} is not the key of {cert}; put two there that belong together",
            ) from None
        raise EngineError(
            "badTls",
            f"host {host.name}: {cert} and {key} cannot be used ({e.reason or e}); "
            "put a certificate and its key there, as PEM, without a password",
        ) from None
    return context


def _servers_dates(host: PoolHost, secs: float) -> str:
    """How long the daemon's certificate is valid; nothing where it is not by our authority anyway."""
    context = _context(host)
    context.verify_flags |= _ANY_TIME
    address = address_of(host)
    try:
        with (
            _connected(address, secs) as plain,
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
        return f"host {host.name}: there is no {file}; put it there"
    except OSError as e:
        return f"host {host.name}: {file} cannot be read ({e.strerror}); give it to the supervisor's user"
    return None


def _date_problems(host: PoolHost, file: str, cert: dict[str, Any], now: float) -> list[str]:
    if "notAfter" not in cert or "notBefore" not in cert:
        return []
    if now > ssl.cert_time_to_seconds(cert["notAfter"]):
        return [f"host {host.name}: {file} has expired ({_span(cert)}); make a new one"]
    if now < ssl.cert_time_to_seconds(cert["notBefore"]):
        return [
            f"host {host.name}: {file} is not yet valid ({_span(cert)}); set the clock right, or make a new one"
        ]
    return []


def _span(cert: dict[str, Any]) -> str:
    return f"valid from {cert.get('notBefore', '?')} to {cert.get('notAfter', '?')}"


def _read_certificate(cert: Path, key: Path) -> dict[str, Any]:
    """What the certificate says: it is shown, in memory, to a server of ours that trusts exactly
    it.

    The standard library has no other public way to read one that is no authority's.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for side in (client, server):
        # 1.2: both ends know the certificates when their handshake is over
        side.maximum_version = ssl.TLSVersion.TLSv1_2
        side.load_cert_chain(cert, key, password="")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cert)
    server.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(ends[1].getpeercert() or {})
