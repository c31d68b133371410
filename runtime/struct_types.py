"""Resolution of struct types before threads use them.

msgspec resolves the annotations of a struct when it first decodes one. If another thread decodes
the same type meanwhile, it uses an unfinished table, and the process dies of SIGSEGV (seen with
msgspec 0.22 and Python 3.11). Processes with threads therefore resolve their types at the start.
"""

import threading
from collections.abc import Iterator
from typing import Any

import msgspec

_PACKAGE = __name__.partition(".")[0]

_lock = threading.Lock()
_resolved: set[Any] = set()


def resolve(type_: Any) -> None:
    """Resolve the annotations of this type, and those of its fields' types. Raises TypeError if it
    cannot be decoded.
    """
    if type_ in _resolved:
        return
    with _lock:
        msgspec.json.Decoder(type_)
        _resolved.add(type_)


def resolve_all() -> None:
    """Resolve all types of this package that are loaded and can be decoded. It takes about 40 us
    per type.
    """
    for type_ in _subclasses(msgspec.Struct):
        if type_.__module__.partition(".")[0] == _PACKAGE:
            try:
                resolve(type_)
            except TypeError:  # it has a field that cannot be decoded, so nothing decodes it
                continue


def _subclasses(type_: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in type.__subclasses__(type_):
        yield subclass
        yield from _subclasses(subclass)
