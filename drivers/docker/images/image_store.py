"""Images on one Docker host: finds them, or pulls them according to the pool's policy. Concurrent
pulls of an image are merged, and each pull has a time limit.
"""

import asyncio
import json
import re
import time
from typing import Any, Literal

from ....protocol.clusters.container_pool import Pool
from ....runtime.log.logger import Log
from ..host.engine import HostEngine
from ..host.errors import EngineError, one_line
from ..host.event_stream import Stream, api_error
from . import registry_credentials

Fault = Literal["imageMissing", "pullDenied", "registryUnreachable", "pullTimeout"]
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


class ImageFault(Exception):
    """An unusable image. fault: the reason code for policies; sentence: the reason and its
    solution.
    """

    def __init__(self, fault: Fault, sentence: str) -> None:
        super().__init__(f"{fault}: {sentence}")
        self.fault: Fault = fault
        self.sentence = sentence


class ImageStore:
    """The images of one host."""

    def __init__(self, engine: HostEngine, pool: Pool, log: Log) -> None:
        self._engine, self._pool, self._log = engine, pool, log
        self._pulls: dict[str, asyncio.Task[str]] = {}
        #: image id -> the volume paths that the image declares
        self.volumes: dict[str, tuple[str, ...]] = {}

    async def ensure(self, image: str) -> str:
        """Return the image id to create containers from. Raises ImageFault, and EngineError if the
        host fails.

        A caller joins a pull that is under way. The pull continues if a caller is canceled.
        """
        task = self._pulls.get(image)
        if task is None:
            if self._pool.pull != "always" and (known := await self._find(image)) is not None:
                return known
            if self._pool.pull == "never":
                raise ImageFault(
                    "imageMissing",
                    f"image {image} is not on host {self._engine.name}, and the pool has `pull: never`; "
                    f"load it there ('docker load' or 'docker pull {image}'), or set `pull` to `missing`",
                )
            # check again: another caller may have started a pull meanwhile
            task = self._pulls.get(image)
        if task is None:
            task = self._pulls[image] = asyncio.get_running_loop().create_task(self._pull(image))
            task.add_done_callback(lambda t: self._pulled(image, t))
        return await asyncio.shield(task)

    def _pulled(self, image: str, task: asyncio.Task[str]) -> None:
        del self._pulls[image]
        if not task.cancelled():
            task.exception()  # the caller may be gone

    async def _find(self, image: str) -> str | None:
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
        return str(details["Id"])

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
            raise ImageFault(
                "imageMissing",
                f"image {image} was pulled and then removed from host {self._engine.name}; find out what removes it",
            )
        self._log(
            "docker host {}: pulled {} in {} s",
            self._engine.name,
            image,
            round(time.monotonic() - began, 1),
        )
        return known

    async def _request_pull(
        self, image: str, name: registry_credentials.ImageName, auth: str | None
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
            raise self._fault(image, name, error)

    def _pull_timeout(self, image: str, name: registry_credentials.ImageName) -> ImageFault:
        return ImageFault(
            "pullTimeout",
            f"image {image} was not pulled from {name.registry} to host {self._engine.name} in {self._pool.pull_secs:g} s; "
            "check the network, pull it there manually, or raise `pullSecs`",
        )

    def _fault(self, image: str, name: registry_credentials.ImageName, message: str) -> Exception:
        fault = next((f for f, pattern in _PULL_ERRORS if pattern.search(message)), None)
        host, quoted = self._engine.name, one_line(self._log.redactor.text(message))
        match fault:
            case "pullDenied":
                return ImageFault(
                    fault,
                    f"registry {name.registry} refuses image {image} to host {host} ({quoted}); "
                    "check the name, and the credentials in the `registries` file of the pool",
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
