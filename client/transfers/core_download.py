"""One core file of a task to a local file, which only its owner may read. An interrupted copy
continues; a complete one is compared with the digest of its collection.
"""

import os
from collections.abc import Callable

from ...protocol.api.requests import JobCore
from ...protocol.jobs.core_report import CoreFile
from ..api import requests
from ..api.errors import ClientError, refused
from ..api.replies import Transfer
from ..transport.connection import Connection
from . import local_files
from .local_files import PartFile


def get_core(
    connection: Connection,
    request: JobCore,
    file: CoreFile,
    path: str,
    *,
    replace: bool,
    on_progress: Callable[[int], object] | None,
) -> Transfer:
    """Copy the core of the request to `path`. Raises ClientError, OSError, and any exception of
    `on_progress`, which is called with the bytes that are here.
    """
    folder, leaf = os.path.split(os.path.abspath(path))
    with local_files.folder(folder, ()) as parent:
        if not replace and local_files.exists(parent, leaf):
            return _existing(parent, leaf, file, path)
        part = PartFile(parent, leaf)
        try:
            os.fchmod(part.fd, 0o600)
            _fill(connection, request, file, part, on_progress)
            part.publish(replace=replace)
        except FileExistsError:
            raise _taken(path) from None
        except BaseException:
            part.remove_if_empty()
            raise
        finally:
            part.close()
    return Transfer(name=file.name, path=path, size=file.size, note=_doubt(file))


def _fill(
    connection: Connection,
    request: JobCore,
    file: CoreFile,
    part: PartFile,
    on_progress: Callable[[int], object] | None,
) -> None:
    """Copy what is missing, and compare. A part of another file begins anew, once."""
    for last in (False, True):
        at = min(part.size, file.size)
        while at < file.size:
            data = _piece(connection, request, at)
            if not data:
                raise refused("conflict", f"{file.name} became shorter during the copy")
            part.write(data, at)
            at += len(data)
            if on_progress is not None:
                on_progress(at)
        part.truncate(file.size)
        if file.sha256 in (None, local_files.digest(part.fd, 0, file.size)):
            return
        part.truncate(0)
        if last:
            raise refused(
                "conflict",
                f"{file.name} is not the file that was collected: its SHA-256 differs; nothing was kept",
            )


def _piece(connection: Connection, request: JobCore, at: int) -> bytes:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return connection.call(requests.job_core(JobCore(**{**fields, "offset": at}))).body


def _existing(parent: int, leaf: str, file: CoreFile, path: str) -> Transfer:
    with local_files.opened(leaf, parent) as fd:
        same = local_files.size(fd) == file.size
        if same and file.sha256 == local_files.digest(fd, 0, file.size):
            return Transfer(name=file.name, path=path, size=file.size, note="it is here already")
    raise _taken(path)


def _doubt(file: CoreFile) -> str:
    return "" if file.sha256 else "its collection had no time for a SHA-256: not compared"


def _taken(path: str) -> ClientError:
    return refused("conflict", f"{path} exists; --force replaces it (in Python: `replace`)")
