"""Acts of administrators on the site, which are on record like acts for other users."""

from ....db.events.events import ActedForUser
from ..transport.request_handler import Handler


async def record(h: Handler, action: str, subject: str = "site") -> None:
    """Return when the act is on record. subject: what it is about, a valid name. Raises Refusal; the
    act must then not be done.
    """
    act = ActedForUser(
        at=h.runs.now().wall,
        actor=h.principal.name,
        actor_role=h.principal.role,
        subject=subject,
        action=action,
        peer=h.peer,
        outcome="allowed",
    )
    await h.services.access.audit.append(act)
