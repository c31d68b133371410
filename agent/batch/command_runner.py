"""Running Slurm's commands: never longer than a while, from nowhere in particular, with an
environment in which they say what we read.

A command that does not answer is killed; what it did meanwhile nobody knows, and that is what its
`Ran` says.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from ...runtime.child_processes import close_pipes, signal_group, wait_ended

#: Codes of our own, as `timeout` and shells use them: it did not answer in time; there is no such
#: program here.
NO_ANSWER, NO_PROGRAM = 124, 127
#: So much of an answer is read; of its words on stderr, so much is shown to anybody.
_MOST_BYTES = 64 << 20
_WORDS = 2000
#: So long a command that was killed is waited for.
_GONE_SECS = 1.0
#: What changes how Slurm's commands write, or what they do. A login profile may set these for
#: people.
_NOT_FOR_US = (
    "SQUEUE_",
    "SACCT_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SCANCEL_",
    "SINFO_",
    "SCONTROL_",
    "SACCTMGR_",
    "SLURM_",
)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
#: So that they write numbers, moments and words as the parsers know them.
_SPOKEN = {"LC_ALL": "C", "LANG": "C"}


class Ran(NamedTuple):
    """code: negative where a signal ended it; see also NO_ANSWER and NO_PROGRAM."""

    code: int
    out: str
    err: str

    @property
    def unsure(self) -> bool:
        """Nobody knows what it did: it was ended, or never said."""
        return self.code < 0 or self.code == NO_ANSWER


#: run(argv, stdin, secs)
Run = Callable[[Sequence[str], str, float], Awaitable[Ran]]


def environment(
    login: Mapping[str, str], own: Mapping[str, str], spoken: Mapping[str, str] | None = None
) -> dict[str, str]:
    """For Slurm's commands. login: what the user's profile sets; own: what the cluster's
    description says; both may name the cluster.

    Where neither does, what the session of the sign-in had counts: sshd and PAM set it, too, and a
    clean login shell does not see that.
    """
    session = {k: os.environ[k] for k in _KEPT if k in os.environ}
    theirs = session | {
        k: v for k, v in login.items() if k in _KEPT or not k.startswith(_NOT_FOR_US)
    }
    return {**theirs, **own, **_SPOKEN, **(spoken or {})}


class Commands:
    """env: asked for each time, because the login environment is found out late."""

    def __init__(self, env: Callable[[], Mapping[str, str]]) -> None:
        self._env = env

    async def __call__(self, argv: Sequence[str], stdin: str, secs: float) -> Ran:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                env=dict(self._env()),
                start_new_session=True,
                limit=_MOST_BYTES,
            )
        except OSError as e:
            return Ran(NO_PROGRAM, "", f"{argv[0]} cannot be run: {e.strerror}")
        try:
            async with asyncio.timeout(secs):
                out, err = await process.communicate(stdin.encode("utf-8", "surrogateescape"))
        except TimeoutError:
            await _end(process)
            return Ran(NO_ANSWER, "", f"{_program(argv)} did not answer within {secs:g} s")
        except asyncio.CancelledError:
            await _end(process)
            raise
        assert process.returncode is not None
        return Ran(
            process.returncode,
            out.decode("utf-8", "replace"),
            err.decode("utf-8", "replace")[-_WORDS:],
        )


def _program(argv: Sequence[str]) -> str:
    """Which it is that `env` gives its environment."""
    words = list(argv[1:]) if argv[0] == "env" else []
    while words and (words[0] == "-u" or "=" in words[0]):
        words = words[2 if words[0] == "-u" else 1 :]
    return words[0] if words else argv[0]


async def _end(process: asyncio.subprocess.Process) -> None:
    """It and what it started. Who hangs in a file system dies later."""
    signal_group(process, signal.SIGKILL)
    await wait_ended(process, _GONE_SECS)
    close_pipes(process)
