"""Library files of users for an app: upload, read, list and delete. Uploads go to disk at once."""

from typing import Any

from ....protocol.api.requests import LibFile
from ....protocol.errors import Refusal
from ....protocol.ids import parse
from ...files.uploads import Receiver
from ..transport.request_handler import Handler, Sink
from .app_calls import send_file


async def begin_upload(h: Handler) -> Sink:
    uid, type_, name = _place(h)
    h.log_call("uploadLibFile", f"{uid}-{type_}", uid)
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    declared = h.request.headers.get("Content-Length", "")
    size = int(declared) if declared.isdecimal() else 0
    return await h.services.uploads.begin(uid, type_, name, size)


async def lib_file(h: Handler) -> Any:
    if h.request.method == "PUT":
        assert isinstance(h.sink, Receiver)
        return await h.sink.finish()
    uid, type_, name = _place(h)
    h.log_call("deleteLibFile", f"{uid}-{type_}", uid)
    await h.services.uploads.delete(uid, type_, name)
    return {"state": "ok"}


async def read_lib_file(h: Handler) -> None:
    request: LibFile = h.parsed(LibFile)
    h.log_call("readLibFile", f"{request.uid}-{request.simulation_type}", request.uid)
    _check_app(h, request.simulation_type)
    await send_file(
        h, await h.services.uploads.read(request), f"a file of the library of {request.uid}"
    )


async def lib_files(h: Handler) -> Any:
    uid, type_ = _owner(h)
    return {"files": await h.services.uploads.files(uid, type_)}


def _place(h: Handler) -> tuple[str, str, str]:
    return *_owner(h), parse("name", h.argument("name") or "")


def _owner(h: Handler) -> tuple[str, str]:
    uid, type_ = (
        parse("uid", h.argument("uid") or ""),
        parse("simulationType", h.argument("simulationType") or ""),
    )
    _check_app(h, type_)
    return uid, type_


def _check_app(h: Handler, type_: str) -> None:
    if type_ not in h.runs.apps:
        raise Refusal(
            "unknownApp", f"unknown app {type_!r}; choose one of: {', '.join(h.runs.apps)}"
        )
