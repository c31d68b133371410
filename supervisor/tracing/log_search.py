"""What the log files of a root say about one job: the lines of its front end, of the supervisor,
and of its user's agents and keepers; or about one agent: what the supervisor did with it, and all
that it and its keeper wrote.

Only reads, and only so much of the newest of each log. What cannot be found because a log is
missing, or begins too late, is said. A line of text has whole seconds in UTC and no year; one of
JSON has the year and fractions.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...protocol.errors import Refusal
from ...protocol.ids import AgentKey, parse_agent_key, short_op, split_jid
from ...runtime.log.session_folders import log_files

#: So much of the newest of each log is looked at (bytes), and so many of the newest lines that fit
#: are told.
NEWEST_BYTES = 32 * 1024 * 1024
NEWEST_LINES = 500
#: Read at once: between two of these others get their turn.
_BLOCK = 64 * 1024
_STAMP = re.compile(rb"([A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d) ")
_CALL = re.compile(r"_Op\(analysis, (\w+)\)")
#: A clock that goes ahead a little does not make a line of today one of last year.
_AHEAD_SECS = 86400.0


class Line(NamedTuple):
    """at: unix seconds; whole ones, unless it is exact. source: the file, below the root; of all
    sessions it is the newest one's.
    """

    at: float
    source: str
    text: str
    exact: bool = False


class About(NamedTuple):
    """A job, as its events name it. ops, requests: ids in full. since, until: when it was asked for
    first, and was over.

    hosts: of docker, where it was. clusters: where it was, too; logs of agents there are not in
    this root.
    """

    jid: str
    simulation_type: str
    ops: frozenset[str]
    requests: frozenset[str]
    since: float
    until: float
    hosts: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()


class AboutAgent(NamedTuple):
    """An agent, as its events name it. short: what logs show of its id; empty where that is not
    known. since, until: as of a job.
    """

    key: AgentKey
    short: str
    since: float
    until: float


class _Words(NamedTuple):
    """needles: one of them is in every block that can have a line. pattern: finds the lines; what
    its group `life` finds is told only of that time.
    """

    needles: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


#: Whatever was written in that time.
_ALL = _Words((b"",), re.compile(b"(?P<life>)"))


def lines(root: str, about: About | AboutAgent) -> tuple[list[Line], list[str]]:
    """What the logs in this root have about a job or an agent, in order within each file; and
    sentences about what they cannot have.
    """
    return _of_agent(root, about) if isinstance(about, AboutAgent) else _of_job(root, about)


def _of_agent(root: str, about: AboutAgent) -> tuple[list[Line], list[str]]:
    key = str(about.key)
    names = [key, *([f"a={about.short}", f'"agent": "{about.short}"'] if about.short else [])]
    pulls = frozenset([about.key.host]) if about.key.driver == "docker" else frozenset()
    pattern = "|".join(map(re.escape, names)) + _pulls(pulls)
    needles = (n.encode() for n in (*names, *(["docker host"] if pulls else [])))
    words = _Words(
        tuple(needles),
        re.compile(rf"(?<![A-Za-z0-9_])(?P<life>{pattern})(?![A-Za-z0-9_])".encode()),
    )
    found, gaps = _of_log(root, "log/supervisor.log", words, about)
    if about.key.driver == "sbatch":
        return found, [
            *gaps,
            f"the log of the agent is on the cluster {about.key.host}: jobscribe agent logs {key}",
        ]
    if (
        about.key.kind != "container"
    ):  # where tasks have containers of their own there is no agent that writes a log
        lines_, said = _of_log(root, f"agent/{key}/agent.log", _ALL, about)
        found += lines_ + _of_log(root, f"agent/{key}/keeper.log", _ALL, about)[0]
        gaps += said
    return found, gaps


def _of_job(root: str, about: About) -> tuple[list[Line], list[str]]:
    found: list[Line] = []
    gaps: list[str] = []
    words = _words(about, set())
    for name in ("server", "supervisor"):
        lines_, said = _of_log(root, f"log/{name}.log", words, about)
        found += lines_
        gaps += said
    words = _words(about, {op for line in found for op in _CALL.findall(line.text)})
    for folder in _agents(root, split_jid(about.jid)[0]):
        lines_, said = _of_log(root, f"agent/{folder}/agent.log", words, about)
        found += lines_
        gaps += said
        # a keeper has nothing to say as long as all is well: then there is no file
        found += _of_log(root, f"agent/{folder}/keeper.log", _ALL, about)[0]
    return found, gaps + [
        f"the log of its agent is on the cluster {c}: jobscribe agent logs {about.jid}"
        for c in sorted(about.clusters)
    ]


def _words(about: About, calls: set[str]) -> _Words:
    """Whatever a line about this job has in it. calls: shortened opIds of what was computed from
    it.
    """
    uid, sid, model = split_jid(about.jid)
    ops = [*(short_op(op) for op in about.ops), *calls]
    plain = [about.jid, f"{uid}/{about.simulation_type}/{sid}/{model}", *ops]
    # whoever asks chooses his reqId, which may be a common word
    requests = [rf"reqId(?:': '|=){re.escape(r)}" for r in about.requests]
    # a frame and a download are asked for by addresses with the parts of the id in another order
    address = rf"/\S*\b{sid}\b\S* uid={uid}"
    # an agent that starts while the job runs takes it over
    life = rf"(?P<life>agent \S+\.{uid}@\S+ starts{_pulls(about.hosts)})"
    pattern = "|".join([*map(re.escape, plain), *requests, address, life])
    pulls = ("docker host",) if about.hosts else ()
    needles = (n.encode() for n in (sid, *ops, *about.requests, f"{uid}@", *pulls))
    return _Words(
        tuple(needles), re.compile(rf"(?<![A-Za-z0-9_])(?:{pattern})(?![A-Za-z0-9_])".encode())
    )


def _pulls(hosts: frozenset[str]) -> str:
    """Images are pulled for whoever comes first: a pull there, while the job waited, may have been
    what it waited for.
    """
    return (
        f"|docker host (?:{'|'.join(map(re.escape, sorted(hosts)))}): pull(?:ing|ed)"
        if hosts
        else ""
    )


def _agents(root: str, uid: str) -> list[str]:
    """Folders of this user's agents. Where tasks have containers of their own there is no agent
    that writes a log.
    """
    try:
        names = sorted(os.listdir(os.path.join(root, "agent")))
    except FileNotFoundError:
        return []
    return [name for name in names if _is_of(name, uid)]


def _is_of(name: str, uid: str) -> bool:
    try:
        key = parse_agent_key(name)
        return key.uid == uid and key.kind != "container"
    except Refusal:  # something else that lies there
        return False


def _of_log(
    root: str, name: str, words: _Words, about: About | AboutAgent
) -> tuple[list[Line], list[str]]:
    log = name.removeprefix("log/").removesuffix(".log")
    all_files = (
        log_files(root, log) if name.startswith("log/") else _files(os.path.join(root, name))
    )
    if not all_files:
        return [], [
            f"there is no {name} in this root: that process logs elsewhere, or has not run yet"
        ]
    # nothing about it is in what was written to for the last time before it was asked for
    files = [f for f in all_files if os.path.getmtime(f) >= about.since - 1] or all_files[-1:]
    now = time.time()
    found: list[Line] = []
    begins: float | None = None
    for block in _blocks(files):
        if begins is None:
            begins = _at(block, now) or now
        if any(needle in block for needle in words.needles):
            found += _of_block(block, name, words, about, now)
    gaps = []
    # the supervisor was there when the job was asked for; others may have begun later, unless
    # something is not looked at
    whole = len(files) == len(all_files)
    cut = os.path.getsize(files[0]) > NEWEST_BYTES or (
        whole and (len(files) > 1 or name.endswith("/supervisor.log"))
    )
    if cut and begins is not None and begins > about.since + 1:
        gaps.append(
            f"{name} begins at {_utc(begins)} here: what was in it before is gone, or further back than is looked"
        )
    if len(found) > NEWEST_LINES:
        gaps.append(f"{name} has {len(found) - NEWEST_LINES} more lines about it, older than these")
    return found[-NEWEST_LINES:], gaps


def _of_block(
    block: bytes, name: str, words: _Words, about: About | AboutAgent, now: float
) -> Iterator[Line]:
    for raw in block.splitlines():
        hit = words.pattern.search(raw)
        if hit is None:
            continue
        at = _at(raw, now) or now
        if hit.lastgroup != "life" or int(about.since) <= at <= about.until:
            yield Line(at, name, raw.decode("utf-8", "replace"), raw.startswith(b"{"))


def _files(path: str) -> list[str]:
    """The log and what it was rotated to, oldest first."""
    rotated = [f"{path}.{n}" for n in range(20, 0, -1)]
    return [f for f in (*rotated, path) if os.path.isfile(f) and not os.path.islink(f)]


def _plain(path: str, flags: int) -> int:
    """An agent's folder is its user's where jobs run in containers: a link there leads nowhere, and
    a pipe holds nobody up.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _blocks(files: Sequence[str]) -> Iterator[bytes]:
    """The newest bytes of these files, which are one log, in blocks of whole lines."""
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
    """When a line was written; None for one that does not say."""
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
    """Lines from before this was called ts have it as `at`."""
    return str(said["ts"] if "ts" in said else said["at"])


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
