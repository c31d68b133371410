"""One route of the front end: address, request and response types, and handler."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..request.context import RequestContext

Method = Literal["GET", "POST", "PUT", "DELETE"]
Gives = Literal["json", "file", "text"]
PAGE_DATA = "/page-data/"


class Variable(msgspec.Struct, frozen=True):
    """A variable in the path or in the query. pattern: of a text; None for a whole number."""

    name: str
    about: str
    pattern: str | None = ".*"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route. api: its name for hooks and logs. reply: type of the JSON response. visitor: also
    for users who are not signed in.

    may_except: the response may also be an SrExceptionReply.
    """

    api: str
    method: Method
    path: str
    handler: Callable[[RequestContext], Any]
    about: str
    takes: type[msgspec.Struct] | None = None
    reply: Any = Any
    gives: Gives = "json"
    query: tuple[Variable, ...] = ()
    visitor: bool = False
    may_except: bool = False

    @property
    def of_pages(self) -> bool:
        """Return whether only the pages use it."""
        return self.path.startswith(PAGE_DATA)


#: Patterns of path variables. The names are those of protocol.ids, which validates them.
VARIABLES = {
    "simulationType": r"^[a-z][a-z0-9_]{0,31}$",
    "simulationId": r"^[A-Za-z0-9]{8}$",
    "computeModel": r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    "computeJid": r"^[A-Za-z0-9]{8}-[A-Za-z0-9]{8}-[A-Za-z][A-Za-z0-9_]{0,63}$",
    "frame": r"^-?[0-9]{1,9}$",
    "name": r"^[^/]{1,255}$",
    "frame_id": r"^[0-9]{1,10}\*[A-Za-z][A-Za-z0-9_]{0,63}\*[A-Za-z0-9]{8}\*[a-z][a-z0-9_]{0,31}\*[A-Za-z0-9]{1,64}\*[1-9][0-9]{0,15}$",
}


def route(
    method: Method,
    path: str,
    handler: Callable[[RequestContext], Any],
    about: str,
    *,
    api: str | None = None,
    **more: Any,
) -> Route:
    """Return a route. api: None for the name that follows from the path: `runCancel`, for data of
    pages `runCancelPage`, and for those about other users or the site `runCancelSitePage`.
    """
    if api is None:
        below = path.removeprefix(PAGE_DATA).removeprefix("/").removeprefix("site/")
        first, *rest = below.partition("/")[0].split("-")
        kind = "SitePage" if path.startswith(PAGE_DATA + "site/") else "Page"
        suffix = kind if path.startswith(PAGE_DATA) else ""
        api = first + "".join(map(str.title, rest)) + suffix
    return Route(api=api, method=method, path=path, handler=handler, about=about, **more)
