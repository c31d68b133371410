"""What this deployment is called where it is a guest: on hosts with containers and on clusters
others may have one, too. Pure.
"""

import hashlib

DEPLOYMENT_LENGTH = 8
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def deployment(key: bytes) -> str:
    """8 small letters or digits that tell deployments apart, made of a root's own key. They tell
    nothing about the key.
    """
    number = int.from_bytes(
        hashlib.blake2b(b"deployment", digest_size=16, key=key[:64]).digest(), "big"
    )
    out = ""
    for _ in range(DEPLOYMENT_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        out += _DIGITS[digit]
    return out
