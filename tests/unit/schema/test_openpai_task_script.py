"""The lines before the command of a task, as a shell executes them: data, output, code and secrets."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from jobscribe.schema.openpai import task_script
from jobscribe.schema.openpai.task_script import Folders, lines, local_path

pytestmark = pytest.mark.process


class Ran:
    def __init__(self, work: Path, text: str) -> None:
        work.mkdir(parents=True, exist_ok=True)
        env = {"PAI_WORK_DIR": str(work), "PAI_JOB_NAME": "x", "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["/bin/sh", "-c", text], cwd=work, env=env, capture_output=True, text=True, check=False
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


def test_folders_of_a_task(tmp_path: Path) -> None:
    """Also in a second attempt, whose directory has the files of the first."""
    work = tmp_path / "run" / "role" / "0"
    data = tmp_path / "it's data"
    code = tmp_path / "my code"
    (code / "sub").mkdir(parents=True)
    data.mkdir()
    (code / "sub" / "a.py").write_text("1")
    (tmp_path / "link").symlink_to(code)
    ran = Ran(tmp_path / "w", lines(Folders(code=f"{tmp_path}/link")) + "touch link/sub/new")
    assert (ran.code, ran.err) == (0, "")
    text = lines(Folders(str(data), "", f"{code}/")) + (
        'echo "$PAI_DATA_DIR"; echo "$PAI_OUTPUT_DIR"; echo "$PAI_CODE_DIR"; ls "my code/sub"; '
        'touch "my code/sub/new"'
    )
    for _ in range(2):
        ran = Ran(work, text)
        assert (ran.code, ran.err) == (0, "")
        output = tmp_path / "run" / "Output" / "x"
        assert ran.out.splitlines() == [str(data), str(output), f"{code}/", "a.py"]
        assert output.is_dir()
        assert (work / "my code" / "sub" / "a.py").stat().st_mode & 0o222 == 0
    assert sorted(p.name for p in (code / "sub").iterdir()) == ["a.py"]


def test_code_in_a_tar_file_and_a_given_output_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    archive = tmp_path / "prog.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "a.py", "a.py")
    output = tmp_path / "deep" / "output"
    ran = Ran(tmp_path / "w", lines(Folders("", str(output), str(archive))) + "ls prog")
    assert (ran.code, ran.out, ran.err, output.is_dir()) == (0, "a.py\n", "", True)


def test_what_cannot_be_provided_ends_the_task_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x" * 10_000)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "large").write_text("x" * 10_000)
    for folders, secrets, said in (
        (Folders(data=f"{tmp_path}/no`id`"), {}, f"{tmp_path}/no`id` cannot be read"),
        (Folders(code=f"{tmp_path}/no"), {}, "no cannot be read in this task"),
        (Folders(output=f"{tmp_path}/file/x"), {}, "file/x cannot be created"),
        (Folders(code=f"{tmp_path}/file"), {}, "cannot be copied"),
        (Folders(), {"S": "/no/$HOME`id`"}, "the secret file /no/$HOME`id` cannot be read"),
    ):
        ran = Ran(tmp_path / "w", lines(folders, secrets) + "echo began")
        assert (ran.code, ran.out) == (210, ""), ran.err
        assert said in ran.err
    monkeypatch.setattr(task_script, "MAX_CODE", 4096)
    ran = Ran(tmp_path / "w", lines(Folders(code=f"{tmp_path}/code")))
    assert (ran.code, "is larger than" in ran.err) == (210, True)


def test_a_secret_is_a_variable_of_the_shell_alone(tmp_path: Path) -> None:
    secret = tmp_path / "s"
    secret.write_text("hunter2\n")
    text = lines(Folders(), {"PAI_SECRET_pw": str(secret)})
    assert "hunter2" not in text
    ran = Ran(tmp_path / "w", text + 'echo "${PAI_SECRET_pw}"; env | grep -c hunter2')
    assert ran.out.split() == ["hunter2", "0"]


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        ("$PAI_DEFAULT_FS_URI/a/$PAI_JOB_NAME", "/a/x"),
        ("${PAI_DEFAULT_FS_URI}/a", "/a"),
        ("file:////a", "/a"),
        ("//a/b", "/a/b"),
        ("hdfs://h:9000/a", "hdfs://h:9000/a"),
        ("a", "a"),
        ("$PAI_JOB_NAMES", "$PAI_JOB_NAMES"),
    ],
)
def test_addresses_on_the_hosts_of_tasks_are_paths(value: str, folder: str) -> None:
    known = {"PAI_DEFAULT_FS_URI": "file://", "PAI_JOB_NAME": "x"}
    assert local_path(value, known) == folder
