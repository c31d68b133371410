"""`job logs` with a pattern, from a byte offset, and without output."""

import json
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from jobscribe.cli.job.logs.reader import matching
from jobscribe.client.api.replies import LogPart

Run = Any
Fake = Any


@pytest.fixture
def jid(run: Run, fake: Fake) -> str:
    return run("job", "submit", "--", "true").out.strip()


def test_only_lines_that_match(run: Run, jid: str, fake: Fake) -> None:
    fake.write(jid, "stdout", b"step 1\nwarning: hot\nstep 2\nwarning: cold")
    fake.end(jid)
    assert (
        run("job", "logs", jid, "--grep", "^warn.*(hot|cold)$").out == "warning: hot\nwarning: cold"
    )
    none = run("job", "logs", jid, "--grep", "nowhere", "--stdout")
    assert (none.code, none.out) == (
        0,
        "",
    ) and "[no line of stdout matches 'nowhere']" in none.err


def test_a_bad_pattern_is_wrong_usage(run: Run, jid: str) -> None:
    ended = run("job", "logs", jid, "--grep", "a(b")
    assert (
        ended.code == 2
        and "'a(b' is not a regular expression: missing ), unterminated subpattern at position 1"
        in ended.err
    )


def test_lines_that_match_are_followed(run: Run, jid: str, fake: Fake) -> None:
    fake.write(jid, "stdout", b"x 1\ny 2\nx ")
    timer = threading.Timer(
        0.2, lambda: (fake.write(jid, "stdout", b"3\ny\nx last"), fake.end(jid))
    )
    timer.start()
    assert run("job", "logs", "-f", jid, "--grep", "x").out == "x 1\nx 3\nx last"
    timer.join()


def test_from_a_byte_on_and_where_to_go_on(run: Run, jid: str, fake: Fake) -> None:
    fake.write(jid, "stdout", b"0123456789")
    fake.end(jid)
    first = run("job", "logs", jid, "--stdout", "--since-byte", "4")
    assert first.out == "456789" and "[to continue from here: --since-byte 10]" in first.err
    rows = run("--json", "job", "logs", jid, "--stdout", "--since-byte", "4").lines()
    assert (
        rows[0]["offset"] == 4
        and rows[-1]["nextOffset"] == 10
        and "".join(r["text"] for r in rows) == "456789"
    )
    nothing = run("--json", "job", "logs", jid, "--stdout", "--since-byte", "10").lines()
    assert nothing == [
        {
            "type": "note",
            "stream": "stdout",
            "note": "nothingYet",
            "sentence": "no output on stdout from byte 10 on",
            "nextOffset": 10,
        }
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--since-byte", "3"),
        ("--since-byte", "3", "--stdout", "--tail", "4"),
        ("--all", "--tail", "4"),
        ("--previous", "--attempt", "1"),
    ],
)
def test_options_that_say_two_things_are_wrong_usage(
    run: Run, jid: str, wrong: tuple[str, ...]
) -> None:
    assert run("job", "logs", jid, *wrong).code == 2


def test_previous_without_one_is_said(run: Run, jid: str, fake: Fake) -> None:
    ended = run("job", "logs", jid, "--previous")
    assert ended.code == 125 and ended.out == "" and "there is no previous attempt of" in ended.err


def test_nothing_at_all_is_said(run: Run, jid: str, fake: Fake) -> None:
    fake.end(jid)
    ended = run("job", "logs", jid)
    assert ended.out == "" and "[no output on stdout]" in ended.err
    fake.write(jid, "stdout", b"x")
    assert "nothing" not in run("job", "logs", jid).err


# ---- lines


def parts(pieces: Iterable[bytes], *, dropped_before: int = -1) -> Iterator[LogPart]:
    at = 0
    for n, data in enumerate(pieces):
        lost = 100 if n == dropped_before else 0
        yield LogPart(
            stream="stdout",
            offset=at + lost,
            next_offset=at + lost + len(data),
            data=data,
            dropped=lost,
        )
        at += lost + len(data)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_however_the_pieces_are_cut_the_lines_are_the_same(size: int) -> None:
    text = "ab\r\nnaïve x\n\nx\rx\nlast x".encode()
    found = list(
        matching(re.compile("x"), parts(text[i : i + size] for i in range(0, len(text), size)))
    )
    assert b"".join(p.data for p in found) == "naïve x\nx\rx\nlast x".encode()
    assert found[-1].next_offset == len(text)


def test_a_line_that_lost_its_rest_is_not_glued_to_another() -> None:
    found = list(matching(re.compile("ab"), parts([b"x\na", b"b\nab\n"], dropped_before=1)))
    assert b"".join(p.data for p in found) == b"ab\n" and sum(p.dropped for p in found) == 100


def test_json_has_the_offset_of_what_is_shown() -> None:
    (only,) = (p for p in matching(re.compile("b"), parts([b"a\nb", b"b\n"])) if p.data)
    assert (
        json.loads(json.dumps([only.offset, only.next_offset])) == [2, 5] and only.data == b"bb\n"
    )
