"""Starts tasks in containers: pull the images, use the token, then create network and container,
and start it.

Until the token is used, nothing is on disk, and a repeated request starts from the beginning. After
that, every step can be repeated: the container's name is unique to the token, its id is recorded
before the start, and only a container that never ran is started.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ....protocol.errors import Refusal
from ....protocol.execution.table import STARTED_BEFORE, STOPPED_BEFORE
from ....protocol.ids import op_id
from ....protocol.jobs import profiling
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.jobs.notices import IMAGE_PULLED, IMAGE_PULLING
from ....protocol.jobs.registry_login import LoginRef
from ....protocol.launch.job_script import export_lines, script
from ....protocol.wire.messages import Shared, TaskSpec
from ....runtime.execution.folder import JOB, SCRIPT
from ..agents.driver import DockerDriver
from ..containers import exit_status, names, specifications, ssh_files
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine
from ..images.image_store import NO_LOGINS, ImageFault, OwnLogins
from .init_script import STOP_MARK, WRAPPER, init_script
from .ledger import TaskRequest, make_folders_below, replace_file
from .networks import GangNetworks, SubnetTaken
from .state import ContainerPlace, TaskState

#: Concurrent creations and starts on one host.
AT_ONCE = 4
_AGAIN_SECS = 1.0
_HOST_DOWN_CODES = ("unreachable", "timeout", "badTls")
#: Maximum number of starts of a container whose OCI runtime fails before the first process.
_STARTS = 3


class Refused(Exception):
    """A task that cannot be started. fault: a key of exit_info.FAULTS."""

    def __init__(self, sentence: str, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.fault = sentence, fault


class TaskStarter:
    """Starts tasks. on_ended(task, exit): called for a task that never started. on_started(task):
    called when its container was started. on_noticed(task): called for a new notice about it.
    """

    def __init__(
        self,
        driver: DockerDriver,
        networks: GangNetworks,
        on_ended: Callable[[TaskState, ExitInfo], Any],
        on_started: Callable[[TaskState], Any],
        on_noticed: Callable[[TaskState], Any],
    ) -> None:
        self._driver, self._networks = driver, networks
        self._on_ended, self._on_started, self._on_noticed = on_ended, on_started, on_noticed
        self._start_slots = {name: asyncio.Semaphore(AT_ONCE) for name in driver.engines}

    async def start_all(
        self, place: ContainerPlace, tasks: Sequence[TaskState], shared: Shared | None
    ) -> None:
        """Start all tasks of one attempt. All images are present before the first container is
        created.
        """
        # the first task of each image tells of its pull
        wanted = {self._wanted(t): t for t in reversed(tasks)}
        found = dict(
            zip(
                wanted,
                await asyncio.gather(*(self._ensure_image(t, *w) for w, t in wanted.items())),
                strict=True,
            )
        )
        ready: list[tuple[TaskState, str]] = []
        for task in tasks:
            match found[self._wanted(task)]:
                case ImageFault() as fault:
                    await self.fail_start(task, Refused(fault.sentence, fault.fault))
                case EngineError():
                    # Nothing is stored, so a repeated request starts from the beginning.
                    if _may_start(task) and task.request is None:
                        place.tasks.pop(task.token, None)
                case str(id_):
                    ready.append((task, id_))
        await self._prepare(place, [t for t, _ in ready], shared)
        await asyncio.gather(
            *(self._launch(t, id_) for t, id_ in ready if t.request is not None and _may_start(t))
        )

    async def resume(self, task: TaskState) -> None:
        """Start a container that was created, but never started."""
        try:
            await self._start(task, self._driver.engines[task.place.key.host], None)
        except Refused as e:
            await self.fail_start(task, e)

    async def bar_start(self, task: TaskState) -> bool:
        """End a stopped task before its start, and bar all later starts. Return False if it may
        have started. Raises EngineError while its host is down.
        """
        async with task.start_lock:
            why = Refused(STOPPED_BEFORE)
            if task.container is not None and not task.start_requested and not task.life.ended:
                engine = self._driver.engines[task.place.key.host]
                try:
                    if await self._has_run(task, engine):
                        self._on_started(task)
                    else:
                        await self._remove_unstarted(task, engine)
                except EngineError as e:
                    if e.code in _HOST_DOWN_CODES:
                        raise
                    why = Refused(e.sentence, "engineRefused")
            if not task.start_requested:
                await self._end_unstarted(task, why)
            return not task.start_requested

    async def fail_start(self, task: TaskState, why: Refused) -> None:
        """End a task whose start failed, and bar all later starts."""
        async with task.start_lock:
            await self._end_unstarted(task, why)

    async def _end_unstarted(self, task: TaskState, why: Refused) -> None:
        if task.life.ended:
            return
        exit_ = task.never_started(why.sentence, why.fault)
        with contextlib.suppress(OSError):  # if the disk is full, the exit is in memory only
            request = TaskRequest(token=str(task.token), run_dir="/")
            if task.request is None and not await self._take_token(task, request):
                return
            files = task.place.files
            if task.life.stopping:
                stop = task.stop_record(signaled=task.life.signaled)
                await asyncio.to_thread(files.note_stop, task.token, stop, STOP_MARK)
            await asyncio.to_thread(files.note_exit, task.token, exit_)
        if task.life.stopping:
            task.life.start_barred()
        self._on_ended(task, exit_)

    async def _take_token(self, task: TaskState, request: TaskRequest) -> bool:
        """Use the token. Return False if it was used before; the task has then ended."""
        taken = await asyncio.to_thread(task.place.files.take_token, request, task.token)
        if taken:
            task.claim(request)
        else:
            self._on_ended(task, task.never_started(STARTED_BEFORE))
        return taken

    # ---- before the token is used

    def _wanted(self, task: TaskState) -> tuple[str, LoginRef | None]:
        """Return the image of a task and the reference to its user's credentials."""
        login = task.box.login
        image = task.box.image
        if image is None or not isinstance(login, LoginRef):
            return image or self._driver.pool.image, None
        return image, login

    async def _ensure_image(
        self, task: TaskState, image: str, login: LoginRef | None
    ) -> str | ImageFault | EngineError:
        own, key = NO_LOGINS, task.place.key
        if login is not None:
            own = OwnLogins(login.registries, self._driver.logins(key.uid, login))

        def note(code: str) -> None:
            if _may_start(task):
                task.note_pull(code, image)
                self._on_noticed(task)

        try:
            id_ = await self._driver.images[key.host].ensure(
                image, own, lambda: note(IMAGE_PULLING)
            )
        except (ImageFault, EngineError) as e:
            return e
        if task.pull_notices:
            note(IMAGE_PULLED)
        return id_

    async def _prepare(
        self, place: ContainerPlace, tasks: Iterable[TaskState], shared: Shared | None
    ) -> None:
        """Use the tokens and write the evidence folders. Tasks that were stopped meanwhile are
        skipped.
        """
        lines = export_lines(shared.env) if shared is not None else ""
        for task in tasks:
            if not _may_start(task):
                continue
            assert task.spec is not None
            network = (
                names.network(task.token, self._driver.deployment)
                if task.box.subnet is not None
                else None
            )
            request = TaskRequest(
                token=str(task.token),
                run_dir=task.spec.run_dir,
                limit=task.spec.time_limit_secs,
                grace=task.spec.grace_secs,
                keep=task.box.keep,
                network=network,
            )
            try:
                async with task.start_lock:
                    # checked again under the lock
                    if not _may_start(task) or not await self._take_token(task, request):
                        continue
                    await asyncio.to_thread(
                        self._write_evidence, task, shared.job if shared else None, lines
                    )
            except OSError as e:
                await self.fail_start(
                    task,
                    Refused(
                        f"its evidence folder cannot be written: {e.strerror}: {e.filename}",
                        "notWritable",
                    ),
                )
            except Refusal as e:
                await self.fail_start(task, Refused(e.sentence))
        await asyncio.to_thread(place.files.sync)

    def _write_evidence(self, task: TaskState, job: str | None, lines: str) -> None:
        spec, uid, users = task.spec, task.place.key.uid, self._driver.unix_users
        assert spec is not None
        own, user_dir = users.ids(uid), f"{self._driver.user_root}/{uid}"
        users.make_owned_folder(user_dir, uid)
        if spec.run_dir.startswith(f"{user_dir}/"):
            make_folders_below(user_dir, spec.run_dir, own)
        spec = self._with_modules(task, spec, own)
        texts = {
            SCRIPT: script(task.token, spec, {}, task.folder, shared=lines),
            WRAPPER: init_script(
                task.folder,
                spec.run_dir,
                limit_secs=spec.time_limit_secs,
                grace_secs=spec.grace_secs,
                ssh=(task.box.address or ssh_files.LOCAL, task.box.ssh_port or 0)
                if self._has_ssh(task)
                else None,
            ),
        }
        if job is not None:
            texts[JOB] = job
            if self._has_ssh(task):
                self._write_ssh(task, job)
        for name, text in texts.items():
            replace_file(
                task.folder,
                name,
                text.encode("utf-8", "surrogateescape"),
                0o700 if name != JOB else 0o600,
            )
            users.chown(f"{task.folder}/{name}", uid)
        users.chown(task.folder, uid)  # last, so that the user cannot interfere before

    def _with_modules(self, task: TaskState, spec: TaskSpec, own: tuple[int, int]) -> TaskSpec:
        """Return the task with remote debugging and its profile, if its run has them: the processes
        load modules from the evidence.
        """
        profiled = profiling.option(spec.profile) is not None
        spec, modules = self._driver.staged(task.token, spec, task.folder)
        for path, content in modules.items():
            folder, _, name = path.rpartition("/")
            make_folders_below(task.folder, f"{task.folder}/{folder}", own)
            replace_file(f"{task.folder}/{folder}", name, content)
        if profiled:  # for retention
            replace_file(task.folder, profiling.MARKER, b"")
        return spec

    def _has_ssh(self, task: TaskState) -> bool:
        return task.box.ssh_port is not msgspec.UNSET

    def _write_ssh(self, task: TaskState, job: str) -> None:
        """Write the ssh files of a task, with the keys of its attempt."""
        files, uid = task.place.files, task.place.key.uid
        own = self._driver.unix_users.ids(uid)
        found = files.ssh_of_attempt(task.token)
        keys = ssh_files.make_keys() if found is None else ssh_files.read_keys(found)
        home = f"{self._driver.user_root}/{uid}"
        network = task.box.address is not None
        made = ssh_files.files(keys, job, own, home, network=network)
        files.write_ssh(task.token, made, own)

    # ---- after it

    async def _launch(self, task: TaskState, image: str) -> None:
        async with self._start_slots[task.place.key.host]:
            try:
                await self._start(task, self._driver.engines[task.place.key.host], image)
            except Refused as e:
                await self.fail_start(task, e)

    async def _start(self, task: TaskState, engine: HostEngine, image: str | None) -> None:
        """Try repeatedly until the container is started, the start fails or the task is stopped.
        Waits while the host is down.
        """
        while _may_start(task):
            try:
                async with task.start_lock:
                    if image is not None and _may_start(task):
                        await self._networks.ensure(task, engine)
                        await self._create(task, engine, image)
                    if _may_start(task) and await self._start_container(task, engine):
                        self._on_started(task)
                        return
            except SubnetTaken as e:
                raise Refused(e.sentence, "subnetTaken") from None
            except EngineError as e:
                if e.code not in _HOST_DOWN_CODES:
                    raise Refused(e.sentence, "engineRefused") from None
                await asyncio.sleep(_AGAIN_SECS)

    async def _create(self, task: TaskState, engine: HostEngine, image: str) -> None:
        if task.container is not None:
            return
        key, driver = task.place.key, self._driver
        assert task.request is not None
        try:
            creation = specifications.task_container(
                driver.pool,
                name=names.task(key.uid, task.token, driver.deployment),
                image=image,
                box=task.box,
                token=task.token,
                labels=names.task_labels(
                    driver.deployment, key, task.token, op_id(task.token, "run"), time.time()
                ),
                user=driver.unix_users.ids(key.uid),
                evidence=task.folder,
                user_dir=f"{driver.user_root}/{key.uid}",
                log_driver=driver.log_drivers.choose(key.host),
                core_bytes=0 if task.spec is None else task.spec.core_bytes,
                network=task.request.network,
                declared=driver.images[key.host].volumes.get(image, ()),
                ssh=task.place.files.ssh_folder(task.token) if self._has_ssh(task) else None,
            )
        except Refusal as e:
            raise Refused(e.sentence, "volumeRefused") from None
        try:
            created = await engine.call(
                f"make container {creation.name}",
                lambda c: c.create_container_from_config(creation.config, creation.name),
            )
            id_ = str(created["Id"])
        except EngineError as e:
            if e.code != "conflict":
                raise
            id_ = await self._find_created(task, engine, creation.name, e)
        await asyncio.to_thread(task.place.files.note_container, task.token, id_)
        task.container = id_
        task.log(
            "{} running: {}", str(task.token), specifications.docker_run(creation, engine.host)
        )

    async def _find_created(
        self, task: TaskState, engine: HostEngine, name: str, error: EngineError
    ) -> str:
        """Return the container that an earlier request created without an answer."""
        container = await inspect(engine, name)
        labels = {} if container is None else container["Config"]["Labels"] or {}
        if (
            container is None
            or not names.is_ours(labels, self._driver.deployment, "task")
            or labels.get(names.TOKEN) != str(task.token)
        ):
            raise Refused(error.sentence, "engineRefused")
        return str(container["Id"])

    async def _start_container(self, task: TaskState, engine: HostEngine) -> bool:
        """Start the container. False: create it again. A container that has run is never started
        again.
        """
        id_ = task.container
        assert id_ is not None
        for left in reversed(range(_STARTS)):
            container = await inspect(engine, id_)
            if container is None or not exit_status.never_started(container["State"]):
                return True  # the observer finds its state
            try:
                await engine.call(
                    f"start container {container['Name'].lstrip('/')}", lambda c: c.start(id_)
                )
                return True
            except EngineError as e:
                if (
                    self._driver.log_drivers.fall_back(engine.name, e.sentence)
                    and task.spec is not None
                ):
                    await self._remove_unstarted(task, engine)
                    return False
                if e.code in _HOST_DOWN_CODES:
                    raise
                after = await inspect(engine, id_)
                if after is None or not exit_status.never_started(after["State"]):
                    return True
                state = after["State"] | {"Error": after["State"].get("Error") or e.sentence}
                if not left or task.life.stopping or not exit_status.runtime_failed(state):
                    exit_ = exit_status.task_exit(state)
                    raise Refused(
                        exit_.detail or e.sentence, exit_.fault or "engineRefused"
                    ) from None
                task.log("{} is started again: {}", str(task.token), e.sentence)
                await asyncio.sleep(_AGAIN_SECS)
        raise AssertionError("the last one returns or raises")

    async def _has_run(self, task: TaskState, engine: HostEngine) -> bool:
        """Return whether its container was started, although no answer said so."""
        assert task.container is not None
        container = await inspect(engine, task.container)
        return container is not None and not exit_status.never_started(container["State"])

    async def _remove_unstarted(self, task: TaskState, engine: HostEngine) -> None:
        """Remove a container that was never started."""
        if task.container is not None:
            await remove(engine, task.container, force=True)
            task.container = None


def _may_start(task: TaskState) -> bool:
    return not (task.life.ended or task.life.stopping or task.start_requested)
