"""The user's library of input files: list, upload, delete. The supervisor stores the files; this
process forwards data without storing it.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

import msgspec
from werkzeug.exceptions import ClientDisconnected

from ...protocol.errors import Refusal
from ..request import schemas
from ..request.context import RequestContext
from ..request.supervisor_client import CHUNK

_ETAG = re.compile(r'"[\x21\x23-\x7e]{1,128}"\Z')


def lib_files(v: RequestContext) -> schemas.LibFilesReply:
    return _listed(v, simulation_type(v))


def digests(v: RequestContext, simulation_type: str) -> Mapping[str, str]:
    """Return sha256 by name."""
    return {f.name: f.sha256 for f in _listed(v, simulation_type).files}


def put_lib_file(v: RequestContext) -> bytes:
    """Upload a file atomically: an interrupted upload changes nothing. `If-Match` and `If-None-Match: *`
    say which file it may replace.
    """
    type_, file = simulation_type(v), name(v)
    length = v.request.content_length
    if length is None:
        raise Refusal("badRequest", "an upload needs its length (Content-Length)")
    v.log(None, {"simulationType": type_, "name": file, "size": length})
    path = _path("lib-file", v.uid, type_, file, over=_replaced(v))
    return v.upstream.upload(path, pieces(v, length), length)


def _replaced(v: RequestContext) -> str | None:
    """Return the ETag of the file that an upload may replace, `none` for no file; None: any. Raises
    Refusal("badRequest") for a condition that names several files.
    """
    match, none_match = v.request.headers.get("If-Match"), v.request.headers.get("If-None-Match")
    if none_match == "*" and match is None:
        return "none"
    if match is None and none_match is None:
        return None
    if match is None or none_match is not None or not _ETAG.match(match):
        raise Refusal(
            "badRequest", "an upload takes If-Match with one strong ETag, or If-None-Match: *"
        )
    return match


def delete_lib_file(v: RequestContext) -> bytes:
    type_, file = simulation_type(v), name(v)
    v.log(None, {"simulationType": type_, "name": file})
    return v.upstream.exchange("DELETE", _path("lib-file", v.uid, type_, file))


def pieces(v: RequestContext, length: int) -> Iterator[bytes]:
    """Yield the body. Raises Refusal if it is cut off."""
    left = length
    while left > 0:
        try:
            piece = v.request.stream.read(min(CHUNK, left))
        except (ClientDisconnected, OSError):
            piece = b""
        if not piece:
            raise Refusal("badRequest", f"the upload was interrupted {left} bytes before its end")
        left -= len(piece)
        yield piece


def _listed(v: RequestContext, simulation_type: str) -> schemas.LibFilesReply:
    raw = v.upstream.exchange("GET", _path("lib-files", v.uid, simulation_type))
    return msgspec.json.decode(raw, type=schemas.LibFilesReply)


def simulation_type(v: RequestContext) -> str:
    """Return the app in the path, if it exists and this user may use it."""
    type_ = v.id("simulationType")
    v.authorize(type_)
    v.site.simulations.app(type_)
    return type_


def name(v: RequestContext) -> str:
    """Return the file name in the path."""
    return v.id("name")


def _path(
    route: str, uid: str, simulation_type: str, name: str | None = None, over: str | None = None
) -> str:
    named = {"uid": uid, "simulationType": simulation_type, "name": name, "over": over}
    query = {k: v for k, v in named.items() if v is not None}
    return f"/api/{route}?{urlencode(query)}"
