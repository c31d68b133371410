"""Pinned host keys: only the keys in the clusters file are trusted. A host with another key
receives no secret.

No key is learned: neither at the first contact, nor from keys that a host announces, nor from files
of this machine's users.
"""

import asyncssh

from ....protocol.clusters.cluster import LoginHost
from ....protocol.errors import Refusal

#: Algorithms for the kinds of host keys. The first common one is used.
_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)


class PinnedKeys:
    """Keys of one login host. One name may stand for several machines with their own keys."""

    def __init__(self, host: LoginHost) -> None:
        """Raises Refusal("signInUnreachable") for an invalid key."""
        self._host = host
        read = [_read(text) for text in host.keys]
        self.keys = [key for key in read if key is not None]
        if None in read:
            raise Refusal(
                "signInUnreachable",
                f"host key {read.index(None) + 1} of {host_label(host)} in the clusters file is not a "
                "valid key; the operator corrects it ('ssh-keyscan' shows keys; compare them with "
                "the keys that the site publishes)",
            )

    def algorithms(self) -> list[str]:
        """Return the algorithms of the pinned keys first, so that the host shows such a key. The
        others follow, so that an unknown key can be reported.
        """
        pinned = {
            algorithm.decode()
            for key in self.keys
            for algorithm in (key.algorithm, *key.sig_algorithms)
        }
        return sorted(_ALGORITHMS, key=lambda algorithm: algorithm not in pinned)

    def is_known(self, key: asyncssh.SSHKey) -> bool:
        return any(key.public_data == pinned.public_data for pinned in self.keys)

    def sentence(self, shown: asyncssh.SSHKey) -> str:
        """Return why this host key is refused."""
        known = ", ".join(f"{k.get_algorithm()} {k.get_fingerprint()}" for k in self.keys)
        return (
            f"{host_label(self._host)} showed the host key {shown.get_algorithm()} "
            f"{shown.get_fingerprint()}, which is not one of its known keys ({known}); nothing was "
            "sent to it. Either its key has changed, or another machine answers in its place. Ask "
            "the operator to compare it with the keys that the site publishes, and then to add it "
            "to the clusters file"
        )


def host_label(host: LoginHost) -> str:
    """Return a login host's name for sentences."""
    name = f"[{host.host}]" if ":" in host.host else host.host
    return host.host if host.port == 22 else f"{name}:{host.port}"


def _read(text: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.import_public_key(_without_host(text))
    except (asyncssh.KeyImportError, UnicodeError, ValueError):
        return None


def _without_host(text: str) -> str:
    """Return the key alone: a line of known_hosts begins with host names."""
    words = text.split()
    starts = [n for n, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-", "sk-"))]
    return " ".join(words[starts[0] : starts[0] + 2]) if starts else text
