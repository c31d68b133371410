"""Asking Slurm about many jobs at once: one squeue for all of a unix user's, one sacct for those
that squeue has forgotten.

Agents of one unix user on one host share what squeue says, through a file in the folder above
theirs: it is asked no more often for a hundred of them than for one. Nothing is decided here.
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
from ..slurm.output_parser import Account, Row
from .command_runner import NO_PROGRAM, Ran, Run

#: How soon somebody who waits for another agent's squeue looks again (seconds).
_LOOK_SECS = 0.1
#: Whose turn it is tells the others so long after its answer is due, or never: a lock of a file
#: server outlives the machine of its holder.
_PATIENCE_SECS = 2.0
_LARGEST = 64 << 20
#: So many jobs are named in one command.
_IDS_AT_ONCE = 500
#: Jobs that were submitted so long before sbatch was run for them (clocks differ) are looked for by
#: comment.
_EARLIER_SECS = 120.0


class QueueSnapshot(NamedTuple):
    """began: wall clock, before squeue was asked. rows, accounts: by job id; None where nobody
    could be asked, `outage` says why.

    What was not asked of accounting is in `accounts` not either: `asked` names what was.
    by_comment: the job ids of these comments.
    """

    began: float
    rows: Mapping[str, Row] | None
    accounts: Mapping[str, Account] | None
    asked: frozenset[str]
    outage: str | None
    accounting_outage: str | None


class SchedulerQueries:
    """base: the folder that agents of this unix user share; None: there is none."""

    def __init__(self, cluster: Cluster, user: str, run: Run, base: Path | None) -> None:
        self._cluster, self._user, self._run = cluster, user, run
        self._shared = None if base is None else base / "poll" / f"{cluster.name}.json"
        #: does accounting exist at all? None: nobody knows yet
        self.accounting: bool | None = None
        #: how often each command was run, for whoever counts
        self.counts = {"squeue": 0, "sacct": 0}
        self._last = 0.0

    async def ask(
        self, ids: Sequence[str], *, since: float | None, need_accounts: Sequence[str] = ()
    ) -> QueueSnapshot:
        """What is known of these jobs.

        since: also whatever accounting has of this user from then on. need_accounts: of these it is
        asked even if squeue has them.
        """
        began, ran = await self._squeue()
        outage = _outage(ran)
        if outage is not None:
            return QueueSnapshot(began, None, None, frozenset(), outage, None)
        rows = {r.job_id: r for r in output_parser.parse_squeue(ran.out)}
        missing = [i for i in ids if i not in rows]
        wanted = [*missing, *(i for i in need_accounts if i not in missing)]
        accounts, accounting_outage = await self._sacct(wanted, since)
        return QueueSnapshot(began, rows, accounts, frozenset(wanted), None, accounting_outage)

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
            ran = await self._run(argv, "", self._cluster.call_secs)
            if "accounting storage is disabled" in ran.err.lower() or ran.code == NO_PROGRAM:
                self.accounting = False
                return {}, None
            outage = _outage(ran)
            if outage is not None:
                return None, outage
            self.accounting = True
            for account in output_parser.parse_sacct(ran.out):
                by = account.canceled_by and await asyncio.to_thread(_name, account.canceled_by)
                found[account.job_id] = account._replace(canceled_by=by)
        return found, None

    # ---- squeue, shared

    async def _squeue(self) -> tuple[float, Ran]:
        if self._shared is None:
            return await self._ask_squeue()
        alone = time.monotonic() + self._cluster.call_secs + _PATIENCE_SECS
        while time.monotonic() < alone:
            there = self._fresh()
            if there is not None:
                self._last = there[0]
                return there
            with _locked(self._shared) as mine:
                if mine:
                    there = self._fresh()  # somebody may have asked between the look and the lock
                    if there is None:
                        there = await self._ask_squeue()
                        self._share(*there)
                    self._last = there[0]
                    return there
            await asyncio.sleep(_LOOK_SECS)
        return await self._ask_squeue()

    async def _ask_squeue(self) -> tuple[float, Ran]:
        self.counts["squeue"] += 1
        began = time.time()
        return began, await self._run(output_parser.squeue(self._user), "", self._cluster.call_secs)

    def _fresh(self) -> tuple[float, Ran] | None:
        """What another agent was told, where that is news for this one and not old."""
        assert self._shared is not None
        try:
            said = json.loads(read(str(self._shared), _LARGEST) or b"null")
            began, host, user, ran = (
                float(said["began"]),
                said["host"],
                said["user"],
                Ran(*said["ran"]),
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        young = 0 <= time.time() - began < self._cluster.poll_secs
        return (
            (began, ran)
            if young and began > self._last and host == socket.gethostname() and user == self._user
            else None
        )

    def _share(self, began: float, ran: Ran) -> None:
        assert self._shared is not None
        said = {"began": began, "host": socket.gethostname(), "user": self._user, "ran": list(ran)}
        with contextlib.suppress(OSError):
            write_atomically(str(self._shared), json.dumps(said).encode())


@functools.lru_cache(maxsize=1000)
def _name(user: str) -> str:
    """Accounting has numbers where people have names."""
    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, ValueError, OverflowError):
        return user


def _outage(ran: Ran) -> str | None:
    """Why nobody knows; None where it was an answer."""
    if ran.unsure or ran.code == NO_PROGRAM:
        return ran.err.strip() or f"a command of Slurm's was ended by signal {-ran.code}"
    return query_error(ran.code, ran.err)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Is it this one's turn? Where files cannot be locked, it always is."""
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
