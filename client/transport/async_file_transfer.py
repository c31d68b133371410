"""A file of a run directory for the asynchronous client: the plain client's reader, used in threads
of the loop's executor.
"""

import asyncio
from collections.abc import AsyncIterator

from .file_transfer import FileReader


class AsyncFileReader:
    """A file that is being read. size: of the whole file; length: bytes that `pieces` gives, or
    fails.
    """

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self.size, self.length, self.etag, self.last_modified = (
            reader.size,
            reader.length,
            reader.etag,
            reader.last_modified,
        )

    async def __aenter__(self) -> "AsyncFileReader":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All of it. Raises ClientError("unreachable") where it breaks off: the file changed, or
        the supervisor is gone.
        """
        pieces = self._reader.pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._reader.read)

    def close(self) -> None:
        self._reader.close()
