"""Configurations of OpenPAI in containers: the example runs in its image, a secret stays in its file,
images are pulled with a user's own credentials, and `job simulate` uses the image. `job files`, `get`
and `put` reach the run directory.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_session import types
from copied_mpi import copied_mpi
from cutting_relay import check_cut_copies
from docker_hosts import BASE, Host, Hosts, sites
from engine_scripts import Refused, Script
from image_registry import Registry
from supervisor_process import UID, SupervisorProcess, texts_below, until

from jobscribe.cli.submission.job_document import FileOptions, read_document
from jobscribe.client.sync_client import Client, Job
from jobscribe.schema.openpai.conversion import version_of
from jobscribe.schema.text.reader import parse

from .test_gangs import pushed

pytestmark = pytest.mark.timeout(300)
EXAMPLES = Path(__file__).resolve().parents[2] / "etc" / "examples" / "openpai"
SECRET = "canaryOfOpenPai"


SSHD, CACHE = "jobscribe-test/sshd:1", os.environ.get("CACHE", "/var/cache/jobscribe-docker")
#: Worker 1 enters worker 0 by its name, and from there itself. Neither the keys of the image nor a
#: password are accepted.
_OVER_SSH = r"""
set -e
if [ "$PAI_TASK_INDEX" = 0 ]; then until [ -e ../../end ]; do sleep 0.05; done; exit 0; fi
{
  ssh worker-0 'hostname; id -u; id -un; echo $HOME'
  ssh -o PubkeyAuthentication=no -o PreferredAuthentications=password worker-0 true 2>/dev/null || echo $?
  stat -c %a /run/jobscribe-ssh/id
  ssh -A $PAI_HOST_IP_worker_0 'echo "${SSH_AUTH_SOCK-refused}"'
  ssh worker-0 ssh worker-1 hostname
} > building
mv building said
ssh -o ServerAliveInterval=1 worker-0 "echo > $PWD/entered; sleep 600" || true
"""
WRONG = "k9TqCanary7Zx2VbNm4LpRw8YsHd3Gf6"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    made = Registry(tmp_path_factory.mktemp("registry"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(pool: Hosts) -> Iterator[SupervisorProcess]:
    """Supervisor with host a for all tests of this file."""
    with sites(pool) as made:
        yield made.make("slots.op_run=12", pool={"hosts": ["a"], "pull": "missing"}).start()


def submitted(client: Client, path: Path, text: str) -> Job:
    path.touch(0o600)
    path.write_text(text)
    driver = "docker" if version_of(parse(text.encode(), path.name).data) else ""
    document, problems, _ = read_document(str(path), FileOptions(lambda: UID, driver=driver))
    assert document is not None and not problems, problems
    sent = client.submit_description(document.data, credentials=document.credentials)
    ((job,),) = sent.values()
    assert isinstance(job, Job)
    return job


def test_the_example_runs_in_its_image_and_a_secret_stays_in_its_file(
    site: SupervisorProcess, host_a: Host, tmp_path: Path
) -> None:
    folder = Path(site.root) / "user" / UID
    with Client.from_root(site.root, uid=UID) as client:
        # the user's directory exists after a first run
        assert client.run(["true"]).wait(timeout=60).state == "completed"
        shutil.copytree(EXAMPLES, folder / "sums")
        (folder / "pw").write_text(SECRET)
        (folder / "pw").chmod(0o600)
        owner = folder.stat()
        for path in (folder / "pw", folder / "sums", *(folder / "sums").rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        text = (EXAMPLES / "sums.yaml").read_text()
        text = text.replace("/srv/sums", f"{folder}/sums").replace("python:3.11", BASE)
        text = text.replace("parameters:", f"secrets: {{pw: {{file: {folder}/pw}}}}\nparameters:")
        text = text.replace(
            "[echo before]",
            '[\'echo "<% $secrets.pw %>" | wc -c > size; env | grep -c canary > n || true; mv n began; '
            "until [ -e ../../go ]; do sleep 0.05; done']",
        )
        job = submitted(client, tmp_path / "sums.yaml", text)
        run_dir = folder.joinpath("command", *job.jid.split("-")[1:])
        until(lambda: (run_dir / "worker" / "0" / "began").exists(), "the worker began", 60)
        assert (run_dir / "worker" / "0" / "began").read_text() == "0\n"
        assert (run_dir / "worker" / "0" / "size").read_text().strip() == str(len(SECRET) + 1)
        containers = host_a.docker("ps", "-aq").split()
        assert len(containers) >= 4
        assert SECRET not in host_a.docker("inspect", *containers)
        (run_dir / "go").touch()
        assert job.wait(timeout=60).state == "completed", site.log()[-3000:]
        _check_files(site, job.jid, run_dir, tmp_path)
    output = (folder / "sums" / "output" / "sum-1").read_text()
    assert output == "200\n"
    kept = [path for path, text in texts_below(Path(site.root)).items() if SECRET.encode() in text]
    assert kept == [folder / "pw"]


def _check_files(site: SupervisorProcess, jid: str, run_dir: Path, tmp_path: Path) -> None:
    """Check that the files of tasks in containers are listed and copied, and that others get there."""
    assert "worker/0/began" in types(site, "job", "files", jid, "worker/**")[0]
    types(site, "job", "get", jid, "worker/0/*", "-o", str(tmp_path / "got"))
    assert (tmp_path / "got" / "worker" / "0" / "began").read_text() == "0\n"
    (tmp_path / "notes").write_text("by hand\n")
    assert "in/notes" in types(site, "job", "put", jid, str(tmp_path / "notes"), "--to", "in")[0]
    assert (run_dir / "in" / "notes").read_text() == "by hand\n"
    assert (run_dir / "in" / "notes").stat().st_uid == run_dir.stat().st_uid
    token = site.post("token-create", uid=UID, name="files", scopes=["read", "control"])
    check_cut_copies(site.url, token["secret"], UID, jid, tmp_path / "cut")


def test_ranks_of_mpi_start_over_ssh_in_all_tasks(
    site: SupervisorProcess, host_a: Host, tmp_path: Path
) -> None:
    """The example with MPI, with this machine's OpenMPI in the user's folder instead of the image."""
    try:
        Script("mpi", {})("check")
    except Refused as e:
        pytest.skip(str(e))
    host_a.docker("import", f"{CACHE}/sshd.tar", SSHD)
    folder = Path(site.root) / "user" / UID
    with Client.from_root(site.root, uid=UID) as client:
        assert client.run(["true"]).wait(timeout=60).state == "completed"
        shutil.copytree(EXAMPLES / "code", folder / "mpi" / "code")
        variables = copied_mpi(folder / "mpi")
        for path in (folder / "mpi").rglob("*"):
            os.chown(path, folder.stat().st_uid, folder.stat().st_gid)
        text = (EXAMPLES / "ring.json").read_text()
        text = text.replace("/srv/sums", f"{folder}/mpi").replace(
            "registry.example.org/openmpi:1", SSHD
        )
        text = text.replace("echo master-0", f". {variables}; echo master-0")
        text = text.replace('"ring"', f'"ring-{secrets.token_hex(4)}"')
        job = submitted(client, tmp_path / "ring.json", text)
        run_dir = folder.joinpath("command", *job.jid.split("-")[1:])
        over = job.wait(timeout=100)
        errors = b"".join(p.data for p in job.logs("stderr", role="master", index=0))
        assert over.state == "completed", (errors[-2000:], site.log()[-3000:])
    ((ranks,),) = (list(run_dir.glob("Output/*/ranks")),)
    assert sorted(ranks.read_text().splitlines()) == [
        "rank 0 of 3 on master-0 had 4",
        "rank 1 of 3 on worker-0 had 2",
        "rank 2 of 3 on worker-1 had 4",
    ]


def test_images_are_pulled_with_the_credentials_of_the_job(
    site: SupervisorProcess, host_a: Host, registry: Registry, tmp_path: Path
) -> None:
    """With a real registry and daemon: other users cannot use the image, and the password is
    nowhere.
    """
    pushed(host_a, registry, BASE, "ours:7")
    image = f"{registry.host}/ours:7"
    files = {}
    for name, password in (("good", registry.password), ("bad", WRONG)):
        files[name] = tmp_path / name
        files[name].touch(0o600)
        files[name].write_text(f"{registry.host}\n{registry.user}\n{password}\n")
    with Client.from_root(site.root, uid=UID) as client:

        def own(name: str, auth: str | None) -> Job:
            role = {"command": "echo it runs", "memory": 100, "image": image}
            job: dict[str, Any] = {"name": name, "driver": "docker", "roles": {"main": role}}
            more = {} if auth is None else {"registryAuth": {"file": str(files[auth])}}
            return submitted(client, tmp_path / name, json.dumps(job | more))

        version1 = {
            "jobName": "one",
            "image": image,
            "authFile": str(files["good"]),
            "taskRoles": [{"name": "main", "command": "echo it runs"}],
        }
        right = [own("own", "good"), submitted(client, tmp_path / "v1", json.dumps(version1))]
        rest = _Rest(site)
        storage = {"protocolVersion": 2, "extras": {"storages": ["mars"]}}
        missing = json.dumps(json.loads(_private(registry, image, "none")) | storage)
        with pytest.raises(urllib.error.HTTPError) as e:
            rest.ask("POST", "/api/v2/jobs", missing)
        assert (e.value.code, json.load(e.value)["code"]) == (404, "NoStorageError")
        code, said = rest.ask("POST", "/api/v2/jobs", _private(registry, image, "rest"))
        assert code == 202 and "warnings" not in said, said
        for job in right:
            assert job.wait(timeout=100).state == "completed", site.log()[-3000:]
        until(lambda: rest.state("rest") in ("SUCCEEDED", "FAILED"), "it ends", 100)
        assert rest.state("rest") == "SUCCEEDED", site.log()[-3000:]
        kept = rest.ask("GET", f"/api/v2/jobs/{UID}~rest/config")[1]
        assert image in kept and "******" in kept and registry.password not in kept
        (private,) = json.loads(host_a.docker("inspect", BASE))[0:1]
        id_ = private["Id"].removeprefix("sha256:")
        for job, said in (
            (own("wrong", "bad"), "credentials that were sent with the job"),
            (own("missing", None), "registryAuth"),
        ):
            over = job.wait(timeout=100)
            assert (over.state, over.raw["exit"]["fault"]) == ("error", "pullDenied"), over
            assert said in types(site, "job", "why", job.jid)[0]
    containers = host_a.docker("ps", "-aq").split()
    seen = host_a.docker("inspect", *containers) if containers else ""
    for canary in (registry.password, WRONG):
        assert canary not in seen + site.log()
        assert not [p for p, t in texts_below(Path(site.root)).items() if canary.encode() in t]
    assert image not in host_a.docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    # a simulation pulls it onto this machine, with the same credentials
    for file, password, code in (("wrong", WRONG, 125), ("v1", registry.password, 0)):
        ended = _simulates(host_a, tmp_path / file, tmp_path / f"{file}-run", code)
        assert password not in ended.stderr and ("cannot pull" in ended.stderr) is (code == 125)
    host_a.docker("rmi", image)
    host_a.docker("rmi", f"jobscribe-private:{id_}", code=None)


def _simulates(
    host: Host, file: Path, run_dir: Path, code: int
) -> "subprocess.CompletedProcess[str]":
    """Run the first task of a job file on this machine, with the daemon of the host."""
    ended = subprocess.run(
        [sys.executable, "-m", "jobscribe.cli", "job", "simulate", "-f", str(file), "--dir", str(run_dir)],
        env={**os.environ, "DOCKER_HOST": f"unix://{host.sock}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended
    return ended


class _Rest:
    """A client of OpenPAI, with a token of the user."""

    def __init__(self, site: SupervisorProcess) -> None:
        made = site.post("token-create", uid=UID, name="pai", scopes=["read", "control"])
        self._url, self._token = site.url, made["secret"]

    def ask(self, method: str, path: str, body: str = "") -> tuple[int, Any]:
        request = urllib.request.Request(self._url + path, body.encode() or None, method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text[:1] == "{" else text

    def state(self, name: str) -> str:
        return str(self.ask("GET", f"/api/v2/jobs/{UID}~{name}")[1]["jobStatus"]["state"])


def _private(registry: Registry, image: str, name: str) -> str:
    """Return a configuration of version 2 with the password of its image as a secret."""
    auth = {
        "username": registry.user,
        "password": "<% $secrets.pw %>",
        "registryuri": registry.host,
    }
    job = {
        "protocolVersion": 2,
        "name": name,
        "type": "job",
        "secrets": {"pw": registry.password},
        "prerequisites": [{"name": "i", "type": "dockerimage", "uri": image, "auth": auth}],
        "taskRoles": {
            "main": {
                "dockerImage": "i",
                "resourcePerInstance": {"cpu": 1, "memoryMB": 100},
                "commands": ["echo it runs"],
            }
        },
    }
    return json.dumps(job)


@pytest.mark.parametrize(("command", "code", "said"), [("touch x; exit 4", 4, "exit code 4"), ("x=$(tr '\\0' a < /dev/zero)", 137, "out of memory")])  # fmt: skip
def test_a_simulated_task_has_the_image_and_limits(
    host_a: Host, tmp_path: Path, command: str, code: int, said: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "n").write_text("7")
    role = {
        "name": "m",
        "memoryMB": 100,
        "command": f"cp $PAI_DATA_DIR/n $PAI_OUTPUT_DIR; {command}",
    }
    job = {"jobName": "x", "image": BASE, "dataDir": str(data), "outputDir": str(out)}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**job, "taskRoles": [role]}))
    ended = _simulates(host_a, path, tmp_path / "r", code)
    assert said in ended.stderr and (out / "n").read_text() == "7"
    assert (tmp_path / "r" / "m" / "0" / "x").exists() is (code == 4)
    assert "jobscribe-simulate" not in host_a.docker("ps", "-a")


def test_tasks_of_a_gang_reach_each_other_by_ssh_with_keys_of_their_attempt(
    site: SupervisorProcess, host_a: Host, tmp_path: Path
) -> None:
    """The last role has an image without sshd: it is told so, and its exit is its own."""
    host_a.docker("import", f"{CACHE}/sshd.tar", SSHD)
    config = {
        "protocolVersion": 2,
        "name": f"reached-{secrets.token_hex(4)}",  # repeats need another name
        "type": "job",
        "prerequisites": [
            {"type": "dockerimage", "name": n, "uri": u} for n, u in (("ssh", SSHD), ("no", BASE))
        ],
        "taskRoles": {
            "worker": {
                "instances": 2,
                "completion": {"minSucceededInstances": 2},
                "dockerImage": "ssh",
                "resourcePerInstance": {"cpu": 1, "memoryMB": 128, "gpu": 0},
                "extraContainerOptions": {"shmMB": 64},
                "commands": [_OVER_SSH],
            },
            "plain": {
                "dockerImage": "no",
                "completion": {"minSucceededInstances": -1},
                "resourcePerInstance": {"cpu": 1, "memoryMB": 128, "gpu": 0},
                "extraContainerOptions": {"shmMB": 64},
                "commands": ["until [ -e ../../end ]; do sleep 0.05; done", "exit 0"],
            },
        },
        "extras": {
            "com.microsoft.pai.runtimeplugin": [{"plugin": "ssh", "parameters": {"jobssh": True}}]
        },
    }
    with Client.from_root(site.root, uid=UID) as client:
        job = submitted(client, tmp_path / "ssh", json.dumps(config))
        run_dir = Path(site.root, "user", UID, "command", *job.jid.split("-")[1:])
        own = run_dir.parents[2]
        entered = run_dir / "worker" / "1" / "entered"
        until(lambda: entered.exists() or job.status().over, "ssh works", 100)
        said = (run_dir / "worker" / "1" / "said").read_text()
        name, user, _, home, other, *rest = said.splitlines()
        assert (name, user, home, other) == ("worker-0", str(own.stat().st_uid), str(own), "255")
        assert rest == ["600", "refused", "worker-1"]
        inspected = host_a.docker("inspect", *host_a.containers("jobscribe.part=task"))
        (run_dir / "end").touch()
        assert job.wait(timeout=60).state == "completed", site.log()[-3000:]
        errors = b"".join(p.data for p in job.logs("stderr", role="plain", index=0))
        events = client.story(job.jid)["events"]
    # the session of worker 1 in worker 0 is no process that the task left behind
    left_behind = Path(site.root).glob(f"agent/docker.container.*/run/{job.jid}-*/survivors")
    assert list(left_behind) == []
    (noticed,) = [e["event"] for e in events if e["event"]["type"] == "TaskNoticed"]
    assert noticed["token"][3:] == ["plain", 0] and "openssh-server" in noticed["text"], noticed
    assert noticed["code"] == "sshUnavailable" and errors == b""
    # it is told while the task runs
    ended = [e["event"]["at"] for e in events if e["event"]["type"] == "TaskEnded"]
    assert noticed["at"] < max(ended)
    private = "-----BEGIN OPENSSH"
    assert private not in inspected
    until(lambda: not host_a.containers("jobscribe.part=task"), "the containers are gone", 60)

    def left() -> list[Path]:
        return [p for p, text in texts_below(Path(site.root)).items() if private.encode() in text]

    until(lambda: not left(), "the keys are gone", 60)
