"""Conditions on rows of the table `jobs` as SQL. Words and queues are looked up in the
stored request of each row, because the table has neither names, commands nor queues.
"""

import json
from collections.abc import Sequence
from typing import Any

from ..store.contract import RowFilter

#: The event with the request of a run: its own, or the checkpoint that replaced the events.
_REQUEST = (
    "EXISTS (SELECT 1 FROM events AS e WHERE e.stream = 'job/' || jobs.jid"
    " AND e.type IN ('RunRequested', 'JobFolded') AND e.body LIKE ? ESCAPE '!')"
)


def conditions(wanted: RowFilter) -> tuple[list[str], list[Any]]:
    """Return the conditions, and the values for their places. `uid` is not among them."""
    where: list[str] = []
    values: list[Any] = []
    lists: tuple[tuple[str, Sequence[str]], ...] = (
        ("uid", wanted.users),
        ("status", wanted.statuses),
        ("driver", wanted.drivers),
        ("simulation_type", wanted.types),
        ("reason", wanted.reasons),
    )
    for column, chosen in lists:
        if chosen:
            # the plus keeps SQLite from another index than that of positions
            where.append(f"+{column} IN ({','.join('?' * len(chosen))})")
            values += chosen
    for condition, value in (("queued_at >= ?", wanted.since), ("queued_at < ?", wanted.until)):
        if value is not None:
            where.append(condition)
            values.append(value)
    for word in wanted.words:
        where.append(f"(jobs.jid LIKE ? ESCAPE '!' OR {_REQUEST})")
        values += (_pattern(word), _pattern(json.dumps(word, ensure_ascii=False)[1:-1]))
    if wanted.queues:
        where.append(f"({' OR '.join([_REQUEST] * len(wanted.queues))})")
        values += [_pattern(f'"queue":{json.dumps(queue)}') for queue in wanted.queues]
    return where, values


def _pattern(text: str) -> str:
    """Return the LIKE pattern of texts that contain this one."""
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return f"%{text}%"
