"""Checks of a login node for problems that would keep jobs from working: folders, free space, clock,
Slurm commands. Each check tries the real operation.

Standard library only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time

from .code_unpacker import ensure_private_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol")
#: Clock difference (seconds) above which times of jobs are misleading.
_CLOCK_SECS = 5.0
#: Longest transit time of the request (seconds).
_WAY_SECS = 10.0
_LEAST_BYTES, _LEAST_FILES = 100 << 20, 1000
_TRIED_BYTES = 1 << 16
_SCRIPT = b"#!/bin/sh\nexit 0\n"


def check(request: dict[str, Any]) -> dict[str, Any]:
    environment = {**os.environ, **request.get("environment", {})}
    secs = float(request.get("secs", 20.0))
    found: list[tuple[str, list[str]]] = [
        ("folder", list(_folder(request["base"]))),
        ("user directories", list(_user_root(request.get("userRoot")))),
        ("clock", list(_clock(request.get("now")))),
        *_slurm(environment, request.get("options", []), secs),
    ]
    return {
        "sentences": [sentence for _, sentences in found for sentence in sentences],
        "found": found,
    }


def _folder(base: str) -> Iterator[str]:
    try:
        ensure_private_folder(base)
        _try_to_write(base)
        room = os.statvfs(base)
    except ValueError as e:
        yield str(e)
        return
    except OSError as e:
        yield f"cannot write to {base}: {e.strerror}"
        return
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_BYTES:
        yield f"only {free >> 20} MiB are free below {base}"
    if room.f_files and room.f_favail < _LEAST_FILES:
        yield f"only {room.f_favail} more files can be created below {base}"


def _user_root(path: str | None) -> Iterator[str]:
    """Check the folder that contains users' run directories, if it is not below `base`."""
    if path is None:
        return
    try:
        if not os.path.isdir(path):
            yield f"user_root {path} is not a folder on this machine: does it see the file system of the supervisor?"
        elif not os.access(path, os.W_OK | os.X_OK):
            yield f"{pwd.getpwuid(os.geteuid()).pw_name} may not write to user_root {path}"
    except OSError as e:
        yield f"cannot access user_root {path}: {e.strerror}"


def _try_to_write(folder: str) -> None:
    """Write a file: only that reveals an exceeded quota."""
    path = f"{folder}/.tried.{os.uname().nodename}.{os.getpid()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"\0" * _TRIED_BYTES)
        os.fsync(fd)
    finally:
        os.close(fd)
        os.unlink(path)


def _clock(now: float | None) -> Iterator[str]:
    ahead = 0.0 if now is None else time.time() - now
    if not -_CLOCK_SECS <= ahead <= _CLOCK_SECS + _WAY_SECS:
        yield f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the supervisor's"


def _slurm(
    environment: dict[str, str], options: list[str], secs: float
) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with its problems."""
    absent = [c for c in COMMANDS if shutil.which(c, path=environment.get("PATH")) is None]
    where = f"cannot be found in the PATH of a login shell ({environment.get('PATH', '')})"
    yield "commands of Slurm", [f"{', '.join(absent)} {where}"] if absent else []
    user = pwd.getpwuid(os.geteuid()).pw_name
    asked = {
        "sinfo": (
            ["sinfo", "-h", "-o", "%P"],
            "Slurm's controller does not list its partitions",
        ),
        "squeue": (
            ["squeue", "-h", "-u", user, "-o", "%i"],
            "Slurm's controller does not list jobs",
        ),
        "sacct": (
            ["sacct", "-n", "-X", "-u", user, "-S", "now-1hours", "-o", "jobid"],
            "Slurm's accounting does not answer",
        ),
        "sbatch": (
            ["sbatch", "--test-only", *options],
            "Slurm would refuse a job with the defaults of this cluster",
        ),
    }
    for command, (argv, sentence) in asked.items():
        if command not in absent:
            words = _failure_of(argv, environment, secs)
            yield command, [] if words is None else [f"{sentence}: {words}"]


def _failure_of(argv: list[str], environment: dict[str, str], secs: float) -> str | None:
    """Run a command; return its error output if it fails, otherwise None."""
    try:
        ran = subprocess.run(
            argv,
            input=_SCRIPT,
            capture_output=True,
            timeout=secs,
            env=environment,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{argv[0]} did not answer within {secs:g} s"
    except OSError as e:
        return f"{argv[0]} cannot be run: {e.strerror}"
    if ran.returncode == 0:
        return None
    lines = (ran.stderr or ran.stdout).decode("utf-8", "replace").split("\n")
    return (
        " ".join(line.strip() for line in lines if line.strip())[:500]
        or f"exit code {ran.returncode}"
    )
