"""How long a client goes on trying while the supervisor is away: what the caller says, else
JOBSCRIBE_PATIENCE, else a default.
"""

import os

from ...protocol import durations
from ..api.requests import bad_request

VARIABLE = "JOBSCRIBE_PATIENCE"
#: Of a program; the command line has a longer one.
BUDGET_SECS = 30.0


def budget(given: float | None = None, default: float = BUDGET_SECS) -> float:
    """Seconds. Raises ClientError("badRequest") for a variable that is no duration."""
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "")
    if not text:
        return default
    secs = durations.seconds(text)
    if secs is None:
        raise bad_request(f"{VARIABLE} is {ascii(text)[:60]}; it must be {durations.FORM}")
    return secs
