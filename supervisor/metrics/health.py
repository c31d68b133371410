"""The health report: the state of the supervisor, and for each fault a reason, a start time and an
action. Only disks are measured for it; everything else is known already.

`failing`: requests are not served, or not safely. `degraded`: the system works and needs attention.
Failing reasons come first.
"""

import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...drivers.contracts import AgentDriver
from ...protocol.version import VERSION
from ..connections.monitored_hosts import HasHosts
from ..core.state.agent_phase import AgentPhase
from ..core.state.agent_state import AgentState
from ..diagnosis.phrases import resume_keeper_command
from .background_sampler import BackgroundSampler, Disk
from .collector import CollectorSources


class HealthState(enum.StrEnum):
    """State of the supervisor. A fault is degraded or failing."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILING = "failing"


MIB = 1024 * 1024
#: Limits of free space on a disk (degraded, failing), and of free files (degraded).
LOW_BYTES, LEAST_BYTES, LOW_FILES = 1024 * MIB, 100 * MIB, 1_000
#: Longer blocks of the event loop within the last LOOK_BACK_SECS are reported.
HELD_SECS, LOOK_BACK_SECS = 1.0, 300.0
#: An agent that is away longer than this is reported. Earlier it may come back by itself.
SILENT_SECS = 120.0
#: Maximum number of keepers reported by name.
NAMED_KEEPERS = 10
#: Single events are reported for this time.
REPORT_SECS = 900.0
#: Front ends of other versions: maximum number of versions, and maximum length of a version.
_FRONT_ENDS, _VERSION_CHARS = 8, 40
#: A larger difference between clocks of supervisors and the database is reported.
CLOCK_SECS = 30.0
#: The watchdog signal is late after this many intervals.
LATE_SIGNS = 3.0


class Reason(NamedTuple):
    """One fault. what: a word such as `store` or `disk:root`. since: wall time. try_: command or
    action for the operator.
    """

    what: str
    state: HealthState
    sentence: str
    since: float | None
    try_: str

    def body(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "state": self.state,
            "sentence": self.sentence,
            "since": self.since,
            "try": self.try_,
        }


class Moments(NamedTuple):
    """Single events and their wall times; None: not yet. lines: number of lost log lines so far."""

    clock_set: float | None = None
    clock_by: float = 0.0
    line_lost: float | None = None
    lines: int = 0


class Health:
    """Evaluates the health of a supervisor. Remembers the start time of faults that are recorded
    nowhere else.
    """

    def __init__(
        self,
        sources: CollectorSources,
        sampler: BackgroundSampler,
        wall: Callable[[], float],
        mono: Callable[[], float],
    ) -> None:
        self._sources, self._sampler, self._wall, self._mono = sources, sampler, wall, mono
        self._since: dict[str, float] = {}
        self.moments = Moments()
        #: Versions of front ends that differ from this supervisor's, and the wall time of their
        #: last request.
        self._front_ends: dict[str, float] = {}

    def front_end(self, version: str) -> None:
        """Record that a front end of this version sent a request."""
        if version == VERSION or not (version.isprintable() and len(version) <= _VERSION_CHARS):
            return
        if version in self._front_ends or len(self._front_ends) < _FRONT_ENDS:
            self._front_ends[version] = self._wall()

    async def body(self, *, draining: bool = False) -> dict[str, Any]:
        await self._sampler.measure()
        reasons = self.reasons(draining=draining)
        worst = (
            HealthState.FAILING
            if any(r.state == HealthState.FAILING for r in reasons)
            else HealthState.DEGRADED
            if reasons
            else HealthState.OK
        )
        return {"state": worst, "at": self._wall(), "reasons": [r.body() for r in reasons]}

    def reasons(self, *, draining: bool = False) -> list[Reason]:
        """Return the current reasons. Disks are reported as of their last measurement."""
        found = [
            *self._store(),
            *self._disks(),
            *self._loop(),
            *self._agents(),
            *self._keepers(),
            *self._hosts(),
            *self._drains(),
            *self._clusters(),
            *self._log(),
            *self._clock(),
            *self._watchdog(),
            *self._notifications(),
            *self._root(),
            *self._secrets(),
            *self._certificates(),
            *self._versions(),
            *self._supervisors(),
            *self._grants(),
        ]
        if draining:
            found.append(
                Reason(
                    "draining",
                    HealthState.DEGRADED,
                    "the supervisor is stopping: new requests are refused, jobs continue",
                    None,
                    "wait",
                )
            )
        names = {r.what for r in found}
        self._since = {what: since for what, since in self._since.items() if what in names}
        dated = [
            r
            if r.since is not None
            else r._replace(since=self._since.setdefault(r.what, self._wall()))
            for r in found
        ]
        return sorted(dated, key=lambda r: r.state != HealthState.FAILING)

    # ---- checks

    def _store(self) -> Iterator[Reason]:
        engine = self._sources.engine
        if engine.paused or engine.fails_since is not None:
            yield Reason(
                "store",
                HealthState.FAILING,
                "the event store cannot be written: requests are refused, jobs continue",
                engine.fails_since,
                "run df -h on the root, and read the log; jobscribe db check (with the supervisor stopped) reports damage",
            )

    def _disks(self) -> Iterator[Reason]:
        sample = self._sampler.newest
        if self._sampler.stuck_since is not None:
            yield Reason(
                "disk",
                HealthState.FAILING,
                "a disk does not answer: free space and jobs cannot be measured",
                self._sampler.stuck_since,
                "find the disk or mount that hangs: df, dmesg",
            )
        for area, why in sample.errors.items():
            yield Reason(
                f"disk:{area}",
                HealthState.DEGRADED,
                f"{area} cannot be inspected: {why}",
                None,
                "check its permissions, and read the log",
            )
        for area, disk in sample.disks.items():
            yield from _free_space(area, disk)

    def _loop(self) -> Iterator[Reason]:
        held = self._sources.lag.longest(self._mono() - LOOK_BACK_SECS)
        if held > HELD_SECS:
            yield Reason(
                "loop",
                HealthState.DEGRADED,
                f"the supervisor's event loop was blocked for {held:.1f} s in the last {LOOK_BACK_SECS / 60:g} minutes",
                None,
                "grep 'the event loop was blocked' in the log shows the cause; check the load and the disks of the machine",
            )

    def _agents(self) -> Iterator[Reason]:
        failed: list[AgentState] = []
        silent: list[AgentState] = []
        now = self._wall()
        for view in self._sources.engine.world.agents.values():
            if view.failures and view.phase != AgentPhase.UP:
                failed.append(view)
            elif (
                view.phase == AgentPhase.AWAY
                and view.placed
                and now - (view.unknown_since or now) > SILENT_SECS
            ):
                silent.append(view)
        if failed:
            detail = next(
                (f"; last error: {v.record.last_failure}" for v in failed if v.record.last_failure),
                "",
            )
            since = min((v.since for v in failed if v.since is not None), default=None)
            yield Reason(
                "agentStarts",
                HealthState.DEGRADED,
                f"{len(failed)} agents could not be started{detail}",
                since,
                "jobscribe job why JOB for a waiting run; the agents' logs are in agent/ in the root",
            )
        if silent:
            jobs = sum(len(v.placed) for v in silent)
            detail = next((f"; report of a driver: {v.away}" for v in silent if v.away), "")
            yield Reason(
                "agentsSilent",
                HealthState.DEGRADED,
                f"{len(silent)} agents with {jobs} tasks do not report; their jobs continue{detail}",
                min(v.unknown_since or now for v in silent),
                "check their machines and the network; the agents' logs show their attempts to connect",
            )

    def _keepers(self) -> Iterator[Reason]:
        views = sorted(
            (v for v in self._sources.engine.world.agents.values() if v.keeper is not None),
            key=lambda v: v.record.key,
        )
        for view in views[:NAMED_KEEPERS]:
            assert view.keeper is not None
            stopped = ", stopped by a signal" if view.keeper.stopped else ""
            sentence = f"the keeper of agent {view.record.key} does not answer (pid {view.keeper_pid} on {view.host}{stopped})"
            tasks = (
                f"the state of its {len(view.placed)} tasks is unknown, and nothing starts there"
            )
            yield Reason(
                f"keeper:{view.record.key}",
                HealthState.DEGRADED,
                f"{sentence}: {tasks}",
                view.keeper.since,
                resume_keeper_command(view.keeper_pid, view.host),
            )
        if len(views) > NAMED_KEEPERS:
            sentence = f"{len(views) - NAMED_KEEPERS} more keepers do not answer"
            yield Reason(
                "keepers",
                HealthState.DEGRADED,
                sentence,
                None,
                "grep keeperSilent in the log lists them",
            )

    def _hosts(self) -> Iterator[Reason]:
        for name, driver in self._sources.drivers.items():
            for host, detail, since in _hosts_down(driver):
                yield Reason(
                    f"host:{host}",
                    HealthState.DEGRADED,
                    f"host {host} of {name} is down: {detail}",
                    since,
                    "jobscribe pool check",
                )

    def _drains(self) -> Iterator[Reason]:
        for (driver, host), drain in sorted(self._sources.engine.world.drains.items()):
            what = f"host {host} of {driver}" if host else "this site"
            reason = f": {drain.reason}" if drain.reason else ""
            yield Reason(
                f"drain:{host}" if host else "drain",
                HealthState.DEGRADED,
                f"{what} is drained by {drain.by}, so no new run starts there{reason}",
                drain.at,
                "end the drain on the page of operations when the maintenance is over",
            )

    def _clusters(self) -> Iterator[Reason]:
        for cluster, news in self._sources.clusters.newest().items():
            if news is not None and news.scheduler != "up":
                detail = f": {news.detail}" if news.detail else ""
                sentence = f"Slurm on {cluster} does not answer{detail}"
                yield Reason(
                    f"cluster:{cluster}",
                    HealthState.DEGRADED,
                    sentence,
                    None,
                    "jobscribe driver check sbatch",
                )
        unknown = [
            b for b in self._sources.engine.world.batch.values() if b.unknown_since is not None
        ]
        for cluster in sorted({b.cluster for b in unknown}):
            times = [
                b.unknown_since
                for b in unknown
                if b.cluster == cluster and b.unknown_since is not None
            ]
            yield Reason(
                f"batch:{cluster}",
                HealthState.DEGRADED,
                f"the state of {len(times)} runs on {cluster} is unknown",
                min(times),
                "jobscribe driver check sbatch",
            )

    def _log(self) -> Iterator[Reason]:
        at = self.moments.line_lost
        if at is not None and self._wall() - at < REPORT_SECS:
            yield Reason(
                "log",
                HealthState.DEGRADED,
                f"{self.moments.lines} lines of the log were lost",
                at,
                "check the disk of the root, and the process that reads the supervisor's output",
            )

    def _clock(self) -> Iterator[Reason]:
        at = self.moments.clock_set
        if at is not None and self._wall() - at < REPORT_SECS:
            yield Reason(
                "clock",
                HealthState.DEGRADED,
                f"the wall clock was set by {self.moments.clock_by:+.1f} s; recorded times have a gap or overlap",
                at,
                "timedatectl timesync-status",
            )

    def _watchdog(self) -> Iterator[Reason]:
        dog = self._sources.watchdog
        if dog.signed_at is None:
            return
        late = self._mono() - dog.signed_at
        if late > LATE_SIGNS * dog.secs:
            yield Reason(
                "watchdog",
                HealthState.FAILING,
                f"the event store has not answered the watchdog for {late:.0f} s",
                self._wall() - late,
                "find the disk that hangs: df, dmesg; systemd restarts the service, and jobs continue",
            )

    def _notifications(self) -> Iterator[Reason]:
        for target in self._sources.notifications.standing():
            if target["failingSince"] is not None:
                name, waiting = target["name"], target["waiting"]
                yield Reason(
                    f"notify:{name}",
                    HealthState.DEGRADED,
                    f"{name} does not accept notifications, {waiting} wait: {target['lastError']}",
                    target["failingSince"],
                    "jobscribe notify list shows the error; jobscribe notify test NAME sends a test message",
                )

    def _versions(self) -> Iterator[Reason]:
        self._front_ends = {
            v: at for v, at in self._front_ends.items() if self._wall() - at < REPORT_SECS
        }
        for version in sorted(self._front_ends):
            yield Reason(
                f"frontEnd:{version}",
                HealthState.DEGRADED,
                f"a front end of jobscribe {version} uses this supervisor of version {VERSION}:"
                " its pages and apps may have another version, too",
                None,
                "install the same version there and restart it: systemctl restart jobscribe-server",
            )

    def _secrets(self) -> Iterator[Reason]:
        for name, sentence in self._sources.secrets():
            yield Reason(
                f"secret:{name}",
                HealthState.DEGRADED,
                f"the {name} secret on disk cannot be used: {sentence}; the one in use stays",
                None,
                f"put the file right; 'jobscribe secret rotate {name}' then writes a new secret",
            )

    def _certificates(self) -> Iterator[Reason]:
        for found in self._sources.certificates():
            sentence = found.expiry_sentence(self._wall())
            if sentence is not None:
                yield Reason(
                    f"certificate:{found.name}",
                    HealthState.FAILING if found.expired(self._wall()) else HealthState.DEGRADED,
                    sentence,
                    None,
                    "renew the certificate: write certificate and key over the old files; no restart is needed",
                )

    def _supervisors(self) -> Iterator[Reason]:
        found = self._sampler.newest.supervisors
        if found is None:
            return
        look = "jobscribe supervisors"
        if all(s.role != "standby" for s in found):
            sentence = "no other supervisor stands by: if this one fails, none serves the site"
            yield Reason(
                "standby", HealthState.DEGRADED, sentence, None, "start another supervisor"
            )
        for s in found:
            name = f"{s.host} pid {s.pid}"
            if s.role == "away":
                sentence = f"the standby {name} gave its last sign {s.seen_secs_ago:.0f} s ago"
                yield Reason(f"standby:{name}", HealthState.DEGRADED, sentence, None, look)
            elif abs(s.clock_ahead) > CLOCK_SECS:
                sentence = (
                    f"the clock of {name} is {s.clock_ahead:+.0f} s apart from the database's"
                )
                advice = f"correct the clock of {s.host}, for example with NTP"
                yield Reason(f"clock:{name}", HealthState.DEGRADED, sentence, None, advice)

    def _grants(self) -> Iterator[Reason]:
        grants = self._sources.grants
        for name in sorted(() if grants is None else grants.exceeded()):
            assert grants is not None
            used, share = grants.use[name].used, grants.shares[name]
            yield Reason(
                f"grant:{name}",
                HealthState.DEGRADED,
                f"{used} of {name} are used, and this shard may use {share.granted} of the site's"
                f" {share.capacity}: the limit was lowered, or the database lost commits. Nothing new starts until"
                " less is used",
                None,
                "wait until runs end, or cancel some",
            )

    def _root(self) -> Iterator[Reason]:
        for name in sorted(self._sources.altered):
            yield Reason(
                f"file:{name}",
                HealthState.DEGRADED,
                f"{name} in the root names an address for agents that is not this supervisor's",
                None,
                f"without a proxy for agents: remove {name} from the root; the supervisor writes it again",
            )
        foreign = self._sampler.newest.foreign_agents
        if foreign:
            more = f" ({len(foreign) - 1} more agents)" if len(foreign) > 1 else ""
            yield Reason(
                "strangers",
                HealthState.DEGRADED,
                foreign[0] + more,
                None,
                "jobscribe doctor; see docs/store.md",
            )


def _free_space(area: str, disk: Disk) -> Iterator[Reason]:
    where = "the root" if area == "root" else "the users' run directories"
    do = "df -h; 'jobscribe db compact' shortens the event log; purge.after_secs removes old run directories"
    if disk.free < LOW_BYTES:
        state: HealthState = (
            HealthState.FAILING if disk.free < LEAST_BYTES else HealthState.DEGRADED
        )
        yield Reason(
            f"disk:{area}",
            state,
            f"{disk.free // MIB} MiB are free on the disk of {where}",
            None,
            do,
        )
    elif disk.files is not None and disk.files < LOW_FILES:
        yield Reason(
            f"disk:{area}",
            HealthState.DEGRADED,
            f"{disk.files} more files can be created on the disk of {where}",
            None,
            "df -i",
        )


def _hosts_down(driver: AgentDriver) -> Iterator[tuple[str, str, float | None]]:
    if isinstance(driver, HasHosts):
        for host, watched in driver.engines.items():
            if not watched.up and watched.since is not None:
                yield host, watched.detail, watched.since
