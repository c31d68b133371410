"""An executor that calls functions in jobs of this process, one after the other: for clients in one
process. Futures are done when they are returned.
"""

import concurrent.futures
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...protocol.api.requests import RunSpec
from ..api import random_ids
from ..functions import calls
from ..functions.executor import APP
from ..functions.future import FunctionFuture

T = TypeVar("T")


class Caller(Protocol):
    """The requests of `Client` that this executor needs."""

    def spec(self, command: Sequence[str], **options: Any) -> RunSpec: ...
    def submit(self, spec: RunSpec) -> Any: ...
    def upload(
        self, simulation_type: str, name: str, pieces: Iterable[bytes], size: int
    ) -> dict[str, Any]: ...


class DirectExecutor(concurrent.futures.Executor):
    """Like `functions.executor.Executor`, for a client in one process."""

    def __init__(
        self,
        client: Caller,
        *,
        resources: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._client, self._resources = client, dict(resources or {})
        self._max_bytes = calls.MAX_BYTES if max_bytes is None else max_bytes
        self.sid = random_ids.simulation_id()
        self._numbers = itertools.count(1)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> FunctionFuture[T]:
        """Call the function in a job, and return its done future. Raises ClientError."""
        return self.call(fn, args, kwargs)

    def call(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
    ) -> FunctionFuture[T]:
        """Call with its own `resources` in addition to those of the executor."""
        packed = calls.payload(
            function,
            [(args, options or {})],
            many=False,
            inline_bytes=calls.INLINE_BYTES,
            max_bytes=self._max_bytes,
        )
        fields, pythons = calls.split_resources({**self._resources, **(resources or {})})
        model = f"call{next(self._numbers):06d}"
        file = f"{self.sid}-{model}.bin"
        if not packed.inline:
            self._client.upload(APP, file, [packed.data], len(packed.data))
        command = calls.command(packed, file, pythons)
        fields = calls.with_call(fields, packed)
        spec = self._client.spec(command, simulation_id=self.sid, compute_model=model, **fields)
        job = self._client.submit(spec)
        future = FunctionFuture[T](lambda future: False)
        future.jid, future.serial = job.jid, job.serial
        try:
            future.settle(job.result(), None)
        except Exception as e:
            future.settle(None, e)
        return future

    def abandon(self) -> None:
        """Forget the client. All futures are done."""
