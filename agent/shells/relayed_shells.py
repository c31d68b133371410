"""Shells in executions on this machine, or through the batch scheduler on their nodes.

The script of an execution starts the shell, in the directory and environment of its command. The
shell is a child of the agent, beside the execution: it ends with the agent, and no execution ends
with it. The programs for stacks and profiles start in the same way, without the script.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import Token, execution_log_ids
from ...protocol.wire.messages import OpenShell, ShellIo, ShellOutput
from ...runtime.execution.folder import SCRIPT
from ...runtime.inspection.command_line import command_line
from ...runtime.log.logger import Log
from ...runtime.shells.session import ShellSession, ShellTable
from ..files.output_reader import Evidence
from .pty_process import PtyProcess

#: A keeper writes the script of a run that takes longer within this time (seconds).
_SCRIPT_SECS = 1.0
#: Variables that the shell gets besides those of the execution.
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER")
#: Returns the command that enters this node of an execution ("": its first one; nothing on this
#: machine), and the environment for that command. Raises Refusal if the execution cannot be entered
#: now.
Enter = Callable[[Token, str], tuple[list[str], Mapping[str, str]]]


def enter_here(token: Token, node: str) -> tuple[list[str], Mapping[str, str]]:
    """Enter an execution on this machine, its only node."""
    return [], {}


class Shells:
    """The shells of this agent."""

    def __init__(self, evidence: Evidence, log: Log, enter: Enter = enter_here) -> None:
        self._evidence, self._log, self._enter = evidence, log, enter
        self._table = ShellTable(self._start)

    async def answer(self, op: OpenShell | ShellIo) -> ShellOutput:
        """Raises Refusal."""
        if isinstance(op, OpenShell):
            return await self._table.open(op)
        return await self._table.io(op)

    def close(self) -> None:
        self._table.close()

    async def _start(self, op: OpenShell, session: ShellSession) -> PtyProcess:
        if isinstance(op.program, msgspec.UnsetType):
            argv, env = await _entered_script(self._evidence, op.token, self._enter)
        else:
            if op.program.name == "ssh":
                raise Refusal("notHere", "only a task in a container of its own has an sshd")
            prefix, env = self._enter(op.token, op.program.node or "")
            argv = [*prefix, *command_line(op.program, op.token, here=not prefix)]
        own = {k: os.environ[k] for k in _INHERITED if k in os.environ}
        try:
            process = await PtyProcess.spawn(
                argv, {**own, **env, "TERM": op.term}, op.rows, op.cols, session
            )
        except OSError as e:
            raise Refusal("agentUnavailable", f"cannot start a shell: {e.strerror}") from None
        what = "shell" if isinstance(op.program, msgspec.UnsetType) else op.program.name
        self._log.bound(**execution_log_ids(op.token))("{} {} starts", what, op.shell_id[:4])
        return process


async def _entered_script(
    evidence: Evidence, token: Token, enter: Enter
) -> tuple[list[str], Mapping[str, str]]:
    """Return the command that runs the script of an execution where the execution is, and the
    environment for it. Raises Refusal.
    """
    prefix, env = enter(token, "")
    script = evidence.path(token.name, SCRIPT)
    for _ in range(20):
        if script.exists():
            break
        await asyncio.sleep(_SCRIPT_SECS / 20)
    if not script.exists():
        raise Refusal(
            "notHere",
            f"the task cannot be entered: it has not started yet, succeeded at once, or its files were removed ({script})",
        )
    return [*prefix, "/bin/sh", str(script), "--shell"], env
