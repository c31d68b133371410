"""Converts plain data (from YAML or JSON) to msgspec structs, driven by the types of their fields
and by `protocol.fields.Form`. Pure.

`convert` never raises for any data: it records all errors and returns a struct with defaults for
wrong values, so that later checks find more errors. `Place` tells these checks which fields were
given.
"""

import functools
import operator
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from ..protocol.fields import Form, InvalidForm
from .fields import Findings, element, listed, member, range_text, shown

S = TypeVar("S", bound=msgspec.Struct)

_NOTHING: Any = object()
_FREE = Form()
#: Elements of a list in a message that are examined for errors.
_EXAMINED = 10_000
_ABSENT: set[Any] = {NoneType, msgspec.UnsetType}
_ZEROS: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, tuple: (), dict: {}}
_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def convert(
    type_: type[S],
    data: object,
    findings: Findings,
    path: str = "",
    folder: str = "",
    *,
    wire: bool = False,
) -> S:
    """Return the struct that the data describes; with an error in `findings`, one to check further
    but not to use.

    A key with the value null counts as missing, unless its type has None. A struct as default
    provides the defaults of a partly given struct. Required fields with an error get an empty
    value ("", 0, ()). path: place of the data. folder: start of relative paths.

    wire: the data is a message that msgspec does not accept. As in msgspec, null is a value, texts
    such as `1:30` are not parsed, and a struct decides whether unknown keys are errors. Only the
    errors are of use, not the returned struct.
    """
    out: S = _Conversion(findings, folder, wire).value(_shape(type_), data, path, _NOTHING)
    return out


def shared(source: msgspec.Struct, type_: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the values of the fields that `type_` has, too."""
    return {f: getattr(source, f) for f in source.__struct_fields__ if f in type_.__struct_fields__}


class Place(NamedTuple):
    """One object of the data, for checks after its conversion. path: its place."""

    data: object
    path: str
    findings: Findings

    def given(self, key: str) -> bool:
        return isinstance(self.data, dict) and self.data.get(key) is not None

    def valid(self, key: str) -> bool:
        """Return whether the conversion and earlier checks found no error at this key, or at the
        object for the key "".
        """
        return not self.findings.has_error(member(self.path, key) if key else self.path)

    def within(self, key: str) -> "Place":
        """Return the place of an object."""
        value = self.data.get(key) if isinstance(self.data, dict) else None
        return Place(value, member(self.path, key), self.findings)

    def each(self, key: str) -> "Iterator[Place]":
        """Yield the places of a list's elements or an object's values."""
        value, path, findings = self.within(key)
        if isinstance(value, list | tuple):
            for n, item in enumerate(value):
                yield Place(item, element(path, n), findings)
        elif isinstance(value, dict):
            for name, item in value.items():
                if isinstance(name, str):
                    yield Place(item, member(path, name), findings)

    def error(self, key: str, problem: str, right: str, *, unsafe: bool = False) -> None:
        """Record an error at a key, or at the object for the key ""."""
        path = member(self.path, key) if key else self.path
        self.findings.error(path, problem, right, unsafe=unsafe)


def field_names(type_: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """Return the keys of a struct, each with its aliases."""
    return {name: field.shape.form.aliases for name, field in _fields(type_).items()}


class _Shape(NamedTuple):
    """A type, taken apart. bare: the type without its constraints. none: null is a value. inner:
    the types of elements, of keys and values, or the choices of a union.
    """

    kind: Literal["struct", "list", "dict", "union", "value"]
    type_: Any
    bare: Any
    form: Form
    none: bool
    metas: tuple[msgspec.Meta, ...]
    inner: "tuple[_Shape, ...]" = ()


class _Field(NamedTuple):
    name: str
    shape: _Shape
    default: Callable[[], Any]


@functools.cache
def _fields(type_: type[msgspec.Struct]) -> dict[str, _Field]:
    return {
        f.encode_name: _Field(f.name, _shape(f.type), _default(f))
        for f in msgspec.structs.fields(type_)
    }


def _default(field: msgspec.structs.FieldInfo) -> Callable[[], Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        factory: Callable[[], Any] = field.default_factory
        return factory
    value = _NOTHING if field.required else field.default
    return lambda: value


def _shape(
    type_: Any, metas: tuple[msgspec.Meta, ...] = (), form: Form = _FREE, none: bool = False
) -> _Shape:
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        metas = (*(e for e in args[1:] if isinstance(e, msgspec.Meta)), *metas)
        forms = [e for e in (*args[1:], form) if isinstance(e, Form)]
        return _shape(args[0], metas, functools.reduce(_merged, forms), none)
    if origin in (Union, UnionType) and _ABSENT & set(args):
        rest = tuple(a for a in args if a not in _ABSENT)
        none = none or NoneType in args
        return _shape(functools.reduce(operator.or_, rest), metas, form, none)
    whole = Annotated[type_, *metas] if metas else type_
    if form.read is not None:
        return _Shape("value", whole, type_, form, none, metas)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _Shape("struct", type_, type_, form, none, metas)
    if origin is list or (origin is tuple and args[1:] == (...,)):
        return _Shape("list", whole, origin, form, none, metas, (_shape(args[0]),))
    if origin is dict:
        return _Shape("dict", whole, dict, form, none, metas, (_shape(args[0]), _shape(args[1])))
    if origin in (Union, UnionType):
        choices = tuple(map(_shape, args))
        if any(choice.kind != "value" for choice in choices):
            return _Shape("union", whole, type_, form, none, metas, choices)
    return _Shape("value", whole, type_, form, none, metas)


def _merged(inner: Form, outer: Form) -> Form:
    return inner._replace(**{k: v for k, v in outer._asdict().items() if v})


def _right(shape: _Shape) -> str:
    """Return the expected form."""
    form, bare = shape.form.right, shape.bare
    if shape.kind == "union":
        return form or ", or ".join(map(_right, shape.inner))
    if shape.kind == "struct":
        fields = _fields(shape.type_)
        names = [n for n, f in fields.items() if f.default() is _NOTHING] or list(fields)
        return form or (f"an object with {listed(names)}" if names else "an object")
    if shape.kind in ("list", "dict"):
        what = "a list" if shape.kind == "list" else "an object"
        limits = range_text(shape.metas, "min_length", "max_length")
        return form or (f"{what} of {limits}" if limits else what)
    if get_origin(bare) is Literal:
        return form or f"one of {', '.join(map(str, get_args(bare)))}"
    text = form or _NAMES.get(bare, "another value")
    if bare in (int, float):
        limits = range_text(shape.metas, "ge", "le")
    else:
        limits = range_text(shape.metas, "min_length", "max_length")
        limits += " characters" if limits else ""
    return f"{text}, {limits}" if limits else text


class _Conversion(NamedTuple):
    findings: Findings
    folder: str
    wire: bool

    def struct(
        self,
        type_: type[Any],
        data: object,
        path: str,
        right: str,
        base: Any = None,
    ) -> Any:
        """base: a struct whose values are the defaults."""
        fields: dict[str, _Field] = _fields(type_)  # type: ignore[arg-type]
        table: dict[Any, Any] = data if isinstance(data, dict) else {}
        if isinstance(data, dict):
            self._check_keys(type_, table, path)
        else:
            right = right or _right(_shape(type_))
            self.findings.error(path, f"it is {shown(data)}", right)
        values = {}
        for key, field in fields.items():
            default = field.default() if base is None else getattr(base, field.name)
            value, here = table.get(key), member(path, key)
            if value is not None or (key in table and (self.wire or field.shape.none)):
                values[field.name] = self.value(field.shape, value, here, default)
            elif default is _NOTHING:
                if isinstance(data, dict):
                    self.findings.error(here, "it is missing", _right(field.shape))
                values[field.name] = _zero(field.shape)
            else:
                values[field.name] = default
        return type_(**values)

    def _check_keys(self, type_: type[Any], table: dict[Any, Any], path: str) -> None:
        known = field_names(type_)
        for key in table:
            if not isinstance(key, str):
                self._wrong_key(key, path)
            elif key not in known and not (self.wire and _accepts_unknown(type_)):
                near = self.findings.nearest(key, known)
                right = f"`{near}`" if near else _known_keys(known)
                self.findings.error(member(path, key), "unknown key", right)

    def _wrong_key(self, key: object, path: str) -> None:
        self.findings.error(path, f"a key is {shown(key)}", "keys are texts; put it in quotes")

    def value(self, shape: _Shape, value: Any, path: str, default: Any) -> Any:
        """default: for a wrong value, if there is one."""
        if value is None and shape.none:
            return None
        if self.wire and _fits(value, shape.type_):
            return None if default is _NOTHING else default  # only errors are of interest
        before = self.findings.count
        if shape.kind == "union":
            choice = _choice(shape, value)
            if choice is not None:
                return self.value(choice, value, path, default)
            self._wrong(shape, value, path)
        out = None
        match shape.kind:
            case "struct":
                base = default if isinstance(default, shape.type_) else None
                return self.struct(shape.type_, value, path, shape.form.right, base)
            case "list":
                out = self._list(shape, value, path)
            case "dict":
                out = self._dict(shape, value, path)
            case "value":
                out = self._leaf(shape, value, path)
        parts = shape.inner[-1:] if isinstance(value, list | tuple | dict) else ()
        if self.findings.count == before or (parts and parts[0].kind == "struct"):
            return out
        return _zero(shape) if default is _NOTHING else default

    def _list(self, shape: _Shape, value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple):
            self._wrong(shape, value, path)
            return ()
        (item,) = shape.inner
        if not _length_fits(shape.metas, len(value)):
            self.findings.error(path, f"it has {len(value)} elements", _right(shape))
            return ()
        out: list[Any] = []
        for n, each in enumerate(value[:_EXAMINED] if self.wire else value):
            one = self.value(item, each, element(path, n), _NOTHING)
            if shape.form.unique and one in out:
                self.findings.error(element(path, n), f"{shown(each)} occurs twice", "each once")
            out.append(one)
        return shape.bare(out)

    def _dict(self, shape: _Shape, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            self._wrong(shape, value, path)
            return {}
        keys, values = shape.inner
        if not _length_fits(shape.metas, len(value)):
            self.findings.error(path, f"it has {len(value)} keys", _right(shape))
            return {}
        out = {}
        for key, each in value.items():
            if not isinstance(key, str):
                self._wrong_key(key, path)
                continue
            here = member(path, key)
            if not _fits(key, keys.type_):
                self.findings.error(here, "this is not a valid name", _right(keys))
            out[key] = self.value(values, each, here, _NOTHING)
        return out

    def _leaf(self, shape: _Shape, value: Any, path: str) -> Any:
        form = shape.form
        try:
            out = value if form.read is None or self.wire else form.read(value)
            if form.path:
                if not isinstance(out, str) or not out or "\0" in out:
                    raise InvalidForm
                out = posixpath.join(self.folder, out)
            return msgspec.convert(out, shape.type_)
        except (ValueError, OverflowError) as e:
            if isinstance(e, InvalidForm):
                self._wrong(shape, value, path, str(e), e.right)
            else:
                self._wrong(shape, value, path)
            return None

    def _wrong(self, shape: _Shape, value: Any, path: str, why: str = "", right: str = "") -> None:
        if self.wire and shape.form.read is not None:
            shape = shape._replace(form=_FREE)
        right = right or _right(shape)
        if shape.kind == "value" and shape.form.read is None:
            if shape.bare is str and isinstance(value, int) and not isinstance(value, bool):
                right += f"; put it in quotes: '{value}'"
            elif shape.bare is int and isinstance(value, str) and value.isdecimal():
                right += ", without quotes"
            elif isinstance(value, str) and not _length_fits(shape.metas, len(value)):
                why = f"it has {len(value)} characters"
        self.findings.error(path, why or f"it is {shown(value)}", right)


def _known_keys(known: Iterable[str]) -> str:
    names = list(known)
    return f"the keys here are {listed(names)}" if names else "there are no keys here"


def _zero(shape: _Shape) -> Any:
    """Return an empty value of this type, for a required field with an error."""
    if shape.none:
        return None
    if shape.kind == "struct":
        return _Conversion(Findings(), "", wire=False).struct(shape.type_, {}, "", "")
    if get_origin(shape.bare) is Literal:
        return get_args(shape.bare)[0]
    return _ZEROS.get(get_origin(shape.bare) or shape.bare)


def _choice(shape: _Shape, value: Any) -> _Shape | None:
    """Return the choice of a union for this kind of value."""
    kinds: tuple[str, ...] = ("value",)
    if isinstance(value, dict | list | tuple):
        kinds = ("struct", "dict") if isinstance(value, dict) else ("list",)
    found = next((c for c in shape.inner if c.kind in kinds), None)
    if found is not None and found.kind == "value":
        return found._replace(form=found.form._replace(right=_right(shape)))
    return found


def _accepts_unknown(type_: type[Any]) -> bool:
    return not type_.__struct_config__.forbid_unknown_fields


def _fits(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def _length_fits(metas: Sequence[msgspec.Meta], length: int) -> bool:
    return all(
        (m.min_length is None or length >= m.min_length)
        and (m.max_length is None or length <= m.max_length)
        for m in metas
    )
