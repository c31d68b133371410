"""What the log files of a root say about one job: the lines of its front end, of the supervisor, and of its user's agents and keepers.

Only reads, and only so much of the newest of each log. What cannot be found because a log is missing, or begins too late, is said.
A line of text has whole seconds in UTC and no year; one of JSON has both.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..protocol.errors import Refusal
from ..protocol.ids import parse_agent_key, short_op, split_jid

#: So much of the newest of each log is looked at (bytes), and so many of the newest lines of each that fit are told.
NEWEST_BYTES = 32 * 1024 * 1024
NEWEST_LINES = 500
#: Read at once: between two of these others get their turn.
_PIECE = 64 * 1024
_STAMP = re.compile(rb"([A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d) ")
_CALL = re.compile(r"_Op\(analysis, (\w+)\)")
#: A clock that goes ahead a little does not make a line of today one of last year.
_AHEAD_SECS = 86400.0


class Line(NamedTuple):
    """at: unix seconds, whole. source: the file, below the root."""

    at: float
    source: str
    text: str


class About(NamedTuple):
    """A job, as log lines name it. ops, requests: of its events. since: when it was asked for first."""

    jid: str
    simulation_type: str
    ops: frozenset[str]
    requests: frozenset[str]
    since: float


def lines(root: str, about: About) -> tuple[list[Line], list[str]]:
    """What the logs in this root have about a job, in order within each file; and sentences about what they cannot have."""
    uid = split_jid(about.jid)[0]
    now = time.time()
    words = _words(about)
    found: list[Line] = []
    gaps: list[str] = []
    for name in ("server", "supervisor"):
        found += _of_log(root, f"log/{name}.log", words, about.since, now, gaps)
    calls = {op for line in found for op in _CALL.findall(line.text)}
    words = _either([words.pattern, *(re.escape(op).encode() for op in calls)])
    for folder in _agents(root, uid):
        found += _of_log(root, f"agent/{folder}/agent.log", words, about.since, now, gaps)
        found += _of_log(root, f"agent/{folder}/keeper.log", words, about.since, now, None)
    return found, gaps


def _words(about: About) -> re.Pattern[bytes]:
    """Whatever a line about this job has in it. A frame is asked for by an address that has the parts of the id in another order."""
    uid, sid, model = split_jid(about.jid)
    plain = [about.jid, *about.requests, *(short_op(op) for op in about.ops), f"{uid}/{about.simulation_type}/{sid}/{model}"]
    address = rb"/[a-z-]+/\S*\b%s\b\S*.* uid=%s" % (sid.encode(), uid.encode())
    return _either([*(re.escape(w).encode() for w in plain), address])


def _either(patterns: Iterable[bytes]) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![A-Za-z0-9_])(?:%s)(?![A-Za-z0-9_])" % b"|".join(patterns))


def _agents(root: str, uid: str) -> list[str]:
    """Folders of this user's agents."""
    out = []
    try:
        names = sorted(os.listdir(os.path.join(root, "agent")))
    except FileNotFoundError:
        return []
    for name in names:
        try:
            if parse_agent_key(name).uid == uid:
                out.append(name)
        except Refusal:  # something else that lies there
            continue
    return out


def _of_log(root: str, name: str, words: re.Pattern[bytes], since: float, now: float, gaps: list[str] | None) -> list[Line]:
    """gaps: gets a sentence where something may be missing; None where a log that is missing has nothing to say."""
    files = _files(os.path.join(root, name))
    if not files:
        if gaps is not None:
            gaps.append(f"there is no {name} in this root: that process logs elsewhere, or has not run yet")
        return []
    found: list[Line] = []
    begins: float | None = None
    for raw in _raw_lines(files):
        if begins is None:
            begins = _at(raw, now)
        if words.search(raw):
            at = _at(raw, now)
            # what follows a line of ours without a time of its own is a traceback, which has no id
            found.append(Line(begins or now if at is None else at, name, raw.decode("utf-8", "replace").rstrip("\n")))
    if gaps is not None and begins is not None and begins > since + 1:
        gaps.append(f"{name} begins at {_utc(begins)} here; what was in it before that is gone, or further back than is looked")
    if gaps is not None and len(found) > NEWEST_LINES:
        gaps.append(f"{name} has {len(found) - NEWEST_LINES} more lines about it, older than the ones here")
    return found[-NEWEST_LINES:]


def _files(path: str) -> list[str]:
    """The log and what it was rotated to, oldest first."""
    numbers = [n for n in range(20, 0, -1) if os.path.exists(f"{path}.{n}")]
    return [f"{path}.{n}" for n in numbers] + ([path] if os.path.exists(path) else [])


def _raw_lines(files: Sequence[str]) -> Iterator[bytes]:
    """The lines of the newest bytes of these files, which are one log."""
    sizes = [os.path.getsize(f) for f in files]
    skip = max(0, sum(sizes) - NEWEST_BYTES)
    for file, size in zip(files, sizes, strict=True):
        skipped, skip = min(skip, size), max(0, skip - size)
        if skipped < size:
            with open(file, "rb") as f:
                f.seek(skipped)
                yield from _split(f.readline() and f if skipped else f)


def _split(file: Any) -> Iterator[bytes]:
    while piece := file.readlines(_PIECE):
        yield from piece


def _at(raw: bytes, now: float) -> float | None:
    """When a line was written; None for one that does not say."""
    if raw.startswith(b"{"):
        try:
            return float(int(datetime.fromisoformat(json.loads(raw)["at"]).timestamp()))
        except (ValueError, KeyError, TypeError):
            return None
    stamp = _STAMP.match(raw)
    if stamp is None:
        return None
    try:
        told = datetime.strptime(f"{datetime.fromtimestamp(now, UTC).year} {stamp[1].decode()}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
        return told.timestamp() if told.timestamp() <= now + _AHEAD_SECS else told.replace(year=told.year - 1).timestamp()
    except ValueError:  # a 29th of February of another year
        return None


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
