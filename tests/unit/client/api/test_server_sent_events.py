"""The parser of server-sent events yields the same complete events, each once, wherever the chunks
are cut.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.client.api import server_sent_events
from jobscribe.client.api.cursors import EventCursor
from jobscribe.client.api.errors import ClientError
from jobscribe.client.api.server_sent_events import Message, Parser

STREAM = (
    'id: 7\nevent: RunRequested\ndata: {"position":7,"stream":"job/a","version":1,"event":{"type":"RunRequested"}}\n\n'
    ": nothing new\n\n"
    "id: 8\r\ndata: first ünd\r\ndata: second\r\n\r\n"
    "id: 9\r\rdata:no space\rid: 10\r\r"
).encode()
MESSAGES = [
    Message(
        "7",
        "RunRequested",
        '{"position":7,"stream":"job/a","version":1,"event":{"type":"RunRequested"}}',
    ),
    Message("8", "message", "first ünd\nsecond"),
    Message("10", "message", "no space"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_cuts_between_chunks_do_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parser = Parser()
    out = [m for a, b in itertools.pairwise(edges) for m in parser.feed(STREAM[a:b])]
    out += parser.feed(b": what follows shows that the last CR was no CRLF\n")
    assert out == MESSAGES
    assert parser.last_id == "10"


def test_an_unfinished_block_is_no_event_and_moves_nothing() -> None:
    parser = Parser()
    parser.feed(b"id: 1\ndata: x\n\n")
    assert parser.feed(b"id: 2\ndata: half") == []
    assert parser.last_id == "1"


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sent_events, "MAX_PENDING", 1000)
    parser = Parser()
    parser.feed(b"data: " + b"x" * 900)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        parser.feed(b"x" * 200)


def test_an_event_that_came_before_is_not_given_again() -> None:
    cursor = EventCursor(6)
    first = cursor.feed(STREAM[: STREAM.index(b": nothing")])
    cursor.connect(None, None)
    again = cursor.feed(STREAM[: STREAM.index(b": nothing")])
    assert [e.position for e in first] == [7]
    assert again == []
    assert cursor.connect(None, None)[1] == {"Last-Event-ID": "7"}


def test_a_block_cut_between_its_id_and_its_data_is_asked_for_again() -> None:
    cursor = EventCursor(6)
    cursor.feed(b"id: 7\nevent: RunRequested\n")
    assert cursor.after == 6


def test_what_is_no_event_of_the_log_is_an_error() -> None:
    with pytest.raises(ClientError) as e:
        EventCursor(0).feed(b"id: 1\ndata: <html>\n\n")
    assert e.value.code == "notASupervisor"
