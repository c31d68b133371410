"""The keys by which login hosts are known: those of the clusters' file and no others. Whoever shows
another one gets no secret.

Nothing is learned: neither at first contact, nor from the keys that a host announces, nor from any
file of this machine's users.
"""

import asyncssh

from ....protocol.clusters.cluster import LoginHost
from ....protocol.errors import Refusal

#: For the kinds of keys that a host may have; the first that both know is used.
_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)


class PinnedKeys:
    """The keys of one login host; behind one name there may be several machines, each with keys of
    its own.
    """

    def __init__(self, host: LoginHost) -> None:
        """Raises Refusal("signInUnreachable") where one of them is not a key."""
        self._host = host
        read = [_read(text) for text in host.keys]
        self.keys = [key for key in read if key is not None]
        if None in read:
            raise Refusal(
                "signInUnreachable",
                f"host key {read.index(None) + 1} of {place(host)} in the clusters' file is not a key; the operator "
                "corrects it ('ssh-keyscan' shows keys; compare them with what the site publishes)",
            )

    def algorithms(self) -> list[str]:
        """Those of the pinned keys first: a host that has such a key shows it. The others only so
        that it can be said what came.
        """
        pinned = {
            algorithm.decode()
            for key in self.keys
            for algorithm in (key.algorithm, *key.sig_algorithms)
        }
        return sorted(_ALGORITHMS, key=lambda algorithm: algorithm not in pinned)

    def is_known(self, key: asyncssh.SSHKey) -> bool:
        return any(key.public_data == pinned.public_data for pinned in self.keys)

    def sentence(self, came: asyncssh.SSHKey) -> str:
        """Why nothing was told to the host that showed this key."""
        known = ", ".join(f"{k.get_algorithm()} {k.get_fingerprint()}" for k in self.keys)
        return (
            f"{place(self._host)} showed the host key {came.get_algorithm()} {came.get_fingerprint()}, which is not one of those that are "
            f"known for it ({known}); nothing was sent to it. Either its key was changed, or another machine answers in its place: ask the "
            "operator, who compares it with what the site publishes before he adds it to the clusters' file"
        )


def place(host: LoginHost) -> str:
    """A login host as sentences name it."""
    name = f"[{host.host}]" if ":" in host.host else host.host
    return host.host if host.port == 22 else f"{name}:{host.port}"


def _read(text: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(_without_host(text))
    except (asyncssh.KeyImportError, UnicodeError, ValueError):
        return None


def _without_host(text: str) -> str:
    """A key as it stands alone: whole lines of known_hosts begin with the host's names."""
    words = text.split()
    starts = [n for n, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-", "sk-"))]
    return " ".join(words[starts[0] : starts[0] + 2]) if starts else text
