"""Credentials of a user for a registry, with a real registry and daemon: the image is pulled with them,
other users cannot use it, and the password is nowhere.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker_hosts import BASE, Hosts
from image_registry import Registry
from supervisor_process import UID, SupervisorProcess, texts_below

from jobscribe.cli.submission.job_document import FileOptions, read_document
from jobscribe.client.sync_client import Client, Job

from .test_gangs import pushed, registry, types

__all__ = ["registry"]
pytestmark = pytest.mark.timeout(300)
WRONG = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"


def submitted(client: Client, path: Path, job: dict[str, Any]) -> Job:
    path.write_text(json.dumps(job))
    path.chmod(0o600)
    options = FileOptions(lambda: UID, driver="docker" if "roles" not in job else "")
    document, problems, _ = read_document(str(path), options)
    assert document is not None and not problems, problems
    sent = client.submit_description(document.data, credentials=document.credentials)
    ((made,),) = sent.values()
    assert isinstance(made, Job)
    return made


def test_images_are_pulled_with_the_credentials_of_the_job(
    make_docker_site: Callable[..., SupervisorProcess],
    pool: Hosts,
    registry: Registry,
    tmp_path: Path,
) -> None:
    host = pool.hosts["a"]
    pushed(host, registry, BASE, "ours:7")
    image = f"{registry.host}/ours:7"
    site = make_docker_site("slots.op_run=12", pool={"hosts": ["a"], "pull": "missing"})
    files = {}
    for name, password in (("good", registry.password), ("bad", WRONG)):
        files[name] = tmp_path / name
        files[name].touch(0o600)
        files[name].write_text(f"{registry.host}\n{registry.user}\n{password}\n")
    role = {"command": "echo it runs", "memory": 100, "image": image}
    own = {"name": "own", "driver": "docker", "roles": {"main": role}}
    version1 = {
        "jobName": "one",
        "image": image,
        "authFile": str(files["good"]),
        "taskRoles": [{"name": "main", "command": "echo it runs"}],
    }
    version2 = {
        "protocolVersion": 2,
        "name": "two",
        "secrets": {"pw": registry.password},
        "prerequisites": [
            {
                "name": "i",
                "type": "dockerimage",
                "uri": image,
                "auth": {
                    "username": registry.user,
                    "password": "<% $secrets.pw %>",
                    "registryuri": registry.host,
                },
            }
        ],
        "taskRoles": {
            "main": {
                "dockerImage": "i",
                "resourcePerInstance": {"cpu": 1, "memoryMB": 100},
                "commands": ["echo it runs"],
            }
        },
    }
    with Client.from_root(site.root, uid=UID) as client:
        right = submitted(
            client, tmp_path / "a", own | {"registryAuth": {"file": str(files["good"])}}
        )
        assert right.wait(timeout=100).state == "completed", site.log()[-3000:]
        for pai in (version1, version2):
            made = submitted(client, tmp_path / "b", pai)
            assert made.wait(timeout=100).state == "completed", site.log()[-3000:]
        (private,) = json.loads(host.docker("inspect", BASE))[0:1]
        id_ = private["Id"].removeprefix("sha256:")
        wrong = submitted(
            client, tmp_path / "c", own | {"registryAuth": {"file": str(files["bad"])}}
        )
        missing = submitted(client, tmp_path / "d", own)
        for job, said in (
            (wrong, "credentials that were sent with the job"),
            (missing, "registryAuth"),
        ):
            over = job.wait(timeout=100)
            assert (over.state, over.raw["exit"]["fault"]) == ("error", "pullDenied"), over
            assert said in types(site, "job", "why", job.jid)[0]
    containers = host.docker("ps", "-aq").split()
    seen = host.docker("inspect", *containers) if containers else ""
    for canary in (registry.password, WRONG):
        assert canary not in seen + site.log()
        assert not [p for p, t in texts_below(Path(site.root)).items() if canary.encode() in t]
    assert image not in host.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    host.docker("rmi", f"jobscribe-private:{id_}", code=None)
