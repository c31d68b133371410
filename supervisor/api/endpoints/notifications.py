"""Those who are told when runs change: how each stands, a test of one, and another try at once. For
operators: nobody's jobs are in it.
"""

from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ...notifications.notifier import Notifications
from ..transport.request_handler import Handler


class TargetName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str


async def notify(h: Handler) -> Any:
    return {"state": "ok", **_there(h).status()}


async def notify_test(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.desk.log("a test of the notifications of {} is asked for", name)
    return {"state": "ok", **await _there(h).test(name)}


async def notify_retry(h: Handler) -> Any:
    name = h.parsed(TargetName).name
    h.desk.log("notifications of {} are to be tried at once", name)
    return {"state": "ok", **_there(h).retry(name)}


def _there(h: Handler) -> Notifications:
    if h.services.notifications is None:
        raise Refusal(
            "notFound",
            "nobody is told of anything here: name a file in notify.file (see docs/notifications.md)",
        )
    return h.services.notifications
