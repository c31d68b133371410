"""The code that an agent needs on a login node without jobscribe: the agent side of this package,
and the three packages that it uses, unpacked.

The three packages come from this process's own installation if their tags fit the remote Python, or
else from wheels in the operator's folder. Each content is sent once: its digest names the folder
(see agent/login_node/code_unpacker).
"""

import gzip
import hashlib
import io
import os
import platform
import re
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.version import Version

from ....protocol.clusters.cluster import Cluster
from ....protocol.errors import Refusal
from .wheel_tags import Python, best, fits

#: Folders of this package that an agent needs.
OWN = ("agent", "apps", "protocol", "runtime")
#: Minimum versions for an agent, as in setup.py.
NEEDED = {"msgpack": "1.1", "msgspec": "0.20", "tornado": "6.5"}
LEAST_PYTHON = (3, 11)
#: Program for any Python, to print its properties.
PROBE = """
import json, os, platform, sys
libc = ""
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, ValueError, OSError):
    pass
if not libc and any("musl" in name for name in (os.listdir("/lib") if os.path.isdir("/lib") else [])):
    libc = "musl 1.2"
print("\\n%s" % json.dumps({
    "executable": sys.executable, "implementation": platform.python_implementation().lower(),
    "version": list(sys.version_info[:2]),
    "machine": platform.machine(), "libc": libc,
}))
"""
_SOURCE = (".py", ".typed")
_PACKAGE = Path(__file__).resolve().parents[3]


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """An archive to send. sizes: of every file, by path. archive: compressed tar."""

    digest: str
    sizes: dict[str, int]
    archive: bytes


def this_python() -> Python:
    libc = " ".join(platform.libc_ver())
    return Python(
        executable=sys.executable,
        implementation=platform.python_implementation().lower(),
        version=sys.version_info[:2],
        machine=platform.machine(),
        libc=libc.strip(),
    )


def build_code(python: Python, cluster: Cluster) -> Code:
    """Build the archive for this interpreter. Raises Refusal("agentUnavailable") with the missing
    packages. Reads files: call it in a thread.
    """
    files = _own_files()
    missing = []
    for name in NEEDED:
        found = _installed(name, python) or _from_wheels(name, python, cluster.wheels)
        if found is None:
            missing.append(name)
        else:
            files |= found
    if missing:
        where = (
            f"the wheels in {cluster.wheels} do not have"
            if cluster.wheels
            else "the cluster names no folder `wheels` with"
        )
        raise Refusal(
            "agentUnavailable",
            (
                f"cluster {cluster.name}: its Python {python.executable} ({python.tag}) cannot "
                f"use the supervisor's own {', '.join(missing)} ({this_python().tag}), "
                f"and {where} one for it"
            ),
        )
    return _pack(files)


def _own_files() -> dict[str, bytes]:
    """Return the files of this package that an agent needs."""
    package = __name__.split(".")[0]
    out = {
        f"{package}/{f}": (_PACKAGE / f).read_bytes()
        for f in ("__init__.py", "py.typed")
        if (_PACKAGE / f).is_file()
    }
    for folder in OWN:
        for path in sorted((_PACKAGE / folder).rglob("*")):
            if path.suffix in _SOURCE and path.is_file() and "__pycache__" not in path.parts:
                out[f"{package}/{path.relative_to(_PACKAGE).as_posix()}"] = path.read_bytes()
    return out


def _installed(name: str, python: Python) -> dict[str, bytes] | None:
    """Return the files of the installed package, or None if it does not fit."""
    try:
        dist = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    tags = re.findall(r"^Tag: (\S+)$", dist.read_text("WHEEL") or "", re.MULTILINE)
    if not any(fits(tag, python, this_python()) for tag in tags):
        return None
    out = {}
    for file in dist.files or ():
        path = Path(str(dist.locate_file(file)))
        if (
            file.parts[0] == ".."
            or "__pycache__" in file.parts
            or file.suffix == ".pyc"
            or _is_test(file.parts)
            or not path.is_file()
        ):
            continue
        out[file.as_posix()] = path.read_bytes()
    return out or None


def _from_wheels(name: str, python: Python, folder: str | None) -> dict[str, bytes] | None:
    try:
        found = None if folder is None else best(os.listdir(folder), name, python)
        if found is None or found[0] < Version(NEEDED[name]):
            return None
        with zipfile.ZipFile(f"{folder}/{found[1]}") as z:
            return {
                i.filename: z.read(i)
                for i in z.infolist()
                if not i.is_dir() and not _is_test(i.filename.split("/"))
            }
    except (OSError, zipfile.BadZipFile) as e:
        raise Refusal("agentUnavailable", f"cannot read the wheels in {folder}: {e}") from None


def _is_test(parts: Sequence[str]) -> bool:
    return len(parts) > 2 and parts[1] in ("test", "tests")


def _pack(files: dict[str, bytes]) -> Code:
    """Pack the files. The same files always give the same bytes."""
    digest = hashlib.sha256()
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|") as tar,
    ):
        for name in sorted(files):
            digest.update(f"{len(name)} {name} {len(files[name])}\n".encode() + files[name])
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), 0o600
            tar.addfile(info, io.BytesIO(files[name]))
    return Code(
        digest=digest.hexdigest()[:20],
        sizes={n: len(data) for n, data in files.items()},
        archive=out.getvalue(),
    )
