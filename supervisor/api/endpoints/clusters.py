"""The clusters that a user may submit to."""

from typing import Any

from ....protocol.api.requests import ClusterList
from ..transport.request_handler import Handler


async def clusters(h: Handler) -> Any:
    request: ClusterList = h.parsed(ClusterList)
    inventory = h.services.clusters
    return {"state": "ok", "clusters": [] if inventory is None else inventory.listing(request.uid)}
