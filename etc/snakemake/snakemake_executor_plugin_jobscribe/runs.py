"""The runs of a workflow at the supervisor: submit, follow and cancel. Knows nothing of Snakemake."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jobscribe.cli.job.why import lines
from jobscribe.cli.session.session import Session
from jobscribe.client.api.errors import ClientError
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import split_jid
from jobscribe.protocol.jobs.status import COMPLETED

from .records import Record, Records
from .run_options import simulation_id

if TYPE_CHECKING:
    from jobscribe.client import Client
    from jobscribe.client.api.replies import GroupRun

    from .jobs import Order

#: Lines of `job why` in the message of a failure.
WHY_LINES = 6
#: Seconds to wait for the processes of canceled runs.
_CANCEL_SECS = 60.0
_STALE = (
    "the run {jid} of an earlier start of this workflow is still active, but the rule or its parameters"
    " changed since; wait for its end, or cancel it: jobscribe job cancel {jid}"
)
_FOREIGN = (
    "the run {jid} of this job is still active, but this workflow has no record of it; wait for its"
    " end, or cancel it: jobscribe job cancel {jid}"
)


class Refused(Exception):
    """A refusal, as a sentence for a person."""


class Submitted(NamedTuple):
    """A run. note: how it differs from a new one."""

    jid: str
    serial: int
    note: str = ""


class Outcome(NamedTuple):
    """The end of a run. failure: the first lines of `job why`; None for success. logs: paths."""

    failure: str | None = None
    logs: list[str] = []


def opened(settings: Any) -> Client:
    """Return a client for the settings, or for the defaults of the command jobscribe."""
    given = {name: getattr(settings, name) for name in ("root", "url", "token_file", "site")}
    options = {name: value for name, value in given.items() if value}
    try:
        client = Session({**options, "patience": float(settings.patience)}).client()
        _ = client.uid
    except (ClientError, Refusal) as e:
        raise Refused(f"jobscribe: {e.sentence}") from None
    except click.ClickException as e:
        raise Refused(f"jobscribe: {e.message}") from None
    return client


def _is_output(path: str) -> bool:
    return os.path.basename(path) in ("stdout.log", "stderr.log")


class Runs:
    """All runs of one workflow. folder: of its records. since: when the workflow began to look at
    its files, in unix seconds. `ended` may be called in another thread.
    """

    def __init__(self, client: Client, folder: Path, since: float) -> None:
        self._since = since
        self._client, self._watcher = client, client.copy()
        self._records = Records(folder)
        self.sid = simulation_id(str(folder.parent))
        self._new = True
        self._seen: object = None

    def close(self) -> None:
        self._client.close()
        self._watcher.close()

    # ---- submission

    def submit(self, orders: Sequence[Order]) -> dict[str, Submitted | Refused]:
        """Submit all with one request. Return the answer for each model. Raises Refused.

        An active run of an earlier start of the workflow is not repeated.
        """
        answers: dict[str, Submitted | Refused] = {}
        specs, sent = [], []
        try:
            for order in orders:
                try:
                    specs.append(self._spec(order))
                    sent.append(order.model)
                except Refused as e:
                    answers[order.model] = e
            for model, job in zip(sent, self._client.run_many(specs), strict=True):
                answers[model] = self._answer(model, job)
        except (ClientError, OSError) as e:
            raise Refused(f"jobscribe: {getattr(e, 'sentence', e)}") from None
        self._new = True
        return answers

    def _spec(self, order: Order) -> Any:
        """Return the spec of an order. Raises Refused, ClientError, OSError."""
        record = self._continued(order) or self._records.create(order.model, order.meaning)
        script = self._records.script(order.model, order.script())
        try:
            return self._client.spec(
                ["/bin/sh", script],
                simulation_id=self.sid,
                compute_model=order.model,
                compute_job_hash=record.digest,
                sim_name=order.name,
                **order.options,
            )
        except ClientError as e:
            raise Refused(e.sentence) from None

    def _continued(self, order: Order) -> Record | None:
        """Return the record of the submission to continue with. Raises Refused."""
        record = self._records.find(order.model)
        if record is None:
            return None
        state = self._client.status(self._jid(order.model), hash_=record.digest)
        if not state.finished:
            if record.meaning != order.meaning:
                raise Refused(_STALE.format(jid=self._jid(order.model)))
            return record
        if state.state == "missing":  # the submission itself may have been lost
            return record if record.meaning == order.meaning else None
        # Snakemake knows that an earlier success is complete, so it wants the job to run again
        recent = state.state == COMPLETED and (state.compute_job_end or 0.0) >= self._since
        whole = recent and all(map(os.path.exists, order.outputs))
        return record if whole and record.meaning == order.meaning else None

    def _answer(self, model: str, job: Any) -> Submitted | Refused:
        if isinstance(job, ClientError):
            self._records.remove(model)
            if job.code == "anotherRun":
                return Refused(_FOREIGN.format(jid=self._jid(model)))
            return Refused(job.sentence)
        over = job.submitted is not None and job.submitted.state == COMPLETED
        return Submitted(job.jid, job.serial, ", which has ended already" if over else "")

    def _jid(self, model: str) -> str:
        return f"{self._client.uid}-{self.sid}-{model}"

    # ---- the end

    def ended(self, runs: Sequence[Submitted]) -> dict[str, Outcome]:
        """Return the outcomes of the runs that are over, by their jid. One request, unless a run of
        the workflow changed. Raises Refused.
        """
        try:
            new, self._new = self._new, False
            state = self._watcher.group(self.sid, limit=0)
            seen = (sorted(state.counts.items()), state.busy)
            if seen == self._seen and not new:
                return {}
            rows = {row.compute_jid: row for row in self._watcher.group_runs(self.sid)}
            found = {run.jid: self._outcome(run, rows.get(run.jid)) for run in runs}
            self._seen = seen
        except ClientError as e:
            self._new = True
            raise Refused(f"jobscribe: {e.sentence}") from None
        outcomes = {jid: outcome for jid, outcome in found.items() if outcome is not None}
        for jid in outcomes:
            self._records.remove(split_jid(jid)[2])
        return outcomes

    def _outcome(self, run: Submitted, row: GroupRun | None) -> Outcome | None:
        if row is None:
            return Outcome(f"there is no run {run.jid} any more")
        if not row.over and row.compute_job_serial == run.serial:
            return None
        if row.compute_job_serial != run.serial:
            return Outcome(f"the run {run.jid} was replaced by a later one, outside this workflow")
        if row.state == COMPLETED:
            return Outcome()
        why = self._watcher.why(run.jid)
        text = "\n".join(itertools.islice(lines(run.jid, why), WHY_LINES))
        return Outcome(text, [path for path in map(str, why.get("logs") or []) if _is_output(path)])

    def cancel(self, runs: Sequence[Submitted], reason: str) -> None:
        """Cancel these runs; final when this returns. Waits for their processes. Raises Refused."""
        if not runs:
            return
        try:
            models = [split_jid(run.jid)[2] for run in runs]
            self._client.cancel_group(self.sid, models=models, reason=reason)
            if not self._client.wait_group(self.sid, timeout=_CANCEL_SECS).over:
                raise Refused(f"some have not ended after {_CANCEL_SECS:g} s")
        except ClientError as e:
            raise Refused(f"jobscribe: {e.sentence}") from None
