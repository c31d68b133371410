"""JSON values of apps are sent unchanged; for other values, the error names the path."""

import enum
import json
import math
from typing import Any

import numpy as np
import pytest

from jobscribe.apps.json_values import MAX_DEPTH, NotPlain, encode


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, 2.5, "é", None, True]}, None),
        ((1, (2,)), [1, [2]]),
        (Colour.RED, 1),
        (2**64 - 1, None),
        ([1, 2.0], None),
        ([], None),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.longdouble(0.5), 0.5),
        (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        (np.array([0.5], "f2"), [0.5]),
        (np.array(0.5), 0.5),
        (np.array([0.5], np.longdouble), [0.5]),
        (np.array([{"a": np.int8(1)}], object), [{"a": 1}]),
        (np.zeros((0, 3)), []),
    ],
)
def test_what_json_can_carry_is_sent(value: Any, plain: Any) -> None:
    assert json.loads(encode(value)) == (value if plain is None else plain)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"plots": [{"points": [1.0, 2.0, 3.0, math.nan]}]}, "plots[0].points[3] is NaN"),
        ({"plots": [{"points": [1, 2.0, math.inf]}]}, "plots[0].points[2] is infinite"),
        ([-math.inf], "[0] is infinite"),
        (math.nan, "the value is NaN"),
        ({"x": {"y": {1, 2}}}, "x.y is a set"),
        (b"", "the value is a bytes"),
        ({"a b": {"c/d": object()}}, "['a b']['c/d'] is an object"),
        ({"a": {1: 2}}, "a has the key 1, which is not text"),
        ([2**64], "[0] is an integer of more than 64 bits"),
        ({"a": ["\ud800"]}, "a[0] is text with half of a surrogate pair"),
        ({"\ud800": 1}, "a key of the value is text with half of a surrogate pair"),
        ({"a": np.array([[1.0, np.nan]])}, "a[0][1] is NaN"),
        ([np.float64("nan")], "[0] is NaN"),
        (np.array([1j]), "the value is an array of complex128"),
        ([np.complex64(1)], "[0] is a complex"),
        ({"when": np.datetime64("2020-01-01")}, "when is a date"),
        ({"f": len}, "f is a builtin_function_or_method"),
    ],
)
def test_what_json_cannot_carry_is_named_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(NotPlain) as e:
        encode(value)
    assert str(e.value) == said


def test_what_contains_itself_is_refused_with_a_short_path() -> None:
    value: dict[str, Any] = {}
    value["a_rather_long_name"] = value
    with pytest.raises(
        NotPlain, match=f"is nested deeper than {MAX_DEPTH}, or contains itself"
    ) as e:
        encode(value)
    assert len(str(e.value)) < 300
