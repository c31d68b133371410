"""Inspection: every value that cannot be pickled, with path, scope and advice, and no value shown."""

import dataclasses
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from jobscribe.client.functions import inspect_serializable
from jobscribe.client.functions import inspection as module

POOL = threading.Lock()


class Plain:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@dataclasses.dataclass
class Config:
    name: str
    parts: list[Any]


class Slotted:
    __slots__ = ("lock",)


class Stateful:
    """Leaves its lock out, but not its generator."""

    def __init__(self) -> None:
        self.lock, self.rows = threading.Lock(), (n for n in [])

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def found(obj: object, name: str = "") -> list[tuple[str, str]]:
    return [(o.path, o.scope) for o in inspect_serializable(obj, name).offenders]


def test_values_that_can_be_sent_have_no_offender() -> None:
    for value in (1, {"a": [1, {2}]}, Plain(a=1), abs, lambda: 1, Config("x", [])):
        assert inspect_serializable(value).ok


def test_the_place_is_exact_in_attributes_items_and_dataclasses() -> None:
    cfg = Plain(a={"deep": [1, {"lock": threading.Lock()}]})
    assert found(cfg, "cfg") == [("cfg.a['deep'][1]['lock']", "item")]
    assert found(Config("x", [0, POOL]), "c") == [("c.parts[1]", "item")]
    slotted = Slotted()
    slotted.lock = POOL  # type: ignore[attr-defined]
    assert found(slotted, "s") == [("s.lock", "attribute")]
    assert found(Stateful(), "s") == [("s.rows", "attribute")]


def test_globals_closures_and_defaults_of_functions_are_named() -> None:
    inner, own = threading.Lock(), threading.Lock()

    def train(x: int, lock: Any = own) -> Any:
        def nested() -> Any:
            return POOL

        return nested, inner

    report = inspect_serializable(train).offenders
    assert [(o.path, o.scope, o.where) for o in report] == [
        ("POOL", "global", "global of train()"),
        ("inner", "closure", "closure of train()"),
        ("lock", "default argument", "default argument of train()"),
    ]
    assert all(o.type == "_thread.lock" and "inside the function" in o.fix for o in report)


def helper() -> Any:
    return POOL


def test_a_function_that_a_function_calls_is_inspected_too() -> None:
    (one,) = inspect_serializable(lambda: helper()).offenders
    assert (one.path, one.where) == ("POOL", "global of helper()")
    assert found(functools.partial(helper, x=POOL), "p") == [
        ("POOL", "global"),
        ("p.keywords['x']", "item"),
    ]


def test_internals_of_libraries_are_not_shown() -> None:
    event = threading.Event()  # it holds a condition, which holds a lock
    assert found({"event": event}, "d") == [("d['event']", "item")]


def test_cycles_and_depth_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle: dict[str, Any] = {"lock": threading.Lock()}
    cycle["self"] = cycle
    assert found(cycle, "c") == [("c['lock']", "item")]
    deep: Any = threading.Lock()
    for _ in range(module.MAX_DEPTH + 5):
        deep = [deep]
    report = inspect_serializable(deep, "d")
    assert len(report.offenders) == 1 and not report.complete and not report.ok
    many = inspect_serializable([threading.Lock() for _ in range(module.MAX_OFFENDERS + 5)])
    assert len(many.offenders) == module.MAX_OFFENDERS and not many.complete


def test_no_value_is_shown_and_keys_are_short() -> None:
    class Talks:
        def __reduce__(self) -> Any:
            raise TypeError("the token is jst_abcdefgh_" + "s" * 43)

        def __repr__(self) -> str:
            return "hunter2"

    key = "k" * 500
    report = inspect_serializable(
        {key: Talks(), "x": {"pass": "hunter2", "l": POOL}}, "d"
    ).offenders
    text = " ".join(o.sentence() for o in report)
    assert len(report) == 2 and "hunter2" not in text and "ssssss" not in text
    assert all(len(o.path) < 80 for o in report)
