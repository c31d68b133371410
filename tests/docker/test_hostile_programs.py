"""Hostile code in an agent's container, and in a task container with an image that the user chose:
every attack is contained.

The task image has root as its user, setuid programs, volumes, and labels like jobscribe's. The
limits are checked as the daemon reports them.
"""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from docker_hosts import BASE, UNIX_USERS, Host, Hosts, Sites, sites
from hostile_programs import FORKS, KILLS, MEMORY, STOPS, TELLS_THE_KEEPER, python, zoo
from supervisor_process import SupervisorProcess, spec, until

pytestmark = pytest.mark.timeout(300)
HOSTILE = "jobscribe-test/hostile:1"
_DOCKERFILE = f"""
FROM {BASE}
USER 0
RUN cp "$(command -v python3)" /rooted && chmod 6755 /rooted
VOLUME /data /tmp/below
ENV HOSTILE=1
LABEL jobscribe.deployment=other jobscribe.part=agent jobscribe.key=docker.sequential.Other001@a jobscribe.agent=liar jobscribe.uid=Other001
HEALTHCHECK --interval=1s CMD touch /data/health
ENTRYPOINT ["/rooted", "-c", "print('not what was asked for')"]
"""
#: An errno that proves isolation. (EACCES can also come from file modes.)
WALLS = frozenset(
    (
        "EPERM",
        "EACCES",
        "EROFS",
        "ENOENT",
        "ENOSYS",
        "EXDEV",
        "ENOTDIR",
        "empty",
        "as oneself",
        "none",
        "TimeoutError",
        "ENETUNREACH",
        "EHOSTUNREACH",
        "EADDRNOTAVAIL",
        "ECONNREFUSED",
        "ValueError('not allowed to raise maximum limit')",
    )
)
UIDS = {"agent": "ZooAgent", "task": "ZooTask0", "other": "ZooOther"}


def as_role(command: list[str], uid: str, image: str = BASE, **fields: Any) -> dict[str, Any]:
    run = spec([], uid)
    return run | {
        "command": [],
        "roles": [{"name": "main", "command": command, "memoryMb": 64, "image": image, **fields}],
        "retry": {"count": 0, "platform": 0},
    }


@pytest.fixture(scope="module")
def zoo_host(pool: Hosts) -> Iterator[Host]:
    host = pool.hosts["a"]
    host.docker("build", "-t", HOSTILE, "-", given=_DOCKERFILE)
    yield host
    host.docker("rmi", "-f", HOSTILE)


@pytest.fixture(scope="module")
def zoo_sites(pool: Hosts, zoo_host: Host) -> Iterator[Sites]:
    with sites(pool) as made:
        yield made


@pytest.fixture(scope="module")
def site(zoo_sites: Sites) -> SupervisorProcess:
    pool = {
        "hosts": ["a"],
        "host": {"cpu": 16, "sequential": 8, "agentsMb": 4096},
        "sequential": {"memoryMb": 128, "pids": 64, "shmMb": 16, "tmpMb": 8, "nofile": 1024},
        "tasks": {"pids": 64, "tmpMb": 8, "nofile": 1024},
    }
    return zoo_sites.make(pool=pool).start()


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """Listen on every address of this host, as a target for containers; return the port."""
    server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)

    def serve() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)


@pytest.fixture(scope="module")
def said(site: SupervisorProcess, zoo_host: Host, listener: int) -> dict[str, dict[str, Any]]:
    """Results of all attacks, and the daemon's data about the containers at that time, by
    placement.
    """
    serve = "import http.server as h; print('up', flush=True); h.HTTPServer(('', 30000), h.SimpleHTTPRequestHandler).serve_forever()"
    other = as_role(python(serve), UIDS["other"])
    site.submit(other)
    until(lambda: b"up" in site.output(other).body, "another's gang serves")
    (theirs,) = zoo_host.containers(f"jobscribe.uid={UIDS['other']}", running=True)
    (network,) = zoo_host.inspect(theirs)["NetworkSettings"]["Networks"].values()
    canary = site.root / "user" / UIDS["other"] / "canary"
    canary.write_text("canary")
    agents = int(
        json.loads((site.root / "agents.json").read_text())["agentsUrl"].split(":")[2].split("/")[0]
    )
    ports = [listener, int(site.url.rsplit(":", 1)[1]), agents, zoo_host.port]
    here = subprocess.run(
        ["hostname", "-I"], capture_output=True, text=True, check=True
    ).stdout.split()
    gateway = network["IPAddress"].rsplit(".", 1)[0] + ".1"
    told = {
        "users": str(site.root / "user"),
        "agents": str(site.root / "agent"),
        "setuid": ["/rooted"],
        "paths": [
            str(canary),
            str(site.root / "secret"),
            str(site.root / "db"),
            str(site.root / "client.json"),
            str(site.root / "agent" / f"docker.container.{UIDS['other']}@a"),
            str(zoo_host.sock),
            str(zoo_host.tls / "key.pem"),
        ],
        "addresses": [[a, p] for a in ["127.0.0.1", gateway, *here] for p in ports]
        + [[network["IPAddress"], 30000], ["169.254.169.254", 80], ["169.254.169.254", listener]],
    }
    for a in here:  # processes outside a container can reach it
        family = socket.AF_INET6 if ":" in a else socket.AF_INET
        with socket.socket(family) as s:
            s.settimeout(5)
            s.connect((a, listener))
    runs, out = {}, {}
    for kind in ("agent", "task"):
        command = [
            "/bin/sh",
            "-c",
            '"$@"; exec sleep 600',
            "sh",
            *zoo(own=str(site.root / "user" / UIDS[kind]), **told),
        ]
        runs[kind] = (
            spec(command, UIDS[kind]) if kind == "agent" else as_role(command, UIDS[kind], HOSTILE)
        )
        site.submit(runs[kind])
    for kind, run in runs.items():
        until(
            lambda run=run: site.output(run).body.endswith(b"}\n"),
            f"{kind}: it has tried everything",
            120,
        )  # type: ignore[misc]
        out[kind] = {
            "tried": json.loads(site.output(run).body),
            "addresses": {f"connect {a} {p}" for a, p in told["addresses"]},
        }
        (name,) = zoo_host.containers(
            f"jobscribe.uid={UIDS[kind]}", f"jobscribe.part={kind}", running=True
        )
        out[kind]["inspected"] = zoo_host.inspect(name)
        site.cancel(run)
    (relay,) = zoo_host.containers("jobscribe.part=relay", running=True)
    out["relay"] = {"inspected": zoo_host.inspect(relay)}
    site.cancel(other)
    for run in (*runs.values(), other):
        site.wait(run)
    return out


@pytest.mark.parametrize("kind", ["agent", "task"])
def test_nothing_that_hostile_code_tries_succeeds(
    site: SupervisorProcess, said: dict[str, dict[str, Any]], kind: str
) -> None:
    tried = said[kind]["tried"]
    words = {k: v for k, v in tried.items() if isinstance(v, str)}
    assert {k: v for k, v in words.items() if v not in WALLS} == {}
    # the number of addresses depends on other tests on this host
    addresses = {k for k in words if k.startswith("connect ")}
    assert (
        addresses == said[kind]["addresses"]
        and len(addresses) >= 11
        and len(words) - len(addresses) > 90
    ), "it tried what it should"
    if kind == "agent":
        assert (
            words["agent mem"] == words["keeper mem"] == words["agent environ"] == "EACCES"
            and words["agent ptrace"] == words["agent a descriptor of it"] == "EPERM"
        )
    status = tried["status"]
    assert (
        {v for k, v in status.items() if k.startswith("Cap")} == {"0" * 16}
        and status["NoNewPrivs"] == "1"
        and status["Seccomp"] == "2"
    )
    number = tried["me"][0]
    assert UNIX_USERS[0] <= number <= UNIX_USERS[1] and set(
        status["Uid"].split() + status["Gid"].split() + status["Groups"].split()
    ) == {str(number)}
    assert tried["users"] == [UIDS[kind]] and len(tried["agents"]) == 1
    assert set(tried["devices"]) <= {"full", "null", "random", "tty", "urandom", "zero"}
    assert tried["interfaces"] == (["lo"] if kind == "agent" else ["eth0", "lo"])


@pytest.mark.parametrize("kind", ["agent", "task"])
def test_what_is_mounted_is_ones_own(
    site: SupervisorProcess, said: dict[str, dict[str, Any]], kind: str
) -> None:
    root, tried = str(site.root), said[kind]["tried"]
    points = {point: (fs, mode) for point, fs, mode in tried["mounts"]}
    own = [p for p in points if p.startswith(root)]
    assert sorted(own)[1:] == [f"{root}/user/{UIDS[kind]}"] and sorted(own)[0].startswith(
        f"{root}/agent/docker."
    )
    assert UIDS[kind] in sorted(own)[0]
    assert points["/tmp"][0] == "tmpfs"
    rest = (
        set(points) - set(own) - {"/tmp", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
    )
    if kind == "agent":
        assert rest == {"/run/jobscribe"} and points["/run/jobscribe"][1] == "ro"
    else:
        assert rest == {"/data", "/tmp/below"} and {points[p][0] for p in rest} == {"tmpfs"}, (
            "volumes of an image are not on the host's disk"
        )


@pytest.mark.parametrize("kind", ["agent", "task", "relay"])
def test_the_daemon_says_what_holds_it(said: dict[str, dict[str, Any]], kind: str) -> None:
    config, host = said[kind]["inspected"]["Config"], said[kind]["inspected"]["HostConfig"]
    assert host["CapDrop"] == ["ALL"] and not host["CapAdd"] and not host["Privileged"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"], (
        "and no seccomp profile but the daemon's own"
    )
    assert (
        host["ReadonlyRootfs"]
        and not host["Init"]
        and host["IpcMode"] == "private"
        and host["CgroupnsMode"] == "private"
    )
    assert (
        host["PidMode"] == host["UTSMode"] == host["UsernsMode"] == ""
        and not host["Devices"]
        and not host["DeviceRequests"]
        and not host["Binds"]
    )
    assert (
        host["Memory"] == host["MemorySwap"] > 0
        and host["OomScoreAdj"] >= 0
        and not host["OomKillDisable"]
    )
    assert (
        {u["Name"]: (u["Soft"], u["Hard"]) for u in host["Ulimits"]}["core"][0] == 0
        and not host["PortBindings"]
        and not host["PublishAllPorts"]
    )
    limits = (
        host["PidsLimit"],
        host["Memory"] >> 20,
        host["NanoCpus"],
        host["ShmSize"] >> 20,
        [u["Hard"] for u in host["Ulimits"] if u["Name"] == "nofile"],
    )
    assert (
        limits
        == {
            "agent": (64, 128, 10**9, 16, [1024]),
            "task": (64, 64, 10**9, 64, [1024]),
            "relay": (64, 256, 10**9, 1, [4096]),
        }[kind]
    )
    assert "size=8m" in host["Tmpfs"]["/tmp"] or kind == "relay"
    assert all(w in host["Tmpfs"]["/tmp"].split(",") for w in ("nosuid", "nodev"))
    assert (host["RestartPolicy"]["Name"], host["NetworkMode"]) in {
        "agent": [("no", "none")],
        "task": [("no", host["NetworkMode"])],
        "relay": [("unless-stopped", "host")],
    }[kind]
    if kind == "task":
        assert host["NetworkMode"].startswith("srj-n-") and host["Dns"] == ["127.0.0.1"], (
            "no question of theirs leaves by the engine's own resolver"
        )
    mounts = {m["Destination"]: (m["Type"], m["RW"]) for m in said[kind]["inspected"]["Mounts"]}
    assert not [p for p in mounts if p.endswith(".sock")]
    assert (
        mounts.get("/run/jobscribe")
        == {"agent": ("volume", False), "task": None, "relay": ("volume", True)}[kind]
    )
    user = int(config["User"].split(":")[0])
    if kind == "relay":
        assert config["User"] == "65534:65534" and set(mounts) == {"/run/jobscribe"}
    else:
        assert UNIX_USERS[0] <= user <= UNIX_USERS[1] and config["User"] == f"{user}:{user}"
        others = [said[k]["inspected"]["Config"]["User"] for k in ("agent", "task") if k != kind]
        assert config["User"] not in others
    labels = config["Labels"]
    assert (
        labels["jobscribe.part"] == kind
        and labels["jobscribe.deployment"] != "other"
        and labels.get("jobscribe.agent") != "liar"
    )
    assert (config.get("Healthcheck") or {}).get("Test") in (["NONE"], None)


def test_a_job_that_attacks_its_own_agent_harms_itself_alone(
    site: SupervisorProcess, zoo_host: Host
) -> None:
    """A hostile job forks, takes memory and signals every process. Meanwhile another user's job runs, cancels
    work, and the next run of each user works.
    """
    neighbour = spec(["sleep", "600"], "ZooQuiet")
    site.submit(neighbour)
    site.running(neighbour)
    bombs = {
        "forks": FORKS,
        "memory": MEMORY,
        "kills": KILLS,
        "keeper": TELLS_THE_KEEPER,
        "stops": STOPS,
    }
    runs = {
        name: spec(python(text), f"ZooB{n:04d}") for n, (name, text) in enumerate(bombs.items())
    }
    for run in runs.values():
        site.submit(run)
    for name in ("forks", "stops"):
        until(lambda name=name: site.output(runs[name]).body, f"{name} is at work")
        site.running(runs[name])
    pids = int(
        zoo_host.docker(
            "exec", f"srj-s-{runs['stops']['uid']}", "cat", "/sys/fs/cgroup/pids/pids.max"
        )
        if os.path.exists("/sys/fs/cgroup/pids")
        else 64
    )
    assert pids == 64
    for name in ("forks", "stops"):
        site.cancel(runs[name])
    ends = {name: site.wait(run, 60) for name, run in runs.items()}
    assert {n: e["state"] for n, e in ends.items()} == {
        "forks": "canceled",
        "stops": "canceled",
        "memory": "error",
        "kills": "error",
        "keeper": ends["keeper"]["state"],
    }
    assert ends["memory"]["exit"]["outOfMemory"] and ends["kills"]["exit"]["signal"] == 9
    assert (
        ends["keeper"]["state"] in ("error", "canceled")
        and ends["keeper"]["exit"]["stopReason"] == "shutdown"
    ), ends["keeper"]
    again = [spec(["true"], run["uid"]) for run in runs.values()]
    for run in again:
        site.submit(run)
    assert [site.wait(run, 60)["state"] for run in again] == ["completed"] * len(again)
    assert site.status(neighbour)["state"] == "running" and site.status(neighbour)["known"]
    site.cancel(neighbour)
    assert site.wait(neighbour)["state"] == "canceled"
