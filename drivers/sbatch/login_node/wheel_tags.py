"""Compatibility of wheels with a Python on another machine, by the tags in wheel names and in the
metadata of installed packages. Pure.
"""

import re
from collections.abc import Iterable

import msgspec

_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_MANYLINUX_TAG = re.compile(r"(?:manylinux|musllinux)_(\d+)_(\d+)_(.+)\Z")
_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl\Z"
)


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
    pythons, abis, platforms = (part.split(".") for part in tag.split("-"))
    return any(
        _python_fits(p, a, python) and _platform_fits(platform, python, ours)
        for p in pythons
        for a in abis
        for platform in platforms
    )


def _python_fits(tag: str, abi: str, python: Python) -> bool:
    major, minor = python.version
    short = f"{major}{minor}"
    if tag in (f"py{major}", f"py{short}"):
        return abi == "none"
    if python.implementation != "cpython" or not tag.startswith(f"cp{major}"):
        return False
    if abi == "abi3":
        digits = tag[2 + len(str(major)) :]
        return digits.isdigit() and int(digits) <= minor
    return tag == f"cp{short}" and abi in (f"cp{short}", "none")


def _platform_fits(tag: str, python: Python, ours: Python | None) -> bool:
    if tag == "any":
        return True
    if tag == f"linux_{python.machine}":
        return ours is not None and (ours.machine, ours.libc) == (python.machine, python.libc)
    name = tag.removesuffix(f"_{python.machine}")
    minimum = _MANYLINUX.get(name)
    kind = "glibc"
    if minimum is None:
        match = _MANYLINUX_TAG.match(tag)
        if match is None or match[3] != python.machine:
            return False
        minimum, kind = (
            (int(match[1]), int(match[2])),
            "glibc" if tag.startswith("manylinux") else "musl",
        )
    found, _, version = python.libc.partition(" ")
    return found == kind and _pair(version) >= minimum


def _pair(version: str) -> tuple[int, int]:
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def best(files: Iterable[str], name: str, python: Python) -> str | None:
    """Return the newest matching wheel of this package among these file names, or None."""
    found = []
    for file in files:
        match = _WHEEL.match(file)
        if match is None or match["name"].lower().replace("-", "_") != name:
            continue
        if fits(f"{match['python']}-{match['abi']}-{match['platform']}", python):
            found.append(([int(n) for n in re.findall(r"\d+", match["version"])], file))
    return max(found)[1] if found else None
