"""`job submit`: ids on standard output, messages on standard error, and a result for every line of
a file.
"""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

Fake = Any
Run = Any


def test_the_id_is_data_and_the_hints_are_talk(run: Run, fake: Fake) -> None:
    ended = run("job", "submit", "--", "echo", "hello world")
    jid = ended.out.strip()
    assert ended.code == 0
    assert list(fake.jobs) == [jid]
    assert f"jobscribe job logs -f {jid}" in ended.err
    assert fake.submitted()[0]["command"] == ["echo", "hello world"]


def test_quiet_says_nothing_else(run: Run, fake: Fake) -> None:
    ended = run("job", "submit", "-q", "ls", "-l", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.strip() in fake.jobs
    assert fake.submitted()[0]["command"] == ["ls", "-l", "--json"]


def test_the_options_become_the_spec(run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "passed on")
    ended = run(
        "job",
        "submit",
        "--kind",
        "parallel",
        "--time-limit",
        "1.5m",
        "--queue-limit",
        "2h",
        "--grace",
        "7",
        "--core",
        "1G",
        "--wrap",
        "nice -n '5'",
        "--env",
        "A=b=c",
        "-e",
        "FROM_HERE",
        "--name",
        "my run",
        "--",
        "x",
    )
    spec = fake.submitted()[0]
    assert ended.code == 0
    assert (
        spec["jobRunMode"],
        spec["timeLimitSecs"],
        spec["queueLimitSecs"],
        spec["graceSecs"],
    ) == ("parallel", 90.0, 7200.0, 7.0)
    assert (spec["coreBytes"], spec["wrap"], spec["simName"]) == (
        2**30,
        ["nice", "-n", "5"],
        "my run",
    )
    assert spec["env"] == {"A": "b=c", "FROM_HERE": "passed on"}


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--from", "/nowhere/at/all"],
        ["--wrap", "'open", "--", "x"],
        ["--env", "NOT_SET_ANYWHERE", "--", "x"],
        ["--time-limit", "soon", "--", "x"],
        ["--core", "1X", "--", "x"],
        ["--kind", "odd", "--", "x"],
    ],
)
def test_wrong_options_are_usage_errors_and_submit_nothing(
    run: Run, fake: Fake, args: list[str]
) -> None:
    assert run("job", "submit", *args).code == 2
    assert fake.requests == []


def test_commands_of_a_file_are_tasks_of_their_own_too(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "commands").write_text("echo a\necho b\n")
    assert (
        run(
            "job", "submit", "-q", "--image", "busybox:1", "--from", str(tmp_path / "commands")
        ).code
        == 0
    )
    said = [
        [(r["command"], r["image"], r["memoryMb"], r["shmMb"]) for r in job["spec"]["roles"]]
        for job in fake.jobs.values()
    ]
    assert said == [[(["/bin/sh", "-c", f"echo {x}"], "busybox:1", 100, 64)] for x in "ab"]


def test_little_memory_takes_shared_memory_with_it(run: Run, fake: Fake) -> None:
    assert run("job", "submit", "-q", "--memory", "32", "--", "x").code == 0
    (main,) = fake.submitted()[0]["roles"]
    assert (main["image"], main["memoryMb"], main["shmMb"]) == (None, 32, 32)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--image", "Python"], ["--image", "capital letters"]),
        (["--image", ""], ["--image", "empty"]),
        (["--memory", "much"], ["--memory", "'2GB'"]),
        (["--memory", "64", "--shm", "65"], ["--shm", "at most the memory"]),
        (["--volume", "a/b"], ["--volume", "relative path"]),
        (["--volume", "data", "--volume", "data"], ["--volume", "twice"]),
        (["--cpu", "0"], ["--cpu"]),
        (["--gpu", "-1"], ["--gpu"]),
    ],
)
def test_what_no_task_can_ask_for_is_a_usage_error(
    run: Run, fake: Fake, args: list[str], words: list[str]
) -> None:
    ended = run("job", "submit", *args, "--", "x")
    assert (ended.code, fake.requests) == (2, [])
    assert [w for w in words if w not in ended.err] == []


@pytest.mark.parametrize(
    "args", [["--time-limit", "0"], ["--env", "1BAD=x"], ["--name", "x" * 2000], ["--driver", "UP"]]
)
def test_values_that_have_no_shape_are_refused_with_a_sentence(
    run: Run, fake: Fake, args: list[str]
) -> None:
    ended = run("job", "submit", *args, "--", "x")
    assert ended.code == 125
    assert "jobscribe: " in ended.err
    assert "Traceback" not in ended.err
    assert fake.requests == []


def test_a_file_is_one_command_a_line(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "commands").write_text(
        "# a comment\n\necho 'a  b' | wc -c\r\n   date > out\n#last\n"
    )
    ended = run("job", "submit", "--from", str(tmp_path / "commands"), "--time-limit", "9")
    assert ended.code == 0
    specs = [j["spec"] for j in fake.jobs.values()]
    assert [s["command"] for s in specs] == [
        ["/bin/sh", "-c", "echo 'a  b' | wc -c"],
        ["/bin/sh", "-c", "date > out"],
    ]
    assert {s["timeLimitSecs"] for s in specs} == {9.0}
    assert ended.out.split() == list(fake.jobs)
    assert "2 submitted" in ended.err


def test_many_lines_go_in_slices_of_a_thousand(
    run: Run, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"".join(b"echo %d\n" % i for i in range(2500))))
    )
    ended = run("job", "submit", "-q", "--from", "-")
    assert [len(body["runs"]) for path, body in fake.requests if path == "run-many"] == [
        1000,
        1000,
        500,
    ]
    assert (ended.code, ended.err) == (0, "")
    assert len(set(ended.out.split())) == 2500


@pytest.mark.parametrize("options", [[], ["--image", "busybox:1"]])
def test_long_lines_make_smaller_slices(
    run: Run, fake: Fake, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "commands").write_text(("echo " + "x" * 100_000 + "\n") * 25)
    assert run("job", "submit", "-q", *options, "--from", str(tmp_path / "commands")).code == 0
    assert [len(body["runs"]) for path, body in fake.requests if path == "run-many"] == [10, 10, 5]


def test_a_refused_line_is_named_and_the_others_are_submitted(
    run: Run, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "commands").write_text("echo a\n\nrefuse-me\necho c\n")
    ended = run("job", "submit", "--from", str(tmp_path / "commands"))
    assert ended.code == 125
    assert "line 3: this one not" in ended.err
    assert "2 submitted, 1 refused" in ended.err
    assert len(ended.out.split()) == 2


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"a\0b"])
def test_a_line_that_cannot_be_a_command_is_named_with_what_was_submitted_before_it(
    run: Run, fake: Fake, tmp_path: Path, bad: bytes
) -> None:
    (tmp_path / "commands").write_bytes(b"echo x\n" * 1000 + bad + b"\n")
    ended = run("job", "submit", "-q", "--from", str(tmp_path / "commands"))
    assert ended.code == 125
    assert "line 1001" in ended.err
    assert "1000 runs were submitted before the error" in ended.err
    assert len(ended.out.split()) == 1000


def test_json_is_one_value_with_every_line(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "commands").write_text("echo a\nrefuse-me\n")
    ended = run("job", "submit", "--json", "--from", str(tmp_path / "commands"))
    items = ended.json()["items"]
    assert [(i["line"], i["state"]) for i in items] == [(1, "pending"), (2, "error")]
    assert run("--json", "job", "submit", "--", "x").json()["computeJid"] in fake.jobs


def test_a_busy_supervisor_is_waited_for(run: Run, fake: Fake) -> None:
    fake.fail("run-simulation", "storageUnavailable", times=3)
    assert run("job", "submit", "-q", "--", "x").code == 0
    assert len(fake.jobs) == 1


@pytest.mark.parametrize("option", ["--debug", "--core"])
def test_an_option_without_a_value_is_told_from_the_command(
    run: Run, fake: Fake, option: str
) -> None:
    ended = run("job", "submit", option, "python", "x.py")
    assert ended.code == 2 and f"{option} -- COMMAND" in ended.err.replace("\n", " "), ended.err
    assert run("job", "submit", option, "--", "python", "x.py").code == 0
    assert fake.submitted()[0]["command"] == ["python", "x.py"]
