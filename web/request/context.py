"""One request on its way through its route: whose it is, what it brings, and what all routes share.
Decides nothing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flask
import msgspec
import werkzeug.exceptions

from ...protocol.errors import Refusal
from ...protocol.ids import parse
from ...runtime.log.logger import Log
from .app_catalog import AppCatalog
from .refusal_counts import RefusalCounts
from .supervisor_client import SupervisorClient
from .worker_quota import WorkerQuota

#: A body of JSON may be so long; files have a limit of their own, which the supervisor keeps.
MAX_BODY = 2 * 1024 * 1024
_PLACE = re.compile(r"`(\$[.\w]*)`$")

T = TypeVar("T")
User = Callable[[flask.Request], str | None]
May = Callable[[str, str, str | None], Refusal | None]
Admin = Callable[[str], bool]
Plan = Callable[[str], str | None]


class FrontEndContext:
    """What the routes of one blueprint share."""

    def __init__(
        self,
        upstream: SupervisorClient,
        simulations: AppCatalog,
        log: Log,
        *,
        user: User,
        may: May | None,
        admin: Admin | None,
        plan: Plan | None,
        places: WorkerQuota,
    ) -> None:
        self.upstream, self.simulations, self.log = upstream, simulations, log
        self.user, self.may, self.admin, self.plan = user, may, admin, plan
        self.counts = RefusalCounts()
        self.places = places

    def close(self) -> None:
        self.upstream.close()


class RequestContext:
    """uid: "" for a visitor, where those are let in. args: the variables of the address, not
    checked yet.
    """

    def __init__(
        self,
        site: FrontEndContext,
        api: str,
        request: flask.Request,
        uid: str,
        args: Mapping[str, str],
    ) -> None:
        self.site, self.api, self.request, self.uid, self._args = site, api, request, uid, args

    @property
    def upstream(self) -> SupervisorClient:
        return self.site.upstream

    def secret_body(self, type_: type[T], limit: int) -> T:
        """The same of what holds secrets: what does not fit is told by its place alone, for a key
        of it may be a password.
        """
        try:
            return self.body(type_, limit)
        except Refusal as e:
            found = _PLACE.search(e.sentence)
            where = f": see {found[1]}" if found else ""
            raise Refusal(
                e.code,
                e.sentence if e.code == "tooLarge" else f"this does not have the right form{where}",
            ) from None

    def body(self, type_: type[T], limit: int = MAX_BODY) -> T:
        """The request's JSON as this type. Raises Refusal (badRequest, tooLarge, tooDeep)."""
        self.request.max_content_length = limit
        try:
            return msgspec.json.decode(self.request.get_data(cache=False) or b"{}", type=type_)
        except werkzeug.exceptions.RequestEntityTooLarge:
            raise Refusal(
                "tooLarge", f"a request may take {limit} bytes; upload large data as a file"
            ) from None
        except werkzeug.exceptions.HTTPException as e:
            raise Refusal("badRequest", f"the request was cut off: {e.description}") from None
        except msgspec.ValidationError as e:
            raise Refusal("badRequest", _sentence(str(e))) from None
        except RecursionError:
            raise Refusal("tooDeep", "the request is nested too deep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refusal("badRequest", f"the body is not JSON: {e}") from None

    def arg(self, name: str) -> str:
        """A variable of the address, as it is."""
        return self._args[name]

    def id(self, what: str) -> str:
        """A variable of the address that is an id. Raises Refusal("badRequest")."""
        return parse(what, self._args[what])

    def query(self, name: str, default: str = "") -> str:
        return self.request.args.get(name, default)

    def number(self, name: str, most: int) -> int:
        """A whole number of the query, 0 where it is missing. Raises Refusal("badRequest")."""
        return number(name, self.query(name, "0"), most)

    def allowed(self, simulation_type: str | None) -> None:
        """Raises what the site's hook says against it."""
        refusal = (
            self.site.may(self.uid, self.api, simulation_type)
            if self.site.may is not None and self.uid
            else None
        )
        if refusal is not None:
            raise refusal

    def log(self, jid: str | None, content: Mapping[str, Any]) -> None:
        """The line by which a request is found again; what happens to it next stands in the
        supervisor's log, with the same ids.
        """
        self.site.log(
            "class=WebReq content={}",
            {"api": "api_" + self.api, "uid": self.uid, **content},
            jid=jid,
        )


def as_json(body: Any, status: int = 200) -> flask.Response:
    """bytes are JSON already."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return flask.Response(raw, status=status, mimetype="application/json")


def number(name: str, text: str, most: int) -> int:
    """Plain digits only. Raises Refusal("badRequest")."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > most:
        raise Refusal(
            "badRequest", f"{name} must be a whole number up to {most}; got {ascii(text)[:40]}"
        )
    return int(text)


def _sentence(text: str) -> str:
    """msgspec's message, without Python's words."""
    said = text.replace("\\\\Z'", "$'")
    for theirs, ours in (
        ("Object contains", "it has an"),
        ("Object missing", "it lacks the"),
        ("`null`", "nothing"),
    ):
        said = said.replace(theirs, ours)
    return ("the request does not fit: " + said[0].lower() + said[1:])[:400]
