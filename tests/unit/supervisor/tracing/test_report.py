"""`trace`: the job or agent behind an id, causes and effects, the meaning of each delay, and wrong
clocks.
"""

import json
import math

import msgspec
import pytest

from jobscribe.db.events.events import (
    AgentGone,
    AgentStarted,
    AgentStartFailed,
    AgentStartRequested,
    AttemptEnded,
    DependencyEnded,
    Event,
    RunEnded,
    RunRequested,
    StopRequested,
    SupervisorStarted,
    TaskEnded,
    TaskNoticed,
    TaskPlaced,
    TaskStarted,
    TaskSubmitted,
    agent_stream,
    job_stream,
)
from jobscribe.db.events.job_fold import evolve
from jobscribe.db.events.state import Job, Retrying
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.roles import After
from jobscribe.supervisor.tracing.id_lookup import SHOWN, Known, no_job
from jobscribe.supervisor.tracing.log_search import AgentQuery, JobQuery, Line
from jobscribe.supervisor.tracing.report import line_items, log_query, trace, with_image_pulls

T = 1_700_000_000.0
ANN, BOB = "annAAAA1", "bobBBBB2"
KEY = AgentKey("docker", "parallel", ANN, "n12")


def jid_of(n: int = 1, uid: str = ANN) -> str:
    return f"{uid}-sim{n:05d}-command"


def token(n: int = 1, uid: str = ANN, attempt: int = 1) -> Token:
    return Token(jid_of(n, uid), 100 + n, attempt, "main", 0)


class Log:
    """A store in memory; each call appends one event, `secs` after the beginning."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda call: call())
        self.jobs: dict[str, Job] = {}

    def add(self, stream: str, event: Event) -> int:
        rows = ()
        if stream.startswith("job/"):
            jid = stream.removeprefix("job/")
            self.jobs[jid] = evolve(self.jobs.get(jid, Job(jid=jid)), event)
            rows = (index_row(self.jobs[jid]),)
        self.store.append(
            Batch(writes=(Write(stream, len(self.store.read(stream)), (event,)),), index=rows),
            lambda result: None,
        )
        return self.store.head()

    def requested(
        self, secs: float = 0, n: int = 1, uid: str = ANN, req_id: str = "", **fields: object
    ) -> int:
        spec = RunSpec(
            uid=uid,
            simulation_id=f"sim{n:05d}",
            driver="docker",
            command=("x",),
            compute_job_hash="0" * 32,
        )
        return self.add(
            job_stream(jid_of(n, uid)),
            RunRequested(
                at=T + secs,
                serial=100 + n,
                spec=spec,
                run_dir="/r",
                req_id=req_id or f"request-of-{uid[:3]}-{n}",
                **fields,
            ),
        )

    def placed(self, secs: float, t: Token, key: AgentKey = KEY, op: str = "") -> int:
        return self.add(
            job_stream(t.jid),
            TaskPlaced(
                at=T + secs,
                token=t,
                agent_key=key,
                op_id=op or f"op{t.jid[12:17]}{t.attempt}".ljust(32, t.jid[0]),
            ),
        )

    def submitted(
        self, secs: float, t: Token, job_id: str, cluster: str = "hpc", reason: str = "Priority"
    ) -> int:
        batch = BatchState(cluster=cluster, job_id=job_id, state="PENDING", reason=reason)
        return self.add(job_stream(t.jid), TaskSubmitted(at=T + secs, token=t, batch=batch))

    def started(self, secs: float, t: Token, theirs: float | None = None, host: str = "n12") -> int:
        return self.add(
            job_stream(t.jid),
            TaskStarted(
                at=T + secs,
                token=t,
                pid=5,
                start_ticks=1,
                started_at=T + (secs if theirs is None else theirs),
                host=host,
                boot_id="b",
            ),
        )

    def noticed(self, secs: float, t: Token, code: str, text: str) -> int:
        return self.add(job_stream(t.jid), TaskNoticed(at=T + secs, token=t, code=code, text=text))

    def ended(self, secs: float, t: Token, theirs: float | None = None, **exit_: object) -> int:
        exit_ = {"code": 0, "ended_at": T + (secs if theirs is None else theirs), **exit_}
        return self.add(job_stream(t.jid), TaskEnded(at=T + secs, token=t, exit=ExitInfo(**exit_)))

    def over(
        self, secs: float, t: Token, status: str = "completed", retry: Retrying | None = None
    ) -> int:
        at = self.add(
            job_stream(t.jid),
            AttemptEnded(
                at=T + secs, serial=t.serial, attempt=t.attempt, reason="exit", retry=retry
            ),
        )
        return (
            at
            if retry
            else self.add(
                job_stream(t.jid),
                RunEnded(at=T + secs, serial=t.serial, status=status, reason="exit"),
            )
        )

    def agent(
        self, secs: float, done: float, name: str = "srj-p-annAAAA1", key: AgentKey = KEY
    ) -> None:
        self.add(
            agent_stream(key),
            AgentStartRequested(at=T + secs, agent_key=key, token_hash="h", attempt=1),
        )
        self.add(agent_stream(key), AgentStarted(at=T + done, agent_key=key, handle={"name": name}))

    def whole(self, n: int = 1, uid: str = ANN, secs: float = 0.0) -> Token:
        t = token(n, uid)
        self.requested(secs, n, uid)
        self.placed(secs + 0.1, t)
        self.started(secs + 0.2, t)
        self.ended(secs + 0.3, t)
        self.over(secs + 0.3, t)
        return t


@pytest.fixture
def log() -> Log:
    return Log()


def found(
    log: Log, id_: str, uid: str | None = None, known: Known | None = None
) -> list[tuple[str, str]]:
    return [
        (m["what"], m.get("jid") or m["agent"])
        for m in trace(log.store, id_, uid, known)["matches"]
    ]


# ---- id lookup


def test_every_kind_of_id_leads_to_its_job_or_agent(log: Log) -> None:
    log.agent(0, 0.1)
    t = log.whole()
    log.submitted(1, t, "4711_3")
    known = Known(
        agent_id=lambda key: "m2cW" + "x" * 28,
        container=lambda key, t: f"srj-t-{ANN}-{t.serial:012x}",
    )
    jid, job = jid_of(), {"job": "job", "request": "request", "op": "op", "slurm": "slurm"}
    for id_, what in (
        (jid, job["job"]),
        (jid[:15], "job"),
        ("request-of-ann-1", "request"),
        ("request-of", "request"),
        (f"op{jid[12:17]}1".ljust(32, "a"), "op"),
        ("op00001", "op"),
        ("4711_3", "slurm"),
        ("4711", "slurm"),
        (f"srj-t-{ANN}-{101:012x}", "container"),
    ):
        assert found(log, id_, None, known) == [(what, jid)], id_
    for id_, what in (
        (str(KEY), "agent"),
        ("docker.par", "agent"),
        ("srj-p-ann", "container"),
        ("m2cW", "agentId"),
    ):
        assert found(log, id_, ANN, known) == [(what, str(KEY))], id_
    answer = trace(log.store, str(KEY), None)
    assert answer["job"] is None and [i["component"] for i in answer["items"]] == [
        "supervisor",
        "agent",
    ]
    # the log query: without an end while the agent lives, otherwise until it was seen to be gone
    assert log_query(answer, known) == AgentQuery(KEY, "m2cW", T, math.inf) and log_query(
        answer
    ) == AgentQuery(KEY, "", T, math.inf)
    log.add(
        agent_stream(KEY), AgentGone(at=T + 5, agent_key=KEY, reason="it is not there any more")
    )
    assert log_query(trace(log.store, "m2cW", None, known), known) == AgentQuery(
        KEY, "m2cW", T, T + 6
    )


@pytest.mark.parametrize(
    "id_",
    [
        "m2cX",
        "M2CW",
        "2cWx",
        "srj-t-annAAAA1-000000000999",
        "471",
        "47",
        "4711_4x",
        "op00002",
        "REQUEST-of",
    ],
)
def test_what_is_called_something_else_is_not_found(log: Log, id_: str) -> None:
    log.agent(0, 0.1)
    log.submitted(1, log.whole(), "4711_3")
    known = Known(
        agent_id=lambda key: "m2cW" + "x" * 28,
        container=lambda key, t: f"srj-t-{ANN}-{t.serial:012x}",
    )
    with pytest.raises(Refusal, match="notFound"):
        trace(log.store, id_, None, known)


def test_nobody_finds_what_is_somebody_else_s(log: Log) -> None:
    log.agent(0, 0.1)
    log.submitted(1, log.whole(), "4711")
    known = Known(
        agent_id=lambda key: "m2cW" + "x" * 28,
        container=lambda key, t: f"srj-t-{ANN}-{t.serial:012x}",
    )
    for id_ in (
        jid_of(),
        "request-of-ann-1",
        "op00001",
        "4711",
        "srj-p-annAAAA1",
        "m2cW",
        str(KEY),
        f"srj-t-{ANN}-{101:012x}",
    ):
        assert found(log, id_, ANN, known)
        with pytest.raises(Refusal) as e:
            trace(log.store, id_, BOB, known)
        assert "--all-users" in e.value.sentence and ANN not in e.value.sentence.replace(id_, "")


def test_several_are_all_shown_newest_first_and_with_their_timelines_if_they_are_few(
    log: Log,
) -> None:
    for n in range(1, 4):
        log.whole(n, secs=n * 10)
    answer = trace(log.store, "request-of-ann", None)
    assert [m["jid"] for m in answer["matches"]] == [jid_of(3), jid_of(2), jid_of(1)]
    assert answer["job"]["jid"] == jid_of(3) and [o["job"]["jid"] for o in answer["others"]] == [
        jid_of(2),
        jid_of(1),
    ]
    assert all(
        m["status"] == "completed" and m["name"].startswith("request-of-ann-")
        for m in answer["matches"]
    )
    for n in range(4, SHOWN + 5):
        log.whole(n, secs=n * 10)
    answer = trace(log.store, "request-of-ann", None)
    assert (
        len(answer["matches"]) == SHOWN
        and answer["moreMatches"]
        and answer["others"] == []
        and answer["items"]
    )


def test_two_jobs_of_slurm_s_with_one_number_on_two_clusters_are_both_shown(log: Log) -> None:
    log.requested(0, 1)
    log.submitted(1, token(1), "77", "hpc")
    log.requested(2, 2)
    log.submitted(3, token(2), "77", "other")
    log.requested(4, 3)
    log.submitted(5, token(3), "770", "other")
    answer = trace(log.store, "77", None)
    assert [(m["what"], m["jid"]) for m in answer["matches"]] == [
        ("slurm", jid_of(2)),
        ("slurm", jid_of(1)),
    ]
    assert (
        "other: Slurm job 77" in answer["items"][1]["text"]
        and "hpc: Slurm job 77" in answer["others"][0]["items"][1]["text"]
    )


def test_what_is_nearly_right_is_offered_and_else_what_there_is_to_look_for(log: Log) -> None:
    log.whole()
    for wrong in ("request-of-anx", jid_of()[:-3] + "xyz", "op00001X"):
        with pytest.raises(Refusal, match=jid_of()) as e:
            trace(log.store, wrong, None)
        assert "near it: " in e.value.sentence
    with pytest.raises(Refusal, match="it can be: computeJid, opId, reqId"):
        trace(log.store, "nothing-like-it", None)


def test_what_shares_nothing_but_its_user_is_not_near(log: Log) -> None:
    log.whole()
    with pytest.raises(Refusal, match="it can be: computeJid"):
        trace(log.store, f"{jid_of().split('-')[0]}-zz", None)


def test_of_a_job_that_there_is_not_those_are_told_that_begin_like_it(log: Log) -> None:
    log.whole()
    uid, simulation_id, model = jid_of().split("-")
    assert no_job(log.store, f"{uid}-{simulation_id[:-2]}zz-{model}").sentence.endswith(
        f"; near it: {jid_of()}"
    )
    assert (
        no_job(log.store, f"{uid}-zzzzzzzz-{model}").sentence
        == f"there is no job {uid}-zzzzzzzz-{model}"
    )


# ---- the timeline


def test_each_event_says_who_did_it_and_what_it_came_from(log: Log) -> None:
    t = token()
    requested = log.requested(req_id="the-request")
    log.agent(0.1, 0.9)
    placed, started = log.placed(1, t), log.started(2, t)
    log.add(
        job_stream(t.jid),
        StopRequested(
            at=T + 3, serial=101, reason="cancel", by=ANN, grace_secs=1.0, req_id="the-stop"
        ),
    )
    ended = log.ended(4, t, code=None, signal=15, stop_reason="cancel")
    log.over(4, t, "canceled")
    items = trace(log.store, t.jid, None)["items"]
    assert [(i["component"], i["cause"]) for i in items] == [
        ("supervisor", {"request": "the-request"}),
        ("supervisor", {"position": requested}),
        ("agent", {"position": requested + 1}),
        ("supervisor", {"position": requested}),
        ("command", {"position": placed}),
        ("supervisor", {"request": "the-stop"}),
        ("command", {"position": started + 1}),
        ("supervisor", {"position": ended}),
        ("supervisor", {"position": started + 1}),
    ]


def waits(log: Log, jid: str | None = None) -> list[str]:
    return [w["text"] for w in trace(log.store, jid or jid_of(), None)["waits"]]


def test_gaps_say_what_was_waited_for(log: Log) -> None:
    t, again = token(), token(attempt=2)
    log.requested(0, waits_for=(After(compute_jid=jid_of(9)),))
    log.add(
        job_stream(t.jid),
        DependencyEnded(
            at=T + 10, serial=101, compute_jid=jid_of(9), compute_job_serial=1, status="completed"
        ),
    )
    log.agent(10, 14.2)
    log.placed(20, t)
    log.submitted(20.5, t, "4711")
    log.started(50, t)
    log.ended(90, t, code=1)
    log.over(
        90,
        t,
        retry=Retrying(at=T + 90, delay_secs=5.0, behavior="transient", reason="the node failed"),
    )
    log.placed(95, again)
    log.started(98, again)
    log.add("system", SupervisorStarted(at=T + 120, session=4, pid=1, boot_id="b", version="1"))
    log.ended(121.5, again)
    log.over(121.5, again)
    assert waits(log) == [
        "10.0 s queued: dependency (1 other runs had to end first)",
        f"4.2 s until agent {KEY} started",
        f"5.8 s queued: waiting for agent {KEY} to connect, or for a slot there",
        "29.5 s in Slurm's queue: Priority (Slurm job 4711 on hpc)",
        "40.0 s task main/0 ran",
        "5.0 s pause of 5 s before attempt 2: the node failed",
        f"3.0 s until task main/0 started: the op was on its way, at {KEY}",
        "22.0 s supervisor was away: session 3 -> 4; its last record is the previous event, but it may have run longer",
        "1.5 s task main/0 ran",
    ]


def test_of_an_agent_it_is_said_when_it_was_there(log: Log) -> None:
    log.agent(0, 2)
    log.add(
        agent_stream(KEY),
        AgentGone(at=T + 10, agent_key=KEY, reason="it was idle", ended=True),
    )
    log.add(
        agent_stream(KEY), AgentStartRequested(at=T + 30, agent_key=KEY, token_hash="h", attempt=1)
    )
    log.add(agent_stream(KEY), AgentStartFailed(at=T + 31, agent_key=KEY, attempt=1, reason="no"))
    log.agent(36, 37)
    assert [w["text"] for w in trace(log.store, str(KEY), None)["waits"]] == [
        f"2.0 s until agent {KEY} started",
        f"8.0 s agent {KEY} was running",
        f"20.0 s until agent {KEY} was needed again",
        f"1.0 s until agent {KEY} started",
        f"5.0 s pause before the next start of agent {KEY}",
        f"1.0 s until agent {KEY} started",
    ]


def test_a_place_that_another_run_of_the_user_had_is_named(log: Log) -> None:
    log.requested(0, 2)
    log.requested(0, 1)
    log.placed(0, token(2))
    log.ended(4.2, token(2))
    log.placed(4.2, token(1))
    log.whole(3, secs=100)
    assert waits(log) == [f"4.2 s queued: op_slot of {ANN}, free when {jid_of(2)} ended"]


def test_a_place_that_became_free_long_before_or_was_another_user_s_is_not_what_was_waited_for(
    log: Log,
) -> None:
    log.requested(0, 2)
    log.requested(0, 2, BOB)
    log.requested(0, 1)
    log.ended(2, token(2))
    log.ended(6, token(2, BOB))
    log.placed(6, token(1))
    assert waits(log) == [f"6.0 s queued: waiting for agent {KEY} to connect, or for a slot there"]


def test_a_gap_that_nothing_explains_is_called_that_and_short_ones_are_not_told(log: Log) -> None:
    log.requested(0)
    log.add(job_stream(jid_of()), RunEnded(at=T + 3, serial=101, status="error", reason="lost"))
    (gap,) = trace(log.store, jid_of(), None)["waits"]
    assert (
        gap["known"] is False
        and "unknown" in gap["text"]
        and (gap["since"], gap["until"], gap["secs"]) == (T, T + 3, 3.0)
    )
    log.whole(2)
    assert waits(log, jid_of(2)) == []
    # a run of one day: delays of seconds are not shown
    t = token(3)
    log.requested(0, 3)
    log.placed(2, t)
    log.started(2.1, t)
    log.ended(86_400, t)
    assert waits(log, t.jid) == ["86397.9 s task main/0 ran"]


def test_phases_cover_a_run_from_its_request_to_its_end(log: Log) -> None:
    t = token()
    log.requested(0)
    log.agent(0.5, 2)
    log.placed(3, t)
    log.started(3.5, t)
    log.ended(9, t)
    log.over(9.25, t)
    phases = trace(log.store, t.jid, None)["phases"]
    assert [(p["name"], p["component"], p["since"] - T, p["until"] - T) for p in phases] == [
        ("queued", "supervisor", 0, 3),
        ("agent start", "agent", 0.5, 2),
        ("start on its way", "agent", 3, 3.5),
        ("execution", "command", 3.5, 9),
        ("end", "supervisor", 9, 9.25),
    ]
    log.requested(0, 2)
    assert [(p["name"], p["until"]) for p in trace(log.store, jid_of(2), None)["phases"]] == [
        ("queued", None)
    ]


def test_the_pull_of_an_image_is_a_phase_and_the_cause_of_its_gap(log: Log) -> None:
    t = token()
    log.requested(0)
    log.placed(0.5, t)
    log.noticed(1, t, "imagePulling", "team/solver:1")
    assert trace(log.store, t.jid, None)["phases"][-1]["until"] is None, "while it is pulled"
    log.noticed(13, t, "imagePulled", "team/solver:1")
    log.started(13.5, t)
    log.ended(20, t)
    answer = trace(log.store, t.jid, None)
    assert [
        (p["name"], p["component"], p["since"] - T, p["until"] - T) for p in answer["phases"]
    ] == [
        ("queued", "supervisor", 0, 0.5),
        ("start on its way", "agent", 0.5, 1),
        ("image pull", "container", 1, 13),
        ("start on its way", "agent", 13, 13.5),
        ("execution", "command", 13.5, 20),
    ]
    assert [w["text"] for w in answer["waits"]] == [
        f"12.0 s image team/solver:1 was pulled for task main/0, at {KEY}",
        "6.5 s task main/0 ran",
    ]
    begins, pulled = [i["text"] for i in answer["items"] if i["component"] == "container"]
    assert "the pull of image team/solver:1 begins" in begins
    assert "image team/solver:1 is pulled" in pulled


# ---- clocks and log lines


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (1.3, "clock of n12 is 1.3 s ahead"),
        (-3.0, "clock of n12 is 2.9 s behind"),
        (0.0, None),
        (0.04, None),
        (-0.05, None),
    ],
)
def test_the_clock_of_another_machine_is_bounded_by_what_both_sides_recorded(
    log: Log, theirs: float, said: str | None
) -> None:
    t = token()
    log.requested(0)
    log.placed(1, t)
    log.started(1.1, t, theirs=1.1 + theirs)
    log.ended(5, t, theirs=5 + theirs)
    log.over(5, t)
    told = [c["text"] for c in trace(log.store, t.jid, None)["clocks"]]
    assert [text.split(":")[0] for text in told] == ([said] if said else [])


def test_lines_of_a_clock_that_is_ahead_stand_where_they_must_have_been(log: Log) -> None:
    t = token()
    log.requested(0)
    log.placed(1, t)
    log.started(1.1, t, theirs=2.4)
    answer = trace(log.store, t.jid, None)
    lines = line_items(
        [
            Line(T + 2.4, f"agent/{KEY}/agent.log", "x", True),
            Line(T + 2, "log/server.log", "y"),
            Line(T, "log/supervisor.log", "z"),
        ],
        answer,
    )
    assert [
        (line["component"], round(line["orderAt"] - T, 3), round(line["at"] - T, 3))
        for line in lines
    ] == [
        ("agent", 1.1, 2.4),
        ("front", 2.0, 2.0),
        ("supervisor", 0.0, 0.0),
    ]


def test_an_image_that_was_pulled_meanwhile_is_named(log: Log) -> None:
    t = token()
    log.requested(0)
    log.agent(0.1, 40)
    log.placed(41, t)
    log.started(41, t)
    log.ended(80, t)
    answer = trace(log.store, t.jid, None)
    said = [
        Line(T + at, "log/supervisor.log", f"docker host n12: pulled busybox:{at} in 38.5 s")
        for at in (39, 60, 200)
    ]
    assert [w["text"] for w in with_image_pulls(said, answer["waits"])] == [
        f"39.9 s until agent {KEY} started; pulled busybox:39 in 38.5 s",
        *[w["text"] for w in answer["waits"][1:]],
    ]
    job = log_query(answer)
    assert isinstance(job, JobQuery) and job.hosts == {"n12"}


def test_a_line_names_the_op_or_request_that_it_is_about(log: Log) -> None:
    t = log.whole()
    answer = trace(log.store, t.jid, None)
    (op,) = (i["event"].op_id for i in answer["items"] if hasattr(i["event"], "op_id"))
    lines = [
        Line(T, "log/supervisor.log", text)
        for text in (f"o={op[:6]} x", "reqId=request-of-ann-1", "another")
    ]
    assert [line["cause"] for line in line_items(lines, answer)] == [
        {"op": op},
        {"request": "request-of-ann-1"},
        None,
    ]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_about_an_effect_names_the_event_or_input_that_caused_it(
    log: Log, form: str
) -> None:
    t = log.whole()
    answer = trace(log.store, t.jid, None)
    placed = next(i for i in answer["items"] if isinstance(i["event"], TaskPlaced))

    def cause(said: str, source: str = "log/supervisor.log", more: str = "") -> object:
        text = (
            f"Nov 14 22:13:20 1 0 x.py:1:f sent{more} cause={said}"
            if form == "text"
            else json.dumps({"msg": f"sent{more}", "cause": said})
        )
        return line_items([Line(T, source, text)], answer)[0]["cause"]

    name = f"TaskPlaced@{placed['version']}"
    whole = {
        "name": "TaskPlaced",
        "version": placed["version"],
        "position": placed["position"],
    }
    assert cause(name) == whole
    assert cause(name, more=" o=" + placed["event"].op_id[:6]) == {
        "op": placed["event"].op_id,
        **whole,
    }
    assert cause("TaskPlaced@99") == {"name": "TaskPlaced", "version": 99}, "not in the timeline"
    assert cause("AgentDisconnected") == {"name": "AgentDisconnected"}
    assert cause(name, more=" cause=RunEnded@3") == whole, "only the end of the line counts"
    assert cause(name, source="log/server.log") is None
    assert cause("not a cause") is None


def test_an_event_that_several_agents_may_have_is_named_without_a_position(log: Log) -> None:
    t = token()
    log.requested(0)
    for n, key in enumerate((KEY, msgspec.structs.replace(KEY, host="n13"))):
        log.add(
            agent_stream(key),
            AgentStartRequested(at=T + n, agent_key=key, token_hash="h", attempt=1),
        )
        log.placed(2 + n, token(attempt=1 + n), key=key)
    answer = trace(log.store, t.jid, None)
    (item,) = line_items([Line(T, "log/supervisor.log", "x cause=AgentStartRequested@1")], answer)
    assert item["cause"] == {"name": "AgentStartRequested", "version": 1}


def test_what_the_logs_are_searched_for(log: Log) -> None:
    t = log.whole()
    asked = log_query(trace(log.store, "op00001", ANN))
    assert isinstance(asked, JobQuery) and (asked.jid, asked.since, asked.until) == (
        t.jid,
        T,
        T + 0.3,
    )
    assert asked.requests == {"request-of-ann-1"} and len(asked.ops) == 1
    log.requested(50, 2)
    waiting = log_query(trace(log.store, jid_of(2), ANN))
    assert isinstance(waiting, JobQuery) and waiting.until == math.inf
