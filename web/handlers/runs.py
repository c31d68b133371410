"""Runs: start, status, cancel. Combines the supervisor's reply with further fields for pages."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from ...apps.app import Model
from ...client.api import random_ids
from ...client.api.errors import ClientError
from ...protocol.api import requests
from ...protocol.errors import Refusal
from ...protocol.ids import compute_jid
from ...protocol.jobs.status import ACTIVE, CANCELED, COMPLETED, MISSING, PENDING
from ..request import error_responses, schemas
from ..request.app_catalog import Slot
from ..request.context import RequestContext
from . import library
from .cluster_fields import Target, parse_target

Reply = dict[str, Any]
#: Fields of the supervisor's reply for pages; the others are for operators.
_PAGE_FIELDS = (
    "state",
    "reason",
    "error",
    "computeJid",
    "computeJobHash",
    "computeJobSerial",
    "computeJobQueued",
    "computeJobStart",
    "computeJobEnd",
    "elapsedTime",
    "queueState",
    "jobStatusMessage",
    "canceledAfterSecs",
    "known",
    "since",
    "over",
    "superseded",
    "alert",
    "batch",
    "cluster",
    "why",
    "quotaWarning",
)
#: A state known to clients: the user must do something first.
SR_EXCEPTION = "srException"
#: Longer names of simulations are cut.
_NAME_CHARS = 200


def run_simulation(v: RequestContext) -> Reply:
    """Submit a run; answered as soon as the run is durable."""
    body = v.body(schemas.RunSimulation)
    v.authorize(body.simulation_type)
    model = v.site.simulations.model(body.simulation_type, body.report)
    target = _target(body.models, model, body.report)
    data = {
        "simulationType": body.simulation_type,
        "simulationId": body.simulation_id,
        "report": body.report,
        "models": target.models,
    }
    hash_ = v.site.simulations.hash(
        body.simulation_type, model, data, lambda: library.digests(v, body.simulation_type)
    )
    jid = compute_jid(v.uid, body.simulation_id, model.name)
    request = requests.RunSimulation(
        req_id=body.req_id or random_ids.req_id(),
        force_run=body.force_run,
        compute_job_serial=body.compute_job_serial,
        run=target.apply(
            requests.RunSpec(
                uid=v.uid,
                simulation_type=body.simulation_type,
                simulation_id=body.simulation_id,
                compute_model=model.name,
                job_run_mode=model.kind,
                data=data,
                compute_job_hash=hash_,
                sim_name=_sim_name(body.models),
                active_plan=v.site.plan(v.uid) if v.site.plan else None,
                env=v.site.simulations.environment(body.simulation_type),
            )
        ),
    )
    v.log(
        jid,
        {
            "reqId": request.req_id,
            "computeJid": jid,
            "report": body.report,
            "computeJobHash": hash_,
            "forceRun": body.force_run,
        },
    )
    reply = _changed(v, jid, "run-simulation", request)
    if reply.get("superseded"):
        reply = _current(v, jid, hash_) or reply
    page = _page(v, body.simulation_type, body.simulation_id, body.report)
    page_reply = page.reply_for_page(reply)
    if page_reply["state"] == MISSING and reply["state"] == COMPLETED:
        # it completed once, but its files are gone
        again = msgspec.structs.replace(request, req_id=_again(request.req_id), force_run=True)
        v.log(
            jid,
            {
                "reqId": again.req_id,
                "computeJid": jid,
                "forceRun": True,
                "reason": page_reply["reason"],
            },
        )
        reply = _changed(v, jid, "run-simulation", again)
        page_reply = page.reply_for_page(reply)
    if page_reply["state"] == PENDING and (sign_in := reply.get("srException")):
        # the run is stored, and starts by itself after the sign-in
        return {
            "state": SR_EXCEPTION,
            SR_EXCEPTION: _for_pages(sign_in, body.report),
            "run": page_reply,
        }
    return page_reply


def run_status(v: RequestContext) -> Reply:
    """Return the status of the run with this hash and serial, if given."""
    body = v.body(schemas.RunStatus)
    v.authorize(body.simulation_type)
    hash_ = body.compute_job_hash
    if hash_ is None and body.models is not None:
        model = v.site.simulations.model(body.simulation_type, body.report)
        data = {
            "simulationType": body.simulation_type,
            "simulationId": body.simulation_id,
            "report": body.report,
            "models": _target(body.models, model, body.report).models,
        }
        hash_ = v.site.simulations.hash(
            body.simulation_type, model, data, lambda: library.digests(v, body.simulation_type)
        )
    page = _page(v, body.simulation_type, body.simulation_id, body.report)
    return page.reply_for_page(page.status(hash_, body.compute_job_serial))


def run_cancel(v: RequestContext) -> Reply:
    """Cancel exactly this run. Another run in its place is not touched, and the reply says so."""
    body = v.body(schemas.RunCancel)
    v.authorize(body.simulation_type)
    page = _page(v, body.simulation_type, body.simulation_id, body.report)
    reply = page.status(body.compute_job_hash, body.compute_job_serial)
    if reply["state"] in ACTIVE and not reply.get("superseded"):
        request = requests.RunCancel(
            req_id=body.req_id or random_ids.req_id(),
            uid=v.uid,
            compute_jid=page.jid,
            compute_job_serial=reply["computeJobSerial"],
            reason="canceled from the page",
        )
        v.log(
            page.jid,
            {
                "reqId": request.req_id,
                "computeJid": page.jid,
                "computeJobSerial": request.compute_job_serial,
            },
        )
        reply = _changed(v, page.jid, "run-cancel", request)
    return page.reply_for_page(reply, result=False)


def _page(v: RequestContext, simulation_type: str, simulation_id: str, report: str) -> "_Page":
    return _Page(
        v, v.site.simulations.slot(simulation_type, report), simulation_type, simulation_id, report
    )


class _Page:
    """The simulation and report that a page shows, and their job."""

    def __init__(
        self, v: RequestContext, model: Slot, simulation_type: str, simulation_id: str, report: str
    ) -> None:
        self._v, self._model = v, model
        self._type, self._sid, self._report = simulation_type, simulation_id, report
        self.jid = compute_jid(v.uid, simulation_id, model.name)

    def status(self, hash_: str | None, serial: int) -> Reply:
        """Return the supervisor's status; `missing` if there is no run, or if it belongs to another
        request or app.
        """
        request = requests.RunStatusRequest(
            uid=self._v.uid, compute_jid=self.jid, compute_job_hash=hash_, compute_job_serial=serial
        )
        site = self._v.site
        try:
            reply = site.statuses.status(
                request, lambda: site.upstream.object("run-status", request)
            )
        except ClientError as e:
            if e.code != "notFound":
                raise
            return _missing(self.jid, "noRun")
        if reply.get("simulationType", self._type) != self._type:
            return _missing(self.jid, "noRun")
        return reply

    def reply_for_page(self, reply: Reply, *, result: bool = True) -> Reply:
        """Return the reply for the page. Fields of the supervisor win over fields reported by the
        app.
        """
        status = {k: reply[k] for k in _PAGE_FIELDS if reply.get(k) is not None}
        if (sign_in := reply.get("srException")) is not None:
            status["signIn"] = _for_pages(sign_in, self._report)["params"]
        if reply.get("position") is not None:
            status["computeJobPosition"] = reply["position"]
        beside = self._reported(reply)
        if reply["state"] in ACTIVE:
            status |= self._next(reply)
        elif reply["state"] == COMPLETED and result and self._model.kind == "sequential":
            found = self._result(reply)
            if found is None:
                return _missing(self.jid, "runDirNotFound") | {
                    "computeJobSerial": reply["computeJobSerial"]
                }
            beside |= found
        elif (
            reply["state"] == COMPLETED
            and result
            and self._v.api == "runSimulation"
            and not self._run_dir_exists(reply)
        ):
            return _missing(self.jid, "runDirNotFound") | {
                "computeJobSerial": reply["computeJobSerial"]
            }
        return {**beside, **status}

    def _reported(self, reply: Reply) -> Reply:
        frames = (
            {"frameCount": 0, "percentComplete": 0.0}
            if self._model.kind == "parallel" and reply["state"] != MISSING
            else {}
        )
        said = reply.get("parallelStatus")
        return frames | (_without_ours(said) if isinstance(said, dict) else {})

    def _next(self, reply: Reply) -> Reply:
        """Return the next request of the page, and when to send it."""
        request = {
            "simulationType": self._type,
            "simulationId": self._sid,
            "report": self._report,
            "computeJobHash": reply.get("computeJobHash"),
            "computeJobSerial": reply.get("computeJobSerial"),
            "computeJobStart": reply.get("computeJobStart"),
        }
        return {"nextRequest": request, "nextRequestSeconds": reply.get("nextRequestSeconds") or 1}

    def _result(self, reply: Reply) -> Reply | None:
        """Return the fields of the result; None if the files of the run are gone. Another error
        does not change the status of the run.
        """
        request = requests.CallRequest(
            uid=self._v.uid,
            job_cmd="sequential_result",
            simulation_type=self._type,
            compute_model=self._model.name,
            compute_jid=self.jid,
            compute_job_serial=reply["computeJobSerial"],
        )
        about = {"computeJid": self.jid, "computeJobSerial": reply["computeJobSerial"]}
        try:
            raw = self._v.upstream.call(request)
        except ClientError as e:
            if e.code == "notFound":
                self._v.log(self.jid, {**about, "result": f"notFound: {e.sentence}"})
                return None
            refusal = error_responses.from_supervisor(e)
            self._v.site.counts.add("result." + refusal.code)
            self._v.log(self.jid, {**about, "result": f"{refusal.code}: {refusal.sentence}"})
            return {
                "resultError": {
                    k: v for k, v in error_responses.body(refusal).items() if k != "state"
                }
            }
        self._v.log(self.jid, {**about, "result": f"ok bytes={len(raw)}"})
        found = msgspec.json.decode(
            raw, type=dict[str, msgspec.Raw] | list[msgspec.Raw] | str | float | bool | None
        )
        return _without_ours(found) if isinstance(found, dict) else {"result": found}

    def _run_dir_exists(self, reply: Reply) -> bool:
        request = requests.RunFile(
            uid=self._v.uid,
            compute_jid=self.jid,
            compute_job_serial=reply["computeJobSerial"],
            name="",
        )
        try:
            self._v.upstream.post("run-file", request)
        except ClientError as e:
            if e.code == "notFound":
                return False
            raise
        return True


def _changed(
    v: RequestContext, jid: str, name: str, request: requests.RunSimulation | requests.RunCancel
) -> Reply:
    """Send a request that may change the job. No later status is older than its reply."""
    try:
        return v.upstream.object(name, request)
    finally:
        v.site.statuses.drop(jid)


def _target(models: schemas.Data, model: Model, report: str) -> Target:
    return parse_target(models, (report, model.name), {field.name for field in model.fields})


def _sim_name(models: schemas.Data) -> str | None:
    """Return the name that the user gave the simulation, as Sirepo's clients send it."""
    simulation = models.get("simulation")
    name = simulation.get("name") if isinstance(simulation, dict) else None
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return None
    return name[:_NAME_CHARS]


def _for_pages(sign_in: Reply, report: str) -> Reply:
    return {**sign_in, "params": {**sign_in["params"], "report": report}}


def _without_ours(fields: Mapping[str, Any]) -> Reply:
    """Remove fields that only the supervisor may set from an app's report, even if the supervisor
    does not set them.
    """
    ours = {
        *_PAGE_FIELDS,
        "computeJobPosition",
        "signIn",
        "nextRequest",
        "nextRequestSeconds",
        "resultError",
    }
    return {k: v for k, v in fields.items() if k not in ours or k == "alert"}


def _missing(jid: str, reason: str) -> Reply:
    return {"state": MISSING, "computeJid": jid, "reason": reason, "known": True, "over": True}


def _current(v: RequestContext, jid: str, hash_: str) -> Reply | None:
    """Return the current run of the job if it has the same inputs as the request. The run that the
    request names may have been repeated since.
    """
    request = requests.RunStatusRequest(uid=v.uid, compute_jid=jid, compute_job_hash=hash_)
    reply = v.upstream.object("run-status", request)
    return None if reply["state"] in (MISSING, CANCELED) else reply


def _again(req_id: str) -> str:
    """Return the reqId of a second submission. It is derived from the first one, so that a
    repetition gets the same reqId.
    """
    return hashlib.blake2b(req_id.encode(), digest_size=16, key=b"again").hexdigest()


def serial(
    v: RequestContext, simulation_type: str, simulation_id: str, model: str, wanted: int
) -> int:
    """Return the serial of the run to read, if it belongs to this user and app. Raises
    Refusal("notFound").
    """
    jid = compute_jid(v.uid, simulation_id, model)
    request = requests.RunStatusRequest(uid=v.uid, compute_jid=jid, compute_job_serial=wanted)
    reply = v.upstream.object("run-status", request)
    if (
        reply.get("computeJobSerial") is None
        or reply.get("simulationType", simulation_type) != simulation_type
    ):
        raise Refusal("notFound", f"there is no job {jid}")
    return int(reply["computeJobSerial"])
