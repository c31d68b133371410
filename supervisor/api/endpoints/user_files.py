"""Files that users send: of their library of an app (also read, list, delete), and into the run
directory of a job. A body goes on as it arrives.
"""

from typing import Any

import msgspec

from ....protocol.api.requests import LibFile, PutRunFile, RunFilePart
from ....protocol.errors import Refusal
from ....protocol.ids import parse
from ...files.run_dir_uploads import RunDirReceiver
from ...files.uploads import Receiver
from ..transport.request_handler import Handler, Sink
from .app_calls import send_file

_ARGUMENTS = (
    "uid",
    "computeJid",
    "computeJobSerial",
    "name",
    "sha256",
    "size",
    "offset",
    "replace",
    "active",
)


async def begin_upload(h: Handler) -> Sink:
    uid, type_, name = _place(h)
    h.log_call("uploadLibFile", f"{uid}-{type_}", uid)
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    declared = h.request.headers.get("Content-Length", "")
    size = int(declared) if declared.isdecimal() else 0
    return await h.services.uploads.begin(uid, type_, name, size, h.argument("over"))


async def lib_file(h: Handler) -> Any:
    """Store or delete a file of the user's library of an app."""
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
    """Return the files of the user's library of an app."""
    uid, type_ = _owner(h)
    return {"files": await h.services.uploads.files(uid, type_)}


async def begin_put(h: Handler) -> Sink:
    given = {name: value for name in _ARGUMENTS if (value := h.argument(name)) is not None}
    try:
        request = msgspec.convert(given, PutRunFile, strict=False)
    except msgspec.ValidationError as e:
        raise Refusal("badRequest", f"the address is not valid: {e}") from None
    jid = request.compute_jid
    h.log_call("putRunFile", jid, request.uid, jid=jid)
    if h.runs.draining:
        raise Refusal("draining", "the supervisor is stopping")
    return await h.services.run_dir_uploads.begin(request)


async def put_run_file(h: Handler) -> Any:
    """Store a part of a file in the run directory of a job."""
    assert isinstance(h.sink, RunDirReceiver)
    return await h.sink.finish()


async def run_file_part(h: Handler) -> Any:
    request: RunFilePart = h.parsed(RunFilePart)
    h.log_call("runFilePart", request.compute_jid, request.uid, jid=request.compute_jid)
    return {
        "name": request.name,
        "received": await h.services.run_dir_uploads.received(request),
    }


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
