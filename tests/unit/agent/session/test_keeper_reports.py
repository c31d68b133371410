"""Messages of a keeper: their bytes are the same in all versions, and older keepers leave out fields."""

import json

import msgspec

from jobscribe.agent.session.keeper_reports import decode_hello, decode_report
from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.jobs.execution_state import ExecutionState
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.protocol.launch.keeper_reports import ExecutionReport, Hello, Pong
from jobscribe.protocol.launch.message_fields import encode
from jobscribe.protocol.wire.messages import Execution

T = Token("user0001-sim00001-command", 100, 1, "main", 0)
NEXT = msgspec.structs.replace(T, serial=101)
REPORT = ExecutionReport(
    name=T.name,
    token=str(T),
    state=ExecutionState.ENDED,
    pid=50,
    start_ticks=7,
    started_at=1.5,
    elapsed=2.5,
    run_dir="/d",
    exit={"code": 0},
    successor=str(NEXT),
)
FIELDS = (
    f'"name": "{T.name}", "token": "{T}", "state": "ended", "pid": 50, "startTicks": 7, '
    '"startedAt": 1.5, "elapsed": 2.5, "runDir": "/d", "exit": {"code": 0}, '
    f'"successor": "{NEXT}"}}'
)


def test_the_bytes_of_a_keepers_messages() -> None:
    hello = Hello(
        agent={"agentId": "a"},
        log=None,
        folder="/f",
        keeper_pid=9,
        cgroups="v2",
        executions=[encode(REPORT)],
    )
    running = ExecutionReport(
        name="n",
        token="t",
        state=ExecutionState.RUNNING,
        **dict.fromkeys(
            ("pid", "start_ticks", "started_at", "elapsed", "run_dir", "exit", "successor")
        ),
    )
    assert json.dumps(REPORT.encode_change()) == f'{{"is": "ended", {FIELDS}'
    assert running.encode_change()["is"] == "started"
    assert json.dumps(encode(Pong(number=3))) == '{"is": "pong", "n": 3}'
    assert json.dumps(encode(hello)) == (
        '{"is": "hello", "agent": {"agentId": "a"}, "log": null, "folder": "/f", "keeperPid": 9, '
        '"cgroups": "v2", "pings": true, "runsAhead": true, "executions": [{' + FIELDS + "]}"
    )


def test_a_report_is_decoded_into_the_wires_type() -> None:
    reported = decode_report(json.loads(json.dumps(REPORT.encode_change())))
    assert reported.run_dir == "/d"
    assert reported.execution == Execution(
        token=T,
        state=ExecutionState.ENDED,
        op_id=op_id(T, "run"),
        pid=50,
        start_ticks=7,
        started_at=1.5,
        elapsed_secs=2.5,
        exit=ExitInfo(code=0),
        successor=NEXT,
    )


def test_keepers_of_other_versions_leave_out_fields_or_have_more() -> None:
    reported = decode_report({"token": str(T), "state": "running", "mood": "good", "exit": None})
    assert reported.execution == Execution(
        token=T, state=ExecutionState.RUNNING, op_id=op_id(T, "run")
    )
    old = decode_hello(
        {"is": "hello", "agent": {}, "folder": "/f", "keeperPid": 9, "executions": []}
    )
    assert (old.pings, old.runs_ahead, old.log, old.cgroups) == (False, False, None, "not wanted")
