"""`job repro`: a folder that runs one task again, without secrets."""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.job.repro import folder as repro_folder
from jobscribe.client.api.replies import Transfer
from jobscribe.client.functions import calls
from jobscribe.protocol.errors import Refusal

pytestmark = pytest.mark.process
Run = Any
Fake = Any
TOKEN = "jst_abcdefgh_" + "s" * 43


def stored(run: Run, fake: Fake, **spec: Any) -> str:
    """Let the fake have a job of which the newest request is this one. Return its name."""
    jid = str(run("job", "submit", "-q", "--", "true").out.strip())
    _, sid, _ = jid.split("-")
    fields = {"uid": jid[:8], "simulationId": sid, **spec}
    event = {"type": "RunRequested", "at": 1.0, "serial": 1, "spec": fields}
    fake.events.append({"position": 1, "stream": f"job/{jid}", "version": 1, "event": event})
    fake.end(jid, code=3)
    return jid


def started(folder: Path, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PATH": os.environ["PATH"], **env}
    words = [str(folder / "run.sh"), *options]
    return subprocess.run(
        words, env=variables, capture_output=True, text=True, check=False, timeout=60
    )


def texts(folder: Path) -> str:
    return "\n".join(p.read_text() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a 'repro'"


def test_the_folder_runs_the_task_again_and_asks_for_what_it_does_not_have(
    run: Run, fake: Fake, folder: Path
) -> None:
    text = "pwd; echo \"$A $PASSWORD $0\" it\\'s; cat in/x.txt; ulimit -c; login --token 'hunter22' $(id -u); exit 3"
    jid = stored(
        run,
        fake,
        command=["/bin/bash", "-c", f"login() {{ echo $2; }}; {text}", "name"],
        env={"A": "it's\n@ $HOME", "PASSWORD": "hunter33", "JOBSCRIBE_DEBUG": "breakpoint"},
        timeLimitSecs=60,
    )
    fake.files = {
        "in/x.txt": b"data\n",
        "in/key.pem": b"x",
        "password.txt": b"y",
        "config.ini": b"db_password = hunter44\n",
        "big.bin": b"\0" * 5000,
    }
    fake.why = {"lastLines": f"hunter22 {TOKEN}", "evidence": ["password=hunter55"]}
    ended = run("job", "repro", jid, "-o", str(folder), "--max-size", "4000", "--json")
    assert ended.code == 0, ended
    answer = ended.json()
    assert [f["name"] for f in answer["inputs"]] == ["in/x.txt"]
    assert answer["inputs"][0]["sha256"] == hashlib.sha256(b"data\n").hexdigest()
    assert {m["name"] for m in answer["missing"]} == {*fake.files} - {"in/x.txt"}
    assert [w["name"] for w in answer["withheld"]] == ["token", "PASSWORD"]
    assert {f["name"] for f in answer["files"]} == {
        "README.md", "run.sh", "script.sh", "job.yaml", "inputs/in/x.txt",
    }  # fmt: skip
    # only the user can read it, and it has no secret
    modes = {p.stat().st_mode & 0o777 for p in (folder, *folder.rglob("*"))}
    assert modes == {0o600, 0o700}
    written = texts(folder)
    assert not any(s in written for s in ("hunter", TOKEN))
    assert "failed with exit code 3" in (folder / "README.md").read_text()

    refused = started(folder)
    assert refused.returncode == 2
    for word in ("no secrets", "token: ", "PASSWORD: PASSWORD in the environment"):
        assert word in refused.stderr
    again = started(folder, token="t1", PASSWORD="p 1", JOBSCRIBE_SERIAL="7")
    assert again.returncode == 3, again
    assert again.stdout.splitlines() == [
        str(folder / "work"), "it's", "@ $HOME p 1 name it's", "data", "0", "t1",
    ]  # fmt: skip
    assert "exit code 3; recorded: failed with exit code 3" in again.stderr
    assert not any(s in texts(folder) for s in ("t1\n", "p 1\n"))
    # each run begins with the input files only
    (folder / "work" / "left").write_text("")
    started(folder, token="t1", PASSWORD="x")
    assert not (folder / "work" / "left").exists()
    assert started(folder, "--no-image").returncode == 2


def test_a_role_task_has_its_recorded_places_and_its_image(
    run: Run, fake: Fake, folder: Path
) -> None:
    role = {"name": "worker", "tasks": 2, "command": ["/bin/bash", "-c", "env | grep PAI; exit 4"]}
    image = {"image": "python:3.11", "cpu": 2, "memoryMb": 300, "env": {"API_KEY": "hunter66"}}
    jid = stored(run, fake, roles=[{**role, **image}], driver="docker")
    fake.gang(
        jid,
        [
            {"role": "worker", "index": i, "address": f"10.0.0.{i}", "ports": {"http": [8000 + i], "ssh": [22]}}
            for i in (0, 1)
        ],
    )  # fmt: skip
    answer = run(
        "job", "repro", jid, "--role", "worker", "--index", "1", "-o", str(folder), "--json"
    ).json()
    assert (answer["role"], answer["index"], answer["image"]) == ("worker", 1, "python:3.11")
    script = (folder / "run.sh").read_text()
    line = next(line for line in script.splitlines() if "docker run" in line)
    for words in (
        "docker run --rm ${shell:+-it} --user", "--cap-drop=ALL", "--memory 314572800", "--cpus 2", "--network none",
        '--user "$(id -u):$(id -g)"', "--env API_KEY ", "python:3.11 ''\"$here\"'/evidence/wrapper.sh'",
        "source='\"$here\"',target='\"$here\"'",
    ):  # fmt: skip
        assert words in line, (words, line)
    assert "hunter66" not in texts(folder) and str(folder) not in script
    again = started(folder, "--no-image", API_KEY="k")
    assert again.returncode == 4
    for words in (
        "PAI_HOST_IP_worker_0=10.0.0.0",
        "PAI_CONTAINER_HOST_PORT=8001",
        "PAI_TASK_INDEX=1",
    ):
        assert words in again.stdout
    assert json.loads((folder / "work/worker/1/job.json").read_text())["attempt"] == 1
    for options, said in (
        (("--role", "x"), "its roles are: worker"),
        (("--index", "2"), "give --index 0 to 1"),
        (("-o", str(folder)), "exists; choose another folder"),
    ):
        ended = run("job", "repro", jid, "-o", str(folder) + "x", *options)
        assert (ended.code, said in ended.err) == (125, True), ended
    assert not Path(str(folder) + "x").exists()


def test_docker_gets_the_folder_where_it_is(
    run: Run, fake: Fake, folder: Path, tmp_path: Path
) -> None:
    """A `docker` of the test notes its words, then runs the command."""
    role = {"name": "m", "image": "i", "command": ["/bin/sh", "-c", "echo $0; exit 137"]}
    jid = stored(run, fake, roles=[role], driver="docker")
    assert run("job", "repro", jid, "-o", str(folder)).code == 0
    moved = tmp_path / "moved"
    folder.rename(moved)
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" >"$0.words"\nfor last; do :; done\nexec /bin/sh "$last"\n'
    )
    docker.chmod(0o700)
    ended = started(moved, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.returncode == 137, ended
    words = (tmp_path / "docker.words").read_text().splitlines()
    assert words[-2:] == ["i", f"{moved}/evidence/wrapper.sh"]
    assert any(f"source={moved},target={moved}" in w for w in words)
    assert (moved / "evidence" / "exit-code").read_text() == "137\n"
    docker.write_text(
        docker.read_text()
        .replace(
            "for last; do :; done", "last=; for w; do case $w in */wrapper.sh) last=$w;; esac; done"
        )
        .replace('"$last"', '"$last" --shell </dev/null')
    )
    assert started(moved, "--shell", PATH=f"{tmp_path}:{os.environ['PATH']}").returncode == 0
    words = (tmp_path / "docker.words").read_text().splitlines()
    assert words[-1] == "--shell" and "-it" in words


def test_a_function_is_called_again_under_pdb(run: Run, fake: Fake, folder: Path) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    packed = calls.payload(
        divide, [((1, 0), {})], many=False, inline_bytes=10_000, max_bytes=10_000
    )
    env = calls.with_call({}, packed).get("env", {})
    jid = stored(run, fake, command=calls.command(packed, "f", ["python3"]), env=env)
    answer = run("job", "repro", jid, "-o", str(folder), "--json").json()
    line = next(c for c in answer["commands"] if "replay" in c)
    words = [
        os.environ.get("PYTHON", __import__("sys").executable),
        *line.split("#")[0].split()[1:],
    ]
    ended = subprocess.run(
        words, cwd=folder, input="p a + 41\nc\np b\nq\n", capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1, ended
    assert "42" in ended.stdout and "ZeroDivisionError" in ended.stderr
    # the file of a call whose arguments are in a file is not copied
    packed = calls.payload(divide, [((1,), {"b": 2})], many=False, inline_bytes=0, max_bytes=10_000)
    fake.events.clear()
    env = calls.with_call({}, packed).get("env", {})
    jid = stored(run, fake, command=calls.command(packed, "f", ["python3"]), env=env)
    answer = run("job", "repro", jid, "-o", str(folder) + "2", "--json").json()
    assert not any("replay" in c for c in answer["commands"])
    assert "may have secrets" in Path(f"{folder}2/README.md").read_text()


def test_one_run_of_an_array_and_a_job_whose_request_is_gone(
    run: Run, fake: Fake, folder: Path
) -> None:
    env = {"ARRAY_INDEX": "7", "ARRAY_COUNT": "9"}
    jid = stored(run, fake, command=["/bin/sh", "-c", "echo $ARRAY_INDEX"], env=env)
    assert run("job", "repro", jid, "-o", str(folder)).code == 0
    assert started(folder).stdout == "7\n"
    # the same with the job file
    options = ("--dir", str(folder / "work"), "--json")
    ended = run("job", "simulate", "-f", str(folder / "job.yaml"), *options)
    assert (ended.code, "7\n" in ended.err) == (0, True)
    fake.events.clear()
    ended = run("job", "repro", jid, "-o", str(folder) + "x")
    assert ended.code == 125 and "not stored any more" in ended.err


def test_the_input_of_an_app_has_no_secret(run: Run, fake: Fake, folder: Path) -> None:
    data = {"models": {"a": {"password": "hunter77", "x": 'q"\\'}}}
    jid = stored(run, fake, simulationType="heat", computeModel="animation", data=data, command=[])
    answer = run("job", "repro", jid, "-o", str(folder), "--json").json()
    assert [w["name"] for w in answer["withheld"]] == ["password"]
    assert "hunter77" not in texts(folder)
    python = folder.parent / "python"
    python.write_text(
        '#!/bin/sh\ncase $1 in */prepare_input.py) exec python3 "$@";; esac\nfor last; do :; done\ncat "$last"\n'
    )
    python.chmod(0o700)
    ended = started(folder, PYTHON=str(python), password='new"p')
    assert ended.returncode == 0, ended
    written = json.loads(ended.stdout)
    assert written["data"]["models"]["a"] == {"password": 'new"p', "x": 'q"\\'}
    assert (written["runDir"], written["lib"]) == (f"{folder}/work", f"{folder}/lib")
    assert 'new"p' not in texts(folder) and 'new\\"p' not in texts(folder)


def test_inputs_have_no_parts_of_incomplete_copies_and_no_hidden_key_files(tmp_path: Path) -> None:
    class Files:
        def get_files(self, jid: str, names: Any, target: str, **_: Any) -> list[Transfer]:
            Path(target, "d").mkdir()
            Path(target, "d", ".b.part").write_text("password=hunter22")
            Path(target, "a").write_text("x")
            return [
                Transfer(name="a", path="", size=1),
                Transfer(name="d/b", path="", code="conflict", error="it changed"),
            ]

    names = ("a", "d/b", ".token", "x.secret")
    files: Any = Files()
    screen: Any = None
    found = repro_folder.copy_inputs(
        screen, files, "j", [{"name": n, "size": 1} for n in names], str(tmp_path), 100
    )
    assert [f["name"] for f in found.copied] == ["a"]
    assert {f["name"] for f in found.missing} == {*names} - {"a"}
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a"]


def test_an_empty_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", denied)
    with pytest.raises(Refusal, match="cannot be created: Operation not permitted"):
        repro_folder.create(str(tmp_path))
