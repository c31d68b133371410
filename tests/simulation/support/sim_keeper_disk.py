"""State of the simulated keeper: its disk, which outlives it, and its executions, which do not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jobscribe.protocol.execution.lifecycle import Lifecycle, Policy

if TYPE_CHECKING:
    from sim_machine import Process

#: The policy of the real keeper.
POLICY = Policy(leftover=0.0, ending=0.05)


class Evidence(msgspec.Struct):
    """A token's folder. The token is consumed if the folder exists. start, stop, exit: content of
    the files of these names.
    """

    output: bool = False
    start: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None


class Disk(msgspec.Struct):
    """An agent's folder."""

    ledger: dict[str, str] = msgspec.field(default_factory=dict)
    runs: dict[str, Evidence] = msgspec.field(default_factory=dict)


class Execution:
    """One execution of the keeper. timer: cancels its planned next step."""

    def __init__(
        self, name: str, token: str, folder: Evidence | None = None, *, own: bool = True
    ) -> None:
        self.name, self.token, self.own = name, token, own
        self.folder = folder or Evidence()
        self.life = Lifecycle(POLICY)
        self.process: Process | None = None
        self.slot = False
        self.successor: str | None = None
        self.timer: Callable[[], None] = lambda: None

    @property
    def stop_record(self) -> dict[str, Any] | None:
        return self.folder.stop

    @property
    def never_starts(self) -> bool:
        """Return whether its token is used and no process was started."""
        return self.folder.exit is not None and not self.folder.output

    @property
    def ended_by(self) -> str | None:
        """Return the stop reason in its exit."""
        reason: str | None = self.life.exit["stopReason"]
        return reason
