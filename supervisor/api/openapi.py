"""The OpenAPI document of the supervisor's API, generated from its routes and the types of their
bodies. It lists every possible response.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ...protocol.api.openapi_parts import BINARY, SCHEMAS, json_content, portable, refusals
from ...protocol.errors import CODES, Refusal
from ...protocol.version import VERSION
from .transport.request_handler import JSON, QueryField, Route

_PART = re.compile(r"\{([a-z]+)\}")
#: End of the paths that match all other addresses, which get a refusal.
_ANY = "/.*"
_ABOUT = (
    "Jobs, their output and their history. A sender proves who it is by an API token or the server secret. "
    "A refusal has a code, a sentence, advice, and a flag for whether the same request may succeed later; "
    "in /api/v1 and /api/v2 it has the form of OpenPAI."
)


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal. error: a sentence for a person. advice: the next action. retry: the same request
    may succeed later. Some codes add fields.
    """

    state: str
    code: str
    error: str
    advice: str
    retry: bool


class OpenpaiError(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal in the form of OpenPAI."""

    code: str
    message: str


def encoded(routes: Iterable[Route]) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(document(routes))


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of these routes."""
    routes = [r for r in routes if not r.path.endswith(_ANY)]
    types = [r.takes for r in routes if r.takes is not None] + [Error, OpenpaiError]
    _, components = msgspec.json.schema_components(types, ref_template=SCHEMAS + "{name}")
    paths: dict[str, Any] = {}
    for route in routes:
        for method in route.methods:
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jobscribe supervisor", "version": VERSION, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": portable(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, method: str) -> dict[str, Any]:
    about = inspect.getdoc(route.takes or route.action) or ""
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()} {route.path}",
        "summary": about.partition(".")[0] or route.path.rpartition("/")[2],
        "parameters": [*_parts(route), *_query(route)],
        "responses": {**_success(route), **_refusals(route)},
    }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the scope {route.scope}.\n\n{about}".rstrip()
    if route.takes is not None:
        content: dict[str, Any] = {JSON: {"schema": {"$ref": SCHEMAS + route.takes.__name__}}}
        operation["requestBody"] = {"required": True, "content": content}
    elif method == "PUT" and route.sink is not None:
        operation["requestBody"] = {"content": {"application/octet-stream": BINARY}}
    elif _is_openpai(route) and method in ("POST", "PUT"):
        texts: dict[str, Any] = {t: {"schema": {}} for t in (JSON, "text/yaml")}
        operation["requestBody"] = {"content": texts}
    return operation


def _parts(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[^/~]+$"},
        }
        for name in _PART.findall(route.path)
    ]


def _query(route: Route) -> Iterator[dict[str, Any]]:
    for entry in route.query:
        for field in [entry] if isinstance(entry, QueryField) else _fields(entry):
            yield {
                "name": field.name,
                "in": "query",
                "required": field.required,
                "description": field.about,
                "schema": field.schema,
            }


def _fields(type_: type[msgspec.Struct]) -> Iterator[QueryField]:
    """Return the fields of a struct, which are query arguments."""
    _, components = msgspec.json.schema_components([type_], ref_template=SCHEMAS + "{name}")
    schema = portable(components[type_.__name__])
    for name, about in schema["properties"].items():
        yield QueryField(name, f"see {type_.__name__}", about, name in schema.get("required", ()))


def _success(route: Route) -> dict[str, Any]:
    if _is_openpai(route):
        contents: dict[str, Any] = {t: {"schema": {}} for t in (JSON, "text/yaml", "text/plain")}
        return {code: {"description": "done", "content": contents} for code in ("200", "202")}
    if route.gives == JSON:
        return {"200": json_content("done", {})}
    return {"200": {"description": "the data", "content": {route.gives: BINARY}}}


def _refusals(route: Route) -> dict[str, Any]:
    return refusals(CODES, (OpenpaiError if _is_openpai(route) else Error).__name__)


def _is_openpai(route: Route) -> bool:
    return route.errors is not Refusal.body
