"""The programs that inspect a running task (`runtime/inspection`): which task, and what they send."""

import base64
import binascii
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...protocol.clusters import host_list
from ...protocol.errors import Refusal
from ...protocol.jobs.inspection import Program
from ...protocol.jobs.status import ACTIVE, RUNNING, TASK_ENDED, TaskStatus
from ...protocol.wire.messages import RELAY_BYTES
from .session import Session

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Bytes of a line, and of text that is no line of the program.
_LINE_BYTES, _NOISE_BYTES = 64 * 1024 * 1024, 4096
_WAIT_SECS = 1.0
_NAMED = 8
OUTDATED = (
    "its agent runs an earlier version of jobscribe, which inspects the first node of a task only"
)
AFTER_END = (
    "what it left: 'jobscribe job logs {jid}', 'jobscribe core list {jid}' and 'jobscribe profile list"
    " {jid}'; 'jobscribe job why {jid}' says how it ended"
)


def select(s: Session, jid: str, name: str | None) -> tuple[dict[str, Any], int]:
    """Return the running task that a user means, and its attempt. name: ROLE-INDEX, ROLE/INDEX or
    ROLE; None for the only one. Raises Refusal, ClientError.
    """
    answer = s.client_for(jid).tasks(jid, 0)
    tasks: list[dict[str, Any]] = answer["tasks"]
    if name is not None:
        chosen = [t for t in tasks if name in _names(t)] or [t for t in tasks if t["role"] == name]
        if not chosen:
            raise Refusal("badRequest", f"the run has no task {name}; its tasks: {_list(tasks)}")
        tasks = chosen
    running = [t for t in tasks if t["state"] == TaskStatus.RUNNING or _is_entered(t)]
    if len(running) > 1:
        raise Refusal(
            "badRequest", f"there are {len(running)} tasks; name one of them: {_list(running)}"
        )
    ended = answer.get("state", RUNNING) not in ACTIVE
    if not running and (ended or (tasks and all(t["state"] in TASK_ENDED for t in tasks))):
        which = f"{jid} has ended" if ended else f"this task of {jid} has ended"
        raise Refusal(
            "alreadyEnded",
            f"{which} ({_states(tasks) or answer['state']}), so it has no processes",
            {"advice": AFTER_END.format(jid=jid)},
        )
    if not running:
        states = _states(tasks) or "not placed yet"
        raise Refusal(
            "notReady",
            f"no task of {jid} runs now ({states}); 'jobscribe job why {jid}' gives the reason",
        )
    return running[0], int(answer["attempt"])


def _is_entered(task: dict[str, Any]) -> bool:
    """Return whether the task is held on its allocation, where shells of its user have processes."""
    batch = task.get("batch") or {}
    return task["state"] == TaskStatus.HELD and bool(batch.get("jobId"))


def nodes_of(task: dict[str, Any], only: str | None) -> list[str | None]:
    """Return the nodes of a task to inspect; None for the place of a task that has one. only: the
    choice of the user. Raises Refusal.
    """
    host = str(task.get("host") or "")
    try:
        nodes = host_list.expand(host)
    except ValueError:
        nodes = []
    several = len(nodes) > 1 and str(task.get("agentKey", "")).startswith("sbatch.")
    if only is not None and only not in nodes:
        raise Refusal(
            "badRequest", f"the task does not run on {only}; it runs on {host or 'no node yet'}"
        )
    if only is not None:
        return [only if several else None]
    return [*nodes] if several else [None]


def _states(tasks: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted({str(t["state"]) for t in tasks}))


def _names(task: dict[str, Any]) -> tuple[str, str]:
    return f"{task['role']}-{task['index']}", f"{task['role']}/{task['index']}"


def _list(tasks: Sequence[dict[str, Any]]) -> str:
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    return ", ".join(_names(t)[0] for t in tasks[:_NAMED]) + more


class Inspection:
    """A program in a task. Iterate over `records`; `noise` is other output, such as that of srun."""

    def __init__(
        self, client: "Client", jid: str, task: dict[str, Any], attempt: int, program: Program
    ) -> None:
        self._client, self._jid, self.noise = client, jid, ""
        #: the last answer, with the exit
        self.last: dict[str, Any] = {}
        self._id = self._client.open_shell(
            jid,
            None,
            role=task["role"],
            index=task["index"],
            attempt=attempt,
            program=program,
        )["shellId"]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what the program sends, and an empty record after each wait, until its end. Raises ClientError."""
        offset, kept = 0, b""
        while not self.last:
            answer = self._next(offset)
            data = base64.b64decode(answer["data"])
            offset = answer["offset"] + len(data)
            *lines, kept = (kept + data).split(b"\n")
            for line in lines:
                yield from self._parsed(line)
            if len(kept) > _LINE_BYTES:
                self.hang_up()
                raise _lost("it sent a line without end")
            if answer["end"]:
                self.last = answer
                yield from self._parsed(kept)
            yield {}

    def _next(self, offset: int) -> dict[str, Any]:
        from ...client.api.errors import ClientError

        try:
            return self._client.use_shell(
                self._jid, self._id, offset=offset, limit=RELAY_BYTES, wait_secs=_WAIT_SECS
            )
        except ClientError as e:
            if e.code != "notFound":
                raise
            raise _lost(
                "supervisor or agent was restarted; the job goes on", "Run the command again"
            ) from None

    def hang_up(self, by: "Inspection | None" = None) -> None:
        """End the program. by: one of the same job whose client no other thread uses."""
        from ...client.api.errors import ClientError

        with contextlib.suppress(ClientError):
            (by or self)._client.use_shell(self._jid, self._id, close=True)

    def _parsed(self, line: bytes) -> Iterator[dict[str, Any]]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("type"), str):
            yield record
        elif line.strip() and len(self.noise) < _NOISE_BYTES:
            self.noise += line.decode("utf-8", "replace").strip() + "\n"

    def lost(self) -> Exception:
        """Return the error of a program that ended without its last record."""
        if "there is no Python" in self.noise:
            return _lost(
                "there is no Python 3.8 or later where the task runs",
                "Use an image with one, or put one on the PATH of the node",
            )
        said = " ".join(self.noise.split())[-300:]
        return _lost(
            f"it ended before it was done{f' ({said})' if said else ''}",
            f"If the job still runs, try again; 'jobscribe job status {self._jid}' shows it",
        )


def decoded(record: dict[str, Any]) -> bytes:
    """Return the text of a record of samples; nothing if it is invalid."""
    import zlib

    try:
        unpacked = zlib.decompressobj()
        data = unpacked.decompress(base64.b64decode(str(record.get("data"))), _LINE_BYTES)
        return data[: data.rfind(b"\n") + 1] if unpacked.unconsumed_tail else data
    except (zlib.error, binascii.Error, ValueError):
        return b""


def _lost(why: str, remedy: str = "Try again") -> Exception:
    from ...client.api.errors import ClientError

    return ClientError("agentUnavailable", f"the task cannot be inspected: {why}", remedy)
