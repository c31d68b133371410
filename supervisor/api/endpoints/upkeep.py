"""Upkeep for operators: notification targets, retention, and the exchange of the event log. No data
of jobs.
"""

from typing import Any

import msgspec

from ....protocol.api.site_requests import Exchange, Sweep, TargetName
from ....protocol.errors import Refusal
from ...files.log_compaction import LogCompaction
from ...files.retention_sweeper import RetentionSweeper
from ...notifications.notifier import Notifications
from ..transport.request_handler import Handler
from . import site_acts


async def notify(h: Handler) -> Any:
    """Return the targets of notifications, and the state of their delivery."""
    return {"state": "ok", **_notifications(h).status()}


async def notify_test(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.log("test of notification target {} requested", name)
    await _record(h, "notify-test", name)
    return {"state": "ok", **await _notifications(h).test(name)}


async def notify_retry(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.log("retry of notification target {} requested", name)
    await _record(h, "notify-retry", name)
    return {"state": "ok", **_notifications(h).retry(name)}


async def _record(h: Handler, action: str, target: str) -> None:
    """Record an act on a target; one that does not exist is refused by the act itself."""
    if any(row["name"] == target for row in _notifications(h).status()["targets"]):
        await site_acts.record(h, action, target)


def _notifications(h: Handler) -> Notifications:
    if h.services.notifications is None:
        raise Refusal(
            "notFound",
            "notifications are not configured; set notify.file (see docs/notifications.md)",
        )
    return h.services.notifications


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
    sweeper = _services(h)[0]
    if not dry_run:
        await site_acts.record(h, "retention-sweep")
    report = await sweeper.sweep(dry_run=dry_run, at_once=True)
    return {"state": "ok", "report": msgspec.to_builtins(report)}


async def log_exchange(h: Handler) -> Any:
    """Exchange the event log for the compacted one beside it."""
    keep = h.parsed(Exchange).keep
    h.log("exchange of the event log requested")
    compaction = _services(h)[1]
    await site_acts.record(h, "log-exchange")
    compacted = await compaction.exchange(keep=keep)
    return {"state": "ok", "compacted": msgspec.to_builtins(compacted)}


def _services(h: Handler) -> tuple[RetentionSweeper, LogCompaction]:
    if h.services.retention is None or h.services.log_compaction is None:
        raise Refusal("notFound", "this supervisor has no retention")
    return h.services.retention, h.services.log_compaction
