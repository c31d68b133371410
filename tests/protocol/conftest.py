"""One message of each kind, with every field set to something that is easy to recognise."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from jobscribe.protocol import messages as m
from jobscribe.protocol.exits import ExitInfo
from jobscribe.protocol.ids import AgentKey, Token

# how fast examples are found says something about this machine, and nothing about the product
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

TOKEN = Token("EPRSqtUW-IVh7w74d-heightWeightReport", 1_700_000_001, 2, "worker", 3)
OP_ID = "j2FXq1" + "a" * 26
EXIT = ExitInfo(
    code=None, signal=9, core_dumped=True, source="keeper", stop_reason="cancel", detail="a detail", started_at=1_700_000_000.5,
    ended_at=1_700_000_002.25, user_secs=0.5, system_secs=0.25, max_rss_bytes=4096, survivors_killed=2, termination_message="bye",
    last_lines="last\nlines", stdout_bytes=10, stderr_bytes=11, dropped_bytes=12, out_of_memory=True,
    fault="noProcesses",
)
EXECUTION = m.Execution(
    token=TOKEN, state="ended", op_id=OP_ID, pid=4711, start_ticks=123_456_789, started_at=1_700_000_000.5, elapsed_secs=1.75, exit=EXIT
)
SPEC = m.TaskSpec(
    command=("/bin/echo", "größer\n"), run_dir="/srv/user/EPRSqtUW", env={"A": "b", "EMPTY": ""}, wrap=("nice", "-5"), time_limit_secs=60.5,
    grace_secs=1.5, core_bytes=1024, memory_bytes=2**30, ports=(23_000, 23_001),
)


@pytest.fixture
def samples() -> dict[str, tuple[m.Direction, Any]]:
    """Direction and message by op name."""
    to_agent = [
        m.Run(op_id=OP_ID, token=TOKEN, spec=SPEC),
        m.RunTasks(op_id=OP_ID, shared=m.Shared(env={"PAI_JOB_TASK_COUNT": "4"}, job='{"a":1}'), tasks=(m.TaskRun(op_id=OP_ID, token=TOKEN, spec=SPEC),)),
        m.ProbePorts(op_id=OP_ID, ports=(23_000, 23_001)),
        m.Cancel(op_id=OP_ID, token=TOKEN, reason="cancel", grace_secs=2.5),
        m.RunAck(tokens=(TOKEN,)),
        m.RunStatus(op_id=OP_ID),
        m.ReadLog(op_id=OP_ID, token=TOKEN, stream="stderr", offset=2**40, limit=4096, wait_secs=1.5),
        m.Call(
            op_id=OP_ID, job_cmd="get_simulation_frame", simulation_type="heat", compute_model="heatAnimation", run_dir="/r", lib_dir="/l",
            data={"report": "heatAnimation", "models": {"heatAnimation": {"size": 64}}}, args={"frameIndex": 3}, deadline_secs=30.0, reply_limit=4096,
        ),
        m.CancelCall(op_id=OP_ID),
        m.ReadFile(op_id=OP_ID, run_dir="/r", name="sub/out.dat", offset=2**40, limit=4096),
        m.Kill(reason="idle", stop_jobs=True),
    ]
    to_supervisor = [
        m.Alive(
            agent_id="WUt4" + "b" * 28, agent_key=AgentKey("local", "sequential", "EPRSqtUW", "host.example"), version="0.1.0",
            host="host.example", boot_id="0000-1111", pid=12, keeper_pid=11,
        ),
        m.Snapshot(number=1, page=0, last=True, executions=(EXECUTION,)),
        m.RunStatusUpdate(execution=EXECUTION),
        m.LogChunk(op_id=OP_ID, offset=5, next_offset=20, data=b"\x00\xff bytes", dropped=7, end=True),
        m.CallReply(op_id=OP_ID, reply=b'{"state":"completed"}'),
        m.FileChunk(op_id=OP_ID, data=b"\x00\xff", size=2**41, mtime_ns=1_700_000_000_000_000_001),
        m.RunReport(token=TOKEN, report={"frameCount": 7, "percentComplete": 12.5}, at=1_700_000_001.5),
        m.PortsProbed(op_id=OP_ID, busy=(23_001,)),
        m.Samples(samples=(m.Sample(TOKEN, 1_700_000_001.5, 115.5, 3.25, 2**31, 4096, 8192, 3, None, None),)),
        m.OpError(op_id=OP_ID, code="notFound", error="there is no such log"),
    ]
    out: dict[str, tuple[m.Direction, Any]] = {m.op_name(x): ("to_agent", x) for x in to_agent}
    out.update({m.op_name(x): ("to_supervisor", x) for x in to_supervisor})
    return out
