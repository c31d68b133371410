"""`jobscribe db check`: verification of the event store."""

from typing import TYPE_CHECKING

from ..session.session import command, session
from .store_access import progress_reporter, store_root

if TYPE_CHECKING:
    from ...db.maintenance.verification import Report


@command()
def check() -> None:
    """Verify every event, checksum, index row and record. Exits with 1 if it finds a fault."""
    from ...db.maintenance import verification

    s = session()
    report = verification.check(store_root(s), progress_reporter(s))
    if s.screen.json:
        import msgspec

        s.screen.value("jobscribe.db.check/1", {"ok": report.ok, **msgspec.to_builtins(report)})
    else:
        for line in _report_lines(report):
            s.screen.line(line)
    raise SystemExit(0 if report.ok else 1)


def _report_lines(report: "Report") -> list[str]:
    out = [
        f"{report.path}: {report.events} events, {report.jobs} jobs"
        + (", in use" if report.in_use else "")
    ]
    for problem in report.problems:
        at = "" if problem.position is None else f" at position {problem.position}"
        out.append(f"  {problem.where}{at}: {problem.what}")
    if report.more_problems:
        out.append(f"  and {report.more_problems} more")
    if report.records_behind:
        out.append(
            f"  {report.records_behind} records are behind the log; the next start writes them"
        )
    if report.ok:
        return [*out, "no fault found"]
    return [*out, f"the log is intact up to position {report.whole_up_to}"]
