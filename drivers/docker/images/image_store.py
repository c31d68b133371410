"""Images on one Docker host: finds them, or pulls them according to the pool's policy. Concurrent
pulls of an image are merged, and each pull has a time limit.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ....protocol.clusters.container_pool import Pool
from ....protocol.jobs.registry_login import RegistryLogin
from ....runtime.log.logger import Log
from ..host.engine import HostEngine
from ..host.errors import EngineError, one_line
from ..host.event_stream import Stream, api_error
from . import registry_credentials

Fault = Literal[
    "imageMissing", "pullDenied", "registryUnreachable", "pullTimeout", "credentialsLost"
]
#: Repository of the only names that images have on a host after a pull with a user's credentials.
PRIVATE = "jobscribe-private"
#: patterns in the errors of failed pulls, in the order of the search
_PULL_ERRORS: tuple[tuple[Fault, re.Pattern[str]], ...] = (
    (
        "pullDenied",
        re.compile(
            r"unauthorized|denied|no basic auth credentials|authentication required|\b40[13]\b|forbidden",
            re.I,
        ),
    ),
    (
        "imageMissing",
        re.compile(
            r"manifest unknown|manifest for .* not found|name unknown|no such image|repository .* not found|not found: |"
            r"does not exist|invalid reference|invalid repository|must be lowercase|no matching manifest|invalid digest",
            re.I,
        ),
    ),
    (
        "registryUnreachable",
        re.compile(
            r"connection refused|no such host|timeout|timed out|deadline exceeded|no route to host|unreachable|tls|x509|certificate|"
            r"server misbehaving|name resolution|connection reset|EOF|server gave HTTP response|\b50[0234]\b|toomanyrequests|\b429\b|"
            r"internal server error|bad gateway|service unavailable|request canceled",
            re.I,
        ),
    ),
)


_OWN_DENIED = (
    "it was asked with the credentials that were sent with the job: check their user name and "
    "password, and whether this user may read the image, then submit the job again"
)
_DENIED = (
    "the job has no credentials for this registry: check the name, name a file with your credentials "
    "in `registryAuth` of the job, or let the operator add them to the `registries` file of the pool"
)


class ImageFault(Exception):
    """An unusable image. fault: the reason code for policies; sentence: the reason and its
    solution.
    """

    def __init__(self, fault: Fault, sentence: str) -> None:
        super().__init__(f"{fault}: {sentence}")
        self.fault: Fault = fault
        self.sentence = sentence


class OwnLogins(NamedTuple):
    """A user's own credentials. registries: the run has credentials for these. known: the credentials
    by registry; None if the supervisor has them no more.
    """

    registries: tuple[str, ...] = ()
    known: Mapping[str, RegistryLogin] | None = None


NO_LOGINS = OwnLogins()


class ImageStore:
    """The images of one host.

    An image that was pulled with a user's credentials loses its name on the host, and gets one in
    `PRIVATE`. Runs find it by no name or id: each run's credentials are checked by the registry.
    """

    def __init__(self, engine: HostEngine, pool: Pool, log: Log) -> None:
        self._engine, self._pool, self._log = engine, pool, log
        self._pulls: dict[str, asyncio.Task[str]] = {}
        #: pulls with users' credentials, by the full name of the image
        self._private: dict[str, asyncio.Task[str]] = {}
        #: full names that the host has only until such a pull has removed them
        self._exposed: set[str] = set()
        #: image id -> the volume paths that the image declares
        self.volumes: dict[str, tuple[str, ...]] = {}

    async def ensure(
        self,
        image: str,
        own: OwnLogins = NO_LOGINS,
        on_pull: Callable[[], object] = lambda: None,
    ) -> str:
        """Return the image id to create containers from. Raises ImageFault, and EngineError if the
        host fails. on_pull: called when this call begins a pull, or waits for one.

        A caller without credentials of its own joins a pull that is under way. The pull continues if
        a caller is canceled.
        """
        name = registry_credentials.parse_image(image)
        full = image if name is None else name.full
        while (busy := self._private.get(full)) is not None:
            await asyncio.wait([busy])
        if name is not None and name.registry in own.registries:
            return await self._ensure_private(image, name, own, on_pull)
        task = self._pulls.get(image)
        if task is None:
            if self._pool.pull != "always" and (known := await self._find(image)) is not None:
                return known
            self._check_may_pull(image)
            # check again: another caller may have started a pull meanwhile
            task = self._pulls.get(image)
        if task is None:
            task = self._pulls[image] = asyncio.get_running_loop().create_task(self._pull(image))
            task.add_done_callback(lambda t: self._pulled(self._pulls, image, t))
        on_pull()
        return await asyncio.shield(task)

    async def _ensure_private(
        self,
        image: str,
        name: registry_credentials.ImageName,
        own: OwnLogins,
        on_pull: Callable[[], object],
    ) -> str:
        """Pull with the user's credentials, after other pulls of this image."""
        while (busy := self._private.get(name.full) or self._pulls.get(image)) is not None:
            await asyncio.wait([busy])
        task = asyncio.get_running_loop().create_task(self._pull_private(image, name, own, on_pull))
        self._private[name.full] = task
        task.add_done_callback(lambda t: self._pulled(self._private, name.full, t))
        return await asyncio.shield(task)

    def _check_may_pull(self, image: str) -> None:
        if self._pool.pull == "never":
            raise ImageFault(
                "imageMissing",
                f"image {image} is not on host {self._engine.name}, and the pool has `pull: never`; "
                f"load it there ('docker load' or 'docker pull {image}'), or set `pull` to `missing`",
            )

    @staticmethod
    def _pulled(pulls: dict[str, asyncio.Task[str]], key: str, task: asyncio.Task[str]) -> None:
        del pulls[key]
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _find(self, image: str) -> str | None:
        """Return the id of an image that all users of the host may use."""
        details = await self._inspect(image)
        name = registry_credentials.parse_image(image)
        if details is None or (name is not None and name.full in self._exposed):
            return None
        names = [*(details.get("RepoTags") or ()), *(details.get("RepoDigests") or ())]
        private = names and all(re.split("[:@]", n)[0] == PRIVATE for n in names)
        return None if private else str(details["Id"])

    async def _inspect(self, image: str) -> dict[str, Any] | None:
        try:
            details: dict[str, Any] = await self._engine.call(
                f"look for image {image}", lambda c: c.inspect_image(image)
            )
        except EngineError as e:
            if e.code == "notFound":
                return None
            if e.code == "refused" and "invalid reference" in e.sentence:
                raise ImageFault(
                    "imageMissing", f"{image} is not a valid image name; correct it"
                ) from None
            raise
        self.volumes[str(details["Id"])] = tuple(
            sorted((details.get("Config") or {}).get("Volumes") or ())
        )
        return details

    async def _pull_private(
        self,
        image: str,
        name: registry_credentials.ImageName,
        own: OwnLogins,
        on_pull: Callable[[], object],
    ) -> str:
        """Pull an image with a user's credentials, and remove its name from the host.

        An image that the host has under this name is the operator's: it is used as by all runs.
        """
        before = await self._find(image)
        if before is not None and self._pool.pull != "always":
            return before
        self._check_may_pull(image)
        if own.known is None:
            raise ImageFault("credentialsLost", _lost(image, name))
        on_pull()
        header = registry_credentials.login_header(own.known[name.registry])
        release = self._log.redactor.hold([header])
        self._log(
            "docker host {}: pulling {} with credentials of its user", self._engine.name, image
        )
        if before is None:
            self._exposed.add(name.full)
        try:
            await self._request_pull(image, name, header, own=True)
        except ImageFault:
            self._exposed.discard(name.full)
            raise
        finally:
            release()
        return await self._hide(image, name, before)

    async def _hide(
        self, image: str, name: registry_credentials.ImageName, before: str | None
    ) -> str:
        """Give a pulled image its private name, and its other name back to the image that had it
        before. Return its id. If the host fails, the next call continues.
        """
        details = await self._inspect(name.full)
        if details is None:
            self._exposed.discard(name.full)
            raise self._removed(image)
        id_ = str(details["Id"])
        if id_ != before:
            what = f"hide image {image}"
            digest = id_.removeprefix("sha256:")
            await self._engine.call(what, lambda c: c.tag(id_, PRIVATE, digest, force=True))
            if before is None:
                await self._engine.call(what, lambda c: c.remove_image(name.full, noprune=True))
            else:
                await self._engine.call(
                    what, lambda c: c.tag(before, name.repository, name.wanted, force=True)
                )
        self._exposed.discard(name.full)
        return id_

    def _removed(self, image: str) -> ImageFault:
        return ImageFault(
            "imageMissing",
            f"image {image} was pulled and then removed from host {self._engine.name}; find out what removes it",
        )

    async def _pull(self, image: str) -> str:
        name, began = registry_credentials.parse_image(image), time.monotonic()
        if name is None:
            raise ImageFault(
                "imageMissing",
                f"image {image} is not on host {self._engine.name}, and its name cannot be in a registry; correct it",
            )
        try:
            auth = registry_credentials.auth_header(
                self._pool.registries, name.registry, self._log.redactor.add
            )
        except registry_credentials.BadCredentials as e:
            raise ImageFault("pullDenied", e.sentence) from None
        self._log("docker host {}: pulling {}", self._engine.name, image)
        await self._request_pull(image, name, auth)
        known = await self._find(image)
        if known is None:
            raise self._removed(image)
        self._log(
            "docker host {}: pulled {} in {} s",
            self._engine.name,
            image,
            round(time.monotonic() - began, 1),
        )
        return known

    async def _request_pull(
        self,
        image: str,
        name: registry_credentials.ImageName,
        auth: str | None,
        own: bool = False,
    ) -> None:
        stream, secs = Stream(), self._pool.pull_secs
        headers = {"X-Registry-Auth": auth} if auth else {}

        def work(client: Any) -> str | None:
            with client.post(
                f"{client.base_url}/v{client.api_version}/images/create",
                params={"fromImage": name.repository, "tag": name.wanted},
                headers=headers,
                stream=True,
                timeout=(min(client.timeout, 10.0), client.timeout),
            ) as response:
                if response.status_code >= 400:
                    return str(api_error(response).explanation)
                errors = [str(line["error"]) for line in stream.lines(response) if "error" in line]
                return errors[-1] if errors else None

        try:
            async with asyncio.timeout(secs):
                error = await self._engine.long_call(f"pull {image}", work, secs + 5)
        except TimeoutError:
            raise self._pull_timeout(image, name) from None
        except json.JSONDecodeError:
            raise EngineError(
                "refused",
                f"host {self._engine.name}: pull {image}: the answer is not from a Docker daemon; read dockerd's log",
            ) from None
        finally:
            # the daemon ends a pull whose client disconnects
            stream.close()
        if error is not None:
            raise self._fault(image, name, error, own)

    def _pull_timeout(self, image: str, name: registry_credentials.ImageName) -> ImageFault:
        return ImageFault(
            "pullTimeout",
            f"image {image} was not pulled from {name.registry} to host {self._engine.name} in {self._pool.pull_secs:g} s; "
            "check the network, pull it there manually, or raise `pullSecs`",
        )

    def _fault(
        self, image: str, name: registry_credentials.ImageName, message: str, own: bool
    ) -> Exception:
        """own: the user's own credentials were used."""
        fault = next((f for f, pattern in _PULL_ERRORS if pattern.search(message)), None)
        host, quoted = self._engine.name, one_line(self._log.redactor.text(message))
        match fault:
            case "pullDenied":
                return ImageFault(
                    fault,
                    f"registry {name.registry} refuses image {image} to host {host} ({quoted}); "
                    + (_OWN_DENIED if own else _DENIED),
                )
            case "imageMissing":
                return ImageFault(
                    fault,
                    f"registry {name.registry} has no image {image} ({quoted}); "
                    "check its name, tag or digest, or push it there",
                )
            case "registryUnreachable":
                return ImageFault(
                    fault,
                    f"host {host} cannot reach registry {name.registry} for image {image} ({quoted}); "
                    "check the registry, and the network, proxy and certificates of that host",
                )
            case _:
                return EngineError("refused", f"host {host}: pull {image}: {quoted}")


def _lost(image: str, name: registry_credentials.ImageName) -> str:
    return (
        f"image {image} is to be pulled with the job's own credentials for registry {name.registry}, but "
        "the supervisor has restarted since the job was submitted, and keeps credentials in memory only; "
        "submit the job again"
    )
