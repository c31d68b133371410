"""Runs with roles on a real supervisor: gangs whose tasks find each other, policies, attempts,
ports, and holds for debugging.
"""

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consistency_check import check_books
from loop_lag import check_lag
from supervisor_process import SupervisorProcess, ended, jid_of, req_id, spec, until

ROOMY = ("resources.local_cpu=16", "resources.local_memory_mb=8000", "slots.op_run=8")

SERVER = """
import os, socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((os.environ["PAI_CONTAINER_HOST_IP"], int(os.environ["PAI_CONTAINER_HOST_PORT"]))); s.listen(16)
print("serving", flush=True)
total = 0
while True:
    peer, _ = s.accept(); total += int(peer.recv(100)); peer.sendall(str(total).encode()); peer.close()
"""
WORKER = """
import os, socket, time
index = int(os.environ["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"])
for place in os.environ["PAI_TASK_ROLE_ps_HOST_LIST"].split(","):
    host, port = place.split(":")
    for _ in range(600):
        try:
            peer = socket.create_connection((host, int(port))); break
        except ConnectionRefusedError:
            time.sleep(0.05)
    peer.sendall(str(10 ** index).encode()); print(place, peer.recv(100).decode(), flush=True); peer.close()
"""


def role(name: str, command: str | list[str], **fields: Any) -> dict[str, Any]:
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    return {"name": name, "command": words, **fields}


def gang(*roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    run = spec([], roles=list(roles), jobRunMode="parallel", **fields)
    del run["command"]
    return run


def python(text: str) -> list[str]:
    return ["python3", "-c", text]


@pytest.fixture(scope="module")
def house() -> Iterator[SupervisorProcess]:
    with ended(check_lag) as sites:
        sites.append(SupervisorProcess(ROOMY))
        yield sites[0].start()


@pytest.fixture
def roomy(house: SupervisorProcess) -> Iterator[SupervisorProcess]:
    """Share a site with capacity for gangs among the tests. Check its records after each test."""
    yield house
    check_books(house)


def tasks(site: SupervisorProcess, run: dict[str, Any], attempt: int = 0) -> dict[str, Any]:
    reply: dict[str, Any] = site.post(
        "job-tasks", uid=run["uid"], computeJid=jid_of(run), attempt=attempt
    )
    return reply


def output(
    site: SupervisorProcess, run: dict[str, Any], name: str, index: int = 0, **fields: Any
) -> str:
    return site.output(run, role=name, index=index, **fields).body.decode()


def test_two_servers_and_two_workers_find_each_other_and_the_servers_are_stopped(
    roomy: SupervisorProcess,
) -> None:
    run = gang(
        role("ps", python(SERVER), tasks=2),
        role("worker", python(WORKER), tasks=2, minSucceeded=2),
        graceSecs=5.0,
    )
    over = roomy.finished(run)
    assert (over["state"], over["reason"]) == ("completed", "exit"), (over, tasks(roomy, run))
    assert over["roles"] == {
        "ps": {
            "tasks": 2,
            "placed": 0,
            "running": 0,
            "held": 0,
            "succeeded": 0,
            "failed": 0,
            "stopped": 2,
        },
        "worker": {
            "tasks": 2,
            "placed": 0,
            "running": 0,
            "held": 0,
            "succeeded": 2,
            "failed": 0,
            "stopped": 0,
        },
    }
    said = tasks(roomy, run)
    decided = said["attempts"][0]["decided"]
    assert decided["succeeded"] and decided["role"] == "worker"
    servers = [t for t in said["tasks"] if t["role"] == "ps"]
    assert {t["exit"]["stopReason"] for t in servers} == {"decided"}
    lists = {output(roomy, run, "worker", i) for i in (0, 1)}
    ports = [t["ports"]["http"][0] for t in sorted(servers, key=lambda t: t["index"])]
    for text in lists:
        assert [line.split()[0] for line in text.splitlines()] == [f"127.0.0.1:{p}" for p in ports]
    totals = {line.split()[1] for text in lists for line in text.splitlines()}
    assert "11" in totals, "both workers were heard by one server"
    assert output(roomy, run, "ps", 0) == "serving\n"


def test_each_task_has_its_own_directory_environment_and_description(
    roomy: SupervisorProcess,
) -> None:
    run = gang(
        role(
            "a",
            "pwd; echo $PAI_WORK_DIR; echo $JOBSCRIBE_TASK_INDEX of $PAI_JOB_TASK_COUNT; cat job.json",
            tasks=2,
        ),
        role("b", "pwd"),
    )
    assert roomy.finished(run)["state"] == "completed"
    where = roomy.status(run)["runDir"]
    for index in (0, 1):
        lines = output(roomy, run, "a", index).splitlines()
        assert lines[:3] == [f"{where}/a/{index}", f"{where}/a/{index}", f"{index} of 3"]
        said = json.loads("\n".join(lines[3:]))
        assert len(said["tasks"]) == 3
        assert os.path.realpath(f"{where}/a/{index}/.jobscribe/latest").endswith(f"-1-a-{index}")
    tokens = {t["token"] for t in tasks(roomy, run)["tasks"]}
    assert len(tokens) == 3


def test_an_ordinary_failure_is_tried_again_as_often_as_asked_and_every_attempt_keeps_its_log(
    roomy: SupervisorProcess,
) -> None:
    run = gang(role("main", "echo attempt $JOBSCRIBE_ATTEMPT; exit 1"), retry={"count": 2})
    over = roomy.finished(run)
    assert (over["state"], over["attempt"], over["exit"]["code"]) == ("error", 3, 1)
    said = tasks(roomy, run)
    assert [a["retry"] is not None for a in said["attempts"]] == [True, True, False]
    assert said["attempts"][2]["notRetried"]
    for number in (1, 2, 3):
        assert output(roomy, run, "main", attempt=number) == f"attempt {number}\n"
    once = gang(role("main", "exit 1"), retry={"count": 0})
    assert roomy.finished(once)["attempt"] == 1


def test_what_the_platform_did_is_tried_again_up_to_its_own_limit(roomy: SupervisorProcess) -> None:
    run = gang(role("main", "kill -9 $$"), retry={"count": 0, "platform": 3})
    over = roomy.finished(run)
    assert (over["state"], over["attempt"], over["exit"]["signal"]) == ("error", 4, 9)
    assert over["diagnosis"]["type"] == "platform"


def test_a_task_that_was_killed_from_outside_starts_the_whole_gang_again(
    roomy: SupervisorProcess,
) -> None:
    run = gang(
        role("a", "[ $JOBSCRIBE_ATTEMPT = 2 ] || exec sleep 60", tasks=2), retry={"platform": 1}
    )
    roomy.submit(run)
    until(lambda: roomy.status(run)["roles"]["a"]["running"] == 2, "both run")
    pid = next(t["pid"] for t in tasks(roomy, run)["tasks"] if t["index"] == 1)
    roomy.kill(pid)
    over = roomy.wait(run)
    assert (over["state"], over["attempt"]) == ("completed", 2), over
    first = tasks(roomy, run, 1)["tasks"]
    assert [t["state"] for t in first] == ["stopped", "failed"]


def test_what_does_not_fit_is_refused_and_nothing_is_stored(roomy: SupervisorProcess) -> None:
    head = roomy.ready()["head"]
    for fields, named in (
        ({"cpu": 17}, "cpu"),
        ({"memoryMb": 8001}, "memory"),
        ({"gpu": 1}, "gpu"),
        ({"tasks": 17}, "cpu"),
    ):
        run = gang(role("hungry", "true", **fields))
        answer = roomy.ask(
            "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": run}).encode()
        )
        said = answer.json()
        assert (answer.code, said["code"]) == (400, "resourceExceeded"), said
        assert "hungry" in said["error"] and named in said["error"].lower().replace(
            "cores", "cpu"
        ).replace("gpus", "gpu"), said
    assert roomy.ready()["head"] == head


def test_a_gang_that_waits_says_for_what_and_starts_when_there_is_room(
    roomy: SupervisorProcess,
) -> None:
    first, second = gang(role("wide", "sleep 60", tasks=12)), gang(role("wider", "true", tasks=8))
    roomy.submit(first)
    until(lambda: roomy.status(first)["roles"]["wide"]["running"] == 12, "the first runs")
    roomy.submit(second)
    said = until(
        lambda: (s := roomy.status(second))["queueState"] == "resources" and s,
        "it says what it waits for",
    )
    assert "4" in said["jobStatusMessage"] and "wider" in said["jobStatusMessage"], said
    assert said["roles"]["wider"]["placed"] == 0, "all or nothing"
    roomy.cancel(first)
    assert roomy.wait(second)["state"] == "completed"


def six_free_ports() -> int:
    """Return the first of six consecutive free ports, outside the range from which the kernel
    assigns ports.
    """
    while True:
        first = random.randrange(10_000, 20_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + 6):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def test_ports_that_others_listen_on_are_not_given_away(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    first = six_free_ports()
    taken = first + 2
    with socket.create_server(("127.0.0.1", taken)):
        site = make_site(*ROOMY, f"resources.local_ports={first}-{first + 5}").start()
        run = gang(role("one", "true", tasks=2))
        assert site.finished(run)["state"] == "completed"
        given = {
            p for t in tasks(site, run)["tasks"] for ports in t["ports"].values() for p in ports
        }
        assert len(given) == 4 and taken not in given


def test_a_failed_task_is_kept_for_debugging_and_ends_with_its_own_exit(
    roomy: SupervisorProcess,
) -> None:
    run = gang(role("main", "echo here; exit 3"), debugSecs=600.0)
    roomy.submit(run)
    said = until(lambda: (s := roomy.status(run))["queueState"] == "debug_hold" and s, "it is kept")
    assert said["state"] == "running" and not said["over"] and said["known"]
    assert said["roles"]["main"]["held"] == 1
    roomy.stop(9)
    roomy.process = None
    roomy.start()
    said = roomy.status(run)
    assert said["queueState"] == "debug_hold", said
    rest = gang(role("rest", "true", tasks=16))
    roomy.submit(rest)
    until(lambda: roomy.status(rest)["queueState"] == "resources", "what it holds is counted")
    roomy.post("run-release", uid=run["uid"], computeJid=jid_of(run))
    over = roomy.wait(run)
    assert (over["state"], over["reason"], over["exit"]["code"]) == ("error", "exit", 3)
    assert roomy.wait(rest)["state"] == "completed"
    good = gang(role("main", "true"), debugSecs=600.0)
    assert roomy.finished(good)["state"] == "completed"


def test_a_hold_ends_at_its_deadline(roomy: SupervisorProcess) -> None:
    run = gang(role("main", "exit 4"), debugSecs=1.0)
    over = roomy.finished(run)
    assert (over["state"], over["exit"]["code"]) == ("error", 4)
    assert "TaskHeld" in roomy.story(run)


def test_a_gang_is_canceled_whole(roomy: SupervisorProcess) -> None:
    run = gang(role("a", "sleep 600", tasks=3), role("b", "sleep 600"), graceSecs=1.0)
    roomy.submit(run)
    until(lambda: roomy.status(run)["roles"]["a"]["running"] == 3, "it runs")
    assert roomy.cancel(run)["state"] == "canceled"
    over = roomy.wait(run)
    assert over["state"] == "canceled" and over["roles"]["a"]["stopped"] == 3


def test_gangs_outlive_supervisor_and_agent(roomy: SupervisorProcess) -> None:
    run = gang(
        role("a", "sleep 600", tasks=3),
        role("b", "while [ ! -e ../../go ]; do sleep 0.05; done", minSucceeded=1),
    )
    roomy.submit(run)
    until(
        lambda: (
            roomy.status(run)["roles"]["a"]["running"] == 3
            and roomy.status(run)["roles"]["b"]["running"] == 1
        ),
        "it runs",
    )
    before = {t["token"]: t["pid"] for t in tasks(roomy, run)["tasks"]}
    roomy.stop(9)
    roomy.process = None
    roomy.start()
    until(lambda: roomy.status(run)["known"], "it is known again")
    assert {t["token"]: t["pid"] for t in tasks(roomy, run)["tasks"]} == before
    with open(f"{roomy.status(run)['runDir']}/go", "w"):
        pass
    over = roomy.wait(run)
    assert (over["state"], over["attempt"]) == ("completed", 1)


def test_runs_wait_for_others_to_end(roomy: SupervisorProcess, tmp_path: Path) -> None:
    submitted = tmp_path / "submitted"
    slow = spec(["/bin/sh", "-c", f"until [ -e {submitted} ]; do sleep 0.05; done; exit 1"])
    roomy.submit(slow)
    ok = spec(["true"], after=[{"computeJid": jid_of(slow), "on": "ok"}])
    failed = spec(["true"], after=[{"computeJid": jid_of(slow), "on": "failed"}])
    any_ = spec(["true"], after=[{"computeJid": jid_of(slow), "on": "any"}])
    last = spec(["true"], after=[{"computeJid": jid_of(any_)}, {"computeJid": jid_of(failed)}])
    for run in (ok, failed, any_, last):
        assert roomy.submit(run)["queueState"] == "dependency"
    submitted.touch()
    assert (
        roomy.wait(failed)["state"]
        == roomy.wait(any_)["state"]
        == roomy.wait(last)["state"]
        == "completed"
    )
    over = roomy.wait(ok)
    assert (over["state"], over["reason"]) == ("canceled", "dependency")
    assert roomy.wait(last)["computeJobStart"] >= roomy.wait(any_)["computeJobEnd"]
    late = spec(["true"], after=[{"computeJid": jid_of(slow), "on": "ok"}])
    answer = roomy.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": late}).encode()
    )
    assert (answer.code, answer.json()["code"]) == (409, "dependencyNever")


def test_a_static_range_is_given_as_it_was_asked_for_and_refused_where_it_cannot_be(
    roomy: SupervisorProcess,
) -> None:
    run = gang(
        role(
            "one",
            "echo $PAI_CONTAINER_HOST_grpc_PORT_LIST",
            ports=[{"label": "grpc", "begin": 21_500, "count": 2}],
        )
    )
    assert roomy.finished(run)["state"] == "completed"
    assert output(roomy, run, "one") == "21500,21501\n"
    twice = gang(role("two", "true", tasks=2, ports=[{"label": "grpc", "begin": 21_500}]))
    answer = roomy.ask(
        "POST", "/api/run-simulation", json.dumps({"reqId": req_id(), "run": twice}).encode()
    )
    assert (answer.code, answer.json()["code"]) == (
        400,
        "resourceExceeded",
    ) and "21500" in answer.json()["error"]


def test_of_thirty_gangs_at_once_no_two_tasks_share_a_port(
    make_site: Callable[..., SupervisorProcess],
) -> None:
    site = make_site(
        "resources.local_cpu=200", "resources.local_memory_mb=100000", "slots.op_run=60"
    ).start()
    runs = [
        gang(role("main", "while [ ! -e ../../go ]; do sleep 0.1; done", tasks=2))
        for _ in range(30)
    ]
    for run in runs:
        site.submit(run)
    until(
        lambda: all(site.status(run)["roles"]["main"]["running"] == 2 for run in runs),
        "all run",
        secs=60.0,
    )
    ports = [
        p
        for run in runs
        for t in tasks(site, run)["tasks"]
        for given in t["ports"].values()
        for p in given
    ]
    assert len(ports) == len(set(ports)) == 120
    for run in runs:
        with open(f"{site.status(run)['runDir']}/go", "w"):
            pass
    assert {site.wait(run)["state"] for run in runs} == {"completed"}


def test_a_canceled_hold_ends_as_the_task_ended(roomy: SupervisorProcess) -> None:
    run = gang(role("main", "exit 3"), debugSecs=600.0, retry={"count": 5})
    roomy.submit(run)
    until(lambda: roomy.status(run)["queueState"] == "debug_hold", "it is kept")
    roomy.cancel(run)
    over = roomy.wait(run)
    assert (over["state"], over["exit"]["code"], over["attempt"]) == ("error", 3, 1), (
        "it had failed, and is not tried again"
    )


def test_the_log_of_an_attempt_is_there_while_the_next_one_runs(roomy: SupervisorProcess) -> None:
    run = gang(
        role(
            "main",
            "echo attempt $JOBSCRIBE_ATTEMPT; [ $JOBSCRIBE_ATTEMPT = 1 ] && exit 1; exec sleep 600",
        ),
        retry={"count": 1},
    )
    roomy.submit(run)
    until(
        lambda: (s := roomy.status(run))["attempt"] == 2 and s["roles"]["main"]["running"] == 1,
        "the second one runs",
    )
    assert output(roomy, run, "main", attempt=1) == "attempt 1\n"
    until(lambda: output(roomy, run, "main") == "attempt 2\n", "and writes")
    roomy.cancel(run)
    assert roomy.wait(run)["state"] == "canceled"


def test_a_task_has_no_more_memory_than_its_role_asks_for(roomy: SupervisorProcess) -> None:
    run = gang(
        role("greedy", ["tail", "/dev/zero"], memoryMb=32), retry={"count": 2, "platform": 2}
    )
    roomy.submit(gang(role("first", "true")))
    keeper = until(
        lambda: next(iter(roomy.root.glob("agent/*parallel*/agent.log")), None), "there is an agent"
    )
    said = until(
        lambda: "cgroups of jobs" in (text := keeper.read_text()) and text,
        "it says whether there are cgroups",
    )
    line = next(line for line in said.splitlines() if "cgroups of jobs" in line)
    if not line.rstrip().endswith(("v1", "v2")):
        pytest.skip(
            f"memory of jobs cannot be limited here ({line.split('cgroups of jobs: ')[1]}): run as root, or with a delegated cgroup"
        )
    over = roomy.finished(run)
    assert (over["state"], over["attempt"]) == ("error", 1), "to try it again would not help"
    assert over["exit"]["outOfMemory"] is True and over["diagnosis"]["type"] == "user", over
    survivor = gang(role("parent", "tail /dev/zero; exit 0", memoryMb=32))
    assert roomy.finished(survivor)["state"] == "completed", (
        "an exit 0 is a success, whatever was killed"
    )
