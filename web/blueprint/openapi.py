"""The OpenAPI document, generated from the routes and the types of their bodies. It lists every
possible response.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...protocol.api.openapi_parts import BINARY, SCHEMAS, json_content, portable, refusals
from ...protocol.version import VERSION
from ..request.csrf import HEADER
from ..request.schemas import Error, SrExceptionReply
from .route import VARIABLES, Route, Variable
from .routes import ROUTES

_VARIABLE = re.compile(r"<(\w+)>")
#: Error codes of the front end; the other codes concern only supervisor and agents.
REFUSALS = (
    "badRequest",
    "unauthenticated",
    "planRequired",
    "forbidden",
    "crossSite",
    "notFound",
    "unknownApp",
    "methodNotAllowed",
    "anotherRun",
    "staleSerial",
    "notReady",
    "conflict",
    "runDirUnwritable",
    "tooLarge",
    "replyTooLarge",
    "tooDeep",
    "rangeNotSatisfiable",
    "appRefused",
    "appFailed",
    "tooManyRequests",
    "internal",
    "badConfig",
    "storageUnavailable",
    "agentUnavailable",
    "supervisorUnavailable",
    "draining",
    "deadline",
    "resourceExceeded",
    "batchRefused",
    "signInNeeded",
    "signInRefused",
    "signInUnreachable",
    "signedInAlready",
)


def document(prefix: str = "", routes: Sequence[Route] = ROUTES) -> dict[str, Any]:
    """Return the document. prefix: URL prefix of the blueprint. routes: those that it has."""
    types = [r.takes for r in routes if r.takes is not None] + [
        r.reply for r in routes if r.reply is not Any
    ]
    types += [Error, SrExceptionReply]
    _, components = msgspec.json.schema_components(types, ref_template=SCHEMAS + "{name}")
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(prefix + _VARIABLE.sub(r"{\1}", route.path), {})[route.method.lower()] = (
            _operation(route)
        )
    responses = {
        "200": json_content("the document", {"type": "object"}),
        **refusals(REFUSALS, "Error"),
    }
    paths[prefix + "/openapi.json"] = {
        "get": {"operationId": "openapi", "summary": "This document", "responses": responses}
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "jobscribe", "version": VERSION, "description": _about()},
        "paths": paths,
        "components": {"schemas": portable(components)},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.api,
        "summary": route.about,
        "parameters": _parameters(route),
        "responses": {**_success(route), **refusals(REFUSALS, "Error")},
    }
    if route.takes is not None:
        content: dict[str, Any] = {
            "application/json": {"schema": {"$ref": SCHEMAS + route.takes.__name__}}
        }
        operation["requestBody"] = {"required": True, "content": content}
        operation["description"] = inspect.getdoc(route.takes)
    elif route.method == "PUT":
        operation["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": BINARY},
        }
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": VARIABLES[name]},
        }
        for name in _VARIABLE.findall(route.path)
    ]
    query: list[dict[str, Any]] = [
        {"name": q.name, "in": "query", "description": q.about, "schema": _query_schema(q)}
        for q in route.query
    ]
    if route.method in ("PUT", "DELETE"):
        about = "any value; proves that no other site sent the request"
        query.append(
            {
                "name": HEADER,
                "in": "header",
                "required": True,
                "description": about,
                "schema": {"type": "string", "minLength": 1},
            }
        )
    return parts + query


def _query_schema(variable: Variable) -> dict[str, Any]:
    return (
        {"type": "integer", "minimum": 0}
        if variable.pattern is None
        else {"type": "string", "pattern": variable.pattern}
    )


def _success(route: Route) -> dict[str, Any]:
    match route.gives:
        case "json":
            schema: dict[str, Any] = (
                {} if route.reply is Any else {"$ref": SCHEMAS + route.reply.__name__}
            )
            if route.may_except:
                schema = {"oneOf": [schema, {"$ref": SCHEMAS + SrExceptionReply.__name__}]}
            return {"200": json_content("done", schema)}
        case "text":
            return {
                "200": {
                    "description": "the text",
                    "content": {"text/plain": {"schema": {"type": "string"}}},
                }
            }
        case "file":
            content = {"*/*": BINARY}
            return {
                "200": {"description": "the file", "content": content},
                "206": {"description": "the requested part", "content": content},
                "304": {"description": "the browser's copy is current"},
            }


def _about() -> str:
    return (
        f"Simulation runs for browsers. Requests that change state are sent as application/json, or with the header {HEADER}, "
        "from a page of the same site. A refusal has a code, a sentence, advice, and a flag for whether the same request may succeed later."
    )
