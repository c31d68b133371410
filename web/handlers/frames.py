"""Frames: one image of a run, at an address that always means the same image.

The address is `frameIndex*frameReport*simulationId*simulationType*computeJobHash*computeJobSerial`,
plus `*{...}` in JSON for further arguments of the app. It contains the serial, so browsers may
cache frames without limit.
"""

from typing import Any

import flask
import msgspec

from ...protocol.api.requests import CallRequest
from ...protocol.errors import Refusal
from ...protocol.ids import compute_jid, parse
from ..request.context import RequestContext, number

FOR_EVER = "private, max-age=31536000, immutable"
_HASH = frozenset("0123456789abcdefABCDEFGHIJKLMNOPQRSTUVWXYZghijklmnopqrstuvwxyz")
_MAX_ARGS = 2000


class FrameId(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    report: str
    simulation_id: str
    simulation_type: str
    serial: int
    args: dict[str, Any]


def parse_frame_id(text: str) -> FrameId:
    """Parse the address. Raises Refusal("badRequest")."""
    parts = text.split("*", 6)
    if len(parts) < 6:
        raise Refusal(
            "badRequest",
            "a frame id is frameIndex*frameReport*simulationId*simulationType*computeJobHash*computeJobSerial",
        )
    index, report, sid, type_, hash_, serial = parts[:6]
    if not (0 < len(hash_) <= 64 and set(hash_) <= _HASH):
        raise Refusal("badRequest", "computeJobHash must be 1 to 64 letters or digits")
    frame = FrameId(
        index=number("frameIndex", index, 10**9),
        report=parse("computeModel", report),
        simulation_id=parse("simulationId", sid),
        simulation_type=parse("simulationType", type_),
        serial=number("computeJobSerial", serial, 2**53),
        args=_args(parts[6]) if len(parts) == 7 else {},
    )
    if frame.serial == 0:
        raise Refusal("badRequest", "computeJobSerial of a frame must be the serial of its run")
    return frame


def _args(text: str) -> dict[str, Any]:
    try:
        if len(text) > _MAX_ARGS:
            raise Refusal(
                "badRequest", f"the arguments of a frame are limited to {_MAX_ARGS} characters"
            )
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as e:
        raise Refusal(
            "badRequest", f"the last part of a frame id must be a JSON object: {e}"
        ) from None


def simulation_frame(v: RequestContext) -> flask.Response:
    frame = parse_frame_id(v.arg("frame_id"))
    v.authorize(frame.simulation_type)
    model = v.site.simulations.model(frame.simulation_type, frame.report)
    raw = v.upstream.call(
        CallRequest(
            uid=v.uid,
            job_cmd="get_simulation_frame",
            simulation_type=frame.simulation_type,
            compute_model=model.name,
            compute_jid=compute_jid(v.uid, frame.simulation_id, model.name),
            compute_job_serial=frame.serial,
            args={**frame.args, "frameReport": frame.report, "frameIndex": frame.index},
        )
    )
    answer = flask.Response(raw, mimetype="application/json")
    answer.headers["Cache-Control"] = FOR_EVER
    # another user of the same browser has another cookie
    answer.headers["Vary"] = "Cookie"
    return answer
