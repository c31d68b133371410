"""The warning of a reply to a submission whose user is above the soft disk quota."""

from collections.abc import Mapping
from typing import Any

from ..session.session import Session


def warn_of_quota(s: Session, reply: Mapping[str, Any]) -> None:
    """Print the warning of the reply, if it has one, on standard error."""
    if warning := reply.get("quotaWarning"):
        s.screen.message(f"warning: {warning}")
