"""This site's own `agent`: the person who looks after a customer. jobscribe's folder of that name
is `jobscribe.agent`.
"""

import zlib

_AGENTS = ("Ada", "Grace", "Katherine")


def of(uid: str) -> str:
    """Always the same one for the same customer."""
    return _AGENTS[zlib.crc32(uid.encode()) % len(_AGENTS)]
