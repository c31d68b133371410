"""`jobscribe db rebuild`: records and index written again from the log."""

from ..session.session import command, session
from .store_access import progress_reporter, store_root


@command()
def rebuild() -> None:
    """Write index and records again from the log. Only while no supervisor uses the root."""
    from ...db.maintenance import rebuild as rebuilding

    s = session()
    done = rebuilding.rebuild(store_root(s), progress_reporter(s))
    if s.screen.json:
        import msgspec

        s.screen.value("jobscribe.db.rebuild/1", msgspec.to_builtins(done))
        return
    s.screen.line(
        f"{done.events} events, {done.jobs} jobs"
        + (f", {done.records_removed} records removed" if done.records_removed else "")
    )
