"""Events and histories for property tests: arbitrary sequences, and realistic runs."""

from hypothesis import strategies as st

from jobscribe.db.events.events import (
    AttemptDecided,
    AttemptEnded,
    DependencyEnded,
    JobEvent,
    RunEnded,
    RunPurged,
    RunRequested,
    StopRequested,
    TagsChanged,
    TaskEnded,
    TaskHeld,
    TaskNoticed,
    TaskPlaced,
    TaskStarted,
    TaskSubmitted,
)
from jobscribe.db.events.state import Retrying
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.ids import AgentKey, Token, op_id
from jobscribe.protocol.jobs.exit_info import ExitInfo

UID, SID = "EPRSuser", "simAAA01"
JID = f"{UID}-{SID}-command"
KEY = AgentKey("local", "sequential", UID, "node1")

times = st.floats(min_value=1.6e9, max_value=1.8e9, allow_nan=False).map(lambda t: round(t, 3))
words = st.text(max_size=12).filter(
    lambda t: "\x00" not in t and not any("\ud800" <= c <= "\udfff" for c in t)
)


def spec(jid: str = JID, **fields: object) -> RunSpec:
    uid, sid, model = jid.split("-", 2)
    values = {
        "uid": uid,
        "simulation_id": sid,
        "compute_model": model,
        "command": ("true",),
        "compute_job_hash": "abc123",
        "driver": "local",
        **fields,
    }
    return RunSpec(**values)


def token(serial: int, attempt: int = 1, index: int = 0, jid: str = JID) -> Token:
    return Token(jid, serial, attempt, "main", index)


def requested(serial: int, at: float = 1.7e9, jid: str = JID, **fields: object) -> RunRequested:
    return RunRequested(
        at=at,
        serial=serial,
        spec=spec(jid, **fields),
        run_dir=f"/r/{serial}",
        req_id=f"request-{serial}",
    )


def placed(t: Token, at: float = 1.7e9) -> TaskPlaced:
    return TaskPlaced(at=at, token=t, agent_key=KEY, op_id=op_id(t, "run"))


def started(t: Token, at: float = 1.7e9, pid: int = 77) -> TaskStarted:
    return TaskStarted(
        at=at, token=t, pid=pid, start_ticks=5, started_at=at - 0.5, host="node1", boot_id="boot"
    )


def ended(t: Token, at: float = 1.7e9, **exit_: object) -> TaskEnded:
    return TaskEnded(at=at, token=t, exit=ExitInfo(**({"code": 0} | exit_)))


serials = st.integers(1, 4)
tokens = st.builds(token, serials, st.integers(1, 3), st.integers(0, 2))
batches = st.builds(
    BatchState,
    cluster=st.just("hpc"),
    job_id=st.sampled_from(["7", "7_1", "8+0"]),
    state=st.sampled_from(["PENDING", "RUNNING"]),
    reason=words,
    nodes=words,
    starts_at=st.none() | times,
    unknown_since=st.none() | times,
)
exits = st.one_of(
    st.builds(
        ExitInfo,
        code=st.integers(0, 255),
        started_at=st.none() | times,
        last_lines=st.none() | words,
    ),
    st.builds(
        ExitInfo,
        signal=st.integers(1, 64),
        stop_reason=st.sampled_from([None, "cancel", "timeLimit"]),
    ),
    st.builds(ExitInfo, source=st.sampled_from(["start", "lost"]), detail=words),
    st.builds(
        ExitInfo,
        source=st.just("scheduler"),
        code=st.none() | st.integers(0, 255),
        detail=words,
        batch=batches,
    ),
)
reasons = st.sampled_from(
    ["exit", "signal", "cancel", "timeLimit", "queueLimit", "lost", "startFailed"]
)


retries = st.builds(
    Retrying,
    at=times,
    delay_secs=st.just(1.0),
    behavior=st.sampled_from(["transient", "conflict", "unknown"]),
    reason=words,
)


def events_of(
    serial: st.SearchStrategy[int], task: st.SearchStrategy[Token]
) -> st.SearchStrategy[JobEvent]:
    """Return a strategy for any event of a job, about these runs and tasks."""
    return st.one_of(
        st.builds(
            requested,
            serial,
            times,
            sim_name=st.none() | words,
            job_run_mode=st.sampled_from(["sequential", "parallel"]),
            time_limit_secs=st.none() | st.just(5.0),
        ),
        st.builds(placed, task, times),
        st.builds(started, task, times, st.integers(2, 9)),
        st.builds(TaskSubmitted, at=times, token=task, batch=batches),
        st.builds(TaskEnded, at=times, token=task, exit=exits),
        st.builds(
            StopRequested,
            at=times,
            serial=serial,
            reason=reasons,
            by=st.just(UID),
            grace_secs=st.just(3.0),
            note=words,
        ),
        st.builds(RunPurged, at=times, serial=serial),
        st.builds(
            TagsChanged,
            at=times,
            by=st.just("EPRSuser"),
            added=st.just(("a", "b")),
            removed=st.sampled_from([(), ("a",)]),
        ),
        st.builds(
            TaskNoticed,
            at=times,
            token=task,
            code=st.sampled_from(["sshUnavailable", "debuggerMissing"]),
            text=words,
        ),
        st.builds(TaskHeld, at=times, token=task, exit=exits, secs=st.just(60.0)),
        st.builds(
            AttemptDecided,
            at=times,
            serial=serial,
            attempt=st.integers(1, 3),
            succeeded=st.booleans(),
            reason=words,
            role=st.sampled_from([None, "main"]),
            index=st.integers(0, 2),
        ),
        st.builds(
            DependencyEnded,
            at=times,
            serial=serial,
            compute_jid=st.just(JID),
            compute_job_serial=serial,
            status=st.just("error"),
        ),
        st.builds(
            AttemptEnded,
            at=times,
            serial=serial,
            attempt=st.integers(1, 3),
            reason=words,
            retry=st.none() | retries,
        ),
        st.builds(
            RunEnded,
            at=times,
            serial=serial,
            status=st.sampled_from(["completed", "canceled", "error"]),
            reason=reasons,
            error=st.none() | words,
        ),
    )


anything = events_of(serials, tokens)
histories = st.lists(anything, max_size=40)


def life(serial: int, at: float = 1.7e9, jid: str = JID) -> list[JobEvent]:
    """Return the events of a run from its request to its end."""
    t = token(serial, jid=jid)
    return [
        requested(serial, at, jid),
        placed(t, at + 0.001),
        started(t, at + 0.002),
        ended(t, at + 1),
        AttemptEnded(at=at + 1, serial=serial, attempt=1, reason="exit"),
        RunEnded(at=at + 1, serial=serial, status="completed", reason="exit"),
    ]
