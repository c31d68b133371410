"""Answers of several shards become one, in pages and streams that resume in each shard."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from jobscribe.db.store.contract import IndexRow
from jobscribe.protocol.errors import Refusal
from jobscribe.router.cursors import END, START, cursor_of, cursors_of, packed, unpacked
from jobscribe.router.site_requests import _Found, _joined, page, placed, places_of, refusal_of
from jobscribe.router.upstream import Answer
from jobscribe.supervisor.api.routes import ROUTES
from jobscribe.supervisor.api.transport import shard_answers, shard_rules
from jobscribe.supervisor.api.transport.authorization import Subject

WHOLE = {
    Subject.ALL,
    Subject.BODY_OR_ALL,
    Subject.BODY_OR_MEMBERS,
    Subject.QUERY_OR_ALL,
    Subject.USERNAMES_OR_ALL,
    Subject.RUNS,
}


@pytest.mark.parametrize("route", [r for r in ROUTES if r.subject in WHOLE], ids=lambda r: r.path)
def test_each_route_about_several_users_has_a_rule(route: Any) -> None:
    assert route.merge is not None, f"{route.path}: set Route.merge (see shard_rules)"
    if route.streams:
        assert isinstance(route.merge, shard_answers.Stream)


@given(st.lists(st.integers(0, 2**53), min_size=1, max_size=5), st.data())
def test_a_number_of_positions_grows_with_each_of_them(positions: list[int], data: Any) -> None:
    assert unpacked(packed(positions), len(positions)) == positions
    at = data.draw(st.integers(0, len(positions) - 1))
    later = [p + (n == at) for n, p in enumerate(positions)]
    assert packed(later) > packed(positions)


CURSORS = st.one_of(st.integers(0, 2**53), st.just(START), st.just(END))


@given(st.lists(CURSORS, min_size=1, max_size=5).filter(lambda c: any(x is not None for x in c)))
def test_cursors_come_back_as_they_were(cursors: list[Any]) -> None:
    assert cursors_of(cursor_of(cursors), len(cursors)) == cursors
    texts = [c if c is None else f"{c}:x" for c in cursors]
    assert cursors_of(cursor_of(texts), len(cursors)) == texts


@pytest.mark.parametrize("wrong", (5, 2**57, "x", "[1]", "7"))
def test_a_cursor_of_another_site_is_refused(wrong: Any) -> None:
    with pytest.raises(Refusal, match="cursor"):
        cursors_of(wrong, 3)


def rows_of(shard: int, count: int) -> list[dict[str, Any]]:
    return [
        {"jid": f"{shard}-{n}", "position": n + 1, "queuedAt": float(10 * n + shard)}
        for n in range(count)
    ]


def asked(rows: list[dict[str, Any]], before: Any, limit: int) -> dict[str, Any]:
    """Answer as `job-list` of a supervisor does."""
    found = [r for r in rows[::-1] if before in (None, START) or r["position"] < before][:limit]
    return {"jobs": found, "next": found[-1]["position"] if len(found) == limit else None}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 5))
def test_all_pages_have_each_row_once_in_order(counts: list[int], limit: int) -> None:
    shards = {k: rows_of(k, n) for k, n in enumerate(counts)}
    for field in ("next", "cursor"):
        seen, every = paged(shards, limit, field)
        assert seen == every


def paged(shards: dict[int, list[Any]], limit: int, field: str) -> tuple[list[Any], list[Any]]:
    """Return the rows of all pages, and the rows that they must have. field: continues after a page."""
    seen, cursor = [], None
    for _ in range(60):
        before = cursors_of(cursor, len(shards))
        pages = {k: asked(r, before[k], limit) for k, r in shards.items() if before[k] is not END}
        got = page(shard_rules.JOB_LIST, {}, limit, before, pages, [])
        assert len(got["jobs"]) <= limit and "missing" not in got
        seen += got["jobs"]
        # numbers of a browser are doubles, so it uses the text
        cursor = (
            got["next"]
            if field == "next"
            else json.loads(json.dumps(got["cursor"]), parse_int=float)
        )
        if cursor is None:
            break
    every = sorted((r for rows in shards.values() for r in rows), key=lambda r: -r["queuedAt"])
    return seen, every


def test_a_page_names_a_shard_that_is_missing_and_goes_on_with_it_later() -> None:
    rows = rows_of(0, 3)
    got = page(
        shard_rules.JOB_LIST, {}, 2, cursors_of(None, 2), {0: asked(rows, None, 2)}, missing=[1]
    )
    assert got["missing"] == [1] and cursors_of(got["next"], 2) == [2, START]


def test_orders_use_fields_that_rows_have() -> None:
    names = {f.encode_name for f in msgspec.structs.fields(IndexRow)}
    assert {"jid", "position", "queuedAt", "startedAt", "endedAt"} <= names


def test_cursors_of_a_search_are_those_of_supervisors() -> None:
    row = {"jid": "j", "position": 7, "queuedAt": 5.0, "startedAt": 6.0, "endedAt": 8.5}
    of = shard_rules.JOB_SEARCH.next_of
    assert of(row, {}) == "7"
    assert of(row, {"sort": "changed", "ascending": True}) == "7.0:j"
    assert of(row, {"sort": "submitted"}) == "-5.0:j"
    assert of(row, {"sort": "duration", "ascending": True}) == "2.5:j"


def test_the_cursor_of_a_search_is_always_a_text() -> None:
    pages = {
        k: {"jobs": [{"jid": f"j{k}", "position": 7, "queuedAt": 5.0 - k}], "next": None}
        for k in range(2)
    }
    got = page(shard_rules.JOB_SEARCH, {"sort": "submitted"}, 1, [START, START], pages, [])
    assert got["next"] == '[null,""]' and cursors_of(got["next"], 2) == [END, START]


def answer(body: Any, code: int = 200) -> Answer:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Answer(code, HTTPHeaders({"Content-Type": "text/plain"}), data)


def joined(rule: Any, answers: dict[int, Any], missing: list[int] | None = None) -> Any:
    found = {k: a if isinstance(a, Answer) else answer(a) for k, a in answers.items()}
    return msgspec.json.decode(_joined(rule, _Found(found, missing or [])).content)


def test_a_missing_shard_is_named_in_every_merged_answer() -> None:
    for rule in (shard_rules.DRAINS, shard_rules.EACH, shard_rules.USERS, shard_rules.HEALTH):
        body = {"state": "ok", "drains": [], "users": [], "reasons": []}
        assert joined(rule, {0: body}, [1])["missing"] == [1], rule
    health = joined(shard_rules.HEALTH, {0: {"state": "ok", "reasons": []}}, [1])
    assert health["state"] == "failing" and "shard 1" in health["reasons"][0]["sentence"]
    reply = _joined(shard_rules.PAI_JOBS, _Found({0: answer([])}, [1]))
    assert reply.missing == [1], "a list names it in a header"


def test_health_is_that_of_the_worst_shard_and_names_it() -> None:
    reason = {"what": "disk", "state": "degraded", "sentence": "the disk is full"}
    got = joined(
        shard_rules.HEALTH,
        {0: {"state": "ok", "reasons": []}, 1: {"state": "degraded", "reasons": [reason]}},
    )
    assert got["state"] == "degraded"
    assert got["reasons"] == [{**reason, "sentence": "shard 1: the disk is full", "shard": 1}]


def test_rows_and_numbers_are_added() -> None:
    usage = {
        "by": ["user"],
        "rows": [{"user": "b", "runs": 1, "peakMemoryBytes": 5}],
        "total": {"runs": 1, "peakMemoryBytes": 5},
    }
    other = {
        "by": ["user"],
        "rows": [
            {"user": "b", "runs": 2, "peakMemoryBytes": 3},
            {"user": "a", "runs": 1, "peakMemoryBytes": 1},
        ],
        "total": {"runs": 3, "peakMemoryBytes": 3},
    }
    got = joined(shard_rules.USAGE, {0: usage, 1: other})
    assert got["rows"] == [
        {"user": "a", "runs": 1, "peakMemoryBytes": 1},
        {"user": "b", "runs": 3, "peakMemoryBytes": 5},
    ]
    assert got["total"] == {"runs": 4, "peakMemoryBytes": 5}


def test_one_shard_may_lack_what_another_has_and_a_refusal_is_passed_on() -> None:
    lacks = answer({"code": "notFound", "error": "no host"}, 404)
    assert joined(shard_rules.DRAINS, {0: lacks, 1: {"drains": [{"host": "h"}]}})["drains"]
    with pytest.raises(Refusal, match="no host"):
        joined(shard_rules.DRAINS, {0: lacks, 1: lacks})
    no = answer({"code": "forbidden", "error": "not you"}, 403)
    with pytest.raises(Refusal, match="not you"):
        joined(shard_rules.USERS, {0: no, 1: {"users": []}})
    assert refusal_of(answer(b"x", 500)).code == "internal"


def test_metrics_of_shards_are_one_document() -> None:
    text = '# HELP a A.\n# TYPE a gauge\na 1\n# HELP b B.\n# TYPE b counter\nb_total{x="y"} 2\n'
    assert shard_answers.metrics({0: text, 1: text}) == (
        '# HELP a A.\n# TYPE a gauge\na{shard="0"} 1\na{shard="1"} 1\n'
        '# HELP b B.\n# TYPE b counter\nb_total{shard="0",x="y"} 2\nb_total{shard="1",x="y"} 2\n'
    )


def test_events_have_a_position_that_grows_and_resumes_in_each_shard() -> None:
    places = ["5", "9"]
    block = b'id: 6\nevent: e\ndata: {"position":6,"stream":"s"}\n\n'
    got = placed(shard_rules.LOG, block, 0, places)
    position = packed([6, 9])
    assert got == b'id: %d\nevent: e\ndata: {"position":%d,"stream":"s"}\n\n' % (position, position)
    assert unpacked(position, 2) == [6, 9] and places == ["6", "9"]
    page_places = ["", ""]
    got = placed(shard_rules.PAGE, b"event: job\nid: 7.a\ndata: 1\n\n", 1, page_places)
    assert got == b'event: job\nid: ["","7.a"]\ndata: 1\n\n'
    assert placed(shard_rules.LINES, b"jid\n", 1, page_places) == b"jid\n"


def test_slots_that_shards_share_are_those_of_the_site() -> None:
    def row(used: int, total: int, **site: int) -> dict[str, Any]:
        where = {"driver": "local", "host": "localhost", "kind": "parallel"}
        return {**where, "used": used, "total": total, "waiting": 1, **site}

    # between the two answers, two slots have moved
    one, other = (
        row(6, 6, siteTotal=8, siteUsed=7),
        row(1, 4, siteTotal=8, siteUsed=5),
    )
    got = joined(shard_rules.QUEUES, {0: {"slots": [one]}, 1: {"slots": [other]}})["slots"]
    assert [(s["used"], s["total"], s["waiting"], s["siteTotal"]) for s in got] == [(7, 8, 2, 8)]
    docker = joined(shard_rules.QUEUES, {0: {"slots": [row(1, 2)]}, 1: {"slots": [row(0, 2)]}})
    assert docker["slots"] == [row(1, 4) | {"waiting": 2}]


def test_a_supervisor_is_found_in_the_shard_that_has_it() -> None:
    def body(*names: str) -> dict[str, Any]:
        return {"name": names[0], "supervisors": [{"name": n} for n in names[1:]]}

    answers = {0: body("a:1", "b:2"), 1: body("a:3", "c:4"), 2: body("b:2")}
    assert places_of("a:3", answers) == places_of("c", answers) == [1]
    assert places_of("d", answers) == []
    for name, said in (("a", "a:1 of shard 0, a:3 of shard 1"), ("b:2", "b:2 of shard 2")):
        with pytest.raises(Refusal, match=said) as e:
            places_of(name, answers)
        assert e.value.code == "badRequest"
