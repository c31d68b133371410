"""Finds all values in an object that cannot be pickled, with path, scope and advice.

It pickles parts of the object and descends into those that fail: containers, functions, and
instances of the user's classes. An instance of a library's class counts as one value, because its
internals say nothing to the user. Shows types and names, never values.
"""

import collections
import dis
import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from ...protocol.redaction import Redactor
from .fixes import fix_for, type_name
from .pickling import TooLarge, load_cloudpickle, pickled_size

Scope = Literal["object", "global", "closure", "default argument", "attribute", "item", "argument"]
#: Limits of one inspection: levels, values, and bytes that are pickled for it.
MAX_DEPTH, MAX_VALUES, MAX_BYTES = 20, 5000, 1024**3
MAX_OFFENDERS = 50
#: Characters of a key in a path, of a path, and of a reason.
_KEY, _PATH, _REASON = 40, 240, 160
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_redactor = Redactor()


class Offender(msgspec.Struct, frozen=True):
    """A value that cannot be pickled. path: as Python reads it. where: the variable that leads to
    it, such as "global of train()"; empty for the object itself.
    """

    path: str
    scope: Scope
    where: str
    type: str
    reason: str
    fix: str

    def sentence(self) -> str:
        place = self.where if self.where.startswith(self.scope) else self.scope
        if place is self.scope and self.where:
            place = f"{self.scope}, {self.where}"
        return f"{self.path} ({place}): {self.type}: {self.reason}; {self.fix}"


class Inspection(msgspec.Struct, frozen=True):
    """complete: False if a limit ended the inspection, so that there may be more offenders."""

    offenders: list[Offender]
    complete: bool = True

    @property
    def ok(self) -> bool:
        return not self.offenders and self.complete


class _Place(NamedTuple):
    path: str
    scope: Scope
    where: str

    def attribute(self, name: str) -> "_Place":
        return _Place(f"{self.path}.{name}", "attribute", self.where)

    def item(self, key: object) -> "_Place":
        return _Place(f"{self.path}[{_key(key)}]", "item", self.where)


_Children = Iterator[tuple[Any, _Place]]


def inspect_serializable(obj: object, name: str = "") -> Inspection:
    """Return all values in `obj` that prevent it from being sent to a job.

    name: of the object in the paths; default: its own name. Runs `__reduce__` and `__getstate__` of
    the objects. Raises ClientError if cloudpickle is missing.
    """
    load_cloudpickle()
    walk = _Walk()
    walk.visit(obj, _Place(name or getattr(obj, "__name__", "obj"), "object", ""), 0)
    return walk.result()


def inspect_call(function: object, value: Any) -> Inspection:
    """Inspect a function and the arguments of its calls. value: (function, [(args, options)])."""
    walk = _Walk()
    walk.visit(function, _Place(getattr(function, "__name__", "function"), "object", ""), 0)
    for number, (args, options) in enumerate(value[1]):
        which = "argument" if len(value[1]) == 1 else f"argument of call {number}"
        for at, each in enumerate(args):
            walk.visit(each, _Place(f"args[{at}]", "argument", which), 0)
        for name, each in options.items():
            walk.visit(each, _Place(name, "argument", which), 0)
    return walk.result()


class _Walk:
    """One inspection. Values are identified by `id`, so they are kept alive."""

    def __init__(self) -> None:
        self._offenders: list[Offender] = []
        self._done: dict[int, bool] = {}
        self._leaves: dict[int, str] = {}
        self._kept: list[object] = []
        self._bytes = MAX_BYTES
        self._complete = True

    def result(self) -> Inspection:
        return Inspection(self._offenders, self._complete)

    def visit(self, value: Any, place: _Place, depth: int) -> bool:
        """Add the offenders in `value`. Return whether there are any, now or from an earlier visit."""
        if isinstance(value, _PLAIN):
            return False
        if id(value) in self._done:
            if reason := self._leaves.get(id(value), ""):
                self._add(value, place, reason)  # it must be changed at each place
            return self._done[id(value)]
        if len(self._kept) >= MAX_VALUES or len(self._offenders) >= MAX_OFFENDERS:
            self._complete = False
            return False
        self._kept.append(value)
        reason = self._reason(value)
        self._done[id(value)] = False  # a cycle adds nothing
        if not reason:
            return False
        found = False
        if depth < MAX_DEPTH:
            for child, at in _children(value, place):
                found = self.visit(child, at, depth + 1) or found
        else:
            self._complete = False
        if not found:
            self._leaves[id(value)] = reason
            self._add(value, place, reason)
        self._done[id(value)] = True
        return True

    def _reason(self, value: object) -> str:
        """Return why the value cannot be pickled; "" if it can."""
        try:
            self._bytes -= pickled_size(value, self._bytes)
        except TooLarge:
            self._complete = False
            return ""
        except Exception as e:
            return _short(f"{e}" or type(e).__name__, _REASON)
        return ""

    def _add(self, value: object, place: _Place, reason: str) -> None:
        """Add an offender. reason: why it cannot be pickled."""
        if len(self._offenders) < MAX_OFFENDERS:
            self._offenders.append(
                Offender(
                    path=_short(place.path, _PATH),
                    scope=place.scope,
                    where=place.where,
                    type=type_name(value),
                    reason=reason,
                    fix=fix_for(value),
                )
            )
        else:
            self._complete = False


def _children(value: Any, place: _Place) -> _Children:
    """Yield the parts of a value of which its pickle consists."""
    match value:
        case types.FunctionType():
            yield from _of_function(value)
        case types.MethodType():
            yield value.__self__, place.attribute("__self__")
            yield value.__func__, place.attribute("__func__")
        case staticmethod() | classmethod():
            yield value.__func__, place
        case functools.partial():
            yield value.func, place.attribute("func")
            yield from _children(list(value.args), place.attribute("args"))
            yield from _children(value.keywords, place.attribute("keywords"))
        case dict():
            for key, each in list(value.items()):
                yield key, _Place(f"{place.path}.keys()", "item", place.where)
                yield each, place.item(key)
        case list() | tuple() | collections.deque():
            for at, each in enumerate(list(value)):
                yield each, place.item(at)
        case set() | frozenset():
            for each in list(value):
                yield each, _Place(f"{place.path}{{...}}", "item", place.where)
        case type() if _is_user_class(value):
            for name, each in list(vars(value).items()):
                if name not in ("__dict__", "__weakref__"):
                    yield each, place.attribute(name)
    if _has_attributes(type(value)):
        for name, each in _attributes(value):
            yield each, place.attribute(name)


def _of_function(function: types.FunctionType) -> _Children:
    """Yield the globals, closure variables and defaults that a function uses."""
    by = f"{function.__name__}()"
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield function.__globals__[name], _Place(name, "global", f"global of {by}")
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield content, _Place(name, "closure", f"closure of {by}")
    arguments = list(inspect.signature(function).parameters.values())
    for argument in arguments:
        if argument.default is not argument.empty:
            yield (
                argument.default,
                _Place(argument.name, "default argument", f"default argument of {by}"),
            )
    for name, each in vars(function).items():
        yield each, _Place(f"{function.__name__}.{name}", "attribute", f"attribute of {by}")


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        i.argval
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _has_attributes(kind: type) -> bool:
    """Return whether instances are pickled by their attributes, and the user knows these."""
    return kind is types.SimpleNamespace or (
        _is_user_class(kind) and not {"__reduce__", "__reduce_ex__"} & _own_names(kind)
    )


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    state = value.__getstate__() if "__getstate__" in _own_names(type(value)) else None
    if isinstance(state, dict):
        yield from ((str(name), each) for name, each in state.items())
        return
    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _own_names(kind: type) -> set[str]:
    return {name for each in kind.__mro__[:-1] for name in vars(each)}


@functools.cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(path for name in names if (path := sysconfig.get_path(name)))


def _is_user_class(kind: type) -> bool:
    """Return whether a class comes neither from the standard library nor from an installed package."""
    top = kind.__module__.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("builtins", "jobscribe"):
        return top == "__main__"
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return not file.startswith(_library_folders())


def _key(key: object) -> str:
    """Return a key as Python reads it, or the name of its type."""
    if isinstance(key, str | int | float | bytes | bool | type(None)):
        return _short(repr(key[: _KEY * 2] if isinstance(key, str | bytes) else key), _KEY)
    return f"<{type_name(key)}>"


def _short(text: str, limit: int) -> str:
    text = _redactor.text(" ".join(text.split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."
