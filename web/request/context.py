"""Context of one request: user, variables and body, and the parts that all routes share. No
decisions are made here.
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
from ...schema import messages
from .app_catalog import AppCatalog
from .own_sign_ins import OwnSignIns
from .refusal_counts import RefusalCounts
from .status_cache import StatusCache
from .supervisor_client import SupervisorClient
from .worker_quota import WorkerQuota

#: Maximum bytes of a JSON body; files have a limit of their own, which the supervisor enforces.
MAX_BODY = 2 * 1024 * 1024
_PLACE = re.compile(r"`(\$[.\w]*)`$")

T = TypeVar("T")
User = Callable[[flask.Request], str | None]
May = Callable[[str, str, str | None], Refusal | None]
Admin = Callable[[str], bool]
Plan = Callable[[str], str | None]


class FrontEndContext:
    """Shared by all routes of one blueprint."""

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
        quota: WorkerQuota,
    ) -> None:
        self.upstream, self.simulations, self.log = upstream, simulations, log
        self.user, self.may, self.admin, self.plan = user, may, admin, plan
        self.counts = RefusalCounts()
        self.statuses = StatusCache(upstream.changes)
        self.quota = quota
        #: set by a site that keeps sign-in sessions itself
        self.sign_ins: OwnSignIns | None = None

    def close(self) -> None:
        self.statuses.close()
        self.upstream.close()


class RequestContext:
    """Context of one request. uid: "" for a visitor on routes that allow it. args: variables of the
    path, not validated yet.
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
        self.upstream: SupervisorClient = site.upstream

    def act_as_user(self) -> None:
        """Let the supervisor decide about each further request by the role of the signed-in user."""
        admin = self.site.admin is not None and self.site.admin(self.uid)
        self.upstream = self.site.upstream.acting(self.uid, admin=admin)

    def secret_body(self, type_: type[T], limit: int) -> T:
        """Parse a body with secrets. An error names only the place, because a key may be a
        password.
        """
        try:
            return self.body(type_, limit)
        except Refusal as e:
            found = _PLACE.search(e.sentence)
            where = f": see {found[1]}" if found else ""
            raise Refusal(
                e.code,
                e.sentence if e.code == "tooLarge" else f"the request is not valid{where}",
            ) from None

    def body(self, type_: type[T], limit: int = MAX_BODY) -> T:
        """Parse the JSON body as this type. Raises Refusal (badRequest, tooLarge, tooDeep)."""
        self.request.max_content_length = limit
        raw = b"{}"
        try:
            raw = self.request.get_data(cache=False) or raw
            return msgspec.json.decode(raw, type=type_)
        except werkzeug.exceptions.RequestEntityTooLarge:
            raise Refusal(
                "tooLarge", f"a request is limited to {limit} bytes; upload large data as a file"
            ) from None
        except werkzeug.exceptions.HTTPException as e:
            raise Refusal("badRequest", f"the request was cut off: {e.description}") from None
        except msgspec.ValidationError as e:
            raise messages.refusal(e, raw, type_, "the request is not valid") from None
        except RecursionError:
            raise Refusal("tooDeep", "the request is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise Refusal("badRequest", f"the body is not JSON: {e}") from None

    def arg(self, name: str) -> str:
        """Return a variable of the path, not validated."""
        return self._args[name]

    def id(self, what: str) -> str:
        """Return an id from the path. Raises Refusal("badRequest")."""
        return parse(what, self._args[what])

    def query(self, name: str, default: str = "") -> str:
        return self.request.args.get(name, default)

    def number(self, name: str, most: int) -> int:
        """Return a whole number from the query, 0 if missing. Raises Refusal("badRequest")."""
        return number(name, self.query(name, "0"), most)

    def authorize(self, simulation_type: str | None, api: str | None = None) -> None:
        """Raise the refusal of the site's `may` hook, if any. api: None for that of the route."""
        refusal = (
            self.site.may(self.uid, api or self.api, simulation_type)
            if self.site.may is not None and self.uid
            else None
        )
        if refusal is not None:
            raise refusal

    def log(self, jid: str | None, content: Mapping[str, Any]) -> None:
        """Log the request. The supervisor's log continues with the same ids."""
        log = self.site.log.bound(jid=jid)
        log("class=WebReq content={}", {"api": "api_" + self.api, "uid": self.uid, **content})


def as_json(body: Any, status: int = 200) -> flask.Response:
    """Return a JSON response. body: bytes are encoded already."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return flask.Response(raw, status=status, mimetype="application/json")


def number(name: str, text: str, most: int) -> int:
    """Parse plain digits. Raises Refusal("badRequest")."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > most:
        raise Refusal(
            "badRequest", f"{name} must be a whole number up to {most}; got {ascii(text)[:40]}"
        )
    return int(text)
