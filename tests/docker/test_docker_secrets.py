"""After a full run with containers, no secret is in a container's configuration, a log, an argument
or an environment.

Secrets: those of the root, agents' tokens and ids, a registry password, certificate keys, the
webhook signing key. Searched: all daemon output and files, all processes of the host, all files of
the root, all job output, and all answers and notifications of the supervisor (explanations, traces,
bundles, agent logs, metrics, health).
"""

import base64
import contextlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from docker_hosts import BASE, Host, Sites
from process_memory import tokens_in
from supervisor_process import SupervisorProcess, jid_of, shell, spec, texts_below, until

from jobscribe.protocol.ids import AgentKey, derived_id
from jobscribe.runtime import processes

from ..integration.test_notifications import HEADER, SECRET, Receiver, targets

pytestmark = pytest.mark.timeout(300)
UID = "SecretU1"
PASSWORD = "canaryOfTheRegistryPassword"
BELONGS = (
    "r/client.json",
    "r/root.json",
    "r/secret/server",
    "r/secret/agents",
    "r/secret/metrics",
    "registries.yml",
)


def test_no_secret_is_anywhere_but_in_its_place(
    docker_sites: Sites, host_a: Host, tmp_path: Path
) -> None:
    with contextlib.closing(Receiver(tmp_path)) as receiver:
        _looked_for(docker_sites, host_a, receiver, tmp_path)


def _looked_for(docker_sites: Sites, host_a: Host, receiver: Receiver, tmp_path: Path) -> None:
    hook = f"notify.file={targets(tmp_path, receiver)}"
    site = docker_sites.make(
        hook, pool={"hosts": ["a"], "pull": "missing", "logDriver": "json-file"}
    )
    credentials = site.place / "registries.yml"
    credentials.write_text(
        json.dumps({"127.0.0.1:1": {"username": "puller", "password": PASSWORD}})
    )
    credentials.chmod(0o600)
    pool = json.loads(site.pool.read_text())  # type: ignore[attr-defined]
    site.pool.write_text(json.dumps(pool | {"registries": str(credentials)}))  # type: ignore[attr-defined]
    site.start()
    runs = _everything(site, host_a)
    stays = [
        shell(
            "tr '\\0' '\\n' </proc/self/environ; ls -l /proc/1/fd /proc/*/fd 2>&1; cat /proc/1/environ 2>&1; echo looked; sleep 600",
            UID,
        )
    ]
    stays.append(_as_role(stays[0]["command"], BASE))
    for run in stays:
        site.submit(run)
    for run in stays:
        until(lambda run=run: b"looked" in site.output(run).body, "it has said what it sees")  # type: ignore[misc]
    secrets = _secrets(site, host_a)
    keeper = int(host_a.inspect(f"srj-s-{UID}")["State"]["Pid"])
    assert os.readlink(f"/proc/{keeper}/fd/0") == "/dev/null", (
        "what came by its stdin is read and gone"
    )
    looked = _texts(site, host_a)
    for run in stays:
        site.cancel(run)
    for run in stays:
        site.wait(run)
    looked |= {f"{name}, afterwards": text for name, text in _texts(site, host_a).items()}
    looked |= _answers(site, [*runs, *stays], tmp_path) | _told(receiver, [*runs, *stays])
    assert len(looked) > 60
    found = {
        name: where
        for name, secret in secrets.items()
        for where, text in looked.items()
        if secret in text
    }
    assert found == {}
    assert [
        name
        for name, secret in secrets.items()
        if secret in (site.root / "secret" / "server").read_bytes()
    ] == ["server"], "it can be found"


def _everything(site: SupervisorProcess, host: Host) -> list[dict[str, Any]]:
    """Run jobs that succeed and fail, with a missing image, a replaced agent and a killed
    container. Return the runs.
    """
    good, bad = spec(["true"], UID), shell("env; exit 3", UID)
    assert site.finished(good)["state"] == "completed"
    site.finished(bad)
    refused = _as_role(["true"], "127.0.0.1:1/nothing:1")
    said = site.finished(refused, 60)
    assert said["exit"]["fault"] == "registryUnreachable", said
    name = f"srj-s-{UID}"
    first = _agent(host, name)
    os.kill(first, 9)
    until(lambda: _agent(host, name, first), "another agent")
    killed = shell("sleep 600", UID)
    site.submit(killed)
    site.running(killed)
    host.docker("kill", name)
    site.wait(killed, 60)
    return [good, bad, refused, killed]


def _as_role(command: list[str], image: str) -> dict[str, object]:
    run = {k: v for k, v in spec([], UID).items() if k != "command"}
    return run | {
        "roles": [{"name": "main", "command": command, "memoryMb": 64, "image": image}],
        "retry": {"count": 0, "platform": 0},
    }


def _agent(host: Host, container: str, not_this: int = 0) -> int:
    keeper = int(host.inspect(container)["State"]["Pid"])
    found = [
        p.pid
        for p in processes.table().values()
        if p.parent == keeper
        and not p.over
        and b"agent" in processes._read(f"/proc/{p.pid}/cmdline")
    ]
    return next((pid for pid in found if pid != not_this), 0)


def _secrets(site: SupervisorProcess, host: Host) -> dict[str, bytes]:
    out = {
        name: (site.root / "secret" / name).read_text().strip()
        for name in ("server", "agents", "metrics")
    }
    out |= {"webhook's secret": SECRET, "webhook's header": HEADER}
    key = str(AgentKey("docker", "sequential", UID, "a"))
    out["agentId"] = derived_id(key.encode(), key=out["agents"].encode())
    (out["token"],) = tokens_in(site, _agent(host, f"srj-s-{UID}"))
    out["password"], out["password in base64"] = (
        PASSWORD,
        base64.b64encode(PASSWORD.encode())[:-4].decode(),
    )
    out["client's key"] = (host.tls / "key.pem").read_text().splitlines()[2]
    return {name: secret.encode() for name, secret in out.items()}


def _texts(site: SupervisorProcess, host: Host) -> dict[str, bytes]:
    """Return all searched texts, by location."""
    out: dict[str, bytes] = {}
    for name in host.containers():
        out[f"inspect {name}"] = json.dumps(host.inspect(name)).encode()
        out[f"logs {name}"] = host.docker("logs", name, code=None).encode()
    for kind, listed in (
        ("volume", ["volume", "ls", "-q"]),
        ("network", ["network", "ls", "-q"]),
        ("image", ["images", "-q"]),
    ):
        for id_ in set(host.docker(*listed).split()):
            out[f"{kind} {id_}"] = host.docker(kind, "inspect", id_, code=None).encode()
            if kind == "image":
                out[f"history {id_}"] = host.docker("history", "--no-trunc", id_).encode()
    since = ["--since", "10m", "--until", "0s"]
    out["events"] = host.docker("events", *since, "--format", "{{json .}}").encode()
    kept = Path(host.docker("info", "--format", "{{.DockerRootDir}}").strip())
    for path, text in texts_below(kept / "containers", site.place).items():
        if path.name != "key.pem" and str(path).removeprefix(f"{site.place}/") not in BELONGS:
            out[str(path)] = text
    for p in processes.table().values():
        out[f"arguments of {p.pid}"] = processes._read(f"/proc/{p.pid}/cmdline")
        if p.pid != os.getpid():
            out[f"environment of {p.pid}"] = processes._read(f"/proc/{p.pid}/environ")
    journal = subprocess.run(
        ["journalctl", "--since", "-10min", "-o", "export"], capture_output=True
    )
    out["journal"] = journal.stdout
    return out


def _answers(site: SupervisorProcess, runs: list[dict[str, Any]], folder: Path) -> dict[str, bytes]:
    """Return the supervisor's answers about each run and about the whole system."""
    out: dict[str, bytes] = {}
    for run in runs:
        jid = jid_of(run)
        for name, asked in (
            ("job-why", {"computeJid": jid}),
            ("trace", {"id": jid, "logs": True}),
            ("run-status", {"computeJid": jid}),
        ):
            out[f"{name} of {jid}"] = json.dumps(site.post(name, uid=UID, **asked)).encode()
        for words in (("job", "why", jid), ("trace", jid)):
            out[" ".join(words)] = _typed(site, *words)
    whole, lean = folder / "whole.tar.gz", folder / "lean.tar.gz"
    refused, killed = jid_of(runs[2]), jid_of(runs[3])
    for words in (
        ("bundle", killed, "--yes", "-o", str(whole)),
        ("bundle", refused, "--yes", "--no-doctor", "-o", str(lean)),
        ("health",),
        ("agent", "logs", "--all", killed),
        ("agent", "logs", "--previous", killed),
        ("agent", "logs", "--keeper", killed),
        ("trace", "--all-users", f"srj-s-{UID}"),
    ):
        out[" ".join(words[:3])] = _typed(site, *words)
    assert b" running: docker --host " in out[f"trace --all-users srj-s-{UID}"], (
        "what started it is told with it"
    )
    for archive in (whole, lean):
        with tarfile.open(archive) as tar:
            out |= {f"{archive.name}: {m.name}": tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    token = (site.root / "secret" / "metrics").read_text().strip()
    for path in ("/metrics", "/health"):
        said = site.ask("GET", path, headers={"Authorization": f"Bearer {token}"})
        assert said.code == 200, (path, said)
        out[path] = said.body
    assert {"doctor.json", "why.json", "trace.txt", "config.json"} <= {
        name.rpartition("/")[2] for name in out
    }, "a bundle has all of it"
    empty = {name for name, text in out.items() if not text and not name.endswith(".log")}
    assert empty == set()
    return out


def _typed(site: SupervisorProcess, *args: str) -> bytes:
    """Return standard output and standard error of a command line run in this process."""
    from jobscribe.cli.main import call

    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = call(["--root", str(site.root), *args])
    assert code in (0, 1), (args, code, err.getvalue())
    return (out.getvalue() + err.getvalue()).encode()


def _told(receiver: Receiver, runs: list[dict[str, Any]]) -> dict[str, bytes]:
    """Return the notifications sent until the end of each run was reported."""
    out, ended = {}, set[str]()
    while not {jid_of(run) for run in runs} <= ended:
        how, message = receiver.next()
        out[f"notification {len(out)}, {how}"] = json.dumps(message).encode()
        if message["state"] in ("completed", "canceled", "error"):
            ended.add(message["computeJid"])
    return out
