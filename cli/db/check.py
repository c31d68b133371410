"""`jobscribe db check`: verification of the event store."""

from typing import TYPE_CHECKING

from ..session.session import command, session
from .store_access import head_of, progress_reporter, shard_option, store_roots

if TYPE_CHECKING:
    from ...db.maintenance.verification import Report


@command()
@shard_option
def check(shard: int | None) -> None:
    """Verify every event, checksum, index row and record. Exits with 1 if it finds a fault."""
    from ...db.maintenance import verification

    s = session()
    reports = {
        k: verification.check(root, progress_reporter(s)) for k, root in store_roots(s, shard)
    }
    ok = all(report.ok for report in reports.values())
    if s.screen.json:
        import msgspec

        values = {k: {"ok": r.ok, **msgspec.to_builtins(r)} for k, r in reports.items()}
        of_site = {"ok": ok, "shards": {str(k): value for k, value in values.items()}}
        s.screen.value("jobscribe.db.check/1", values.get(None, of_site))
    else:
        for k, report in reports.items():
            for line in _report_lines(report):
                s.screen.line(head_of(k) + line)
    raise SystemExit(0 if ok else 1)


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
