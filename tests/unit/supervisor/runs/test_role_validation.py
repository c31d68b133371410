"""Validation of runs with roles: rules beyond the schema have their own sentences, and an accepted
run always reaches the agent.
"""

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs.roles import (
    MAX_PORTS,
    MAX_TASKS,
    After,
    Port,
    Retry,
    TaskPlace,
    TaskRole,
)
from jobscribe.protocol.launch import task_environment
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import RunTasks, TaskRun, TaskSpec
from jobscribe.supervisor.runs.request_validation import MAX_WORDS, check_spec, parse_body
from jobscribe.supervisor.runs.role_validation import MAX_VARIABLES

APPS = ("command", "heat")


def role(name="w", **fields):
    return TaskRole(name=name, command=fields.pop("command", ("true",)), **fields)


def check(kit, *roles, **fields):
    check_spec(kit.spec(**{"command": (), "roles": roles, **fields}), APPS)


def refused(kit, *roles, **fields):
    with pytest.raises(Refusal) as e:
        check(kit, *roles, **fields)
    return e.value


GOOD = [
    (role(),),
    (role("a"), role("b")),
    (role(tasks=3, min_failed=3, min_succeeded=3),),
    (role(min_failed=None, min_succeeded=None),),
    (role(tasks=MAX_TASKS),),
    (role("a", tasks=MAX_TASKS - 1), role("b")),
    (role(tasks=1000, ports=(Port(label="a"), Port(label="b"))),),
    (role(ports=(Port(label="a", begin=1024),)),),
    (role(ports=(Port(label="a", begin=65_535),)),),
    (role(ports=(Port(label="a", begin=65_280, count=256),)),),
    (role(ports=(Port(label="a", begin=2000, count=10), Port(label="b", begin=2010))),),
    (
        role("a", ports=(Port(label="a", begin=2000),)),
        role("b", ports=(Port(label="a", begin=2000),)),
    ),
    (role(ports=(Port(label="http", begin=8080), Port(label="ssh", count=3))),),
    (role(env={"OMP_NUM_THREADS": "2", "MY_PAI_X": "1", "PAIX": "1"}),),
    (role("a"), role("a_0_b")),
]


@pytest.mark.parametrize("roles", GOOD)
def test_good_ones(kit, roles):
    check(kit, *roles)


BAD = [
    ((role("a"), role("b"), role("a")), "2 roles have the name 'a'"),
    (
        (role("a"), role(tasks=2, min_failed=3)),
        "role 'w': `minFailed` is 3, but the role has only 2 tasks",
    ),
    ((role(min_succeeded=2),), "role 'w': `minSucceeded` is 2, but the role has only 1 task;"),
    ((role("a", tasks=MAX_TASKS), role("b")), "1001 tasks together; the limit is 1000"),
    (
        (role(tasks=667, ports=(Port(label="a", count=4),)),),
        "4002 ports together, with `http` and `ssh` of each; the limit is 4000",
    ),
    (
        (role(tasks=1000, ports=(Port(label="a", count=2), Port(label="http", count=2))),),
        "5000 ports",
    ),
    (
        (role(ports=(Port(label="a"), Port(label="b"), Port(label="a"))),),
        "2 of its ports have the label 'a'",
    ),
    (
        (role(ports=(Port(label="a", begin=1023),)),),
        "its ports 1023 (a) are not within 1024 to 65535",
    ),
    ((role(ports=(Port(label="a", begin=80),)),), "1024"),
    (
        (role(ports=(Port(label="a", begin=65_535, count=2),)),),
        "its ports 65535 to 65536 (a) are not within",
    ),
    (
        (role(ports=(Port(label="b", begin=2009), Port(label="a", begin=2000, count=10))),),
        "2000 to 2009 (a) and 2009 (b) overlap",
    ),
    ((role(ports=(Port(label="a", begin=2000), Port(label="b", begin=2000))),), "overlap"),
    (
        (
            role(
                ports=(
                    Port(label="a", begin=2000, count=50),
                    Port(label="b", begin=2010),
                    Port(label="c", begin=2040),
                )
            ),
        ),
        "overlap",
    ),
    (
        (role(env={"JOBSCRIBE_ROOT": "x"}),),
        "role 'w': the environment variable JOBSCRIBE_ROOT is reserved for jobscribe",
    ),
    (
        (role("a"), role(env={"MY_PASSWORD": "x"})),
        "role 'w': the environment variable MY_PASSWORD looks like a secret",
    ),
    ((role(env={"PAI_TASK_INDEX": "x"}),), "role 'w' cannot set PAI_TASK_INDEX"),
    ((role(env={"PAI_DATA_DIR": "x"}),), "role 'w' cannot set PAI_DATA_DIR"),
    ((role(command=("", "x")),), "the first word of its `command`, the program, is empty"),
    (
        (role("a", ports=(Port(label="b_0_http"),)), role("a_0_b")),
        "the variable PAI_a_0_b_0_http_PORT to different values",
    ),
]


@pytest.mark.parametrize(("roles", "said"), BAD)
def test_bad_ones_are_said(kit, roles, said):
    e = refused(kit, *roles)
    assert e.code == "badRequest"
    assert said in e.sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("true",)},
        {"data": {}},
        {"command": ("true",), "data": {}},
        {"roles": ()},
        {"simulation_type": "heat"},
        {"simulation_type": "heat", "data": {}},
        {"simulation_type": "heat", "roles": (), "command": ("x",), "data": {}},
    ],
)
def test_either_a_command_or_roles_and_only_of_the_app_command(kit, fields):
    e = refused(kit, role(), **fields)
    assert e.code == "badRequest"
    assert "take" in e.sentence


@pytest.mark.parametrize("name", sorted(task_environment.GIVEN))
def test_what_a_run_may_say_itself(kit, name):
    check(kit, role(), env={name: "/x"})


@pytest.mark.parametrize(
    "name", ["PAI_JOB_NAME", "PAI_USER_NAME", "PAI_", "PAI_WORK_DIR", "PAI_w_0_http_PORT"]
)
def test_what_is_said_of_a_run(kit, name):
    e = refused(kit, role(), env={name: "/x"})
    assert e.code == "badRequest"
    assert f"cannot set {name}:" in e.sentence
    assert "PAI_DATA_DIR" in e.sentence


def test_a_plain_run_has_no_such_variables_and_may_set_them(kit):
    check_spec(kit.spec(env={"PAI_JOB_NAME": "x"}), APPS)


@pytest.mark.parametrize(
    "fields",
    [
        {"retry": Retry(count=3)},
        {"debug_secs": 60.0},
        {"at_once": 2},
        {"after": (After(compute_jid="user0001-sim00002-command"),)},
        {"retry": Retry(), "debug_secs": 1.0, "at_once": 1},
    ],
)
def test_what_plain_runs_may_have_as_well(kit, fields):
    check_spec(kit.spec(**fields), APPS)
    check(kit, role(), **fields)


@pytest.mark.parametrize("name", ["JOBSCRIBE_ROOT", "API_TOKEN"])
def test_the_runs_own_variables_are_looked_at(kit, name):
    assert name in refused(kit, role(), env={name: "x"}).sentence


def test_a_name_that_no_variable_can_have(kit):
    check(kit, role(), sim_name="two words, 50 % \u20ac")
    assert "`simName`" in refused(kit, role(), sim_name="a\0b").sentence
    check_spec(kit.spec(sim_name="a\0b"), APPS)


@pytest.mark.parametrize(
    ("roles", "fields"),
    [
        ((role(command=("x" * (MAX_WORDS + 1),)),), {}),
        (
            (
                role("a", command=("x" * (MAX_WORDS // 2),)),
                role("b", command=("x" * (MAX_WORDS // 2 + 1),)),
            ),
            {},
        ),
        ((role(env={"A": "x" * MAX_WORDS}),), {}),
        ((role(),), {"env": {"A": "x" * MAX_WORDS}}),
        ((role(),), {"wrap": ("x" * MAX_WORDS,)}),
    ],
)
def test_too_much_to_carry(kit, roles, fields):
    assert refused(kit, *roles, **fields).code == "tooLarge"


def test_just_enough_to_carry_however_many_have_it(kit):
    check(kit, role(tasks=1000, command=("x" * MAX_WORDS,)))


def names(n, start="E"):
    return {f"{start}{i}": "" for i in range(n)}


def test_as_many_variables_as_a_task_can_be_told(kit):
    roles = (role(tasks=100),)
    room = MAX_VARIABLES - task_environment.max_variables(roles)
    check(kit, *roles, env=names(room))
    assert refused(kit, *roles, env=names(room + 1)).code == "tooLarge"
    e = refused(kit, role(tasks=100, env=names(room)), env=names(1, "R"))
    assert (e.code, f"would have {MAX_VARIABLES + 1} environment variables" in e.sentence) == (
        "tooLarge",
        True,
    )


@pytest.mark.parametrize(
    ("fields", "room"),
    [
        ({}, MAX_VARIABLES),
        ({"simulation_type": "heat", "command": (), "data": {}}, MAX_VARIABLES - 8_000),
    ],
)
def test_as_many_variables_as_a_plain_run_can_be_told(kit, fields, room):
    check_spec(kit.spec(env=names(room), **fields), APPS)
    with pytest.raises(Refusal) as e:
        check_spec(kit.spec(env=names(room + 1), **fields), APPS)
    assert e.value.code == "tooLarge"


FULL = tuple(
    role(f"r{n:031d}", tasks=10, ports=(Port(label="a" * 32), Port(label="b" * 32)))
    for n in range(100)
)


@pytest.mark.parametrize(
    "roles",
    [
        FULL,
        (role(tasks=1000, ports=(Port(label="a" * 32), Port(label="b" * 32))),),
        (role(tasks=3),),
    ],
)
def test_whatever_is_accepted_gets_to_the_agent(kit, roles):
    """Use as many variables as permitted. An agent closes its connection on each message that it
    cannot read, again and again.
    """
    room = MAX_VARIABLES - task_environment.max_variables(roles)
    assert room > 0
    env = names(room)
    spec = kit.spec(command=(), roles=roles, env=env)
    check_spec(spec, APPS)
    jid = kit.jid_of()
    places = [
        TaskPlace(
            role=r.name,
            index=i,
            host="h",
            address="10.0.0.5",
            ports={p.label: (30_000,) * p.count for p in r.all_ports()},
        )
        for r in roles
        for i in range(r.tasks)
    ]
    shared = task_environment.shared(spec, jid, 1, 1, places)
    own = task_environment.own(spec, jid, 1, 1, places[0])
    task = TaskSpec(
        command=("true",), run_dir="/r", env={**env, **own, "PAI_WORK_DIR": "/r"}, ports=(30_000,)
    )
    message = RunTasks(
        op_id="o" * 32,
        shared=shared,
        tasks=(TaskRun(op_id="o" * 32, token=Token(jid, 1, 1, roles[0].name, 0), spec=task),),
    )
    decoder = Decoder("to_agent")
    assert [m for frame in Encoder().frames([message]) for m in decoder.messages(frame)] == [
        message
    ]
    assert sum(r.tasks * p.count for r in roles for p in r.all_ports()) <= MAX_PORTS


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"name": "a-b"}, "roles[0].name"),
        ({"name": "a" * 33}, "roles[0].name"),
        ({"tasks": 0}, "roles[0].tasks"),
        ({"tasks": 1001}, "roles[0].tasks"),
        ({"command": []}, "roles[0].command"),
        ({"command": "true"}, "roles[0].command"),
        ({"minFailed": 0}, "roles[0].minFailed"),
        ({"minSucceeded": -1}, "roles[0].minSucceeded"),
        ({"cpu": 0}, "roles[0].cpu"),
        ({"memoryMb": 0.5}, "roles[0].memoryMb"),
        ({"gpu": -1}, "roles[0].gpu"),
        ({"ports": [{"label": "a"}, {"label": "9"}]}, "roles[0].ports[1].label"),
        ({"ports": [{"label": "a", "count": 257}]}, "roles[0].ports[0].count"),
        ({"env": {"A-B": "x"}}, "roles[0].env"),
        ({"min_failed": 1}, "min_failed"),
    ],
)
def test_the_shape_of_a_role(changes, where):
    run = {
        "uid": "user0001",
        "simulationId": "sim00001",
        "roles": [{"name": "w", "command": ["true"], **changes}],
    }
    with pytest.raises(Refusal) as e:
        parse_body(msgspec.json.encode(run), RunSpec)
    assert e.value.code == "badRequest"
    assert where in e.value.sentence
