"""The check at the end of every system test: the fold of the store, the records and the
supervisor's answers agree.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from supervisor_process import SupervisorProcess, until

from jobscribe.db.events.state import Job, Run
from jobscribe.db.maintenance.log_source import opened
from jobscribe.db.maintenance.verification import check, export, folded
from jobscribe.db.records.job_record import record_bytes
from jobscribe.db.records.record_files import record_path
from jobscribe.db.store.contract import Stored
from jobscribe.db.store.job_index import index_row
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.status import PURGED

#: Allowed next events of a run. Any other event is superfluous, missing or out of order.
_NEXT = {
    None: {"RunRequested", "JobFolded"},
    "JobFolded": {"RunRequested", "RunPurged"},
    "RunRequested": {"TaskPlaced", "StopRequested", "RunEnded"},
    "TaskPlaced": {
        "TaskSlotGranted",
        "TaskSubmitted",
        "TaskStarted",
        "TaskEnded",
        "StopRequested",
    },
    "TaskSlotGranted": {"TaskStarted", "TaskEnded", "StopRequested"},
    "TaskSubmitted": {"TaskStarted", "TaskEnded", "StopRequested"},
    "TaskStarted": {"TaskExited", "TaskEnded", "StopRequested", "RunEnded", "AttemptEnded"},
    "TaskExited": {"LateStopRequested", "TaskEnded"},
    "LateStopRequested": {"TaskEnded"},
    "StopRequested": {"RunEnded"},
    "TaskEnded": {"AttemptEnded"},
    "AttemptEnded": {"RunEnded", "RunPurged"},
    "RunEnded": {
        "TaskSlotGranted",
        "TaskSubmitted",
        "TaskStarted",
        "TaskExited",
        "TaskEnded",
        "RunPurged",
    },
    "RunPurged": set[str](),
}


def check_books(site: SupervisorProcess) -> dict[str, Job]:
    """Check the records of a root and return all jobs by computeJid. All submitted runs must be
    over. The supervisor may run or not.
    """
    jobs = fold(site.root) if site.process is None else wait_idle(site)
    _check_order(site.root)
    if site.process is not None:
        for jid, (job, last) in jobs.items():
            _check_answers(site, jid, job, last)
        _check_lists(site, jobs)
        _wait_for_records(site.root, jobs)
    report = check(site.root)
    assert report.ok, report
    assert site.process is None or not report.records_behind, report
    return {jid: job for jid, (job, _) in jobs.items()}


def wait_idle(site: SupervisorProcess) -> dict[str, tuple[Job, Stored]]:
    """Wait until no run is pending or running and no task of any run is left. Return the fold."""
    until(lambda: not site.post("job-list", active=True)["jobs"], "nothing is pending or running")
    found: list[dict[str, tuple[Job, Stored]]] = []

    def idle() -> bool:
        found[:] = [fold(site.root)]
        return not any(job.busy for job, _ in found[0].values())

    until(idle, "nothing is left of anything")
    return found[0]


def _wait_for_records(root: Path, jobs: dict[str, tuple[Job, Stored]]) -> None:
    """Wait until each record equals the fold of its job. The records alone are read in each look."""
    behind = {
        record_path(root / "supervisor-job", jid): record_bytes(job, last.position, last.event.at)
        for jid, (job, last) in jobs.items()
    }

    def written() -> bool:
        for path, content in list(behind.items()):
            if path.exists() and path.read_bytes() == content:
                del behind[path]
        return not behind

    until(written, "the records are written")


def fold(root: Path) -> dict[str, tuple[Job, Stored]]:
    """Return every job as the fold of its stored events, with its last event, by computeJid."""
    connection = opened(root)
    try:
        return {job.jid: (job, last) for job, last in folded(connection, 2**62)}
    finally:
        connection.close()


def events(root: Path) -> list[dict[str, Any]]:
    """Return the whole log: {"position", "stream", "version", "type", "event"}."""
    return [msgspec.json.decode(line) for line in export(root)]


def stories(root: Path) -> dict[str, list[str]]:
    """Return the types of events by computeJid."""
    out: dict[str, list[str]] = {}
    for e in events(root):
        if e["stream"].startswith("job/"):
            out.setdefault(e["stream"].removeprefix("job/"), []).append(e["type"])
    return out


def stories_without_grants(root: Path) -> set[tuple[str, ...]]:
    """Return the different stories without `TaskSlotGranted`. Whether a run is placed before it has a
    slot depends on how long earlier runs took.
    """
    return {tuple(t for t in types if t != "TaskSlotGranted") for types in stories(root).values()}


def _check_order(root: Path) -> None:
    """Check the event order of each run separately: events of a canceled run may follow the request
    of the next one.
    """
    ended: dict[str, int] = {}
    for (jid, serial), own in _runs(root).items():
        types = [e["type"] for e in own]
        if _is_plain(own[0]["event"]):
            for before, after in zip([None, *types], types, strict=False):
                assert after in _NEXT[before], (jid, serial, types)
            assert all(n == 1 for n in Counter(types).values()), (jid, serial, types)
        else:
            _check_attempts(own)
        assert types.count("RunEnded") == 1, (jid, serial, types)
        assert serial > ended.get(jid, 0), (jid, serial)
        ended[jid] = serial


def _is_plain(requested: dict[str, Any]) -> bool:
    """Return whether a run has one task, one attempt and no dependency."""
    spec = requested.get("spec", {})
    return not any(spec.get(name) for name in ("roles", "retry", "debugSecs", "after"))


def _check_attempts(own: list[dict[str, Any]]) -> None:
    """Check a run with roles or retries: each task follows the allowed order once, an attempt is
    placed as a whole, and attempts do not overlap.
    """
    told = [(e["type"], e["event"]) for e in own]
    assert told[0][0] == "RunRequested", told
    tasks: dict[tuple[Any, ...], list[str]] = {}
    attempt = 0
    for (before, _), (type_, event) in zip([("", {}), *told], told, strict=False):
        if type_ == "TaskPlaced":
            number = event["token"][2]
            assert number in (attempt, attempt + 1) and (
                number > attempt or before == "TaskPlaced"
            ), told
            assert number == attempt or all("TaskEnded" in steps for steps in tasks.values()), told
            attempt = number
        if "token" in event:
            tasks.setdefault(tuple(event["token"]), []).append(type_)
        if type_ == "AttemptEnded":
            assert event["attempt"] == attempt and all(
                "TaskEnded" in steps for steps in tasks.values()
            ), told
    for steps in tasks.values():
        way = [
            step
            for step in (
                "TaskPlaced",
                "TaskSlotGranted",
                "TaskSubmitted",
                "TaskStarted",
                "TaskExited",
                "TaskHeld",
                "TaskEnded",
            )
            if step in steps
        ]
        assert steps == way and way[0] == "TaskPlaced" and way[-1] == "TaskEnded", (steps, told)


def _runs(root: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return events by run, in the order in which the runs were requested."""
    out: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for e in events(root):
        if e["stream"].startswith("job/") and e["type"] not in (
            "JobFolded",
            "TagsChanged",
            "TaskNoticed",
        ):
            serial = e["event"].get("serial") or int(e["event"]["token"][1])
            out.setdefault((e["stream"].removeprefix("job/"), serial), []).append(e)
    return out


def _check_answers(site: SupervisorProcess, jid: str, job: Job, last: Stored) -> None:
    def answer() -> Any:
        said = site.post("run-status", uid=jid[:8], computeJid=jid)
        return said["position"] >= last.position and said

    # another process may read an event just before the supervisor learns that it is committed
    said = until(answer, f"the supervisor knows of {jid} what is in its store")
    check_answer(said, job, last)
    assert said["known"]


def _run_dir(said: dict[str, Any], run: Run) -> str | None:
    """Return the run directory: None before it is made and after it is purged. On a cluster, the
    agent there chooses the directory.
    """
    if run.started_at is None or run.status == PURGED:
        return None
    return said["runDir"] if run.spec.driver == "sbatch" else run.run_dir


def check_answer(said: dict[str, Any], job: Job, last: Stored) -> None:
    """Check that each field of `run-status` equals the fold of the job's events."""
    run = job.run
    assert run is not None
    exit_ = None if said["exit"] is None else msgspec.convert(said["exit"], ExitInfo)
    told = (
        said["state"],
        said["computeJobSerial"],
        said["computeJobHash"],
        said["computeJobQueued"],
        said["computeJobStart"],
        said["computeJobEnd"],
        said["reason"],
        said["error"],
        said["over"],
        said["attempt"],
        said["runDir"],
        said["position"],
        exit_,
    )
    assert told == (
        run.status,
        run.serial,
        run.spec.compute_job_hash,
        run.queued_at,
        run.started_at,
        run.ended_at,
        run.reason,
        run.error,
        not run.busy,
        run.attempt,
        _run_dir(said, run),
        last.position,
        run.exit,
    )


def _check_lists(site: SupervisorProcess, jobs: dict[str, tuple[Job, Stored]]) -> None:
    listed, before = [], None
    while True:
        page = site.post("job-list", limit=1000, before=before)
        listed += page["jobs"]
        before = page["next"]
        if before is None:
            break
    check_list(listed, jobs)


def check_list(listed: list[dict[str, Any]], jobs: dict[str, tuple[Job, Stored]]) -> None:
    """Check that `job-list` equals the fold of the events of all jobs."""
    rows = [
        msgspec.structs.replace(index_row(job), position=last.position)
        for job, last in jobs.values()
    ]
    wanted = [{**msgspec.to_builtins(row), "state": row.status} for row in rows]
    assert sorted(listed, key=lambda r: r["jid"]) == sorted(wanted, key=lambda r: r["jid"])
