"""Run a real supervisor under strace, and read the trace call by call in the order of observation.

Each call has two observed moments: entry (strace held the thread before the kernel acted) and
return (the kernel was done). An answer counts from the entry of its send, a sync from its return.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

#: All calls that change the content of a disk or send data.
TRACED = (
    "open",
    "openat",
    "creat",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev2",
    "lseek",
    "ftruncate",
    "truncate",
    "fallocate",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "sync",
    "syncfs",
    "sendfile",
    "copy_file_range",
    "splice",
    "sendto",
    "sendmsg",
)
_LINE = re.compile(r"(\d+)\s+(.*)")
#: "(deleted)" after the path of a result: the file lost its name meanwhile.
_CALL = re.compile(
    r"(\w+)\((.*)\)\s+= (-?\d+|\?|0x[0-9a-f]+)(<[^>]*>)?(?:\(deleted\))?( .*)?", re.DOTALL
)
_UNFINISHED, _DETACHED, _RESUMED = (
    " <unfinished ...>",
    " <detached ...>",
    re.compile(r"<\.\.\. (\w+) resumed>(.*)", re.DOTALL),
)


class Call(NamedTuple):
    """One system call. began, ended: numbers in one order for all calls; `ended` and `result` are
    None if no return was observed.
    """

    began: int
    ended: int | None
    pid: int
    name: str
    args: tuple[str, ...]
    result: int | None
    #: path of the descriptor that the call returned
    opened: str


def required() -> None:
    """Skip the test if no supervisor can be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not here: sudo apt-get install strace (make engines does it)")
    if os.geteuid() != 0:
        pytest.skip(
            "a supervisor hides its memory, so only root can see what it writes: run this as root"
        )
    tried = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True
    )
    if tried.returncode != 0:
        pytest.skip(
            f"nothing can be traced here ({tried.stderr.strip()[-200:]}): allow ptrace, as with --cap-add SYS_PTRACE for containers"
        )


def write_interpreter(script: Path, options: Sequence[str]) -> None:
    """Write a stand-in for Python that runs under strace. strace is a child of the traced process,
    so that pid and exit code are the supervisor's own.

    `$$` in an option becomes that pid. Without options the script runs plain Python.
    """
    words = " ".join(f'"{o}"' for o in options)
    traced = f"strace -D -f -qq -e signal=none {words} -- " if options else ""
    script.write_text(f"#!/bin/sh\nexec {traced}'{sys.executable}' \"$@\"\n")
    script.chmod(0o700)


def write_recorder(script: Path, trace: Path) -> None:
    """Write an interpreter that records every relevant call with all its data."""
    write_interpreter(
        script,
        [
            "--seccomp-bpf",
            "-y",
            "-xx",
            "-s",
            "100000000",
            "-e",
            "trace=" + ",".join(TRACED),
            "-o",
            str(trace),
        ],
    )


def tracer_of(pid: int) -> int:
    """Return the pid of the strace that traces this process, or 0."""
    found = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def calls(trace: Path, first: int = 0) -> list[Call]:
    """Return the calls observed so far, unordered. first: the number of the first moment."""
    out = [
        c._replace(began=c.began + first, ended=None if c.ended is None else c.ended + first)
        for c in _calls(trace)
    ]
    for number in {c.pid: n for n, c in enumerate(out)}.values():
        out[number] = _whole(out[number])
    return out


def _whole(last: Call) -> Call:
    """Return the last call of a thread, with the result of a whole write if it is a short one. If a
    thread is killed as a call returns, strace may report another value: 6 of 48 bytes were seen,
    and the file had all of them.
    """
    if last.name not in ("write", "pwrite64") or last.result is None or last.result < 0:
        return last
    return last._replace(result=len(data_of(last.args[1])))


def _calls(trace: Path) -> Iterator[Call]:
    open_: dict[int, tuple[int, str]] = {}
    with trace.open(encoding="ascii") as f:
        for number, line in enumerate(f):
            if not line.endswith("\n"):
                break  # strace has not written the rest yet
            found = _LINE.match(line.rstrip("\n"))
            assert found is not None, line[:200]
            pid, text = int(found[1]), found[2]
            # `<... ??? resumed>`: a thread was killed before strace knew its call
            if text.startswith(("+++", "---", "???", "<... ???")):
                continue
            # `_DETACHED` if strace detached before the call ended
            if text.endswith((_UNFINISHED, _DETACHED)):
                open_[pid] = (number, text.removesuffix(_UNFINISHED).removesuffix(_DETACHED))
                continue
            resumed = _RESUMED.match(text)
            began, head = open_.pop(pid) if resumed else (number, "")
            yield _call(began, number, pid, head + resumed[2] if resumed else text)
    for pid, (began, text) in open_.items():
        yield _call(began, None, pid, text + ") = ?")


def _call(began: int, ended: int | None, pid: int, text: str) -> Call:
    # format of a killed thread's last call
    found = _CALL.fullmatch(text.replace(_UNFINISHED + ") = ?", ") = ?"))
    assert found is not None, text[:300] + text[-100:]
    result = None if found[3] == "?" else int(found[3], 0)
    opened = text_of(found[4][1:-1]) if found[4] else ""
    return Call(
        began,
        ended if result is not None else None,
        pid,
        found[1],
        tuple(_arguments(found[2])),
        result,
        opened,
    )


def _arguments(text: str) -> Iterator[str]:
    """Split at commas outside of brackets. All strings are hexadecimal, so no quoting hides a
    comma.
    """
    depth, start = 0, 0
    for at in (m.start() for m in re.finditer(r"[\[\]{},]", text)):
        if text[at] in "[{":
            depth += 1
        elif text[at] in "]}":
            depth -= 1
        elif depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def data_of(argument: str) -> bytes:
    """Return the bytes of a buffer, or of all buffers of a vector."""
    assert not argument.startswith("0x"), f"strace could not read {argument}"
    parts = re.findall(r'"([^"]*)"(\.\.\.)?', argument)
    assert not any(cut for _, cut in parts), "the trace was cut"
    return b"".join(bytes.fromhex(p.replace("\\x", "")) for p, _ in parts)


def text_of(hexadecimal: str) -> str:
    return (
        bytes.fromhex(hexadecimal.replace("\\x", "")).decode("utf-8", "surrogateescape")
        if hexadecimal.startswith("\\x")
        else hexadecimal
    )


def path_of(argument: str) -> str:
    """Return the path that a descriptor (`3</a/b>`) or a string names; "" for a socket, a pipe or a
    deleted file.
    """
    if argument.startswith('"'):
        return data_of(argument).decode("utf-8", "surrogateescape")
    found = re.fullmatch(r"(?:-?\d+|AT_FDCWD)<([^>]*)>(\(deleted\))?", argument)
    if found is None or found[2]:
        return ""
    path = text_of(found[1])
    return path if path.startswith("/") else ""


def number_of(argument: str) -> int:
    """Return a descriptor without its path, or any number."""
    return int(argument.split("<")[0], 0)
