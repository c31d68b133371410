"""The clusters that runs can go to, as the user who asks may know them."""

from typing import Any

from ....protocol.api.requests import ClusterList
from ..transport.request_handler import Handler


async def clusters(h: Handler) -> Any:
    """None where this house has none."""
    request: ClusterList = h.parsed(ClusterList)
    board = h.services.clusters
    return {"state": "ok", "clusters": [] if board is None else board.listing(request.uid)}
