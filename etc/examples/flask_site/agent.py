"""This site's own module `agent`: the shop assistant of a customer. jobscribe's package of that
name is `jobscribe.agent`.
"""

import zlib

_AGENTS = ("Ada", "Grace", "Katherine")


def of(uid: str) -> str:
    """Return the assistant of a customer, always the same one."""
    return _AGENTS[zlib.crc32(uid.encode()) % len(_AGENTS)]
