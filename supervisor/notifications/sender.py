"""What came of one try to tell a target, and who can try."""

from typing import NamedTuple, Protocol


class DeliveryResult(NamedTuple):
    """said: a sentence for people, without secrets. answer: the beginning of what came back.
    asked_secs: a pause that was asked for.

    final: it will never be taken.
    """

    delivered: bool
    said: str
    answer: str = ""
    asked_secs: float = 0.0
    final: bool = False


class Notification(NamedTuple):
    """One notification as it is sent: its body, and what names it."""

    id: str
    event: str
    body: bytes
    #: as variables of a command's environment
    names: dict[str, str]


class Sender(Protocol):
    async def send(self, letter: Notification) -> DeliveryResult:
        """Never raises, and returns in its time."""

    def close(self) -> None:
        """Nothing is sent after this."""
