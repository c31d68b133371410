"""One sample message of each kind, with a recognisable value in every field."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from jobscribe.protocol.clusters.batch import BatchRequest, BatchState, ClusterStatus, Partition
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.jobs.debugging import Stop
from jobscribe.protocol.jobs.exit_info import ExitFacts, ExitInfo
from jobscribe.protocol.wire import messages as m

# the speed of example generation depends on the machine, not on the product
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

TOKEN = Token("EPRSqtUW-IVh7w74d-heightWeightReport", 1_700_000_001, 2, "worker", 3)
OP_ID = "j2FXq1" + "a" * 26
EXIT = ExitInfo(
    code=None,
    signal=9,
    core_dumped=True,
    source="keeper",
    stop_reason="cancel",
    detail="a detail",
    started_at=1_700_000_000.5,
    ended_at=1_700_000_002.25,
    user_secs=0.5,
    system_secs=0.25,
    max_rss_bytes=4096,
    survivors_killed=2,
    termination_message="bye",
    last_lines="last\nlines",
    stdout_bytes=10,
    stderr_bytes=11,
    dropped_bytes=12,
    out_of_memory=True,
    fault="noProcesses",
)
EXECUTION = m.Execution(
    token=TOKEN,
    state="ended",
    op_id=OP_ID,
    pid=4711,
    start_ticks=123_456_789,
    started_at=1_700_000_000.5,
    elapsed_secs=1.75,
    exit=EXIT,
)
SPEC = m.TaskSpec(
    command=("/bin/echo", "größer\n"),
    run_dir="/srv/user/EPRSqtUW",
    env={"A": "b", "EMPTY": ""},
    wrap=("nice", "-5"),
    time_limit_secs=60.5,
    grace_secs=1.5,
    core_bytes=1024,
    memory_bytes=2**30,
    ports=(23_000, 23_001),
)

BATCH = BatchState(
    cluster="hpc-1",
    job_id="4711_2",
    state="PENDING",
    reason="Resources",
    sentence="it waits for nodes",
    partition="debug",
    account="m1234",
    nodes="n[1-3]",
    submitted_at=1_700_000_000.5,
    starts_at=1_700_000_100.5,
    unknown_since=1_700_000_050.5,
    restarts=1,
    canceled_by="op",
    run_dir="/scratch/u/run",
)
#: The same execution with the fields that only a batch scheduler sets.
BATCH_EXECUTION = msgspec.structs.replace(
    EXECUTION, batch=BATCH, exit=msgspec.structs.replace(EXIT, source="scheduler", batch=BATCH)
)
FACTS_EXECUTION = msgspec.structs.replace(
    EXECUTION,
    exit=msgspec.structs.replace(
        EXIT,
        facts=ExitFacts(
            memory_peak_bytes=2**31 - 4096,
            memory_limit_bytes=2**31,
            memory_kills=1,
            kernel=("Killed process 4711 (sim)",),
            kernel_unread="not permitted to read the kernel log",
            via_shell=True,
        ),
    ),
)
BATCH_SPEC = msgspec.structs.replace(
    SPEC,
    batch=BatchRequest(
        cluster="hpc-1",
        partition="debug",
        account="m1234",
        qos="normal",
        constraint="a&[b|c]*2",
        licenses="scratch:2",
        nodes=2,
        tasks=8,
        tasks_per_node=4,
        cores=2,
        memory_mb=4000,
        gpus=1,
        modules=("gcc/12.2",),
        setup="export A=1\n",
        directives=("exclusive", "reservation=r"),
        signal_secs=60,
    ),
)
NEWS = ClusterStatus(
    cluster="hpc-1",
    at=1_700_000_000.5,
    scheduler="up",
    detail="a detail",
    version="22.05.8",
    accounts=("m1234",),
    qos=("normal",),
    partitions=(
        Partition(
            name="debug",
            default=True,
            up=False,
            nodes=3,
            max_nodes=2,
            min_nodes=1,
            cores_per_node=4,
            memory_mb_per_node=8000,
            gpus_per_node=1,
            time_limit_secs=3600.0,
            default_secs=60.0,
            accounts=("m1234",),
            qos=("normal",),
        ),
    ),
)


@pytest.fixture
def samples() -> dict[str, tuple[m.Direction, Any]]:
    """Return direction and message by op name."""
    to_agent = [
        m.Run(op_id=OP_ID, token=TOKEN, spec=SPEC),
        m.RunTasks(
            op_id=OP_ID,
            shared=m.Shared(env={"PAI_JOB_TASK_COUNT": "4"}, job='{"a":1}'),
            tasks=(m.TaskRun(op_id=OP_ID, token=TOKEN, spec=SPEC),),
        ),
        m.ProbePorts(op_id=OP_ID, ports=(23_000, 23_001)),
        m.Cancel(op_id=OP_ID, token=TOKEN, reason="cancel", grace_secs=2.5),
        m.ReleaseHold(token=TOKEN),
        m.RunAck(tokens=(TOKEN,)),
        m.RunStatus(op_id=OP_ID),
        m.ReadLog(
            op_id=OP_ID, token=TOKEN, stream="stderr", offset=2**40, limit=4096, wait_secs=1.5
        ),
        m.Call(
            op_id=OP_ID,
            job_cmd="get_simulation_frame",
            simulation_type="heat",
            compute_model="heatAnimation",
            run_dir="/r",
            lib_dir="/l",
            data={"report": "heatAnimation", "models": {"heatAnimation": {"size": 64}}},
            args={"frameIndex": 3},
            deadline_secs=30.0,
            reply_limit=4096,
        ),
        m.CancelCall(op_id=OP_ID),
        m.ReadFile(op_id=OP_ID, run_dir="/r", name="sub/out.dat", offset=2**40, limit=4096),
        m.ListFiles(op_id=OP_ID, run_dir="/r", after="sub/out.dat", limit=1000),
        m.KeepFile(
            op_id=OP_ID,
            lib_dir="/l",
            name="a.dat",
            offset=2**40,
            data=b"\x00\xff",
            size=2**41,
            mtime_ns=1_700_000_000_000_000_001,
        ),
        m.DigestFile(op_id=OP_ID, run_dir="/r", name="sub/out.dat", offset=2**40, length=4096),
        m.StoreFile(
            op_id=OP_ID,
            run_dir="/r",
            name="sub/in.dat",
            sha256="0a" * 32,
            size=2**41,
            offset=2**40,
            data=b"\x00\xff",
            finish=True,
            replace=True,
        ),
        m.ListStops(op_id=OP_ID, tokens=(TOKEN,)),
        m.AttachDebugger(op_id=OP_ID, token=TOKEN, name="4711-1", session=OP_ID),
        m.DebuggerIo(
            op_id=OP_ID, session=OP_ID, data=b"{}\n", limit=65536, wait_secs=10.0, close=True
        ),
        m.OpenShell(
            op_id=OP_ID, token=TOKEN, shell_id="sH3l" * 8, term="xterm-256color", rows=40, cols=132
        ),
        m.ShellIo(
            op_id=OP_ID,
            shell_id="sH3l" * 8,
            input_at=2**40,
            input=b"\x03ls\n",
            offset=2**41,
            limit=4096,
            wait_secs=20.0,
            rows=40,
            cols=132,
            close=True,
        ),
        m.Kill(reason="idle", stop_jobs=True),
    ]
    to_supervisor = [
        m.Alive(
            agent_id="WUt4" + "b" * 28,
            agent_key=AgentKey("local", "sequential", "EPRSqtUW", "host.example"),
            version="0.1.0",
            host="host.example",
            boot_id="0000-1111",
            pid=12,
            keeper_pid=11,
        ),
        m.Snapshot(number=1, page=0, last=True, executions=(EXECUTION,)),
        m.RunStatusUpdate(execution=EXECUTION),
        m.LogChunk(
            op_id=OP_ID, offset=5, next_offset=20, data=b"\x00\xff bytes", dropped=7, end=True
        ),
        m.CallReply(op_id=OP_ID, reply=b'{"state":"completed"}'),
        m.FileList(
            op_id=OP_ID,
            files=(m.ListedFile("sub/out.dat", 2**41, 1700000000.5),),
            more=True,
            skipped=2,
        ),
        m.FileDigest(
            op_id=OP_ID,
            sha256="0a" * 32,
            length=4096,
            size=2**41,
            mtime_ns=1_700_000_000_000_000_001,
        ),
        m.FileChunk(op_id=OP_ID, data=b"\x00\xff", size=2**41, mtime_ns=1_700_000_000_000_000_001),
        m.Stops(
            op_id=OP_ID,
            found=(
                (
                    TOKEN,
                    Stop(
                        id="0a0b0c0d",
                        name="4711-1",
                        kind="error",
                        file="/r/train.py",
                        line=12,
                        function="step",
                        error="ValueError: x",
                        host="n1",
                        pid=4711,
                        since=1_700_000_000.5,
                        until=1_700_001_800.5,
                        attached=True,
                    ),
                ),
            ),
            more=True,
        ),
        m.DebuggerOutput(op_id=OP_ID, data=b"{}\n", end=True, reason="detached"),
        m.RunReport(
            token=TOKEN, report={"frameCount": 7, "percentComplete": 12.5}, at=1_700_000_001.5
        ),
        m.ShellOutput(
            op_id=OP_ID,
            offset=2**41,
            data=b"\x00\xff",
            input_at=2**40,
            end=True,
            code=3,
            signal=9,
            detail="why",
        ),
        m.PortsProbed(op_id=OP_ID, busy=(23_001,)),
        m.ClusterReport(news=NEWS),
        m.KeeperReport(answers=False, since=1_700_000_001.5, stopped=True),
        m.Samples(
            samples=(
                m.Sample(TOKEN, 1_700_000_001.5, 115.5, 3.25, 2**31, 4096, 8192, 3, None, None),
            )
        ),
        m.OpError(op_id=OP_ID, code="notFound", error="there is no such log"),
    ]
    out: dict[str, tuple[m.Direction, Any]] = {m.op_name(x): ("to_agent", x) for x in to_agent}
    out.update({m.op_name(x): ("to_supervisor", x) for x in to_supervisor})
    # fields of batch schedulers in separate samples, so that the other samples stay unchanged
    out["run/batch"] = ("to_agent", m.Run(op_id=OP_ID, token=TOKEN, spec=BATCH_SPEC))
    out["run_status_update/batch"] = ("to_supervisor", m.RunStatusUpdate(execution=BATCH_EXECUTION))
    # exit facts of failures, which older versions did not send
    out["run_status_update/facts"] = ("to_supervisor", m.RunStatusUpdate(execution=FACTS_EXECUTION))
    return out
