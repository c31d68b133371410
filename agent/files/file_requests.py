"""Answers to requests for files of a user. Everything here blocks; `process` calls it in a thread."""

from typing import assert_never

from ...protocol.wire.messages import (
    DigestFile,
    FileChunk,
    FileDigest,
    FileList,
    KeepFile,
    ListFiles,
    ReadFile,
    StoreFile,
)
from . import library_copies, run_dir_listing, run_dir_writes, run_directory

FileRequest = ReadFile | ListFiles | KeepFile | DigestFile | StoreFile


def answer(op: FileRequest) -> FileChunk | FileDigest | FileList:
    """Return the answer. Raises Refusal."""
    match op:
        case ListFiles():
            return run_dir_listing.list_files(op)
        case DigestFile():
            return run_directory.digest(op)
        case ReadFile():
            piece = run_directory.read(op.run_dir, op.name, op.offset, op.limit)
        case StoreFile():
            piece = run_dir_writes.store(op)
        case KeepFile():
            piece = library_copies.store_piece(
                op.lib_dir, op.name, op.offset, op.data, op.size, op.mtime_ns
            )
        case _:
            assert_never(op)
    return FileChunk(op_id=op.op_id, data=piece.data, size=piece.size, mtime_ns=piece.mtime_ns)
