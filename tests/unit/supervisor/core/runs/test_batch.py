"""Runs that a batch scheduler starts: the recorded state, the timeouts, the choice of the cluster,
and the placement of gangs.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.db.events.events import RunEnded, TaskPlaced, TaskStarted, TaskSubmitted
from jobscribe.protocol.clusters.batch import BatchRequest, BatchState
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.jobs.notices import Notice
from jobscribe.protocol.jobs.roles import Port, Retry
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import RunTasks
from jobscribe.supervisor.core.interface import effects as fx
from jobscribe.supervisor.core.interface import timers
from jobscribe.supervisor.core.interface.inputs import HostChanged, Restarted
from jobscribe.supervisor.core.resources.host_selection import HostCapacity
from jobscribe.supervisor.core.status.run_status import status

HPC, FAR = "hpc", "far"


def place(host, runs=10, user_runs=5):
    return HostCapacity(host=host, slots={"parallel": runs}, user_runs=user_runs)


@pytest.fixture
def stage(kit):
    return kit.Stage(batch=frozenset({"sbatch"}), places={"sbatch": (place(HPC), place(FAR))})


def key(host=HPC, uid="user0001"):
    return AgentKey("sbatch", "parallel", uid, host)


def said(job_id="17", state="PENDING", **fields):
    return BatchState(cluster=HPC, job_id=job_id, state=state, **fields)


def with_batch(execution, batch):
    return msgspec.structs.replace(execution, batch=batch)


@pytest.fixture
def placed(stage):
    """Place a run whose agent was asked to submit it; return its token."""
    stage.submit(driver="sbatch", queue_limit_secs=None)
    stage.up(key())
    return stage.token()


def told(stage, n=1):
    job = stage.job(n)
    return status(stage.world, job, 1, stage.now())


@pytest.mark.parametrize(
    ("there", "path"), [("/scratch/user/x", "/scratch/user/x"), ("", "/users/sim00001")]
)
def test_the_run_directory_is_the_clusters_and_named_as_such(stage, kit, placed, there, path):
    stage.reports(with_batch(kit.starting(placed), said()), key=key())
    assert (told(stage)["runDir"], told(stage)["runDirOn"]) == (None, None), "it has not started"
    stage.reports(with_batch(kit.running(placed), said(state="RUNNING", run_dir=there)), key=key())
    assert (told(stage)["runDir"], told(stage)["runDirOn"]) == (path, HPC)
    stage.reports(with_batch(kit.ended(placed), said(state="COMPLETED", run_dir=there)), key=key())
    assert (told(stage)["runDir"], told(stage)["runDirOn"]) == (path, HPC)


# ---- reports


def test_the_number_of_its_job_is_on_record_once_and_the_rest_is_news(stage, kit, placed):
    pending = with_batch(
        kit.starting(placed), said(None, "", sentence="Slurm's controller cannot be reached")
    )
    stage.reports(pending, key=key())
    assert stage.events()[-1] == "TaskPlaced"
    first = said(reason="Resources", partition="debug")
    stage.reports(with_batch(kit.starting(placed), first), key=key())
    for reason in ("Priority", "Priority", "Resources"):
        stage.reports(with_batch(kit.starting(placed), said(reason=reason)), key=key())
    assert stage.events()[1:] == ["TaskPlaced", "TaskSubmitted"]
    assert [e.batch for _, e in stage.log if isinstance(e, TaskSubmitted)] == [first]
    assert (
        stage.world.batch[placed].reason == "Resources"
        and stage.job().run.live_tasks[0].batch == first
    )


@pytest.mark.parametrize("state", ["running", "ended"])
def test_the_number_of_its_job_is_on_record_before_what_came_with_it(stage, kit, placed, state):
    word = kit.running(placed) if state == "running" else kit.ended(placed)
    stage.reports(with_batch(word, said(state="RUNNING", nodes="n[1-2]")), key=key())
    assert stage.events()[1:4] == ["TaskPlaced", "TaskSubmitted", "TaskStarted"]
    (begun,) = [e for _, e in stage.log if isinstance(e, TaskStarted)]
    assert begun.host == "n[1-2]", "it is not where its agent is"


def test_it_is_pending_until_it_runs_and_begins_when_slurm_alone_says_so(stage, kit, placed):
    stage.reports(with_batch(kit.starting(placed), said()), key=key())
    assert stage.state() == ("pending", None)
    stage.reports(
        with_batch(
            kit.replace(kit.running(placed), pid=None, start_ticks=None), said(state="RUNNING")
        ),
        key=key(),
    )
    assert stage.state() == ("running", None) and stage.job().run.live_tasks[0].pid == 0


def test_what_its_scheduler_said_last_is_part_of_its_exit_and_nothing_of_it_stays(
    stage, kit, placed
):
    stage.reports(with_batch(kit.running(placed), said(state="RUNNING", nodes="n1")), key=key())
    stage.reports(kit.ended(placed, 3), key=key())
    assert stage.job().run.exit.batch == said(state="RUNNING", nodes="n1")
    stage.submit(2, driver="sbatch")
    token = stage.token(2)
    stage.reports(with_batch(kit.running(token), said("18", "RUNNING")), key=key())
    own = said("18", "FAILED")
    stage.reports(kit.ended(token, 3, batch=own), key=key())
    assert stage.job(2).run.exit.batch == own
    assert stage.world.batch == {} and stage.left() == {}


def test_an_agent_of_another_driver_says_nothing_of_a_scheduler(kit):
    stage = kit.Stage(batch=frozenset({"sbatch"}))
    stage.submit()
    stage.up()
    stage.reports(with_batch(kit.starting(stage.token()), said()))
    assert stage.events()[-1] == "TaskPlaced" and stage.world.batch == {}


# ---- timeouts


def test_what_is_known_to_be_in_a_queue_is_asked_for_seldom(stage, kit, placed):
    assert stage.clock[timers.LaunchDeadline(placed)] == 30.0
    stage.reports(with_batch(kit.starting(placed), said(None, "")), key=key())
    assert stage.clock[timers.LaunchDeadline(placed)] == 600.0, (
        "also while it is being submitted: its agent has it"
    )
    stage.fire(timers.LaunchDeadline(placed))
    assert [type(e) for e in stage.effects] == [fx.ListTasks, fx.SetTimer] and stage.clock[
        timers.LaunchDeadline(placed)
    ] == 600.0
    stage.reports(kit.starting(placed), key=key())
    assert stage.clock[timers.LaunchDeadline(placed)] == 600.0


def test_three_days_in_the_queue_change_nothing(stage, kit, placed):
    asked = 0
    for _ in range(3 * 24 * 6):
        stage.pass_time(600.0)
        stage.fire(timers.LaunchDeadline(placed))
        asked += len(stage.asked(fx.ListTasks))
        stage.snapshot(key(), with_batch(kit.starting(placed), said()))
    assert stage.state() == ("pending", None) and asked == 432
    assert set(stage.clock) == {timers.LaunchDeadline(placed)}


def test_its_own_queue_limit_counts_on_in_the_queue_of_its_scheduler(stage, kit):
    stage.submit(driver="sbatch", queue_limit_secs=100.0)
    serial = stage.job().run.serial
    stage.up(key())
    token = stage.token()
    stage.reports(with_batch(kit.starting(token), said()), key=key())
    assert timers.QueueLimit(stage.job().jid, serial) in stage.clock
    stage.fire(timers.QueueLimit(stage.job().jid, serial))
    assert stage.state() == ("canceled", "queueLimit")
    assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(token, "queueLimit")]
    stage.reports(
        kit.ended(token, None, pid=None, source="start", detail="never", stop_reason="queueLimit"),
        key=key(),
    )
    assert stage.left() == {}


def test_its_queue_limit_ends_when_it_runs(stage, kit):
    stage.submit(driver="sbatch", queue_limit_secs=100.0)
    queue = timers.QueueLimit(stage.job().jid, stage.job().run.serial)
    stage.up(key())
    stage.reports(with_batch(kit.running(stage.token()), said(state="RUNNING")), key=key())
    assert queue not in stage.clock
    stage.fire(queue)  # a timer that fires late
    assert stage.state() == ("running", None)


def test_what_is_left_of_its_queue_limit_counts_after_a_restart(stage, kit):
    stage.submit(driver="sbatch", queue_limit_secs=100.0)
    queue = timers.QueueLimit(stage.job().jid, stage.job().run.serial)
    stage.up(key())
    stage.reports(with_batch(kit.starting(stage.token()), said()), key=key())
    stage.pass_time(30.0)
    stage.restarted()
    assert stage.clock[queue] == 70.0


def test_the_queue_limit_of_the_house_ends_where_slurm_s_queue_begins(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}), places={"sbatch": (place(HPC),)}, queue_limit_secs=50.0
    )
    stage.submit(driver="sbatch")
    queue = timers.QueueLimit(stage.job().jid, stage.job().run.serial)
    assert stage.clock[queue] == 50.0
    stage.up(key())
    assert queue not in stage.clock
    stage.restarted()
    assert queue not in stage.clock


def test_a_second_attempt_is_not_held_to_the_queue_limit_that_the_first_one_kept(stage, kit):
    stage.submit(driver="sbatch", queue_limit_secs=100.0, retry=Retry(platform=1))
    queue = timers.QueueLimit(stage.job().jid, stage.job().run.serial)
    stage.up(key())
    stage.end(stage.token(), None, source="scheduler", batch=said(state="NODE_FAIL"))
    stage.fire(timers.AttemptRetry(stage.job().jid, stage.job().run.serial))
    assert stage.job().run.attempt == 2 and stage.state() == ("pending", None)
    stage.fire(queue)
    assert stage.state() == ("pending", None)


def test_its_time_limit_counts_from_its_start_and_slurm_s_own_comes_first(stage, kit):
    stage.submit(driver="sbatch", time_limit_secs=61.0, grace_secs=3.0)
    stage.up(key())
    token = stage.token()
    stage.reports(with_batch(kit.starting(token), said()), key=key())
    assert timers.TimeLimit(token) not in stage.clock
    stage.reports(with_batch(kit.running(token, elapsed=20.0), said(state="RUNNING")), key=key())
    assert stage.clock[timers.TimeLimit(token)] == 120.0 + 90.0 + 3.0 + 5.0 - 20.0


def test_a_cancel_in_the_queue_is_final_and_asked_for_until_it_is_gone(stage, kit, placed):
    stage.reports(with_batch(kit.starting(placed), said()), key=key())
    stage.cancel()
    assert stage.state() == ("canceled", "cancel")
    assert [(e.token, e.reason) for e in stage.asked(fx.StopTask)] == [(placed, "cancel")]
    # the task began before the agent received the stop
    stage.reports(with_batch(kit.running(placed), said(state="RUNNING")), key=key())
    assert [e.token for e in stage.asked(fx.StopTask)] == [placed] and stage.state() == (
        "canceled",
        "cancel",
    )
    stage.fire(timers.StopReminder(placed))
    assert [e.token for e in stage.asked(fx.StopTask)] == [placed]
    stage.reports(
        kit.ended(placed, None, signal=15, stop_reason="cancel", batch=said(state="CANCELLED")),
        key=key(),
    )
    assert stage.state() == ("canceled", "cancel") and stage.left() == {}


def test_another_login_node_is_no_restart_of_its_machine(stage, kit, placed):
    stage.disconnect(key())
    stage.open(key())
    stage.world.agent(key()).boot_id = "another"
    stage.snapshot(key())
    assert [e.token for e in stage.asked(fx.LaunchTask)] == [placed] and stage.state() == (
        "pending",
        None,
    )
    stage.reports(
        kit.ended(placed, None, pid=None, source="start", detail="d", fault="batchRefused"),
        key=key(),
    )
    assert stage.state() == ("error", "startFailed"), "and what was refused is not lost"


# ---- ends caused by Slurm


@pytest.mark.parametrize(
    ("exit_", "again", "expected"),
    [
        (
            {"source": "start", "fault": "neverPossible", "detail": "PartitionTimeLimit"},
            False,
            ("error", "startFailed"),
        ),
        (
            {"source": "start", "fault": "batchRefused", "detail": "Invalid account"},
            False,
            ("error", "startFailed"),
        ),
        (
            {"source": "scheduler", "batch": said(state="CANCELLED", canceled_by="op")},
            False,
            ("error", "scheduler"),
        ),
        ({"source": "scheduler", "batch": said(state="NODE_FAIL")}, True, ("pending", None)),
        ({"source": "scheduler", "batch": said(state="PREEMPTED")}, True, ("pending", None)),
        (
            {"source": "scheduler", "batch": said(state="TIMEOUT"), "stop_reason": "timeLimit"},
            False,
            ("canceled", "timeLimit"),
        ),
    ],
)
def test_what_another_attempt_helps(stage, exit_, again, expected):
    stage.submit(driver="sbatch", retry=Retry(platform=3, count=0))
    stage.up(key())
    stage.end(stage.token(), None, **exit_)
    assert stage.state() == expected
    assert (timers.AttemptRetry(stage.job().jid, stage.job().run.serial) in stage.clock) is again


# ---- choice of the cluster


def test_it_goes_to_the_cluster_it_names_and_else_to_the_first(stage):
    stage.submit(1, driver="sbatch")
    stage.submit(2, driver="sbatch", batch=BatchRequest(cluster=FAR, partition="debug"))
    stage.submit(3, driver="sbatch", job_run_mode="sequential", batch=BatchRequest(nodes=2))
    started = {k for k, v in stage.world.agents.items() if v.queued}
    assert started == {key(HPC), key(FAR)}
    stage.up(key(FAR))
    (asked,) = stage.asked(fx.LaunchTask)
    assert (asked.key, asked.spec.batch) == (key(FAR), BatchRequest(cluster=FAR, partition="debug"))
    stage.up(key(HPC))
    assert [e.spec.batch for e in stage.asked(fx.LaunchTask)] == [
        BatchRequest(cluster=HPC),
        BatchRequest(cluster=HPC, nodes=2),
    ]


def test_a_run_elsewhere_asks_no_scheduler(kit):
    stage = kit.Stage(batch=frozenset({"sbatch"}))
    stage.submit(batch=BatchRequest(nodes=2))
    stage.up()
    (asked,) = stage.asked(fx.LaunchTask)
    assert asked.spec.batch is msgspec.UNSET


def test_a_cluster_that_there_is_not_is_refused_by_name(stage):
    stage.submit(driver="sbatch", batch=BatchRequest(cluster="nowhere"))
    assert stage.refusal() == "batchRefused"
    (reply,) = stage.asked(fx.ReplyRefusal)
    assert "no cluster nowhere here (there are: hpc, far)" in reply.refusal.sentence


def test_a_run_whose_cluster_is_not_configured_any_more_waits_and_is_told_so(stage, kit):
    stage.submit(driver="sbatch", batch=BatchRequest(cluster=FAR))
    stage.policy = kit.replace(stage.policy, places={"sbatch": (place(HPC),)})
    stage.restarted()
    reply = told(stage)
    assert (
        reply["queueState"] == "no_host"
        and "no cluster far here (there are: hpc)" in reply["jobStatusMessage"]
    )
    assert not stage.asked(fx.StartAgent)
    stage.cancel()
    assert stage.state() == ("canceled", "cancel") and stage.left() == {}


def test_what_runs_on_a_cluster_that_is_not_configured_any_more_is_told_so(stage, kit):
    stage.submit(driver="sbatch", batch=BatchRequest(cluster=FAR))
    stage.up(key(FAR))
    stage.reports(with_batch(kit.starting(stage.token()), said()), key=key(FAR))
    stage.policy = kit.replace(stage.policy, places={"sbatch": (place(HPC),)})
    stage.restarted()
    reply = told(stage)
    assert (
        reply["queueState"] == "slurm"
        and "the cluster far is no longer configured" in reply["jobStatusMessage"]
    )
    assert not reply["known"]


def test_no_run_goes_to_another_cluster_by_itself(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}), places={"sbatch": (place(HPC, runs=1), place(FAR, runs=1))}
    )
    for n in (1, 2):
        stage.submit(n, driver="sbatch")
    stage.up(key(HPC))
    stage.submit(3, driver="sbatch", batch=BatchRequest(cluster=FAR))
    stage.up(key(FAR))
    stage.end(stage.token(3))
    assert [t.agent_key.host for n in (1, 2, 3) for t in stage.job(n).live_tasks()] == [HPC]
    assert (
        told(stage, 2)["queueState"] == "cpu_slot"
        and "in the queue of hpc or run there" in told(stage, 2)["jobStatusMessage"]
    )
    stage.tell(HostChanged("sbatch", HPC, False, "x"))
    assert stage.world.agent(key(HPC)).queued and not stage.world.agent(key(FAR)).queued


def test_each_cluster_counts_a_user_s_runs_for_itself(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (place(HPC, user_runs=1), place(FAR, user_runs=2))},
        op_run_slots={("sbatch", "parallel"): 7},
    )
    for n in range(1, 3):
        stage.submit(n, driver="sbatch")
    for n in range(3, 6):
        stage.submit(n, driver="sbatch", batch=BatchRequest(cluster=FAR))
    stage.up(key(HPC))
    stage.up(key(FAR))
    assert [n for n in range(1, 6) if stage.job(n).live_tasks()] == [1, 3, 4]
    assert told(stage, 2)["queueState"] == "op_slot"


def test_where_a_cluster_has_no_number_of_its_own_the_driver_s_counts(kit):
    stage = kit.Stage(
        batch=frozenset({"sbatch"}),
        places={"sbatch": (place(HPC, user_runs=None),)},
        op_run_slots={("sbatch", "parallel"): 2},
    )
    for n in range(1, 4):
        stage.submit(n, driver="sbatch")
    stage.up(key())
    assert [n for n in range(1, 4) if stage.job(n).live_tasks()] == [1, 2]


def test_calls_go_to_the_cluster_that_is_meant_else_to_one_that_is_there(stage):
    calls = stage.world.host_assignment.agent_for_calls
    assert calls("sbatch", "user0001", FAR) == key(FAR) and calls(
        "sbatch", "user0001", None
    ) == key(HPC)
    stage.submit(driver="sbatch", batch=BatchRequest(cluster=FAR))
    stage.up(key(FAR))
    assert calls("sbatch", "user0001", None) == key(FAR) and calls(
        "sbatch", "user0001", "gone"
    ) == key(FAR)


# ---- gangs


def gang(stage, kit, *roles, n=1, **fields):
    stage.gang(*roles, n=n, driver="sbatch", **fields)
    if stage.world.agent(key()).phase != "up":
        stage.up(key())
    return [t for a in stage.job(n).run.attempts for t in a.tasks]


def test_a_gang_fits_whatever_it_asks_for_and_nobody_is_asked_about_its_ports(stage, kit):
    roles = (
        kit.role("ps", 2, cpu=900, memory_mb=10**6, gpu=8),
        kit.role("worker", 3, ports=(Port(label="data", count=2), Port(label="web", begin=8080))),
    )
    tasks = gang(stage, kit, *roles)
    assert len(tasks) == 5 and not stage.probes
    assert [t.address for t in tasks] == [
        "@ps-0@",
        "@ps-1@",
        "@worker-0@",
        "@worker-1@",
        "@worker-2@",
    ]
    free = [p for t in tasks for label, ports in t.ports.items() if label != "web" for p in ports]
    assert len(set(free)) == len(free) == 2 * 2 + 3 * 4 and all(20_000 <= p <= 29_999 for p in free)
    assert [t.ports["web"] for t in tasks[2:]] == [(8080,)] * 3, "they may be on different nodes"
    (asked,) = stage.asked(fx.LaunchGang)
    assert {t.spec.batch for t in asked.tasks} == {BatchRequest(cluster=HPC)} and {
        t.spec.ports for t in asked.tasks
    } == {()}
    assert asked.shared.env["PAI_TASK_ROLE_ps_HOST_LIST"].startswith("@ps-0@:")


def test_gangs_that_may_share_nodes_begin_at_different_ports(stage, kit):
    first = gang(stage, kit, kit.role("a", 3))
    second = gang(stage, kit, kit.role("a", 3), n=2)
    mine, yours = (
        {p for t in tasks for ports in t.ports.values() for p in ports} for tasks in (first, second)
    )
    assert not mine & yours


def test_more_ports_than_there_are_and_none_that_are_free(stage, kit):
    stage.policy = kit.replace(stage.policy, batch_ports=(8080, 8083))
    stage.restart()
    tasks = gang(
        stage,
        kit,
        kit.role(
            "a", 2, ports=(Port(label="web", begin=8080, count=4), Port(label="data", count=3))
        ),
    )
    assert len(tasks) == 2 and all(len(t.ports["data"]) == 3 for t in tasks)


def test_a_gang_comes_to_its_cluster_in_one_message_or_is_refused(stage, kit):
    gang(stage, kit, kit.role("a", 100))
    (asked,) = stage.asked(fx.LaunchGang)
    assert len(asked.tasks) == 100
    stage.gang(kit.role("a", 200), n=2, driver="sbatch")
    assert stage.refusal() == "resourceExceeded"
    stage.gang(kit.role("a", 30, env={f"V{n}": "x" for n in range(400)}), n=3, driver="sbatch")
    assert stage.refusal() == "resourceExceeded"
    stage.gang(kit.role("a", 90, command=("x" * 100_000,)), n=4, driver="sbatch")
    assert stage.refusal() == "resourceExceeded"


@settings(max_examples=25, deadline=None)
@given(
    tasks=st.integers(1, 140),
    labels=st.integers(0, 20),
    variables=st.integers(0, 150),
    value=st.sampled_from([0, 200]),
)
def test_what_is_not_too_large_fits_into_one_message(kit, tasks, labels, variables, value):
    stage = kit.Stage(batch=frozenset({"sbatch"}), places={"sbatch": (place(HPC),)})
    env = {f"V{n}": "x" * value for n in range(variables)}
    stage.gang(
        kit.role("a", tasks, env=env, ports=tuple(Port(label=f"p{n}") for n in range(labels))),
        driver="sbatch",
        batch=BatchRequest(nodes=2),
    )
    if stage.asked(fx.ReplyRefusal):
        return
    stage.up(key())
    (asked,) = stage.asked(fx.LaunchGang)
    decoder = Decoder("to_agent")
    message = RunTasks(op_id="o" * 32, shared=asked.shared, tasks=asked.tasks)
    assert [m for frame in Encoder().frames([message]) for m in decoder.messages(frame)] == [
        message
    ]


def test_a_gang_is_known_again_after_a_restart_and_ends_without_a_trace(stage, kit):
    tasks = gang(stage, kit, kit.role("a", 2))
    stage.restarted()
    stage.connect(key(), *(with_batch(kit.starting(t.token), said()) for t in tasks))
    assert stage.events().count("TaskSubmitted") == 2
    for t in tasks:
        stage.end(t.token)
    assert stage.state() == ("completed", "exit") and stage.left() == {}


def test_a_gang_holds_a_place_in_the_queue_of_its_cluster(kit):
    stage = kit.Stage(batch=frozenset({"sbatch"}), places={"sbatch": (place(HPC, runs=1),)})
    gang(stage, kit, kit.role("a", 2))
    stage.gang(kit.role("a", 1), n=2, driver="sbatch")
    assert told(stage, 2)["queueState"] == "cpu_slot" and not stage.job(2).live_tasks()
    for token in stage.tokens():
        stage.end(token)
    assert stage.job(2).live_tasks()


def test_the_queue_limit_of_a_gang_counts_until_none_of_its_tasks_waits(stage, kit):
    role = kit.role("a", 2, min_failed=2)
    tasks = gang(stage, kit, role, queue_limit_secs=50.0)
    limit = timers.QueueLimit(stage.job().jid, stage.job().run.serial)
    refused = ExitInfo(source="start", detail="refused", fault="batchRefused")
    for task, waits in zip(tasks, (True, False), strict=True):
        assert limit in stage.clock
        ended = msgspec.structs.replace(
            kit.ended(task.token), exit=refused, started_at=None, pid=None, start_ticks=None
        )
        stage.reports(ended, key=key())
        assert (limit in stage.clock) is waits


# ---- status messages


def test_where_it_is_in_the_queue_and_why(stage, kit, placed):
    reply = told(stage)
    assert (reply["queueState"], "batch" in reply) == (
        "starting",
        False,
    ) and "submit it to hpc" in reply["jobStatusMessage"]
    stage.reports(
        with_batch(
            kit.starting(placed), said(None, "", sentence="Slurm's controller cannot be reached")
        ),
        key=key(),
    )
    reply = told(stage)
    assert (reply["queueState"], reply["jobStatusMessage"]) == (
        "slurm",
        "it is being submitted to hpc: Slurm's controller cannot be reached",
    )
    waits = said(
        reason="Resources",
        sentence="it waits for nodes",
        partition="debug",
        starts_at=kit.WALL + 60,
    )
    stage.reports(with_batch(kit.starting(placed), waits), key=key())
    reply = told(stage)
    assert reply["jobStatusMessage"] == (
        "in the queue of hpc, partition debug, Slurm job 17: it waits for nodes; expected to start at 2023-11-14 22:14:20 UTC"
    )
    assert reply["queueState"] == "slurm" and reply["state"] == "pending" and reply["known"] is True
    assert reply["batch"] == {
        "cluster": HPC,
        "jobId": "17",
        "state": "PENDING",
        "reason": "Resources",
        "sentence": "it waits for nodes",
        "partition": "debug",
        "startsAt": kit.WALL + 60,
    }
    stage.reports(with_batch(kit.running(placed), said(state="RUNNING", nodes="n[1-2]")), key=key())
    reply = told(stage)
    assert (reply["queueState"], reply["jobStatusMessage"]) == (
        None,
        "it runs on n[1-2] of hpc (Slurm job 17)",
    )
    again = said(reason="BeginTime", sentence="its begin time has not come", restarts=1)
    stage.reports(with_batch(kit.running(placed), again), key=key())
    assert (
        told(stage)["jobStatusMessage"]
        == "Slurm requeued it: it is in the queue of hpc, Slurm job 17: its begin time has not come"
    )
    stage.reports(with_batch(kit.running(placed), said(state="RUNNING", nodes="n[1-2]")), key=key())
    stage.end(placed, 0)
    assert told(stage)["batch"]["nodes"] == "n[1-2]"


@pytest.mark.parametrize("runs", [False, True])
def test_a_scheduler_that_does_not_answer_makes_nothing_known(stage, kit, placed, runs):
    word = kit.running(placed) if runs else kit.starting(placed)
    stage.reports(
        with_batch(word, said(unknown_since=kit.WALL + 5, nodes="n1" if runs else "")), key=key()
    )
    reply = told(stage)
    assert (reply["known"], reply["since"]) == (False, kit.WALL + 5)
    assert reply["jobStatusMessage"].endswith(
        "; its state is unknown since 2023-11-14 22:13:25 UTC: the scheduler of hpc does not answer"
    )
    stage.disconnect(key())
    assert told(stage)["since"] == kit.WALL, "the earlier of the two"
    stage.up(key())
    stage.reports(with_batch(word, said()), key=key())
    assert told(stage)["known"] is True


@pytest.mark.parametrize(
    ("exit_", "held"),
    [
        ({"code": 3, "source": "script", "batch": said(state="FAILED")}, True),
        ({"code": 3, "source": "scheduler", "batch": said(state="FAILED")}, True),
        ({"code": 143, "source": "script", "batch": said(state="CANCELLED")}, False),
        ({"source": "scheduler", "batch": said(state="DEADLINE")}, False),
        (
            {"source": "scheduler", "out_of_memory": True, "batch": said(state="OUT_OF_MEMORY")},
            True,
        ),
    ],
)
def test_kept_for_debugging_is_what_failed_by_itself(stage, kit, exit_, held):
    """And whose allocation is held: otherwise nothing is left that could be kept."""
    stage.submit(driver="sbatch", debug_secs=60.0)
    stage.up(key())
    token = stage.token()
    assert [e.spec.debug_secs for e in stage.asked(fx.LaunchTask)] == [60.0]
    exit_ = kit.ended(token, exit_.pop("code", None), **exit_).exit
    stage.reports(
        msgspec.structs.replace(
            with_batch(kit.running(token), said(state="RUNNING")),
            exit=exit_,
            held_until=kit.WALL + 40,
        ),
        key=key(),
    )
    assert bool([t for t in stage.job().live_tasks() if t.held is not None]) is held
    assert bool(stage.asked(fx.DiscardHeldTask)) is not held, "the allocation is released"
    if held:
        assert stage.timers()[timers.DebugHoldDeadline(token)] == 40.0, "as the agent says"
        assert "until 2023-11-14 22:14:00 UTC" in told(stage)["jobStatusMessage"]
    stage.submit(2, driver="sbatch", debug_secs=60.0)
    stage.end(stage.token(2), 3, source="script")
    assert not stage.job(2).live_tasks(), "its allocation is gone"


@pytest.fixture
def held(stage, kit, placed):
    """Place a run whose failed task is held on its allocation; return its token."""
    stage.submit(2, driver="sbatch", debug_secs=60.0)
    token = stage.token(2)
    report = with_batch(kit.running(token), said(state="RUNNING"))
    stage.reports(
        msgspec.structs.replace(
            report, exit=ExitInfo(source="script", code=3), held_until=kit.WALL + 60
        ),
        key=key(),
    )
    assert stage.job(2).run.live_tasks[0].held is not None
    return token


@pytest.mark.parametrize("how", ["release", "cancel", "deadline"])
def test_a_held_allocation_is_released_and_a_report_that_it_lives_ends_it_again(
    stage, kit, held, how
):
    match how:
        case "release":
            stage.release(2)
        case "cancel":
            stage.cancel(2)
        case _:
            stage.fire(timers.DebugHoldDeadline(held))
    assert [e.token for e in stage.asked(fx.DiscardHeldTask)] == [held]
    run = stage.job(2).run
    assert (run.status, run.attempts[-1].tasks[0].exit.code) == ("error", 3)
    assert held not in stage.world.agent(key()).placed and held not in stage.world.batch
    late = msgspec.structs.replace(
        kit.running(held), exit=ExitInfo(source="script", code=3), held_until=kit.WALL + 60
    )
    stage.reports(late, key=key())
    assert [e.token for e in stage.asked(fx.StopTask)] == [held], "the release was lost"


def test_an_allocation_that_ends_by_itself_ends_the_hold_with_the_exit_and_says_why(
    stage, kit, held
):
    stage.restart()
    assert held in stage.world.agent(key()).placed, "its agent watches the allocation"
    report = with_batch(kit.running(held), said(state="RUNNING"))
    exit_ = ExitInfo(source="script", code=3)
    stage.connect(key(), msgspec.structs.replace(report, exit=exit_, held_until=kit.WALL + 60))
    assert stage.job(2).run.live_tasks[0].held is not None
    why = (Notice("holdEnded", "it was canceled"),)
    end = kit.ended(held, 3, source="script", notices=why, batch=said(state="CANCELLED"))
    stage.reports(end, key=key())
    task = stage.job(2).run.attempts[-1].tasks[0]
    assert (task.live, task.exit.code, task.exit.stop_reason, task.notices) == (False, 3, None, why)
    assert stage.job(2).run.status == "error"
    assert (held,) in [e.tokens for e in stage.asked(fx.AcknowledgeTasks)]


def test_an_allocation_that_its_agent_does_not_know_ends_the_hold(stage, kit, held):
    stage.connect(key())
    for _ in range(2):
        stage.snapshot(key=key())
    assert not stage.job(2).live_tasks() and stage.job(2).run.attempts[-1].tasks[0].exit.code == 3


def test_what_is_on_record_is_told_after_a_restart_until_there_is_news(stage, kit, placed):
    stage.reports(
        with_batch(kit.starting(placed), said(reason="Resources", unknown_since=kit.WALL)),
        key=key(),
    )
    stage.restarted()
    reply = told(stage)
    assert reply["queueState"] == "slurm" and reply["batch"]["jobId"] == "17" and not reply["known"]
    assert "its agent is not connected" in reply["jobStatusMessage"]
    stage.connect(key(), with_batch(kit.starting(placed), said(reason="Priority")))
    assert told(stage)["known"] and told(stage)["batch"]["reason"] == "Priority"


def test_other_runs_are_told_as_ever(kit):
    stage = kit.Stage(batch=frozenset({"sbatch"}))
    stage.submit()
    stage.up()
    stage.reports(kit.running(stage.token()))
    reply = told(stage)
    assert reply["jobStatusMessage"] is None and "batch" not in reply and "signInTo" not in reply


def test_a_run_that_is_being_stopped_while_its_scheduler_is_away(stage, kit, placed):
    stage.reports(with_batch(kit.starting(placed), said(unknown_since=kit.WALL)), key=key())
    stage.cancel()
    assert (
        "processes are being stopped" in told(stage)["jobStatusMessage"]
        and "does not answer" in told(stage)["jobStatusMessage"]
    )


def test_the_first_word_of_a_restart_asks_for_what_is_owed(stage, kit, placed):
    stage.restart()
    stage.tell(Restarted())
    assert [e.key for e in stage.asked(fx.FindAgent)] == [key()]


def test_events_are_as_they_should_be(stage, kit, placed):
    assert isinstance(stage.log[-1][1], TaskPlaced) and stage.log[-1][1].agent_key == key()
    stage.end(placed, 1)
    assert isinstance(stage.log[-1][1], RunEnded)
    assert ExitInfo(code=1).sentence() == stage.job().run.error
    assert Refusal("batchRefused", "x").http == 400
