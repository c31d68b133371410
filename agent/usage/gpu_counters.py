"""Usage of the machine's GPUs by process, from NVIDIA's library. Without the library usage is
unknown.

The library comes with the extra `gpu` (package nvidia-ml-py, module pynvml) and needs a driver. It
is loaded on first use, once; its failures are never reported as errors. Calls may block: do not
call it on the event loop.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Card(NamedTuple):
    """One GPU. percent: its utilisation by all processes. memory: bytes by pid of each computing
    process. None: unknown.
    """

    percent: float | None
    memory: dict[int, int | None]


class Use(NamedTuple):
    """GPU usage of some processes: mean utilisation of the cards they compute on, and their bytes on
    all cards.
    """

    percent: float | None
    memory: int | None


UNKNOWN = Use(None, None)


class Gpus:
    """Reads the GPUs of this machine. load: function that imports the library."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load: Callable[[], Any] | None = load
        self._library: Any = None

    def read_cards(self) -> tuple[Card, ...]:
        """Return every card that answers; none if the library is unavailable."""
        if self._load is not None:
            load, self._load = self._load, None
            self._library = _load_library(load)
        if self._library is None:
            return ()
        count = _ask(self._library.nvmlDeviceGetCount)
        cards = (self._card(n) for n in range(count or 0))
        return tuple(card for card in cards if card is not None)

    def _card(self, number: int) -> Card | None:
        handle = _ask(self._library.nvmlDeviceGetHandleByIndex, number)
        found = (
            None
            if handle is None
            else _ask(self._library.nvmlDeviceGetComputeRunningProcesses, handle)
        )
        if found is None:
            return None
        rates = _ask(self._library.nvmlDeviceGetUtilizationRates, handle)
        return Card(
            None if rates is None else float(rates.gpu), {p.pid: p.usedGpuMemory for p in found}
        )


def use(cards: tuple[Card, ...], pids: frozenset[int]) -> Use:
    """Return the usage of these processes.

    UNKNOWN if none is on a card: the library may report pids of another namespace.
    """
    mine = [card for card in cards if not pids.isdisjoint(card.memory)]
    if not mine:
        return UNKNOWN
    percents = [card.percent for card in mine if card.percent is not None]
    bytes_ = [card.memory[pid] for card in mine for pid in card.memory.keys() & pids]
    known = [b for b in bytes_ if b is not None]
    return Use(
        sum(percents) / len(mine) if len(percents) == len(mine) else None,
        sum(known) if len(known) == len(bytes_) else None,
    )


def _load_library(load: Callable[[], Any]) -> Any:
    try:
        library = load()
        library.nvmlInit()
    except Exception:  # no package, no driver, no permission, or another version
        return None
    return library


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return the library's answer, or None if it fails."""
    try:
        return question(*arguments)
    except Exception:  # NVMLError has one class per cause: unsupported, no permission, lost, ...
        return None
