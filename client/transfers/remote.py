"""The run directory of one job, as a supervisor shows it. Any threads may use one `Remote`."""

from collections.abc import Iterable
from typing import Any

import msgspec

from ...protocol.api.requests import PutRunFile, RunFile, RunFileDigest, RunFilePart
from ...runtime.struct_types import resolve
from ..api import requests
from ..transport.connection import Connection, FileReader
from .blocks import Found

#: Longest silence of a supervisor during a transfer; bytes per second that an
#: agent checks at its end, at least.
IDLE_SECS, CHECKED_PER_SEC = 60.0, 20e6


class Remote:
    """serial: 0 for the current run. replace, active: see `PutRunFile`."""

    def __init__(
        self,
        connection: Connection,
        uid: str,
        jid: str,
        serial: int = 0,
        *,
        replace: bool = False,
        active: bool = False,
    ) -> None:
        self._connection = connection
        self._run: dict[str, Any] = {
            "uid": uid,
            "compute_jid": jid,
            "compute_job_serial": serial,
        }
        self._replace, self._active = replace, active

    def open(self, name: str, offset: int) -> FileReader:
        """Open a file from this byte on. The caller closes it. Raises ClientError."""
        request = RunFile(
            **self._run,
            name=name,
            offset=offset,
        )
        return FileReader(self._connection.download(requests.run_file(request), IDLE_SECS))

    def digest(self, name: str, offset: int, length: int) -> Found:
        """Return the digest of a block. Raises ClientError."""
        request = RunFileDigest(
            **self._run,
            name=name,
            offset=offset,
            length=length,
        )
        body = self._connection.call(requests.run_file_digest(request)).body
        resolve(Found)
        return msgspec.convert(requests.object_of(body), Found)

    def received(self, name: str, sha256: str, size: int) -> int:
        """Return the bytes that an interrupted upload of this content has stored."""
        request = RunFilePart(
            **self._run,
            name=name,
            sha256=sha256,
            size=size,
            active=self._active,
        )
        found: int = requests.object_of(
            self._connection.call(requests.run_file_part(request)).body
        )["received"]
        return found

    def put(self, name: str, sha256: str, size: int, offset: int, pieces: Iterable[bytes]) -> None:
        """Send the rest of a file. Not retried. Raises ClientError, and any exception of `pieces`."""
        request = PutRunFile(
            **self._run,
            name=name,
            sha256=sha256,
            size=size,
            offset=offset,
            replace=self._replace,
            active=self._active,
        )
        path = requests.put_run_file(request)
        self._connection.upload(path, pieces, size - offset, IDLE_SECS + size / CHECKED_PER_SEC)
