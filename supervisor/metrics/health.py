"""Is all well, and if not: what, since when, and what to do. Judged from what is known now; nothing
is asked for it but disks.

`failing`: what is asked for now is not done, or is not safe. `degraded`: it works, and somebody
should look. The heavier reasons come first.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from ...drivers.contracts import AgentDriver
from ...protocol.version import VERSION
from ..connections.monitored_hosts import HasHosts
from ..core.state.agent_state import AgentState
from ..diagnosis.phrases import waking
from .background_sampler import BackgroundSampler, Disk
from .collector import CollectorSources

State = Literal["degraded", "failing"]

MIB = 1024 * 1024
#: Room on a disk: below the first somebody should look, below the second nothing can be relied on.
#: The same for files.
LOW_BYTES, LEAST_BYTES, LOW_FILES = 1024 * MIB, 100 * MIB, 1_000
#: The loop was held for so long within the last minutes.
HELD_SECS, LOOK_BACK_SECS = 1.0, 300.0
#: An agent that is away may come back by itself within this time.
SILENT_SECS = 120.0
#: So many keepers that do not answer are named.
NAMED_KEEPERS = 10
#: What happened once is told for so long.
TOLD_SECS = 900.0
#: Front ends of other versions: so many versions are told, and a longer one is not.
_FRONT_ENDS, _VERSION_CHARS = 8, 40
#: Signs of life come late by so many times their interval.
LATE_SIGNS = 3.0


class Reason(NamedTuple):
    """what: a word, `store` or `disk:root`. since: wall time; try_: what somebody can type or do."""

    what: str
    state: State
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
    """What happened once, on the wall clock; None: not yet. lines: how many lines of the log were
    lost so far.
    """

    clock_set: float | None = None
    clock_by: float = 0.0
    line_lost: float | None = None
    lines: int = 0


class Health:
    """Remembers since when each thing is wrong, as far as nobody else does."""

    def __init__(
        self,
        parts: CollectorSources,
        aside: BackgroundSampler,
        wall: Callable[[], float],
        mono: Callable[[], float],
    ) -> None:
        self._parts, self._aside, self._wall, self._mono = parts, aside, wall, mono
        self._since: dict[str, float] = {}
        self.moments = Moments()
        #: Versions of front ends that are not this supervisor's, and when each asked last (wall
        #: clock).
        self._front_ends: dict[str, float] = {}

    def front_end(self, version: str) -> None:
        """A front end of this version of jobscribe has sent a request."""
        if version == VERSION or not (version.isprintable() and len(version) <= _VERSION_CHARS):
            return
        if version in self._front_ends or len(self._front_ends) < _FRONT_ENDS:
            self._front_ends[version] = self._wall()

    async def body(self, *, draining: bool = False) -> dict[str, Any]:
        await self._aside.look()
        reasons = self.reasons(draining=draining)
        worst = (
            "failing"
            if any(r.state == "failing" for r in reasons)
            else "degraded"
            if reasons
            else "ok"
        )
        return {"state": worst, "at": self._wall(), "reasons": [r.body() for r in reasons]}

    def reasons(self, *, draining: bool = False) -> list[Reason]:
        """As of now; of disks, as they were seen last."""
        found = [
            *self._store(),
            *self._disks(),
            *self._loop(),
            *self._agents(),
            *self._keepers(),
            *self._hosts(),
            *self._clusters(),
            *self._log(),
            *self._clock(),
            *self._signs(),
            *self._notifications(),
            *self._root(),
            *self._versions(),
        ]
        if draining:
            found.append(
                Reason(
                    "draining",
                    "degraded",
                    "the supervisor is stopping: nothing new is taken, jobs run on",
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
        return sorted(dated, key=lambda r: r.state != "failing")

    # ---- one thing each

    def _store(self) -> Iterator[Reason]:
        engine = self._parts.engine
        if engine.paused or engine.fails_since is not None:
            yield Reason(
                "store",
                "failing",
                "the event store cannot be written: requests are refused, and jobs run on",
                engine.fails_since,
                "df -h on the root, and read the log; jobscribe db check (with the supervisor stopped) says what is damaged",
            )

    def _disks(self) -> Iterator[Reason]:
        seen = self._aside.seen
        if self._aside.stuck_since is not None:
            yield Reason(
                "disk",
                "failing",
                "a disk does not answer: room and jobs cannot be counted",
                self._aside.stuck_since,
                "look for a disk or mount that hangs: df, dmesg",
            )
        for area, why in seen.errors.items():
            yield Reason(
                f"disk:{area}",
                "degraded",
                f"{area} cannot be looked at: {why}",
                None,
                "look at its permissions and at the log",
            )
        for area, disk in seen.disks.items():
            yield from _room(area, disk)

    def _loop(self) -> Iterator[Reason]:
        held = self._parts.lag.longest(self._mono() - LOOK_BACK_SECS)
        if held > HELD_SECS:
            yield Reason(
                "loop",
                "degraded",
                f"the supervisor's loop was held for {held:.1f} s in the last {LOOK_BACK_SECS / 60:g} minutes",
                None,
                "grep 'the event loop was blocked' in the log says at what it was; look at the machine's load and disks",
            )

    def _agents(self) -> Iterator[Reason]:
        failed: list[AgentState] = []
        silent: list[AgentState] = []
        now = self._wall()
        for view in self._parts.engine.world.agents.values():
            if view.failures and view.phase != "up":
                failed.append(view)
            elif (
                view.phase == "away"
                and view.placed
                and now - (view.unknown_since or now) > SILENT_SECS
            ):
                silent.append(view)
        if failed:
            said = next(
                (f"; one says: {v.record.last_failure}" for v in failed if v.record.last_failure),
                "",
            )
            since = min((v.since for v in failed if v.since is not None), default=None)
            yield Reason(
                "agentStarts",
                "degraded",
                f"{len(failed)} agents could not be started{said}",
                since,
                "jobscribe job why JOB for a run that waits; agent/ in the root has the agents' logs",
            )
        if silent:
            jobs = sum(len(v.placed) for v in silent)
            said = next((f"; of one its driver says: {v.away}" for v in silent if v.away), "")
            yield Reason(
                "agentsSilent",
                "degraded",
                f"{len(silent)} agents with {jobs} tasks are not heard of; their jobs run on{said}",
                min(v.unknown_since or now for v in silent),
                "look at their machines and the network; the agents' logs say what they tried",
            )

    def _keepers(self) -> Iterator[Reason]:
        views = sorted(
            (v for v in self._parts.engine.world.agents.values() if v.keeper is not None),
            key=lambda v: v.record.key,
        )
        for view in views[:NAMED_KEEPERS]:
            assert view.keeper is not None
            stopped = ", stopped by a signal" if view.keeper.stopped else ""
            sentence = f"the keeper of agent {view.record.key} does not answer (pid {view.keeper_pid} on {view.host}{stopped})"
            tasks = f"how its {len(view.placed)} tasks stand is not known, and nothing starts there"
            yield Reason(
                f"keeper:{view.record.key}",
                "degraded",
                f"{sentence}: {tasks}",
                view.keeper.since,
                waking(view.keeper_pid, view.host),
            )
        if len(views) > NAMED_KEEPERS:
            sentence = f"{len(views) - NAMED_KEEPERS} more keepers do not answer"
            yield Reason(
                "keepers", "degraded", sentence, None, "grep keeperSilent in the log names them"
            )

    def _hosts(self) -> Iterator[Reason]:
        for name, driver in self._parts.drivers.items():
            for host, detail, since in _down(driver):
                yield Reason(
                    f"host:{host}",
                    "degraded",
                    f"host {host} of {name} is down: {detail}",
                    since,
                    "jobscribe pool check",
                )

    def _clusters(self) -> Iterator[Reason]:
        for cluster, news in self._parts.clusters.newest().items():
            if news is not None and news.scheduler != "up":
                detail = f": {news.detail}" if news.detail else ""
                sentence = f"Slurm on {cluster} cannot be asked{detail}"
                yield Reason(
                    f"cluster:{cluster}",
                    "degraded",
                    sentence,
                    None,
                    "jobscribe driver check sbatch",
                )
        unknown = [
            b for b in self._parts.engine.world.batch.values() if b.unknown_since is not None
        ]
        for cluster in sorted({b.cluster for b in unknown}):
            of = [
                b.unknown_since
                for b in unknown
                if b.cluster == cluster and b.unknown_since is not None
            ]
            yield Reason(
                f"batch:{cluster}",
                "degraded",
                f"how {len(of)} runs on {cluster} stand is not known",
                min(of),
                "jobscribe driver check sbatch",
            )

    def _log(self) -> Iterator[Reason]:
        at = self.moments.line_lost
        if at is not None and self._wall() - at < TOLD_SECS:
            yield Reason(
                "log",
                "degraded",
                f"{self.moments.lines} lines of the log could not be kept",
                at,
                "look at the disk of the root, and at what reads the supervisor's output",
            )

    def _clock(self) -> Iterator[Reason]:
        at = self.moments.clock_set
        if at is not None and self._wall() - at < TOLD_SECS:
            yield Reason(
                "clock",
                "degraded",
                f"the wall clock was set by {self.moments.clock_by:+.1f} s; times on record have a gap or repeat",
                at,
                "timedatectl timesync-status",
            )

    def _signs(self) -> Iterator[Reason]:
        dog = self._parts.watchdog
        if dog.signed_at is None:
            return
        late = self._mono() - dog.signed_at
        if late > LATE_SIGNS * dog.secs:
            yield Reason(
                "watchdog",
                "failing",
                f"the event store has not answered the watchdog for {late:.0f} s",
                self._wall() - late,
                "look for a disk that hangs: df, dmesg; systemd starts the service anew, and jobs run on",
            )

    def _notifications(self) -> Iterator[Reason]:
        for target in self._parts.notifications.standing():
            if target["failingSince"] is not None:
                name, waiting = target["name"], target["waiting"]
                yield Reason(
                    f"notify:{name}",
                    "degraded",
                    f"{name} does not take notifications, {waiting} wait: {target['lastError']}",
                    target["failingSince"],
                    "jobscribe notify list shows why; jobscribe notify test NAME tries it",
                )

    def _versions(self) -> Iterator[Reason]:
        self._front_ends = {
            v: at for v, at in self._front_ends.items() if self._wall() - at < TOLD_SECS
        }
        for version in sorted(self._front_ends):
            yield Reason(
                f"frontEnd:{version}",
                "degraded",
                f"a front end of jobscribe {version} asks this supervisor of {VERSION}: its pages and apps may be of another version, too",
                None,
                "install the same version there and restart it: systemctl restart jobscribe-server",
            )

    def _root(self) -> Iterator[Reason]:
        for name in sorted(self._parts.altered):
            yield Reason(
                f"file:{name}",
                "degraded",
                f"{name} in the root names another address for agents than this supervisor's",
                None,
                f"where no proxy is meant to be in between: remove {name} from the root, and it is written again",
            )
        strangers = self._aside.seen.strangers
        if strangers:
            more = f" ({len(strangers) - 1} more like it)" if len(strangers) > 1 else ""
            yield Reason(
                "strangers",
                "degraded",
                strangers[0] + more,
                None,
                "jobscribe doctor; see 'A root whose parts' in docs/store.md",
            )


def _room(area: str, disk: Disk) -> Iterator[Reason]:
    where = "the root" if area == "root" else "the users' run directories"
    do = "df -h; 'jobscribe db compact' makes the log shorter, purge.after_secs removes old run directories"
    if disk.free < LOW_BYTES:
        state: State = "failing" if disk.free < LEAST_BYTES else "degraded"
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
            "degraded",
            f"the disk of {where} has room for {disk.files} more files",
            None,
            "df -i",
        )


def _down(driver: AgentDriver) -> Iterator[tuple[str, str, float | None]]:
    if isinstance(driver, HasHosts):
        for host, watched in driver.engines.items():
            if not watched.up and watched.since is not None:
                yield host, watched.detail, watched.since
