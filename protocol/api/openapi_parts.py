"""Parts of OpenAPI documents that the supervisor and the front end share. Pure."""

from collections.abc import Iterable
from typing import Any

from ..errors import CODES

#: Prefix of references to schemas.
SCHEMAS = "#/components/schemas/"
BINARY = {"schema": {"type": "string", "format": "binary"}}


def json_content(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a response with a JSON body of this schema."""
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def refusals(codes: Iterable[str], schema: str) -> dict[str, Any]:
    """Return the responses of these error codes by HTTP status. schema: name of the body's schema."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(CODES[code].http, []).append(code)
    return {
        str(status): json_content(" or ".join(found), {"$ref": SCHEMAS + schema})
        for status, found in sorted(by_status.items())
    }


def portable(schema: Any) -> Any:
    r"""Replace \Z, Python's end of a pattern, by $, which other languages know."""
    if isinstance(schema, dict):
        return {
            k: v.replace(r"\Z", "$") if k == "pattern" and isinstance(v, str) else portable(v)
            for k, v in schema.items()
        }
    return [portable(v) for v in schema] if isinstance(schema, list) else schema
