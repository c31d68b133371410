"""Rules that merge the answers of several shards to a request about all users. Pure.

Each route that may concern all users declares its rule (`Route.merge`); a router follows it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

Row = dict[str, Any]
#: Returns the place of a row in an order.
Order = Callable[[Row], Any]
#: Answers by shard.
Answers = Mapping[int, Any]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A list of rows. by: rows with equal values of these fields become one, whose numbers in `sums` are
    added, and in `largest` are the largest one. whole: of a field whose parts move between shards, and so have
    no sum, the field that each row with such a part has the whole in. order: of all rows; None: by shard. most:
    longest list.
    """

    by: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    whole: Mapping[str, str] = {}
    order: Order | None = None
    most: int | None = None


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a list of rows, each shard's in an order of its own. rows: the field with the list.
    cursor: the field of the request that continues after a page. next_of: returns the cursor after a
    row of one shard, from the row and the request. order: of rows of different shards. start: the cursor of
    a first page. most: rows of a page without `limit`. texts: beside the numbers `next` and this field,
    there is a text `cursor` for both; else they are texts.
    """

    rows: str
    cursor: Callable[[Row], str]
    next_of: Callable[[Row, Row], Any]
    order: Callable[[Row, Row], Any]
    start: Any = None
    most: int = 100
    texts: bool = True


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that merges objects field by field. A field without a rule is that of the first shard.

    each: `shards` has the answer of each shard. rows: fields with lists. sums: fields with numbers, or
    objects of numbers, that are added. largest: numbers within these objects of which the largest
    counts. union: objects whose fields are put together. counts: number of all rows, by field of a list.
    """

    rows: Mapping[str, Rows] = {}
    sums: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    union: tuple[str, ...] = ()
    counts: Mapping[str, str] = {}
    each: bool = False


class One(msgspec.Struct, frozen=True, kw_only=True):
    """The request concerns something of one shard: the first answer that is none of `notFound`."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is a list."""

    order: Order


class Numbered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is a part of a sorted list, whose begin is a number: `/api/v2/jobs` of OpenPAI."""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics in the format of Prometheus: each sample gets the label `shard`."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The worst state, and all reasons with their shards."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Each shard gets the items of its users. items: the field of the request, and of the answer."""

    items: str


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of all shards, resumed by the position in each one. kind: events of the log, events of a
    page, or lines.
    """

    kind: Literal["log", "page", "lines"]


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """The request concerns the supervisor that it names, and goes to the shard which has this one. path: of the
    list of each shard's supervisors.
    """

    path: str


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """There is no answer for several shards. remedy: what to do instead."""

    remedy: str


Rule = Merge | Pages | One | Listed | Numbered | Text | Health | Split | Stream | Named | Refused

_STATES = ("ok", "degraded", "failing")


def merged(rule: Merge, answers: Answers) -> Row:
    """Return one answer. answers: of one shard at least."""
    bodies: Sequence[Row] = [answers[k] for k in sorted(answers)]
    out = dict(bodies[0])
    for name, rows in rule.rows.items():
        found = [row for body in bodies for row in body.get(name) or ()]
        by = tuple(out["by"]) if rows.by == ("by",) else rows.by
        out[name] = _rows(rows, by, found)
    for name in rule.sums:
        out[name] = _sum([body.get(name) for body in bodies], rule.largest)
    for name in rule.union:
        out[name] = {k: v for body in bodies for k, v in (body.get(name) or {}).items()}
    for name, of in rule.counts.items():
        out[name] = len(out[of])
    for name, rows in rule.rows.items():
        if rows.most is not None:
            out[name] = out[name][: rows.most]
    if rule.each:
        out["shards"] = {str(k): answers[k] for k in sorted(answers)}
    return out


def _rows(rows: Rows, by: tuple[str, ...], found: list[Any]) -> list[Any]:
    if by:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in found:
            groups.setdefault(tuple(row.get(name) for name in by), []).append(row)
        found = [_one(rows, by, group) for group in groups.values()]
    return found if rows.order is None else sorted(found, key=rows.order)


def _one(rows: Rows, by: tuple[str, ...], group: list[Row]) -> Row:
    out = dict(group[0])
    every = [n for n, v in out.items() if _is_number(v) and n not in by]
    for name in every if rows.sums == ("*",) else rows.sums:
        if name not in rows.largest:
            out[name] = _sum([row.get(name) for row in group], ())
    for name in rows.largest:
        out[name] = max(row.get(name) or 0 for row in group)
    for name, of in rows.whole.items():
        wholes = [row[of] for row in group if row.get(of) is not None]
        if wholes:
            out[name] = out[of] = min(wholes)
    return out


def _sum(values: list[Any], largest: tuple[str, ...]) -> Any:
    """Return the sum of numbers, or of objects field by field; what is neither is that of the first."""
    given = [v for v in values if v is not None]
    if not given:
        return None
    if all(isinstance(v, dict) for v in given):
        names = dict.fromkeys(name for v in given for name in v)
        return {
            n: max(v.get(n) or 0 for v in given)
            if n in largest
            else _sum([v.get(n) for v in given], largest)
            for n in names
        }
    return sum(given) if all(map(_is_number, given)) else given[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def health(answers: Answers) -> Row:
    """Return the health of all shards."""
    states = [str(body.get("state")) for body in answers.values()]
    worst = max(states, key=lambda s: _STATES.index(s) if s in _STATES else len(_STATES))
    reasons = [
        {**r, "sentence": f"shard {k}: {r.get('sentence')}", "shard": k}
        for k in sorted(answers)
        for r in answers[k].get("reasons", ())
    ]
    first: Row = answers[min(answers)]
    return {**first, "state": worst, "reasons": reasons}


def metrics(answers: Mapping[int, str]) -> str:
    """Return the metrics of all shards: each family once, with the samples of all shards."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for shard in sorted(answers):
        family = ""
        for line in answers[shard].splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                if line not in heads.setdefault(family, []):
                    heads[family].append(line)
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(_labelled(line, shard))
    return "".join(
        f"{line}\n" for family in heads for line in (*heads[family], *samples.get(family, ()))
    )


def _labelled(line: str, shard: int) -> str:
    """Return a sample with the label of its shard."""
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{shard="{shard}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{shard="{shard}"}} {value}'
