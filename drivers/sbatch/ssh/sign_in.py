"""Signing in to a cluster by ssh as the user himself: from credentials to a channel, or to the
sentence that says why not.

Here is the door, which is there whether asyncssh is installed or not; what goes on behind it is
`host_attempts`.
"""

import importlib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from ....runtime.log.logger import Log
from ....runtime.one_shot_thread import in_thread

if TYPE_CHECKING:
    from .ssh_channel import SshChannel

#: A host that says nothing is asked so often whether it is there; `host_attempts` says how many
#: questions may stay without an answer.
KEEPALIVE_SECS = 15.0
#: A name of so few letters is looked for as a word of its own.
_SHORT = 3


class Credentials(msgspec.Struct, kw_only=True):
    """What a person proves with who he is. Shows itself to nobody; `connect` empties it, whatever
    comes of it.
    """

    user: str
    password: str | None = None
    code: str | None = None
    key: str | None = None
    passphrase: str | None = None
    certificate: str | None = None

    def __repr__(self) -> str:
        return "Credentials()"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    #: what logs show of it
    pkdebug_str = __repr__

    def forget(self) -> None:
        self.password = self.code = self.key = self.passphrase = self.certificate = None


async def connect(
    cluster: Cluster, credentials: Credentials, log: Log, *, keepalive_secs: float = KEEPALIVE_SECS
) -> "SshChannel":
    """Sign in. Raises Refusal("signInRefused" | "signInUnreachable"). The credentials are empty
    when this returns or raises.

    Each step (connect, handshake, each question, each answer) has `cluster.call_secs`.
    """
    try:
        # as a value: an exception would carry the frames of those who know the secrets
        outcome = await _entered(cluster, credentials, keepalive_secs, log)
    finally:
        credentials.forget()
    if isinstance(outcome, Refusal):
        log(
            "sign-in at cluster {}: {} {}",
            cluster.name,
            outcome.code,
            _without(outcome.sentence, credentials.user),
        )
        raise outcome
    log("{} has signed in at {} (cluster {})", outcome.user, outcome.host, cluster.name)
    return outcome


def _without(sentence: str, user: str) -> str:
    """People type passwords where a name is asked for. What was refused may be one, so that nothing
    repeats it, however it is written.
    """
    for name in sorted({user, user.partition("@")[0]}, key=len, reverse=True):
        # a letter or two stand in any word; between others they are told apart
        pattern = re.escape(name) if len(name) > _SHORT else rf"(?<!\w){re.escape(name)}(?!\w)"
        if name:
            sentence = re.sub(pattern, "this user", sentence, flags=re.IGNORECASE)
    return sentence


async def _entered(
    cluster: Cluster, credentials: Credentials, keepalive_secs: float, log: Log
) -> "SshChannel | Refusal":
    # the first time this takes half a second, in which the loop has other things to do
    missing = await in_thread(_load)
    if missing is not None:
        sentence = f"sign-in needs a package that is not installed beside the supervisor ({missing}): pip install 'jobscribe[sbatch]'"
        return Refusal("signInUnreachable", sentence)
    from .host_attempts import enter

    return await enter(cluster, credentials, keepalive_secs, log)


def _load() -> str | None:
    """The package that is missing."""
    try:
        importlib.import_module(".host_attempts", __package__)
    except ImportError as e:
        return e.name or "asyncssh"
    return None
