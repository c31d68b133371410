"""Notification targets for operators: list, test and retry them. No data of jobs."""

from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ...notifications.notifier import Notifications
from ..transport.request_handler import Handler


class TargetName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


async def notify(h: Handler) -> Any:
    return {"state": "ok", **_notifications(h).status()}


async def notify_test(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.log("test of notification target {} requested", name)
    return {"state": "ok", **await _notifications(h).test(name)}


async def notify_retry(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.log("retry of notification target {} requested", name)
    return {"state": "ok", **_notifications(h).retry(name)}


def _notifications(h: Handler) -> Notifications:
    if h.services.notifications is None:
        raise Refusal(
            "notFound",
            "notifications are not configured; set notify.file (see docs/notifications.md)",
        )
    return h.services.notifications
