"""`jobscribe debug attach`: Pdb of a stopped process of a job in this terminal.

This end has the line editor, its history and the Ctrl-C; the job has the debugger. A thread reads
messages, so that they arrive while the user types.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.session import Session, command, session
from .breakpoints import place, rank, stops_of
from .message_lines import MessageLines, MessageTooLong

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Seconds of one wait for output, and for the answer to a Tab.
POLL_SECS, COMPLETION_SECS = 10.0, 3.0
OUTPUT_BYTES, HISTORY_LINES = 64 * 1024, 1_000
#: Characters of a line from the user, which a debugger takes, and of one request.
LINE_CHARS, REQUEST_CHARS = 60 * 1024, 32 * 1024
#: Messages that wait for a terminal that does not take them: then nothing more is read.
WAITING_MESSAGES = 4
#: A second Ctrl-C within this time detaches.
TWICE_SECS = 3.0


@command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Let an IDE attach to this port of 127.0.0.1 (0: a free one), for a job with --debug=debugpy.",
)
@click.argument("id_", metavar="ID")
def attach(id_: str, port: int | None) -> None:
    """Debug a stopped process of a job in this terminal, with Pdb. ID is from `debug list`, or a job
    with one stopped process.

    Ctrl-C interrupts a command or the running program, twice it detaches. Ctrl-D at the prompt
    detaches, and the process waits for the next session. 'c' continues the job; 'q' ends it.
    """
    s = session()
    if s.screen.json:
        raise click.UsageError("a debugger is interactive; --json is for 'debug list'")
    stop = _find(s, id_)
    if port is not None:
        from .ide import relay

        relay(s, stop, port)
        return
    client = s.client_for(stop["computeJid"])
    begun = client.debug_attach(stop["computeJid"], stop["id"])
    left = stop["timeLimitLeftSecs"]
    limit = "" if left is None else f"; {max(0.0, left):.0f} s of the job's time limit are left"
    s.screen.message(
        f"[{stop['computeJid']} {stop['role']}/{stop['index']}{rank(stop)}, pid {stop['pid']} on {stop['host']}, {place(stop)};"
        f" continues by itself in {max(0.0, stop['until'] - time.time()):.0f} s{limit}; Ctrl-D detaches]"
    )
    with client.copy(budget_secs=0.0) as writer, client.copy(budget_secs=0.0) as reader:
        Terminal(s, stop, begun["session"], writer, reader).run()


def _find(s: Session, name: str) -> dict[str, Any]:
    """Return the stop with this id, or the only one of this job. Raises Refusal."""
    found = list[dict[str, Any]]()
    with contextlib.suppress(Refusal, ClientError):
        found = stops_of(s, name)
    if len(found) == 1:
        return dict(found[0])
    if found:
        ids = ", ".join(stop["id"] for stop in found[:8])
        raise Refusal("badRequest", f"{len(found)} processes of {name} wait; choose one: {ids}")
    raise Refusal(
        "notFound",
        f"nothing waits for a debugger as {name}; 'jobscribe debug list' shows what does",
    )


class Terminal:
    """One session at this terminal. writer, reader: one client for each thread."""

    def __init__(
        self,
        s: Session,
        stop: dict[str, Any],
        id_: str,
        writer: "Client",
        reader: "Client",
    ) -> None:
        self._s, self._stop, self._id, self._writer, self._reader = s, stop, id_, writer, reader
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue(WAITING_MESSAGES)
        self._completions: queue.Queue[list[str]] = queue.Queue(WAITING_MESSAGES)
        self._over = threading.Event()
        self._interrupted_at = float("-inf")

    def run(self) -> None:
        """Pass messages on until the session is over."""
        threading.Thread(target=self._read, daemon=True).start()
        with _line_editor(self._complete):
            while True:
                try:
                    message = self._messages.get()
                    if not self._show(message):
                        return
                except KeyboardInterrupt:
                    if not self._interrupt():
                        return

    # ---- inside

    def _show(self, message: dict[str, Any]) -> bool:
        """Show a message. Return whether the session goes on."""
        if "out" in message:
            sys.stdout.write(str(message["out"]))
            sys.stdout.flush()
        elif "end" in message:
            self._s.screen.message(f"[{message['end']}]")
            self._close()
            return False
        elif "hello" in message and dict(message["hello"]).get("protocol") == "dap":
            return self._show(
                {
                    "end": f"it waits for an IDE: jobscribe debug attach {self._stop['id']} --port 5678"
                }
            )
        elif "running" in message:
            self._s.screen.message("[the process continues; Ctrl-C interrupts it, twice detaches]")
        elif "prompt" in message:
            return self._ask(str(message["prompt"]))
        return True

    def _ask(self, prompt: str) -> bool:
        while True:
            try:
                line = _line(prompt)
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                continue
            except EOFError:
                self._detach()
                return False
            self._interrupted_at = float("-inf")
            if line is not None and len(json.dumps(line)) <= LINE_CHARS:
                return self._send({"line": line})
            self._s.screen.message(
                f"[the line was not sent: a line has at most {LINE_CHARS // 1024} KiB; put long code into a file and"
                " import it]"
            )

    def _send(self, message: dict[str, Any]) -> bool:
        """Send a message. Return whether the session goes on; a failure is told by the reader."""
        if self._over.is_set():
            return True
        text = json.dumps(message) + "\n"
        with contextlib.suppress(ClientError, Refusal):
            for at in range(0, len(text), REQUEST_CHARS):
                self._writer.debug_io(self._id, text[at : at + REQUEST_CHARS])
        return True

    def _interrupt(self) -> bool:
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_SECS:
            self._detach()
            return False
        self._interrupted_at = now
        return self._send({"interrupt": True})

    def _detach(self) -> None:
        self._close()
        self._s.screen.message("[detached; a stopped process waits for the next session]")

    def _close(self) -> None:
        """Let the supervisor put the end of the session on record now."""
        self._over.set()
        with contextlib.suppress(ClientError, Refusal):
            self._writer.debug_io(self._id, close=True)

    def _complete(self, text: str, line: str, begin: int, end: int) -> list[str]:
        asked = {"text": text, "line": line, "begin": begin, "end": end}
        with contextlib.suppress(queue.Empty):  # an answer that came too late
            while True:
                self._completions.get_nowait()
        self._send({"complete": asked})
        with contextlib.suppress(queue.Empty):
            return self._completions.get(timeout=COMPLETION_SECS)
        return []

    def _read(self) -> None:
        """Put messages into the queue until the session is over."""
        lines = MessageLines()
        while not self._over.is_set():
            try:
                answer = self._reader.debug_io(self._id, limit=OUTPUT_BYTES, wait_secs=POLL_SECS)
            except (ClientError, Refusal) as e:
                again = f"jobscribe debug attach {self._stop['id']}{self._s.supervisor_options()}"
                self._finish(f"{e.sentence}; the job is unharmed: {again}")
                return
            try:
                for message in lines.messages(answer["data"]):
                    self._take(message)
            except MessageTooLong as e:
                self._finish(str(e))
                return
            if answer["end"]:
                self._finish(answer["reason"])
                return

    def _take(self, message: dict[str, Any]) -> None:
        if "completions" not in message:
            self._messages.put(message)
        elif isinstance(message["completions"], list):
            with contextlib.suppress(queue.Full):
                self._completions.put_nowait([str(word) for word in message["completions"]])

    def _finish(self, why: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._messages.put({"end": why})


def _line(prompt: str) -> str | None:
    """Return a line of the user; None for one that is too long. Raises EOFError, KeyboardInterrupt."""
    if sys.stdin.isatty():
        return input(prompt)
    sys.stdout.write(prompt)
    sys.stdout.flush()
    line = sys.stdin.readline(LINE_CHARS)
    if not line:
        raise EOFError
    whole = line.endswith("\n") or len(line) < LINE_CHARS
    while line and not line.endswith("\n"):
        line = sys.stdin.readline(LINE_CHARS)
    return line.rstrip("\n") if whole else None


@contextlib.contextmanager
def _line_editor(complete: Callable[[str, str, int, int], list[str]]) -> Iterator[None]:
    """Give `input` history and completion, at a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import readline

    from ..session.site_credentials import path

    history = os.path.join(os.path.dirname(path()), "debug_history")
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)
    found: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            line = readline.get_line_buffer()
            stripped = len(line) - len(line.lstrip())
            found[:] = complete(
                text,
                line.lstrip(),
                readline.get_begidx() - stripped,
                readline.get_endidx() - stripped,
            )
        return found[state] if state < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n`~!@#$%^&*()=+[{]}\\|;:'\",<>/?")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(history), 0o700, exist_ok=True)
            readline.write_history_file(history)
