"""Many files at once, with progress. A failure of one file does not stop the others."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ..api.errors import ClientError
from ..api.replies import Transfer
from .download import Download
from .remote import Remote
from .upload import Upload

#: Concurrent files.
AT_ONCE = 4
#: Interval of calls of `on_progress`, in seconds.
PROGRESS_SECS = 0.25
#: Codes of errors that concern one file; after any other one nothing else is copied.
_OF_A_FILE = frozenset(
    {"notFound", "forbidden", "conflict", "badRequest", "tooLarge", "quotaExceeded"}
)

#: Called in the thread of the caller with the bytes and the files copied so far.
OnProgress = Callable[[int, int], object]
#: Called in that thread with each result, in order.
OnDone = Callable[[Transfer], object]


class _Stopped(Exception):
    """The caller does not wait for the copies any more."""


class _Moved:
    """Counts copied bytes, in any threads."""

    def __init__(self) -> None:
        self.bytes, self._lock, self.stopped = 0, threading.Lock(), threading.Event()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.bytes += count
        if self.stopped.is_set():
            raise _Stopped


def get_files(
    remote: Remote,
    names: Sequence[str],
    folder: str,
    replace: bool,
    on_progress: OnProgress | None,
    on_done: OnDone | None,
) -> list[Transfer]:
    """Copy files of a run to a folder. Return the results in the order of `names`. Raises
    ClientError if nothing more can be copied.
    """
    moved = _Moved()
    download = Download(remote, folder, moved, replace=replace)
    jobs = [(name, os.path.join(folder, name)) for name in names]
    return _collected(_all(download.copy, jobs, moved, on_progress), on_done)


def put_files(
    remote: Remote,
    files: Mapping[str, str | os.PathLike[str]],
    replace: bool,
    on_progress: OnProgress | None,
    on_done: OnDone | None,
) -> list[Transfer]:
    """Copy local files into a run directory. files: path by the name in the run directory. Return
    the results in this order. Raises ClientError if nothing more can be copied.
    """
    moved = _Moved()
    upload = Upload(remote, moved, replace=replace)
    jobs = [(name, os.fspath(path)) for name, path in files.items()]
    return _collected(_all(upload.copy, jobs, moved, on_progress), on_done)


def _collected(found: Iterator[Transfer], on_done: OnDone | None) -> list[Transfer]:
    copied = []
    for transfer in found:
        copied.append(transfer)
        if on_done is not None:
            on_done(transfer)
    return copied


def _all(
    copy: Callable[[str, str], Transfer],
    jobs: Sequence[tuple[str, str]],
    moved: _Moved,
    on_progress: OnProgress | None,
) -> Iterator[Transfer]:
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy")
    try:
        futures = [pool.submit(_one, copy, name, path) for name, path in jobs]
        for count, future in enumerate(futures):
            while not future.done():
                wait((future,), PROGRESS_SECS)
                if on_progress is not None:
                    on_progress(moved.bytes, count)
            yield future.result()
    finally:
        moved.stopped.set()
        pool.shutdown(cancel_futures=True)


def _one(copy: Callable[[str, str], Transfer], name: str, path: str) -> Transfer:
    try:
        return copy(name, path)
    except ClientError as e:
        if e.code not in _OF_A_FILE:
            raise
        return Transfer(name=name, path=path, code=e.code, error=e.sentence)
    except OSError as e:
        sentence = f"{path}: {e.strerror or e}"
        return Transfer(name=name, path=path, code="badRequest", error=sentence)


async def in_thread(
    copy: Callable[..., list[Transfer]],
    *given: Any,
) -> list[Transfer]:
    """Call `get_files` or `put_files` in a thread. A cancellation ends the copies first."""
    *first, on_progress, on_done = given
    canceled = threading.Event()

    def progress(count: int, files: int) -> None:
        if canceled.is_set():
            raise _Stopped
        if on_progress is not None:
            on_progress(count, files)

    work = asyncio.ensure_future(asyncio.to_thread(copy, *first, progress, on_done))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        canceled.set()
        with contextlib.suppress(_Stopped, ClientError):
            await work
        raise
