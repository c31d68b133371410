"""Downloads: files of runs, and their output. Data are forwarded piece by piece. A download holds a
worker until its reader is done, so their number is limited.

Ranges are read from the file itself. A browser always saves the file and never shows it as a page
of this site.
"""

import contextlib
import mimetypes
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from urllib.parse import quote

import flask
import msgspec
import werkzeug.http

from ...client.api.errors import ClientError
from ...client.transport.messages import Reply
from ...protocol.api.requests import CallRequest, JobLog, LibFile, RunFile
from ...protocol.errors import Refusal
from ...protocol.ids import compute_jid
from ..request import error_responses
from ..request.context import RequestContext, as_json
from ..request.worker_quota import WorkerSlot
from . import library, runs

_MAX_SUFFIX = 255
#: Separators, control characters, line ends, and marks that change the text direction.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f/\\\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LOG_PIECE = 256 * 1024
#: Maximum bytes of a log; a longer one is cut.
LOG_AT_MOST = 256 * 1024 * 1024


class _Made(msgspec.Struct):
    """Result of an app's download method: the name of a file in the run directory."""

    name: str


class _Body:
    """The body of a response, with a download slot that is released in any case."""

    def __init__(
        self, place: WorkerSlot, pieces: Iterator[bytes], closed: Callable[[], None]
    ) -> None:
        self._place, self._pieces, self._closed = place, pieces, closed
        self._open = True

    def __iter__(self) -> "_Body":
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                self._closed()
            finally:
                self._place.close()


def run_files(v: RequestContext) -> bytes:
    """Return the names that the app offers for download; each is a suffix."""
    type_, sid, model_name = v.id("simulationType"), v.id("simulationId"), v.id("computeModel")
    v.authorize(type_)
    model = v.site.simulations.model(type_, model_name)
    return v.upstream.call(
        CallRequest(
            uid=v.uid,
            job_cmd="list_run_files",
            simulation_type=type_,
            compute_model=model.name,
            compute_jid=compute_jid(v.uid, sid, model.name),
            compute_job_serial=v.number("computeJobSerial", 2**53),
        )
    )


def download_run_file(v: RequestContext) -> flask.Response:
    """Send the file that the app creates or names for this suffix. `frame` is a frame number in
    Sirepo's addresses; -1 means the whole run.
    """
    type_, sid, model_name = v.id("simulationType"), v.id("simulationId"), v.id("computeModel")
    v.authorize(type_)
    model = v.site.simulations.model(type_, model_name)
    suffix = v.query("suffix")
    if len(suffix) > _MAX_SUFFIX:
        raise Refusal("badRequest", f"suffix is limited to {_MAX_SUFFIX} characters")
    if not re.fullmatch(r"-?[0-9]{1,9}", v.arg("frame"), re.ASCII):
        raise Refusal("badRequest", "frame must be a number; -1 means the whole run")
    serial = runs.serial(v, type_, sid, model.name, v.number("computeJobSerial", 2**53))
    jid = compute_jid(v.uid, sid, model.name)
    call = CallRequest(
        uid=v.uid,
        job_cmd="download_run_file",
        simulation_type=type_,
        compute_model=model.name,
        compute_jid=jid,
        compute_job_serial=serial,
        args={"suffix": suffix, "frame": int(v.arg("frame"))},
    )
    made = msgspec.json.decode(v.upstream.call(call), type=_Made)
    v.log(jid, {"computeJid": jid, "computeJobSerial": serial, "name": made.name})
    return send_file(
        v, RunFile(uid=v.uid, compute_jid=jid, compute_job_serial=serial, name=made.name)
    )


def get_lib_file(v: RequestContext) -> flask.Response:
    """Send a file of the user's library, uploaded or created by an app."""
    simulation_type, name = library.simulation_type(v), library.name(v)
    return send_file(v, LibFile(uid=v.uid, simulation_type=simulation_type, name=name))


def send_file(v: RequestContext, wanted: RunFile | LibFile) -> flask.Response:
    """Send the whole file, a part, or only headers, as requested."""
    conditional = {"Range", "If-None-Match", "If-Modified-Since"} & set(v.request.headers.keys())
    if v.request.method != "HEAD" and not conditional:
        return _sent(v, wanted, None)
    with v.upstream.stream(_route(wanted), msgspec.structs.replace(wanted, length=0)) as stat:
        etag, modified, size = (
            stat.headers.required("ETag"),
            _moment(stat.headers.required("Last-Modified")),
            stat.headers.number("X-Jobscribe-Size"),
        )
    if not werkzeug.http.is_resource_modified(
        v.request.environ, etag, last_modified=modified, ignore_if_range=True
    ):
        return _described(flask.Response(status=304), wanted.name, etag, modified)
    if v.request.method == "HEAD":
        answer = _described(flask.Response(), wanted.name, etag, modified)
        answer.headers["Content-Length"] = str(size)
        return answer
    try:
        return _sent(v, wanted, _range(v, etag, modified, size))
    except Refusal as e:
        if e.code != "rangeNotSatisfiable":
            raise
        v.site.counts.add("refused." + e.code)
        refused = as_json(error_responses.body(e), e.http)
        refused.headers["Content-Range"] = f"bytes */{size}"
        return refused


def _range(
    v: RequestContext, etag: str, modified: datetime | None, size: int
) -> tuple[int, int] | None:
    """Return the requested (first byte, end) with an exclusive end; None for the whole file. Raises
    Refusal("rangeNotSatisfiable").
    """
    asked = werkzeug.http.parse_range_header(v.request.headers.get("Range"))
    if (
        asked is None
        or asked.units != "bytes"
        or len(asked.ranges) != 1
        or not _still(v, etag, modified)
    ):
        return None
    first, end = asked.ranges[0]
    if first < 0:  # the last bytes
        first, end = max(0, size + first), size
    if first >= size:
        raise Refusal("rangeNotSatisfiable", f"the file has {size} bytes")
    return first, min(size, end or size)


def _still(v: RequestContext, etag: str, modified: datetime | None) -> bool:
    """Return whether the file is unchanged since the browser got its part (If-Range)."""
    said = v.request.headers.get("If-Range", "")
    condition = werkzeug.http.parse_if_range_header(said)
    if said.startswith("W/"):
        return False  # weak ETags do not allow ranges
    if condition.etag is not None:
        return condition.etag == werkzeug.http.unquote_etag(etag)[0]
    return condition.date is None or condition.date == modified


def _route(wanted: RunFile | LibFile) -> str:
    return "run-file" if isinstance(wanted, RunFile) else "read-lib-file"


def _sent(
    v: RequestContext, wanted: RunFile | LibFile, part: tuple[int, int] | None
) -> flask.Response:
    with contextlib.ExitStack() as undone:
        place = v.site.quota.stream(v.uid)
        undone.callback(place.close)
        request = (
            wanted
            if part is None
            else msgspec.structs.replace(wanted, offset=part[0], length=part[1] - part[0])
        )
        stream = v.upstream.stream(_route(wanted), request)
        undone.callback(stream.close)
        length, size = (
            stream.headers.number("Content-Length"),
            stream.headers.number("X-Jobscribe-Size"),
        )
        answer = flask.Response(
            _Body(place, stream.pieces(length), stream.close), status=200 if part is None else 206
        )
        answer.headers["Content-Length"] = str(length)
        if part is not None:
            answer.headers["Content-Range"] = f"bytes {part[0]}-{part[0] + length - 1}/{size}"
        _described(
            answer,
            wanted.name,
            stream.headers.required("ETag"),
            _moment(stream.headers.required("Last-Modified")),
        )
        undone.pop_all()  # the response owns them from here on
    return answer


def _described(
    answer: flask.Response, name: str, etag: str, modified: datetime | None
) -> flask.Response:
    headers = answer.headers
    shown = _CONTROLS.sub("_", name.rpartition("/")[2]) or "file"
    headers["Content-Disposition"] = "attachment; " + _parameter(shown)
    headers["Content-Type"] = mimetypes.guess_type(shown)[0] or "application/octet-stream"
    headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    headers["Accept-Ranges"] = "bytes"
    headers["ETag"] = etag
    headers["Cache-Control"] = "private, no-cache"
    answer.last_modified = modified
    return answer


def _parameter(name: str) -> str:
    """Return the file name parameter of the header (RFC 6266)."""
    if name.isascii():
        return werkzeug.http.dump_options_header("", {"filename": name}).removeprefix("; ")
    return f"filename*=UTF-8''{quote(name, safe='')}"


def _moment(text: str) -> datetime | None:
    return werkzeug.http.parse_date(text)


def run_log(v: RequestContext) -> flask.Response:
    """Send the output of the run so far as text: the newest `tail` bytes, or everything that is
    kept.
    """
    type_, sid, model_name = v.id("simulationType"), v.id("simulationId"), v.id("computeModel")
    v.authorize(type_)
    model = v.site.simulations.slot(type_, model_name)
    stream, tail = v.query("stream", "stdout"), v.number("tail", 512 * 1024)
    if stream not in ("stdout", "stderr"):
        raise Refusal("badRequest", "stream must be stdout or stderr")
    serial = runs.serial(v, type_, sid, model.name, v.number("computeJobSerial", 2**53))
    request = JobLog(
        uid=v.uid,
        compute_jid=compute_jid(v.uid, sid, model.name),
        compute_job_serial=serial,
        stream="stdout" if stream == "stdout" else "stderr",
        tail=tail,
        limit=tail or LOG_PIECE,
    )
    if tail:
        first = v.upstream.reply("job-log", request)
        return text(flask.Response(first.body), f"{stream}.log", first)
    return whole_log(v, request)


def whole_log(v: RequestContext, request: JobLog) -> flask.Response:
    """Send all output that is kept, while it is read from the supervisor."""
    first = v.upstream.reply("job-log", request)
    place = v.site.quota.stream(v.uid)
    return text(
        flask.Response(_Body(place, _log_pieces(v, request, first), lambda: None)),
        f"{request.stream}.log",
        first,
    )


def _log_pieces(v: RequestContext, request: JobLog, reply: Reply) -> Iterator[bytes]:
    request = _same_task(request, reply)
    sent = 0
    while True:
        dropped = reply.headers.number("X-Jobscribe-Dropped")
        if dropped:
            yield f"\n[{dropped} bytes are not kept]\n".encode()
        if not reply.body:
            return
        yield reply.body
        sent += len(reply.body)
        if reply.headers["X-Jobscribe-End"] == "true" or sent >= LOG_AT_MOST:
            return
        offset = reply.headers.number("X-Jobscribe-Next-Offset")
        try:
            reply = v.upstream.reply("job-log", msgspec.structs.replace(request, offset=offset))
        except ClientError as e:
            if e.code != "staleSerial":
                raise
            yield b"\n[the job was started again; the rest of this run's output cannot be read]\n"
            return


def _same_task(request: JobLog, reply: Reply) -> JobLog:
    """Return the request for the task that answered, even if a new attempt or run starts
    meanwhile.
    """
    if reply.headers.get("X-Jobscribe-Attempt") is None:
        return request  # no task was placed yet
    return msgspec.structs.replace(
        request,
        compute_job_serial=(
            reply.headers.number("X-Jobscribe-Serial")
            if reply.headers.get("X-Jobscribe-Serial") is not None  # an earlier supervisor
            else request.compute_job_serial
        ),
        attempt=reply.headers.number("X-Jobscribe-Attempt"),
        role=reply.headers.required("X-Jobscribe-Role"),
        index=reply.headers.number("X-Jobscribe-Index"),
    )


def text(answer: flask.Response, name: str, first: Reply) -> flask.Response:
    answer.headers.set("Content-Disposition", "inline", filename=name)
    answer.headers["Content-Type"] = "text/plain; charset=utf-8"
    answer.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    answer.headers["X-Jobscribe-Offset"] = first.headers["X-Jobscribe-Offset"]
    return answer
