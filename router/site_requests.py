"""Requests for several shards: they are sent to all of them, and the answers are merged by the rule of
the route. A shard that does not answer is named, never left out silently.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, assert_never
from urllib.parse import parse_qsl, urlencode

import msgspec
from tornado.httputil import HTTPHeaders, ResponseStartLine

from ..protocol.errors import CODES, Refusal
from ..protocol.ids import split_jid
from ..protocol.shards import shard_of
from ..supervisor.api.openpai.job_pages import MAX_LIMIT, job_page
from ..supervisor.api.transport import shard_answers
from ..supervisor.api.transport.authorization import Subject
from ..supervisor.api.transport.request_handler import Route
from ..supervisor.api.transport.shard_answers import (
    Health,
    Listed,
    Merge,
    Named,
    Numbered,
    One,
    Pages,
    Refused,
    Row,
    Split,
    Stream,
    Text,
)
from ..supervisor.metrics.exporter import CONTENT_TYPE
from .cursors import END, START, Cursor, cursor_of, cursors_of, packed, text_of, unpacked
from .forwarding import Parts, to_shard
from .routing import Aim, not_sharded
from .shard_addresses import no_supervisor
from .upstream import Answer, Collector, Lost, Message, Unreached

#: Limit of one shard's answer, in seconds and bytes.
ANSWER_SECS, MOST_BYTES = 15.0, 64 * 1024 * 1024
#: Header that names the shards that did not answer, where the body cannot.
MISSING = "X-Jobscribe-Missing-Shards"
_POSITION = re.compile(rb'^\{"position":[0-9]+')


class Asked(NamedTuple):
    """A request of a client. headers: returns those for a shard. monitor: its sender has the token for
    monitoring or the server secret.
    """

    route: Route
    method: str
    path: str
    query: str
    body: bytes
    given: HTTPHeaders
    headers: Callable[[int], HTTPHeaders]
    monitor: bool = False


class Reply(NamedTuple):
    """content: JSON-encoded, or a text."""

    content: bytes
    kind: str = "application/json"
    missing: Sequence[int] = ()


class _Found(NamedTuple):
    """The answers of the shards. missing: the shards that gave none."""

    answers: dict[int, Answer]
    missing: list[int]


class SiteRequests:
    """Sends requests to several shards."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._total = parts, parts.addresses.total

    async def answer(self, asked: Asked, aim: Aim) -> Reply:
        """Return the merged answer. Raises Refusal."""
        rule = asked.route.merge
        match rule:
            case None | Stream():
                raise not_sharded(asked.route, aim.shards, self._total)
            case Refused():
                raise Refusal(
                    "notSharded",
                    f"{asked.route.path} has no answer for several shards: {rule.remedy}",
                )
            case Pages():
                return await self._page(rule, asked, aim)
            case Split():
                return await self._split(rule, asked)
            case One():
                return await self._one(asked, aim)
            case Numbered():
                return await self._numbered(asked, aim)
            case Named():
                return await self._named(rule, asked, aim)
            case Text():
                return await self._metrics(asked, aim)
            case Merge() | Health() | Listed():
                found = await self._all(asked, dict.fromkeys(aim.shards, asked.body))
                return _joined(rule, found)
            case _:
                assert_never(rule)

    async def _all(self, asked: Asked, bodies: dict[int, bytes]) -> _Found:
        """Send a body to each shard. Raises Refusal if no shard answers."""
        answers = await asyncio.gather(*(self._ask(asked, k, body) for k, body in bodies.items()))
        found = _Found(
            {k: a for k, a in zip(bodies, answers, strict=True) if a is not None},
            [k for k, a in zip(bodies, answers, strict=True) if a is None],
        )
        if not found.answers:
            raise no_supervisor(found.missing)
        return found

    async def _ask(self, asked: Asked, shard: int, body: bytes) -> Answer | None:
        collector = Collector(MOST_BYTES)
        query = of_shard(asked.route, asked.query, shard, self._total)
        path = f"{asked.path}?{query}" if query else asked.path
        message = Message(asked.method, path, asked.headers(shard), body)
        try:
            async with asyncio.timeout(ANSWER_SECS):
                await to_shard(self._parts, shard, message, collector)
        except (Unreached, Lost, TimeoutError):
            return None
        return collector.answer()

    async def _metrics(self, asked: Asked, aim: Aim) -> Reply:
        """Return the metrics of the shards and of this router, which monitoring gets if no shard answers, too."""
        try:
            found = await self._all(asked, dict.fromkeys(aim.shards, asked.body))
        except Refusal:
            if not asked.monitor:
                raise
            found = _Found({}, list(aim.shards))
        good: dict[int, str] = {}
        for shard, answer in found.answers.items():
            if answer.code != 200:
                raise refusal_of(answer)
            good[shard] = answer.body.decode()
        own = self._parts.metrics.text({k: k in good for k in aim.shards})
        text = shard_answers.metrics(good) + own
        return Reply(text.encode(), CONTENT_TYPE, sorted(found.missing))

    async def _one(self, asked: Asked, aim: Aim) -> Reply:
        """Ask one shard after the other for something that one of them has."""
        refused: Refusal | None = None
        missing = []
        for shard in aim.shards:
            answer = await self._ask(asked, shard, asked.body)
            if answer is None:
                missing.append(shard)
            elif answer.code == 200:
                return Reply(answer.body, missing=missing)
            else:
                refusal = refusal_of(answer)
                if refusal.code != "notFound":
                    raise refusal
                refused = refusal
        if missing or refused is None:
            raise no_supervisor(missing)  # it may be there
        raise refused

    async def _page(self, rule: Pages, asked: Asked, aim: Aim) -> Reply:
        request: Row = _object(asked.body)
        field = rule.cursor(request)
        place = request.pop("cursor", None) if rule.texts else None
        before = cursors_of(place or request.get(field, rule.start), self._total)
        open_ = {k: before[k] for k in aim.shards if before[k] is not END}
        bodies = {
            k: msgspec.json.encode({**request, field: rule.start if c == START else c})
            for k, c in open_.items()
        }
        found = await self._all(asked, bodies)
        pages = {k: _row(answer) for k, answer in found.answers.items()}
        limit = request.get("limit", rule.most)
        return Reply(
            msgspec.json.encode(page(rule, request, limit, before, pages, found.missing)),
            missing=found.missing,
        )

    async def _named(self, rule: Named, asked: Asked, aim: Aim) -> Reply:
        """Send the request to the shard that has the supervisor which it names."""
        name = str(_object(asked.body).get("supervisor"))
        listed = asked._replace(method="GET", path=rule.path)
        found = await self._all(listed, dict.fromkeys(aim.shards, b""))
        shards = places_of(name, {k: _row(a) for k, a in found.answers.items()})
        if not shards:
            if found.missing:
                raise no_supervisor(found.missing)  # it may be there
            raise Refusal("notFound", f"no supervisor of this site has the name {ascii(name)[:80]}")
        answer = await self._ask(asked, shards[0], asked.body)
        if answer is None:
            raise no_supervisor(shards)
        return Reply(msgspec.json.encode({**_row(answer), "shard": shards[0]}))

    async def _numbered(self, asked: Asked, aim: Aim) -> Reply:
        """Sort the rows of all shards that may be on the page."""
        fields = parse_qsl(asked.query, keep_blank_values=True)
        given = dict(reversed(fields))
        page = job_page(given.get)
        most = min(MAX_LIMIT, page.offset + page.limit)
        own = {"offset": "0", "limit": str(most), "withTotalCount": "true"}
        query = urlencode([*(f for f in fields if f[0] not in own), *own.items()])
        found = await self._all(asked._replace(query=query), dict.fromkeys(aim.shards, asked.body))
        parts = [_row(found.answers[k]) for k in sorted(found.answers)]
        if page.offset + page.limit > MAX_LIMIT and any(p["totalCount"] > MAX_LIMIT for p in parts):
            raise Refusal(
                "badRequest",
                f"jobs after the first {MAX_LIMIT} cannot be listed for several shards: name fewer users (username=)",
            )
        rows = [row for part in parts for row in part["data"]]
        body = page.answer(rows, sum(part["totalCount"] for part in parts))
        return Reply(msgspec.json.encode(body), missing=found.missing)

    async def _split(self, rule: Split, asked: Asked) -> Reply:
        request = _object(asked.body)
        items: list[Row] = request[rule.items]
        places: dict[int, list[int]] = {}
        for n, item in enumerate(items):
            places.setdefault(shard_of(str(item.get("uid")), self._total), []).append(n)
        bodies = {
            k: msgspec.json.encode({**request, rule.items: [items[n] for n in at]})
            for k, at in places.items()
        }
        found = await self._all(asked, bodies)
        out: list[Any] = [None] * len(items)
        for k, at in places.items():
            answer = found.answers.get(k)
            if answer is not None and answer.code == 200:
                rows = _row(answer)[rule.items]
            else:
                refusal = no_supervisor([k]) if answer is None else refusal_of(answer)
                rows = [refusal.body()] * len(at)
            for n, row in zip(at, rows, strict=True):
                out[n] = row
        return Reply(msgspec.json.encode({"state": "ok", rule.items: out}), missing=found.missing)

    # ---- streams

    async def stream(self, asked: Asked, rule: Stream, aim: Aim) -> AsyncGenerator[bytes, None]:
        """Yield the blocks of a stream of several shards. It ends when one of them ends: the client then
        resumes. Raises Refusal before the first block if a shard does not answer.
        """
        places = _resumed(rule, asked, self._total)
        queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(maxsize=4 * self._total)
        tasks = {
            k: asyncio.ensure_future(
                self._read(
                    asked, k, _query_of(rule, asked, k, places, self._total), places[k], queue
                )
            )
            for k in aim.shards
        }
        try:
            begun: dict[int, bytes] = {}
            held: list[tuple[int, bytes]] = []
            async for shard, block in _until_one_ends(queue, tasks):
                if rule.kind == "log" and len(begun) < len(tasks):
                    # the first block of a shard has its position
                    begun.setdefault(shard, block)
                    held.append((shard, block))
                    if len(begun) < len(tasks):
                        continue
                    for k, first in begun.items():
                        placed(rule, first, k, places)
                    for item in held:
                        yield placed(rule, item[1], item[0], places)
                    continue
                yield placed(rule, block, shard, places)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _read(self, asked: Asked, shard: int, query: str, place: str, queue: Any) -> None:
        headers = asked.headers(shard)
        for name in ("Last-Event-ID",):
            if name in headers:
                del headers[name]
        if place:
            headers["Last-Event-ID"] = place
        message = Message("GET", f"{asked.path}?{query}" if query else asked.path, headers)
        end = (
            b"\n"
            if isinstance(asked.route.merge, Stream) and asked.route.merge.kind == "lines"
            else b"\n\n"
        )
        try:
            await to_shard(self._parts, shard, message, _Blocks(shard, end, queue.put))
        except Unreached:
            raise no_supervisor([shard]) from None


class _Blocks:
    """A sink that passes on the complete blocks of a stream. Raises Refusal for a refused stream."""

    def __init__(
        self, shard: int, end: bytes, put: Callable[[tuple[int, bytes]], Awaitable[None]]
    ) -> None:
        self._shard, self._end, self._put = shard, end, put
        self._rest, self._code = b"", 0

    async def begin(self, start_line: ResponseStartLine, headers: HTTPHeaders) -> None:
        self._code = start_line.code

    async def take(self, chunk: bytes) -> None:
        if self._code != 200:
            raise refusal_of(Answer(self._code, HTTPHeaders(), chunk))
        *blocks, self._rest = (self._rest + chunk).split(self._end)
        for block in blocks:
            await self._put((self._shard, block + self._end))


async def _until_one_ends(
    queue: "asyncio.Queue[tuple[int, bytes]]", tasks: dict[int, "asyncio.Task[None]"]
) -> AsyncIterator[tuple[int, bytes]]:
    while True:
        got = asyncio.ensure_future(queue.get())
        try:
            await asyncio.wait([got, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
            if not got.done():
                for task in tasks.values():
                    if task.done():
                        task.result()
                        return
        finally:
            if not got.done():
                got.cancel()
        if got.done() and not got.cancelled():
            yield got.result()


def _resumed(rule: Stream, asked: Asked, total: int) -> list[str]:
    """Return the place in each shard at which a stream begins. Raises Refusal("badRequest")."""
    given = asked.given.get("Last-Event-ID", "")
    match rule.kind:
        case "lines":
            return [""] * total
        case "page":
            try:
                places = msgspec.json.decode(given, type=list[str]) if given else []
            except msgspec.DecodeError:
                places = []
            return places if len(places) == total else [""] * total
        case "log":
            text = given or dict(parse_qsl(asked.query)).get("after", "0")
            if text in ("0", "-1"):
                return [text] * total
            if not text.isdecimal():
                raise Refusal("badRequest", f"a position is a number; got {ascii(text)[:40]}")
            return [str(p) for p in unpacked(int(text), total)]
        case _:
            assert_never(rule.kind)


def of_shard(route: Route, query: str, shard: int, total: int) -> str:
    """Return the query with those of its users whom this shard has."""
    if route.subject is not Subject.USERNAMES_OR_ALL:
        return query
    fields = parse_qsl(query, keep_blank_values=True)
    if not any(name == "username" and value for name, value in fields):
        return query
    own = [
        (
            name,
            ",".join(u for u in value.split(",") if u and shard_of(u, total) == shard)
            if name == "username"
            else value,
        )
        for name, value in fields
    ]
    return urlencode(own)


def _query_of(rule: Stream, asked: Asked, shard: int, places: list[str], total: int) -> str:
    """Return the query for one shard. Of the jobs that a page names, it gets those of its users."""
    fields = parse_qsl(asked.query, keep_blank_values=True)
    if rule.kind == "log":
        return urlencode([f for f in fields if f[0] != "after"])
    if rule.kind == "page":
        return urlencode(
            [
                (name, value)
                for name, value in fields
                if name not in ("computeJid", "logs")
                or shard_of(split_jid(value)[0], total) == shard
            ]
        )
    return asked.query


def placed(rule: Stream, block: bytes, shard: int, places: list[str]) -> bytes:
    """Return a block of one shard with the places in all shards as its id."""
    if rule.kind == "lines":
        return block
    lines = block.split(b"\n")
    for line in lines:
        if line.startswith(b"id: "):
            places[shard] = line[4:].decode()
    if rule.kind == "page":
        id_ = msgspec.json.encode(places)
        return b"\n".join(b"id: " + id_ if x.startswith(b"id: ") else x for x in lines)
    if any(not p.isdecimal() for p in places):
        return b""
    position = b"%d" % packed([int(p) for p in places])
    return b"\n".join(
        b"id: " + position
        if x.startswith(b"id: ")
        else b"data: " + _POSITION.sub(b'{"position":' + position, x[6:])
        if x.startswith(b"data: ")
        else x
        for x in lines
    )


# ---- answers


def places_of(name: str, answers: dict[int, Row]) -> list[int]:
    """Return the shard that has a supervisor of this name (`HOST:PID`, or `HOST`); empty if none has.
    Raises Refusal("badRequest") if several have one.
    """
    found = {
        (k, of)
        for k, body in answers.items()
        for of in {str(body["name"]), *(str(s["name"]) for s in body["supervisors"])}
        if name in (of, of.rpartition(":")[0])
    }
    shards = sorted({k for k, _ in found})
    if len(shards) > 1:
        names = ", ".join(f"{n} of shard {k}" for k, n in sorted(found))
        raise Refusal(
            "badRequest",
            f"{ascii(name)[:80]} is the name of supervisors of several shards ({names}): name one HOST:PID, or use"
            " --root ROOT/shards/K",
        )
    return shards


def page(
    rule: Pages,
    request: Row,
    limit: int,
    before: list[Cursor],
    pages: dict[int, Row],
    missing: Sequence[int],
) -> Row:
    """Return one page. before: the cursors of the shards at its begin. pages: of the shards that were
    asked and answered.
    """
    request = {**request, "now": time.time()}
    taken = dict.fromkeys(pages, 0)
    rows: list[Row] = []
    while len(rows) < limit:
        heads = [
            (rule.order(p[rule.rows][taken[k]], request), k)
            for k, p in pages.items()
            if taken[k] < len(p[rule.rows])
        ]
        if not heads:
            break
        shard = min(heads)[1]
        rows.append(pages[shard][rule.rows][taken[shard]])
        taken[shard] += 1
    after = list(before)
    for k, p in pages.items():
        if taken[k] == len(p[rule.rows]):
            after[k] = p.get("next")
        elif taken[k]:
            after[k] = rule.next_of(p[rule.rows][taken[k] - 1], request)
    over = all(c is END for k, c in enumerate(after) if k not in missing)
    first = pages[min(pages)]
    text = END if over else text_of(after)
    return {
        **first,
        rule.rows: rows,
        **(
            {"next": END if over else cursor_of(after), "cursor": text}
            if rule.texts
            else {"next": text}
        ),
        **({"missing": sorted(missing)} if missing else {}),
    }


def _joined(rule: Merge | Health | Listed, found: _Found) -> Reply:
    refused = {k: refusal_of(a) for k, a in found.answers.items() if a.code != 200}
    good = {k: a for k, a in found.answers.items() if a.code == 200}
    for refusal in refused.values():
        # one shard may have what others lack, as a host of the pool
        if refusal.code != "notFound" or not good:
            raise refusal
    missing = sorted(found.missing)
    match rule:
        case Listed():
            rows = [row for k in sorted(good) for row in msgspec.json.decode(good[k].body)]
            return Reply(msgspec.json.encode(sorted(rows, key=rule.order)), missing=missing)
        case Health():
            body = shard_answers.health({k: _row(a) for k, a in good.items()})
            if missing:
                body["state"] = "failing"
                body["reasons"] = [*body["reasons"], *map(_away, missing)]
        case Merge():
            body = shard_answers.merged(rule, {k: _row(a) for k, a in good.items()})
        case _:
            assert_never(rule)
    if missing:
        body["missing"] = missing
    return Reply(msgspec.json.encode(body), missing=missing)


def _away(shard: int) -> Row:
    return {
        "what": "shard",
        "state": "failing",
        "sentence": f"no supervisor serves shard {shard}: its users' requests wait; running jobs continue",
        "since": None,
        "try": f"start a supervisor for it: jobscribe supervisor --shard {shard}",
        "shard": shard,
    }


class _Refused(msgspec.Struct):
    code: str = "internal"
    error: str = ""


def refusal_of(answer: Answer) -> Refusal:
    """Return the refusal that a supervisor sent."""
    try:
        found = msgspec.json.decode(answer.body, type=_Refused)
        body: Row = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return Refusal("internal", f"a supervisor answered with HTTP {answer.code}")
    more = {n: v for n, v in body.items() if n not in ("state", "code", "error", "retry", "advice")}
    return Refusal(found.code if found.code in CODES else "internal", found.error, more)


def _row(answer: Answer) -> Row:
    if answer.code != 200:
        raise refusal_of(answer)
    row: Row = msgspec.json.decode(answer.body)
    return row


def _object(body: bytes) -> Row:
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as e:
        raise Refusal("badRequest", f"invalid request: {str(e)[:200]}") from None
