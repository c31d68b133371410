"""What the machine's GPUs do and for whom, by NVIDIA's library; where that is not there, or says
nothing, nothing is known.

The library comes with the extra `gpu` (package nvidia-ml-py, module pynvml) and needs a driver. It
is loaded when somebody asks for the first time, once; no failure of it is ever an error of ours.
Calls may block: not for the event loop.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Card(NamedTuple):
    """percent: how busy it is, whoever uses it. memory: bytes on it by pid of each process that
    computes on it. None: not known.
    """

    percent: float | None
    memory: dict[int, int | None]


class Use(NamedTuple):
    """What some processes have of the cards: the mean of the cards that they compute on, and bytes
    on all of them.
    """

    percent: float | None
    memory: int | None


UNKNOWN = Use(None, None)


class Gpus:
    """load: gives the library."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("pynvml")) -> None:
        self._load: Callable[[], Any] | None = load
        self._library: Any = None

    def look(self) -> tuple[Card, ...]:
        """Every card that can be asked now; none where nothing is known."""
        if self._load is not None:
            load, self._load = self._load, None
            self._library = _begun(load)
        if self._library is None:
            return ()
        count = _asked(self._library.nvmlDeviceGetCount)
        cards = (self._card(n) for n in range(count or 0))
        return tuple(card for card in cards if card is not None)

    def _card(self, number: int) -> Card | None:
        handle = _asked(self._library.nvmlDeviceGetHandleByIndex, number)
        found = (
            None
            if handle is None
            else _asked(self._library.nvmlDeviceGetComputeRunningProcesses, handle)
        )
        if found is None:
            return None
        rates = _asked(self._library.nvmlDeviceGetUtilizationRates, handle)
        return Card(
            None if rates is None else float(rates.gpu), {p.pid: p.usedGpuMemory for p in found}
        )


def use(cards: tuple[Card, ...], pids: frozenset[int]) -> Use:
    """Of processes that are on no card, nothing is known: the library may call them by the pids of
    another namespace.
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


def _begun(load: Callable[[], Any]) -> Any:
    try:
        library = load()
        library.nvmlInit()
    except Exception:  # no package, no driver, no permission, another version: all the same
        return None
    return library


def _asked(question: Callable[..., Any], *arguments: Any) -> Any:
    """Its answer; None where there is none."""
    try:
        return question(*arguments)
    except (
        Exception
    ):  # NVMLError has a class for each cause: not supported by this card, no permission, lost, ...
        return None
