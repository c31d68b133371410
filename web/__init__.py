"""The front end: a Flask blueprint for browsers, the application that `jobscribe server` serves,
and the proxy of `jobscribe up`.

The front end uses the supervisor over HTTP only, and makes no decisions about runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blueprint.blueprint import create_blueprint
    from .blueprint.pages import PageOptions
    from .server.user_ids import UserIds

__all__ = ["PageOptions", "UserIds", "create_blueprint"]


def __getattr__(name: str) -> Any:
    """Import Flask only on demand: the process of `up` only starts a child that needs it."""
    match name:
        case "create_blueprint":
            from .blueprint.blueprint import create_blueprint

            return create_blueprint
        case "PageOptions":
            from .blueprint.pages import PageOptions

            return PageOptions
        case "UserIds":
            from .server.user_ids import UserIds

            return UserIds
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
