"""Retention for operators: what went and would go, and the exchange of the event log."""

from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ...files.log_compaction import LogCompaction
from ...files.retention_sweeper import RetentionSweeper
from ..transport.request_handler import Handler


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    dry_run: bool = True


class Exchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """keep: keep the old log aside."""

    keep: bool = True


async def retention(h: Handler) -> Any:
    """Return what went since the start, and in the last pass, and the pass in progress."""
    sweeper, compaction = _services(h)
    return {
        "state": "ok",
        "total": msgspec.to_builtins(sweeper.total),
        "last": msgspec.to_builtins(sweeper.last),
        "current": msgspec.to_builtins(sweeper.current),
        "compactions": msgspec.to_builtins(compaction.state),
    }


async def retention_sweep(h: Handler) -> Any:
    """Make a pass now, or a dry run."""
    dry_run = h.parsed(Sweep).dry_run
    h.log("retention pass requested, dryRun={}", dry_run)
    report = await _services(h)[0].sweep(dry_run=dry_run, at_once=True)
    return {"state": "ok", "report": msgspec.to_builtins(report)}


async def log_exchange(h: Handler) -> Any:
    """Exchange the event log for the compacted one beside it."""
    keep = h.parsed(Exchange).keep
    h.log("exchange of the event log requested")
    compacted = await _services(h)[1].exchange(keep=keep)
    return {"state": "ok", "compacted": msgspec.to_builtins(compacted)}


def _services(h: Handler) -> tuple[RetentionSweeper, LogCompaction]:
    if h.services.retention is None or h.services.log_compaction is None:
        raise Refusal("notFound", "this supervisor has no retention")
    return h.services.retention, h.services.log_compaction
