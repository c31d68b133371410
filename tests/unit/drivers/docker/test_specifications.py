"""Container specifications, field by field: isolation, secrets, and the equivalent shell command."""

import csv
import json
import shlex
from typing import Any

import msgspec
import pytest

from jobscribe.drivers.docker.containers import names, specifications
from jobscribe.drivers.docker.containers.specifications import Creation
from jobscribe.protocol.clusters.container_pool import Limits, Pool, PoolHost, Volume
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.protocol.wire.messages import ContainerSpec

KEY = AgentKey("docker", "parallel", "User0001", "a")
TOKEN = Token("User0001-Simu0001-animation", 3, 1, "my_worker", 7)
EVIDENCE = "/srv/js/agent/docker.container.User0001@a/run/x"
HOST = PoolHost(name="a", address="tcp://10.0.0.1:2376", tls="/etc/js/tls/a", cpu=8, memory_mb=8192)
POOL = Pool(
    hosts=(HOST,),
    image="jobscribe:1",
    tasks=Limits(pids=300, tmp_mb=10, nofile=1000),
    volumes={
        "data": Volume(source="/srv/data", target="/data"),
        "scratch": Volume(source="/srv/scratch", target="/scratch", read_only=False),
    },
)
MIB = 2**20


def agent(**more: Any) -> Creation:
    given: dict[str, Any] = {
        "name": "srj-p-User0001",
        "image": "sha256:1",
        "command": ["keeper", "--root", "/srv/js", "--folder", "/srv/js/agent/k"],
        "labels": names.agent_labels("depl0001", KEY, "AbCd" * 8, 1700000000),
        "user": (100_007, 100_007),
        "limits": Limits(cpus=2, memory_mb=2048, shm_mb=32, tmp_mb=64, pids=99, nofile=777),
        "network": "none",
        "folder": "/srv/js/agent/k",
        "user_dir": "/srv/js/user/User0001",
        "links": "jobscribe-links-depl0001",
        "log_driver": "journald",
    }
    return specifications.agent_container(**{**given, **more})


def task(box: ContainerSpec | None = None, **more: Any) -> Creation:
    given: dict[str, Any] = {
        "name": "srj-t-1",
        "image": "sha256:2",
        "box": box or ContainerSpec(),
        "token": TOKEN,
        "labels": {"jobscribe.jid": TOKEN.jid},
        "user": (100_007, 100_007),
        "evidence": EVIDENCE,
        "user_dir": "/srv/js/user/User0001",
        "log_driver": "json-file",
    }
    return specifications.task_container(POOL, **{**given, **more})


def relay() -> Creation:
    return specifications.relay_container(
        name="jobscribe-relay-depl0001",
        image="sha256:1",
        settings={"url": "ws://s:1/agent", "connect": "s:1", "ca": None},
        labels=names.labels("depl0001", "relay"),
        network="host",
        links="jobscribe-links-depl0001",
        log_driver="local",
    )


def boxed(
    limits: dict[str, Any], mounts: list[dict[str, Any]], network: str, log: dict[str, Any]
) -> dict[str, Any]:
    """Return the complete fields that every container has. They are repeated here by hand, so a
    missing or extra field fails the test.
    """
    return {
        "AutoRemove": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "Init": False,
        "IpcMode": "private",
        "LogConfig": log,
        "Mounts": mounts,
        "NetworkMode": network,
        "OomKillDisable": False,
        "OomScoreAdj": 0,
        "Privileged": False,
        "PublishAllPorts": False,
        "ReadonlyRootfs": True,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "SecurityOpt": ["no-new-privileges:true"],
        **limits,
    }


def bind(path: str, target: str | None = None, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": path, "Target": target or path, "ReadOnly": read_only}


def test_an_agents_container() -> None:
    config = agent().config
    host = config.pop("HostConfig")
    assert config == {
        "Image": "sha256:1",
        "Cmd": ["keeper", "--root", "/srv/js", "--folder", "/srv/js/agent/k"],
        "Env": ["HOME=/srv/js/user/User0001"],
        "WorkingDir": "/",
        "User": "100007:100007",
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            "jobscribe.deployment": "depl0001",
            "jobscribe.part": "agent",
            "jobscribe.key": str(KEY),
            "jobscribe.uid": "User0001",
            "jobscribe.kind": "parallel",
            "jobscribe.agent": "AbCd",
            "jobscribe.started": "1700000000",
        },
    }
    assert host == boxed(
        {
            "Memory": 2048 * MIB,
            "MemorySwap": 2048 * MIB,
            "NanoCpus": 2_000_000_000,
            "PidsLimit": 99,
            "ShmSize": 32 * MIB,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,size=64m,mode=1777"},
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": -1},
                {"Name": "nofile", "Soft": 777, "Hard": 777},
            ],
        },
        [
            bind("/srv/js/agent/k"),
            bind("/srv/js/user/User0001"),
            {
                "Type": "volume",
                "Source": "jobscribe-links-depl0001",
                "Target": "/run/jobscribe",
                "ReadOnly": True,
            },
        ],
        "none",
        {
            "Type": "journald",
            "Config": {"labels": "jobscribe.jid,jobscribe.op,jobscribe.uid,jobscribe.agent"},
        },
    )


def test_a_tasks_container() -> None:
    box = ContainerSpec(
        cpu=3,
        memory_mb=500,
        shm_mb=16,
        gpus=("GPU-1", "GPU-2"),
        address="10.208.0.3",
        subnet="10.208.0.0/22",
        volumes=("scratch", "data", "data", "/srv/js/user/User0001/lib"),
    )
    config = task(box, network="srj-n-1").config
    host = config.pop("HostConfig")
    assert config == {
        "Image": "sha256:2",
        "Entrypoint": ["/bin/sh"],
        "Cmd": [f"{EVIDENCE}/wrapper.sh"],
        "Env": ["HOME=/srv/js/user/User0001", "USER=100007", "LOGNAME=100007"],
        "WorkingDir": "/",
        "Hostname": "my-worker-7",
        "User": "100007:100007",
        "AttachStdin": False,
        "OpenStdin": False,
        "StdinOnce": False,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {"jobscribe.jid": TOKEN.jid},
        "NetworkingConfig": {
            "EndpointsConfig": {
                "srj-n-1": {"IPAMConfig": {"IPv4Address": "10.208.0.3"}, "Aliases": ["my-worker-7"]}
            }
        },
    }
    assert host.pop("Dns") == ["127.0.0.1"]
    assert host.pop("DeviceRequests") == [
        {
            "Driver": "",
            "Count": 0,
            "DeviceIDs": ["GPU-1", "GPU-2"],
            "Capabilities": [["gpu"]],
            "Options": {},
        },
    ]
    assert host == boxed(
        {
            "Memory": 500 * MIB,
            "MemorySwap": 500 * MIB,
            "NanoCpus": 3_000_000_000,
            "PidsLimit": 300,
            "ShmSize": 16 * MIB,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,size=10m,mode=1777"},
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 1000, "Hard": 1000},
            ],
        },
        [
            bind(EVIDENCE),
            bind("/srv/js/user/User0001"),
            bind("/srv/scratch", "/scratch"),
            bind("/srv/data", "/data", read_only=True),
        ],
        "srj-n-1",
        {"Type": "json-file", "Config": {"max-size": "8m", "max-file": "2"}},
    )


def test_ssh_files_are_mounted_read_only() -> None:
    made = task(ssh="/srv/js/agent/k/ledger/x/ssh")
    folder = "/srv/js/agent/k/ledger/x/ssh"
    mounts = made.config["HostConfig"]["Mounts"]
    assert [m for m in mounts if m["Source"].startswith(folder)] == [
        bind(folder, "/run/jobscribe-ssh", read_only=True),
        bind(f"{folder}/ssh_config", "/etc/ssh/ssh_config", read_only=True),
        bind(f"{folder}/passwd", "/etc/passwd", read_only=True),
    ]
    without = {**made.config, "HostConfig": {**made.config["HostConfig"], "Mounts": []}}
    plain = task().config
    assert without == {**plain, "HostConfig": {**plain["HostConfig"], "Mounts": []}}


def test_a_task_alone_has_the_pools_network_and_no_gpu() -> None:
    config = task().config
    assert config["HostConfig"]["NetworkMode"] == "none" and "NetworkingConfig" not in config
    assert "DeviceRequests" not in config["HostConfig"]


def test_volumes_of_an_image_are_in_memory() -> None:
    """A path that already has our mount keeps it."""
    made = task(
        ContainerSpec(memory_mb=64),
        declared=("/data", "/data/", "/srv/js/user/User0001", "/tmp", "/tmp/below", EVIDENCE),
    )
    mounts = made.config["HostConfig"]["Mounts"]
    memory = {"Type": "tmpfs", "TmpfsOptions": {"SizeBytes": 10 * MIB, "Mode": 0o1777}}
    assert mounts == [
        bind(EVIDENCE),
        bind("/srv/js/user/User0001"),
        {**memory, "Target": "/data"},
        {**memory, "Target": "/tmp/below"},
    ]
    assert (
        f"--mount type=tmpfs,target=/data,tmpfs-size={10 * MIB},tmpfs-mode=1777"
        in specifications.docker_run(made, HOST)
    )


def test_a_relays_container() -> None:
    config = relay().config
    host = config.pop("HostConfig")
    assert config == {
        "Image": "sha256:1",
        "Cmd": ["relay", '{"ca":null,"connect":"s:1","url":"ws://s:1/agent"}'],
        "Env": [],
        "WorkingDir": "/",
        "Labels": {"jobscribe.deployment": "depl0001", "jobscribe.part": "relay"},
        "User": "65534:65534",
        "AttachStdin": False,
        "OpenStdin": False,
        "StdinOnce": False,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
    }
    assert host == boxed(
        {
            "Memory": 256 * MIB,
            "MemorySwap": 256 * MIB,
            "NanoCpus": 1_000_000_000,
            "PidsLimit": 64,
            "ShmSize": MIB,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,size=1m,mode=1777"},
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 4096, "Hard": 4096},
            ],
        },
        [
            {
                "Type": "volume",
                "Source": "jobscribe-links-depl0001",
                "Target": "/run/jobscribe",
                "ReadOnly": False,
            }
        ],
        "host",
        {"Type": "local", "Config": {"max-size": "8m", "max-file": "2"}},
    ) | {"RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}}


def test_the_same_relay_is_told_the_same_words() -> None:
    said = {"url": "ws://s:1/agent", "connect": "s:1", "ca": None}
    again = specifications.relay_container(
        name="n",
        image="i",
        settings=dict(reversed(said.items())),
        labels={},
        network="host",
        links="l",
        log_driver="local",
    )
    assert again.config["Cmd"] == relay().config["Cmd"]


def test_a_gangs_bridge_leads_nowhere_not_even_to_its_host() -> None:
    assert specifications.network_body(
        name="srj-n-1", subnet="10.208.0.0/22", labels={"a": "b"}
    ) == {
        "Name": "srj-n-1",
        "CheckDuplicate": True,
        "Driver": "bridge",
        "Internal": True,
        "EnableIPv6": False,
        "Attachable": False,
        "IPAM": {"Driver": "default", "Config": [{"Subnet": "10.208.0.0/22"}]},
        "Labels": {"a": "b"},
        "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }


@pytest.mark.parametrize(
    "volume",
    [
        "/etc",
        "/",
        "/srv/js/user/User0002",
        "/srv/js/user/User00012",
        "/srv/js/user/User0001/../User0002",
        "relative",
        "",
        "Data",
        "/srv/data",
        "/var/run/docker.sock",
    ],
)
def test_a_volume_outside_the_users_tree_is_refused(volume: str) -> None:
    with pytest.raises(Refusal) as refused:
        task(ContainerSpec(volumes=(volume,)))
    assert refused.value.code == "badRequest"
    assert refused.value.sentence == (
        f"volume {volume!r} is neither a volume of the pool (data, scratch) nor a path in the user's own directory"
    )


def test_paths_of_the_users_own_directory_are_there_anyway() -> None:
    for volume in (
        "/srv/js/user/User0001",
        "/srv/js/user/User0001/x/../y",
        "/srv/js/user/User0001/",
    ):
        assert len(task(ContainerSpec(volumes=(volume,))).config["HostConfig"]["Mounts"]) == 2


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("journald", {"labels": "jobscribe.jid,jobscribe.op,jobscribe.uid,jobscribe.agent"}),
        ("json-file", {"max-size": "8m", "max-file": "2"}),
        ("local", {"max-size": "8m", "max-file": "2"}),
        ("none", {}),
    ],
)
def test_where_output_goes(driver: str, options: dict[str, str]) -> None:
    assert agent(log_driver=driver).config["HostConfig"]["LogConfig"] == {
        "Type": driver,
        "Config": options,
    }


# ---- the shell command


def words(creation: Creation, host: PoolHost = HOST) -> list[str]:
    return shlex.split(specifications.docker_run(creation, host))


def test_an_agent_by_hand() -> None:
    assert specifications.docker_run(agent(), HOST) == (
        "docker --host tcp://10.0.0.1:2376 --tlsverify --tlscacert /etc/js/tls/a/cacert.pem --tlscert /etc/js/tls/a/cert.pem "
        "--tlskey /etc/js/tls/a/key.pem run -d --name srj-p-User0001 --cap-drop=ALL --security-opt=no-new-privileges:true --pids-limit 99 "
        "--memory 2147483648 --memory-swap 2147483648 --cpus 2 --shm-size 33554432 --ipc private --cgroupns private --ulimit core=0:-1 "
        "--ulimit nofile=777:777 --read-only --tmpfs /tmp:rw,exec,nosuid,nodev,size=64m,mode=1777 "
        "--mount type=bind,source=/srv/js/agent/k,target=/srv/js/agent/k "
        "--mount type=bind,source=/srv/js/user/User0001,target=/srv/js/user/User0001 "
        "--mount type=volume,source=jobscribe-links-depl0001,target=/run/jobscribe,readonly --restart no --log-driver journald "
        "--log-opt labels=jobscribe.jid,jobscribe.op,jobscribe.uid,jobscribe.agent --network none --user 100007:100007 --workdir / "
        "--env HOME=/srv/js/user/User0001 --label jobscribe.deployment=depl0001 --label jobscribe.part=agent "
        "--label jobscribe.key=docker.parallel.User0001@a --label jobscribe.uid=User0001 --label jobscribe.kind=parallel "
        "--label jobscribe.started=1700000000 --label jobscribe.agent=AbCd --no-healthcheck -i sha256:1 keeper --root /srv/js "
        "--folder /srv/js/agent/k"
    )


def test_a_task_by_hand() -> None:
    box = ContainerSpec(gpus=("GPU-1", "GPU-2"), address="10.208.0.3", volumes=("data",))
    line = words(
        task(box, network="srj-n-1"),
        msgspec.structs.replace(HOST, address="unix:///run/docker.sock", tls=None),
    )
    assert line[:5] == ["docker", "--host", "unix:///run/docker.sock", "run", "-d"]
    for option, value in (
        ("--network", "srj-n-1"),
        ("--ip", "10.208.0.3"),
        ("--network-alias", "my-worker-7"),
        ("--hostname", "my-worker-7"),
        ("--gpus", '"device=GPU-1,GPU-2"'),
        ("--entrypoint", "/bin/sh"),
        ("--restart", "no"),
        ("--log-driver", "json-file"),
    ):
        assert line[line.index(option) + 1] == value
    assert "type=bind,source=/srv/data,target=/data,readonly" in line
    assert line[-2:] == ["sha256:2", f"{EVIDENCE}/wrapper.sh"] and "-i" not in line


def test_a_relay_by_hand() -> None:
    line = words(relay())
    assert (
        line[line.index("--restart") + 1] == "unless-stopped"
        and line[line.index("--network") + 1] == "host"
    )
    assert (
        json.loads(line[-1]) == {"url": "ws://s:1/agent", "connect": "s:1", "ca": None}
        and line[-2] == "relay"
    )


@pytest.mark.parametrize(
    "odd",
    ["/srv/a b", "/srv/'quoted'", "/srv/a,b", '/srv/"x"', "/srv/$(id)", "/srv/\nnew", "/srv/;rm"],
)
def test_odd_paths_stay_one_word(odd: str) -> None:
    creation = agent(folder=odd)
    line = words(creation)
    mounts = [
        next(csv.reader([line[n + 1]])) if "\n" not in odd else [line[n + 1]]
        for n, w in enumerate(line)
        if w == "--mount"
    ]
    assert f"source={odd}" in mounts[0][1 if "\n" not in odd else 0]
    assert creation.config["HostConfig"]["Mounts"][0]["Source"] == odd


def test_gpus_are_named_never_all() -> None:
    """A task gets only the GPUs placed for it; a count of GPUs could select others, as `--gpus all`
    does.
    """
    request = task(ContainerSpec(gpus=("0",))).config["HostConfig"]["DeviceRequests"][0]
    assert request["Count"] == 0 and request["DeviceIDs"] == ["0"]
