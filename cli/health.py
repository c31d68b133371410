"""`health`: whether all is well with the supervisor, what is not, since when, and what to do about
it.
"""

from typing import Any

from .session.session import command, session
from .terminal.quantities import moment

#: What the command exits with, by state. 2 is wrong usage everywhere, 125 is jobscribe itself: it
#: could not be asked.
CODES = {"ok": 0, "degraded": 1, "failing": 3}


@command()
def health() -> None:
    """Say whether all is well with the supervisor; if not, what is wrong, since when, and what to
    do.

    Exits with 0 when all is well, 1 when it works and somebody should look, 3 when what is asked
    for is not done or not safe, and 125 when the supervisor cannot be asked within 3 s (or
    --patience).
    """
    s = session()
    s.limit_wait("health answers at once")
    said = s.client().operating.health()
    state = str(said["state"])
    if s.screen.json:
        s.screen.value("jobscribe.health/1", said)
    else:
        s.screen.line(state)
        for reason in said["reasons"]:
            s.screen.line(_line(reason))
            s.screen.line(f"  try: {reason['try']}")
        if not said["reasons"]:
            s.screen.message("nothing is wrong that the supervisor knows of")
    raise SystemExit(CODES.get(state, 3))


def _line(reason: dict[str, Any]) -> str:
    since = f", since {moment(reason['since'])}" if reason["since"] is not None else ""
    return f"{reason['state']}: {reason['sentence']}{since}"
