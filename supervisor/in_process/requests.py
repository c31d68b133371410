"""Answers requests by the actions of the API's routes, without HTTP, and by files of the only user."""

import inspect
import os
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from ...protocol.api.requests import RunFile, RunMany
from ...protocol.errors import Refusal
from ..api.routes import ROUTES
from ..api.transport.request_handler import Handler, Route
from ..runs.request_validation import MAX_ONE, parse_body, parse_runs
from ..runs.service import RunService

#: Requests of clients for which a process has no counterpart are refused.
_ROUTES = (
    "run-simulation", "run-many", "run-description", "run-array", "run-status", "run-cancel",
    "job-tasks", "job-list", "job-group", "group-cancel", "job-story", "job-why", "job-log", "trace",
)  # fmt: skip


#: Requests after which jobs start, and requests that may wait for an end.
STARTING = ("run-simulation", "run-many", "run-description", "run-array")
WAITING = ("run-status", "job-group")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Requests:
    """The routes of one site, for its only user. users: the folder of users' files."""

    def __init__(self, service: RunService, uid: str, users: str) -> None:
        self._service, self._uid, self._users = service, uid, users
        self._routes = {r.path.removeprefix("/api/"): r for r in ROUTES}

    async def answer(self, method: str, path: str, body: bytes | None) -> Answer:
        """Return the answer, also to a refused request."""
        parts = urlsplit(path)
        name = parts.path.removeprefix("/api/")
        try:
            match name:
                case "whoami":
                    return _json({"uid": self._uid, "role": "user", "scopes": [], "token": None})
                case "apps":
                    return _json({"apps": list(self._service.apps)})
                case "run-file":
                    return self._file(parse_body(body or b"", RunFile))
                case "lib-file":
                    return self._library(method, parse_qs(parts.query), body)
                case _ if name in _ROUTES:
                    return await self._act(self._routes[name], body or b"")
        except Refusal as e:
            return Answer(e.http, {}, msgspec.json.encode(e.body()))
        refusal = Refusal("notHere", f"a client in one process has no request {name}")
        return Answer(refusal.http, {}, msgspec.json.encode(refusal.body()))

    async def _act(self, route: Route, body: bytes) -> Answer:
        handler = _Handler(self._service, body)
        given = route.action(cast(Handler, handler))
        if inspect.isawaitable(given):
            given = await given
        if given is None:
            return Answer(200, handler.headers, handler.written)
        return _json(given)

    def _file(self, request: RunFile) -> Answer:
        """Return a file below the run directory."""
        job = self._service.job(request.uid, request.compute_jid).job
        folder = os.path.realpath(job.run.run_dir if job.run is not None else self._users)
        # the files are those of this process's own user
        path = os.path.realpath(os.path.join(folder, request.name))
        if not path.startswith(folder + os.sep) or not os.path.isfile(path):
            raise Refusal(
                "notFound", f"there is no file {request.name!a:.100} in the run directory"
            )
        with open(path, "rb") as f:
            data = f.read()
        part = data[request.offset :][: request.length]
        headers = {"X-Jobscribe-Size": str(len(data)), "Content-Length": str(len(part))}
        return Answer(200, headers, part)

    def _library(self, method: str, query: dict[str, list[str]], body: bytes | None) -> Answer:
        """Store or remove a file of the user's library."""
        name = os.path.basename(query["name"][0])
        folder = os.path.join(self._users, self._uid, query["simulationType"][0], "lib")
        path = os.path.join(folder, name)
        if method == "PUT":
            os.makedirs(folder, 0o700, exist_ok=True)
            with open(path, "wb") as f:
                f.write(body or b"")
        elif os.path.exists(path):
            os.unlink(path)
        return _json({"name": name, "size": len(body or b"")})


class _Handler:
    """The part of a `Handler` that the actions of `_ROUTES` use."""

    def __init__(self, service: RunService, body: bytes) -> None:
        self.runs, self.log, self._body = service, service.log, body
        self.services = SimpleNamespace(
            sign_ins=None, unsent=SimpleNamespace(check=lambda owner, size: None), known=()
        )
        self.owner = ""
        self.headers: dict[str, str] = {}
        self.written = b""

    def parsed(self, type_: type[Any], limit: int = MAX_ONE) -> Any:
        return parse_body(self._body, type_, limit)

    async def parsed_runs(self) -> RunMany:
        return await parse_runs(self._body)

    def log_request(self, api: str, request: Any, jid: str) -> None:
        return None

    def set_header(self, name: str, value: str) -> None:
        self.headers[name] = value

    def end(self, data: bytes) -> None:
        self.written = data


def _json(body: Any) -> Answer:
    return Answer(200, {}, body if isinstance(body, bytes) else msgspec.json.encode(body))
