"""Gangs in containers through a whole supervisor: an image for each role, networks, attempts,
reasons for waiting, and user commands.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import environment, gang, output, refused, role, tasks, there, types, words
from consistency_check import check_books
from docker_hosts import BASE, BUSYBOX, NOSHELL, Hosts, sites
from image_registry import Registry
from inspected_program import COMMAND, Recorders, give_pyspy
from loop_lag import check_lag
from shell_user import ShellUser, check_stranger, client_of
from site_locations import dice
from supervisor_process import SupervisorProcess, jid_of, req_id, until

from jobscribe.client import Client
from jobscribe.drivers.deployment_name import deployment

SERVER = """
import os, socket
s = socket.socket()
s.bind((os.environ["PAI_CONTAINER_HOST_IP"], int(os.environ["PAI_CONTAINER_HOST_PORT"]))); s.listen(16)
print("serving", flush=True)
total = 0
while True:
    peer, _ = s.accept(); total += int(peer.recv(100)); peer.sendall(str(total).encode()); peer.close()
"""
WORKER = """
import os, socket, time
index = int(os.environ["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"])
while not os.path.exists("../../go"):
    time.sleep(0.02)
for place in os.environ["PAI_TASK_ROLE_ps_HOST_LIST"].split(","):
    host, port = place.split(":")
    for _ in range(600):
        try:
            peer = socket.create_connection((host, int(port))); break
        except OSError:
            time.sleep(0.05)
    peer.sendall(str(10 ** index).encode()); print(place, peer.recv(100).decode(), flush=True); peer.close()
print("os" in open("/opt/whose").read(), os.path.exists("/opt/server.py"), flush=True)
"""
#: Connects to the addresses in a file, line by line, and prints each result. The first address is
#: its own server, which may not be up yet.
PROBER = """
import os, socket, time
while not os.path.exists("../../peers"):
    time.sleep(0.02)
patience = 30
for line in open("../../peers").read().split():
    host, port = line.split(":")
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1.5); print(line, "reached", flush=True)
        except OSError as e:
            if time.monotonic() < until:
                time.sleep(0.1)
                continue
            print(line, "not reached", flush=True)
        break
    patience = 0
"""
LISTENER = """
import os, socket
s = socket.socket(); s.bind(("0.0.0.0", int(os.environ["PAI_CONTAINER_HOST_PORT"]))); s.listen(16); print("listening", flush=True)
while True:
    s.accept()[0].close()
"""
PATIENT = 90.0
ROUNDS = int(os.environ.get("ROUNDS", "12"))
IMAGES = {
    "jobscribe-test/gang-server:1": ("server.py", SERVER),
    "jobscribe-test/gang-worker:1": ("worker.py", WORKER),
}


def python(text: str) -> list[str]:
    return ["python3", "-c", text]


def pair(**fields: Any) -> dict[str, Any]:
    """Return a gang of two servers and two workers, each with the image of its role. It fills one
    host.
    """
    server, worker = IMAGES
    return gang(
        role("ps", ["python3", "/opt/server.py"], tasks=2, image=server),
        role("worker", ["python3", "/opt/worker.py"], tasks=2, minSucceeded=2, image=worker),
        graceSecs=5.0,
        **fields,
    )


def let_go(site: SupervisorProcess, run: dict[str, Any], name: str = "go", text: str = "") -> None:
    where = Path(site.status(run)["runDir"])
    (where / f".{name}").write_text(text)
    (where / f".{name}").rename(where / name)


def run_all(site: SupervisorProcess, run: dict[str, Any], secs: float = PATIENT) -> dict[str, Any]:
    """Return the status as soon as every task runs."""

    def look() -> dict[str, Any] | None:
        said = site.status(run)
        assert not said["over"], (said, tasks(site, run))
        return (
            said
            if said["roles"] and all(r["running"] == r["tasks"] for r in said["roles"].values())
            else None
        )

    found: dict[str, Any] = until(look, f"all of {jid_of(run)} run", secs)
    return found


def host_of(site: SupervisorProcess, run: dict[str, Any]) -> str:
    (host,) = {t["host"] for t in tasks(site, run)}
    return str(host)


def gone(pool: Hosts, *runs: dict[str, Any]) -> None:
    for run in runs:
        until(
            lambda run=run: there(pool, run) == {},
            f"nothing of {jid_of(run)} is left on the hosts: {there(pool, run)}",
            60,
        )


@pytest.fixture(scope="module")
def images(pool: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build an image for each role on both hosts."""
    try:
        for tag, (file, text) in IMAGES.items():
            folder = tmp_path_factory.mktemp("image")
            (folder / file).write_text(text)
            (folder / "whose").write_text("ours")
            (folder / "Dockerfile").write_text(f"FROM {BASE}\nCOPY {file} whose /opt/\n")
            for host in pool.hosts.values():
                host.docker("build", "--quiet", "--tag", tag, str(folder))
        yield
    finally:
        for host in pool.hosts.values():
            host.docker("rmi", "--force", *IMAGES, code=None)


@pytest.fixture(scope="module")
def observed(pool: Hosts, images: None) -> Iterator[SupervisorProcess]:
    for host in pool.hosts.values():
        host.well()
    with sites(pool) as made:
        site = made.make("slots.op_run=8", pool={"keepFailedSecs": 0}).start()
        yield site
        assert not (late := check_lag(site)), late


@pytest.fixture
def site(observed: SupervisorProcess) -> Iterator[SupervisorProcess]:
    """Two hosts with 4 cores each. After each test no run is active, and the records are
    checked.
    """
    yield observed
    for job in observed.post("job-list", active=True)[
        "jobs"
    ]:  # left by a failed test; they must not disturb the next one
        observed.post("run-cancel", reqId=req_id(), uid=job["uid"], computeJid=job["jid"])
    check_books(observed)


@pytest.mark.timeout(300)
def test_two_and_two_on_each_host_at_once_and_the_third_waits_for_one_to_be_over(
    site: SupervisorProcess, pool: Hosts
) -> None:
    first, second, third = pair(), pair(), pair()
    for run in (first, second):
        site.submit(run)
        run_all(site, run)
    assert {host_of(site, first), host_of(site, second)} == {"a", "b"}
    site.submit(third)
    said = until(
        lambda: (s := site.status(third))["queueState"] == "resources" and s,
        "it says what it waits for",
    )
    assert "no host" in said["jobStatusMessage"] or "free" in said["jobStatusMessage"], said
    assert said["roles"]["ps"]["placed"] == 0 and there(pool, third) == {}, "all or nothing"
    follower = subprocess.Popen(
        words(site, "job", "logs", jid_of(first), "-f", "--role", "worker", "--index", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    found = there(pool, first)
    assert list(found) == [host_of(site, first)] and len(found[host_of(site, first)]) == 5, (
        "four containers and a network"
    )
    until(lambda: measured(site, first), "what its tasks take is measured", 60)
    let_go(site, first)
    over = site.wait(first, PATIENT)
    out, err = follower.communicate(timeout=60)
    assert (over["state"], over["reason"], follower.returncode) == ("completed", "exit", 0), (
        over,
        tasks(site, first),
        err,
    )
    assert out == output(site, first, "worker", 1), "followed to the very end"
    assert run_all(site, third) and host_of(site, third) == host_of(site, first), (
        "its turn has come"
    )
    for run in (second, third):
        let_go(site, run)
        assert site.wait(run, PATIENT)["state"] == "completed"
    for run in (first, second, third):
        check_pair(site, run)
    gone(pool, first, second, third)


def measured(site: SupervisorProcess, run: dict[str, Any]) -> bool:
    """Return whether each of the four tasks has samples of its own container."""
    said = json.loads(types(site, "job", "metrics", jid_of(run), "--json")[0])
    figures = [(t["memoryBytes"], t["cpuSecs"], t["processes"]) for t in said["tasks"]]
    return len(figures) == 4 and all(
        m and 1 << 20 < m < 100 << 20 and c is not None and p and p < 10 for m, c, p in figures
    )


@pytest.mark.skipif(os.environ.get("SOAK") != "1", reason="takes minutes: set SOAK=1")
@pytest.mark.timeout(60 * ROUNDS)
def test_pairs_of_gangs_live_through_deaths_of_the_supervisor(
    site: SupervisorProcess, pool: Hosts
) -> None:
    chance, seen = dice("docker/gangs"), []
    for _ in range(ROUNDS):
        runs = [pair(), pair(), pair()]
        for run in runs:
            site.submit(run)
        time.sleep(chance.random() * 3)
        assert site.stop(signal.SIGKILL) == -signal.SIGKILL
        site.start()
        for run in runs:
            run_all(site, run)
            let_go(site, run)
        for run in runs:
            over = site.wait(run, PATIENT)
            assert (over["state"], over["attempt"]) == ("completed", 1), (over, tasks(site, run))
            check_pair(site, run)
            seen.append(host_of(site, run))
        gone(pool, *runs)
    print(
        f"{len(seen)} gangs of four, {ROUNDS} kills of the supervisor, hosts a and b: {seen.count('a')} and {seen.count('b')}"
    )


def check_pair(site: SupervisorProcess, run: dict[str, Any]) -> None:
    counts = {
        name: (r["succeeded"], r["stopped"], r["failed"])
        for name, r in site.status(run)["roles"].items()
    }
    assert counts == {"ps": (0, 2, 0), "worker": (2, 0, 0)}, counts
    servers = sorted(
        (t for t in tasks(site, run) if t["role"] == "ps"), key=lambda t: int(t["index"])
    )
    assert {t["exit"]["stopReason"] for t in servers} == {"decided"}
    texts = [output(site, run, "worker", i).splitlines() for i in (0, 1)]
    listed = [f"{t['address']}:{t['ports']['http'][0]}" for t in servers]
    assert [[line.split()[0] for line in lines[:2]] for lines in texts] == [listed, listed], (
        texts,
        listed,
    )
    assert "11" in {line.split()[1] for lines in texts for line in lines[:2]}, (
        "both workers were heard by one server"
    )
    assert [lines[2:] for lines in texts] == [["False False"]] * 2, "each role is in its own image"
    assert [output(site, run, "ps", i) for i in (0, 1)] == ["serving\n"] * 2


@pytest.mark.timeout(300)
def test_gangs_on_one_host_do_not_reach_each_other(site: SupervisorProcess, pool: Hosts) -> None:
    runs = [
        gang(
            role("server", python(LISTENER)),
            role("prober", python(PROBER), minSucceeded=1),
            graceSecs=1.0,
        )
        for _ in range(3)
    ]
    for run in runs:
        site.submit(run)
    for run in runs:
        run_all(site, run)
    by_host: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_host.setdefault(host_of(site, run), []).append(run)
    host, (mine, other) = next((h, r[:2]) for h, r in by_host.items() if len(r) > 1)
    subnets = [
        json.loads(
            pool.hosts[host].docker(
                "network", "inspect", there(pool, r, "jobscribe.part=network")[host][0]
            )
        )[0]
        for r in (mine, other)
    ]
    assert len({n["IPAM"]["Config"][0]["Subnet"] for n in subnets}) == 2 and all(
        n["Internal"] for n in subnets
    )
    own, foreign = (
        next(
            f"{t['address']}:{t['ports']['http'][0]}"
            for t in tasks(site, r)
            if t["role"] == "server"
        )
        for r in (mine, other)
    )
    let_go(site, mine, "peers", f"{own}\n{foreign}\n")
    let_go(site, other, "peers", f"{foreign}\n{own}\n")
    for run in runs:
        if run not in (mine, other):
            let_go(site, run, "peers")
        assert site.wait(run, PATIENT)["state"] == "completed"
    assert output(site, mine, "prober").splitlines() == [f"{own} reached", f"{foreign} not reached"]
    assert output(site, other, "prober").splitlines() == [
        f"{foreign} reached",
        f"{own} not reached",
    ]
    gone(pool, *runs)


@pytest.mark.timeout(300)
def test_networks_in_the_way_of_a_gang_ours_go_and_others_stay(
    site: SupervisorProcess, pool: Hosts
) -> None:
    gang_of_two = {"graceSecs": 1.0, "retry": {"count": 0, "platform": 1}}
    blocks = [f"10.208.{n}.0/22" for n in (0, 4)]
    ours = (
        f"jobscribe.deployment={deployment((site.root / 'secret' / 'agents').read_bytes().strip())}"
    )
    try:
        for host in pool.hosts.values():
            labels = ("--label", ours, "--label", "jobscribe.part=network")
            host.docker(
                "network", "create", "--internal", "--subnet", blocks[0], *labels, "left-of-a-gang"
            )
            host.docker(
                "network", "create", "--internal", "--subnet", blocks[1], "of-somebody-else"
            )
        said = "".join(types(site, "pool", "check", code=1))
        assert (
            said.count("network of-somebody-else uses 10.208.4.0/22") == 2
            and "left-of-a-gang" not in said
        ), said
        runs = [
            gang(
                role("main", "while [ ! -e ../../go ]; do sleep 0.05; done", tasks=2), **gang_of_two
            )
            for _ in range(3)
        ]
        for run in runs:
            site.submit(run)
        for run in runs:
            run_all(site, run)
        held = {
            (t["host"], t["address"].rsplit(".", 1)[0]): int(t["token"].split("/")[2])
            for run in runs
            for t in tasks(site, run)
        }
        first, second = (
            {h for h in pool.hosts if (h, "10.208.0") in held},
            {h for h in pool.hosts if (h, "10.208.8") in held},
        )
        assert all(held[h, "10.208.0"] == 1 for h in first) and all(
            held[h, "10.208.8"] == 2 for h in second
        ), held
        assert first == set(pool.hosts) and len(second) == 1 and len(held) == 3, held
        for host in first:
            known = pool.hosts[host].docker("network", "ls", "--format", "{{.Name}}").split()
            assert "left-of-a-gang" not in known and "of-somebody-else" in known
        for run in runs:
            let_go(site, run)
            assert site.wait(run, PATIENT)["state"] == "completed"
        gone(pool, *runs)
    finally:
        for host in pool.hosts.values():
            host.docker("network", "rm", "left-of-a-gang", code=None)
            host.docker("network", "rm", "of-somebody-else", code=None)


@pytest.mark.timeout(300)
def test_a_container_that_is_killed_begins_a_second_attempt_with_all_of_its_own(
    site: SupervisorProcess, pool: Hosts
) -> None:
    command = "echo attempt $JOBSCRIBE_ATTEMPT at $PAI_CONTAINER_HOST_IP; if [ $JOBSCRIBE_ATTEMPT = 1 ]; then exec sleep 600; fi"
    command += "; while [ ! -e ../../go ]; do sleep 0.05; done"
    run = gang(role("main", command, tasks=2), retry={"count": 0, "platform": 1}, graceSecs=1.0)
    site.submit(run)
    run_all(site, run)
    host, before = host_of(site, run), there(pool, run)
    victim = next(t for t in tasks(site, run) if t["index"] == 1)
    (name,) = pool.hosts[host].containers(f"jobscribe.token={victim['token']}")
    until(lambda: all(output(site, run, "main", i) for i in (0, 1)), "both have printed", PATIENT)
    pool.hosts[host].docker("kill", name)
    until(
        lambda: (
            site.status(run)["attempt"] == 2 and site.status(run)["roles"]["main"]["running"] == 2
        ),
        "the second attempt runs",
        PATIENT,
    )
    after = [
        name for names in there(pool, run, "jobscribe.part=network").values() for name in names
    ]
    assert len(after) == 1 and after[0] not in before[host], "a network of its own"
    let_go(site, run)
    over = site.wait(run, PATIENT)
    assert (over["state"], over["attempt"]) == ("completed", 2), over
    one, two = tasks(site, run, 1), tasks(site, run, 2)
    assert (
        [t["state"] for t in one] == ["stopped", "failed"]
        and one[1]["exit"]["signal"] == 9
        and one[1]["exit"]["source"] == "engine"
    ), one
    assert {t["token"] for t in one} & {t["token"] for t in two} == set()
    lines = [[output(site, run, "main", i, attempt=n) for i in (0, 1)] for n in (1, 2)]
    assert all(
        text.startswith(f"attempt {n} at 10.") for n, texts in enumerate(lines, 1) for text in texts
    ), lines
    assert len(before[host]) == 3, "two containers and a network"
    assert (
        "attempt 1 ended (signal) and is retried: the platform caused this failure"
        in types(site, "job", "why", jid_of(run))[0]
    )
    gone(pool, run)


def kept(command: str) -> dict[str, Any]:
    """Submit a task that fails and is held for debugging."""
    return gang(role("main", command, image=BUSYBOX), debugSecs=600.0)


def shell_containers(pool: Hosts, run: dict[str, Any]) -> list[str]:
    labels = ("jobscribe.part=shell", f"jobscribe.jid={jid_of(run)}")
    return [name for host in pool.hosts.values() for name in host.containers(*labels)]


def enter_held(
    site: SupervisorProcess, pool: Hosts, owner: Client, run: dict[str, Any]
) -> ShellUser:
    """Enter a task whose process has ended."""
    until(lambda: site.status(run)["queueState"] == "debug_hold", "it is kept", PATIENT)
    shell = ShellUser(owner, jid_of(run))
    shell.type("ls ../../runs; echo $JOBSCRIBE_ATTEMPT:$?\n")
    shell.until("1:0")
    assert len(shell_containers(pool, run)) == 1
    return shell


@pytest.mark.timeout(300)
def test_what_failed_is_kept_in_its_container_until_it_is_released(
    site: SupervisorProcess, pool: Hosts
) -> None:
    """Its owner enters it while it runs, and when its process has ended."""
    waits = "while [ ! -e ../../go ]; do sleep 0.1; done"
    run = kept(f"echo here; touch ../../runs; {waits}; exit 3")
    site.submit(run)
    jid = jid_of(run)
    run_all(site, run)
    with client_of(site, run["uid"]) as owner:
        shell = ShellUser(owner, jid, rows=31, cols=101)
        shell.type("until [ \"$(stty size)\" = '31 101' ]; do sleep 0.1; done; pwd; tty\n")
        shell.until(str(site.status(run)["runDir"]))
        shell.until("/dev/pts/")
        shell.type("sh -c \"echo sl''eeps; exec sleep 1000\"\n")
        shell.until("sleeps")
        shell.type("\x03echo st''ill; exit 7\n")
        shell.until("still")
        assert shell.end()["code"] == 7
        left = ShellUser(owner, jid)
        left.type("trap '' HUP; echo re''ady\n")
        left.until("ready")
        left.use(close=True)
        ended = left.end()
        assert ended["code"] == 128 + signal.SIGKILL, ended["detail"]
        check_stranger(site, "Stranger", jid, jid.replace(run["uid"], "NobodyXX"))

        let_go(site, run)
        shell = enter_held(site, pool, owner, run)
        ((host, names),) = there(pool, run, "jobscribe.part=task").items()
        assert pool.hosts[host].inspect(names[-1])["State"]["Status"] == "exited", names
        shell.type("exit 4\n")
        assert shell.end()["code"] == 4
        until(lambda: not shell_containers(pool, run), "the shell's container is gone", PATIENT)
        shell = enter_held(site, pool, owner, run)
        assert "job release" in "".join(types(site, "job", "status", jid))
        types(site, "job", "release", jid)
        shell.end()
    over = site.wait(run, PATIENT)
    assert (over["state"], over["exit"]["code"]) == ("error", 3), over
    gone(pool, run)
    assert output(site, run, "main") == "here\n", "its evidence stays"


@pytest.mark.timeout(300)
def test_a_task_in_a_container_is_inspected(
    site: SupervisorProcess, pool: Hosts, tmp_path: Path
) -> None:
    """By a py-spy of the job. The kernel refuses one process, because the container has no
    CAP_SYS_PTRACE. When the container ends with its task, the recorded slices are kept.
    """
    run = gang(role("main", COMMAND, image=BASE))
    site.submit(run)
    run_all(site, run)
    folder = Path(site.status(run)["runDir"])
    give_pyspy(folder)
    until(lambda: output(site, run, "main") == "begun\n", "it computes", PATIENT)
    out, _ = types(site, "debug", "stack", jid_of(run), "--json")
    pythons = [p for p in json.loads(out)["processes"] if p["python"]]
    read = [p for p in pythons if p["method"] == "py-spy"]
    assert "computes" in [f["function"] for t in read[0]["threads"] for f in t["frames"]], pythons
    refused_ = next(p for p in pythons if p["method"] is None)
    reasons = {f["method"]: f["reason"] for f in refused_["failed"]}
    assert "CAP_SYS_PTRACE" in reasons["py-spy"], reasons

    file = tmp_path / "profile"
    words_ = ("profile", "record", jid_of(run), "--seconds", "600", "--format", "raw")
    recording = subprocess.Popen(
        words(site, *words_, "--output", str(file)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        recorders = Recorders(folder / "py-spy")
        until(lambda: recorders() > 1, "a second slice", PATIENT)
        let_go(site, run)
        _, said = recording.communicate(timeout=100)
    finally:
        recording.kill()
        recording.wait()
    assert recording.returncode == 0 and "the task ended" in said, said
    assert ";computes (" in file.read_text()
    over = site.wait(run, PATIENT)
    assert (over["state"], over["exit"]["code"]) == ("error", 3), over
    gone(pool, run)


@pytest.mark.timeout(300)
def test_a_shell_in_a_failed_task_has_its_network_and_ends_with_the_supervisor(
    site: SupervisorProcess, pool: Hosts
) -> None:
    """While another task runs, it has the address of the failed one and reaches the other."""
    serves = "while :; do echo hello | busybox nc -l -p $PAI_CONTAINER_HOST_PORT; done"
    run = gang(
        role("main", "touch ../../runs; exit 3", image=BUSYBOX),
        role("peer", serves, image=BUSYBOX),
        debugSecs=600.0,
    )
    site.submit(run)
    with client_of(site, run["uid"]) as owner:
        shell = enter_held(site, pool, owner, run)
        shell.type("busybox nc $PAI_HOST_IP_peer_0 $PAI_peer_0_http_PORT </dev/null; echo its $?\n")
        shell.until("hello")
        shell.type(
            'busybox ip addr | busybox grep -c "inet $PAI_CONTAINER_HOST_IP/"; echo own $?\n'
        )
        shell.until("own 0")
        site.stop(signal.SIGKILL)
        until(lambda: not shell_containers(pool, run), "the shell's container is gone", PATIENT)
        site.start()
    with client_of(site, run["uid"]) as owner:
        enter_held(site, pool, owner, run).use(close=True)
    until(lambda: not shell_containers(pool, run), "the shell's container is gone", PATIENT)
    site.cancel(run)
    site.wait(run, PATIENT)


@pytest.mark.timeout(300)
def test_what_no_host_has_is_refused_and_a_cancel_takes_everything_away(
    site: SupervisorProcess, pool: Hosts
) -> None:
    wide = gang(role("wide", "true", tasks=6))
    sentence = refused(site, wide, 400, "resourceExceeded")
    assert (
        "its tasks share a network of one host, and no host has room for all of them, even if nothing else runs"
        in sentence
    ), sentence
    assert (
        "role wide asks for 6 cores (6 x 1)" in sentence
        and "a has 4 cores" in sentence
        and "b has 4 cores" in sentence
    ), sentence
    run = gang(role("main", "trap '' TERM; touch deaf; sleep 600", tasks=3), graceSecs=0.5)
    site.submit(run)
    run_all(site, run)
    where = Path(site.status(run)["runDir"])
    until(lambda: len(list(where.glob("*/*/deaf"))) == 3, "all ignore SIGTERM")
    types(site, "job", "cancel", jid_of(run))
    over = site.wait(run, PATIENT)
    assert (over["state"], over["roles"]["main"]["stopped"]) == ("canceled", 3), over
    assert {(t["exit"]["signal"], t["exit"]["stopReason"]) for t in tasks(site, run)} == {
        (9, "cancel")
    }, tasks(site, run)
    gone(pool, run)


# ---- images


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    made = Registry(tmp_path / "registry")
    yield made
    made.close()


@pytest.fixture
def deaf() -> Iterator[str]:
    """A registry that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        yield f"127.0.0.1:{listens.getsockname()[1]}"


@pytest.mark.timeout(300)
def test_images_come_from_a_registry_and_each_fault_is_told_to_who_asked(
    make_docker_site: Callable[..., SupervisorProcess],
    pool: Hosts,
    registry: Registry,
    deaf: str,
    tmp_path: Path,
) -> None:
    host = pool.hosts["a"]
    digest = pushed(host, registry, BASE, "ours:7")
    wrong = registry.host.replace("127.0.0.1", "localhost")
    file = tmp_path / "registries.json"
    registry.credentials(file)
    known = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            {**known, wrong: {"username": "puller", "password": "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"}}
        )
    )
    site = make_docker_site(
        "slots.op_run=12",
        pool={"hosts": ["a"], "pull": "missing", "registries": str(file), "pullSecs": 5},
    )
    good = [
        gang(role("main", "echo it runs", image=f"{registry.host}/ours{which}"))
        for which in (":7", f"@{digest}")
    ]
    faults = {
        f"{registry.host}/ours:8": ("imageMissing", "has no image"),
        f"{registry.host}/theirs:1": ("imageMissing", "has no image"),
        f"{wrong}/ours:7": ("pullDenied", "refuses image"),
        "127.0.0.1:1/ours:7": ("registryUnreachable", "cannot reach registry"),
        f"{deaf}/ours:7": ("pullTimeout", "in 5 s"),
        NOSHELL: ("noShell", "/bin/sh"),
    }
    bad = {
        image: gang(role("main", "true", image=image), retry={"platform": 0}) for image in faults
    }
    for run in (*good, *bad.values()):
        site.submit(run)
    for run in good:
        over = site.wait(run, PATIENT)
        assert over["state"] == "completed", (over, tasks(site, run))
        assert output(site, run, "main") == "it runs\n"
    for image, (fault, words_) in faults.items():
        run = bad[image]
        over = site.wait(run, PATIENT)
        assert (over["state"], over["reason"], over["exit"]["fault"]) == (
            "error",
            "startFailed",
            fault,
        ), (image, over)
        assert words_ in over["exit"]["detail"], over
        why = types(site, "job", "why", jid_of(run))[0]
        assert words_ in why and fault in why and image in why and "on a" in why, why
        assert "docker pull" in why if fault != "noShell" else "/bin/sh" in why, why
        assert "k9TqCanary" not in why + site.log()
    said = types(site, "job", "wait", jid_of(bad[f"{wrong}/ours:7"]), code=125)
    assert "refuses image" in said[1], said
    gone(pool, *good, *bad.values())
    host.docker(
        "rmi", "--force", f"{registry.host}/ours:7", f"{registry.host}/ours@{digest}", code=None
    )


def pushed(host: Any, registry: Registry, image: str, name: str) -> str:
    """Push the image and return its digest. The host itself does not keep it under that name."""
    import docker

    client = docker.APIClient(f"unix://{host.sock}", version="1.41")
    try:
        return registry.push(client, image, name)
    finally:
        client.close()
