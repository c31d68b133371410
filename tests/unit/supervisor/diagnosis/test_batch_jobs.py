"""`job why` and `trace` for runs on clusters: why they wait, what ended them, and the lookup of a
run by its Slurm job number.
"""

import pytest

from jobscribe.db.events.events import job_stream
from jobscribe.db.store.contract import Batch, Write
from jobscribe.db.store.job_index import index_row
from jobscribe.db.store.memory_store import MemoryStore
from jobscribe.protocol.clusters.batch import BatchState
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitFacts
from jobscribe.supervisor.core.interface.inputs import DriverFound, SignInNeeded
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status
from jobscribe.supervisor.diagnosis.explanation import why
from jobscribe.supervisor.diagnosis.surroundings import Surroundings
from jobscribe.supervisor.tracing.report import trace

KEY = AgentKey("sbatch", "parallel", "user0001", "hpc")
FOLDER = "/r/agent/run/t"


@pytest.fixture
def stage(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (HostCapacity(host="hpc", slots={"parallel": 10}, user_runs=5),)},
    )
    stage.submit(driver="sbatch")
    return stage


def said(state="PENDING", **fields):
    return BatchState(
        **{
            "cluster": "hpc",
            "job_id": "4711",
            "state": state,
            "partition": "debug",
            "account": "m1",
            **fields,
        }
    )


def ask(stage, n=1):
    job = stage.job(n)
    return why(status(stage.world, job, 1, stage.now()), job, Surroundings(folder=FOLDER))


def waits(stage, kit, **fields):
    stage.up(KEY)
    stage.reports(kit.replace(kit.starting(stage.token()), batch=said(**fields)), key=KEY)
    return ask(stage)


def over(stage, kit, code=None, **exit_):
    stage.up(KEY)
    token = stage.token()
    stage.reports(kit.replace(kit.running(token), batch=said("RUNNING", nodes="n[1-2]")), key=KEY)
    stage.reports(kit.ended(token, code, **exit_), key=KEY)
    return ask(stage)


def test_it_waits_in_slurm_s_queue(stage, kit):
    answer = waits(
        stage,
        kit,
        reason="Resources",
        sentence="it waits for nodes (Slurm: Resources)",
        submitted_at=kit.WALL,
        starts_at=kit.WALL + 60,
    )
    assert answer["cause"] == "slurm"
    assert answer["sentence"] == (
        "not started: in the queue of hpc, partition debug, Slurm job 4711: it waits for nodes (Slurm: Resources); "
        "expected to start at 2023-11-14 22:14:20 UTC"
    )
    assert answer["evidence"] == [
        "Slurm job 4711 on hpc, partition debug, account m1: PENDING (Resources)",
        "in Slurm's queue since 2023-11-14 22:13:20 UTC",
        "Slurm expects to start it at 2023-11-14 22:14:20 UTC",
    ]
    assert answer["try"] == [
        "no action is needed; a smaller or shorter job often starts earlier",
        "scontrol show job 4711   # on hpc: shows the job in Slurm",
        f"jobscribe job cancel {kit.jid_of()}   # removes it from the queue",
    ]
    assert answer["logs"][-1] == f"{FOLDER}/batch.sh"


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("AssocGrpCpuLimit", "account or QOS"),
        ("QOSMaxJobsPerUserLimit", "account or QOS"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "operators"),
        ("JobHeldAdmin", "operators"),
        ("JobHeldUser", "scontrol release"),
        ("Licenses", "licences"),
        ("BeginTime", "begin time"),
        ("Dependency", "Dependency="),
    ],
)
def test_what_to_do_about_a_reason(stage, kit, reason, helps):
    assert helps in waits(stage, kit, reason=reason)["try"][0]


def test_a_reason_that_nobody_knows_still_leads_somewhere(stage, kit):
    assert waits(stage, kit, reason="Quux")["try"][0].startswith("scontrol show job 4711")


def test_slurm_does_not_answer(stage, kit):
    answer = waits(
        stage,
        kit,
        job_id=None,
        state="",
        sentence="Slurm's controller cannot be reached",
        unknown_since=kit.WALL + 1,
    )
    assert answer["sentence"].startswith(
        "not started: it is being submitted to hpc: Slurm's controller cannot be reached; its state is unknown"
    )
    assert answer["evidence"] == [
        "no contact with the scheduler of hpc since 2023-11-14 22:13:21 UTC; this answer shows the last known state",
        "Slurm: it is not yet in the queue of hpc",
    ]


def test_it_waits_for_a_sign_in(stage):
    stage.tell(SignInNeeded(KEY, 1, "nobody has signed in"))
    answer = ask(stage)
    assert (answer["cause"], answer["sentence"]) == (
        "sign_in",
        "not started: it waits until its user signs in to hpc: nobody has signed in",
    )
    assert answer["try"] == [
        "jobscribe login hpc   # or sign in on the page; the run then continues automatically"
    ]


def test_it_runs_and_what_is_not_known_needs_a_sign_in(stage, kit):
    stage.up(KEY)
    stage.reports(
        kit.replace(kit.running(stage.token()), batch=said("RUNNING", nodes="n[1-2]")), key=KEY
    )
    answer = ask(stage)
    assert (
        answer["sentence"]
        == "running since 2023-11-14 22:13:20 UTC on n[1-2] of hpc, as Slurm job 4711"
    )
    assert (
        "scontrol show job 4711   # on hpc: shows the job in Slurm" in answer["try"]
        and "nodes: n[1-2]" in answer["evidence"]
    )
    back = said(
        "PENDING",
        reason="BeginTime",
        sentence="its begin time has not come",
        starts_at=kit.WALL + 120,
        restarts=1,
    )
    stage.reports(kit.replace(kit.running(stage.token()), batch=back), key=KEY)
    answer = ask(stage)
    assert answer["sentence"] == (
        "started at 2023-11-14 22:13:20 UTC, then returned to its queue by Slurm: its begin time has not come"
    )
    assert "Slurm expects to start it at 2023-11-14 22:15:20 UTC" in answer["evidence"]
    assert answer["try"][0] == "no action is needed; the job starts after its requested begin time"
    stage.disconnect(KEY)
    stage.tell(DriverFound(KEY, "unknown", "nobody has signed in", sign_in=True))
    answer = ask(stage)
    assert answer["evidence"][0].startswith("no contact with its agent since") and answer["try"][
        0
    ].startswith("jobscribe login hpc")


@pytest.mark.parametrize(
    ("mine", "cause", "phrase"),
    [
        (True, "slurmCanceledByUser", "canceled in Slurm by its user"),
        (False, "slurmCanceledByOther", "canceled by an operator"),
    ],
)
def test_who_canceled_it_there_decides_whose_that_is(stage, kit, mine, cause, phrase):
    facts = ExitFacts(canceled_by_user=mine)
    answer = over(
        stage,
        kit,
        source="scheduler",
        detail="canceled",
        batch=said("CANCELLED", canceled_by="root"),
        facts=facts,
    )
    assert (answer["cause"], answer["diagnosis"]["type"], answer["diagnosis"]["behavior"]) == (
        cause,
        "user" if mine else "platform",
        "permanent",
    )
    assert ("a fault of its program" in answer["not"]) is not mine


def test_what_slurm_never_took_and_what_was_taken_back_wait_for_nothing(stage, kit):
    answer = over_unstarted(
        stage,
        kit,
        said(job_id=None, state=""),
        fault="batchRefused",
        detail="Slurm refused it: Invalid account",
    )
    assert "Slurm: it was never in the queue of hpc" in answer["evidence"] and answer["logs"] == [
        f"{FOLDER}/exit.json"
    ]
    stage.submit(2, driver="sbatch")
    answer = over_unstarted(
        stage,
        kit,
        said(reason="PartitionTimeLimit"),
        2,
        fault="neverPossible",
        detail="it can never start",
    )
    assert any(
        line.endswith(": PENDING (PartitionTimeLimit) until jobscribe canceled it")
        for line in answer["evidence"]
    )


def over_unstarted(stage, kit, batch, n=1, **exit_):
    """Return the answer for a run that ended before it started."""
    stage.up(KEY)
    stage.reports(
        kit.ended(stage.token(n), None, pid=None, source="start", batch=batch, **exit_), key=KEY
    )
    return ask(stage, n)


def test_somebody_canceled_it_there(stage, kit):
    batch = said("CANCELLED", canceled_by="operator", nodes="n[1-2]")
    answer = over(
        stage,
        kit,
        source="scheduler",
        detail="it was canceled by unix user operator, outside this system",
        batch=batch,
    )
    assert (answer["reason"], answer["cause"], answer["confidence"], answer["state"]) == (
        "scheduler",
        "slurmCanceled",
        "certain",
        "error",
    )
    assert (
        answer["sentence"]
        == "ended by Slurm: it was canceled by unix user operator, outside this system"
    )
    assert (
        answer["diagnosis"]["phrase"] == "canceled in Slurm"
        and "canceled by anyone here" in answer["not"]
    )
    assert (
        "canceled in Slurm by unix user operator" in answer["evidence"]
        and "nodes: n[1-2]" in answer["evidence"]
    )
    assert any("(reported by the batch scheduler of hpc)" in line for line in answer["evidence"])
    assert (
        "sacct -j 4711   # on hpc: shows Slurm's accounting of the job" in answer["try"]
        and answer["logs"][-1] == f"{FOLDER}/batch.sh"
    )


def test_its_own_exit_with_what_slurm_says_beside_it(stage, kit):
    answer = over(
        stage,
        kit,
        3,
        source="script",
        batch=said("FAILED", sentence="it failed with exit code 3", nodes="n1"),
    )
    assert answer["sentence"] == "failed with exit code 3"
    assert "Slurm reports: it failed with exit code 3" in answer["evidence"]
    assert "Slurm job 4711 on hpc, partition debug, account m1: FAILED" in answer["evidence"]


def test_it_was_refused_or_never_possible(stage, kit):
    stage.up(KEY)
    detail = "it can never start: the partition allows less time (Slurm: PartitionTimeLimit)"
    stage.reports(
        kit.ended(
            stage.token(),
            None,
            pid=None,
            source="start",
            fault="neverPossible",
            detail=detail,
            batch=said(reason="PartitionTimeLimit"),
        ),
        key=KEY,
    )
    answer = ask(stage)
    assert (
        answer["sentence"] == f"could not be started: {detail}" and answer["cause"] == "startFailed"
    )
    assert "start failure: neverPossible" in answer["evidence"]
    assert any("jobscribe cluster list" in line for line in answer["try"])


def test_a_canceled_run_says_so_whatever_slurm_calls_it(stage, kit):
    stage.up(KEY)
    token = stage.token()
    stage.reports(kit.replace(kit.running(token), batch=said("RUNNING")), key=KEY)
    stage.cancel()
    stage.reports(
        kit.ended(
            token,
            None,
            signal=15,
            source="scheduler",
            stop_reason="cancel",
            batch=said("CANCELLED"),
        ),
        key=KEY,
    )
    answer = ask(stage)
    assert answer["sentence"] == "canceled by user0001" and "sacct" not in "".join(answer["try"])


# ---- lookup by Slurm job number


@pytest.fixture
def store(stage, kit):
    """The log of three runs: Slurm job 4711 of one user, 4712 of another, and one resubmitted as
    4713.
    """
    waits(stage, kit)
    stage.submit(1, uid=kit.OTHER_UID, driver="sbatch")
    other = AgentKey("sbatch", "parallel", kit.OTHER_UID, "hpc")
    stage.up(other)
    stage.reports(
        kit.replace(kit.starting(stage.token(1, kit.OTHER_UID)), batch=said(job_id="4712")),
        key=other,
    )
    stage.submit(2, driver="sbatch")
    stage.reports(kit.replace(kit.starting(stage.token(2)), batch=said(job_id="12_3")), key=KEY)
    stage.reports(
        kit.ended(stage.token(2), None, source="scheduler", batch=said("NODE_FAIL", job_id="4713")),
        key=KEY,
    )
    store = MemoryStore(lambda call: call())
    versions: dict[str, int] = {}
    for stream, event in stage.log:
        rows = (
            (index_row(stage.folded(stream.removeprefix("job/"))),)
            if stream.startswith("job/")
            else ()
        )
        store.append(
            Batch(writes=(Write(stream, versions.get(stream, 0), (event,)),), index=rows),
            lambda result: None,
        )
        versions[stream] = versions.get(stream, 0) + 1
    return store


@pytest.mark.parametrize(
    ("number", "n", "uid"),
    [
        ("4711", 1, "user0001"),
        ("4712", 1, "user0002"),
        ("12_3", 2, "user0001"),
        ("4713", 2, "user0001"),
    ],
)
def test_slurm_s_number_leads_to_the_run(store, kit, number, n, uid):
    answer = trace(store, number, None)
    assert answer["job"]["jid"] == kit.jid_of(n, uid)
    assert trace(store, number, uid)["job"]["jid"] == kit.jid_of(n, uid)
    assert any(f"Slurm job {number}" in item["text"] for item in answer["items"])


def test_a_number_of_somebody_else_s_and_one_that_there_is_not_lead_nowhere(store, kit):
    for number, uid in (("4711", kit.OTHER_UID), ("4712", kit.UID), ("471", None), ("47111", None)):
        with pytest.raises(Refusal, match="notFound"):
            trace(store, number, uid)


def test_a_newer_job_of_somebody_else_s_with_that_number_hides_nobody_s_own(stage, store, kit):
    """Each cluster has its own job numbers."""
    stage.submit(7, uid=kit.OTHER_UID, driver="sbatch")
    key = AgentKey("sbatch", "parallel", kit.OTHER_UID, "hpc")
    stage.reports(
        kit.replace(kit.starting(stage.token(7, kit.OTHER_UID)), batch=said(job_id="4711")), key=key
    )
    jid = kit.jid_of(7, kit.OTHER_UID)
    events = tuple(e for s, e in stage.log if s == job_stream(jid))
    store.append(
        Batch(writes=(Write(job_stream(jid), 0, events),), index=(index_row(stage.folded(jid)),)),
        lambda result: None,
    )
    assert trace(store, "4711", kit.UID)["job"]["jid"] == kit.jid_of()
    assert (
        trace(store, "4711", None)["job"]["jid"]
        == trace(store, "4711", kit.OTHER_UID)["job"]["jid"]
        == jid
    )


def test_an_op_and_a_request_still_lead_to_their_run(stage, store, kit):
    (op,) = {t.op_id for t in stage.job().live_tasks()}
    assert trace(store, op[:12], None)["job"]["jid"] == kit.jid_of()
    assert trace(store, stage.job().run.req_id, None)["job"]["jid"] == kit.jid_of()


def test_what_began_a_computejid_still_does(store, kit):
    assert trace(store, kit.jid_of(2), None)["job"]["jid"] == kit.jid_of(2)
    assert store.read(job_stream(kit.jid_of(2)))
