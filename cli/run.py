"""`jobscribe run`: a command as if it ran here: its output as it comes, its exit code as our own."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .session.last_refusal import record_refusal
from .session.session import Session, command, session
from .submission.run_options import run_options, spec_options
from .terminal.output_stream import OutputStreamer, sink_for

if TYPE_CHECKING:
    from ..client.api.replies import RunState
    from ..client.sync_client import Job

FAILED, LEFT, PIPE = 125, 130, 141
#: Between two looks at a run that waits, whose reason may change, and at one that runs.
SOON_SECS, SELDOM_SECS = 2.0, 20.0
_STREAMS = ("stdout", "stderr")


@command(context_settings={"allow_interspersed_args": False})
@run_options
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
def run(words: tuple[str, ...], **options: Any) -> None:
    """Submit a command, follow what it writes, and exit with its code (128+n for signal n, 125 when
    jobscribe itself failed).

    The first Ctrl-C, SIGTERM or SIGHUP cancels the run and waits for its end, the second one leaves
    it to end alone. A signal that is ignored when the command starts (nohup) stays ignored.
    """
    s = session()
    fields = spec_options(**options)
    with _signals():
        try:
            with record_refusal(s):
                job = s.client().run(words, **fields)
        except KeyboardInterrupt:
            s.screen.message(
                f"not answered yet; 'jobscribe job list --active{s.supervisor_options()}' shows whether the run was submitted"
            )
            raise
        assert job.submitted is not None
        if s.screen.json:
            s.screen.record({"type": "submitted", **job.submitted.raw})
        raise SystemExit(_followed(s, job))


class _Stopped(KeyboardInterrupt):
    """A signal that stops the command like Ctrl-C does; its text is the signal's name."""


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the main thread as SIGINT does, where they are not ignored."""

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


def _followed(s: Session, job: "Job") -> int:
    """Follow the run to its end; returns the exit code."""
    gone = threading.Event()

    def failed(error: BaseException) -> None:
        """As in a pipeline whose reader closes early: the writer is ended, and the main thread sees
        its end.
        """
        if isinstance(error, BrokenPipeError) and not gone.is_set():
            gone.set()
            with s.client().copy() as client:
                client.cancel(
                    job.jid, serial=job.serial, reason="the reader of its output went away"
                )

    pumps = [_pump(s, job, stream, failed) for stream in _STREAMS]
    try:
        state = _waited(s, job)
        for pump in pumps:
            pump.join()
    except BrokenPipeError:
        return PIPE
    except KeyboardInterrupt as e:
        state = _canceled(s, job, pumps, str(e) or "Ctrl-C")
    return _ended(s, job, state)


def _pump(s: Session, job: "Job", stream: Any, failed: Any) -> OutputStreamer:
    return OutputStreamer(
        s.client().copy(),
        lambda client: client.logs(job.jid, stream, follow=True),
        sink_for(s.screen, stream),
        failed,
    )


def _waited(s: Session, job: "Job") -> "RunState":
    """Its final state. Says why it waits while it does."""
    begun, step = time.monotonic(), SOON_SECS
    while not (state := job.wait(timeout=step)).finished:
        waits = state.state == "pending" or not state.known
        if waits:
            s.screen.progress(f"{job.jid} {state.sentence()}", time.monotonic() - begun)
        step = SOON_SECS if waits else SELDOM_SECS
    return state


def _canceled(s: Session, job: "Job", pumps: list[OutputStreamer], by: str) -> "RunState":
    s.screen.message(f"canceling {job.jid}; {by} again leaves it to end alone")
    try:
        job.cancel(f"{by} at jobscribe run")
        state = job.wait()
        for pump in pumps:
            pump.join()
    except KeyboardInterrupt:
        s.screen.message(f"left; see: jobscribe job status {job.jid}{s.supervisor_options()}")
        _leave(LEFT)
    return state


def _ended(s: Session, job: "Job", state: "RunState") -> int:
    if s.screen.json:
        s.screen.record({"type": "ended", **state.raw, "exitCode": state.shell_code})
    elif state.state != "completed" or state.shell_code:
        s.screen.message(f"{job.jid} {state.sentence()}")
        s.screen.message(f"  jobscribe job why {job.jid}{s.supervisor_options()}")
    return state.shell_code


def _leave(code: int) -> NoReturn:
    """Exit while threads still write: past the interpreter's shutdown, which would wait for their
    locks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
