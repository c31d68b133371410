"""Calls on one container that several modules need: inspect and remove. Nothing else belongs
here.
"""

from typing import Any

from .engine import EngineError, HostEngine


async def inspect(engine: HostEngine, name_or_id: str) -> dict[str, Any] | None:
    """Return the engine's description of a container, or None if there is none. Raises
    EngineError.
    """
    try:
        container: dict[str, Any] = await engine.call(
            f"inspect container {name_or_id[:40]}", lambda c: c.inspect_container(name_or_id)
        )
    except EngineError as e:
        if e.code != "notFound":
            raise
        return None
    return container


async def remove(engine: HostEngine, id_: str, *, force: bool = False) -> bool:
    """Remove a container with its anonymous volumes. Return False while another call removes it.
    Raises EngineError, but not for a container that is gone.
    """
    try:
        await engine.call(
            f"remove container {id_[:12]}", lambda c: c.remove_container(id_, v=True, force=force)
        )
    except EngineError as e:
        if e.code not in ("notFound", "conflict"):
            raise
        return e.code == "notFound"
    return True
