"""A shell of a task on another machine, through the supervisor and the task's agent."""

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ...protocol.errors import Refusal
from .session import Session

if TYPE_CHECKING:
    from ...client.async_client import AsyncClient

#: How long (seconds) requests of an open shell are retried while the supervisor is unavailable. A
#: restarted supervisor does not know the shell.
_LOST_SECS = 3.0
#: Codes of a request for a shell for which the command line of the task is the better answer.
_NOT_RELAYED = frozenset({"notHere", "agentOutdated"})
_TERM = re.compile(r"[A-Za-z0-9._+-]{1,64}\Z")


def relayed(
    s: Session,
    jid: str,
    task: dict[str, Any],
    attempt: int,
    about: str,
    direct: Refusal | None = None,
) -> None:
    """Open a shell through the supervisor, and exit with its status. Return if it cannot be relayed
    and `direct` is not given.

    direct: why the task cannot be entered on this machine. Raises it if the shell cannot be relayed
    either. Raises ClientError.
    """
    from ...client.api.errors import ClientError

    if not sys.stdin.isatty():
        if direct is not None:
            raise direct
        raise Refusal(
            "notHere",
            "a shell on another machine needs a terminal as standard input; start it in one",
        )
    try:
        shell_id = _open(s, jid, task, attempt)
    except ClientError as e:
        if e.code not in _NOT_RELAYED:
            raise
        if direct is not None:
            raise direct from None
        return
    s.screen.message(f"[{about}; relayed by the supervisor; 'exit' closes the shell]")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        code = asyncio.run(_relay(s, jid, shell_id))
    except ClientError as e:
        again = (
            f"jobscribe job shell {jid} --role {task['role']} --index {task['index']}"
            f" --attempt {attempt}{s.supervisor_options()}"
        )
        raise ClientError(
            e.code, f"the shell is lost: {e.sentence}. The job goes on", f"Attach again: {again}"
        ) from None
    sys.exit(code)


def _open(s: Session, jid: str, task: dict[str, Any], attempt: int) -> str:
    from ..terminal.relayed_shell import terminal_size

    term = os.environ.get("TERM", "")
    options: dict[str, Any] = {
        "role": task["role"],
        "index": task["index"],
        "attempt": attempt,
        "term": term if _TERM.match(term) else "dumb",
        **terminal_size(sys.stdin.fileno()),
    }
    opened = s.client_for(jid).open_shell(jid, None, **options)
    return str(opened["shellId"])


async def _relay(s: Session, jid: str, shell_id: str) -> int:
    from ..terminal.relayed_shell import RelayedShell

    client: AsyncClient = s.async_client_for(jid, _LOST_SECS)
    async with client:
        return await RelayedShell(client, jid, shell_id, sys.stdin.fileno()).run()
