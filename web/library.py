"""The user's library of input files: list, upload, delete. The supervisor keeps the files; bytes pass through here and are not held."""

from collections.abc import Iterator, Mapping
from urllib.parse import urlencode

import msgspec
from werkzeug.exceptions import ClientDisconnected

from ..protocol.errors import Refusal
from . import schemas
from .upstream import CHUNK
from .visit import Visit

_NAME_LIMIT = 255


def lib_files(v: Visit) -> schemas.LibFilesReply:
    return _listed(v, _simulation_type(v))


def digests(v: Visit, simulation_type: str) -> Mapping[str, str]:
    """sha256 by name."""
    return {f.name: f.sha256 for f in _listed(v, simulation_type).files}


def put_lib_file(v: Visit) -> bytes:
    """Whole or not at all: an upload that is cut off changes nothing."""
    simulation_type, name = _simulation_type(v), _name(v)
    length = v.request.content_length
    if length is None:
        raise Refusal("badRequest", "an upload must say its length (Content-Length)")
    v.log(None, {"simulationType": simulation_type, "name": name, "size": length})
    return v.upstream.upload(_path("lib-file", v.uid, simulation_type, name), _pieces(v, length), length)


def delete_lib_file(v: Visit) -> bytes:
    simulation_type, name = _simulation_type(v), _name(v)
    v.log(None, {"simulationType": simulation_type, "name": name})
    return v.upstream.exchange("DELETE", _path("lib-file", v.uid, simulation_type, name))


def _pieces(v: Visit, length: int) -> Iterator[bytes]:
    left = length
    while left > 0:
        try:
            piece = v.request.stream.read(min(CHUNK, left))
        except (ClientDisconnected, OSError):
            piece = b""
        if not piece:
            raise Refusal("badRequest", f"the upload was cut off {left} bytes before its end")
        left -= len(piece)
        yield piece


def _listed(v: Visit, simulation_type: str) -> schemas.LibFilesReply:
    raw = v.upstream.exchange("GET", _path("lib-files", v.uid, simulation_type))
    return msgspec.json.decode(raw, type=schemas.LibFilesReply)


def _simulation_type(v: Visit) -> str:
    simulation_type = v.id("simulationType")
    v.allowed(simulation_type)
    v.site.simulations.app(simulation_type)
    return simulation_type


def _name(v: Visit) -> str:
    name = v.arg("name")
    if name in ("", ".", "..") or len(name.encode("utf-8", "surrogateescape")) > _NAME_LIMIT or not name.isprintable() or "/" in name:
        raise Refusal("badRequest", "a file's name must be printable, without a slash, and not longer than 255 bytes")
    return name


def _path(route: str, uid: str, simulation_type: str, name: str | None = None) -> str:
    query = {"uid": uid, "simulationType": simulation_type} | ({} if name is None else {"name": name})
    return f"/api/{route}?{urlencode(query)}"
