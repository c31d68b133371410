"""The archive file: one folder with plain files, and a manifest of included and missing parts."""

import gzip
import hashlib
import io
import os
import tarfile
import time
from typing import Any

from .parts import Collected, Missing, json_bytes


def manifest(jid: str, version: str, collected: Collected, at: float) -> dict[str, Any]:
    return {
        "schema": "jobscribe.bundle/1",
        "computeJid": jid,
        "version": version,
        "at": at,
        "items": [
            {
                "name": p.name,
                "bytes": len(p.data),
                "sha256": hashlib.sha256(p.data).hexdigest(),
                "about": p.about,
            }
            for p in collected.parts
        ],
        "missing": [m._asdict() for m in collected.missing],
    }


def write(path: str, jid: str, collected: Collected, contents: dict[str, Any]) -> int:
    """Create the file, readable by its owner only, and return its size in bytes. Raises OSError
    (FileExistsError) and leaves no file then.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as raw:
            with (
                gzip.GzipFile(filename="", fileobj=raw, mode="wb") as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                _add(tar, f"{jid}/manifest.json", json_bytes(contents))
                for part in collected.parts:
                    _add(tar, f"{jid}/{part.name}", part.data)
            raw.flush()
            return os.fstat(raw.fileno()).st_size
    except BaseException:
        os.unlink(path)
        raise


def missing_lines(missing: list[Missing]) -> list[str]:
    return [f"missing: {m.name}: {m.why}" for m in missing]


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
    tar.addfile(info, io.BytesIO(data))
