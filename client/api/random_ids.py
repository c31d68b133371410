"""Random ids made by the client."""

import os

from ...protocol.ids import base62


def req_id() -> str:
    """Return a reqId, which identifies a request and its repetitions for 24 hours."""
    return base62(os.urandom(24), 24)


def shell_id() -> str:
    """Return the id of a new shell. Repeated requests with it open no second shell."""
    return base62(os.urandom(32), 32)


def simulation_id() -> str:
    """Return a new simulation id. A new id keeps a command from returning an older result."""
    return base62(os.urandom(8), 8)
