"""Queries of Slurm for many jobs at once: one squeue for all jobs of a unix user, one sacct for the
jobs that squeue has forgotten.

Agents of one unix user on one host share squeue's answer through a file in their common folder, so
that a hundred agents cost no more than one. Nothing is decided here.
"""

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import pwd
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...protocol.clusters.cluster import Cluster
from ...runtime.execution.folder import read
from ...runtime.filesystems import make_folder, write_atomically
from ..slurm import output_parser
from ..slurm.command_errors import query_error
from ..slurm.output_parser import Account, JobUsage, Row
from .command_runner import NO_PROGRAM, CommandResult, Run

#: Poll interval while another agent runs squeue (seconds).
_SHARED_POLL_SECS = 0.1
#: Time after the command's limit at which an agent stops waiting for another agent's answer
#: (seconds). On a file server, a lock may outlive the machine of its holder.
_PATIENCE_SECS = 2.0
_LARGEST = 64 << 20
#: Maximum number of job ids in one command.
_IDS_AT_ONCE = 500
#: Search accounting from this long before sbatch ran (seconds), because clocks differ.
_EARLIER_SECS = 120.0


class QueueSnapshot(NamedTuple):
    """Answer of squeue and sacct. began: unix time before squeue ran. rows, accounts: by job id;
    None on an outage, which `outage` or `accounting_outage` describes.

    asked: the job ids that accounting was queried for; `accounts` has no others, except for those
    found by time.
    """

    began: float
    rows: Mapping[str, Row] | None
    accounts: Mapping[str, Account] | None
    asked: frozenset[str]
    outage: str | None
    accounting_outage: str | None


class SchedulerQueries:
    """Runs squeue and sacct. base: folder shared by the agents of this unix user, or None."""

    def __init__(self, cluster: Cluster, user: str, run: Run, base: Path | None) -> None:
        self._cluster, self._user, self._run = cluster, user, run
        self._shared = None if base is None else base / "poll" / f"{cluster.name}.json"
        #: whether the cluster has accounting; None: not known yet
        self.accounting: bool | None = None
        #: number of runs by command
        self.counts = {"squeue": 0, "sacct": 0}
        self._last = 0.0

    async def query(
        self, ids: Sequence[str], *, since: float | None, need_accounts: Sequence[str] = ()
    ) -> QueueSnapshot:
        """Query these jobs.

        since: also return everything that accounting has for this user from this time on.
        need_accounts: ids for which accounting is queried even if squeue has them.
        """
        began, result = await self._squeue()
        outage = _outage(result)
        if outage is not None:
            return QueueSnapshot(began, None, None, frozenset(), outage, None)
        rows = {r.job_id: r for r in output_parser.parse_squeue(result.out)}
        missing = [i for i in ids if i not in rows]
        ids_for_accounting = [*missing, *(i for i in need_accounts if i not in missing)]
        accounts, accounting_outage = await self._sacct(ids_for_accounting, since)
        return QueueSnapshot(
            began, rows, accounts, frozenset(ids_for_accounting), None, accounting_outage
        )

    async def usage(self, ids: Sequence[str]) -> dict[str, JobUsage]:
        """Return the usage of these jobs, as far as accounting knows it now."""
        found: dict[str, JobUsage] = {}
        for n in range(0, len(ids) if self.accounting is not False else 0, _IDS_AT_ONCE):
            self.counts["sacct"] += 1
            argv = output_parser.sacct_usage(ids[n : n + _IDS_AT_ONCE])
            result = await self._run(argv, "", self._cluster.call_secs)
            if _no_accounting(result):
                self.accounting = False
            elif _outage(result) is None:
                found |= output_parser.parse_usage(result.out)
        return found

    async def _sacct(
        self, ids: Sequence[str], since: float | None
    ) -> tuple[dict[str, Account] | None, str | None]:
        found: dict[str, Account] = {}
        commands = [
            output_parser.sacct(None, ids[n : n + _IDS_AT_ONCE], None)
            for n in range(0, len(ids), _IDS_AT_ONCE)
        ]
        if since is not None:
            commands.append(output_parser.sacct(self._user, (), since - _EARLIER_SECS))
        for argv in commands:
            self.counts["sacct"] += 1
            result = await self._run(argv, "", self._cluster.call_secs)
            if _no_accounting(result):
                self.accounting = False
                return {}, None
            outage = _outage(result)
            if outage is not None:
                return None, outage
            self.accounting = True
            for account in output_parser.parse_sacct(result.out):
                by = account.canceled_by and await asyncio.to_thread(
                    _user_name, account.canceled_by
                )
                found[account.job_id] = account._replace(canceled_by=by)
        return found, None

    # ---- squeue, shared

    async def _squeue(self) -> tuple[float, CommandResult]:
        if self._shared is None:
            return await self._run_squeue()
        deadline = time.monotonic() + self._cluster.call_secs + _PATIENCE_SECS
        while time.monotonic() < deadline:
            answer = self._shared_answer()
            if answer is not None:
                self._last = answer[0]
                return answer
            with _locked(self._shared) as acquired:
                if acquired:
                    # another agent may have finished before the lock
                    answer = self._shared_answer()
                    if answer is None:
                        answer = await self._run_squeue()
                        self._share(*answer)
                    self._last = answer[0]
                    return answer
            await asyncio.sleep(_SHARED_POLL_SECS)
        return await self._run_squeue()

    async def _run_squeue(self) -> tuple[float, CommandResult]:
        self.counts["squeue"] += 1
        began = time.time()
        return began, await self._run(output_parser.squeue(self._user), "", self._cluster.call_secs)

    def _shared_answer(self) -> tuple[float, CommandResult] | None:
        """Return another agent's answer if it is recent and newer than this agent's last one."""
        assert self._shared is not None
        try:
            content = json.loads(read(str(self._shared), _LARGEST) or b"null")
            began, host, user, result = (
                float(content["began"]),
                content["host"],
                content["user"],
                CommandResult(*content["ran"]),
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        recent = 0 <= time.time() - began < self._cluster.poll_secs
        return (
            (began, result)
            if recent and began > self._last and host == socket.gethostname() and user == self._user
            else None
        )

    def _share(self, began: float, result: CommandResult) -> None:
        assert self._shared is not None
        content = {
            "began": began,
            "host": socket.gethostname(),
            "user": self._user,
            "ran": list(result),
        }
        with contextlib.suppress(OSError):
            write_atomically(str(self._shared), json.dumps(content).encode())


@functools.lru_cache(maxsize=1000)
def _user_name(user: str) -> str:
    """Return the user name of a numeric uid from accounting."""
    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, ValueError, OverflowError):
        return user


def _no_accounting(result: CommandResult) -> bool:
    return "accounting storage is disabled" in result.err.lower() or result.code == NO_PROGRAM


def _outage(result: CommandResult) -> str | None:
    """Return why there is no answer, or None if there is one."""
    if result.effect_unknown or result.code == NO_PROGRAM:
        return result.err.strip() or f"a Slurm command was killed by signal {-result.code}"
    return query_error(result.code, result.err)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to lock the shared file, and yield whether it is this agent's turn. Always true if files
    cannot be locked.
    """
    try:
        make_folder(str(path.parent))
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
    finally:
        os.close(fd)
