"""The rules with which a router merges answers of several shards, for the routes that need one."""

from typing import Any

from .shard_answers import (
    Health,
    Listed,
    Merge,
    Named,
    Numbered,
    One,
    Pages,
    Refused,
    Row,
    Rows,
    Split,
    Stream,
    Text,
)


def _changed_at(row: Row) -> float:
    """Return about when a job changed: positions of different shards have no order."""
    return max(row.get(name) or 0.0 for name in ("queuedAt", "startedAt", "endedAt"))


def _sort_value(row: Row, sort: str, now: float) -> float:
    """Return the value of a row in an order of `job-search`, as a supervisor computes it."""
    match sort:
        case "submitted":
            return float(row["queuedAt"])
        case "started":
            return float(row.get("startedAt") or 0.0)
        case "ended":
            return float(row.get("endedAt") or 0.0)
        case "duration":
            started = row.get("startedAt")
            return -1.0 if started is None else max(0.0, (row.get("endedAt") or now) - started)
        case _:
            return _changed_at(row)


def _search_order(row: Row, request: Row) -> Any:
    sign = 1.0 if request.get("ascending") else -1.0
    value = _sort_value(row, request.get("sort", "changed"), request.get("now", 0.0))
    return sign * value, row["jid"]


def _search_cursor(row: Row, request: Row) -> str:
    """Return the cursor of a supervisor after this row."""
    if request.get("sort", "changed") == "changed" and not request.get("ascending"):
        return str(row["position"])
    if request.get("sort", "changed") == "changed":
        return f"{float(row['position'])!r}:{row['jid']}"
    value, jid = _search_order(row, request)
    return f"{value!r}:{jid}"


JOB_LIST = Pages(
    rows="jobs",
    cursor=lambda request: "before",
    next_of=lambda row, request: row["position"],
    order=lambda row, request: (-_changed_at(row), row["jid"]),
)
JOB_SEARCH = Pages(
    rows="jobs",
    cursor=lambda request: "cursor",
    next_of=_search_cursor,
    start="",
    order=_search_order,
    most=50,
    texts=False,
)
AUDIT = Pages(
    rows="events",
    cursor=lambda request: "after" if request.get("before") is None else "before",
    next_of=lambda row, request: row["version"],
    start=0,
    order=lambda row, request: (
        (1 if request.get("before") is None else -1) * row["event"]["at"],
        row["version"],
    ),
    most=1000,
)
USAGE = Merge(
    rows={
        "rows": Rows(
            by=("by",),
            sums=("*",),
            largest=("peakMemoryBytes",),
            order=lambda row: tuple(v for v in row.values() if isinstance(v, str)),
        )
    },
    sums=("total",),
    largest=("peakMemoryBytes",),
)
DISK = Merge(
    rows={"users": Rows(order=lambda row: -row["usedBytes"], most=10_000)}, sums=("total",)
)
QUEUES = Merge(
    rows={
        "queues": Rows(by=("queue",), sums=("waiting", "running", "cores", "gpus")),
        "accounts": Rows(order=lambda row: (row["queue"], row["level"], row["uid"])),
        "slots": Rows(
            by=("driver", "host", "kind"),
            sums=("used", "total", "waiting"),
            whole={"total": "siteTotal"},
        ),
        "waits": Rows(order=lambda row: row["queuedAt"]),
    },
    sums=("waiting",),
    union=("names",),
)
AGENTS = Merge(rows={"agents": Rows()})
POOL = Merge(rows={"hosts": Rows()})
POOL_CHECK = Merge(rows={"problems": Rows()}, sums=("hosts",))
DRAINS = Merge(rows={"drains": Rows(by=("driver", "host"))})
LOAD = Merge(
    sums=(
        "events",
        "submitted",
        "finished",
        "active",
        "queued",
        "tasks",
        "agents",
        "storeBytes",
    ),
    each=True,
)
USERS = Merge(
    rows={
        "users": Rows(
            by=("uid",),
            sums=("active", "tokens"),
            order=lambda row: (-row["active"], row["uid"]),
            most=1_000,
        )
    },
    counts={"total": "users"},
)
TOKENS = Merge(
    rows={"tokens": Rows(order=lambda row: (-row["createdAt"], row["id"]), most=1_000)},
    sums=("total",),
)
EACH = Merge(each=True)
SUPERVISORS = Merge(rows={"supervisors": Rows()}, each=True)
HANDOVER = Named(path="/api/site-supervisors")
TARGETS = Merge(rows={"targets": Rows(by=("name",), sums=("*",))})
RETENTION = Merge(sums=("total",), each=True)
SWEEP = Merge(sums=("report",), each=True)
ONE = One()
HEALTH = Health()
METRICS = Text()
RUNS = Split(items="runs")
LOG = Stream(kind="log")
PAGE = Stream(kind="page")
LINES = Stream(kind="lines")
PAI_JOBS = Listed(order=lambda row: -row["createdTime"])
PAI_JOBS2 = Numbered()
ROUTERS = Refused(remedy="routers alone send this request to shards")
EXCHANGE = Refused(remedy="'jobscribe db compact' asks the supervisor of each shard")
