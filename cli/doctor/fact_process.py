"""Starts the child process that reads facts, and waits for each check up to its time limit, so that
a hanging check cannot block the command.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from .check_table import CHECKS
from .findings import Facts, Finding, unreadable

_REPORT_SECS, _EXIT_SECS = 0.5, 1.0


def findings(
    given: Facts, names: Sequence[str], waiting: Callable[[list[str], float], None]
) -> list[Finding]:
    """Return the findings of the checks, in order. waiting: called repeatedly with the unfinished
    checks and the seconds so far.
    """
    facts = _facts(given, names, waiting)
    return [finding for name in names for finding in judged(name, facts[name])]


def judged(name: str, answer: Facts) -> list[Finding]:
    """Return the findings of one check. answer: a JSON line of the child process, or {"error"}."""
    if "error" in answer:
        return [unreadable(name, str(answer["error"]))]
    return [
        Finding(name, f.state, f.sentence, f.means, f.advice)
        for f in CHECKS[name].judge(answer["facts"])
    ]


def _facts(
    given: Facts, names: Sequence[str], waiting: Callable[[list[str], float], None]
) -> dict[str, Facts]:
    begun = time.monotonic()
    facts: dict[str, Facts] = {}
    command, pipe = [sys.executable, "-m", __package__], subprocess.PIPE
    try:
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=_env(), cwd="/"
        )
    except OSError as e:
        return {
            name: {
                "error": f"cannot start a process for the checks: {sys.executable}: {e.strerror}"
            }
            for name in names
        }
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # the child ended before it read
            child.stdin.write(json.dumps({**given, "checks": list(names)}).encode())
            child.stdin.close()
        _gather(child.stdout.fileno(), names, facts, begun, waiting)
    finally:
        child.kill()
        child.stdout.close()
        try:
            child.wait(_EXIT_SECS)
        except subprocess.TimeoutExpired:
            # A process that hangs in the kernel cannot be killed: do not wait for it.
            child.returncode = -9
    for name in names:
        facts.setdefault(name, {"error": f"no result within {CHECKS[name].secs:g} s"})
    return facts


def _gather(
    fd: int,
    names: Sequence[str],
    facts: dict[str, Facts],
    begun: float,
    waiting: Callable[[list[str], float], None],
) -> None:
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            secs = time.monotonic() - begun
            left = [n for n in names if n not in facts and secs < CHECKS[n].secs]
            if not left:
                return
            waiting(left, secs)
            if not selector.select(_REPORT_SECS):
                continue
            data = os.read(fd, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                facts[answer["check"]] = answer


def _env() -> dict[str, str]:
    """Return this environment with a PYTHONPATH that finds this package.

    A checkout with another name is found by the installation alone. Its parent folder is not added,
    because folders in it may have names of standard modules.
    """
    package = os.path.abspath(sys.modules[__package__.partition(".")[0]].__path__[0])
    if os.path.basename(package) != "jobscribe":
        return dict(os.environ)
    paths = (os.environ.get("PYTHONPATH", ""), os.path.dirname(package))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
