"""Compatibility of wheels with a Python on another machine, by the tags in wheel names and in the
metadata of installed packages. Pure.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec
from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

#: Older names of some platforms, by the minimum version of glibc.
_LEGACY = {(2, 5): "manylinux1", (2, 12): "manylinux2010", (2, 17): "manylinux2014"}


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """One interpreter. libc: "glibc 2.36" or "musl 1.2"; "" if unknown."""

    executable: str
    implementation: str
    version: tuple[int, int]
    machine: str
    libc: str = ""

    @property
    def tag(self) -> str:
        """Return `cp311-linux_x86_64, glibc 2.36`, for people."""
        short = "cp" if self.implementation == "cpython" else self.implementation
        return f"{short}{self.version[0]}{self.version[1]}-linux_{self.machine}" + (
            f", {self.libc}" if self.libc else ""
        )


def fits(tag: str, python: Python, ours: Python | None = None) -> bool:
    """Return whether this interpreter can use a package with this tag
    (`cp39-abi3-manylinux_2_17_x86_64`, maybe with parts joined by dots).

    ours: the interpreter where the package was built or installed, if known. A plain `linux` tag
    says nothing about the C library.
    """
    return not parse_tag(tag).isdisjoint(_usable(python, ours))


def best(files: Iterable[str], name: str, python: Python) -> tuple[Version, str] | None:
    """Return the newest matching wheel of this package among these file names with its version, or
    None.
    """
    usable = _usable(python)
    found = []
    for file in files:
        try:
            package, version, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if package == name and not tags.isdisjoint(usable):
            found.append((version, file))
    return max(found, default=None)


def _usable(python: Python, ours: Python | None = None) -> frozenset[Tag]:
    """Return all tags of packages that this interpreter can use."""
    short = f"cp{python.version[0]}{python.version[1]}"
    platforms = list(_platforms(python, ours))
    usable = set(compatible_tags(python.version, short, platforms))
    if python.implementation == "cpython":
        usable.update(cpython_tags(python.version, [short], platforms))
    return frozenset(usable)


def _platforms(python: Python, ours: Python | None) -> Iterator[str]:
    # never an empty list: `packaging` would take the platforms of this machine instead
    yield "any"
    if ours is not None and (ours.machine, ours.libc) == (python.machine, python.libc):
        yield f"linux_{python.machine}"
    found = re.fullmatch(r"(glibc|musl) (\d+)\.(\d+).*", python.libc)
    if found is None:
        return
    name = "manylinux" if found[1] == "glibc" else "musllinux"
    major = int(found[2])
    for minor in range(int(found[3]) + 1):
        yield f"{name}_{major}_{minor}_{python.machine}"
        if found[1] == "glibc" and (major, minor) in _LEGACY:
            yield f"{_LEGACY[major, minor]}_{python.machine}"
