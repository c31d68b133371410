"""From a task as it was asked for to a container that runs it: images first, then its token is
used, then network, container, start.

Until the token is used nothing is on disk, and who asks again begins anew. After that every step
can be done again: a container is made under a name that is the token's alone, its id is written
down before it is started, and only one that never ran is started.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....protocol.errors import Refusal
from ....protocol.ids import op_id
from ....protocol.jobs.exit_info import ExitInfo
from ....protocol.launch.job_script import export_lines, script
from ....protocol.wire.messages import Shared
from ....runtime.execution.folder import JOB, SCRIPT
from ....runtime.log.logger import Log
from ..agents.driver import DockerDriver
from ..containers import exit_status, names, specifications
from ..host.container_calls import inspect, remove
from ..host.engine import EngineError, HostEngine
from ..images.image_store import ImageFault
from .init_script import STOP_MARK, WRAPPER, wrapper
from .ledger import Asked, make_below, put
from .networks import GangNetworks, SubnetTaken
from .state import ContainerPlace, TaskState

BEFORE = "it was started before"
STOPPED_BEFORE = "stopped before it started"
#: Containers of one host that are made and started at a time.
AT_ONCE = 4
_AGAIN_SECS = 1.0
_AWAY = ("unreachable", "timeout", "badTls")
#: A container whose runtime failed before there was a process in it is started so many times in
#: all.
_STARTS = 3


class Refused(Exception):
    """It cannot be started. fault: see exits.FAULTS."""

    def __init__(self, sentence: str, fault: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence, self.fault = sentence, fault


class TaskStarter:
    """ended(task, exit): it never began. began(task): its container was started; look at it."""

    def __init__(
        self,
        driver: DockerDriver,
        log: Log,
        networks: GangNetworks,
        ended: Callable[[TaskState, ExitInfo], Any],
        began: Callable[[TaskState], Any],
    ) -> None:
        self._driver, self._log, self._networks, self._ended, self._began = (
            driver,
            log,
            networks,
            ended,
            began,
        )
        self._turns = {name: asyncio.Semaphore(AT_ONCE) for name in driver.engines}

    async def begin(
        self, place: ContainerPlace, tasks: Sequence[TaskState], shared: Shared | None
    ) -> None:
        """All of one attempt: every image is there before the first container is made."""
        wanted = {self._image(t) for t in tasks}
        found = dict(
            zip(wanted, await asyncio.gather(*(self._have(place, i) for i in wanted)), strict=True)
        )
        ready: list[tuple[TaskState, str]] = []
        for task in tasks:
            match found[self._image(task)]:
                case ImageFault() as fault:
                    await self.refuse(task, Refused(fault.sentence, fault.fault))
                case EngineError():
                    if (
                        _may_begin(task) and task.asked is None
                    ):  # nothing of it is anywhere: who asks again begins anew
                        place.tasks.pop(task.token, None)
                case str(id_):
                    ready.append((task, id_))
        await self._prepare(place, [t for t, _ in ready], shared)
        await asyncio.gather(
            *(self._launch(t, id_) for t, id_ in ready if t.asked is not None and t.exit is None)
        )

    async def resume(self, task: TaskState) -> None:
        """Its container was made and never started."""
        try:
            await self._start(task, self._driver.engines[task.place.key.host], None)
        except Refused as e:
            await self.refuse(task, e)

    async def forbid(self, task: TaskState) -> None:
        """It was stopped; unless its token is in use already, it ends before it began, and can
        never begin any more.
        """
        async with task.using:
            if task.asked is not None or task.exit is not None or task.stop is None:
                return
            exit_ = ExitInfo(
                source="start",
                detail=STOPPED_BEFORE,
                stop_reason=task.stop.reason,
                ended_at=time.time(),
            )
            await self._never(task, exit_)

    async def refuse(self, task: TaskState, why: Refused) -> None:
        """It did not begin, and cannot begin any more."""
        if task.exit is not None:
            return
        stop = None if task.stop is None else task.stop.reason
        exit_ = ExitInfo(
            source="start",
            detail=why.sentence,
            fault=why.fault,
            stop_reason=stop,
            ended_at=time.time(),
        )
        try:
            async with task.using:
                await self._never(task, exit_)
        except OSError:  # nothing can be written: it is told from memory
            self._ended(task, exit_)

    async def _never(self, task: TaskState, exit_: ExitInfo) -> None:
        if task.asked is None:
            asked = Asked(token=str(task.token), run_dir="/")
            if not await asyncio.to_thread(task.place.files.take, asked, task.token):
                self._ended(
                    task,
                    ExitInfo(
                        source="start",
                        detail=BEFORE,
                        stop_reason=exit_.stop_reason,
                        ended_at=time.time(),
                    ),
                )
                return
            task.asked = asked
        if task.stop is not None:
            await asyncio.to_thread(task.place.files.note_stop, task.token, task.stop, STOP_MARK)
        await asyncio.to_thread(task.place.files.note_exit, task.token, exit_)
        self._ended(task, exit_)

    # ---- before the token is used

    def _image(self, task: TaskState) -> str:
        return task.box.image or self._driver.pool.image

    async def _have(self, place: ContainerPlace, image: str) -> str | ImageFault | EngineError:
        try:
            return await self._driver.images[place.key.host].have(image)
        except (ImageFault, EngineError) as e:
            return e

    async def _prepare(
        self, place: ContainerPlace, tasks: Iterable[TaskState], shared: Shared | None
    ) -> None:
        """Use the tokens and lay out the evidence. Who was stopped meanwhile is left out."""
        lines = export_lines(shared.env) if shared is not None else ""
        for task in tasks:
            if not _may_begin(task):
                continue
            assert task.spec is not None
            network = (
                names.network(task.token, self._driver.deployment)
                if task.box.subnet is not None
                else None
            )
            asked = Asked(
                token=str(task.token),
                run_dir=task.spec.run_dir,
                limit=task.spec.time_limit_secs,
                grace=task.spec.grace_secs,
                keep=task.box.keep,
                network=network,
            )
            try:
                async with task.using:
                    if not _may_begin(task):  # any more
                        continue
                    if not await asyncio.to_thread(place.files.take, asked, task.token):
                        self._ended(
                            task, ExitInfo(source="start", detail=BEFORE, ended_at=time.time())
                        )
                        continue
                    task.asked = asked
                await asyncio.to_thread(
                    self._lay_out, task, shared.job if shared is not None else None, lines
                )
            except OSError as e:
                await self.refuse(
                    task,
                    Refused(
                        f"its evidence cannot be written: {e.strerror}: {e.filename}", "notWritable"
                    ),
                )
            except Refusal as e:
                await self.refuse(task, Refused(e.sentence))
        await asyncio.to_thread(place.files.sync)

    def _lay_out(self, task: TaskState, job: str | None, lines: str) -> None:
        spec, uid, users = task.spec, task.place.key.uid, self._driver.unix_users
        assert spec is not None
        own, user_dir = users.of(uid), f"{self._driver.user_root}/{uid}"
        users.own_folder(user_dir, uid)
        if spec.run_dir.startswith(f"{user_dir}/"):
            make_below(user_dir, spec.run_dir, own)
        texts = {
            SCRIPT: script(task.token, spec, {}, task.folder, shared=lines),
            WRAPPER: wrapper(
                task.folder,
                spec.run_dir,
                limit_secs=spec.time_limit_secs,
                grace_secs=spec.grace_secs,
            ),
        }
        if job is not None:
            texts[JOB] = job
        for name, text in texts.items():
            put(
                task.folder,
                name,
                text.encode("utf-8", "surrogateescape"),
                0o700 if name != JOB else 0o600,
            )
            users.own(f"{task.folder}/{name}", uid)
        users.own(task.folder, uid)  # the last: until now nobody else could put anything there

    # ---- after it

    async def _launch(self, task: TaskState, image: str) -> None:
        async with self._turns[task.place.key.host]:
            try:
                await self._start(task, self._driver.engines[task.place.key.host], image)
            except Refused as e:
                await self.refuse(task, e)

    async def _start(self, task: TaskState, engine: HostEngine, image: str | None) -> None:
        """Until it was started or refused; while the host is away, that waits."""
        while task.exit is None:
            try:
                if task.stop is None:
                    if image is not None:
                        await self._networks.have(task, engine)
                        await self._create(task, engine, image)
                    if task.stop is None and await self._started(task, engine):
                        self._began(task)
                        return
                if task.stop is not None:
                    await self._take_down(task, engine)
                    raise Refused(STOPPED_BEFORE)
            except SubnetTaken as e:
                raise Refused(e.sentence, "subnetTaken") from None
            except EngineError as e:
                if e.code not in _AWAY:
                    raise Refused(e.sentence, "engineRefused") from None
                await asyncio.sleep(_AGAIN_SECS)

    async def _create(self, task: TaskState, engine: HostEngine, image: str) -> None:
        if task.container is not None:
            return
        key, driver = task.place.key, self._driver
        assert task.asked is not None
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
                user=driver.unix_users.of(key.uid),
                evidence=task.folder,
                user_dir=f"{driver.user_root}/{key.uid}",
                log_driver=driver.log_drivers.of(key.host),
                network=task.asked.network,
                declared=driver.images[key.host].volumes.get(image, ()),
            )
        except Refusal as e:
            raise Refused(e.sentence, "volumeRefused") from None
        try:
            said = await engine.call(
                f"make container {creation.name}",
                lambda c: c.create_container_from_config(creation.config, creation.name),
            )
            id_ = str(said["Id"])
        except EngineError as e:
            if e.code != "conflict":
                raise
            id_ = await self._ours(task, engine, creation.name, e)
        await asyncio.to_thread(task.place.files.note_container, task.token, id_)
        task.container = id_
        self._log(
            "{} running: {}",
            str(task.token),
            specifications.docker_run(creation, engine.host),
            jid=task.token.jid,
        )

    async def _ours(
        self, task: TaskState, engine: HostEngine, name: str, error: EngineError
    ) -> str:
        """The container that an earlier try made, whose answer did not come."""
        there = await inspect(engine, name)
        labels = {} if there is None else there["Config"]["Labels"] or {}
        if (
            there is None
            or not names.is_ours(labels, self._driver.deployment, "task")
            or labels.get(names.TOKEN) != str(task.token)
        ):
            raise Refused(error.sentence, "engineRefused")
        return str(there["Id"])

    async def _started(self, task: TaskState, engine: HostEngine) -> bool:
        """False: make it again. One that ran is never started again, whoever started it."""
        id_ = task.container
        assert id_ is not None
        for left in reversed(range(_STARTS)):
            there = await inspect(engine, id_)
            if there is None or not exit_status.never_started(there["State"]):
                return True  # what became of it is seen by who looks
            try:
                await engine.call(
                    f"start container {there['Name'].lstrip('/')}", lambda c: c.start(id_)
                )
                return True
            except EngineError as e:
                if (
                    self._driver.log_drivers.refused(engine.name, e.sentence)
                    and task.spec is not None
                ):
                    await self._take_down(task, engine)
                    return False
                if e.code in _AWAY:
                    raise
                after = await inspect(engine, id_)
                if after is None or not exit_status.never_started(after["State"]):
                    return True
                state = after["State"] | {"Error": after["State"].get("Error") or e.sentence}
                if not left or task.stop is not None or not exit_status.runtime_failed(state):
                    exit_ = exit_status.of_task(state)
                    raise Refused(
                        exit_.detail or e.sentence, exit_.fault or "engineRefused"
                    ) from None
                self._log(
                    "{} is started again: {}", str(task.token), e.sentence, jid=task.token.jid
                )
                await asyncio.sleep(_AGAIN_SECS)
        raise AssertionError("the last one returns or raises")

    async def _take_down(self, task: TaskState, engine: HostEngine) -> None:
        """It was never started."""
        if task.container is not None:
            await remove(engine, task.container, force=True)
            task.container = None


def _may_begin(task: TaskState) -> bool:
    return task.exit is None and task.stop is None
