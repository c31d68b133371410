"""The retention sweeper: goes through the folders of all executions on this machine, and removes what
the rules allow (`core.runs.evidence_retention`). The log and the files decide anew in every pass, so
a pass may end anywhere.

Look-ups run on the event loop, a few at a time; files are read and removed in a thread. A pass
inspects a limited number of folders per second.
"""

import asyncio
import contextlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...db.records.record_files import FOLDER as RECORDS
from ...db.records.record_files import record_path
from ...db.store.contract import EventStore
from ...drivers.keeper_lock import locked
from ...protocol.ids import Token
from ...protocol.jobs import profiling
from ...protocol.jobs.status import PURGED
from ...runtime.execution import keeper_ledger
from ...runtime.log.logger import Log
from ...service.settings.settings import RetentionSettings
from ..core.runs.evidence_retention import (
    EvidenceRules,
    JobFacts,
    Verdict,
    cores_expired,
    profiles_expired,
    token_of,
    too_young,
    verdict,
)
from ..engine.decision_loop import Engine
from .evidence_files import (
    GOING,
    REDUCIBLE,
    Freed,
    ProfileFolder,
    clear_leftover,
    has_cores,
    is_marked,
    measure,
    measure_cores,
    reduce,
    remove_cores,
    remove_evidence,
    remove_profiles,
    strip,
)
from .safe_paths import open_folder

T = TypeVar("T")
_KIND_OF = {Verdict.REDUCE: "scripts", Verdict.REMOVE: "evidence", Verdict.DROP_CORES: "cores"}

KINDS = ("scripts", "evidence", "cores", "profiles", "agentLogs", "records")
#: Folders inspected at once. The look-ups of their jobs take a few milliseconds.
_PAGE = 64
#: Time limit for one page of removals; the next pass continues.
_PAGE_SECS = 60.0
#: Wait before the first pass: the start has other things to do.
_FIRST_SECS = 60.0


class KindReport(msgspec.Struct, kw_only=True):
    """count: folders, or log files. files: inodes. bytes: as allocated on the disk."""

    count: int = 0
    files: int = 0
    bytes: int = 0

    def add(self, freed: Freed) -> None:
        self.count, self.files, self.bytes = (
            self.count + 1,
            self.files + freed.files,
            self.bytes + freed.bytes,
        )


class SweepReport(msgspec.Struct, kw_only=True, rename="camel"):
    """Result of one pass, or of all passes since the start."""

    dry_run: bool = False
    started_at: float = 0.0
    secs: float = 0.0
    inspected: int = 0
    failed: int = 0
    complete: bool = False
    kinds: dict[str, KindReport] = msgspec.field(
        default_factory=lambda: {kind: KindReport() for kind in KINDS}
    )


class _Found(NamedTuple):
    """A folder of an execution. reducible: it has files that `reduce` removes. cores: it has core
    files. profiled: the run directory has profiles of it.
    """

    token: Token
    changed_at: float
    reducible: bool
    cores: bool
    profiled: bool


class RetentionSweeper:
    """One per process. wall: a clock that settings of the time do not change."""

    def __init__(
        self,
        engine: Engine,
        store: EventStore,
        log: Log,
        wall: Callable[[], float],
        settings: RetentionSettings,
        root: Path,
    ) -> None:
        self._engine, self._store, self._log, self._wall = engine, store, log, wall
        self._settings, self._agents_root = settings, root / "agent"
        self._records = root / RECORDS
        self.total = SweepReport()
        self.last = SweepReport()
        #: the pass in progress
        self.current: SweepReport | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="retention")
        self._until = float("inf")

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep_periodically())

    async def close(self) -> None:
        """Stop. A removal in progress ends early; the next pass continues."""
        self._until = 0.0
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._threads.shutdown(cancel_futures=True)

    def sizes(self) -> dict[str, int]:
        return {
            f"{kind}{what}": getattr(found, what.lower())
            for kind, found in self.total.kinds.items()
            for what in ("Count", "Bytes")
        }

    async def sweep(self, *, dry_run: bool = False, at_once: bool = False) -> SweepReport:
        """Make one pass. dry_run: only report what would go. at_once: without a limit of folders
        per second.
        """
        async with self._turn:
            report = self.current = SweepReport(dry_run=dry_run, started_at=self._wall())
            began = time.monotonic()
            try:
                for folder in await self._in_thread(self._agent_folders):
                    await self._sweep_agent(folder, report, at_once)
                await self._sweep_records(report)
                report.complete = True
            finally:
                report.secs, self.current = time.monotonic() - began, None
                if not dry_run:
                    self._account(report)
            return report

    # ---- a pass

    async def _sweep_periodically(self) -> None:
        await asyncio.sleep(min(_FIRST_SECS, self._settings.every_secs))
        while True:
            try:
                report = await self.sweep()
            except Exception as e:
                # The next pass tries again; nothing depends on this one.
                self._log.exception("a retention pass failed; the next one tries again", error=e)
            else:
                if gone := {k: r.count for k, r in report.kinds.items() if r.count}:
                    self._log("retention removed {} in {:.1f} s", gone, report.secs)
            await asyncio.sleep(self._settings.every_secs)

    def _account(self, report: SweepReport) -> None:
        total, self.last = self.total, report
        total.inspected += report.inspected
        total.failed += report.failed
        for kind, found in report.kinds.items():
            known = total.kinds[kind]
            known.count += found.count
            known.files += found.files
            known.bytes += found.bytes

    async def _sweep_agent(self, folder: Path, report: SweepReport, at_once: bool) -> None:
        kept = 0
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            runs = await self._in_thread(open_folder, str(folder), ["run"])
            try:
                kept = await self._sweep_runs(folder, runs, report, at_once)
            finally:
                os.close(runs)
        before = self._before(self._settings.scripts_secs)
        if before is not None:
            await self._in_thread(_remove_exits, folder, before, report)
        before = self._before(self._settings.agents_secs)
        if not kept and before is not None:
            await self._in_thread(_remove_logs, folder, before, report)

    async def _sweep_runs(self, folder: Path, runs: int, report: SweepReport, at_once: bool) -> int:
        """Sweep the executions of an agent. Return the number of folders that stay."""
        rules, kept = self._rules(), 0
        # An execution that starts after this look has a live run in the log.
        unforgotten = await self._in_thread(_unforgotten, folder)
        with os.scandir(runs) as entries:
            page: list[os.DirEntry[str]]
            while page := await self._in_thread(list, itertools.islice(entries, _PAGE)):
                began = time.monotonic()
                folders, found = await self._in_thread(self._look, runs, page, rules, report)
                verdicts = self._verdicts(found, rules, unforgotten)
                expired = self._expired_profiles(found, rules)
                await self._in_thread(self._remove_profiles, runs, expired, report)
                gone = frozenset(folder.name for folder in expired)
                kept += folders - await self._in_thread(self._act, runs, verdicts, gone, report)
                report.inspected += folders
                pace = 0.0 if at_once else len(page) / self._settings.folders_per_sec
                await asyncio.sleep(max(0.0, pace - (time.monotonic() - began)))
        return kept

    async def _sweep_records(self, report: SweepReport) -> None:
        """Remove old records of purged runs. They can be rebuilt from the log."""
        ended_before, before = self._before(self._settings.records_secs), None
        while ended_before is not None and (
            rows := self._store.jobs(status=PURGED, before=before, limit=_PAGE)
        ):
            before = rows[-1].position
            old = [r.jid for r in rows if r.ended_at is not None and r.ended_at < ended_before]
            await self._in_thread(_remove_records, self._records, old, report)

    def _verdicts(
        self, found: Collection[_Found], rules: EvidenceRules, unforgotten: Collection[str]
    ) -> dict[str, Verdict]:
        facts: dict[str, JobFacts | None] = {}
        out: dict[str, Verdict] = {}
        for token, changed_at, reducible, cores, _ in found:
            if token.jid not in facts:
                facts[token.jid] = self._facts(token.jid)
            job, acknowledged = facts[token.jid], token.name not in unforgotten
            word = verdict(token, job, rules, acknowledged=acknowledged, changed_at=changed_at)
            if word is Verdict.REMOVE or (word is Verdict.REDUCE and reducible):
                out[token.name] = word
            elif cores and cores_expired(
                token, job, rules, acknowledged=acknowledged, changed_at=changed_at
            ):
                out[token.name] = Verdict.DROP_CORES
        return out

    def _expired_profiles(
        self, found: Collection[_Found], rules: EvidenceRules
    ) -> list[ProfileFolder]:
        """Return the folders of profiles that are too old."""
        out = []
        for token, changed_at, _, _, profiled in found:
            if not profiled or not profiles_expired(
                token, self._facts(token.jid), rules, changed_at=changed_at
            ):
                continue
            entry = self._engine.durable(token.jid)
            run = None if entry is None else entry.job.run
            if run is not None:
                own = (token.role, str(token.index))
                # an earlier run of the job may have been one with roles, or none
                bases = ((), own) if token.serial < run.serial else (own if run.spec.roles else (),)
                inside = profiling.task_folder(token).split("/")
                places = tuple((*base, *inside) for base in bases)
                out.append(ProfileFolder(token.name, run.run_dir, places))
        return out

    def _facts(self, jid: str) -> JobFacts | None:
        """Return the durable facts about a job."""
        rows = self._store.find_jobs(jid, 1)
        if not rows or rows[0].jid != jid:
            return None
        row = rows[0]
        kept_plans = self._engine.policy.kept_plans
        entry = self._engine.durable(jid) if kept_plans else None
        run = None if entry is None else entry.job.run
        return JobFacts(
            row.serial,
            row.status,
            row.busy or jid in self._engine.world.jobs,
            row.ended_at,
            kept=run is not None and run.spec.active_plan in kept_plans,
        )

    def _rules(self) -> EvidenceRules:
        s = self._settings
        return EvidenceRules(
            self._before(s.scripts_secs),
            self._before(s.evidence_secs),
            self._before(s.superseded_secs),
            self._before(s.cores_secs),
            self._before(s.profiles_secs),
        )

    def _before(self, secs: float | None) -> float | None:
        return None if secs is None else self._wall() - secs

    async def _in_thread(self, work: Callable[..., T], *of: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *of)

    # ---- in the thread

    def _agent_folders(self) -> list[Path]:
        try:
            return sorted(p for p in self._agents_root.iterdir() if p.is_dir())
        except OSError:
            return []

    def _look(
        self,
        runs: int,
        page: Collection["os.DirEntry[str]"],
        rules: EvidenceRules,
        report: SweepReport,
    ) -> tuple[int, list[_Found]]:
        """Return the number of folders, and those that may be old enough. Completes interrupted
        removals.
        """
        folders, out = 0, []
        for entry in page:
            if entry.name.startswith(GOING) and not report.dry_run:
                clear_leftover(runs, entry.name, self._go_on)
            elif (token := token_of(entry.name)) is not None and entry.is_dir(
                follow_symlinks=False
            ):
                folders += 1
                if not too_young(token, rules):
                    with contextlib.suppress(OSError):
                        out.append(_found(runs, entry.name, token))
        return folders, out

    def _act(
        self,
        runs: int,
        verdicts: Mapping[str, Verdict],
        expired: Collection[str],
        report: SweepReport,
    ) -> int:
        """Remove what the verdicts say. Return the number of removed folders. expired: executions
        whose profiles go in this pass. While profiles stay, their mark in the evidence stays:
        without it, no later pass finds them.
        """
        removed, deadline = 0, time.monotonic() + _PAGE_SECS
        for name, word in verdicts.items():
            if not self._go_on() or time.monotonic() > deadline:
                break
            goes = report.dry_run and name in expired
            marked = not goes and self._settings.profiles_secs and is_marked(runs, name)
            try:
                if word is Verdict.REMOVE and marked:
                    freed, done = strip(runs, name, self._go_on, dry_run=report.dry_run)
                    if done and not freed.files:
                        continue  # an earlier pass did it
                else:
                    freed, done = self._remove(runs, name, word, dry_run=report.dry_run)
                    removed += done and word is Verdict.REMOVE
            except OSError as e:
                report.failed += 1
                if report.failed == 1:
                    self._log("evidence {} cannot be removed: {}", name, e.strerror)
                continue
            if done:
                report.kinds[_KIND_OF[word]].add(freed)
            else:
                report.failed += 1
        return removed

    def _remove(self, runs: int, name: str, word: Verdict, *, dry_run: bool) -> tuple[Freed, bool]:
        """Return what a removal frees, and whether it is complete. Raises OSError."""
        match word:
            case Verdict.DROP_CORES:
                freed = measure_cores(runs, name)
                return freed, dry_run or remove_cores(runs, name, self._go_on)
            case Verdict.REDUCE if not dry_run:
                return reduce(runs, name), True
        freed = measure(runs, name, reducible=word is Verdict.REDUCE)
        return freed, dry_run or remove_evidence(runs, name, self._go_on)

    def _remove_profiles(
        self, runs: int, expired: Collection[ProfileFolder], report: SweepReport
    ) -> None:
        for folder in expired:
            if not self._go_on():  # the next pass continues
                break
            try:
                freed = remove_profiles(runs, folder, self._go_on, dry_run=report.dry_run)
            except OSError as e:
                report.failed += 1
                if report.failed == 1:
                    self._log("profiles of {} cannot be removed: {}", folder.name, e.strerror)
            else:
                report.kinds["profiles"].add(freed)

    def _go_on(self) -> bool:
        return time.monotonic() < self._until


def _remove_logs(folder: Path, before: float, report: SweepReport) -> None:
    """Remove the logs of an agent without evidence and without a keeper, if they are old."""
    if locked(folder):
        return
    for path in folder.glob("agent.log*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                if not report.dry_run:
                    path.unlink()
                report.kinds["agentLogs"].add(Freed(1, found.st_blocks * 512))


def _remove_exits(folder: Path, before: float, report: SweepReport) -> None:
    """Remove old files with the ends of forgotten executions, which are in the log."""
    with contextlib.suppress(OSError):
        exits = open_folder(str(folder), [keeper_ledger.EXITS])
        try:
            for name in os.listdir(exits):
                found = os.stat(name, dir_fd=exits, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                    if not report.dry_run:
                        os.unlink(name, dir_fd=exits)
                    report.kinds["scripts"].add(Freed(1, found.st_blocks * 512))
        finally:
            os.close(exits)


def _remove_records(folder: Path, jids: Collection[str], report: SweepReport) -> None:
    for jid in jids:
        path = record_path(folder, jid)
        with contextlib.suppress(OSError):
            found = path.lstat()
            if not report.dry_run:
                path.unlink()
            report.kinds["records"].add(Freed(1, found.st_blocks * 512))


def _found(runs: int, name: str, token: Token) -> _Found:
    changed_at = os.stat(name, dir_fd=runs, follow_symlinks=False).st_mtime
    return _Found(
        token,
        changed_at,
        _has_any(runs, name, REDUCIBLE[:2]),
        has_cores(runs, name),
        is_marked(runs, name),
    )


def _has_any(runs: int, name: str, files: Collection[str]) -> bool:
    for file in files:
        try:
            os.stat(f"{name}/{file}", dir_fd=runs, follow_symlinks=False)
        except OSError:
            continue
        return True
    return False


def _unforgotten(folder: Path) -> frozenset[str]:
    """Return the executions whose end the executor may still report: those in its ledger. Raises
    OSError: then nothing goes.
    """
    names = set(keeper_ledger.load(str(folder)).entries)
    for place in ("ledger", "batch"):
        names |= {entry.removesuffix(".json") for entry in _names(folder / place)}
    return frozenset(names)


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
