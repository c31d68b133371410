"""Search the log files of a root for lines about one job or one agent.

For a job: lines of the front end, the supervisor, and the user's agents and keepers. For an agent:
lines of the supervisor about it, and all lines of it and its keeper. Only the newest part of each
log is read; gaps (missing or rotated logs) are reported. Text lines have whole seconds in UTC and
no year; JSON lines have both.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, AgentKind, parse_agent_key, short_op, split_jid
from ...runtime.log.session_folders import log_files

#: Bytes that are searched at the end of each log, and largest number of returned lines of each.
NEWEST_BYTES = 32 * 1024 * 1024
NEWEST_LINES = 500
#: Bytes read at once.
_BLOCK = 64 * 1024
_STAMP = re.compile(rb"([A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d) ")
_CALL = re.compile(r"_Op\(analysis, (\w+)\)")
#: A date without a year is of last year only if it is further in the future than this.
_AHEAD_SECS = 86400.0


class Line(NamedTuple):
    """One log line. at: unix seconds, whole ones unless `exact`. source: path below the root; the
    same name for the logs of all sessions.
    """

    at: float
    source: str
    text: str
    exact: bool = False


class JobQuery(NamedTuple):
    """Search terms for a job, from its events. ops, requests: complete ids. since, until: first
    request and end. hosts: of Docker. clusters: their agents write logs outside this root.
    """

    jid: str
    simulation_type: str
    ops: frozenset[str]
    requests: frozenset[str]
    since: float
    until: float
    hosts: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()


class AgentQuery(NamedTuple):
    """Search terms for an agent. short: its agent id as logs show it; empty if unknown. since,
    until: time of its events.
    """

    key: AgentKey
    short: str
    since: float
    until: float


class _Words(NamedTuple):
    """needles: each block with a matching line contains one of them. pattern: matches the lines; a
    match of its group `life` counts within `since` and `until` only.
    """

    needles: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


#: Matches all lines within `since` and `until`.
_ALL = _Words((b"",), re.compile(b"(?P<life>)"))


def lines(root: str, query: JobQuery | AgentQuery) -> tuple[list[Line], list[str]]:
    """Return the lines about a job or an agent, in order within each file, and sentences on gaps."""
    return _search_agent(root, query) if isinstance(query, AgentQuery) else _search_job(root, query)


def _search_agent(root: str, query: AgentQuery) -> tuple[list[Line], list[str]]:
    key = str(query.key)
    names = [key, *([f"a={query.short}", f'"agent": "{query.short}"'] if query.short else [])]
    pulls = frozenset([query.key.host]) if query.key.driver == "docker" else frozenset()
    pattern = "|".join(map(re.escape, names)) + _pulls(pulls)
    needles = (n.encode() for n in (*names, *(["docker host"] if pulls else [])))
    words = _Words(
        tuple(needles),
        re.compile(rf"(?<![A-Za-z0-9_])(?P<life>{pattern})(?![A-Za-z0-9_])".encode()),
    )
    found, gaps = _search_log(root, "log/supervisor.log", words, query)
    if query.key.driver == "sbatch":
        return found, [
            *gaps,
            f"the log of the agent is on the cluster {query.key.host}: jobscribe agent logs {key}",
        ]
    # virtual agents of task containers have no log
    if query.key.kind != AgentKind.CONTAINER:
        lines_, more_gaps = _search_log(root, f"agent/{key}/agent.log", _ALL, query)
        found += lines_ + _search_log(root, f"agent/{key}/keeper.log", _ALL, query)[0]
        gaps += more_gaps
    return found, gaps


def _search_job(root: str, query: JobQuery) -> tuple[list[Line], list[str]]:
    found: list[Line] = []
    gaps: list[str] = []
    words = _words(query, set())
    for name in ("server", "supervisor"):
        lines_, more_gaps = _search_log(root, f"log/{name}.log", words, query)
        found += lines_
        gaps += more_gaps
    words = _words(query, {op for line in found for op in _CALL.findall(line.text)})
    for folder in _agents(root, split_jid(query.jid)[0]):
        lines_, more_gaps = _search_log(root, f"agent/{folder}/agent.log", words, query)
        found += lines_
        gaps += more_gaps
        # a keeper without problems writes no log, so a missing file is no gap
        found += _search_log(root, f"agent/{folder}/keeper.log", _ALL, query)[0]
    return found, gaps + [
        f"the log of its agent is on the cluster {c}: jobscribe agent logs {query.jid}"
        for c in sorted(query.clusters)
    ]


def _words(query: JobQuery, calls: set[str]) -> _Words:
    """Return the search terms for a job. calls: short opIds of calls that read its results."""
    uid, sid, model = split_jid(query.jid)
    ops = [*(short_op(op) for op in query.ops), *calls]
    plain = [query.jid, f"{uid}/{query.simulation_type}/{sid}/{model}", *ops]
    # clients choose the reqId, which may be a common word
    requests = [rf"reqId(?:': '|=){re.escape(r)}" for r in query.requests]
    # addresses of frames and downloads have the parts of the id in another order
    address = rf"/\S*\b{sid}\b\S* uid={uid}"
    # an agent that starts while the job runs takes it over
    life = rf"(?P<life>agent \S+\.{uid}@\S+ starts{_pulls(query.hosts)})"
    pattern = "|".join([*map(re.escape, plain), *requests, address, life])
    pulls = ("docker host",) if query.hosts else ()
    needles = (n.encode() for n in (sid, *ops, *query.requests, f"{uid}@", *pulls))
    return _Words(
        tuple(needles), re.compile(rf"(?<![A-Za-z0-9_])(?:{pattern})(?![A-Za-z0-9_])".encode())
    )


def _pulls(hosts: frozenset[str]) -> str:
    """Return a pattern for image pulls on these hosts, for which the job may have waited."""
    return (
        f"|docker host (?:{'|'.join(map(re.escape, sorted(hosts)))}): pull(?:ing|ed)"
        if hosts
        else ""
    )


def _agents(root: str, uid: str) -> list[str]:
    """Return the folders of this user's agents, without virtual agents, which have no log."""
    try:
        names = sorted(os.listdir(os.path.join(root, "agent")))
    except FileNotFoundError:
        return []
    return [name for name in names if _belongs_to(name, uid)]


def _belongs_to(name: str, uid: str) -> bool:
    try:
        key = parse_agent_key(name)
        return key.uid == uid and key.kind != AgentKind.CONTAINER
    except Refusal:  # another file in this folder
        return False


def _search_log(
    root: str, name: str, words: _Words, query: JobQuery | AgentQuery
) -> tuple[list[Line], list[str]]:
    log = name.removeprefix("log/").removesuffix(".log")
    all_files = (
        log_files(root, log) if name.startswith("log/") else _files(os.path.join(root, name))
    )
    if not all_files:
        return [], [
            f"there is no {name} in this root: that process writes its log elsewhere, or has not run yet"
        ]
    # skip files that were last written before the first request
    files = [f for f in all_files if os.path.getmtime(f) >= query.since - 1] or all_files[-1:]
    now = time.time()
    found: list[Line] = []
    begins: float | None = None
    for block in _blocks(files):
        if begins is None:
            begins = _at(block, now) or now
        if any(needle in block for needle in words.needles):
            found += _search_block(block, name, words, query, now)
    gaps = []
    # the supervisor ran at the first request, so its log has a gap if it begins later; other
    # processes may have started later
    whole = len(files) == len(all_files)
    cut = os.path.getsize(files[0]) > NEWEST_BYTES or (
        whole and (len(files) > 1 or name.endswith("/supervisor.log"))
    )
    if cut and begins is not None and begins > query.since + 1:
        gaps.append(
            f"{name} begins at {_utc(begins)} here: earlier lines were rotated away or not searched"
        )
    if len(found) > NEWEST_LINES:
        gaps.append(f"{name} has {len(found) - NEWEST_LINES} more lines about it, older than these")
    return found[-NEWEST_LINES:], gaps


def _search_block(
    block: bytes, name: str, words: _Words, query: JobQuery | AgentQuery, now: float
) -> Iterator[Line]:
    for raw in block.splitlines():
        hit = words.pattern.search(raw)
        if hit is None:
            continue
        at = _at(raw, now) or now
        if hit.lastgroup != "life" or int(query.since) <= at <= query.until:
            yield Line(at, name, raw.decode("utf-8", "replace"), raw.startswith(b"{"))


def _files(path: str) -> list[str]:
    """Return the log and its rotated files, oldest first."""
    rotated = [f"{path}.{n}" for n in range(20, 0, -1)]
    return [f for f in (*rotated, path) if os.path.isfile(f) and not os.path.islink(f)]


def _plain(path: str, flags: int) -> int:
    """Open a file without following links or blocking on a pipe: the user may own the folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _blocks(files: Sequence[str]) -> Iterator[bytes]:
    """Yield the newest bytes of these files, which form one log, in blocks of whole lines."""
    sizes = [os.path.getsize(f) for f in files]
    skip = max(0, sum(sizes) - NEWEST_BYTES)
    for path, size in zip(files, sizes, strict=True):
        skipped, skip = min(skip, size), max(0, skip - size)
        if skipped == size:
            continue
        with open(path, "rb", opener=_plain) as f:
            f.seek(skipped)
            if skipped:
                f.readline()
            while block := f.read(_BLOCK):
                yield block + f.readline()


def _at(raw: bytes, now: float) -> float | None:
    """Return the time of a line (unix seconds); None if it has none."""
    if raw.startswith(b"{"):
        try:
            return datetime.fromisoformat(_ts(json.loads(raw.partition(b"\n")[0]))).timestamp()
        except (ValueError, KeyError, TypeError):
            return None
    stamp = _STAMP.match(raw)
    if stamp is None:
        return None
    year = datetime.fromtimestamp(now, UTC).year
    try:
        at = datetime.strptime(f"{year} {stamp[1].decode()}", "%Y %b %d %H:%M:%S").replace(
            tzinfo=UTC
        )
        return (
            at if at.timestamp() <= now + _AHEAD_SECS else at.replace(year=year - 1)
        ).timestamp()
    except ValueError:  # a 29th of February of another year
        return None


def _ts(said: dict[str, Any]) -> str:
    """Return the timestamp, which older lines have as `at`."""
    return str(said["ts"] if "ts" in said else said["at"])


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
