"""Read the record of one task of a job from the supervisor, without the values of secrets. Writes no
file.
"""

from typing import Any

import msgspec

from ....client.api.errors import ClientError
from ....client.api.run_specs import newest_request
from ....client.sync_client import Client
from ....protocol.api.job_arrays import parse_index
from ....protocol.api.requests import RunSpec
from ....protocol.errors import Refusal
from ....protocol.jobs import debugging
from ....protocol.jobs.roles import TaskPlace, TaskRole
from ....schema.jobs.job_file import Definition, define
from ....schema.jobs.withheld import Withheld, Withholding
from ...submission.simulation import local_places
from ...terminal.screen import clean
from ..why import lines

#: First lines of the explanation.
_LINES = 12
MAIN = "main"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """spec: with references in the place of secrets (`withheld`). role: None for a run without
    roles. placed: the places are the recorded ones, else they are on this machine. outcome: the
    first lines of `job why`. started: unix time of the start; None if it has not started.
    """

    jid: str
    serial: int
    attempt: int
    spec: RunSpec
    definition: Definition
    role: TaskRole | None
    index: int
    places: tuple[TaskPlace, ...]
    placed: bool
    withheld: tuple[Withheld, ...]
    outcome: tuple[str, ...]
    said: str
    started: float | None
    array_index: int | None
    apps: tuple[str, ...]

    @property
    def task(self) -> str:
        return MAIN if self.role is None else f"{self.role.name}/{self.index}"


def read_record(client: Client, jid: str, role: str | None, index: int | None) -> Record:
    """Return the record of the newest run of the job. Raises Refusal, ClientError."""
    stored = newest_request(client.story(jid))
    state = client.status(jid)
    answer = client.tasks(jid)
    why = client.why(jid)
    withholding = Withholding()
    env = {k: v for k, v in stored.env.items() if k not in debugging.OPTIONS}
    spec = withholding.spec(msgspec.structs.replace(stored, env=env))
    chosen = _role(spec, role, index, why)
    chosen_index = 0 if chosen is None else _index(chosen, role, index, why)
    places = _recorded_places(answer["tasks"]) if spec.roles else ()
    complete = len(places) == sum(r.tasks for r in spec.roles) > 0
    # the output of a job may have control characters
    outcome = [clean(withholding.line(line)) for line in lines(jid, why)][:_LINES]
    return Record(
        jid=jid,
        serial=int(answer["computeJobSerial"]),
        attempt=int(answer["attempt"]) or 1,
        spec=spec,
        definition=define(stored, origin=False),
        role=chosen,
        index=chosen_index,
        places=places if complete else local_places(spec.roles),
        placed=complete,
        withheld=tuple(withholding.found),
        outcome=tuple(outcome),
        said=clean(withholding.line(str(why.get("sentence") or why.get("state")))),
        started=state.compute_job_start,
        array_index=parse_index(jid)[1],
        apps=tuple(client.apps()) if spec.data is not None else (),
    )


def input_files(client: Client, record: Record) -> tuple[list[dict[str, Any]], str]:
    """Return the files of the run directory that are older than the start of the run, and why they
    are not known if so. An app's run has none: its command empties the directory.
    """
    if record.spec.data is not None:
        return [], ""
    try:
        found = list(client.files(record.jid))
    except ClientError as e:
        return [], f"the files of the run directory are not available: {e.sentence}"
    before = record.started
    return [f for f in found if before is None or f["mtime"] < before], ""


def _role(
    spec: RunSpec, role: str | None, index: int | None, why: dict[str, Any]
) -> TaskRole | None:
    """Return the role of the task; without options, that of the task that `job why` explains."""
    names = [r.name for r in spec.roles]
    if not names:
        if role is not None or index is not None:
            raise Refusal("badRequest", "the job has no roles; leave out --role and --index")
        return None
    wanted = role or (why.get("role") if why.get("role") in names else names[0])
    if wanted not in names:
        raise Refusal(
            "badRequest", f"the job has no role {wanted!a:.60}; its roles are: {', '.join(names)}"
        )
    return spec.roles[names.index(wanted)]


def _index(role: TaskRole, given: str | None, index: int | None, why: dict[str, Any]) -> int:
    explained = why.get("index") if why.get("role") == role.name else 0
    chosen = int(explained or 0) if index is None else index
    if not 0 <= chosen < role.tasks:
        raise Refusal(
            "badRequest",
            f"role {role.name} has no task {chosen}; give --index 0 to {role.tasks - 1}",
        )
    return chosen


def _recorded_places(tasks: list[dict[str, Any]]) -> tuple[TaskPlace, ...]:
    return tuple(
        TaskPlace(
            role=t["role"],
            index=t["index"],
            host=t["host"] or "unknown",
            address=t["address"] or "",
            ports={label: tuple(numbers) for label, numbers in t["ports"].items()},
            gpus=tuple(t["gpus"]),
        )
        for t in tasks
    )
