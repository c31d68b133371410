"""One warm worker as its executor sees it: the calls that it has, and the files of its run."""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from ..api.errors import ClientError
from ..api.replies import GroupRun
from . import runner
from .future import FunctionFuture
from .outcomes import TASK_DIR
from .worker import call_files

#: Calls that a worker has at a time: at first, and at most.
FIRST_CALLS, MOST_CALLS = 4, 4096
#: A worker with a call that waits longer than this gets fewer calls.
_LONG_SECS = 1.0


class Files(Protocol):
    """The requests for files of a run; `Client` has them."""

    def open_file(self, jid: str, name: str, *, serial: int = 0, offset: int = 0) -> Any: ...
    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None: ...


class WarmCall(msgspec.Struct, eq=False):
    """A call that has no outcome. number and batch: in its worker. pin: calls with one pin share a worker.
    stored: it is durable there.
    """

    function: bytes
    digest: str
    arguments: bytes
    future: FunctionFuture[Any]
    retries: int
    pin: str | None = None
    number: int = 0
    batch: int = 0
    stored: bool = False
    sent_at: float = 0.0


class WarmWorker:
    """A worker run. `ready` when its program runs; `over` when its run is."""

    def __init__(self, files: Files, jid: str, serial: int) -> None:
        self.jid, self.serial = jid, serial
        self.ready = self.over = False
        #: how the run ended; numbers of calls whose cancel was sent
        self.end: GroupRun | None = None
        self.asked: set[int] = set()
        #: calls that were sent, by number, in this order
        self.calls: dict[int, WarmCall] = {}
        self.limit = FIRST_CALLS
        self.stored = self.granted = self.settled = 0
        self._files = files
        self._offset, self._folder = 0, ""
        self._batch, self._number = 1, 0
        self._known: set[str] = set()
        self._unsent: bytes | None = None

    # ---- to the worker

    def add(self, calls: Iterable[WarmCall], now: float) -> None:
        """Send a batch of calls. Raises ClientError; `resend` continues after it."""
        functions: dict[str, bytes] = {}
        rows, parts = [], list[bytes]()
        for call in calls:
            self._number += 1
            call.number, call.sent_at, call.batch = self._number, now, self._batch
            future = call.future
            future.jid, future.serial, future.call = self.jid, self.serial, self._number
            if call.digest not in self._known:
                functions[call.digest] = call.function
                self._known.add(call.digest)
            rows.append([call.number, call.digest, len(call.arguments)])
            parts.append(call.arguments)
            self.calls[call.number] = call
        sizes = [[digest, len(data)] for digest, data in functions.items()]
        body = b"".join([*functions.values(), *parts])
        self._send({"functions": sizes, "calls": rows}, body)

    def refused(self, batch: int) -> list[WarmCall]:
        """Return the calls of a batch that the worker could not read, and give them up."""
        self._known.clear()  # the batch may have had functions
        found = [call for call in self.calls.values() if call.batch == batch]
        for call in found:
            del self.calls[call.number]
        return found

    def cancel(self, numbers: list[int]) -> None:
        """Ask the worker to cancel calls that have not begun. Raises ClientError."""
        self._send({"cancel": numbers}, b"")

    def finish(self) -> None:
        """Let the worker end when it has no calls. Raises ClientError."""
        self._send({"end": True}, b"")

    def resend(self) -> None:
        """Repeat a request that failed, if there is one. Raises ClientError."""
        if self._unsent is None:
            return
        name = f"{self._folder}{call_files.INBOX}/{call_files.batch_name(self._batch)}"
        try:
            self._files.put_data(self.jid, name, self._unsent, serial=self.serial, active=True)
        except ClientError as e:
            # an earlier attempt stored it, and its answer was lost
            if e.code != "conflict" or "exists" not in e.sentence:
                raise
        self._unsent = None
        self._batch += 1

    def _send(self, header: dict[str, Any], body: bytes) -> None:
        self.resend()
        self._unsent = runner.pack(header, body)
        self.resend()

    # ---- from the worker

    def read(self) -> list[call_files.Frame]:
        """Return the frames since the last time. Raises ClientError, ValueError (damaged)."""
        data = self._read(call_files.OUTCOMES, self._offset)
        frames, size = call_files.parse(data, over=self.over)
        self._offset += size
        for header, _ in frames:
            match header["kind"]:
                case "ready":
                    self.ready = True
                case "accepted":
                    self._note_stored(header["last"])
                case "grant":
                    self.granted = header["to"]
        return frames

    def _note_stored(self, last: int) -> None:
        self.stored = last
        for number, call in self.calls.items():
            if number > last:
                break
            call.stored = True

    def may_have_begun(self, call: int, *, exit_known: bool) -> bool:
        """Return whether a call without an outcome may have run. The run must be over.

        exit_known: its machine went on, so that all files have their newest content.
        """
        if not exit_known:
            return call <= self.granted
        number, _ = call_files.read_begun(self._read(call_files.BEGUN, 0))
        return call == number

    def adapt(self, settled: int, now: float) -> None:
        """Choose how many calls the worker has at a time, by the outcomes of one look."""
        oldest = next(iter(self.calls.values()), None)
        if settled and (oldest is None or len(self.calls) < self.limit // 2):
            self.limit = min(self.limit * 2, MOST_CALLS)
        elif oldest is not None and now - oldest.sent_at > _LONG_SECS:
            self.limit = max(FIRST_CALLS // 2, self.limit // 2)

    def _read(self, name: str, offset: int) -> bytes:
        for folder in {self._folder: 0, "": 0, f"{TASK_DIR}/": 0}:
            try:
                with self._files.open_file(
                    self.jid, folder + name, serial=self.serial, offset=offset
                ) as file:
                    data: bytes = file.read()
            except ClientError as e:
                if e.code not in ("notFound", "notReady"):
                    raise
            else:
                self._folder = folder
                return data
        return b""
