"""The interface of senders, and the result of one delivery."""

from typing import NamedTuple, Protocol


class DeliveryResult(NamedTuple):
    """Result of a delivery. sentence: text for people, without secrets. answer: beginning of the
    reply. asked_secs: pause that the target requests. final: the target will never accept this
    notification.
    """

    delivered: bool
    sentence: str
    answer: str = ""
    asked_secs: float = 0.0
    final: bool = False


class Notification(NamedTuple):
    """One notification to send: its body and the values that identify it."""

    id: str
    event: str
    body: bytes
    #: Environment variables of a command.
    names: dict[str, str]


class Sender(Protocol):
    async def send(self, notification: Notification) -> DeliveryResult:
        """Deliver. Never raises, and respects the target's time limit."""

    def close(self) -> None:
        """Stop. Nothing is sent afterwards."""
