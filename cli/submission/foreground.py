"""A run in the foreground: its output and its end, and signals that cancel it."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ...protocol.jobs.status import COMPLETED, PENDING
from ..session.session import Session
from ..terminal.output_stream import OutputStreamer, sink_for

if TYPE_CHECKING:
    from ...client.api.replies import RunState
    from ...client.sync_client import Job

EXIT_INTERRUPTED, EXIT_PIPE = 130, 141
#: Poll interval for a waiting run, whose reason may change, and for a running one.
WAITING_POLL_SECS, RUNNING_POLL_SECS = 2.0, 20.0
_STREAMS = ("stdout", "stderr")


class _Stopped(KeyboardInterrupt):
    """Raised for SIGTERM and SIGHUP. Its text is the signal's name."""


@contextlib.contextmanager
def stopping_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the main thread like SIGINT, unless they are ignored."""

    def stop(number: int, frame: object) -> None:
        raise _Stopped(signal.Signals(number).name)

    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, stop)
        for number in wanted
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(s: Session, job: "Job") -> int:
    """Follow the run to its end and return its exit code."""
    reader_closed = threading.Event()

    def failed(error: BaseException) -> None:
        """Cancel the run if the reader of the output closed it, like SIGPIPE ends a writer. The
        main thread then sees the end of the run.
        """
        if isinstance(error, BrokenPipeError) and not reader_closed.is_set():
            reader_closed.set()
            with s.client().copy() as client:
                client.cancel(
                    job.jid, serial=job.serial, reason="the reader of its output closed it"
                )

    streamers: list[OutputStreamer] = []
    try:
        for stream in _STREAMS:
            streamers.append(_stream(s, job, stream, failed))
        state = _wait(s, job)
        for streamer in streamers:
            streamer.join()
    except BrokenPipeError:
        return EXIT_PIPE
    except KeyboardInterrupt as e:
        state = _cancel(s, job, streamers, str(e) or "Ctrl-C")
    return _report_end(s, job, state)


def _stream(s: Session, job: "Job", stream: Any, failed: Any) -> OutputStreamer:
    return OutputStreamer(
        s.client().copy(),
        lambda client: client.logs(job.jid, stream, follow=True),
        sink_for(s.screen, stream),
        failed,
    )


def _wait(s: Session, job: "Job") -> "RunState":
    """Wait for the final state and return it. Meanwhile show why the run waits."""
    begun, step = time.monotonic(), WAITING_POLL_SECS
    while not (state := job.wait(timeout=step)).finished:
        waiting = state.state == PENDING or not state.known
        if waiting:
            s.screen.progress(f"{job.jid} {state.sentence()}", time.monotonic() - begun)
        step = WAITING_POLL_SECS if waiting else RUNNING_POLL_SECS
    return state


def _cancel(s: Session, job: "Job", streamers: list[OutputStreamer], by: str) -> "RunState":
    if s.interrupted:
        _exit_early(s, job)
    s.interrupted = True
    s.screen.message(f"canceling {job.jid}; {by} again exits without waiting for its end")
    try:
        job.cancel(f"{by} at jobscribe run")
        state = job.wait()
        for streamer in streamers:
            streamer.join()
    except KeyboardInterrupt:
        _exit_early(s, job)
    return state


def _report_end(s: Session, job: "Job", state: "RunState") -> int:
    if s.screen.json:
        s.screen.record({"type": "ended", **state.raw, "exitCode": state.shell_code})
    elif state.state != COMPLETED or state.shell_code:
        if s.private:
            # further advice names commands for a supervisor that ends now
            why = job.why()
            s.screen.message(f"{job.jid} {why['state']}: {why['sentence']}")
            return state.shell_code
        s.screen.message(f"{job.jid} {state.sentence()}")
        s.screen.message(f"  jobscribe job why {job.jid}{s.supervisor_options()}")
    return state.shell_code


def _exit_early(s: Session, job: "Job") -> NoReturn:
    """Exit without the end of the run, and without the interpreter's shutdown, which would wait for
    locks of threads that still write.
    """
    advice = "" if s.private else f"; see: jobscribe job status {job.jid}{s.supervisor_options()}"
    s.screen.message(f"exited before the end of the run{advice}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)
