"""The retry budget of a client: given by the caller, else JOBSCRIBE_PATIENCE, else a default."""

import os

from ...protocol import durations
from ..api.requests import bad_request

VARIABLE = "JOBSCRIBE_PATIENCE"
#: Default for programs; that of the command line is longer.
BUDGET_SECS = 30.0


def budget(given: float | None = None, default: float = BUDGET_SECS) -> float:
    """Return the budget in seconds. Raises ClientError("badRequest") for an invalid variable."""
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "")
    if not text:
        return default
    secs = durations.seconds(text)
    if secs is None:
        raise bad_request(f"{VARIABLE} is {ascii(text)[:60]}; it must be {durations.FORM}")
    return secs
