"""From a cluster's login hosts to one that lets a user in.

Hosts are tried in turn while the network keeps us from them. Once one of them was told a secret, it
is the last: what it refused, another would refuse as well, and the account might be locked. Nothing
of the supervisor's own unix user plays a part (~/.ssh, an agent for keys).
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
from .auth_dialog import METHODS, AuthDialog, SecretRegistry, change_first
from .host_keys import PinnedKeys, place
from .prompts import meaning, plain
from .sign_in import Credentials
from .ssh_channel import SshChannel, closed
from .user_keys import key_pair

#: questions whether a host is there that may stay without an answer
KEEPALIVE_COUNT = 3
_MAX_HOPS = 4


class _Unreached(NamedTuple):
    """The network kept us from it, and nothing secret was said: another host may be tried."""

    sentence: str


class _Attempt(NamedTuple):
    """What is the same for all hosts of a sign-in."""

    cluster: Cluster
    user: str
    secrets: SecretRegistry
    key: asyncssh.SSHKeyPair | None
    keepalive_secs: float


def _silence() -> None:
    """asyncssh tells its logger what it does; at higher levels whole packets. What there is to say
    we say.
    """
    asyncssh.set_log_level(logging.CRITICAL + 1)
    asyncssh.set_debug_level(1)


async def enter(
    cluster: Cluster, credentials: Credentials, keepalive_secs: float, log: Log
) -> SshChannel | Refusal:
    """Never raises, but where it is cancelled."""
    _silence()
    secrets = SecretRegistry(credentials.password, credentials.code)
    key = None
    try:
        if (wrong := _incomplete(cluster, credentials)) is not None:
            return wrong
        if credentials.key:
            read = await key_pair(
                credentials.key, credentials.passphrase, credentials.certificate, credentials.user
            )
            if isinstance(read, Refusal):
                return read
            key = read
        return await _first_that_answers(
            _Attempt(cluster, credentials.user, secrets, key, keepalive_secs)
        )
    except Exception as e:  # a mistake of ours or of the library's; its frames and words may know secrets, so only its kind is told
        log(
            "sign-in at cluster {} failed by a mistake: {} at {}",
            cluster.name,
            type(e).__name__,
            _where(e),
        )
        return Refusal(
            "signInUnreachable",
            f"the sign-in failed by a mistake of ours ({type(e).__name__}); the operator looks at the log",
        )
    finally:
        secrets.forget()


def _where(error: BaseException) -> str:
    """Where it was raised: files, lines and functions, none of the values."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}:{code.co_name}")
        trace = trace.tb_next
    return " > ".join(places[-8:])


def _incomplete(cluster: Cluster, credentials: Credentials) -> Refusal | None:
    if not cluster.login:
        return Refusal(
            "signInUnreachable",
            f"cluster {cluster.name} has no login host; the operator names one in the clusters' file",
        )
    if not credentials.user or not credentials.user.isprintable() or len(credentials.user) > 128:
        return Refusal(
            "signInRefused", "that is not a user name; give the one you have at the site"
        )
    if not (credentials.password or credentials.code or credentials.key):
        return Refusal(
            "signInRefused",
            f"nothing was given to sign in with; cluster {cluster.name} takes {', '.join(cluster.methods)}",
        )
    if credentials.certificate and not credentials.key:
        return Refusal(
            "signInRefused",
            "a certificate alone opens nothing; give the private key that it was made for",
        )
    return None


async def _first_that_answers(attempt: _Attempt) -> SshChannel | Refusal:
    missed: list[str] = []
    for host in attempt.cluster.login:
        match await _through_all(host, attempt):
            case _Unreached(sentence):
                missed.append(sentence)
            case outcome:
                return outcome
    return Refusal("signInUnreachable", "; ".join(dict.fromkeys(missed)))


async def _through_all(host: LoginHost, attempt: _Attempt) -> SshChannel | Refusal | _Unreached:
    """One login host, with those on the way to it."""
    hops = [host]
    while (via := hops[0].via) is not None:
        hops.insert(0, via)
    if len(hops) > _MAX_HOPS:
        return Refusal(
            "signInUnreachable",
            f"the way to {place(host)} has over {_MAX_HOPS} hosts; the operator corrects the file",
        )
    connections: list[asyncssh.SSHClientConnection] = []
    kept = False
    try:
        for hop in hops:
            outcome = await _let_in(hop, connections[-1] if connections else None, attempt)
            if isinstance(outcome, Refusal | _Unreached):
                return outcome
            connection, talk = outcome
            connections.append(connection)
        channel = SshChannel(connections[-1], attempt.user, place(host), connections[:-1])
        talk.lost = channel.lost
        if connections[-1].is_closed():
            channel.lost()
        wrong = await _usable(channel, talk, attempt.cluster.call_secs)
        kept = wrong is None
        return wrong or channel
    finally:
        if not kept:
            for connection in reversed(connections):
                await closed(connection)


async def _let_in(
    host: LoginHost,
    tunnel: asyncssh.SSHClientConnection | None,
    attempt: _Attempt,
) -> tuple[asyncssh.SSHClientConnection, AuthDialog] | Refusal | _Unreached:
    """One host: connected and let in, or what kept us out."""
    secs, loop = attempt.cluster.call_secs, asyncio.get_running_loop()
    deadline = asyncio.timeout(secs)
    try:
        pinned = PinnedKeys(host)
    except Refusal as refusal:
        return refusal.with_traceback(None)

    def moved() -> None:
        if deadline.when() is not None and not deadline.expired():
            deadline.reschedule(loop.time() + secs)

    talk = AuthDialog(
        place(host),
        attempt.user,
        attempt.cluster.methods,
        attempt.secrets,
        attempt.key,
        pinned,
        moved,
    )
    try:
        async with deadline:
            return await asyncssh.connect(
                host.host, host.port, **_options(attempt, talk, pinned, tunnel)
            ), talk
    except (asyncssh.Error, OSError, UnicodeError) as e:
        return _why_not(host, talk, e, secs)


def _options(
    attempt: _Attempt,
    talk: AuthDialog,
    pinned: PinnedKeys,
    tunnel: asyncssh.SSHClientConnection | None,
) -> dict[str, object]:
    """No file and no agent of this machine's, no method but those that the conversation answers, no
    key but those that are pinned.
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
        "client_factory": lambda: talk,
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


async def _usable(channel: SshChannel, talk: AuthDialog, secs: float) -> Refusal | None:
    """Let in is not yet able to work: an expired password or a shell that is none shows with the
    first command.
    """
    try:
        ran = await channel.run(["true"], secs=secs)
    except ChannelError as e:
        return Refusal(
            "signInUnreachable",
            f"{channel.host} let {channel.user} in, but executes nothing: {e.sentence}{talk.words()}",
        )
    if ran.code == 0:
        return None
    said = plain((ran.err + b" " + ran.out).decode("utf-8", "replace")).rstrip(".") or "nothing"
    match meaning(said):
        case "passwordExpired":
            what = change_first(channel.host, channel.user)
        case "accountExpired":
            what = f"the account {channel.user} has expired at {channel.host}; ask your site to renew it"
        case _:
            what = f"{channel.host} let {channel.user} in, but executes no commands for this account (exit code {ran.code}); ask your site"
    return Refusal("signInRefused", f"{what}. {channel.host} says: {said}")


# ---- what kept us out


def _why_not(
    host: LoginHost, talk: AuthDialog, error: Exception, secs: float
) -> Refusal | _Unreached:
    if talk.refusal is not None:
        return talk.refusal
    if isinstance(error, asyncssh.PermissionDenied):
        return talk.not_accepted() if talk.sent else _nothing_fits(talk)
    if talk.sent:
        if talk.heard_after_answer() or (
            isinstance(error, asyncssh.DisconnectError) and "auth" in error.reason.lower()
        ):
            return talk.not_accepted()
        return Refusal(
            "signInUnreachable",
            f"{talk.place} broke off after {' and '.join(talk.sent)} had been sent ({_how(error, secs)}); whether it "
            f"was accepted is not known. Wait for the next code before you try again{talk.words()}",
        )
    return _Unreached(_sentence(host, talk, error, secs))


def _nothing_fits(talk: AuthDialog) -> Refusal:
    """It wants something that was not given, or that the operator does not allow."""
    offered = ", ".join(m for m in talk.offered if m in METHODS) or "nothing that we know"
    so_far = (
        f"accepted {' and '.join(talk.accepted)} and wants more"
        if talk.accepted
        else "takes none of what was given"
    )
    return Refusal(
        "signInRefused",
        f"{talk.place} {so_far}: {offered}; nothing else was sent. Give what it asks for{talk.words()}",
    )


def _how(error: Exception, secs: float) -> str:
    return (
        f"no answer in {secs:g} s"
        if isinstance(error, TimeoutError)
        else plain(str(error)) or type(error).__name__
    )


def _sentence(host: LoginHost, talk: AuthDialog, error: Exception, secs: float) -> str:
    """For a host to which nothing secret was said."""
    if isinstance(error, TimeoutError) and talk.step != "connect":
        hangs = "its ssh server hangs, or is overloaded"
        return f"{talk.place} accepted the connection, but did not go on within {secs:g} s; {hangs}{talk.words()}"
    match error:
        case TimeoutError():
            return f"{talk.place} did not answer within {secs:g} s; look at the network, a firewall, or whether the host is up"
        case socket.gaierror() | UnicodeError():
            return f"there is no address for {host.host}; the operator looks at its name in the clusters' file, and at the name service"
        case ConnectionRefusedError():
            return f"{talk.place} refuses connections; no ssh server runs there now, or at another port"
        case asyncssh.ChannelOpenError():
            through = place(host.via) if host.via is not None else "the host before it"
            return f"{through} let us in, but did not connect us to {talk.place}: {plain(error.reason)}"
        case asyncssh.KeyExchangeFailed():
            return f"{talk.place} and we know no common way to encrypt: {plain(error.reason)}"
        case asyncssh.ProtocolError():
            return f"what answers at {talk.place} is no ssh server that we understand: {plain(error.reason)}"
        case asyncssh.DisconnectError():
            return f"{talk.place} broke the connection off before it asked anything: {plain(error.reason)}{talk.words()}"
        case OSError() if talk.step == "connect":
            return f"there is no way to {talk.place}: {plain(error.strerror or str(error))}; look at the network, the address, a firewall"
        case _:
            return f"the connection to {talk.place} failed: {_how(error, secs)}"
