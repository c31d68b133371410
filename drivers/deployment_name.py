"""The short name of this deployment on hosts and clusters that it shares with other deployments.
Pure.
"""

import hashlib

DEPLOYMENT_LENGTH = 8
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def deployment(key: bytes) -> str:
    """Return 8 lower-case letters or digits derived from the root's key by a one-way hash. They
    distinguish deployments and reveal nothing about the key.
    """
    number = int.from_bytes(
        hashlib.blake2b(b"deployment", digest_size=16, key=key[:64]).digest(), "big"
    )
    out = ""
    for _ in range(DEPLOYMENT_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        out += _DIGITS[digit]
    return out
