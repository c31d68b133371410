"""Causes of effects: the event, or else the input, because of which the core requested an effect.

Within the decision of one input, the cause of an effect is the latest event that this input
recorded for the same job or agent. Without one, it is the latest event that this input recorded,
and without any event the input itself. A timer that fires passes on the cause that it was set with.
"""

import msgspec


class EventId(msgspec.Struct, frozen=True):
    """An event of the log: the version-th event of its stream, from 1."""

    stream: str
    version: int


class Cause(msgspec.Struct, frozen=True):
    """name: type name of the event, or of the input if there is no event."""

    event: EventId | None
    name: str

    def __str__(self) -> str:
        """Return the form of log lines, such as `TaskPlaced@7` or `AgentConnected`."""
        return self.name if self.event is None else f"{self.name}@{self.event.version}"
