"""Composition root of the supervisor. It creates all objects, wires them, and closes them in
reverse order.

No rules live here: decisions are in `core`, requests in `runs` and `api`.
"""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tornado.httpserver

from ..apps import registry
from ..db.events.events import SYSTEM, Event, SupervisorStarted, SupervisorStopped
from ..db.events.state import Job, Task
from ..db.maintenance.checkpoints import is_rolled_back, last_session, serial_floor
from ..db.records.record_files import RecordWriter, catch_up
from ..db.store.contract import Appended, Batch, Write
from ..drivers.keeper_tasks import Answer, Question
from ..protocol.api import device_logins
from ..protocol.api.requests import RunSpec
from ..protocol.api.unix_addresses import unix_url
from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, derived_id
from ..protocol.jobs import profiling
from ..protocol.redaction import Redactor
from ..protocol.version import VERSION
from ..protocol.wire.heartbeat import HeartbeatTiming
from ..protocol.wire.messages import (
    Alive,
    AttachDebugger,
    DebuggerIo,
    DebuggerOutput,
    Kill,
    ListStops,
    OpenShell,
    ShellIo,
    ShellOutput,
    Stops,
    ToAgent,
)
from ..runtime import clock, failpoints, processes
from ..runtime.connections.http_server import GuardedServer
from ..runtime.connections.http_server import server as http_server
from ..runtime.event_loop_lag import LoopLag
from ..runtime.log.logger import capture_logging, log_uncaught
from ..runtime.struct_types import resolve_all
from ..service.log.sink import open_log
from ..service.settings.loader import show
from ..service.settings.settings import Settings
from ..service.site import exit_table_file, users_file
from ..service.site.shards import in_turn
from ..service.site.startup_checks import check
from ..service.systemd import Notifier
from . import configuration
from .access.api_tokens import ApiTokens
from .access.audit import AuditTrail
from .access.authentication import Access
from .access.device_logins import DeviceLogins
from .access.request_rates import RequestRates
from .access.site_revocations import SiteRevocations
from .agents.calls import Calls
from .agents.debugging import ATTACH_SECS, Debugging
from .agents.orphans import start_all_known
from .api.routes import application
from .api.transport.request_handler import ApiContext
from .api.transport.response_limits import ResponseLimits
from .clusters.inventory import ClusterInventory
from .clusters.sign_in import SignIns
from .connections.driver_reports import DriverReports
from .connections.heartbeat import HeartbeatMonitor
from .connections.hub import Hub
from .connections.progress import Progress
from .connections.websocket import application as agents_application
from .core.interface.causes import Cause
from .core.interface.effects import Effect
from .core.interface.inputs import Now, SignedIn, SignedOut
from .driver_setup import DriverSet
from .effect_executor import EffectExecutor
from .engine.decision_loop import DurableJob, Engine
from .engine.event_feed import EventFeed
from .files.disk_meter import DiskMeter
from .files.disk_usage import DiskUsage
from .files.library_sync import LibrarySync
from .files.log_compaction import LogCompaction
from .files.retention_sweeper import RetentionSweeper
from .files.run_dir_reaper import RunDirReaper
from .files.run_dir_uploads import RunDirUploads
from .files.uploads import Uploads
from .files.user_library import Library
from .metrics.collector import CollectorSources
from .metrics.exporter import MetricsExporter
from .notifications.notifier import Notifications
from .process import process_limits, root_identity, site_secrets
from .process.connection_limits import ConnectionGuard
from .process.counters import Counters, process
from .process.event_log import EventLog, event_log
from .process.handover import EXIT_AGAIN, Handover
from .process.listeners import (
    Bound,
    ServerCertificate,
    bound,
    bound_path,
    certificate,
    pausing_listeners,
    port_of,
)
from .process.root_directory import RootDirectory
from .process.root_identity import RootIdentity
from .process.watchdog import Watchdog
from .runs import site_drains
from .runs.output_reader import ANSWER_SECS, OutputReader
from .runs.port_leases import PORTS, Leases
from .runs.registry_logins import RegistryLogins
from .runs.request_validation import MAX_BODY
from .runs.service import RunService
from .runs.shells import Shells
from .runs.site_drains import SiteDrains
from .runs.site_grants import SiteGrants
from .runs.why_facts import UserNames
from .standby.listening import Kind
from .standby.passing import Receiver
from .standby.sending import check_sends
from .streams.live_updates import LiveUpdates
from .tracing.id_lookup import Known
from .usage.samples import UsageSamples

if TYPE_CHECKING:
    from .standby.standby import Place

#: Retry interval while the store cannot be written.
STORE_RETRY_SECS = 0.5
#: Interval in which files of certificates are looked at.
CERTIFICATE_SECS = 5.0
#: Connections accepted in one iteration of the event loop.
ACCEPTED_AT_ONCE = 16
#: Folder of the Unix sockets in the root.
SOCKETS = "sockets"

Announce = Callable[[dict[str, Any]], None]


def main(
    settings: Settings,
    announce: Announce,
    *,
    front: str | None = None,
    notifier: Notifier | None = None,
) -> None:
    """Run until SIGTERM, SIGINT or a handover (then raise SystemExit). Call `announce({"url", "root", "pid"})` once requests are
    answered. Raise Refusal if the start fails.

    front: address of the front end on this machine, for client.json. notifier: receives readiness
    and watchdog messages (systemd).
    """
    resolve_all()
    check(settings)
    shared = settings.store.standby
    root = RootDirectory(settings.root, shared=shared)
    try:
        events = event_log(root.path, settings)
        with root.alone() if shared else contextlib.nullcontext():
            card = root_identity.compare(root, events)
            root_identity.write_key(root.path, card)
        process_limits.protect_memory()
        process_limits.shorten_switch_interval()
        processes.set_title("jobscribe supervisor", str(root.path))
        lag, handed_over = LoopLag(), threading.Event()
        notifier = notifier or Notifier({})
        lag.run(_serve(settings, root, card, events, announce, front, notifier, lag, handed_over))
    finally:
        root.close()
    if handed_over.is_set():
        raise SystemExit(EXIT_AGAIN)


async def _serve(
    settings: Settings,
    root: RootDirectory,
    card: RootIdentity,
    events: EventLog,
    announce: Announce,
    front: str | None,
    notifier: Notifier,
    lag: LoopLag,
    handed_over: threading.Event,
) -> None:
    announced = False

    def ready(url: str) -> None:
        nonlocal announced
        if not announced:
            announced = True
            announce({"url": url, "root": str(root.path), "pid": os.getpid()})

    place = None
    if settings.store.standby:
        from .standby.standby import stand_by  # needs psycopg

        exit_table_file.load(settings.exits.table)  # a takeover does not wait for it

        wall = clock.SystemClock().wall
        place = await stand_by(settings, root, events, card.id, wall, notifier, ready)
        if place is None:
            return
    async with AsyncExitStack() as stack:
        supervisor = _Supervisor(settings, root, card, events, front, notifier, lag, place)
        stack.push_async_callback(supervisor.close)
        resolve_all()  # those of the drivers and the store in use
        await supervisor.start()
        ready(supervisor.url)
        # Objects of the startup are never garbage. Without this, each full collection would block
        # the loop for tens of milliseconds.
        gc.freeze()
        lag.begin(supervisor.log)
        await supervisor.wait_until_stopped()
    if supervisor.handover.begun:
        handed_over.set()


def _unfenced() -> None:
    """Allow everything: only one supervisor uses this root."""


class _Supervisor:
    """All objects of one supervisor process, and the engine's `EngineCallbacks`. `close` closes
    them in reverse order of construction.
    """

    def __init__(
        self,
        settings: Settings,
        root: RootDirectory,
        card: RootIdentity,
        events: EventLog,
        front: str | None,
        notifier: Notifier,
        lag: LoopLag,
        place: "Place | None" = None,
    ) -> None:
        """place: of a supervisor that stood by, and has the lease."""
        self._settings, self._root, self._front, self._card = settings, root, front, card
        self._place = place
        #: ends the process if it lost its lease; called before anything is sent or started
        self._fence: Callable[[], object] = (
            _unfenced if place is None else place.claim.deadline.check
        )
        root.before_write = self._fence
        self._loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        self.handover = Handover(events.supervisors, self._stop_requested.set)
        self._fatal: Refusal | None = None
        self._boot_id, self._clock, self.url = clock.boot_id(), clock.SystemClock(), ""
        self._public: dict[str, str] = {}
        self._published_secret = ""
        self._redactor = Redactor()
        self._secrets = site_secrets.load(settings, root, self._redactor, self._clock.wall)
        self._agents_key = self._redactor.add(card.key).encode()
        self.log, self._sink = open_log(
            "supervisor", settings.log, self._redactor, stream=sys.stdout, root=str(root.path)
        )
        log_uncaught(self.log)
        self._undo_logging = capture_logging(self.log)
        self._counters = Counters()
        self._store = events.open(card.id, self._deliver, self._store_checkpoint, self.log)
        self._records = RecordWriter(
            root / "supervisor-job", self._records_failed, before=self._fence
        )
        self._feed = EventFeed(self._store)
        system = self._store.read(SYSTEM)
        self._session, self._rolled_back, self._serial_floor = (
            1 + last_session(system),
            is_rolled_back(system),
            serial_floor(system),
        )
        self._driver_reports = DriverReports(self.log, self._counters, self._agent_id)
        logins = RegistryLogins(self._redactor)
        self._driver_set = DriverSet(
            settings,
            root,
            self._driver_reports,
            self.log,
            self._redactor,
            self._agents_key,
            descriptors=process_limits.raise_descriptor_limit(),
            signed_in=lambda key: self._engine.tell(SignedIn(key)),
            logins=logins,
        )
        self._drivers, clusters = self._driver_set.drivers, self._driver_set.clusters
        self._clusters = ClusterInventory(clusters, usual_secs=settings.limits.time_limit_secs)
        drains, drained = root / "drains.json", site_drains.read(root / "drains.json")
        self._engine = Engine(
            configuration.policy(
                settings,
                self._drivers,
                self._driver_set.pool,
                clusters,
                self._serial_floor,
                self._driver_set.site_limits,
            ),
            self._store,
            self,
            drained,
        )
        table, shard = events.site_tables(self._store, self._deliver), settings.shard
        self._site_table = table
        self._revocations: SiteRevocations | None = None
        self._grants = (
            None
            if table is None or shard is None
            else SiteGrants(self._engine, table, shard, self._driver_set.site_limits, self.noticed)
        )
        self._drains = SiteDrains(self._engine, drains, drained, self._clock.wall)
        self._watchdog = Watchdog(notifier, self._store, self._status_line)
        self._progress = Progress(self._engine, self._counters)
        self._usage = UsageSamples(self._engine, self._counters, self._clock.monotonic)
        self._hub = Hub(
            self._engine,
            self._progress,
            self._usage,
            self.log,
            self._counters,
            self._agent_id,
            self._session,
            pace=HeartbeatTiming(
                settings.limits.ping_interval_secs, settings.limits.ping_timeout_secs
            ),
            apps=settings.apps.also,
        )
        self._hub.on_cluster_report = self._clusters.heard
        self._driver_reports.bind(self._engine, self._usage, self._hub.next_epoch)
        self._heartbeat = HeartbeatMonitor(self._hub)
        tasks = self._driver_set.task_drivers(self._send, secrets.token_bytes, self._ask_agent)
        self._task_drivers = tasks
        self._shells: Shells | None = None
        outputs = OutputReader(self._hub, tasks, secrets.token_bytes, self._remote_evidence)
        self._run_service = RunService(
            self._engine,
            self._feed,
            outputs,
            self._progress,
            self._counters,
            self.log,
            self.now,
            user_root=self._user_root(),
            apps=registry.names(settings.apps.also),
            drivers=self._drivers,
            evidence_root=str(root / "agent"),
            container=self._driver_set.container,
            batch=self._clusters.asked,
            names=UserNames(settings.server.uid_file, self._card.uid),
            cluster_news=self._clusters.news,
            logins=logins,
        )
        self._hub.is_watched = self._run_service.is_watched
        self._store.listen(logins.events)
        self._live = LiveUpdates(self._run_service)
        self._progress.heard = self._live.progressed
        self._live.drained(self._drains.drains)
        self._drains.heard = self._live.drained
        changes = self._live.changes
        self._run_service.kept = changes.watch
        self._engine.decided, self._engine.folded = changes.decided, changes.folded
        self._engine.reloaded = self._reloaded
        library = Library(
            self._user_root(), limit=settings.limits.upload_bytes, owner=self._driver_set.owner
        )
        self._disk = self._disk_meter()
        self._uploads = Uploads(library, self._disk)
        self._uploads.heard = self._live.stored
        self._run_dir_reaper = RunDirReaper(
            self._engine,
            self._store,
            self.log,
            self.now,
            user_root=self._user_root(),
            agents_root=str(self._root / "agent"),
            after_secs=settings.purge.after_secs,
            every_secs=settings.purge.every_secs,
            elsewhere=self._clusters.elsewhere,
        )
        self._retention = RetentionSweeper(
            self._engine,
            self._store,
            self.log,
            clock.SteadyClock(self._clock).wall,
            settings.retention,
            self._root.path,
        )
        self._log_compaction = LogCompaction(
            self._store,
            self.log,
            self._clock.wall,
            root=root.path,
            older_than_secs=settings.retention.events_secs,
            reload=self._engine.reload,
        )
        self._run_dir_reaper.removed = self._disk.removed
        self._notifications = Notifications(
            settings, root, self._store, self.log, self._counters, self._redactor, self._clock
        )
        self._servers: list[tornado.httpserver.HTTPServer] = []
        self._by_kind: dict[Kind, tornado.httpserver.HTTPServer] = {}
        self._receiver: Receiver | None = None
        self._certificates: list[ServerCertificate] = []
        self._secrets.follow(
            self._redactor, self.noticed, self.log, self._counters.add, self._publish_address
        )
        self._guard = ConnectionGuard(settings.limits, self._counters, self.log)
        self._metrics = MetricsExporter(
            CollectorSources(
                self._engine,
                self._hub,
                self._feed,
                self._live,
                lag,
                self._counters,
                self._clusters,
                self._watchdog,
                self._drivers,
                self._notifications,
                lines_lost=lambda: self._sink.dropped,
                altered=root.altered,
                retention=self._retention.total,
                compactions=self._log_compaction.state,
                secrets=self._secrets.problems,
                certificates=lambda: self._certificates,
                disk=self._disk.usage,
                grants=None if self._grants is None else self._grants.holder,
                lease_left=lambda: None if place is None else place.claim.deadline.left,
            ),
            root.path,
            self._user_root(),
            self._secrets.metrics,
            measure_log=events.measure,
        )
        self._effect_executor = EffectExecutor(
            self._drivers,
            tasks,
            self._engine,
            self._hub,
            self._driver_reports,
            self._run_service,
            self._run_dir_reaper,
            LibrarySync(
                library,
                self._hub,
                self.log,
                self._user_root(),
                secrets.token_bytes,
                self._clusters.apart,
            ),
            self._redactor,
            self.log,
            self._counters,
            agent_id=self._agent_id,
            driver_called=self._metrics.instruments.driver_call,
        )
        if self._grants is not None:
            self._effect_executor.grants_applied = self._grants.applied
        self._counters.measure(
            disk=self._disk.sizes,
            loop=lag.summary,
            engine=self._engine.sizes,
            run_service=self._run_service.sizes,
            effect_executor=self._effect_executor.sizes,
            hub=self._hub.sizes,
            places=self._driver_reports.sizes,
            live=self._live.sizes,
            metering=self._usage.sizes,
            process=process,
            connections=self._guard.sizes,
            retention=self._retention.sizes,
        )

    def _deliver(self, call: Callable[[], None]) -> None:
        """Run a store callback of the store's thread in the event loop's thread."""
        self._loop.call_soon_threadsafe(call)

    def _store_checkpoint(self, point: str) -> None:
        """Pass on a checkpoint of the store's writer. Runs in the writer's thread."""
        failpoints.reached("supervisor." + point)
        self._metrics.stored(point)

    # ---- the engine's ports

    def now(self) -> Now:
        return Now(
            self._clock.wall(), self._clock.monotonic(), self._boot_id, secrets.token_bytes(32)
        )

    def perform(self, effect: Effect, cause: Cause) -> None:
        self._fence()
        try:
            self._effect_executor.perform(effect, cause)
        except Exception as e:
            # One failed effect must not stop the others. Callers that wait for its result have a
            # deadline.
            self._counters.add("internal")
            self.log.exception("an effect failed: {}", type(effect).__name__, error=e, cause=cause)

    def projected(self, job: Job, position: int, at: float) -> None:
        self._records.mark(job, position, at)
        self._run_service.projected(job)
        self._usage.settle(job)
        self._disk.ended(job)
        self._live.changed(job, position)
        self._metrics.projected(job, position)

    def _reloaded(self, entry: DurableJob) -> None:
        """Write the record of a job that has less data in the log than before."""
        self._records.rewrite(entry.job, entry.position, entry.at)

    def connections(self) -> list[tuple[AgentKey, int, Alive]]:
        return [*self._hub.alive(), *self._driver_reports.alive()]

    def fatal(self, refusal: Refusal) -> None:
        """Stop the process because the store failed permanently. Jobs continue."""
        if self._fatal is None:
            self.log("the event store failed permanently: {}", refusal.sentence)
        self._fatal = refusal
        self._stop_requested.set()

    def noticed(self, what: str, detail: str) -> None:
        self._counters.add(what)
        self.log("{}: {}", what, detail)

    def broken(self, error: Exception) -> None:
        self._counters.add("internal")
        self.log.exception(
            "a decision failed; the state is restored from the event log", error=error
        )

    # ---- life

    async def start(self) -> None:
        # Each connection costs a handshake. Tornado would accept 128 at once and serve no other
        # request meanwhile.
        tornado.netutil._DEFAULT_BACKLOG = ACCEPTED_AT_ONCE
        s = self._settings.supervisor
        folder = self._root / SOCKETS
        if s.sockets:
            folder.mkdir(mode=0o700, exist_ok=True)
        agents, agents_url, link = self._agents_listener(folder)
        tls = certificate("agents", s.agents_tls_cert, s.agents_tls_key)
        public_tls = certificate("https", s.tls_cert, s.tls_key)
        self._certificates = [c for c in (tls, public_tls) if c is not None]
        pace = self._hub.pace
        self._root.publish(
            "agents.json",
            {
                "agentsUrl": agents_url,
                **link,
                **self._other_agents_urls(),
                "agentsCa": s.agents_tls_ca,
                "pingSecs": pace.interval,
                "pingTimeoutSecs": pace.timeout,
            },
        )
        self._heartbeat.start()
        await self._append(
            SupervisorStarted(
                at=self._clock.wall(),
                session=self._session,
                pid=os.getpid(),
                boot_id=self._boot_id,
                version=VERSION,
                root_id=self._card.id,
            )
        )
        root_identity.keep(self._root, self._card)
        catch_up(self._store, self._records)
        self._live.position = self._store.head()
        self._engine.start()
        if self._grants is not None:
            self._grants.start()
        # Listen only now: the engine would forget an agent that connects before the log is folded.
        self._listen(
            "agents",
            agents,
            self._guard.before(agents_application(self._hub), "rejected"),
            tls=tls,
        )
        self._driver_set.start()
        if self._rolled_back:
            start_all_known(self._root / "agent", self._drivers, self._run_service)
        self._run_dir_reaper.start()
        self._retention.start()
        self._log_compaction.start()
        self._disk.start()
        self._notifications.start()
        self._metrics.start()
        if s.sockets:
            front = bound_path(str(folder / "api"))
            url = unix_url(str(folder / "api"))
        else:
            front = bound(s.ip, s.port) if self._place is None else self._place.listening.api
            url = f"http://{s.ip}:{port_of(front)}"
        services = self._services()
        api = application(services)
        self._listen("api", front, self._guard.before(api, "refused", quick=api.take))
        if public_tls is not None:
            sockets = self._public_listener()
            self._public = {"publicUrl": f"https://{s.tls_ip}:{port_of(sockets)}"}
            self._listen(
                "public",
                sockets,
                self._guard.before(application(services), "refused"),
                tls=public_tls,
            )
        self.url = url
        if self._place is not None:
            try:
                path = Path(self._place.about.relay)
                self._receiver = Receiver(path, self._take_over, self._fence)
            except OSError as e:
                self.noticed("standbySocket", f"standbys cannot pass connections: {e}")
        self._publish_client_file()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_requested.set)
        self._store_retry = self._loop.create_task(self._retry_store())
        self._certificate_watch = self._loop.create_task(self._follow_certificates())
        self._secret_watch = self._loop.create_task(self._follow_secrets())
        self._watchdog.start()
        self.log(
            "supervisor session {} ready at {} root={} head={}",
            self._session,
            self.url,
            str(self._root.path),
            self._store.head(),
        )

    def _agents_listener(self, folder: Path) -> tuple[Bound, str, dict[str, str]]:
        """Return the agents' listener, its address, and fields of the address file."""
        s = self._settings.supervisor
        if s.sockets:
            path = str(folder / "agents")
            return bound_path(path), "ws://localhost/agent", {"link": path}
        agents = (
            bound(s.agents_ip, s.agents_port)
            if self._place is None
            else self._place.listening.agents
        )
        scheme = "wss" if s.agents_tls_cert else "ws"
        return agents, f"{scheme}://{s.agents_ip}:{port_of(agents)}/agent", {}

    def _other_agents_urls(self) -> dict[str, Any]:
        """Return the field of the address file with the addresses of the site's other supervisors."""
        s = self._settings.supervisor
        scheme = "wss" if s.agents_tls_cert else "ws"
        others = [f"{scheme}://{address}/agent" for address in s.agents_others]
        return {"agentsOthers": others} if others else {}

    def _public_listener(self) -> Bound:
        s = self._settings.supervisor
        found = None if self._place is None else self._place.listening.public
        return bound(s.tls_ip, s.tls_port) if found is None else found

    async def wait_until_stopped(self) -> None:
        """Return when the process is to stop. Raise Refusal if the store failed permanently."""
        await self._stop_requested.wait()
        if self._fatal is not None:
            raise self._fatal

    async def close(self) -> None:
        """Refuse new requests, wait until accepted ones are durable, and stop. Agents and jobs
        continue.
        """
        self._watchdog.close()
        self._run_service.draining = True
        if self._receiver is not None:
            self._receiver.close()
        for server in self._servers:
            server.stop()
        if hasattr(self, "_store_retry"):
            self._store_retry.cancel()
            self._certificate_watch.cancel()
            self._secret_watch.cancel()
        if self._revocations is not None:
            await self._revocations.close()
        if self._grants is not None:
            await self._grants.close()
        await self._live.close()
        await self._run_dir_reaper.close()
        await self._retention.close()
        await self._log_compaction.close()
        await self._disk.close()
        await self._notifications.close()
        await self._metrics.close()
        if self._shells is not None:
            await self._shells.close()
        await self._effect_executor.close()
        self._heartbeat.close()
        self._engine.tell_deferred()
        self._stop_idle_agents()
        await self._hub.close()
        if self._fatal is None and self.url:
            await self._append(
                SupervisorStopped(
                    at=self._clock.wall(), session=self._session, reason="told to stop"
                )
            )
        for server in self._servers:
            await server.close_all_connections()
        await self._uploads.close()
        self._feed.close()
        self._records.close()
        self._store.close()
        await self._driver_set.close()
        self.log("supervisor stopped")
        self._undo_logging()
        self._sink.close()

    def _status_line(self) -> str:
        """Return the status line for operators."""
        if self._engine.paused:
            return "the event store cannot be written: requests are refused, jobs continue"
        agents = self._engine.world.agents.values()
        placed, queued = (
            sum(len(a.placed) for a in agents),
            sum(len(a.queued) for a in agents) + len(self._engine.world.host_assignment.unassigned),
        )
        return f"ready at {self.url}: {placed} tasks running, {queued} runs queued, {len(self._hub.alive())} agents connected"

    def _stop_idle_agents(self) -> None:
        """Stop agents of this machine that have no runs. Agents with runs outlive the supervisor."""
        for key, _epoch, _alive in self._hub.alive():
            if (
                self._drivers[key.driver].capabilities.same_machine
                and not self._engine.world.agent(key).needed
            ):
                self._hub.send(key, Kill(reason="the supervisor stops and the agent has no runs"))

    def _publish_client_file(self) -> None:
        """Write address and secret for clients on this machine. Raises OSError."""
        token = self._secrets.server.current
        self._root.publish(
            "client.json",
            {
                "url": self.url,
                "token": token,
                "uid": self._card.uid,
                "pid": os.getpid(),
                "front": self._front,
                **self._public,
            },
        )
        self._published_secret = token

    def _publish_address(self) -> None:
        """Give clients on this machine the secret in use. A failure is repeated later: the earlier
        secret is accepted for a while.
        """
        if self.url and self._published_secret != self._secrets.server.current:
            try:
                self._publish_client_file()
            except OSError as e:
                self.log("client.json cannot be written: {}", e.strerror)

    async def _follow_secrets(self) -> None:
        """Use rotated secrets."""
        while True:
            await asyncio.sleep(site_secrets.LOOK_SECS)
            self._secrets.look()
            self._publish_address()

    async def _follow_certificates(self) -> None:
        """Use renewed certificates for new connections, and report those that expire."""
        while self._certificates:
            for found in self._certificates:
                for sentence in found.announce(self._clock.wall()):
                    self.noticed("certificateExpires", sentence)
            await asyncio.sleep(CERTIFICATE_SECS)
            for found in self._certificates:
                try:
                    if found.refresh():
                        self.log("a renewed certificate is in use")
                except Refusal as e:
                    self._counters.add("certificateRefused")
                    self.log("{}; the earlier one stays in use", e.sentence)

    async def _retry_store(self) -> None:
        while True:
            await asyncio.sleep(STORE_RETRY_SECS)
            self._engine.poke()
            self._root.repair(self.log)

    async def _append(self, event: Event) -> None:
        """Append one event to the system stream and wait until it is durable. Raise Refusal."""
        done: asyncio.Future[Appended | Refusal] = self._loop.create_future()
        system = self._store.read(SYSTEM)
        version = system[-1].version if system else 0
        self._store.append(Batch(writes=(Write(SYSTEM, version, (event,)),)), done.set_result)
        result = await done
        if isinstance(result, Refusal):
            raise result

    # ---- parts

    def _services(self) -> ApiContext:
        limits = self._settings.limits
        calls = Calls(
            self._run_service,
            self._hub,
            self._counters,
            secrets.token_bytes,
            call_secs=limits.call_secs,
            per_user=limits.calls_per_user,
            copied=self._clusters.apart,
        )
        leases = Leases(
            self._root / "leases.json",
            clock.SteadyClock(self._clock).wall,
            lease_secs=limits.lease_secs,
            ports=in_turn(PORTS, self._settings.shard),
        )
        unsent = ResponseLimits()
        unsent.stalled = lambda: self._counters.add("stalled")
        run_dir_uploads = RunDirUploads(calls, limits.upload_bytes, self._disk)
        self._counters.measure(
            unsent=unsent.sizes, calls=calls.sizes, run_dir_uploads=run_dir_uploads.sizes
        )
        access = self._access()
        self._run_service.check_user = access.check_shard
        self._shells = Shells(
            self._run_service,
            self._task_drivers,
            access.audit,
            self._clock.wall,
            secrets.token_bytes,
            enabled=self._settings.auth.shells,
            recordings=self._settings.debugger.recordings,
        )
        self._counters.measure(shells=self._shells.sizes)
        return ApiContext(
            self._run_service,
            calls,
            self._live,
            self._uploads,
            run_dir_uploads,
            leases,
            access,
            self._secrets.server,
            unsent,
            self._usage,
            self._metrics,
            self._sign_ins(),
            self._clusters,
            self._notifications,
            Known(agent_id=self._agent_id, container=self._driver_set.container),
            lambda: self._sink.flush(1.0),
            self._retention,
            self._log_compaction,
            self._disk.usage,
            self._device_logins(access),
            self._debugging(access),
            self._shells,
            lambda: show(self._settings),
            self._drains,
            self.handover,
        )

    def _debugging(self, access: Access) -> Debugging:
        limits = self._settings.debugger
        out = Debugging(
            self._run_service,
            self._task_drivers,
            access.audit,
            secrets.token_bytes,
            allowed=limits.allowed,
            most_secs=limits.wait_secs,
        )
        self._counters.measure(debugging=out.sizes)
        self._run_service.check_options = self._options_check(out)
        return out

    def _options_check(self, debugging: Debugging) -> Callable[[RunSpec], None]:
        allowed, runs = self._settings.profiler.allowed, self._run_service

        def check(spec: RunSpec) -> None:
            debugging.check(spec)
            containers = runs.drivers[runs.driver(spec.driver)].capabilities.containers
            in_containers = bool(spec.roles) and containers
            profiling.check(spec.profile, allowed=allowed, in_containers=in_containers)

        return check

    def _device_logins(self, access: Access) -> DeviceLogins:
        front = self._settings.server.public_url or self._front
        page = None if front is None else f"{front.rstrip('/')}/{device_logins.PAGE}"
        out = DeviceLogins(
            access.tokens, access.rates, self._clock.monotonic, secrets.token_bytes, page
        )
        self._counters.measure(device_logins=out.sizes)
        if self._site_table is not None:
            self._revocations = SiteRevocations(access.tokens, out, self._site_table, self.noticed)
            self._revocations.start()
        return out

    def _access(self) -> Access:
        tokens = ApiTokens(self._engine, self._clock.wall, secrets.token_bytes)
        audit = AuditTrail(self._engine, self._clock.wall)
        self._counters.measure(api_tokens=tokens.sizes, audit=audit.sizes)
        users = users_file.load(self._settings.auth.users)
        limits = self._settings.limits
        rates = RequestRates(
            limits.token_requests_per_sec, limits.token_burst, self._clock.monotonic
        )
        self._counters.measure(request_rates=rates.sizes)
        return Access(
            self._secrets.server,
            self._metrics.admits,
            tokens,
            users,
            audit,
            rates,
            open_lists=self._settings.auth.open_lists,
            shard=self._settings.shard,
        )

    def _sign_ins(self) -> SignIns | None:
        if self._driver_set.clusters is None or self._driver_set.sbatch is None:
            return None
        out = SignIns(
            self._driver_set.clusters,
            self._driver_set.sbatch,
            self._redactor,
            self._counters,
            self.log,
            agent_up=self._agent_up,
            view=lambda key: self._engine.world.agent(key),
            dismiss=self._hub.dismiss,
            signed_out=lambda key: self._engine.tell(SignedOut(key)),
        )
        self._counters.measure(sign_ins=out.sizes, clusters=self._clusters.sizes)
        return out

    def _agent_up(self, key: AgentKey) -> bool:
        return key in self._hub.connections

    def _listen(
        self,
        kind: Kind,
        sockets: Bound,
        guarded: GuardedServer,
        *,
        tls: ServerCertificate | None = None,
    ) -> None:
        context = None if tls is None else tls.context
        server = http_server(guarded, tls=context, body=MAX_BODY)
        if self._place is not None:
            check_sends(server, self._fence)
            self._by_kind[kind] = server
        server.add_sockets(pausing_listeners(sockets, self.noticed, self._guard.make_room))
        self._servers.append(server)

    def _take_over(self, kind: Kind, connection: socket.socket) -> None:
        """Serve a connection that a standby accepted."""
        server = self._by_kind.get(kind)
        if server is None:
            connection.close()
        else:
            server._handle_connection(connection, connection.getpeername())

    def _agent_id(self, key: AgentKey) -> str:
        """Return the agent's id. It is derived from the key, so it survives restarts and appears in
        no log.
        """
        return derived_id(str(key).encode(), key=self._agents_key)

    def _disk_meter(self) -> DiskMeter:
        meter = DiskMeter(
            DiskUsage(self._engine.policy.queues, self._user_root()),
            self.log,
            self._root / "disk-usage.json",
            user_root=self._user_root(),
            agents_root=str(self._root / "agent"),
            mono=self._clock.monotonic,
            wall=self._clock.wall,
        )
        self._run_service.quota_refusal = meter.refusal
        self._run_service.quota_warning = meter.usage.warning
        return meter

    def _user_root(self) -> str:
        return self._settings.user_root or str(self._root / "user")

    async def _ask_agent(self, key: AgentKey, op: Question) -> Answer:
        """Ask for the `KeeperTaskDriver`."""
        match op:
            case OpenShell() | ShellIo():
                wait = op.wait_secs if isinstance(op, ShellIo) else 0.0
                return await self._hub.ask(key, op, wait + ANSWER_SECS, ShellOutput)
            case ListStops():
                return await self._hub.ask(key, op, ANSWER_SECS, Stops)
            case AttachDebugger():
                return await self._hub.ask(key, op, ATTACH_SECS, DebuggerOutput)
            case DebuggerIo():
                return await self._hub.ask(key, op, op.wait_secs + ANSWER_SECS, DebuggerOutput)

    def _send(self, key: AgentKey, message: ToAgent) -> None:
        if not self._hub.send(key, message):
            self._counters.add("sendWithoutConnection")

    def _remote_evidence(self, task: Task) -> str | None:
        """Return the evidence folder of a task on a cluster, which only its agent can read. None
        for other drivers.
        """
        return (
            self._run_service.evidence_folder(task) if task.agent_key.driver == "sbatch" else None
        )

    def _records_failed(self, sentence: str) -> None:
        self._counters.add("recordNotWritten")
        self.log("a record could not be written: {}", sentence)
