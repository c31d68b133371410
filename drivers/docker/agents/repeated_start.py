"""Starts a created container, a second time if the OCI runtime failed, as it does on a busy host."""

from collections.abc import Callable
from typing import Any

from ....runtime.log.logger import Log
from ..containers import exit_status
from ..host.container_calls import inspect
from ..host.engine import EngineError, HostEngine


async def start(
    engine: HostEngine, name: str, id_: str, log: Log, call: Callable[[Any], object] | None = None
) -> None:
    """Start a container; repeat it once if the OCI runtime failed before the first process. call:
    starts it, given the client. Raises EngineError.
    """
    call = call or (lambda c: c.start(id_))
    try:
        await engine.call(f"start {name}", call)
    except EngineError as e:
        if not exit_status.runtime_failed({"Error": e.sentence}):
            raise
        state = (await inspect(engine, id_) or {}).get("State", {})
        if not exit_status.never_started(state) or not exit_status.runtime_failed(
            {**state, "Error": e.sentence}
        ):
            raise
        log("{} is started again: {}", name, e.sentence)
        await engine.call(f"start {name}", call)
