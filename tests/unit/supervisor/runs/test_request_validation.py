"""Validation of run requests: every input becomes a typed request or a refusal with a clear
sentence.
"""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobscribe.protocol.api.requests import (
    JobList,
    JobLog,
    RunCancel,
    RunMany,
    RunSimulation,
    RunStatusRequest,
)
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import AppInput, Run, TaskSpec
from jobscribe.supervisor.runs.request_validation import (
    MAX_BODY,
    MAX_DATA,
    MAX_DATA_DEPTH,
    MAX_DATA_ITEMS,
    MAX_DATA_KEYS,
    MAX_FIELDS,
    MAX_ONE,
    check_spec,
    parse_body,
    parse_runs,
)

GOOD = {
    "reqId": "request-1",
    "run": {"uid": "user0001", "simulationId": "sim00001", "command": ["true"]},
}


def body(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def run(**changes):
    return body(run={**GOOD["run"], **changes})


def refused(data, type_=RunSimulation):
    with pytest.raises(Refusal) as e:
        parse_body(data, type_)
    assert e.value.sentence
    return e.value


def test_a_good_one():
    request = parse_body(body(), RunSimulation)
    assert request.run.command == ("true",)
    assert (request.run.driver, request.run.job_run_mode, request.run.grace_secs) == (
        "",
        "sequential",
        3.0,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "user001"},
        {"uid": "user00011"},
        {"uid": "user000\u0031\n"},
        {"uid": "us/../r1"},
        {"uid": "user000\u0661"},
        {"uid": "user000\u043e"},
        {"uid": "user000\0"},
        {"simulationId": "../../../"},
        {"simulationId": ""},
        {"computeModel": "9x"},
        {"computeModel": "a-b"},
        {"computeModel": "x" * 65},
        {"computeModel": "x\n"},
        {"simulationType": "../x"},
        {"simulationType": "Upper"},
        {"driver": "no such"},
        {"jobRunMode": "both"},
        {"command": "true"},
        {"command": ["a\0b"]},
        {"command": [1]},
        {"command": None},
        {"env": {"9A": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0"}},
        {"timeLimitSecs": 0},
        {"timeLimitSecs": -1},
        {"timeLimitSecs": 1e12},
        {"graceSecs": -1},
        {"graceSecs": 1e5},
        {"coreBytes": -1},
        {"computeJobHash": "a/b"},
        {"nope": 1},
    ],
)
def test_a_bad_field_is_named(changes):
    e = refused(run(**changes))
    assert e.code == "badRequest"
    (name,) = changes
    assert name in e.sentence or "unknown field" in e.sentence


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "badRequest"),
        (b"{", "badRequest"),
        (b"[]", "badRequest"),
        (b"null", "badRequest"),
        (b"5", "badRequest"),
        (b"\xff\xfe", "badRequest"),
        (b'{"reqId": "\xff"}', "badRequest"),
        (b"{}", "badRequest"),
        (b"NaN", "badRequest"),
        (body(reqId="short"), "badRequest"),
        (body(reqId="x" * 65), "badRequest"),
        (body(reqId="a b c d e f"), "badRequest"),
        (body(extra=1), "badRequest"),
        (body(forceRun="yes"), "badRequest"),
        (body(computeJobSerial=-1), "badRequest"),
        (body(computeJobSerial=1.5), "badRequest"),
        (body(computeJobSerial=2**53 + 1), "badRequest"),
        (b" " * (MAX_BODY + 1), "tooLarge"),
        (b"[" * 100_000, "badRequest"),
        (b'{"run":' * 10_000, "badRequest"),
    ],
)
def test_a_bad_body(data, code):
    assert refused(data).code == code


@pytest.mark.parametrize(
    "data",
    [
        body()[:-1] + b', "reqId": "request-2"}',
        body().replace(b'"uid"', b'"uid": "user0002", "uid"'),
        run(env={"A": "1"}).replace(b'"A"', b'"A": "2", "A"'),
        body().replace(b'"uid"', b'"\\u0075id": "user0002", "uid"'),
    ],
)
def test_a_field_that_is_there_twice(data):
    """One parser may check the first value while another uses the second."""
    e = refused(data)
    assert (e.code, "twice" in e.sentence) == ("badRequest", True)


def test_a_body_of_exactly_the_limit_is_read():
    data = body()
    assert parse_body(data + b" " * (MAX_ONE - len(data)), RunSimulation).req_id == "request-1"
    assert refused(data + b" " * (MAX_ONE + 1 - len(data))).code == "tooLarge"


def test_a_request_of_very_many_fields_is_refused_before_it_is_taken_apart():
    many = json.loads(body())
    many["run"]["env"] = {f"V{n}": "" for n in range(MAX_FIELDS)}
    e = refused(json.dumps(many).encode())
    assert (e.code, str(MAX_FIELDS) in e.sentence) == ("tooLarge", True)
    many["run"]["env"] = {f"V{n}": ":" for n in range(MAX_FIELDS // 2)}
    assert len(parse_body(json.dumps(many).encode(), RunSimulation).run.env) == MAX_FIELDS // 2


@pytest.mark.parametrize(
    "text",
    [
        '{"A":"1","A":"2"}',
        '{"A":"1","\\u0041":"2"}',
        '{"B":":","A":"1" , "A" :"2"}',
        '{"A":"\\\\","B":"\\"","A":"2"}',
    ],
)
def test_a_field_that_is_there_twice_is_found_however_it_is_written(text):
    once = body().replace(
        b'"command": ["true"]',
        b'"command": ["true", "\\":\\\\"], "env": {"A": ":\\\\", "B": "\\":"}',
    )
    assert parse_body(once, RunSimulation).run.env == {"A": ":\\", "B": '":'}
    e = refused(
        body().replace(b'"command": ["true"]', b'"command": ["true"], "env": ' + text.encode())
    )
    assert (e.code, "twice" in e.sentence) == ("badRequest", True)


def bulk(*runs, req_id="bulk-request"):
    return json.dumps(
        {"reqId": req_id, "runs": [{**json.loads(body())["run"], **r} for r in runs]}
    ).encode()


def test_the_problems_of_one_of_many_runs_have_its_place():
    with pytest.raises(Refusal) as e:
        asyncio.run(parse_runs(bulk({}, {"uid": "joe", "env": {"9": "x"}})))
    assert [p.path for p in e.value.more["problems"]] == ["runs[1].uid", 'runs[1].env["9"]']


def test_many_runs_are_the_same_as_one_by_one():
    request = asyncio.run(parse_runs(bulk({}, {"simName": "second"})))
    assert request == msgspec.json.decode(bulk({}, {"simName": "second"}), type=RunMany)
    assert [r.sim_name for r in request.runs] == [None, "second"]


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (bulk({}, {"extra": 1}), "badRequest", "run 1 of the request"),
        (bulk({}).replace(b'"reqId"', b'"reqId": "bulk-request", "reqId"'), "badRequest", "twice"),
        (bulk({}).replace(b'"runs"', b'"runs": [{}], "runs"'), "badRequest", "twice"),
        (bulk({}).replace(b'"uid"', b'"uid": "user0001", "uid"', 1), "badRequest", "twice"),
        (bulk({}, req_id="x"), "badRequest", ""),
        (b'{"reqId":"bulk-request","runs":[]}', "badRequest", ""),
        (b'{"reqId":"bulk-request","runs":7}', "badRequest", ""),
        (b'{"reqId":"bulk-request","runs":[1,]}', "badRequest", ""),
        (b'{"reqId":"bulk-request"}', "badRequest", ""),
        (b" " * (MAX_BODY + 1), "tooLarge", ""),
    ],
)
def test_many_runs_that_are_none(data, code, said):
    with pytest.raises(Refusal) as e:
        asyncio.run(parse_runs(data))
    assert e.value.code == code
    assert said in e.value.sentence


def test_others_are_served_while_many_runs_are_taken_apart():
    """Concurrent requests do not wait until all runs are parsed."""
    served = 0

    async def others() -> None:
        nonlocal served
        while True:
            await asyncio.sleep(0)
            served += 1

    async def both() -> None:
        task = asyncio.create_task(others())
        await parse_runs(bulk(*[{"simName": "x" * 900}] * 1000))
        task.cancel()

    asyncio.run(both())
    assert served > 20


def test_nested_too_deep_where_anything_goes():
    with pytest.raises(Refusal) as e:
        parse_body(b"[" * 200_000 + b"]" * 200_000, object)
    assert e.value.code == "tooDeep"


def test_sentences_are_for_people():
    assert refused(body(extra=1)).sentence.startswith(
        "invalid request: it has an unknown field `extra`"
    )
    assert "it lacks the required field `uid`" in refused(body(run={})).sentence
    assert "nothing" in refused(run(uid=None)).sentence
    assert refused(b"{").sentence.startswith("the body is not JSON")
    assert len(refused(run(simulationId="x" * 100_000)).sentence) <= 400


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        (
            RunCancel,
            {"reqId": "request-1", "uid": "user0001", "computeJid": "user0001-sim00001-command"},
        ),
        (
            RunStatusRequest,
            {"uid": "user0001", "computeJid": "user0001-sim00001-command", "waitSecs": 3},
        ),
        (JobList, {"uid": "user0001", "status": "running", "limit": 5}),
        (JobLog, {"uid": "user0001", "computeJid": "user0001-sim00001-command", "tail": 5}),
        (RunMany, {"reqId": "request-1", "runs": [GOOD["run"]]}),
    ],
)
def test_each_request_has_its_shape(type_, data):
    parse_body(json.dumps(data).encode(), type_)
    assert refused(json.dumps({**data, "uidd": 1}).encode(), type_).code == "badRequest"
    for name in data:
        assert refused(json.dumps({**data, name: [[]]}).encode(), type_).code == "badRequest"


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["reqId", "run", "uid", "command", "x"]), inner, max_size=3
                )
            ),
            max_leaves=10,
        ).map(lambda v: json.dumps(v).encode()),
    )
)
def test_whatever_arrives_only_a_refusal_comes_out(data):
    with pytest.raises(Refusal):
        parse_body(data, RunSimulation)


# ---- rules beyond the schema


def test_an_app_that_is_not_there(kit):
    with pytest.raises(Refusal) as e:
        check_spec(kit.spec(simulation_type="other"), ("command", "myapp"))
    assert (e.value.code, e.value.sentence) == (
        "unknownApp",
        "unknown app 'other'; choose one of: command, myapp",
    )
    check_spec(kit.spec(), ("command",))


@pytest.mark.parametrize(
    "name", ["JOBSCRIBE_ROOT", "JOBSCRIBE_", "MY_PASSWORD", "API_TOKEN", "SECRET_KEY"]
)
def test_variables_that_are_not_for_requests(kit, name):
    with pytest.raises(Refusal) as e:
        check_spec(kit.spec(env={name: "x"}), ("command",))
    assert e.value.code == "badRequest"
    assert name in e.value.sentence


def test_harmless_variables(kit):
    check_spec(
        kit.spec(env={"OMP_NUM_THREADS": "2", "PATH": "/bin", "MY_JOBSCRIBE_X": "1"}), ("command",)
    )


LIMIT = 512 * 1024


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("x" * (LIMIT + 1),)},
        {"command": ("x",) * (LIMIT + 1)},
        {"env": {"A": "x" * LIMIT}},
        {"wrap": ("x" * (LIMIT + 1),)},
    ],
)
def test_too_much_to_carry(kit, fields):
    """All fields go into one message to the agent."""
    with pytest.raises(Refusal) as e:
        check_spec(kit.spec(**fields), ("command",))
    assert e.value.code == "tooLarge"


def test_just_enough_to_carry(kit):
    check_spec(kit.spec(command=("x" * LIMIT,)), ("command",))


APPS = ("command", "heat")


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ()},
        {"command": ("true",), "data": {}},
        {"simulation_type": "heat"},
        {"simulation_type": "heat", "data": {}},
        {"simulation_type": "heat", "command": ()},
    ],
)
def test_a_command_for_the_app_command_and_data_for_all_others(kit, fields):
    with pytest.raises(Refusal, match="takes") as e:
        check_spec(kit.spec(**fields), APPS)
    assert e.value.code == "badRequest"


def heat(kit, data):
    check_spec(kit.spec(simulation_type="heat", command=(), data=data), APPS)


def test_data_for_an_app(kit):
    heat(kit, {})
    heat(
        kit,
        {
            "models": {
                "heatAnimation": {
                    "steps": 5,
                    "name": "x",
                    "on": True,
                    "none": None,
                    "list": [1.5, [2]],
                }
            }
        },
    )


def nested(levels, innermost):
    for _ in range(levels):
        innermost = {"a": innermost}
    return innermost


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (nested(MAX_DATA_DEPTH + 1, 1), "tooDeep"),
        (nested(MAX_DATA_DEPTH - 1, [[1]]), "tooDeep"),
        ({"a": "x" * MAX_DATA}, "tooLarge"),
        ({"a": "\u20ac" * (MAX_DATA // 3)}, "tooLarge"),
        ({str(n): 0 for n in range(MAX_DATA_KEYS + 1)}, "tooLarge"),
        ({"a": [{"b": 1}] * (MAX_DATA_KEYS + 1)}, "tooLarge"),
        ({"a": [0] * (MAX_DATA_ITEMS + 1)}, "tooLarge"),
        ({"a": 2**64}, "badRequest"),
        ({"a": [-(2**63) - 1]}, "badRequest"),
    ],
)
def test_data_that_cannot_be_told_to_an_agent(kit, data, code):
    with pytest.raises(Refusal) as e:
        heat(kit, data)
    assert (e.value.code, "`data`" in e.value.sentence) == (code, True)


@pytest.mark.parametrize(
    "data",
    [
        nested(MAX_DATA_DEPTH, 1),
        {"a": "x" * (MAX_DATA - 8)},
        {str(n): 0 for n in range(MAX_DATA_KEYS)},
        {"a": [0] * MAX_DATA_ITEMS},
        {"a": [2**64 - 1, -(2**63)]},
    ],
)
def test_whatever_is_accepted_gets_to_the_agent(kit, data):
    """An agent closes its connection on each message that it cannot read, again and again."""
    heat(kit, data)
    app = AppInput(simulation_type="heat", compute_model="m", data=data)
    spec = TaskSpec(command=(), app=app, run_dir="/r", env={f"E{n}": "x" for n in range(100)})
    run = Run(op_id="o" * 32, token=Token(kit.jid_of(), 1, 1, "main", 0), spec=spec)
    decoder = Decoder("to_agent")
    heard = [m for frame in Encoder().frames([run]) for m in decoder.messages(frame)]
    assert heard == [run]
