"""Lets a person edit a definition in an editor until it has no problem, or until the person stops."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

from ....client.api.errors import ClientError
from ....protocol.errors import Refusal
from ....schema.fields import Problem

#: Begins the lines with the problems of the text before.
_NOTE = "#! "


class Stopped(Exception):
    """The person submits nothing. The text says why."""


def edit(text: str, attempt: Callable[[bytes, str], Sequence[Problem]]) -> None:
    """Edit the text. attempt(content, file): uses it, and returns the problems that prevent that,
    with their lines; then the file is opened again with the problems at its top.

    Raises Stopped, Refusal, and what `attempt` raises. The file is kept if that raises.
    """
    fd, path = tempfile.mkstemp(prefix="jobscribe-clone-", suffix=".yaml")
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)
    shown = text
    keep = False
    try:
        while True:
            _run_editor(path)
            with open(path, "rb") as file:
                raw = file.read()
            content = _without_notes(raw)
            if not any(
                line.strip() and not line.lstrip().startswith(b"#") for line in content.splitlines()
            ):
                raise Stopped("nothing was submitted: the file is empty")
            if raw == shown.encode():
                raise Stopped("nothing was submitted: the file was not changed")
            keep = True
            problems = attempt(content, path)
            keep = False
            if not problems:
                return
            shown = _with_notes(content.decode("utf-8", "replace"), problems)
            with open(path, "w", encoding="utf-8") as f:
                f.write(shown)
    except ClientError as e:
        if keep:
            e.advice = "; ".join(filter(None, [e.advice, f"your text is in {path}"]))
        raise
    finally:
        if not keep:
            os.unlink(path)


def _run_editor(path: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(editor)
        with _interrupts_are_the_editors():
            code = subprocess.run([*words, path], check=False).returncode
    except (OSError, ValueError, IndexError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise Refusal(
            "notHere", f"the editor {editor!a} cannot be started: {reason}; set EDITOR"
        ) from None
    if code:
        raise Stopped(f"nothing was submitted: the editor ended with exit code {code}")


@contextlib.contextmanager
def _interrupts_are_the_editors() -> Iterator[None]:
    """Ignore Ctrl-C and Ctrl-\\ here: the terminal sends them to the editor, too, which decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # the editor gets the default action of signals with a handler, and inherits ignored ones
    before = [(n, signal.signal(n, lambda *_: None)) for n in (signal.SIGINT, signal.SIGQUIT)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _with_notes(text: str, problems: Sequence[Problem]) -> str:
    """Return the text with its problems at the top. Their lines count these lines, too."""
    many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    shift = len(problems) + 1
    notes = [f"{many}; nothing was submitted yet. Save without changes, or an empty file, to stop."]
    for problem in problems:
        line = f"line {problem.line + shift}: " if problem.line is not None else ""
        path = f"{problem.path}: " if problem.path else ""
        notes.append(" ".join(f"{line}{path}{problem.problem}; right: {problem.right}".split()))
    return "".join(f"{_NOTE}{note}\n" for note in notes) + text


def _without_notes(raw: bytes) -> bytes:
    lines = raw.splitlines(keepends=True)
    while lines and lines[0].startswith(_NOTE.strip().encode()):
        del lines[0]
    return b"".join(lines)
