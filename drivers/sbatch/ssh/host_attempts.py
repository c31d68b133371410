"""Attempts to sign in at a cluster's login hosts, until one accepts the user.

The next host is tried only after a network failure. After a host has received a secret, no other
host is tried: it would refuse as well, and the account might get locked. The ~/.ssh and the
ssh-agent of the supervisor's unix user are not used.
"""

import asyncio
import logging
import socket
from typing import NamedTuple

import asyncssh

from ....protocol.clusters.cluster import Cluster, LoginHost
from ....protocol.errors import Refusal
from ....runtime.log.logger import Log
from ..login_node.channel import ChannelError
from .auth_dialog import METHODS, AuthDialog, SecretRegistry, password_change_needed
from .credentials import Credentials
from .host_keys import PinnedKeys, host_label
from .prompts import classify_message, strip_control
from .ssh_channel import SshChannel, closed
from .user_keys import key_pair

#: number of unanswered keepalives that end the connection
KEEPALIVE_COUNT = 3
_MAX_HOPS = 4


class _Unreached(NamedTuple):
    """The host is unreachable and has received no secret: the next host may be tried."""

    sentence: str


class _Attempt(NamedTuple):
    """Parameters of a sign-in, the same for all hosts."""

    cluster: Cluster
    user: str
    secrets: SecretRegistry
    key: asyncssh.SSHKeyPair | None
    keepalive_secs: float


def _silence_asyncssh() -> None:
    """Disable asyncssh's logger, which logs whole packets at higher debug levels."""
    asyncssh.set_log_level(logging.CRITICAL + 1)
    asyncssh.set_debug_level(1)


async def connect_any_host(
    cluster: Cluster, credentials: Credentials, keepalive_secs: float, log: Log
) -> SshChannel | Refusal:
    """Sign in at the first host that answers. Never raises, except for a cancellation."""
    _silence_asyncssh()
    secrets = SecretRegistry(credentials.password, credentials.code)
    key = None
    try:
        if (refusal := _check_input(cluster, credentials)) is not None:
            return refusal
        if credentials.key:
            read = await key_pair(
                credentials.key, credentials.passphrase, credentials.certificate, credentials.user
            )
            if isinstance(read, Refusal):
                return read
            key = read
        return await _try_hosts(_Attempt(cluster, credentials.user, secrets, key, keepalive_secs))
    except Exception as e:  # a bug; its frames and text may hold secrets, so log only its type
        log(
            "sign-in at cluster {} failed because of a bug: {} at {}",
            cluster.name,
            type(e).__name__,
            _traceback_places(e),
        )
        return Refusal(
            "signInUnreachable",
            f"the sign-in failed because of a bug in jobscribe ({type(e).__name__}); "
            "ask the operator to look at the supervisor's log",
        )
    finally:
        secrets.forget()


def _traceback_places(error: BaseException) -> str:
    """Return where the error was raised: files, lines and functions, without values."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}:{code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-8:])


def _check_input(cluster: Cluster, credentials: Credentials) -> Refusal | None:
    if not cluster.login:
        return Refusal(
            "signInUnreachable",
            f"cluster {cluster.name} has no login host; "
            "the operator adds one to `login` in the clusters file",
        )
    if not credentials.user or not credentials.user.isprintable() or len(credentials.user) > 128:
        return Refusal(
            "signInRefused", "that is not a valid user name; give your user name at the site"
        )
    if not (credentials.password or credentials.code or credentials.key):
        return Refusal(
            "signInRefused",
            "no password, code or key was given; "
            f"cluster {cluster.name} accepts {', '.join(cluster.methods)}",
        )
    if credentials.certificate and not credentials.key:
        return Refusal(
            "signInRefused",
            "a certificate needs its private key; give both",
        )
    return None


async def _try_hosts(attempt: _Attempt) -> SshChannel | Refusal:
    failures: list[str] = []
    for host in attempt.cluster.login:
        match await _connect_through_hops(host, attempt):
            case _Unreached(sentence):
                failures.append(sentence)
            case outcome:
                return outcome
    return Refusal("signInUnreachable", "; ".join(dict.fromkeys(failures)))


async def _connect_through_hops(
    host: LoginHost, attempt: _Attempt
) -> SshChannel | Refusal | _Unreached:
    """Connect to one login host through its jump hosts."""
    hops = [host]
    while (via := hops[0].via) is not None:
        hops.insert(0, via)
    if len(hops) > _MAX_HOPS:
        return Refusal(
            "signInUnreachable",
            f"the route to {host_label(host)} has more than {_MAX_HOPS} hosts; "
            "the operator corrects `via` in the clusters file",
        )
    connections: list[asyncssh.SSHClientConnection] = []
    connected = False
    try:
        for hop in hops:
            outcome = await _connect_host(hop, connections[-1] if connections else None, attempt)
            if isinstance(outcome, Refusal | _Unreached):
                return outcome
            connection, dialog = outcome
            connections.append(connection)
        channel = SshChannel(connections[-1], attempt.user, host_label(host), connections[:-1])
        dialog.lost = channel.lost
        if connections[-1].is_closed():
            channel.lost()
        refusal = await _check_commands(channel, dialog, attempt.cluster.call_secs)
        connected = refusal is None
        return refusal or channel
    finally:
        if not connected:
            for connection in reversed(connections):
                await closed(connection)


async def _connect_host(
    host: LoginHost,
    tunnel: asyncssh.SSHClientConnection | None,
    attempt: _Attempt,
) -> tuple[asyncssh.SSHClientConnection, AuthDialog] | Refusal | _Unreached:
    """Connect to one host and authenticate, or return the reason for a failure."""
    secs, loop = attempt.cluster.call_secs, asyncio.get_running_loop()
    deadline = asyncio.timeout(secs)
    try:
        pinned = PinnedKeys(host)
    except Refusal as refusal:
        return refusal.with_traceback(None)

    def on_step() -> None:
        if deadline.when() is not None and not deadline.expired():
            deadline.reschedule(loop.time() + secs)

    dialog = AuthDialog(
        host_label(host),
        attempt.user,
        attempt.cluster.methods,
        attempt.secrets,
        attempt.key,
        pinned,
        on_step,
    )
    try:
        async with deadline:
            return await asyncssh.connect(
                host.host, host.port, **_options(attempt, dialog, pinned, tunnel)
            ), dialog
    except (asyncssh.Error, OSError, UnicodeError) as e:
        return _explain_failure(host, dialog, e, secs)


def _options(
    attempt: _Attempt,
    dialog: AuthDialog,
    pinned: PinnedKeys,
    tunnel: asyncssh.SSHClientConnection | None,
) -> dict[str, object]:
    """Return the options of asyncssh: no file and no ssh-agent of this machine, only the methods
    that the dialog answers, and only pinned host keys.
    """
    order = sorted(
        METHODS,
        key=lambda m: (
            attempt.cluster.methods.index(m) if m in attempt.cluster.methods else len(METHODS)
        ),
    )
    return {
        "tunnel": tunnel,
        "config": None,
        "username": attempt.user,
        "client_factory": lambda: dialog,
        "known_hosts": (pinned.keys, [], []),
        "server_host_key_algs": pinned.algorithms(),
        "x509_trusted_certs": None,
        "x509_trusted_cert_paths": [],
        "client_keys": None,
        "agent_path": None,
        "agent_forwarding": False,
        "pkcs11_provider": None,
        "x11_forwarding": False,
        "host_based_auth": False,
        "gss_host": None,
        "gss_kex": False,
        "gss_auth": False,
        "preferred_auth": order,
        "proxy_command": None,
        "keepalive_interval": attempt.keepalive_secs,
        "keepalive_count_max": KEEPALIVE_COUNT,
        "compression_algs": None,
        "request_pty": False,
        "connect_timeout": None,
        "utf8_decode_errors": "replace",
        "send_env": None,
        "env": None,
        "command": None,
        "canonicalize_hostname": False,
    }


async def _check_commands(channel: SshChannel, dialog: AuthDialog, secs: float) -> Refusal | None:
    """Run a first command. It detects an expired password and an account without a working
    shell.
    """
    try:
        result = await channel.run(["true"], secs=secs)
    except ChannelError as e:
        return Refusal(
            "signInUnreachable",
            f"{channel.host} accepted {channel.user}, but runs no commands: "
            f"{e.sentence}{dialog.message_suffix()}",
        )
    if result.code == 0:
        return None
    output = (
        strip_control((result.err + b" " + result.out).decode("utf-8", "replace")).rstrip(".")
        or "nothing"
    )
    match classify_message(output):
        case "passwordExpired":
            sentence = password_change_needed(channel.host, channel.user)
        case "accountExpired":
            sentence = (
                f"the account {channel.user} has expired at {channel.host}; "
                "ask your site to renew it"
            )
        case _:
            sentence = (
                f"{channel.host} accepted {channel.user}, but runs no commands for this account "
                f"(exit code {result.code}); ask your site"
            )
    return Refusal("signInRefused", f"{sentence}. {channel.host} says: {output}")


# ---- reasons for failures


def _explain_failure(
    host: LoginHost, dialog: AuthDialog, error: Exception, secs: float
) -> Refusal | _Unreached:
    if dialog.refusal is not None:
        return dialog.refusal
    if isinstance(error, asyncssh.PermissionDenied):
        return dialog.not_accepted() if dialog.sent else _no_usable_method(dialog)
    if dialog.sent:
        if dialog.got_message_after_answer() or (
            isinstance(error, asyncssh.DisconnectError) and "auth" in error.reason.lower()
        ):
            return dialog.not_accepted()
        return Refusal(
            "signInUnreachable",
            f"{dialog.place} closed the connection after {' and '.join(dialog.sent)} had been sent "
            f"({_error_text(error, secs)}); it is unknown whether it was accepted. "
            f"Wait for the next code before you try again{dialog.message_suffix()}",
        )
    return _Unreached(_sentence(host, dialog, error, secs))


def _no_usable_method(dialog: AuthDialog) -> Refusal:
    """Return the refusal for a host that requires a credential that is missing or that the operator
    does not allow.
    """
    offered = ", ".join(m for m in dialog.offered if m in METHODS) or "no supported method"
    so_far = (
        f"accepted {' and '.join(dialog.accepted)} and asks for more"
        if dialog.accepted
        else "accepts none of the given credentials"
    )
    return Refusal(
        "signInRefused",
        f"{dialog.place} {so_far}: it offers {offered}; nothing else was sent. "
        f"Sign in with one of these{dialog.message_suffix()}",
    )


def _error_text(error: Exception, secs: float) -> str:
    return (
        f"no answer in {secs:g} s"
        if isinstance(error, TimeoutError)
        else strip_control(str(error)) or type(error).__name__
    )


def _sentence(host: LoginHost, dialog: AuthDialog, error: Exception, secs: float) -> str:
    """Return the reason for a host that has received no secret."""
    if isinstance(error, TimeoutError) and dialog.step != "connect":
        return (
            f"{dialog.place} accepted the connection, but did not answer within {secs:g} s; "
            f"its ssh server hangs or is overloaded{dialog.message_suffix()}"
        )
    match error:
        case TimeoutError():
            return (
                f"{dialog.place} did not answer within {secs:g} s; "
                "check the network, firewalls, and whether the host is up"
            )
        case socket.gaierror() | UnicodeError():
            return (
                f"cannot resolve the address of {host.host}; "
                "the operator checks its name in the clusters file, and the name service"
            )
        case ConnectionRefusedError():
            return (
                f"{dialog.place} refuses connections; "
                "no ssh server runs there, or it uses another port"
            )
        case asyncssh.ChannelOpenError():
            through = host_label(host.via) if host.via is not None else "the host before it"
            return (
                f"{through} accepted the sign-in, but did not connect to {dialog.place}: "
                f"{strip_control(error.reason)}"
            )
        case asyncssh.KeyExchangeFailed():
            return f"no common encryption with {dialog.place}: {strip_control(error.reason)}"
        case asyncssh.ProtocolError():
            return (
                f"the server at {dialog.place} does not speak ssh correctly: "
                f"{strip_control(error.reason)}"
            )
        case asyncssh.DisconnectError():
            return (
                f"{dialog.place} closed the connection before it asked anything: "
                f"{strip_control(error.reason)}{dialog.message_suffix()}"
            )
        case OSError() if dialog.step == "connect":
            return (
                f"cannot connect to {dialog.place}: {strip_control(error.strerror or str(error))}; "
                "check the network, the address and firewalls"
            )
        case _:
            return f"the connection to {dialog.place} failed: {_error_text(error, secs)}"
