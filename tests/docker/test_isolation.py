"""Traps that users' code leaves for others: evidence replaced by other file types, a flooded relay,
full disks. Also two deployments on one host.

A supervisor that runs as root reads and writes in folders that users may change at any moment.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from docker_hosts import BASE, UNIX_USERS, Host, Hosts, Sites, sites
from hostile_programs import FILLS, LINK, python
from supervisor_process import SupervisorProcess, shell, spec, until

pytestmark = pytest.mark.timeout(300)
HEAD = TAIL = 65536
NAMES = "exit.json stop stop.json survivors limit signal report.jsonl termination-message stdout.log stderr.log stdout.log.dropped"
#: Shell code that spoils the evidence, run in its folder; the job then exits with code 3.
SPOILS = {
    "folders in their places": f"rm -f {NAMES}; mkdir {NAMES}",
    "links in their places": f"rm -f {NAMES}; for n in {NAMES} exit-code; do ln -s $SECRET $n; done",
    "pipes in their places": f"rm -f {NAMES}; mkfifo {NAMES}",
    "pipes where it is written next": (
        "python3 -c \"import os; [os.mkfifo(f'{n}.{p}.new') for n in ('stdout.log.dropped', 'exit.json') for p in (1, *range($PID - 5, $PID + 5))]\"; "
        "head -c 1000000 /dev/zero"
    ),
    "another's note of what was dropped": 'echo \'{"from": 0, "to": "many"}\' >stdout.log.dropped',
    "a note of more than there is": 'echo \'{"from": 0, "to": 1000000000000000000000000000000}\' >stdout.log.dropped',
    "a note without an end": "head -c 500000 /dev/zero | tr '\\0' '[' >stdout.log.dropped; cp stdout.log.dropped report.jsonl; echo >>report.jsonl",
    "names that are long, and many": "python3 -c \"import os; [open(str(n) + 'x' * 240, 'w') for n in range(5000)]\"",
    "no rights": "chmod 000 *; chmod 000 .",
}
SHARE = (
    "folders in their places",
    "pipes where it is written next",
    "another's note of what was dropped",
    "a note without an end",
    "no rights",
)


@pytest.fixture(scope="module")
def own_sites(pool: Hosts) -> Iterator[Sites]:
    with sites(pool) as made:
        yield made


@pytest.fixture(scope="module")
def site(own_sites: Sites) -> SupervisorProcess:
    return own_sites.make(
        f"output.head_bytes={HEAD}",
        f"output.tail_bytes={TAIL}",
        pool={
            "hosts": ["a"],
            "host": {"cpu": 40, "sequential": 8, "agentsMb": 4096},
            "sequential": {"memoryMb": 256, "runs": 8, "shmMb": 4, "tmpMb": 8},
            "tasks": {"tmpMb": 8},
        },
    ).start()


def _some(kind: str) -> list[str]:
    """Return the cases to run; without SOAK=1 only some have a task container."""
    return [n for n in SPOILS if kind == "agent" or os.environ.get("SOAK") == "1" or n in SHARE]


def spoils(site: SupervisorProcess, name: str, uid: str, then: str) -> list[str]:
    secret = site.root / "secret" / "server"
    script = (
        f'cd "${{JOBSCRIBE_REPORT%/*}}"; SECRET={secret}; PID={site.pid}; {SPOILS[name]}\n{then}'
    )
    return ["/bin/sh", "-c", script]


def as_role(command: list[str], uid: str, **fields: Any) -> dict[str, Any]:
    role = {"name": "main", "command": command, "memoryMb": 64, "image": BASE, **fields}
    return {k: v for k, v in spec([], uid).items() if k != "command"} | {
        "roles": [role],
        "retry": {"count": 0, "platform": 0},
    }


@pytest.mark.parametrize("kind", ["agent", "task"])
def test_spoiled_evidence_holds_nobody_up_and_leads_nowhere(
    site: SupervisorProcess, kind: str
) -> None:
    """The job ends with its code, or when it is canceled. No file outside its folder is read,
    written or given away.
    """
    uid = "SpoilAgt" if kind == "agent" else "SpoilTsk"
    secret = site.root / "secret" / "server"
    before = secret.read_bytes(), secret.stat()
    make = (lambda c: spec(c, uid)) if kind == "agent" else (lambda c: as_role(c, uid))
    ends = {name: make(spoils(site, name, uid, "exit 3")) for name in _some(kind)}
    stays = {
        name: make(
            spoils(site, name, uid, "trap '' TERM; echo there >&2; while :; do sleep 1; done")
        )
        for name in ("folders in their places", "no rights")
    }
    for run in (*ends.values(), *stays.values()):
        site.submit(run)
    got = {name: site.wait(run, 60) for name, run in ends.items()}
    codes = {name: said["exit"]["code"] for name, said in got.items()}
    assert codes == dict.fromkeys(ends, 3), codes
    for run in stays.values():
        site.running(run)
        site.cancel(run)
    for run in stays.values():
        assert site.wait(run, 60)["state"] == "canceled"
    after = secret.stat()
    assert (secret.read_bytes(), after.st_uid, after.st_mode, after.st_ino, after.st_nlink) == (
        before[0],
        0,
        before[1].st_mode,
        before[1].st_ino,
        1,
    )
    if kind == "task":  # jobscribe's own file replaces the one that the job left there
        (note,) = (site.root / "agent").glob(
            f"*/run/*{ends['folders in their places']['simulationId']}*/exit.json"
        )
        assert json.loads(note.read_text())["code"] == 3
    # readers get only regular files of the run, or nothing
    for name, run in ends.items():
        for stream in ("stdout", "stderr"):
            answer = site.ask(
                "POST",
                "/api/job-log",
                json.dumps(
                    {
                        "uid": uid,
                        "computeJid": f"{uid}-{run['simulationId']}-command",
                        "stream": stream,
                    }
                ).encode(),
            )
            assert answer.code in (200, 404) and before[0] not in answer.body, (name, answer)
    for path in (site.root / "user").rglob("*"):
        status = path.lstat()
        assert status.st_uid >= UNIX_USERS[0], (path, status.st_uid)
    assert site.finished(make(["true"]), 60)["state"] == "completed"


def test_what_is_bounded_gets_full_and_nothing_else(site: SupervisorProcess) -> None:
    """/tmp, /dev/shm and stdout are bounded. The run directory is not: that is the task of a file
    system quota.
    """
    run_a, run_t = (
        spec(python(FILLS, "/tmp", "/dev/shm", "/"), "Filler00"),
        as_role(python(FILLS, "/tmp", "/dev/shm", "/"), "Filler00", shmMb=4),
    )
    loud = [shell("head -c 30000000 /dev/zero | tr '\\0' x; echo the end", "Filler00")]
    loud.append(as_role(loud[0]["command"], "Filler00"))
    for run in (run_a, run_t, *loud):
        site.submit(run)
    for run in (run_a, run_t):
        assert site.wait(run, 60)["state"] == "completed", site.status(run)
        said = json.loads(site.output(run).body)
        assert said.pop("/") == [0, "Read-only file system"]
        assert said == {
            "/tmp": [8, "No space left on device"],
            "/dev/shm": [4, "No space left on device"],
        }, said
    for run in loud:
        end = site.wait(run, 60)
        assert (
            end["exit"]["droppedBytes"] > 29_000_000 and end["exit"]["stdoutBytes"] == 30_000_008
        ), end["exit"]
    logs = [p for p in (site.root / "agent").rglob("stdout.log") if p.stat().st_size > 10**7]
    assert len(logs) == 2 and all(p.stat().st_blocks * 512 < 4 * (HEAD + TAIL) for p in logs)


def test_the_relay_gives_everybody_a_share_and_the_listener_believes_nobody(
    site: SupervisorProcess,
) -> None:
    """One user floods it with connections, garbage and half requests, and tries handshakes as other
    users' agents. Other users are not affected.
    """
    quiet = shell("sleep 600", "LinkGood")
    site.submit(quiet)
    site.running(quiet)
    keys = [f"docker.sequential.{uid}@a" for uid in ("LinkGood", "LinkEvil")] + [
        "docker.container.LinkGood@a",
        "x" * 5000,
    ]
    flood = spec(python(LINK, *keys), "LinkEvil")
    site.submit(flood)
    while not (said := site.status(flood, waitSecs=1))["over"]:
        assert site.finished(spec(["true"], "LinkGood"), 20)["state"] == "completed", (
            "while the flood goes on"
        )
    assert said["state"] == "completed", site.output(flood, "stderr").body
    counts, answers = json.loads(site.output(flood).body)
    assert counts.get("held", 0) <= 32 and sum(counts.values()) == 300, counts
    refused = (
        "HTTP/1.1 401 Unauthorized",
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 404 Not Found",
        "closed",
    )
    assert {k[:60]: v for k, v in answers.items() if v not in refused} == {}
    assert {v for k, v in answers.items() if k.startswith("docker.")} == {
        "HTTP/1.1 401 Unauthorized"
    }
    assert site.status(quiet)["state"] == "running" and site.status(quiet)["known"]
    site.cancel(quiet)
    assert site.wait(quiet)["state"] == "canceled"


def test_two_deployments_on_one_host_do_not_touch_each_other(
    docker_sites: Sites, host_a: Host
) -> None:
    """The same user in both, with agents, tasks, restarts, leftovers and idle agents: each
    deployment sees and removes only its own containers.
    """
    pools: list[dict[str, Any]] = [
        {"agentIdleSecs": 600},
        {"agentIdleSecs": 1, "taskSubnets": "10.224.0.0/16"},
    ]
    one, two = (docker_sites.make(pool={"hosts": ["a"], **pool}).start() for pool in pools)
    runs: dict[SupervisorProcess, list[dict[str, Any]]] = {}
    for site in (one, two):
        runs[site] = [shell("sleep 600", "SameUser"), as_role(["sleep", "600"], "SameUser")]
        for run in runs[site]:
            site.submit(run)
            site.running(run, 60)
    names = set(host_a.containers("jobscribe.uid=SameUser", "jobscribe.part=agent", running=True))
    assert (
        len(names) == 2
        and "srj-s-SameUser" in names
        and all(n.startswith("srj-s-SameUser") for n in names)
    )
    of = {site: _deployment(host_a, site) for site in (one, two)}
    mine = _all(host_a, of[one])
    assert len(mine) == 3, "agent, task, relay"
    stranger = host_a.docker("run", "-d", "--name", "srj-s-NotOurs1", BASE, "sleep", "600").strip()
    try:
        two.stop(9)
        host_a.docker("kill", next(n for n in _all(host_a, of[two]) if "-t-" in n))
        two.start()
        for run in runs[two]:
            two.cancel(run)
            two.wait(run, 60)
        until(
            lambda: not [n for n in _all(host_a, of[two]) if "relay" not in n],
            "its own idle agent is ended, and what is over is removed",
            60,
        )
        assert _all(host_a, of[one]) == mine, "by name and id"
        assert host_a.inspect(stranger)["State"]["Running"]
        assert [one.status(run)["state"] for run in runs[one]] == ["running"] * 2
        assert host_a.docker(
            "network", "ls", "-q", "--filter", f"label=jobscribe.deployment={of[one]}"
        ).split()
    finally:
        host_a.docker("rm", "-f", stranger)


def _all(host: Host, deployment: str) -> dict[str, str]:
    """Return names and ids of the deployment's containers."""
    lines = host.docker(
        "ps",
        "-a",
        "--no-trunc",
        "--format",
        "{{.Names}} {{.ID}}",
        "--filter",
        f"label=jobscribe.deployment={deployment}",
    ).splitlines()
    return dict(line.split() for line in lines)


def _deployment(host: Host, site: SupervisorProcess) -> str:
    return next(
        d for d, said in host.deployments().items() if any(str(site.place) in text for text in said)
    )
