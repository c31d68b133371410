"""The agent's session state machine: every message in every state, in every order, with repeats."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.agent.session import state_machine as session_module
from jobscribe.agent.session.keeper_reports import decode_report
from jobscribe.agent.session.state_machine import (
    REPEAT_SECS,
    Fetch,
    Forget,
    Launch,
    Probe,
    Quit,
    Read,
    Release,
    Send,
    Session,
    StartCall,
    Stop,
    StopCall,
)
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.wire.messages import (
    SNAPSHOT_PAGE,
    Call,
    Cancel,
    CancelCall,
    Kill,
    ProbePorts,
    ReadFile,
    ReadLog,
    Run,
    RunAck,
    RunStatus,
    RunStatusUpdate,
    RunTasks,
    Shared,
    Snapshot,
    TaskRun,
    TaskSpec,
)

SPEC = TaskSpec(command=("true",), run_dir="/d")


def token(n=1, serial=100, attempt=1):
    return Token(f"user0001-sim{n:05d}-command", serial, attempt, "main", 0)


T = token()


def run(t=T):
    return Run(op_id=op_id(t, "run"), token=t, spec=SPEC)


def cancel(t=T, grace=2.0):
    return Cancel(op_id=op_id(t, "cancel"), token=t, reason="cancel", grace_secs=grace)


def started(t=T, elapsed=0.0, pid=50):
    return {
        "is": "started",
        "token": str(t),
        "state": "running",
        "pid": pid,
        "startTicks": 7,
        "startedAt": 1.7e9,
        "elapsed": elapsed,
    }


def ended(t=T, code=0, **exit_):
    return {
        "is": "ended",
        "token": str(t),
        "state": "ended",
        "pid": 50,
        "startTicks": 7,
        "exit": {"code": code, **exit_},
    }


def never(t=T, detail="it was not to be started"):
    return {
        "is": "ended",
        "token": str(t),
        "state": "ended",
        "exit": {"source": "start", "detail": detail},
    }


def heard(s, report, mono):
    return s.record_states([decode_report(report).execution], mono)


def hello(s, reports, mono):
    return s.keeper_hello([decode_report(r).execution for r in reports], mono)


def session(*steps, up=True):
    """Return a session after these messages and keeper reports; it is connected if `up` is set."""
    s = Session()
    if up:
        s.connected(0.0)
    for step in steps:
        heard(s, step, 0.0) if isinstance(step, dict) else s.received(step, 0.0)
    return s


def reported(outputs):
    """Return the states in the outputs' updates and snapshots, by token."""
    states = {}
    for o in outputs:
        if isinstance(o, Send) and isinstance(o.message, RunStatusUpdate):
            states[o.message.execution.token] = o.message.execution.state
        if isinstance(o, Send) and isinstance(o.message, Snapshot):
            states |= {e.token: e.state for e in o.message.executions}
    return states


def is_update(outputs, state, t=T):
    (output,) = outputs
    assert isinstance(output.message, RunStatusUpdate)
    return reported(outputs) == {t: state}


#: the steps that lead to each state
STATES = {
    "unknown": (),
    "starting": (run(),),
    "running": (run(), started()),
    "ended": (run(), started(), ended()),
    "acknowledged": (run(), started(), ended(), RunAck(tokens=(T,))),
    "canceled first": (cancel(),),
    "canceled and ended": (cancel(), never()),
}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("unknown", Launch),
        ("starting", "starting"),
        ("running", "running"),
        ("ended", "ended"),
        ("acknowledged", Launch),
        ("canceled first", "starting"),
        ("canceled and ended", "ended"),
    ],
)
def test_run_in_every_state(state, expected):
    """Only unknown tokens go to the keeper, whose ledger decides whether the token already started."""
    outputs = session(*STATES[state]).received(run(), 1.0)
    if expected is Launch:
        assert outputs == [Launch(T, SPEC)]
    else:
        assert is_update(outputs, expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("unknown", Stop),
        ("starting", Stop),
        ("running", Stop),
        ("ended", "ended"),
        ("acknowledged", Stop),
        ("canceled first", Stop),
        ("canceled and ended", "ended"),
    ],
)
def test_cancel_in_every_state(state, expected):
    outputs = session(*STATES[state]).received(cancel(), 1.0)
    if expected is Stop:
        assert outputs == [Stop(T, "cancel", 2.0)]
    else:
        assert is_update(outputs, expected)


@pytest.mark.parametrize(
    ("state", "forgets"),
    [
        ("unknown", False),
        ("starting", False),
        ("running", False),
        ("ended", True),
        ("acknowledged", False),
        ("canceled first", False),
        ("canceled and ended", True),
    ],
)
def test_acknowledgement_in_every_state(state, forgets):
    """Only an ended execution may be forgotten, and only once."""
    s = session(*STATES[state])
    before = s.executions()
    assert s.received(RunAck(tokens=(T, token(2), T)), 1.0) == ([Forget((T,))] if forgets else [])
    assert s.executions() == ([] if forgets else before)
    assert s.received(RunAck(tokens=(T,)), 1.0) == []


@pytest.mark.parametrize("state", STATES)
def test_snapshot_in_every_state(state):
    s = session(*STATES[state])
    outputs = s.received(RunStatus(op_id="o" * 32), 1.0)
    assert [type(o.message) for o in outputs] == [Snapshot]
    said = {
        "unknown": None,
        "acknowledged": None,
        "canceled first": "starting",
        "canceled and ended": "ended",
    }.get(state, state)
    assert reported(outputs) == ({} if said is None else {T: said})


@pytest.mark.parametrize("state", STATES)
def test_the_others_in_every_state(state):
    s = session(*STATES[state])
    read = ReadLog(op_id="o" * 32, token=T, stream="stdout", offset=0, limit=10)
    assert s.received(read, 1.0) == [Read(read)]
    assert s.received(Kill(reason="bye", stop_jobs=True), 1.0) == [Quit("bye", True)]


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_calls_and_files_are_no_executions(state, up):
    """They are passed on in every state, also repeatedly, and change no execution."""
    s = session(*STATES[state], up=up)
    call = Call(
        op_id="c" * 32,
        job_cmd="get_simulation_frame",
        simulation_type="heat",
        compute_model="command",
        run_dir="/d",
        lib_dir="/l",
        deadline_secs=1.0,
        reply_limit=10,
    )
    file = ReadFile(op_id="f" * 32, run_dir="/d", name="out.json", offset=0, limit=10)
    before = s.executions()
    for _ in range(2):
        assert s.received(call, 1.0) == [StartCall(call)]
        assert s.received(CancelCall(op_id=call.op_id), 1.0) == [StopCall(call.op_id)]
        assert s.received(file, 1.0) == [Fetch(file)]
    assert s.executions() == before


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("unknown", "ended"),
        ("starting", "ended"),
        ("running", "ended"),
        ("ended", None),
        ("acknowledged", "ended"),
        ("canceled first", "ended"),
        ("canceled and ended", None),
    ],
)
def test_an_end_in_every_state(state, expected):
    """The end is reported once. A second end reports nothing and does not change the exit."""
    s = session(*STATES[state])
    first = [e.exit for e in s.executions()]
    outputs = heard(s, ended(code=9), 1.0)
    if expected is None:
        assert outputs == []
        assert [e.exit for e in s.executions()] == first
    else:
        assert is_update(outputs, expected)
        assert s.executions()[0].exit.code == 9


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("starting", "running"),
        ("running", "running"),
        ("ended", None),
        ("canceled first", "running"),
        ("canceled and ended", None),
    ],
)
def test_a_start_in_every_state(state, expected):
    """A late start report does not restart an ended execution."""
    outputs = heard(session(*STATES[state]), started(), 1.0)
    assert outputs == [] if expected is None else is_update(outputs, expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("starting", "ended"),
        ("acknowledged", "ended"),
        ("running", None),
        ("ended", None),
        ("canceled and ended", None),
    ],
)
def test_what_could_not_be_handed_over_has_ended_unless_the_keeper_knows_better(state, expected):
    s = session(*STATES[state])
    before = s.executions()
    outputs = s.launch_failed(T, "OSError: no", 1.0)
    if expected is None:
        assert (outputs, s.executions()) == ([], before)
    else:
        assert is_update(outputs, expected)
        assert s.executions()[0].exit.source == "start"


def test_what_could_not_be_handed_over_is_reported():
    s = session(run())
    outputs = s.launch_failed(T, "OSError: no", 1.0)
    assert is_update(outputs, "ended")
    assert outputs[0].message.execution.exit.detail == "OSError: no"


# ---- scenarios


def test_run_after_cancel_is_never_launched():
    s = session()
    outputs = [o for m in (cancel(), run(), run(), cancel(), run()) for o in s.received(m, 0.0)]
    assert not [o for o in outputs if isinstance(o, Launch)]
    assert len([o for o in outputs if isinstance(o, Stop)]) == 2


def test_a_run_that_is_repeated_is_launched_once():
    s = session()
    outputs = [o for _ in range(5) for o in s.received(run(), 0.0)]
    assert [type(o) for o in outputs] == [Launch, Send, Send, Send, Send]


def test_an_older_serial_is_refused_and_reported_until_it_is_acknowledged():
    old = token(serial=99)
    s = session(run())
    outputs = s.received(run(old), 0.0)
    assert is_update(outputs, "ended", old)
    exit_ = outputs[0].message.execution.exit
    assert (exit_.source, exit_.detail) == ("start", "a newer run of this job was started before")
    assert is_update(s.received(run(old), 0.0), "ended", old)
    assert s.received(RunAck(tokens=(old,)), 0.0) == [Forget((old,))]
    assert is_update(s.received(run(old), 0.0), "ended", old), "and again after that"


def test_an_older_serial_is_refused_even_when_the_newer_is_over_and_forgotten():
    s = session(*STATES["acknowledged"])
    assert is_update(s.received(run(token(serial=99)), 0.0), "ended", token(serial=99))
    assert s.received(run(token(serial=101)), 0.0) == [Launch(token(serial=101), SPEC)]
    assert s.received(run(token(2, serial=1)), 0.0) == [Launch(token(2, serial=1), SPEC)], (
        "another job has serials of its own"
    )


def test_serials_are_learned_from_the_keeper_and_from_cancels_too():
    s = Session()
    hello(s, [started(token(serial=200))], 0.0)
    s.received(cancel(token(2, serial=200)), 0.0)
    for n in (1, 2):
        assert is_update(s.received(run(token(n, serial=199)), 0.0), "ended", token(n, serial=199))


def test_a_lower_serial_does_not_lower_what_was_seen():
    s = session(run(token(serial=200)))
    s.received(cancel(token(serial=150)), 0.0)
    assert is_update(s.received(run(token(serial=199)), 0.0), "ended", token(serial=199))


def test_serials_of_old_jobs_are_let_go(monkeypatch):
    monkeypatch.setattr(session_module, "SERIALS_KEPT", 3)
    s = session(*(run(token(n)) for n in (1, 2, 3)), cancel(token(1)))
    s.received(run(token(1, serial=101)), 0.0)
    s.received(run(token(4)), 0.0)
    assert s.received(run(token(2, serial=5)), 0.0) == [Launch(token(2, serial=5), SPEC)], (
        "2 was seen longest ago"
    )
    assert is_update(s.received(run(token(4, serial=5)), 0.0), "ended", token(4, serial=5))


# ---- connections


def test_a_connection_begins_with_everything():
    s = session(run(), started(), up=False)
    heard(s, ended(token(2)), 0.0)
    outputs = s.connected(1.0)
    assert reported(outputs) == {T: "running", token(2): "ended"}


def test_nothing_is_said_without_a_connection_and_nothing_is_ended():
    s = session(run())
    assert s.disconnected() == []
    assert heard(s, started(), 1.0) == []
    assert s.tick(100.0) == []
    assert heard(s, ended(), 2.0) == []
    assert hello(s, [], 2.0) == []
    assert s.tick(100.0) == []
    assert reported(s.connected(101.0)) == {T: "ended"}


def test_an_empty_snapshot_is_a_snapshot():
    (output,) = Session().connected(0.0)
    assert (
        output.message.number,
        output.message.page,
        output.message.last,
        output.message.executions,
    ) == (1, 0, True, ())


@pytest.mark.parametrize("count", [1, SNAPSHOT_PAGE, SNAPSHOT_PAGE + 1, 3 * SNAPSHOT_PAGE])
def test_pages(count):
    s = session(*(run(token(n)) for n in range(count)))
    messages = [o.message for o in s.received(RunStatus(op_id="o" * 32), 0.0)]
    expected = -(-count // SNAPSHOT_PAGE)
    assert [m.page for m in messages] == list(range(expected))
    assert [m.last for m in messages] == [False] * (expected - 1) + [True]
    assert {m.number for m in messages} == {2}
    assert [e.token for m in messages for e in m.executions] == [token(n) for n in range(count)]
    assert max(len(m.executions) for m in messages) <= SNAPSHOT_PAGE


def test_each_snapshot_has_a_number_of_its_own_over_connections_too():
    s = Session()
    numbers = [
        s.connected(0.0)[0].message.number,
        s.received(RunStatus(op_id="o" * 32), 0.0)[0].message.number,
    ]
    s.disconnected()
    numbers.append(s.connected(0.0)[0].message.number)
    assert numbers == [1, 2, 3]


# ---- time


def test_what_ended_is_repeated_until_it_is_acknowledged():
    s = session(run(), run(token(2)), started(), ended())
    assert s.tick(REPEAT_SECS - 0.1) == []
    for n in (1, 2, 3):
        assert is_update(s.tick(n * REPEAT_SECS), "ended")
        assert s.tick(n * REPEAT_SECS) == []
    s.received(RunAck(tokens=(T,)), 100.0)
    assert s.tick(200.0) == []


def test_a_snapshot_counts_as_a_report():
    s = session(*STATES["ended"])
    s.received(RunStatus(op_id="o" * 32), 100.0)
    assert s.tick(100.0 + REPEAT_SECS - 0.1) == []
    assert is_update(s.tick(100.0 + REPEAT_SECS), "ended")


def test_elapsed_goes_on_with_the_monotonic_clock():
    s = session(run())
    (first,) = heard(s, started(elapsed=3.0), 10.0)
    assert first.message.execution.elapsed_secs == 3.0
    (again,) = s.received(run(), 14.5)
    assert again.message.execution.elapsed_secs == 7.5
    (snapshot,) = s.received(RunStatus(op_id="o" * 32), 20.0)
    assert snapshot.message.executions[0].elapsed_secs == 13.0
    heard(s, started(elapsed=None), 20.0)
    assert s.received(run(), 30.0)[0].message.execution.elapsed_secs is None


# ---- the keeper


def test_the_keepers_words_come_through():
    s = session(run())
    (output,) = heard(s, started(pid=77), 0.0)
    e = output.message.execution
    assert (e.pid, e.start_ticks, e.started_at, e.op_id, e.exit) == (
        77,
        7,
        1.7e9,
        op_id(T, "run"),
        None,
    )
    (output,) = heard(s, ended(code=4, lastLines="boom", userSecs=0.5), 0.0)
    exit_ = output.message.execution.exit
    assert (exit_.code, exit_.last_lines, exit_.user_secs) == (4, "boom", 0.5)


def test_hello_brings_what_an_earlier_agent_left():
    s = Session()
    assert hello(s, [started(), ended(token(2))], 0.0) == []
    assert reported(s.connected(0.0)) == {T: "running", token(2): "ended"}
    assert is_update(s.received(run(), 0.0), "running")
    assert reported(hello(s, [ended()], 0.0)) == {T: "ended", token(2): "ended"}


@pytest.mark.parametrize(
    "harm",
    [
        {"token": "user0001-sim00001-command/0/1/main/0"},
        {"token": "nonsense"},
        {"state": "starting"},
        {"state": "dead"},
    ],
)
def test_what_is_no_execution_is_refused_and_changes_nothing(harm):
    s = session(run())
    before = s.executions()
    with pytest.raises(Refusal):
        heard(s, {**started(), **harm}, 0.0)
    assert s.executions() == before


def test_an_exit_that_is_none_is_refused_and_changes_nothing():
    s = session(run())
    before = s.executions()
    with pytest.raises(msgspec.ValidationError):
        heard(s, ended(code="zero"), 0.0)
    assert s.executions() == before


# ---- queries


def test_over_and_live():
    s = session(run(), run(token(2)))
    assert (s.has_ended(T), s.has_ended(token(9)), s.live()) == (False, None, 2), (
        "one that is on its way here has everything before it"
    )
    heard(s, started(), 0.0)
    heard(s, ended(token(2)), 0.0)
    assert (s.has_ended(T), s.has_ended(token(2)), s.live()) == (False, True, 1)


# ---- any order


TOKENS = [token(n, serial) for n in (1, 2) for serial in (100, 101)]
STEP = st.tuples(
    st.sampled_from(["run", "cancel", "ack", "status", "started", "ended", "up", "down", "tick"]),
    st.sampled_from(TOKENS),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_whatever_the_order(steps):
    """An end is never retracted, and never lost before its acknowledgement. While a cancel is
    known, nothing is launched.
    """
    s, mono, over, canceled = Session(), 0.0, {}, set()
    for what, t in steps:
        mono += 1.0
        match what:
            case "run":
                outputs = s.received(run(t), mono)
                assert not (t in canceled and any(isinstance(o, Launch) for o in outputs))
            case "cancel":
                outputs = s.received(cancel(t), mono)
                canceled.add(t)
            case "ack":
                outputs = s.received(RunAck(tokens=(t,)), mono)
                if outputs:
                    assert over.pop(t) == "ended"
                    canceled.discard(t)
            case "status":
                outputs = s.received(RunStatus(op_id="o" * 32), mono)
            case "started":
                outputs = heard(s, started(t), mono)
            case "ended":
                outputs = heard(s, ended(t), mono)
            case "up":
                outputs = s.connected(mono)
            case "down":
                outputs = s.disconnected()
            case "tick":
                outputs = s.tick(mono)
        for e in s.executions():
            if over.get(e.token) == "ended":
                assert e.state == "ended"
            over[e.token] = e.state
        assert over.keys() == {e.token for e in s.executions()}
        for t_, state in reported(outputs).items():
            assert over[t_] == state
        for o in outputs:
            if isinstance(o, Send):
                msgspec.json.decode(msgspec.json.encode(o.message), type=type(o.message))
    assert reported(s.connected(mono)) == over


SHARED = Shared(env={"A": "shared"}, job="{}")


def run_tasks(*tokens):
    return RunTasks(
        op_id="o" * 32,
        shared=SHARED,
        tasks=tuple(TaskRun(op_id=op_id(t, "run"), token=t, spec=SPEC) for t in tokens),
    )


def member(index, role="a", attempt=1, serial=100):
    return Token("user0001-sim00001-command", serial, attempt, role, index)


def test_each_task_of_a_gang_is_launched_once_with_what_they_share():
    tokens = [member(n, r) for r in ("a", "b") for n in range(3)]
    s = session()
    assert s.received(run_tasks(*tokens), 1.0) == [Launch(t, SPEC, SHARED) for t in tokens]
    again = s.received(run_tasks(*tokens), 2.0)
    assert reported(again) == dict.fromkeys(tokens, "starting") and not [
        o for o in again if isinstance(o, Launch)
    ]
    heard(s, started(tokens[1]), 3.0)
    heard(s, ended(tokens[2]), 3.0)
    more = s.received(run_tasks(*tokens, member(3)), 4.0)
    assert reported(more) == {
        t: {1: "running", 2: "ended"}.get(n, "starting") for n, t in enumerate(tokens)
    }
    assert [o.token for o in more if isinstance(o, Launch)] == [member(3)]


def test_of_a_gang_what_was_canceled_before_it_came_is_not_launched():
    tokens = [member(n) for n in range(3)]
    s = session(cancel(tokens[1]))
    assert [o.token for o in s.received(run_tasks(*tokens), 1.0) if isinstance(o, Launch)] == [
        tokens[0],
        tokens[2],
    ]


def test_a_gang_of_an_older_run_is_refused_and_one_of_an_earlier_attempt_is_not():
    """Attempts are numbered within a run: only the keeper's ledger knows which tokens were used."""
    s = session(run_tasks(member(0, attempt=2)))
    assert [
        o.token for o in s.received(run_tasks(member(0, attempt=1)), 1.0) if isinstance(o, Launch)
    ] == [member(0, attempt=1)]
    late = s.received(run_tasks(member(0, serial=99), member(1, serial=99)), 1.0)
    assert reported(late) == {member(n, serial=99): "ended" for n in (0, 1)}


def test_a_gang_that_came_while_nobody_was_connected_is_in_the_next_snapshot():
    tokens = [member(n) for n in range(SNAPSHOT_PAGE + 1)]
    s = session(run_tasks(*tokens), up=False)
    pages = [o.message for o in s.connected(1.0)]
    assert [p.last for p in pages] == [False, True] and [
        e.token for p in pages for e in p.executions
    ] == tokens


def test_a_start_that_failed_for_a_port_says_so_in_a_word_until_the_keeper_knows_better():
    s = session(run_tasks(member(0), member(1)))
    (said,) = s.launch_failed(member(0), "somebody listens", 1.0, "portTaken")
    exit_ = said.message.execution.exit
    assert (exit_.source, exit_.detail, exit_.fault) == ("start", "somebody listens", "portTaken")
    heard(s, started(member(1)), 1.0)
    assert s.launch_failed(member(1), "somebody listens", 2.0, "portTaken") == []
    assert not s.has_ended(member(1)) and s.has_ended(member(0))


def test_a_probe_is_answered_by_who_can_look_and_changes_nothing():
    probe = ProbePorts(op_id="p" * 32, ports=(1, 2))
    s = session()
    before = s.executions()
    assert s.received(probe, 1.0) == [Probe(probe)] == s.received(probe, 1.0)
    assert s.executions() == before


# ---- runs that wait for a slot


def ahead(t=T, slot="ahead"):
    return msgspec.structs.replace(run(t), slot=slot)


def test_a_run_that_waits_is_launched_as_waiting_and_released_once():
    s = session()
    assert s.received(ahead(), 1.0) == [Launch(T, SPEC, slot="ahead")]
    assert s.received(ahead(slot="held"), 1.0) == [Release(T)]
    assert is_update(s.received(ahead(slot="held"), 1.0), "starting")


def test_a_run_with_a_slot_is_launched_with_it():
    assert session().received(ahead(slot="held"), 1.0) == [Launch(T, SPEC, slot="held")]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [((started(),), "running"), ((started(), ended()), "ended"), ((never(),), "ended")],
)
def test_a_run_that_started_or_ended_while_it_waited_is_not_released(steps, expected):
    s = session(ahead(), *steps)
    assert is_update(s.received(ahead(slot="held"), 1.0), expected)


def test_the_run_that_was_started_instead_is_reported_with_the_end():
    other = msgspec.structs.replace(T, attempt=2)
    (update,) = heard(session(run()), ended() | {"successor": str(other)}, 0.0)
    assert update.message.execution.successor == other
    (update,) = heard(session(run()), ended() | {"successor": None}, 0.0)
    assert update.message.execution.successor is msgspec.UNSET
