"""`jobscribe health`: health of the supervisor, with start time and action for each fault."""

from pathlib import Path
from typing import Any

from .session.session import command, session
from .terminal.quantities import moment

#: Exit code by state. 2 means wrong usage, and 125 that the supervisor cannot be asked.
EXIT_CODES = {"ok": 0, "degraded": 1, "failing": 3}


@command()
def health() -> None:
    """Report the health of the supervisor: each fault with its start time and an action.

    Exits with 0 (ok), 1 (degraded: it works, but needs attention), 3 (failing: requests are not
    done or data is not safe), or 125 if the supervisor cannot be asked within 3 s (or --patience).
    """
    from ..client.api.errors import ClientError

    s = session()
    s.limit_wait("health answers at once")
    try:
        report = s.client().operating.health()
    except ClientError as e:
        if e.code in ("unreachable", "noSupervisor"):
            _refuse_lost_commits(Path(s.root))
        raise
    state = str(report["state"])
    if s.screen.json:
        s.screen.value("jobscribe.health/1", report)
    else:
        s.screen.line(state)
        for reason in report["reasons"]:
            s.screen.line(_line(reason))
            s.screen.line(f"  try: {reason['try']}")
        if not report["reasons"]:
            s.screen.message("the supervisor reports no fault")
    raise SystemExit(EXIT_CODES.get(state, 3))


def _refuse_lost_commits(root: Path) -> None:
    """Raise Refusal if no supervisor of this root can start, because its database lacks commits."""
    from ..db.store.database_marker import named_database

    if named_database(root) is None:
        return
    from ..db.postgres.opening import lost_commits
    from ..protocol.errors import Refusal

    sentence = lost_commits(root)
    if sentence is not None:
        raise Refusal("storeDamaged", f"no supervisor answers, and {sentence}")


def _line(reason: dict[str, Any]) -> str:
    since = f", since {moment(reason['since'])}" if reason["since"] is not None else ""
    return f"{reason['state']}: {reason['sentence']}{since}"
