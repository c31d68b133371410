"""The API handlers of the fake Docker daemon, one function per call. Each gets (fake, handler, path
parts, query, body) and returns (status, JSON value), or None if it has already answered.
"""

import json
import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15}

Said = tuple[int, Any] | None


class ApiError(Exception):
    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said


def _ping(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    return 200, b"OK"


def _version(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    return 200, {
        "Version": fake.version,
        "ApiVersion": fake.api,
        "MinAPIVersion": fake.least_api,
        "Os": "linux",
    }


def _info(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    return 200, fake.info


def _create(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        name = q.get("name") or f"nameless-{len(fake.containers)}"
        for c in fake.containers.values():
            if c.name == name:
                raise ApiError(
                    409,
                    f'Conflict. The container name "/{name}" is already in use by container "{c.id}".',
                )
        if b.get("Image") not in fake.images and b.get("Image") not in fake.images.values():
            raise ApiError(404, f"No such image: {b.get('Image')}")
        return 201, {"Id": fake.made(name, b).id, "Warnings": []}


def _start(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c = fake.get(m[0])
        if c.status == "running":
            return 304, None
        c.status, c.started, c.code, c.oom = "running", time.time(), 0, False
        fake.happened(c, "start")
    fake.on_start(c)
    return 204, None


def _kill(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c = fake.get(m[0])
        if c.status != "running":
            raise ApiError(409, f"Cannot kill container: {m[0]}: Container {c.id} is not running")
        said = q.get("signal") or "KILL"
        number = int(said) if said.isdigit() else _SIGNALS[said.removeprefix("SIG")]
        c.signals.append(number)
        fake.happened(c, "kill", signal=str(number))
        if number == 9:
            fake.finish(c.id, 137)
    return 204, None


def _stop(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c = fake.get(m[0])
        if c.status != "running":
            return 304, None
        c.signals += [15, 9]
        fake.finish(c.id, 137)
    return 204, None


def _remove(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c = fake.get(m[0])
        if c.status == "running" and not _true(q.get("force")):
            raise ApiError(
                409,
                f"You cannot remove a running container {c.id}. Stop the container before attempting removal or force remove",
            )
        fake.vanish(c.id)
    return 204, None


def _true(said: str | None) -> bool:
    return (said or "").lower() in ("1", "true")


def _stamp(at: float) -> str:
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e9):09d}Z"
        if at
        else "0001-01-01T00:00:00Z"
    )


def _inspect(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c = fake.get(m[0])
        config = {k: v for k, v in c.config.items() if k not in ("HostConfig", "NetworkingConfig")}
        running = c.status == "running"
        state = {
            "Status": c.status,
            "Running": running,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": c.oom,
            "Dead": False,
            "Pid": 4242 if running else 0,
            "ExitCode": c.code,
            "Error": c.error,
            "StartedAt": _stamp(c.started),
            "FinishedAt": _stamp(c.finished),
        }
        networks = {
            n["Name"]: {"IPAddress": n["Containers"][c.id]}
            for n in fake.networks.values()
            if c.id in n["Containers"]
        }
        return 200, {
            "Id": c.id,
            "Name": "/" + c.name,
            "State": state,
            "Image": fake.images.get(c.config.get("Image"), c.config.get("Image")),
            "Config": config,
            "HostConfig": dict(c.config.get("HostConfig") or {}),
            "NetworkSettings": {"Networks": networks},
            "RestartCount": 0,
            "Mounts": [],
        }


def _list(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    filters = json.loads(q.get("filters") or "{}")
    with fake.lock:
        return 200, [
            {
                "Id": c.id,
                "Names": ["/" + c.name],
                "Image": c.config.get("Image"),
                "State": c.status,
                "Labels": c.labels,
                "Status": f"Exited ({c.code})" if c.status == "exited" else c.status,
                "Created": int(c.started),
            }
            for c in fake.containers.values()
            if (_true(q.get("all")) or c.status == "running" or "status" in filters)
            and _passes(filters, c.labels, name=c.name, status=c.status)
        ]


def _passes(filters: dict[str, Any], labels: dict[str, str], **others: str) -> bool:
    for wanted in filters.get("label") or ():
        key, has_value, value = wanted.partition("=")
        if key not in labels or (has_value and labels[key] != value):
            return False
    return all(
        not filters.get(key)
        or any(re.search(w, value) if key == "name" else w == value for w in filters[key])
        for key, value in others.items()
    )


def _wait(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.changed:
        c = fake.get(m[0])
        while c.status == "running" and not fake.closed:
            fake.changed.wait(0.5)
    return 200, {"StatusCode": c.code, "Error": None}


def _attach(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    c = fake.get(m[0])
    h.send_response(101, "UPGRADED")
    h.send_header("Content-Type", "application/vnd.docker.raw-stream")
    h.send_header("Connection", "Upgrade")
    h.send_header("Upgrade", "tcp")
    h.end_headers()
    h.close_connection = True
    if _true(q.get("stdin")):
        while data := h.rfile.read1(65536):
            with fake.lock:
                c.stdin += data
    return None


def _logs(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    c = fake.get(m[0])
    return 200, (b"\x01\0\0\0" + len(c.logs).to_bytes(4, "big") + c.logs) if c.logs else b""


def _stats(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    c = fake.get(m[0])
    return 200, {
        "read": _stamp(time.time()),
        "cpu_stats": {"cpu_usage": {"total_usage": 2 * 10**9}, "online_cpus": 8},
        "memory_stats": {
            "usage": 64 << 20,
            "limit": (c.config.get("HostConfig") or {}).get("Memory", 0),
            "stats": {"inactive_file": 1 << 20},
        },
        "pids_stats": {"current": 3},
    }


def _events(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    filters = json.loads(q.get("filters") or "{}")
    whole, _, part = (q.get("since") or "").partition(".")
    since = int(whole or 0) * 10**9 + int((part + "0" * 9)[:9])
    h.begin_stream()
    with fake.changed:
        # a real daemon also keeps a ring of events; later events are sent regardless of their time
        old = [e for e in fake.events[-256:] if e["timeNano"] >= since] if whole else []
        at = len(fake.events)
    while True:
        for event in old:
            if _fits(filters, event):
                h.piece(json.dumps(event).encode() + b"\n")
        with fake.changed:
            while at >= len(fake.events):
                if fake.closed or _gone(h.connection):
                    h.close_connection = True
                    return None
                fake.changed.wait(0.05)
            old, at = fake.events[at:], len(fake.events)


def _gone(connection: Any) -> bool:
    if isinstance(connection, ssl.SSLSocket):
        return False
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"")
    except BlockingIOError:
        return False
    except OSError:
        return True


def _fits(filters: dict[str, Any], event: dict[str, Any]) -> bool:
    kinds = filters.get("type")
    return (not kinds or event["Type"] in kinds) and _passes(
        {"label": filters.get("label")}, event["Actor"]["Attributes"]
    )


def _image(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        ident = fake.images.get(m[0]) or (m[0] if m[0] in fake.images.values() else None)
        names = [name for name, id_ in fake.images.items() if id_ == ident]
    if ident is None:
        raise ApiError(404, f"No such image: {m[0]}")
    return 200, {"Id": ident, "RepoTags": names, "Config": {"Env": ["PATH=/usr/bin:/bin"]}}


def _tag(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        fake.images[f"{q['repo']}:{q['tag']}"] = fake.images.get(m[0], m[0])
    return 201, None


def _untag(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        del fake.images[m[0]]
    return 200, [{"Untagged": m[0]}]


def _pull(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    tag = q.get("tag", "")
    reference = q["fromImage"] + ("@" if tag.startswith("sha256:") else ":") + tag
    with fake.lock:
        fake.pulls.append((reference, h.headers.get("X-Registry-Auth")))
        made = fake.pullable.get(
            reference,
            Exception(f"manifest for {reference} not found: manifest unknown: manifest unknown"),
        )
    h.begin_stream()
    h.piece(json.dumps({"status": f"Pulling from {q['fromImage']}", "id": tag}).encode() + b"\r\n")
    if isinstance(made, Exception):
        h.piece(
            json.dumps({"errorDetail": {"message": str(made)}, "error": str(made)}).encode()
            + b"\r\n"
        )
    else:
        with fake.lock:
            fake.images[reference] = made
        h.piece(
            json.dumps({"status": f"Status: Downloaded newer image for {reference}"}).encode()
            + b"\r\n"
        )
    h.piece(b"")
    return None


def _network(fake: Any, ref: str) -> Any:
    for n in fake.networks.values():
        if ref in (n["Name"], n["Id"]):
            return n
    raise ApiError(404, f"network {ref} not found")


def _subnets(network: Any) -> set[str]:
    return {c["Subnet"] for c in (network.get("IPAM") or {}).get("Config") or ()}


def _network_create(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        if b["Name"] in fake.networks:
            raise ApiError(409, f"network with name {b['Name']} already exists")
        if _subnets(b) & {s for n in fake.networks.values() for s in _subnets(n)}:
            raise ApiError(403, "Pool overlaps with other one on this address space")
        fake.networks[b["Name"]] = {**b, "Id": secrets.token_hex(32), "Containers": {}}
        return 201, {"Id": fake.networks[b["Name"]]["Id"], "Warning": ""}


def _network_inspect(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        n = _network(fake, m[0])
        there = {c.id: {"Name": c.name} for c in fake.containers.values() if _within(c, n)}
        left = {
            f"ep-{secrets.token_hex(8)}": {"Name": name}
            for name in fake.left_ends.get(n["Name"], ())
        }
        return 200, {
            **n,
            "Containers": {i: {"Name": i, "IPv4Address": a} for i, a in n["Containers"].items()}
            | there
            | left,
        }


def _within(c: Any, network: Any) -> bool:
    return (
        c.status == "running"
        and (c.config.get("HostConfig") or {}).get("NetworkMode") == network["Name"]
    )


def _network_list(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    filters = json.loads(q.get("filters") or "{}")
    with fake.lock:
        return 200, [
            n
            for n in fake.networks.values()
            if _passes(filters, n.get("Labels") or {}, name=n["Name"])
        ]


def _network_remove(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        n = _network(fake, m[0])
        connected = any(
            i in fake.containers and fake.containers[i].status == "running" for i in n["Containers"]
        )
        if (
            connected
            or fake.left_ends.get(n["Name"])
            or any(_within(c, n) for c in fake.containers.values())
        ):
            raise ApiError(
                403, f"error while removing network: network {n['Name']} has active endpoints"
            )
        del fake.networks[n["Name"]]
    return 204, None


def _network_connect(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        c, n = fake.get(b["Container"]), _network(fake, m[0])
        wanted = ((b.get("EndpointConfig") or {}).get("IPAMConfig") or {}).get("IPv4Address")
        n["Containers"][c.id] = wanted or f"10.208.0.{len(n['Containers']) + 2}"
    return 200, None


def _network_disconnect(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    """Disconnect a container. For a removed container, only `Force` with its name removes the
    endpoint that is left.
    """
    with fake.lock:
        n, who = _network(fake, m[0]), b["Container"]
        c = next((c for c in fake.containers.values() if who in (c.id, c.name)), None)
        if c is not None:
            c.config["HostConfig"]["NetworkMode"] = "none"
            n["Containers"].pop(c.id, None)
        elif b.get("Force") and who in fake.left_ends.get(n["Name"], ()):
            fake.left_ends[n["Name"]].remove(who)
        else:
            raise ApiError(404, f"No such container: {who}")
    return 200, None


def _volume_create(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        return 201, fake.volumes.setdefault(
            b["Name"], {**b, "Mountpoint": f"/volumes/{b['Name']}", "Scope": "local"}
        )


def _volume_inspect(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        if m[0] not in fake.volumes:
            raise ApiError(404, f"get {m[0]}: no such volume")
        return 200, fake.volumes[m[0]]


def _volume_remove(fake: Any, h: Any, m: Any, q: Any, b: Any) -> Said:
    with fake.lock:
        if fake.volumes.pop(m[0], None) is None:
            raise ApiError(404, f"get {m[0]}: no such volume")
    return 204, None


ROUTES: list[tuple[str, str, Callable[..., Said]]] = [
    ("GET", "/_ping", _ping),
    ("HEAD", "/_ping", _ping),
    ("GET", "/version", _version),
    ("GET", "/info", _info),
    ("GET", "/events", _events),
    ("POST", "/containers/create", _create),
    ("GET", "/containers/json", _list),
    ("GET", "/containers/([^/]+)/json", _inspect),
    ("POST", "/containers/([^/]+)/start", _start),
    ("POST", "/containers/([^/]+)/kill", _kill),
    ("POST", "/containers/([^/]+)/stop", _stop),
    ("POST", "/containers/([^/]+)/wait", _wait),
    ("POST", "/containers/([^/]+)/attach", _attach),
    ("DELETE", "/containers/([^/]+)", _remove),
    ("GET", "/containers/([^/]+)/logs", _logs),
    ("GET", "/containers/([^/]+)/stats", _stats),
    ("GET", "/images/(.+)/json", _image),
    ("POST", "/images/create", _pull),
    ("POST", "/images/(.+)/tag", _tag),
    ("DELETE", "/images/(.+)", _untag),
    ("POST", "/networks/create", _network_create),
    ("GET", "/networks", _network_list),
    ("GET", "/networks/([^/]+)", _network_inspect),
    ("DELETE", "/networks/([^/]+)", _network_remove),
    ("POST", "/networks/([^/]+)/connect", _network_connect),
    ("POST", "/networks/([^/]+)/disconnect", _network_disconnect),
    ("POST", "/volumes/create", _volume_create),
    ("GET", "/volumes/([^/]+)", _volume_inspect),
    ("DELETE", "/volumes/([^/]+)", _volume_remove),
]
