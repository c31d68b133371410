"""What can go wrong between us and a Docker host: one error with a code and a sentence, and how
foreign exceptions become it.

No connection is made here.
"""

import http.client
import ssl
from collections.abc import Iterator
from typing import Literal

import docker.errors
import requests
import urllib3.exceptions

from ....protocol.clusters.container_pool import PoolHost

ErrorCode = Literal[
    "unreachable", "timeout", "badTls", "unsafe", "tooOld", "notFound", "conflict", "refused"
]
#: the least version of the daemon's interface that has all we use
LEAST_API = "1.41"
_MAX_WORDS = 600
#: what a work for a host may raise because of the host; anything else is a mistake of ours and
#: stays what it is
FOREIGN = (
    requests.RequestException,
    docker.errors.DockerException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
#: what OpenSSL calls bytes that are no TLS
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "UNKNOWN_PROTOCOL",
)
_EXPIRED, _NOT_YET, _OTHER_NAME = (10,), (9,), (62, 64)


class EngineError(Exception):
    """A call to a Docker host that failed. sentence: for a person, without secrets.

    refused: the daemon said no, in its own words. unsafe: we did not even try. Whether a call that
    ended in `timeout` or `unreachable` was carried out is not known.
    """

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code: ErrorCode = code
        self.sentence = sentence


def engine_error(host: PoolHost, what: str, error: BaseException) -> EngineError:
    """`error`, which came out of `what`, as ours."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, docker.errors.TLSParameterError):
        return EngineError(
            "badTls",
            f"host {host.name}: {words(str(error))}; look at the certificates in {host.tls}",
        )
    if isinstance(error, docker.errors.APIError):
        return _said_no(host, what, error)
    chain = list(_chain(error))
    for e in chain:
        if isinstance(e, ssl.SSLError) and not isinstance(
            e, ssl.SSLWantReadError | ssl.SSLWantWriteError
        ):
            return tls_error(host, e)
    for e in chain:
        if isinstance(e, OSError) and e.errno is not None and not isinstance(e, TimeoutError):
            return _unreachable(host, e)
    # only now: urllib3 calls everything that keeps it from connecting a timeout, too
    if any(
        isinstance(e, TimeoutError | requests.Timeout | urllib3.exceptions.TimeoutError)
        for e in chain
    ):
        return timed_out(host, what)
    if any(isinstance(e, requests.JSONDecodeError | http.client.BadStatusLine) for e in chain):
        if any("closed connection without response" in str(e) for e in chain):
            return _broke_off(host, what)
        return EngineError(
            "refused",
            f"what answers at {host.address} (host {host.name}) is no Docker daemon; correct its address",
        )
    return _broke_off(host, what)


def timed_out(host: PoolHost, what: str) -> EngineError:
    """What a daemon that hangs, a slow disk or a firewall that swallows packets looks like."""
    return EngineError(
        "timeout",
        f"host {host.name} ({host.address}) did not answer in time: {what}; "
        "look whether its dockerd hangs, or a firewall is in between",
    )


def tls_error(host: PoolHost, error: ssl.SSLError, dates: str = "") -> EngineError:
    """A handshake that failed, or a certificate that was not accepted. dates: how long the server's
    certificate is valid, where known.
    """
    return EngineError(
        "badTls", f"host {host.name} ({host.address}): {_tls_sentence(host, error, dates)}"
    )


def _tls_sentence(host: PoolHost, error: ssl.SSLError, dates: str) -> str:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _EXPIRED:
            return f"the daemon's certificate has expired{dates}; make a new one for dockerd, or set the clocks right"
        if error.verify_code in _NOT_YET:
            return f"the daemon's certificate is not yet valid{dates}; set the clocks right, or make a new one for dockerd"
        if error.verify_code in _OTHER_NAME:
            return "the daemon's certificate is for another name or address; use one that it names, or make it a new certificate"
        return (
            f"the daemon's certificate is not signed by {host.tls}/cacert.pem ({words(error.verify_message)}); "
            "put the certificate of the authority that signed it there"
        )
    if "ALERT" in reason and (
        "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason
    ):
        return (
            f"the daemon does not accept our certificate, {host.tls}/cert.pem ({words(reason.lower().replace('_', ' '))}); "
            "have it signed by the authority in dockerd's --tlscacert, for the use clientAuth"
        )
    if any(sign in reason for sign in _NOT_TLS):
        return "it does not speak TLS at this port; start dockerd with --tlsverify there, or correct the port in the pool file"
    return f"the TLS connection failed: {words(str(error))}; look at the certificates in {host.tls}, and at dockerd's log"


def words(text: str) -> str:
    """Foreign words as a part of a sentence of ours: one line, not long, without the dot at the
    end.
    """
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _MAX_WORDS else line[:_MAX_WORDS] + "..."


def too_old(host: PoolHost, version: str, api: str) -> EngineError:
    """For a daemon of this version, whose interface is older than the least."""
    return EngineError(
        "tooOld",
        f"host {host.name} runs Docker {version} with API {api}; {LEAST_API} (Docker 20.10) is the least; update Docker there",
    )


def _said_no(host: PoolHost, what: str, error: docker.errors.APIError) -> EngineError:
    status, said = error.status_code, words(str(error.explanation or error))
    if status == 400 and "HTTP request to an HTTPS server" in said:
        return EngineError(
            "badTls",
            f"host {host.name} speaks TLS at {host.address}, and it has no `tls`; name the folder of certificates",
        )
    code: ErrorCode = "notFound" if status == 404 else "conflict" if status == 409 else "refused"
    return EngineError(code, f"host {host.name}: {what}: {said}")


def _unreachable(host: PoolHost, error: OSError) -> EngineError:
    if isinstance(error, FileNotFoundError) and not host.address.startswith("unix:"):
        return EngineError(
            "badTls",
            f"host {host.name}: {words(str(error))}; put cacert.pem, cert.pem and key.pem into {host.tls}",
        )
    return EngineError(
        "unreachable",
        f"host {host.name} cannot be reached at {host.address}: {_why_not(host, error)}",
    )


def _why_not(host: PoolHost, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such socket; look whether dockerd runs ('systemctl status docker'), and where its socket is"
        case PermissionError() if host.address.startswith("unix:"):
            return "we may not use this socket; put the supervisor's user into the group it belongs to (usually docker)"
        case ConnectionRefusedError():
            return "the connection is refused; look whether dockerd runs there and listens at this address"
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return "it broke the connection off; look at dockerd's log, and whether it wants TLS certificates"
        case _:
            return f"{words(error.strerror or str(error))}; look at the address, the network between, and the host"


def _broke_off(host: PoolHost, what: str) -> EngineError:
    return EngineError(
        "unreachable",
        f"host {host.name} ({host.address}) broke the connection off: {what}; "
        "look whether dockerd was restarted, or lacks memory",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that one is made of: requests wraps what urllib3 wrapped, some as arguments,
    some as reason, some as cause.
    """
    seen: set[int] = set()
    todo = [error]
    while todo:
        e = todo.pop(0)
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        parts = [*e.args, getattr(e, "reason", None), e.__cause__, e.__context__]
        todo += [p for p in parts if isinstance(p, BaseException)]
