"""Configurations of OpenPAI in containers: the example runs in its image, a secret stays in its file,
and `job simulate` uses the image.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docker_hosts import BASE, Host, Sites
from supervisor_process import UID, SupervisorProcess, texts_below, until

from jobscribe.cli.submission.job_document import FileOptions, read_document
from jobscribe.client.sync_client import Client, Job

pytestmark = pytest.mark.timeout(300)
EXAMPLES = Path(__file__).resolve().parents[2] / "etc" / "examples" / "openpai"
SECRET = "canaryOfOpenPai"


def submitted(site: SupervisorProcess, client: Client, path: Path, text: str) -> Job:
    path.write_text(text)
    document, problems, _ = read_document(str(path), FileOptions(lambda: UID))
    assert document is not None, problems
    ((job,),) = client.submit_description(document.data).values()
    assert isinstance(job, Job)
    return job


def test_the_example_runs_in_its_image_and_a_secret_stays_in_its_file(
    docker_sites: Sites, host_a: Host, tmp_path: Path
) -> None:
    site = docker_sites.make(pool={"hosts": ["a"]}).start()
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
        job = submitted(site, client, tmp_path / "sums.yaml", text)
        run_dir = folder.joinpath("command", *job.jid.split("-")[1:])
        until(lambda: (run_dir / "worker" / "0" / "began").exists(), "the worker began", 60)
        assert (run_dir / "worker" / "0" / "began").read_text() == "0\n"
        assert (run_dir / "worker" / "0" / "size").read_text().strip() == str(len(SECRET) + 1)
        containers = host_a.docker("ps", "-aq").split()
        assert len(containers) >= 4
        assert SECRET not in host_a.docker("inspect", *containers)
        (run_dir / "go").touch()
        assert job.wait(timeout=60).state == "completed", site.log()[-3000:]
    output = (folder / "sums" / "output" / "sum-1").read_text()
    assert output == "200\n"
    kept = [path for path, text in texts_below(Path(site.root)).items() if SECRET.encode() in text]
    assert kept == [folder / "pw"]


@pytest.mark.parametrize(("command", "code", "said"), [("touch x; exit 4", 4, "exit code 4"), ("x=$(tr '\\0' a < /dev/zero)", 137, "out of memory")])  # fmt: skip
def test_a_simulated_task_has_the_image_and_limits(
    host_a: Host, tmp_path: Path, command: str, code: int, said: str
) -> None:
    role = {"name": "m", "memoryMB": 100, "command": command}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"jobName": "x", "image": BASE, "taskRoles": [role]}))
    ended = subprocess.run(
        [sys.executable, "-m", "jobscribe.cli", "job", "simulate", "-f", str(path), "--dir", str(tmp_path / "r")],
        env={**os.environ, "DOCKER_HOST": f"unix://{host_a.sock}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, said in ended.stderr) == (code, True), ended
    assert (tmp_path / "r" / "m" / "0" / "x").exists() is (code == 4)
    assert "jobscribe-simulate" not in host_a.docker("ps", "-a")
