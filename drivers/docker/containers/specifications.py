"""The request with which each container is created: the body of POST /containers/create, and the
same as a `docker run` line. Pure.

`_isolated` is the only place that isolates a user's code. Requests contain no secrets, because `docker
inspect` shows them. Paths are bound as mounts, not as "binds": a missing path is then an error,
while the engine would create it as root.
"""

import csv
import io
import json
import os.path
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ....protocol.clusters.container_pool import Limits, Pool, PoolHost, Volume
from ....protocol.errors import Refusal
from ....protocol.ids import Token
from ....protocol.wire.messages import ContainerSpec
from . import names, ssh_files

#: Path of the relay's socket, in relays and agents.
LINKS: Final = "/run/jobscribe"
#: The unix user of relays. Root would have access to the host's sockets even without capabilities.
RELAY_USER: Final = (65534, 65534)
RELAY_LIMITS: Final = Limits(cpus=1, memory_mb=256, shm_mb=1, tmp_mb=1, pids=64, nofile=4096)
#: Limits of the engine's own log files, without journald. Keepers and agents print a few lines a
#: day.
_LOG_BYTES, _LOG_FILES = "8m", "2"
#: Docker writes "unlimited" as -1.
_UNLIMITED = -1
_MIB = 2**20

User = tuple[int, int]


class Creation(msgspec.Struct, frozen=True, kw_only=True):
    """config: the body of the request, with Image, HostConfig and, for a task of a gang,
    NetworkingConfig.
    """

    name: str
    config: dict[str, Any]


def agent_container(
    *,
    name: str,
    image: str,
    command: Sequence[str],
    labels: Mapping[str, str],
    user: User,
    limits: Limits,
    network: str,
    folder: str,
    user_dir: str,
    links: str,
    log_driver: str,
) -> Creation:
    """The container of an agent: a keeper as PID 1, which gets its configuration on stdin. folder:
    the agent's folder. links: the volume of the relay's socket.
    """
    mounts = [
        _bind_mount(folder, folder),
        _bind_mount(user_dir, user_dir),
        _volume(links, LINKS, read_only=True),
    ]
    config = {
        "Image": image,
        "Cmd": list(command),
        "Env": [f"HOME={user_dir}"],
        "WorkingDir": "/",
        "Labels": dict(labels),
        "User": _user(user),
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        # its keeper gives each execution the limit that it asked for, usually 0
        "HostConfig": _isolated(limits, mounts, network, log_driver, _UNLIMITED),
    }
    return Creation(name=name, config=config)


def relay_container(
    *,
    name: str,
    image: str,
    settings: Mapping[str, Any],
    labels: Mapping[str, str],
    network: str,
    links: str,
    log_driver: str,
) -> Creation:
    """The container that forwards the socket of a host's agents to the supervisor. settings: passed
    as JSON in its command, so without secrets.
    """
    host = _isolated(RELAY_LIMITS, [_volume(links, LINKS, read_only=False)], network, log_driver)
    config = {
        "Image": image,
        "Cmd": ["relay", json.dumps(settings, sort_keys=True, separators=(",", ":"))],
        "Env": [],
        "WorkingDir": "/",
        "Labels": dict(labels),
        "User": _user(RELAY_USER),
        "AttachStdin": False,
        "OpenStdin": False,
        "StdinOnce": False,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host | {"RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}},
    }
    return Creation(name=name, config=config)


def task_container(
    pool: Pool,
    *,
    name: str,
    image: str,
    box: ContainerSpec,
    token: Token,
    labels: Mapping[str, str],
    user: User,
    evidence: str,
    user_dir: str,
    log_driver: str,
    core_bytes: int = 0,
    network: str | None = None,
    declared: Sequence[str] = (),
    ssh: str | None = None,
) -> Creation:
    """The container of one task. image: the image id. evidence: its folder, with wrapper.sh in it.
    network: the bridge of its gang. ssh: the folder with its ssh files.

    declared: volumes that the image declares. They are held in memory and end with the container;
    the engine would store them on its own disk, without a limit.

    Raises Refusal("badRequest") for a volume that the pool does not have.
    """
    limits = msgspec.structs.replace(
        pool.tasks, cpus=box.cpu, memory_mb=box.memory_mb, shm_mb=box.shm_mb
    )
    mounts = [
        _bind_mount(evidence, evidence),
        _bind_mount(user_dir, user_dir),
        *_volume_mounts(box.volumes, pool.volumes, user_dir),
    ]
    if ssh is not None:
        mounts.append(_bind_mount(ssh, ssh_files.MOUNTED, read_only=True))
        for file, path in ssh_files.ALSO_AT.items():
            mounts.append(_bind_mount(f"{ssh}/{file}", path, read_only=True))
    taken = {m["Target"] for m in mounts} | {"/tmp"}
    mounts += [
        _in_memory(path, limits.tmp_mb)
        for path in dict.fromkeys(map(os.path.normpath, declared))
        if path not in taken
    ]
    host = _isolated(limits, mounts, network or pool.network, log_driver, core_bytes)
    # The engine resolves names of the gang; other names must not be looked up outside.
    if network is not None:
        host["Dns"] = ["127.0.0.1"]
    if box.gpus:
        host["DeviceRequests"] = [
            {
                "Driver": "",
                "Count": 0,
                "DeviceIDs": list(box.gpus),
                "Capabilities": [["gpu"]],
                "Options": {},
            }
        ]
    alias = f"{token.role}-{token.index}".replace("_", "-").lower()
    config: dict[str, Any] = {
        "Image": image,
        "Entrypoint": ["/bin/sh"],
        "Cmd": [f"{evidence}/wrapper.sh"],
        "Env": [f"HOME={user_dir}"],
        "WorkingDir": "/",
        "Hostname": alias,
        "Labels": dict(labels),
        "User": _user(user),
        "AttachStdin": False,
        "OpenStdin": False,
        "StdinOnce": False,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    if network is not None:
        address = {"IPAMConfig": {"IPv4Address": box.address}} if box.address is not None else {}
        config["NetworkingConfig"] = {"EndpointsConfig": {network: {**address, "Aliases": [alias]}}}
    return Creation(name=name, config=config)


def shell_container(
    pool: Pool,
    dead: Mapping[str, Any],
    *,
    name: str,
    labels: Mapping[str, str],
    network: str | None = None,
) -> Creation:
    """The container for shells in the files of a task whose container has ended. dead: the engine's
    description of that container, whose image, user, mounts, limits and devices it has. network: the
    bridge of its gang, if other tasks of it still run; it gets the address of the dead one there.

    Its process 1 waits for the end of its standard input, and the engine removes it then: so it
    ends with the supervisor, however that ends.
    """
    config, known = dead["Config"], dead["HostConfig"]
    kept = [*_isolated(RELAY_LIMITS, (), "none", "none"), "DeviceRequests", "Dns"]
    host = {key: known[key] for key in kept if known.get(key) is not None}
    own = known["NetworkMode"] if known["NetworkMode"] == pool.network else "none"
    body = {
        "Image": dead["Image"],
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", "while read -r _; do :; done"],
        "Env": list(config.get("Env") or ()),
        "WorkingDir": "/",
        "Hostname": config["Hostname"],
        "Labels": dict(labels),
        "User": config["User"],
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host | {"AutoRemove": True, "NetworkMode": network or own},
    }
    if network is not None:
        joined = (dead["NetworkSettings"].get("Networks") or {}).get(network) or {}
        address = {"IPAMConfig": joined["IPAMConfig"]} if joined.get("IPAMConfig") else {}
        endpoint = {**address, "Aliases": [config["Hostname"]]}
        body["NetworkingConfig"] = {"EndpointsConfig": {network: endpoint}}
    return Creation(name=name, config=body)


def network_body(*, name: str, subnet: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """The body of POST /networks/create for the bridge of a gang. The bridge has no route outside,
    and its host has no address in it.
    """
    return {
        "Name": name,
        "CheckDuplicate": True,
        "Driver": "bridge",
        "Internal": True,
        "EnableIPv6": False,
        "Attachable": False,
        "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
        "Labels": dict(labels),
        "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }


def _isolated(
    limits: Limits,
    mounts: Iterable[dict[str, Any]],
    network: str,
    log_driver: str,
    core: int = 0,
) -> dict[str, Any]:
    """The HostConfig of every container. core: hard limit of core files in bytes. Seccomp is not set, so that the engine's default profile
    applies.
    """
    memory = limits.memory_mb * _MIB
    return {
        "AutoRemove": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "Init": False,
        "IpcMode": "private",
        "LogConfig": _log_config(log_driver),
        "Memory": memory,
        "MemorySwap": memory,
        "Mounts": list(mounts),
        "NanoCpus": limits.cpus * 10**9,
        "NetworkMode": network,
        "OomKillDisable": False,
        "OomScoreAdj": 0,
        "PidsLimit": limits.pids,
        "Privileged": False,
        "PublishAllPorts": False,
        "ReadonlyRootfs": True,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "SecurityOpt": ["no-new-privileges:true"],
        "ShmSize": limits.shm_mb * _MIB,
        # jobs may run programs that they compile there
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={limits.tmp_mb}m,mode=1777"},
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": core},
            {"Name": "nofile", "Soft": limits.nofile, "Hard": limits.nofile},
        ],
    }


def _log_config(driver: str) -> dict[str, Any]:
    match driver:
        case "journald":
            return {"Type": driver, "Config": {"labels": ",".join(names.LOGGED)}}
        case "json-file" | "local":
            return {"Type": driver, "Config": {"max-size": _LOG_BYTES, "max-file": _LOG_FILES}}
        case _:
            return {"Type": driver, "Config": {}}


def _user(user: User) -> str:
    return f"{user[0]}:{user[1]}"


def _bind_mount(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _volume(name: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only}


def _in_memory(target: str, size_mb: int) -> dict[str, Any]:
    return {
        "Type": "tmpfs",
        "Target": target,
        "TmpfsOptions": {"SizeBytes": size_mb * _MIB, "Mode": 0o1777},
    }


def _volume_mounts(
    wanted: Iterable[str], offered: Mapping[str, Volume], user_dir: str
) -> list[dict[str, Any]]:
    """The mounts of the volumes that a role names. Paths in the user's own directory are mounted
    anyway; other paths of the host are refused.
    """
    out = []
    for name in dict.fromkeys(wanted):
        if name in offered:
            volume = offered[name]
            out.append(_bind_mount(volume.source, volume.target, read_only=volume.read_only))
        elif not _is_below(name, user_dir):
            known = ", ".join(sorted(offered)) or "none"
            raise Refusal(
                "badRequest",
                f"volume {name!a} is neither a volume of the pool ({known}) nor a path in the user's own directory",
            )
    return out


def _is_below(path: str, folder: str) -> bool:
    return path.startswith("/") and os.path.commonpath(
        [os.path.normpath(path), os.path.normpath(folder)]
    ) == os.path.normpath(folder)


# ---- the same as a docker run line


def docker_run(creation: Creation, host: PoolHost) -> str:
    """Return the command that starts the same container manually. An agent's container would then
    wait for its configuration on stdin.
    """
    config = creation.config
    words = [
        "docker",
        "--host",
        host.address,
        *_tls(host),
        "run",
        "-d",
        "--name",
        creation.name,
        *_host_options(config["HostConfig"]),
    ]
    words += [
        *_network_options(config),
        "--user",
        config["User"],
        "--workdir",
        config["WorkingDir"],
    ]
    if config.get("Hostname"):
        words += ["--hostname", config["Hostname"]]
    words += [w for e in config["Env"] for w in ("--env", e)]
    words += [w for k, v in config["Labels"].items() for w in ("--label", f"{k}={v}")]
    words += ["--no-healthcheck", *(["-i"] if config["OpenStdin"] else [])]
    if config.get("Entrypoint"):
        words += ["--entrypoint", config["Entrypoint"][0]]
    return shlex.join([*words, config["Image"], *config["Cmd"]])


def _tls(host: PoolHost) -> list[str]:
    if host.tls is None:
        return []
    return [
        "--tlsverify",
        "--tlscacert",
        f"{host.tls}/cacert.pem",
        "--tlscert",
        f"{host.tls}/cert.pem",
        "--tlskey",
        f"{host.tls}/key.pem",
    ]


def _host_options(c: Mapping[str, Any]) -> list[str]:
    words = [f"--cap-drop={name}" for name in c["CapDrop"]] + [
        f"--security-opt={o}" for o in c["SecurityOpt"]
    ]
    words += [
        "--pids-limit",
        str(c["PidsLimit"]),
        "--memory",
        str(c["Memory"]),
        "--memory-swap",
        str(c["MemorySwap"]),
        "--cpus",
        f"{c['NanoCpus'] / 10**9:g}",
        "--shm-size",
        str(c["ShmSize"]),
        "--ipc",
        c["IpcMode"],
        "--cgroupns",
        c["CgroupnsMode"],
    ]
    words += [w for u in c["Ulimits"] for w in ("--ulimit", f"{u['Name']}={u['Soft']}:{u['Hard']}")]
    words += ["--read-only"] if c["ReadonlyRootfs"] else []
    words += [w for path, options in c["Tmpfs"].items() for w in ("--tmpfs", f"{path}:{options}")]
    words += [w for m in c["Mounts"] for w in ("--mount", _mount(m))]
    words += ["--restart", c["RestartPolicy"]["Name"], "--log-driver", c["LogConfig"]["Type"]]
    words += [w for k, v in c["LogConfig"]["Config"].items() for w in ("--log-opt", f"{k}={v}")]
    for request in c.get("DeviceRequests", ()):
        words += ["--gpus", _csv([f"device={','.join(request['DeviceIDs'])}"])]
    return words


def _network_options(config: Mapping[str, Any]) -> list[str]:
    words = [
        "--network",
        config["HostConfig"]["NetworkMode"],
        *(w for a in config["HostConfig"].get("Dns", ()) for w in ("--dns", a)),
    ]
    for endpoint in config.get("NetworkingConfig", {}).get("EndpointsConfig", {}).values():
        if "IPAMConfig" in endpoint:
            words += ["--ip", endpoint["IPAMConfig"]["IPv4Address"]]
        words += [w for alias in endpoint["Aliases"] for w in ("--network-alias", alias)]
    return words


def _mount(mount: Mapping[str, Any]) -> str:
    if mount["Type"] == "tmpfs":
        options = mount["TmpfsOptions"]
        return _csv(
            [
                "type=tmpfs",
                f"target={mount['Target']}",
                f"tmpfs-size={options['SizeBytes']}",
                f"tmpfs-mode={options['Mode']:o}",
            ]
        )
    fields = [f"type={mount['Type']}", f"source={mount['Source']}", f"target={mount['Target']}"]
    return _csv([*fields, "readonly"] if mount["ReadOnly"] else fields)


def _csv(fields: Iterable[str]) -> str:
    """Format values as the docker command parses them in some options."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()
