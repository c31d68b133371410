"""Errors of Docker hosts: one exception with a code and a sentence, and the mapping of foreign
exceptions to it.

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
#: minimum API version of the daemon
LEAST_API = "1.41"
_MAX_WORDS = 600
#: exceptions of a call that the host may cause; any other is a bug and is not converted
FOREIGN = (
    requests.RequestException,
    docker.errors.DockerException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
#: OpenSSL's error reasons for data that is no TLS
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "UNKNOWN_PROTOCOL",
)
_EXPIRED, _NOT_YET, _OTHER_NAME = (10,), (9,), (62, 64)


class EngineError(Exception):
    """A failed call to a Docker host. sentence: for people, without secrets.

    refused: the daemon refused, in its own words. unsafe: the call was not sent. After `timeout` or
    `unreachable` the call may have been carried out.
    """

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code: ErrorCode = code
        self.sentence = sentence


def engine_error(host: PoolHost, action: str, error: BaseException) -> EngineError:
    """Convert `error`, which the action `what` raised."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, docker.errors.TLSParameterError):
        return EngineError(
            "badTls",
            f"host {host.name}: {one_line(str(error))}; check the certificates in {host.tls}",
        )
    if isinstance(error, docker.errors.APIError):
        return _refusal(host, action, error)
    chain = list(_chain(error))
    for e in chain:
        if isinstance(e, ssl.SSLError) and not isinstance(
            e, ssl.SSLWantReadError | ssl.SSLWantWriteError
        ):
            return tls_error(host, e)
    for e in chain:
        if isinstance(e, OSError) and e.errno is not None and not isinstance(e, TimeoutError):
            return _unreachable(host, e)
    # checked last, because urllib3 reports every connection failure as a timeout, too
    if any(
        isinstance(e, TimeoutError | requests.Timeout | urllib3.exceptions.TimeoutError)
        for e in chain
    ):
        return timed_out(host, action)
    if any(isinstance(e, requests.JSONDecodeError | http.client.BadStatusLine) for e in chain):
        if any("closed connection without response" in str(e) for e in chain):
            return _broke_off(host, action)
        return EngineError(
            "refused",
            f"the server at {host.address} (host {host.name}) is not a Docker daemon; correct its address",
        )
    return _broke_off(host, action)


def timed_out(host: PoolHost, action: str) -> EngineError:
    """The error for a daemon that hangs, a slow disk, or a firewall that drops packets."""
    return EngineError(
        "timeout",
        f"host {host.name} ({host.address}) did not answer in time: {action}; "
        "check whether its dockerd hangs or a firewall blocks the connection",
    )


def tls_error(host: PoolHost, error: ssl.SSLError, dates: str = "") -> EngineError:
    """The error for a failed handshake or a refused certificate. dates: validity period of the
    server's certificate, if known.
    """
    return EngineError(
        "badTls", f"host {host.name} ({host.address}): {_tls_sentence(host, error, dates)}"
    )


def _tls_sentence(host: PoolHost, error: ssl.SSLError, dates: str) -> str:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _EXPIRED:
            return f"the daemon's certificate has expired{dates}; create a new one for dockerd, or correct the clocks"
        if error.verify_code in _NOT_YET:
            return f"the daemon's certificate is not yet valid{dates}; correct the clocks, or create a new one for dockerd"
        if error.verify_code in _OTHER_NAME:
            return "the daemon's certificate is for another name or address; use a name from the certificate, or create a new certificate"
        return (
            f"the daemon's certificate is not signed by {host.tls}/cacert.pem ({one_line(error.verify_message)}); "
            "put the certificate of its authority there"
        )
    if "ALERT" in reason and (
        "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "ACCESS_DENIED" in reason
    ):
        return (
            f"the daemon does not accept our certificate, {host.tls}/cert.pem ({one_line(reason.lower().replace('_', ' '))}); "
            "have it signed by the authority in dockerd's --tlscacert, for the use clientAuth"
        )
    if any(sign in reason for sign in _NOT_TLS):
        return "this port does not use TLS; start dockerd with --tlsverify there, or correct the port in the pool file"
    return f"the TLS connection failed: {one_line(str(error))}; check the certificates in {host.tls}, and dockerd's log"


def one_line(text: str) -> str:
    """Format a foreign message for use in a sentence: one line, limited length, no dot at the
    end.
    """
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _MAX_WORDS else line[:_MAX_WORDS] + "..."


def too_old(host: PoolHost, version: str, api: str) -> EngineError:
    """The error for a daemon whose API version is below the minimum."""
    return EngineError(
        "tooOld",
        f"host {host.name} runs Docker {version} with API {api}; API {LEAST_API} (Docker 20.10) or later is required; update Docker there",
    )


def _refusal(host: PoolHost, action: str, error: docker.errors.APIError) -> EngineError:
    status, message = error.status_code, one_line(str(error.explanation or error))
    if status == 400 and "HTTP request to an HTTPS server" in message:
        return EngineError(
            "badTls",
            f"host {host.name} uses TLS at {host.address}, but has no `tls` setting; set it to the folder of certificates",
        )
    code: ErrorCode = "notFound" if status == 404 else "conflict" if status == 409 else "refused"
    return EngineError(code, f"host {host.name}: {action}: {message}")


def _unreachable(host: PoolHost, error: OSError) -> EngineError:
    if isinstance(error, FileNotFoundError) and not host.address.startswith("unix:"):
        return EngineError(
            "badTls",
            f"host {host.name}: {one_line(str(error))}; put cacert.pem, cert.pem and key.pem into {host.tls}",
        )
    return EngineError(
        "unreachable",
        f"host {host.name} cannot be reached at {host.address}: {_unreachable_reason(host, error)}",
    )


def _unreachable_reason(host: PoolHost, error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "the socket does not exist; check that dockerd runs ('systemctl status docker') and where its socket is"
        case PermissionError() if host.address.startswith("unix:"):
            return "permission denied; add the supervisor's user to the group of the socket (usually docker)"
        case ConnectionRefusedError():
            return "connection refused; check that dockerd runs there and listens at this address"
        case ConnectionResetError() | BrokenPipeError() | ConnectionAbortedError():
            return "it broke the connection off; read dockerd's log, and check whether it requires TLS certificates"
        case _:
            return f"{one_line(error.strerror or str(error))}; check the address, the network and the host"


def _broke_off(host: PoolHost, action: str) -> EngineError:
    return EngineError(
        "unreachable",
        f"host {host.name} ({host.address}) broke the connection off: {action}; "
        "check whether dockerd was restarted or lacks memory",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that caused an error. requests and urllib3 wrap them as arguments,
    reasons or causes.
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
