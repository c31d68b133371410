"""A refused message names all of its errors, besides the sentence about the first one."""

import json
from typing import Any

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSimulation
from jobscribe.protocol.errors import Refusal
from jobscribe.schema import messages
from jobscribe.web.request.schemas import Body, RunStatus

RUN = {"uid": "user0001", "simulationId": "sim00001", "command": ["true"]}


def refused(body: bytes, type_: Any = RunSimulation) -> Refusal:
    with pytest.raises(msgspec.ValidationError) as e:
        msgspec.json.decode(body, type=type_)
    return messages.refusal(e.value, body, type_, "invalid request")


def problems(body: bytes, type_: Any = RunSimulation) -> list[str]:
    found = refused(body, type_).more.get("problems", [])
    assert isinstance(found, list)
    return [p.sentence() for p in found]


def test_all_errors_are_named_with_path_and_right_form() -> None:
    run = {
        **RUN,
        "uid": "joe",
        "env": {"A": "b", "9": "x", "B": None},
        "roles": [{"name": "w", "tasks": 0, "command": ["x"]}],
        "retry": {"conflictSecs": "10m"},
        "batch": {"nodes": 1, "memory": 5},
    }
    assert problems(json.dumps({"run": run}).encode()) == [
        "reqId: it is missing; right: 8 to 64 letters, digits or _ . : -",
        'run.uid: it is the text "joe"; right: 8 letters or digits',
        'run.env["9"]: this is not a valid name; right: the name of a variable: letters, digits and _, not a digit first, at most 128',
        "run.env.B: it is nothing; right: a text without NUL, at most 131,072 characters",
        "run.roles[0].tasks: it is 0; right: a whole number, 1 to 1,000",
        'run.retry.conflictSecs: it is the text "10m"; right: a number, more than 0, at most 86,400',
        "run.batch.memory: unknown key; right: `memoryMb`",
    ]


def test_the_sentence_is_about_the_first_error_and_shows_no_value() -> None:
    refusal = refused(json.dumps({"reqId": "secret", "run": RUN}).encode())
    assert (refusal.code, refusal.sentence) == (
        "badRequest",
        "invalid request: expected `str` matching regex '^[A-Za-z0-9_.:-]{8,64}$' - at `$.reqId`",
    )


def test_fields_that_the_type_accepts_are_no_errors() -> None:
    body = {"simulationType": "x", "simulationId": "a", "report": "r", "further": 1}
    assert problems(json.dumps(body).encode(), RunStatus) == [
        'simulationId: it is the text "a"; right: 8 letters or digits'
    ]


def test_a_type_without_fields_needs_an_object() -> None:
    assert problems(b"5", Body) == ["it is 5; right: an object"]


def test_a_body_that_is_large_or_no_json_has_the_sentence_alone() -> None:
    assert problems(b'{"reqId": 1, "run": x') == []
    large = {"reqId": 1, "run": {**RUN, "wrap": ["x" * messages.MAX_BYTES]}}
    assert problems(json.dumps(large).encode()) == []


def test_the_number_of_problems_is_limited() -> None:
    body = json.dumps({"reqId": "request-1", "run": {**RUN, "command": [1] * 9_999}}).encode()
    found = problems(body)
    assert len(found) == messages.MAX_PROBLEMS + 1
    assert found[-1].startswith("9899 more problems are not shown")
