"""Messages between an agent and its keeper: classes whose annotations define their fields, once.
Standard library only: `dataclasses` and `typing` would cost each keeper a megabyte of memory.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar, dataclass_transform

    M = TypeVar("M")
else:

    def dataclass_transform(**_):
        return lambda function: function


@dataclass_transform(kw_only_default=True)
def message(head: dict[str, str], **renamed: str) -> Callable[[type[M]], type[M]]:
    """Return a decorator that gives a class a constructor, with keywords, for its fields.

    head: entries before the fields, which follow in the order of their definition. renamed: names
    on the wire that are not the camel case of the field's name. A field with the default None is
    left out of the message while it is None.
    """

    def decorate(cls: Any) -> Any:
        names = tuple(cls.__annotations__)
        defaults = {name: getattr(cls, name) for name in names if hasattr(cls, name)}

        def init(self: Any, **values: Any) -> None:
            values = defaults | values
            if len(values) != len(names):
                raise TypeError(f"{cls.__name__} has the fields {names}, not {tuple(values)}")
            self.__dict__ = values

        cls.__init__, cls.HEAD = init, head
        cls.FIELDS = [
            (n, renamed.get(n) or _camel_case(n), defaults.get(n, n) is None) for n in names
        ]
        return cls

    return decorate


def encode(of: Any) -> dict[str, Any]:
    """Return a message as a JSON object."""
    out: dict[str, Any] = of.HEAD.copy()
    values = of.__dict__
    for name, wire, optional in of.FIELDS:
        value = values[name]
        if value is not None or not optional:
            out[wire] = value
    return out


def decode(cls: type[M], message: Mapping[str, Any]) -> M:
    """Return a message with unchecked fields. Raises KeyError if one is missing."""
    fields: Any = cls
    return cls(**{name: message[wire] for name, wire, _ in fields.FIELDS})


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
