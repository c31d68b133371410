"""File transfer for the asynchronous client: the synchronous reader in threads of the executor."""

import asyncio
from collections.abc import AsyncIterator

from .file_transfer import FileReader


class AsyncFileReader:
    """An open file. size: of the whole file. length: number of bytes that `pieces` yields."""

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
        """Yield the content.

        Raises ClientError("unreachable") if it is incomplete: the file changed, or the supervisor
        is gone.
        """
        pieces = self._reader.pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def read(self) -> bytes:
        return await asyncio.to_thread(self._reader.read)

    def close(self) -> None:
        self._reader.close()
