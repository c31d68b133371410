"""Runner for Slurm's commands: with a time limit, in `/`, and with an environment that makes their
output parseable.

A command without an answer is killed. Its effect is then unknown, and its `CommandResult` says so.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from ...runtime.child_processes import close_pipes, signal_group, wait_ended

#: Exit codes as `timeout` and shells use them: no answer in time; no such program.
NO_ANSWER, NO_PROGRAM = 124, 127
#: Limits of the bytes read from stdout, and of the reported characters of stderr.
_MOST_BYTES = 64 << 20
_WORDS = 2000
#: Time to wait for a killed command (seconds).
_GONE_SECS = 1.0
#: Prefixes of variables that change the behaviour or the output of Slurm's commands. Users set them
#: in login profiles.
_REMOVED_PREFIXES = (
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
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
#: Locale that the parsers expect.
_LOCALE = {"LC_ALL": "C", "LANG": "C"}


class CommandResult(NamedTuple):
    """Result of a command. code: negative for a signal; see also NO_ANSWER and NO_PROGRAM."""

    code: int
    out: str
    err: str

    @property
    def effect_unknown(self) -> bool:
        """Return whether the command's effect is unknown: it was killed or did not answer."""
        return self.code < 0 or self.code == NO_ANSWER


#: run(argv, stdin, secs)
Run = Callable[[Sequence[str], str, float], Awaitable[CommandResult]]


def environment(
    login: Mapping[str, str], own: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for Slurm's commands. login: from the user's profile. own: from the
    cluster's description. Both may name the cluster.

    If neither does, the agent's own session counts: sshd and PAM may name the cluster, and a clean
    login shell does not see that.
    """
    session = {k: os.environ[k] for k in _CLUSTER_VARIABLES if k in os.environ}
    inherited = session | {
        k: v
        for k, v in login.items()
        if k in _CLUSTER_VARIABLES or not k.startswith(_REMOVED_PREFIXES)
    }
    return {**inherited, **own, **_LOCALE, **(overrides or {})}


class Commands:
    """Runs commands. env: called for each command, because the login environment is found late."""

    def __init__(self, env: Callable[[], Mapping[str, str]]) -> None:
        self._env = env

    async def __call__(self, argv: Sequence[str], stdin: str, secs: float) -> CommandResult:
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
            return CommandResult(NO_PROGRAM, "", f"cannot run {argv[0]}: {e.strerror}")
        try:
            async with asyncio.timeout(secs):
                out, err = await process.communicate(stdin.encode("utf-8", "surrogateescape"))
        except TimeoutError:
            await _end(process)
            return CommandResult(
                NO_ANSWER, "", f"{_program(argv)} did not answer within {secs:g} s"
            )
        except asyncio.CancelledError:
            await _end(process)
            raise
        assert process.returncode is not None
        return CommandResult(
            process.returncode,
            out.decode("utf-8", "replace"),
            err.decode("utf-8", "replace")[-_WORDS:],
        )


def _program(argv: Sequence[str]) -> str:
    """Return the program that `env` starts."""
    words = list(argv[1:]) if argv[0] == "env" else []
    while words and (words[0] == "-u" or "=" in words[0]):
        words = words[2 if words[0] == "-u" else 1 :]
    return words[0] if words else argv[0]


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the command and its children. A process that hangs in a file system dies later."""
    signal_group(process, signal.SIGKILL)
    await wait_ended(process, _GONE_SECS)
    close_pipes(process)
