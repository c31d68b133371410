"""Ids that this end invents. The one place of the client that takes randomness."""

import os

from ...protocol.ids import base62


def req_id() -> str:
    """A reqId: names one request for 24 hours, however often it is sent."""
    return base62(os.urandom(24), 24)


def simulation_id() -> str:
    """A simulation id that nobody has: a command never finds an older result in its slot."""
    return base62(os.urandom(8), 8)
