"""Execute a page of docs/ on a real site: run its commands, and search its output and log lines in
the real ones.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docs_parser
import pytest
import supervisor_process
from docs_parser import MORE, Block, Page, Reality

SECS = 20.0
#: Start of the lines that commands print on stderr when they wait for more than two seconds.
PROGRESS = ("waiting for ",)
Logs = dict[Path, list[str]]


class DocsExecutor:
    """Runs the sections of a page, each once and on first use. place: a folder for its shell. logs:
    returns the current log lines by file.

    host: the host name on the page. env: additional environment of the commands. also: further
    paths of the page besides the root, with the real paths.
    """

    def __init__(
        self,
        page: Page,
        place: Path,
        root: Path,
        host: str,
        logs: Callable[[], Logs],
        env: Mapping[str, str] = {},
        also: Mapping[str, str] = {},
    ) -> None:
        self.page, self.reality = page, Reality(page, str(root), host, also)
        self._place, self.logs = place, logs
        self._state = place / "shell"
        self._state.write_text("")
        path = {"PATH": f"{self._tools()}:{os.environ['PATH']}"}
        self._env = (
            {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
            | path
            | dict(env)
        )
        self._marks: dict[Path, int] = {}
        self._done: set[str] = set()
        self._last_second = ""

    def _tools(self) -> Path:
        """Return a folder with the command line tool, as an installation provides it."""
        folder = self._place / "bin"
        folder.mkdir()
        command = folder / "jobscribe"
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(supervisor_process.PYTHON_PATH)} exec {shlex.quote(sys.executable)} -m jobscribe.cli "$@"\n'
        )
        command.chmod(0o755)
        return folder

    # ---- sections

    def section(self, name: str, scene: Callable[[], None] = lambda: None) -> None:
        """Set the scene, then check the content of this section in order."""
        if name in self._done:
            return
        self._done.add(name)
        self._marks = {path: len(lines) for path, lines in self.logs().items()}
        self._last_second = ""
        scene()
        mine = [b for b in self.page.blocks() if b.section == name]
        assert mine, f"the page has no section {name!r} with blocks"
        said: str | None = None
        for block in mine:
            match block.kind:
                case "sh":
                    said = self.execute(block)
                case "text":
                    assert said is not None, f"line {block.line}: nothing was executed before this"
                    self._same(block, said.splitlines())
                case "log":
                    self._find(block)

    # ---- commands

    def execute(self, block: Block, before: str = "", wrap: tuple[str, ...] = ()) -> str:
        """Run the commands and return their output. They share variables, functions and folder with
        earlier commands.
        """
        state = shlex.quote(str(self._state))
        script = "\n".join(
            [
                "set -eu -o pipefail",
                f". {state}",
                before,
                self.reality.text("\n".join(block.lines)),
                f'{{ declare -f; export -p; declare -p front jar jid run 2>/dev/null || true; echo "cd $(pwd)"; }} > {state}',
            ]
        )
        done = subprocess.run(
            [*wrap, "bash", "-c", script],
            cwd=self._place,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (
            f"line {block.line} of the page: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
        told = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
        assert not told, f"line {block.line} of the page: {done.stderr}"
        return done.stdout

    def _same(self, block: Block, real: list[str]) -> None:
        at, skip = 0, False
        for n, example in enumerate(block.lines):
            if example == MORE:
                skip = True
                continue
            found = (
                next(
                    (i for i in range(at, len(real)) if self.reality.matches(example, real[i])),
                    None,
                )
                if skip
                else (at if at < len(real) and self.reality.matches(example, real[at]) else None)
            )
            assert found is not None, (
                f"line {block.line + n} of the page is not there:\n{example}\n--- but\n"
                + "\n".join(real[at:])
            )
            at, skip = found + 1, False
        assert skip or at == len(real), (
            f"the page leaves out, after line {block.line + len(block.lines) - 1}:\n"
            + "\n".join(real[at:])
        )

    # ---- logs

    def _find(self, block: Block) -> None:
        """Check that each line is in its log, and not before the preceding line of the page."""
        for line in block.lines:
            assert docs_parser.stamped(line), f"line {block.line}: not a log line: {line}"
        deadline, most = time.monotonic() + SECS, 0
        while (rest := self._missing(block.lines, self.logs())) is not None:
            most = max(most, len(block.lines) - len(rest))
            if time.monotonic() > deadline:
                logs = "\n".join(
                    line
                    for path, lines in self.logs().items()
                    for line in lines[self._marks.get(path, 0) :]
                )
                pytest.fail(
                    f"line {block.line + most}: this is in no log, at this place:\n{block.lines[most]}\nwith {self.reality.bound}\n"
                    f"--- what is there:\n{logs[-20000:]}"
                )
            time.sleep(0.05)

    def _missing(self, wanted: Sequence[str], logs: Logs) -> Sequence[str] | None:
        """Return the lines from the first missing one on. If none is missing, store the positions
        and return None.

        Several lines may match the first one: late log lines of the previous scene belong to other
        ids than the following lines.
        """
        if not wanted:
            return None
        shortest = wanted
        before = self._marks, self._last_second, self.reality.bound
        for path, lines in logs.items():
            for n in range(before[0].get(path, 0), len(lines)):
                if _second(lines[n]) >= before[1] and self.reality.matches(wanted[0], lines[n]):
                    self._marks, self._last_second = {**before[0], path: n + 1}, _second(lines[n])
                    rest = self._missing(wanted[1:], logs)
                    if rest is None:
                        return None
                    shortest = min(shortest, rest, key=len)
                    self._marks, self._last_second, self.reality.bound = before
        return shortest


def _second(line: str) -> str:
    """Return the time stamp with the month as a number, for comparison."""
    months = {
        m: f"{n:02d}"
        for n, m in enumerate(
            ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
        )
    }
    return months.get(line[:3], "") + line[3:15] if docs_parser.stamped(line) else ""
