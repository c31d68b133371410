"""Statuses of runs that are over or running, in the memory of the front end.

The status of a run that is over changes only by a durable event of its job (a new run, a purge). Of
a running run, the supervisor says which statuses can be kept (`cacheable`): apart from
`elapsedTime`, which grows with the clock, they change by events, progress reports and the state of
an agent. The supervisor streams the names of all these jobs; a status is kept from the moment it
was asked for until its job is named, and only while the stream works. So an answer is never older
than an earlier one of this process: a broken or silent stream, a change while a status is on its
way, and each request of this front end that changes the job drop what is kept. The caller checks
the user: a computeJid contains the uid.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ...client.api.errors import ClientError
from ...protocol.api.requests import RunStatusRequest

Reply = dict[str, Any]
#: Number of jobs whose statuses are kept.
KEPT = 2_000
#: The supervisor sends a line every second; a stream that is silent for longer than this is broken.
SILENT_SECS = 3.0
#: The same for the status of a running run, which changes more often: it is asked for meanwhile.
LATE_SECS = 1.5
#: A status of a running run is asked for again after this time, because clocks differ.
RUNNING_SECS = 10.0
#: The stream is closed when no status was asked for in this time.
UNUSED_SECS = 60.0
FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 0.2, 10.0
#: Fields of statuses that depend on more than the events of the job.
_VOLATILE = ("batch", "keeper", "signInTo", "srException")


class Stream(Protocol):
    """A response that is read as it arrives."""

    def chunks(self) -> Iterator[bytes]: ...


class _Question:
    """A request for a status that was sent. valid: nothing has changed since. alone: no other one of
    the same job was answered since, possibly with a newer status.
    """

    __slots__ = ("alone", "valid")

    def __init__(self) -> None:
        self.valid = self.alone = True


class _Kept:
    """A status. began: time at which `elapsedTime` was 0, at the latest; None if the run is over.
    until: time at which it must be asked for again.
    """

    __slots__ = ("began", "reply", "until")

    def __init__(self, reply: Reply, now: float) -> None:
        self.reply = reply
        self.began = now - reply["elapsedTime"] if _is_cacheable(reply) else None
        self.until = now + RUNNING_SECS

    def answer(self, now: float, heard: float) -> Reply | None:
        """Return the status at `now`, or None if it is too old, or the stream is late."""
        if self.began is None:
            return self.reply
        if now >= self.until or now - heard >= LATE_SECS:
            return None
        return {**self.reply, "elapsedTime": now - self.began}

    def not_before(self, other: "_Kept") -> None:
        """Answer no smaller `elapsedTime` than `other`, a status of the same run."""
        if self.began is not None and other.began is not None:
            self.began = min(self.began, other.began)


class StatusCache:
    """Safe for threads, and for processes that fork. open_stream: opens the stream of changed jobs;
    raises ClientError.
    """

    def __init__(
        self,
        open_stream: Callable[[float], AbstractContextManager[Stream]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._clock = open_stream, clock
        self._closed = threading.Event()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._kept: OrderedDict[str, dict[tuple[str | None, int], _Kept]] = OrderedDict()
        self._questions: dict[str, set[_Question]] = {}
        self._connected = False
        self._heard = self._used = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def status(self, request: RunStatusRequest, ask: Callable[[], Reply]) -> Reply:
        """Return the status from memory, else that of `ask`. The caller must not change it."""
        if request.compute_job_serial == 0 or request.wait_secs or self._closed.is_set():
            return ask()
        if self._pid != os.getpid():
            self._reset()
        jid, key = request.compute_jid, (request.compute_job_hash, request.compute_job_serial)
        question = _Question()
        with self._lock:
            self._used = now = self._clock()
            if self._works():
                kept = self._kept.get(jid, {}).get(key)
                answer = None if kept is None else kept.answer(now, self._heard)
                if answer is not None:
                    self._kept.move_to_end(jid)
                    return answer
                if kept is not None:
                    del self._kept[jid]
                self._questions.setdefault(jid, set()).add(question)
            else:
                question.valid = False
        reply: Reply | None = None
        try:
            reply = ask()
        finally:
            with self._lock:
                self._forget(jid, question)
                if reply is not None:
                    self._answered(jid, key, reply, question)
        return reply

    def drop(self, jid: str) -> None:
        """Forget the statuses of this job. Call it after each request that may have changed it."""
        with self._lock:
            self._changed(jid)

    def close(self) -> None:
        """Keep nothing from now on, and end the thread."""
        self._closed.set()
        with self._lock:
            self._disconnected()
            thread = self._thread
        if thread is not None:
            thread.join(SILENT_SECS)

    # ---- under the lock

    def _works(self) -> bool:
        return self._connected and self._clock() - self._heard < SILENT_SECS

    def _answered(
        self, jid: str, key: tuple[str | None, int], reply: Reply, question: _Question
    ) -> None:
        """Keep the answer if no other one can be newer. Drop what other questions kept meanwhile,
        unless it is the same: nobody knows which is newer.
        """
        for other in self._questions.get(jid, ()):
            other.alone = False
        kept = self._kept.get(jid, {})
        if any(not _agree(k.reply, reply, same=of == key) for of, k in kept.items()):
            del self._kept[jid]
        elif _is_final(reply) or _is_cacheable(reply):
            self._start()
            alone = question.alone or any(_agree(k.reply, reply, same=True) for k in kept.values())
            self._keep(jid, key, _Kept(reply, self._clock()), valid=question.valid and alone)

    def _keep(self, jid: str, key: tuple[str | None, int], kept: _Kept, *, valid: bool) -> None:
        """Keep the status if it is valid. In any case, no status of the same run that is kept
        answers a smaller `elapsedTime` from now on.
        """
        for (_, serial), other in self._kept.get(jid, {}).items():
            if serial == key[1]:
                other.not_before(kept)
                kept.not_before(other)
        if valid and self._works():
            self._kept.setdefault(jid, {})[key] = kept
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _forget(self, jid: str, question: _Question) -> None:
        questions = self._questions.get(jid)
        if questions is not None:
            questions.discard(question)
            if not questions:
                del self._questions[jid]

    def _changed(self, jid: str) -> None:
        self._kept.pop(jid, None)
        for question in self._questions.get(jid, ()):
            question.valid = False

    def _disconnected(self) -> None:
        self._connected = False
        self._kept.clear()
        for questions in self._questions.values():
            for question in questions:
                question.valid = False

    def _start(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._follow, name="statuses", daemon=True)
            self._thread.start()

    # ---- the thread

    def _follow(self) -> None:
        pause = FIRST_PAUSE_SECS
        while not self._unused():
            try:
                with self._open(SILENT_SECS) as stream:
                    for lines in _lines(stream.chunks()):
                        self._take(lines)
                        pause = FIRST_PAUSE_SECS
                        if self._unused():
                            return
            except ClientError:
                pass  # requests go to the supervisor meanwhile
            with self._lock:
                self._disconnected()
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECS)

    def _unused(self) -> bool:
        """Return whether the thread must end."""
        with self._lock:
            if not self._closed.is_set() and self._clock() - self._used < UNUSED_SECS:
                return False
            self._disconnected()
            self._thread = None
            return True

    def _take(self, names: list[bytes]) -> None:
        with self._lock:
            self._connected, self._heard = True, self._clock()
            for name in names:
                self._changed(name.decode())


def _agree(one: Reply, other: Reply, *, same: bool) -> bool:
    """Return whether two statuses of a job are equally new. same: they answer the same question."""
    if one.get("position") != other.get("position"):
        return False
    return not same or {**one, "elapsedTime": None} == {**other, "elapsedTime": None}


def _is_cacheable(reply: Reply) -> bool:
    return reply.get("cacheable") is True and not reply.get("over")


def _is_final(reply: Reply) -> bool:
    return (
        reply.get("over") is True
        and reply.get("known") is True
        and reply.get("computeJobSerial") is not None
        and not any(reply.get(name) for name in _VOLATILE)
    )


def _lines(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the complete lines of each chunk."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield whole
