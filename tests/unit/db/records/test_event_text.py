"""Job histories as text: one line per event, in order, with the time between events and shortened
ids.
"""

import json

from event_strategies import JID, KEY, histories, life, token
from hypothesis import given

from jobscribe.db.events.events import AgentStartFailed, RunEnded, SupervisorStarted, job_stream
from jobscribe.db.records.event_text import data, story
from jobscribe.db.store.contract import Stored
from jobscribe.protocol.ids import op_id


def stored(events: list) -> list[Stored]:
    return [Stored(n, job_stream(JID), n, e) for n, e in enumerate(events, 1)]


def test_the_story_of_a_run() -> None:
    assert [line[24:] for line in story(stored(life(7)))] == [
        "             run 7 requested by EPRSuser: command, sequential on local (request request-7)",
        "    +0.001s  task main/0 of run 7 attempt 1 placed on local.sequential.EPRSuser@node1"
        f" (op {op_id(token(7), 'run')[:6]})",
        "    +0.001s  task main/0 of run 7 attempt 1 started: pid 77 on node1",
        "    +0.998s  task main/0 of run 7 attempt 1 ended: exit code 0",
        "    +0.000s  run 7 attempt 1 ended: exit",
        "    +0.000s  run 7 is completed (exit)",
    ]
    assert story(stored(life(7)))[0].startswith("2023-11-14 22:13:20.000Z  ")


def test_no_story_has_no_lines() -> None:
    assert story([]) == [] and data([]) == []


def test_a_clock_that_was_set_back_shows() -> None:
    lines = story(
        stored([RunEnded(at=t, serial=1, status="completed", reason="exit") for t in (100.0, 40.0)])
    )
    assert "-60.000s" in lines[1]


def test_times_that_are_none_are_still_told() -> None:
    (line,) = story(stored([RunEnded(at=1e300, serial=1, status="completed", reason="exit")]))
    assert "1e+300" in line and "completed" in line


def test_what_strangers_wrote_cannot_play_with_the_terminal() -> None:
    reason = "\x1b[31mred\nnew line" + "x" * 500
    (line,) = story(stored([AgentStartFailed(at=1.0, agent_key=KEY, attempt=1, reason=reason)]))
    assert line.isprintable() and "?[31mred?new line" in line and len(line) < 400


@given(histories)
def test_every_event_gets_one_line_and_one_entry(history: list) -> None:
    events = stored(history)
    lines, entries = story(events), data(events)
    assert len(lines) == len(entries) == len(history)
    assert all("\n" not in line for line in lines)
    assert [e["position"] for e in json.loads(json.dumps(entries))] == [s.position for s in events]
    assert [e["gap"] is None for e in entries] == [n == 0 for n in range(len(history))]


def test_data_has_the_ids_as_they_are() -> None:
    entry = data(stored(life(7)))[1]
    assert (
        entry["type"] == "TaskPlaced"
        and entry["event"]["opId"] == op_id(token(7), "run")
        and entry["stream"] == job_stream(JID)
    )


def test_the_systems_own_events_are_told() -> None:
    (line,) = story(
        [
            Stored(
                1,
                "system",
                1,
                SupervisorStarted(at=1.0, session=3, pid=9, boot_id="b", version="1.2"),
            )
        ]
    )
    assert line.endswith("supervisor session 3 started: pid 9, version 1.2")
