"""Creates the configured drivers, starts their background work, and closes them."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..agent.breakpoints import environment as breakpoints
from ..agent.profiles import environment as profiles
from ..drivers.contracts import AgentDriver, TaskDriver
from ..drivers.deployment_name import deployment
from ..drivers.keeper_tasks import Ask, KeeperTaskDriver, Send
from ..drivers.sbatch.driver import SbatchDriver
from ..drivers.task_router import TaskRouter
from ..protocol.clusters.cluster import Clusters
from ..protocol.clusters.container_pool import Pool
from ..protocol.errors import Refusal
from ..protocol.ids import AgentKey, AgentKind, Token
from ..protocol.redaction import Redactor
from ..protocol.wire.messages import TaskSpec
from ..runtime.log.logger import Log
from ..service.settings.settings import Settings
from ..service.site import cluster_file, pool_file, shards
from ..service.site.startup_checks import warnings
from . import configuration
from .connections.driver_reports import DriverReports
from .core.interface.grants import runs_name
from .process.root_directory import RootDirectory
from .runs.registry_logins import RegistryLogins


class DriverSet:
    """The drivers in use by name, the default driver first. pool, clusters: None unless the Docker
    or Slurm driver is in use.
    """

    def __init__(
        self,
        settings: Settings,
        root: RootDirectory,
        driver_reports: DriverReports,
        log: Log,
        redactor: Redactor,
        key: bytes,
        *,
        descriptors: int,
        signed_in: Callable[[AgentKey], None],
        logins: RegistryLogins,
    ) -> None:
        """key: secret of the data directory. descriptors: open files that agents of this machine
        and their jobs may have.
        """
        self.drivers: dict[str, AgentDriver] = {}
        self.pool: Pool | None = None
        self.clusters: Clusters | None = None
        #: limits of the whole site of which this shard has a part that changes, by name
        self.site_limits: dict[str, int] = dict(settings.site_limits)
        self.sbatch: SbatchDriver | None = None
        self._signed_in, self._logins = signed_in, logins
        self._watchers: list[Callable[[], None]] = []
        self._closed_first: list[Callable[[], Awaitable[None]]] = []
        #: unix uid and gid of a user's files, if they differ from this process's own
        self.owner: Callable[[str], tuple[int, int] | None] = lambda uid: None
        #: name of the container of a task, None outside containers
        self.container: Callable[[AgentKey, Token], str | None] = lambda key, token: None
        self._containers: TaskDriver | None = None
        for warning in warnings(settings):
            log("{}", warning)
        for name in settings.drivers.use:
            match name:
                case "local":
                    self.drivers[name] = configuration.local_driver(
                        settings, root, descriptors=descriptors
                    )
                case "docker":
                    assert settings.docker.pool is not None  # required by the settings
                    self.pool = shards.pool_of(
                        pool_file.load(settings.docker.pool, (str(root.path), settings.user_root)),
                        settings.shard,
                    )
                    self.drivers[name] = self._docker(
                        settings, root, self.pool, driver_reports, log, redactor, key
                    )
                case "sbatch":
                    assert settings.sbatch.clusters is not None  # required by the settings
                    whole = cluster_file.load(settings.sbatch.clusters)
                    self.clusters = shards.clusters_of(whole, settings.shard)
                    if settings.shard is not None:
                        self.site_limits |= {runs_name(c.name): c.runs for c in whole.clusters}
                    self.drivers[name] = self.sbatch = self._sbatch(
                        settings, root, self.clusters, log, redactor, key
                    )
                case _:
                    raise Refusal("badConfig", f"drivers.use: there is no driver {name!r}")

    def _docker(
        self,
        settings: Settings,
        root: RootDirectory,
        pool: Pool,
        driver_reports: DriverReports,
        log: Log,
        redactor: Redactor,
        key: bytes,
    ) -> AgentDriver:
        try:
            from ..drivers.docker.agents.driver import DockerDriver
            from ..drivers.docker.containers import names
            from ..drivers.docker.tasks.controller import ContainerTaskController
        except ImportError as e:
            raise Refusal(
                "badConfig",
                f"the Docker driver needs a package that is not installed ({e.name}); run: "
                "pip install 'jobscribe[docker]'",
            ) from None
        deployment_name = deployment(key)
        driver = DockerDriver(
            pool,
            root.path,
            settings.user_root,
            deployment=deployment_name,
            address=lambda: _address(root),
            log=log,
            redactor=redactor,
            reporter=driver_reports,
            agent_settings=configuration.agent_settings(settings),
            keeper_settings=configuration.keeper_settings(settings),
            logins=self._logins.find,
            staged=_staged,
        )
        output = settings.output
        tasks = self._containers = ContainerTaskController(
            driver, log, head=output.head_bytes, tail=output.tail_bytes
        )
        self._watchers.append(driver.watch)
        self._closed_first.append(tasks.close)
        self.owner = driver.unix_users.ids
        self.container = lambda key, token: _container(names, key, token, deployment_name)
        return driver

    def _sbatch(
        self,
        settings: Settings,
        root: RootDirectory,
        clusters: Clusters,
        log: Log,
        redactor: Redactor,
        key: bytes,
    ) -> SbatchDriver:
        return SbatchDriver(
            clusters,
            root.path,
            settings.user_root,
            deployment=deployment(key),
            address=lambda: _address(root),
            log=log,
            redactor=redactor,
            agent_settings=configuration.agent_settings(settings),
            keeper_settings=configuration.keeper_settings(settings),
            signed_in=self._signed_in,
        )

    def task_drivers(
        self, send: Send, entropy: Callable[[int], bytes], ask: Ask
    ) -> dict[str, TaskDriver]:
        """Return the task driver of each driver by name. send, ask: see KeeperTaskDriver."""
        keeper = KeeperTaskDriver(send, self.drivers, entropy, ask)
        drivers: dict[str, TaskDriver] = dict.fromkeys(self.drivers, keeper)
        if self._containers is not None:
            drivers["docker"] = TaskRouter(containers=self._containers, agents=keeper)
        return drivers

    def start(self) -> None:
        """Start to watch hosts. Agents can connect already."""
        for watch in self._watchers:
            watch()

    async def close(self) -> None:
        """Close all drivers. Agents, tasks and jobs continue."""
        for close in self._closed_first:
            await close()
        for driver in self.drivers.values():
            await driver.close()


def _staged(token: Token, spec: TaskSpec, evidence: str) -> tuple[TaskSpec, Mapping[str, bytes]]:
    """Return a task in a container with its debugger and profile, and the files for them."""
    spec, debugger = breakpoints.staged(spec, evidence)
    spec, profiler = profiles.staged(token, spec, evidence)
    return spec, {**debugger, **profiler}


def _container(names: Any, key: AgentKey, token: Token, deployment_name: str) -> str | None:
    if key.driver != "docker":
        return None
    name: str = (
        names.task(key.uid, token, deployment_name)
        if key.kind == AgentKind.CONTAINER
        else names.agent(key)
    )
    return name


def _address(root: RootDirectory) -> dict[str, Any]:
    """Return the address of the agents' listener that the supervisor has published."""
    published: dict[str, Any] = json.loads((root / "agents.json").read_bytes())
    return published
