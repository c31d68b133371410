"""Orders of an agent to its keeper: their bytes are the same in all versions, and a keeper refuses
everything else with a sentence.
"""

import json
from typing import Any

import pytest

from jobscribe.protocol.launch.keeper_messages import (
    ForgetOrder,
    InvalidOrder,
    Order,
    Ping,
    QuitOrder,
    ReleaseOrder,
    SetEnvironment,
    Started,
    StartOrder,
    StartupFailure,
    StopOrder,
    parse_order,
)
from jobscribe.protocol.launch.message_fields import encode

START = StartOrder(name="n", token="t", run_dir="/d", command=["c", ""], env={"A": "b"})
START_BYTES = (
    '{"do": "start", "name": "n", "token": "t", "runDir": "/d", "command": ["c", ""], '
    '"env": {"A": "b"}, "script": ["", ""], "umask": 63, "core": 0'
)
MESSAGE = json.loads(START_BYTES + "}")
ORDERS: list[tuple[Order, str]] = [
    (START, START_BYTES + "}"),
    (
        StartOrder(
            name="n",
            token="t",
            run_dir="/d",
            command=["c", ""],
            env={"A": "b"},
            environment="1",
            limit=1.5,
            grace=0,
            input="",
            job="j",
            memory=7,
            slot="held",
        ),
        START_BYTES + ', "environment": "1", "limit": 1.5, "grace": 0, "input": "", "job": "j", '
        '"memory": 7, "slot": "held"}',
    ),
    (
        SetEnvironment(name="1", variables={"A": "b"}, lines="export A=b\n"),
        '{"do": "environment", "name": "1", "env": {"A": "b"}, "lines": "export A=b\\n"}',
    ),
    (ReleaseOrder(name="n"), '{"do": "release", "name": "n"}'),
    (
        StopOrder(name="n", token="t", reason="cancel", grace=2.0),
        '{"do": "stop", "name": "n", "token": "t", "reason": "cancel", "grace": 2.0}',
    ),
    (ForgetOrder(names=["a", "b"]), '{"do": "forget", "names": ["a", "b"]}'),
    (QuitOrder(stop_jobs=True, grace=2.0), '{"do": "quit", "stopJobs": true, "grace": 2.0}'),
    (Ping(number=3), '{"do": "ping", "n": 3}'),
    (Started(), '{"do": "here"}'),
    (StartupFailure(sentence="no"), '{"do": "failed", "why": "no"}'),
]


@pytest.mark.parametrize(("order", "line"), ORDERS, ids=[type(o).__name__ for o, _ in ORDERS])
def test_the_bytes_of_an_order_are_read_as_the_same_order(order: Order, line: str) -> None:
    assert json.dumps(encode(order)) == line
    read = parse_order(json.loads(line))
    assert type(read) is type(order) and vars(read) == vars(order)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"token": "a\0b"}, "the token contains a NUL character"),
        ({"runDir": None}, "runDir is not text"),
        ({"runDir": "d"}, "the start order needs an absolute run directory and a script of two parts"),
        ({"script": [""]}, "the start order needs an absolute run directory and a script of two parts"),
        ({"script": [1, 2]}, "script is not a list of texts"),
        ({"command": []}, "the command is empty"),
        ({"command": ["", "a"]}, "the command is empty"),
        ({"env": {"A": 1}}, "env is not an object of texts"),
        ({"umask": "77"}, "umask is of a wrong type"),
        ({"core": 1.5}, "core is of a wrong type"),
        ({"limit": "soon"}, "limit is of a wrong type"),
        ({"memory": 1.5}, "memory is of a wrong type"),
        ({"slot": 1}, "slot is of a wrong type"),
    ],
)  # fmt: skip
def test_an_invalid_start_order_is_refused_with_its_execution(
    change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidOrder) as refused:
        parse_order({**MESSAGE, **change})
    assert str(refused.value) == f"invalid start order: {sentence}"
    assert refused.value.name == "n"
    assert refused.value.token == change.get("token", "t").replace("\0", "")


@pytest.mark.parametrize("field", ["runDir", "script", "command", "env"])
def test_a_start_order_without_a_required_field_is_refused(field: str) -> None:
    message = {name: value for name, value in MESSAGE.items() if name != field}
    with pytest.raises(InvalidOrder, match=rf"invalid start order: {field} is missing\Z"):
        parse_order(message)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"do": ["start"]}, "unknown order ['start']"),
        ({"do": "start", "name": "../x"}, "'../x' does not name an execution"),
        ({"do": "stop", "name": None}, "None does not name an execution"),
        ({"do": "stop", "name": "n", "grace": 1}, "reason is missing"),
        ({"do": "stop", "name": "n", "reason": "r", "grace": True}, "grace is not a number"),
        ({"do": "quit", "grace": 1}, "stopJobs is missing"),
        ({"do": "forget", "names": "n"}, "names is not a list of texts"),
        ({"do": "environment", "name": "1", "env": {}}, "lines is missing"),
    ],
)
def test_other_messages_are_refused_without_an_execution(
    message: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidOrder) as refused:
        parse_order(message)
    assert (str(refused.value), refused.value.name) == (sentence, None)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"umask": 0o7022}, "umask", 0o022),
        ({"umask": None}, "umask", 0o077),
        ({"core": -1}, "core", 0),
        ({"core": None}, "core", 0),
        ({"token": None}, "token", "n"),
    ],
)
def test_values_out_of_range_are_replaced(
    change: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(parse_order({**MESSAGE, **change}), field) == value


def test_a_message_needs_its_fields_and_no_others() -> None:
    with pytest.raises(TypeError, match="ReleaseOrder has the fields"):
        ReleaseOrder()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="ReleaseOrder has the fields"):
        ReleaseOrder(name="n", reason="r")  # type: ignore[call-arg]
