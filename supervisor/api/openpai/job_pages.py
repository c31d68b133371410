"""Pages of `/api/v2/jobs`: their arguments, and the part of all rows that a page has. Pure; a router uses it,
too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ....protocol.errors import Refusal

LIMIT, MAX_LIMIT = 5_000, 50_000
_MAX_OFFSET = 2**53
#: field of `order` -> key of a row
_ORDER = {
    "jobName": "name",
    "submissionTime": "submissionTime",
    "username": "username",
    "vc": "virtualCluster",
    "retries": "retries",
    "totalTaskNumber": "totalTaskNumber",
    "totalGpuNumber": "totalGpuNumber",
    "state": "state",
    "completionTime": "completedTime",
    "jobPriority": "jobPriority",
}

Row = dict[str, Any]


class JobPage(NamedTuple):
    """A page. total: the answer has the number of all rows."""

    offset: int
    limit: int
    field: str
    descending: bool
    total: bool

    def answer(self, rows: list[Row], count: int) -> Any:
        """Return the answer. rows: all that may be on the page. count: of all rows."""
        key = _ORDER[self.field]
        rows = sorted(rows, key=lambda r: (r[key] is not None, r[key]), reverse=self.descending)
        part = rows[self.offset : self.offset + self.limit]
        return {"totalCount": count, "data": part} if self.total else part


def job_page(argument: Callable[[str], str | None]) -> JobPage:
    """Return the page that a request asks for. argument: returns one of the query. Raises
    Refusal("badRequest").
    """
    field, _, way = (argument("order") or "submissionTime,DESC").partition(",")
    if field not in _ORDER or way not in ("ASC", "DESC"):
        field, way = "submissionTime", "DESC"
    return JobPage(
        _number("offset", argument("offset"), 0, _MAX_OFFSET),
        _number("limit", argument("limit"), LIMIT, MAX_LIMIT),
        field,
        way == "DESC",
        argument("withTotalCount") == "true",
    )


def _number(name: str, text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) <= most):
        raise Refusal("badRequest", f"{name} must be a number up to {most}; got {ascii(text)[:40]}")
    return int(text)
