"""Which wheels a Python on another machine can use: tags, as the names of wheels and the metadata
of installed packages bear them.

Pure functions of what that Python said about itself.
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
    """One interpreter, as it was found. libc: "glibc 2.36" or "musl 1.2"; empty where that is not
    known.
    """

    executable: str
    implementation: str
    version: tuple[int, int]
    machine: str
    libc: str = ""

    @property
    def tag(self) -> str:
        """`cp311-linux_x86_64, glibc 2.36`, for people."""
        short = "cp" if self.implementation == "cpython" else self.implementation
        return f"{short}{self.version[0]}{self.version[1]}-linux_{self.machine}" + (
            f", {self.libc}" if self.libc else ""
        )


def fits(tag: str, python: Python, ours: Python | None = None) -> bool:
    """Can what bears this tag (`cp39-abi3-manylinux_2_17_x86_64`, perhaps with several parts joined
    by dots) be used there?

    ours: the interpreter of the machine it was built or installed on, where that is known: plain
    `linux` says nothing about a C library.
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
    least = _MANYLINUX.get(name)
    kind = "glibc"
    if least is None:
        match = _MANYLINUX_TAG.match(tag)
        if match is None or match[3] != python.machine:
            return False
        least, kind = (
            (int(match[1]), int(match[2])),
            "glibc" if tag.startswith("manylinux") else "musl",
        )
    found, _, version = python.libc.partition(" ")
    return found == kind and _pair(version) >= least


def _pair(version: str) -> tuple[int, int]:
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def best(files: Iterable[str], name: str, python: Python) -> str | None:
    """Of these names of wheels the newest of this package that fits."""
    found = []
    for file in files:
        match = _WHEEL.match(file)
        if match is None or match["name"].lower().replace("-", "_") != name:
            continue
        if fits(f"{match['python']}-{match['abi']}-{match['platform']}", python):
            found.append(([int(n) for n in re.findall(r"\d+", match["version"])], file))
    return max(found)[1] if found else None
