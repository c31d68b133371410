"""The front door: a Flask blueprint that browsers talk to, the small application that `jobscribe
server` serves, and the proxy of `up`.

Talks to the supervisor over HTTP only. Nothing about runs is decided here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blueprint.blueprint import create_blueprint
    from .server.user_ids import UserIds

__all__ = ["UserIds", "create_blueprint"]


def __getattr__(name: str) -> Any:
    """Flask is imported by who wants the blueprint, and not by the process of `up`, which only
    starts one that does.
    """
    match name:
        case "create_blueprint":
            from .blueprint.blueprint import create_blueprint

            return create_blueprint
        case "UserIds":
            from .server.user_ids import UserIds

            return UserIds
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
