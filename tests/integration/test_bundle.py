"""`jobscribe bundle` on a real supervisor, run on its root and remotely. The bundle holds all data
about a job and no secret.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from supervisor_process import PYTHON_PATH, UID, SupervisorProcess, jid_of, run_command, shell

Result = subprocess.CompletedProcess[str]


def cli(
    site: SupervisorProcess, *args: str, far: bool = False, cwd: Path | None = None, **env: str
) -> Result:
    where = ["--url", site.url, "--uid", UID] if far else ["--root", str(site.root), "--uid", UID]
    env = {"HOME": str(site.place), **({"JOBSCRIBE_SECRET": site.token} if far else {}), **env}
    return run_command(*args, *where, cwd=cwd or "/", **env)


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        assert all(m.isreg() and not m.name.startswith("/") and ".." not in m.name for m in tar)
        return {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def test_everything_about_a_job_is_in_it_and_no_secret(
    shared: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell(
        f"echo the secret is {shared.token}; echo DB_PASSWORD=hunter2222 >&2; printf '\\377\\000'; exit 3"
    )
    shared.finished(run)
    ended = cli(shared, "bundle", jid_of(run), "--json", "--yes", "-o", str(tmp_path / "b.tar.gz"))
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    files = contents(tmp_path / "b.tar.gz")
    wanted = {
        "manifest.json",
        "versions.json",
        "status.json",
        "why.json",
        "record.json",
        "tasks.json",
        "events.json",
        "trace.json",
        "trace.txt",
        "metrics.json",
        "agents.json",
        "health.json",
        "config.json",
        "doctor.json",
        "attempts/1/main-0/script.sh",
        "attempts/1/main-0/exit.json",
        "attempts/1/main-0/stdout.log",
        "attempts/1/main-0/stderr.log",
    }
    assert wanted <= set(files), wanted - set(files)
    assert [i["name"] for i in said["items"]] == [
        i["name"] for i in json.loads(files["manifest.json"])["items"]
    ]
    assert {i["name"]: i["bytes"] for i in said["items"]} == {
        n: len(d) for n, d in files.items() if n != "manifest.json"
    }
    assert json.loads(files["status.json"])["exit"]["code"] == 3
    assert files["attempts/1/main-0/stdout.log"] == b"the secret is <REDACTED>\n\xff\x00"
    assert [
        n
        for n in files
        if n.startswith("logs/") and n.endswith("-agent.log") and b"starts, keeper pid" in files[n]
    ]
    secrets = [
        shared.token,
        *(
            (shared.root / "secret" / n).read_text().strip()
            for n in os.listdir(shared.root / "secret")
        ),
        "hunter2222",
    ]
    for secret in secrets:
        assert not [n for n, data in files.items() if secret.encode() in data], secret[:4]
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600


def test_it_is_shown_first_and_written_only_when_told(
    shared: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell("echo mine")
    shared.finished(run)
    shown = cli(shared, "bundle", jid_of(run), "--list", "--no-doctor", cwd=tmp_path)
    assert (
        shown.returncode == 0
        and "status.json" in shown.stdout
        and "The archive contains the job's output" in shown.stderr
    )
    refused = cli(shared, "bundle", jid_of(run), "--no-doctor", cwd=tmp_path)
    assert refused.returncode == 2 and "--yes" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    assert (
        cli(
            shared, "bundle", jid_of(run), "--no-doctor", "--no-output", "--yes", cwd=tmp_path
        ).returncode
        == 0
    )
    (made,) = tmp_path.iterdir()
    assert made.name == f"jobscribe-{jid_of(run)}.tar.gz" and not [
        n for n in contents(made) if n.endswith(("stdout.log", "stderr.log"))
    ]
    again = cli(shared, "bundle", jid_of(run), "--no-doctor", "--yes", cwd=tmp_path)
    assert again.returncode == 125 and "not overwritten" in again.stderr


@pytest.mark.parametrize(
    ("answer", "code", "made"), [(b"n\n", 1, 0), (b"y\n", 0, 1), (b"\n", 1, 0)]
)
def test_at_a_terminal_it_asks(
    shared: SupervisorProcess, tmp_path: Path, answer: bytes, code: int, made: int
) -> None:
    run = shell("true")
    shared.finished(run)
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer)
        env = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")} | {
            "PYTHONPATH": PYTHON_PATH,
            "TERM": "dumb",
        }
        command = [
            sys.executable,
            "-m",
            "jobscribe.cli",
            "bundle",
            jid_of(run),
            "--no-doctor",
            "--root",
            str(shared.root),
            "--uid",
            UID,
        ]
        done = subprocess.run(
            command,
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            env=env,
            cwd=tmp_path,
            timeout=60,
        )
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, len(list(tmp_path.iterdir()))) == (code, made), said
    assert "Write jobscribe-" in said and b"status.json" in done.stdout


def test_from_another_machine_what_the_supervisor_tells_is_in_it_and_the_rest_is_named(
    shared: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell("echo far; exit 1")
    shared.finished(run)
    ended = cli(
        shared,
        "bundle",
        jid_of(run),
        "--json",
        "--yes",
        "--no-doctor",
        "-o",
        "b.tar.gz",
        far=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    files, missing = (
        contents(tmp_path / "b.tar.gz"),
        {m["name"] for m in json.loads(ended.stdout)["missing"]},
    )
    assert files["attempts/1/main-0/stdout.log"] == b"far\n" and "trace.txt" in files
    assert {"attempts", "config.json"} <= missing and not [
        n for n in files if n.endswith("script.sh")
    ]


def test_a_job_that_is_not_there_is_no_empty_bundle(
    shared: SupervisorProcess, tmp_path: Path
) -> None:
    ended = cli(shared, "bundle", f"{UID}-nosuch01-command", "--yes", cwd=tmp_path)
    assert (
        ended.returncode == 125
        and ended.stderr.startswith("jobscribe: ")
        and list(tmp_path.iterdir()) == []
    )
