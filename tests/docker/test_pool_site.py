"""A supervisor with a pool: its reports about hosts are true, in the command line too, and it does
not start with an invalid pool.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from debugging_user import Debugger, waiting_stop
from docker_hosts import BASE, UNIX_USERS, Host, Hosts, Sites
from snakemake_workflow import END_SECS, Workflow, program
from supervisor_process import (
    PYTHON_PATH,
    UID,
    SupervisorProcess,
    jid_of,
    shell,
    spec,
    until,
)

from jobscribe.client import Client, ClientError

#: Its job tells its unix user, and the memory limit of its container.
SNAKEFILE = """
rule out:
    output: "out"
    resources: {}
    shell: "id -u > {{output}}; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes >> {{output}} 2>/dev/null || :"
"""


def cli(site: SupervisorProcess, *args: str, code: int = 0) -> str:
    done = site.command(*args)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def hosts_of(site: SupervisorProcess) -> dict[str, dict[str, Any]]:
    return {h["host"]: h for h in site.ask("GET", "/api/pool").json()["hosts"]}


def test_hosts_are_up_are_missed_and_come_back(
    docker_site: SupervisorProcess, host_b: Host
) -> None:
    rows = until(
        lambda: (
            (found := hosts_of(docker_site))
            and all(h["state"] == "up" for h in found.values())
            and found
        ),
        "both hosts are up",
    )
    assert sorted(rows) == ["a", "b"]
    assert (rows["a"]["slots"], rows["a"]["cpu"], rows["a"]["memoryMb"]) == (
        {"sequential": [0, 4], "parallel": [0, 4]},
        [0, 4],
        [0, 4096],
    )
    assert rows["a"]["version"].startswith("20.10") and rows["a"]["since"] is not None
    assert "all hosts of the pool can be used" in cli(docker_site, "pool", "check")
    host_b.stop()
    until(lambda: hosts_of(docker_site)["b"]["state"] == "down", "the host is missed")
    table = cli(docker_site, "pool", "show")
    assert " down " in table and "\nb: " in table, table
    assert json.loads(cli(docker_site, "pool", "show", "--json"))["schema"] == "jobscribe.pool/1"
    assert "b" in cli(docker_site, "pool", "check", code=1)
    host_b.start()
    until(lambda: hosts_of(docker_site)["b"]["state"] == "up", "the host is back")


def test_each_wrong_certificate_has_an_answer_of_its_own(docker_sites: Sites, pool: Hosts) -> None:
    bad = {"expired": "expired", "stranger": "", "otherca": "authority"}
    said = {}
    for name in bad:
        site = docker_sites.make(
            pool={"hosts": ["a"], "host": {"tls": str(pool.place / "bad" / name)}}
        ).start()
        until(
            lambda site=site: "not asked yet" not in hosts_of(site)["a"]["detail"],
            "the host was asked",
        )
        assert hosts_of(site)["a"]["state"] == "down"
        said[name] = cli(site, "pool", "check", code=1)
        site.stop()
    assert len(set(said.values())) == len(bad), said
    assert [n for n, word in bad.items() if word not in said[n].lower()] == [], said


def test_a_supervisor_does_not_start_with_a_pool_that_is_wrong(docker_sites: Sites) -> None:
    site = docker_sites.make(pool={"netwrok": "none", "network": "host"})
    process = site.fork_or_launch()
    assert process.wait(60) == 78
    assert (
        "netwrok: unknown key; right: `network`" in site.log()
        and "network: it is host" in site.log()
    )
    assert process.stdout is not None
    process.stdout.close()


def test_a_plain_run_is_in_a_container_and_nothing_is_left(
    make_docker_site: Callable[..., SupervisorProcess], pool: Hosts
) -> None:
    site = make_docker_site(pool={"hosts": ["a"]})
    run = shell("id -u; cat /proc/1/cmdline | tr '\\0' ' '; echo; ls /sys/class/net")
    reply = site.finished(run)
    assert reply["state"] == "completed", (reply, site.log()[-3000:])
    lines = site.output(run).body.decode().splitlines()
    assert (
        UNIX_USERS[0] <= int(lines[0]) <= UNIX_USERS[1]
        and "keeper" in lines[1]
        and lines[2:] == ["lo"]
    ), lines
    assert pool.hosts["a"].containers("jobscribe.part=agent", running=True) == [
        f"srj-s-{run['uid']}"
    ]


def test_a_breakpoint_in_a_container_without_a_network_is_reached(
    docker_site: SupervisorProcess,
) -> None:
    """The image's Python runs the job, with a profile, too. A plain run is reached by the agent in
    its container, a task with a container of its own by the driver.
    """
    text = "y = 6\nbreakpoint()\nfor _ in range(30): sum(range(10**6))\nprint('result', y)"
    env = {"JOBSCRIBE_DEBUG": "on-error"}
    plain = spec(["python3", "-c", text], env=env, profile="cpu")
    fails = ["python3", "-c", f"{text}\nraise ValueError('unlucky')"]
    role = {"name": "solver", "command": fails, "image": BASE, "memoryMb": 64}
    own = {**spec([]), "roles": [role], "env": env, "profile": "cpu"}
    for run in (plain, own):
        docker_site.submit(run)
    with Client.from_root(docker_site.root, uid=UID, budget_secs=60.0) as client:
        for run in (plain, own):
            stop = waiting_stop(client, jid_of(run))
            first = Debugger(client, stop)
            first.until("prompt")
            with pytest.raises(ClientError, match="another session is attached"):
                client.debug_attach(jid_of(run), stop["id"])
            if run is own:  # its session ends with the supervisor, and the process waits again
                docker_site.stop(signal.SIGKILL)
                docker_site.start()
            else:
                first.close()
            debugger = Debugger(client, waiting_stop(client, jid_of(run)))
            debugger.until("prompt")
            debugger.type("y = 7")
            if run is own:
                assert (stop["role"], stop["host"]) == ("solver", "solver-0")
                assert "ValueError: unlucky" in debugger.type("c")
                assert debugger.type("p y") == "7\n"
            debugger.type("c", "end")
            debugger.close()
            ended = docker_site.wait(run)
            assert ended["exit"]["code"] == (run is own)
            assert docker_site.output(run).body == b"result 7\n"
            assert client.debug_list(jid_of(run)) == {"stops": [], "notes": []}
        (profile,) = (f["name"] for f in client.files(jid_of(plain)))
        with client.open_file(jid_of(plain), profile) as file:
            assert b"<module> (<string>:1) " in file.read()


def test_tasks_in_containers_of_their_own_are_profiled(docker_site: SupervisorProcess) -> None:
    """Their processes record themselves; a tool that needs an agent is refused at submission."""
    busy = "for _ in range(30): sum(range(10**6))\nprint('done')"
    tasks = [{"name": "a", "command": ["python3", "-c", busy], "image": BASE, "memoryMb": 64}]
    run = {**spec([]), "roles": [*tasks, {**tasks[0], "name": "b"}], "profile": "cpu"}
    docker_site.submit(run)
    ended = docker_site.wait(run)
    assert ended["state"] == "completed", ended
    assert docker_site.output(run).body == b"done\n"
    run_dir = Path(ended["runDir"])
    profiles = sorted(run_dir.glob("*/0/jobscribe-profiles/*/*.collapsed"))
    assert [p.relative_to(run_dir).parts[0] for p in profiles] == ["a", "b"], profiles
    for profile in profiles:
        assert "<module> (<string>:1) " in profile.read_text()
    asked = {"uid": run["uid"], "computeJid": jid_of(run)}
    for task in docker_site.post("job-tasks", **asked)["tasks"]:
        assert (Path(task["evidence"]) / "profiled").exists(), "retention finds them"
    with Client.from_root(docker_site.root, uid=UID) as client:
        names = {f["name"] for f in client.files(jid_of(run))}
        assert {str(p.relative_to(run_dir)) for p in profiles} <= names
    refused = {**run, "simulationId": "refused1", "profile": "cpu=py-spy"}
    body = json.dumps({"reqId": "p" * 12, "run": refused}).encode()
    answer = docker_site.ask("POST", "/api/run-simulation", body)
    assert answer.code == 400 and "needs an agent" in answer.json()["error"], answer


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_warm_workers_run_in_containers(docker_site: SupervisorProcess) -> None:
    """One beside the user's agent, one in a container of its own. The agent stores its calls, and
    reads its outcomes for any client of the user. A call without a worker runs in both places, too.
    """
    packages = docker_site.root / "user" / UID / "packages"
    shutil.copytree(Path(cloudpickle.__file__).parent, packages / "cloudpickle")
    options = {"env": {"PYTHONPATH": str(packages)}}
    with Client.from_root(docker_site.root, uid=UID) as client:
        for task in ({}, {"task": {"image": BASE, "memory_mb": 64}}):
            resources = {**options, **task}
            alone = client.submit(os.getenv, "FUNCTION_CALL_FILE", "read", resources=resources)
            with client.executor(workers=1, resources=resources) as executor:
                calls = [executor.submit(pow, 2, n) for n in range(20)]
                lost, user = executor.submit(os._exit, 3), executor.submit(os.getuid)
                assert [call.result(100) for call in calls] == [2**n for n in range(20)]
                with pytest.raises(ClientError, match="exit code 3"):
                    lost.result(100)
                assert UNIX_USERS[0] <= user.result(100) <= UNIX_USERS[1]
                run_dir = Path(client.status(user.jid).run_dir or "")
                folders = list(run_dir.glob("**/calls"))
                assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700]
                assert folders[0].stat().st_uid == user.result()
                assert alone.result(100) == "read"
                with Client.from_root(docker_site.root, uid=UID) as other:
                    assert other.job(calls[7].jid).result(60, call=calls[7].call) == 128


@pytest.mark.soak(
    "tests/unit/plugins/test_snakemake_runs.py and tests/integration/test_snakemake.py"
)
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has Python 3.11")
def test_a_workflow_of_snakemake_runs_in_containers(
    make_docker_site: Callable[..., SupervisorProcess],
) -> None:
    """Its user has the unix ids of the containers. The image gets Snakemake as volumes."""
    snakemake = program()
    tree = (Path(snakemake).parents[1] / "tree/jobscribe").resolve()
    volumes = {
        name: {"source": str(path), "target": str(path), "readOnly": True}
        for name, path in (("tree", tree), ("snakemake", Path(snakemake).parents[1]))
        if name == "tree" or tree not in path.parents
    }
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o711)  # the user enters it, as on a site with `user_root`
        site = make_docker_site(f"user_root={place}", pool={"hosts": ["a"], "volumes": volumes})
        site.finished(shell("true"))  # makes the folder of the user
        home = Path(place, UID)
        owner = (home.stat().st_uid, home.stat().st_gid)
        folder, token = home / "flow", home / "token"
        folder.mkdir()
        token.touch(0o600)
        made = site.post("token-create", uid=UID, name="t", scopes=["read", "control"])
        token.write_text(made["secret"])
        for path in (folder, token):
            os.chown(path, *owner)
        connection = ("--jobscribe-url", site.url, "--jobscribe-token-file", str(token))
        workflow = Workflow(snakemake, connection, folder, owner)
        images = ("--jobscribe-driver", "docker", "--jobscribe-image", BASE)
        try:
            resources = f"mem_mb=300, runtime=5, jobscribe_volumes='{','.join(volumes)}'"
            ended = workflow.start(SNAKEFILE.format(resources), *images, USER="flow")
            assert ended.wait(END_SECS) == 0, workflow.text()
        finally:
            workflow.end()
        pid, memory = (folder / "out").read_text().split()
        assert (pid, int(memory)) == (str(owner[0]), 300 << 20)
        site.stop()
