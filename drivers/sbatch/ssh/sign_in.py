"""Sign-in to a cluster by ssh as the user: from credentials to a channel or a refusal.

This module is importable without asyncssh. `host_attempts` needs asyncssh and does the work.
"""

import importlib
import re
from typing import TYPE_CHECKING

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from ....runtime.log.logger import Log
from ....runtime.one_shot_thread import in_thread
from .credentials import Credentials

if TYPE_CHECKING:
    from .ssh_channel import SshChannel

#: Keepalive interval (seconds). `host_attempts.KEEPALIVE_COUNT` is the number of unanswered
#: keepalives that end the connection.
KEEPALIVE_SECS = 15.0
#: Names up to this length are replaced only as whole words.
_SHORT = 3


async def connect(
    cluster: Cluster, credentials: Credentials, log: Log, *, keepalive_secs: float = KEEPALIVE_SECS
) -> "SshChannel":
    """Sign in. Raises Refusal("signInRefused" | "signInUnreachable"). The credentials are empty
    when this returns or raises.

    Each step (connect, handshake, each question, each answer) has the limit `cluster.call_secs`.
    """
    try:
        # returned as a value, because an exception would carry frames that hold secrets
        outcome = await _attempt(cluster, credentials, keepalive_secs, log)
    finally:
        credentials.forget()
    if isinstance(outcome, Refusal):
        log(
            "sign-in at cluster {}: {} {}",
            cluster.name,
            outcome.code,
            _without_user(outcome.sentence, credentials.user),
        )
        raise outcome
    log("{} has signed in at {} (cluster {})", outcome.user, outcome.host, cluster.name)
    return outcome


def _without_user(sentence: str, user: str) -> str:
    """Replace the user name in a sentence that is logged, in upper or lower case. Users sometimes
    type a password as the name, so a refused name must not be logged.
    """
    for name in sorted({user, user.partition("@")[0]}, key=len, reverse=True):
        # a short name occurs inside ordinary words, so only whole words are replaced
        pattern = re.escape(name) if len(name) > _SHORT else rf"(?<!\w){re.escape(name)}(?!\w)"
        if name:
            sentence = re.sub(pattern, "this user", sentence, flags=re.IGNORECASE)
    return sentence


async def _attempt(
    cluster: Cluster, credentials: Credentials, keepalive_secs: float, log: Log
) -> "SshChannel | Refusal":
    # the first import takes half a second, so it must not block the event loop
    missing = await in_thread(_load)
    if missing is not None:
        sentence = (
            f"sign-in needs the package {missing}, which is not installed for the supervisor: "
            "pip install 'jobscribe[sbatch]'"
        )
        return Refusal("signInUnreachable", sentence)
    from .host_attempts import connect_any_host

    return await connect_any_host(cluster, credentials, keepalive_secs, log)


def _load() -> str | None:
    """Import `host_attempts`. Returns the name of the missing package, or None."""
    try:
        importlib.import_module(".host_attempts", __package__)
    except ImportError as e:
        return e.name or "asyncssh"
    return None
