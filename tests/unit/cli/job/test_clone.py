"""`job clone`: a new job from the definition of an earlier one."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process
Run = Any
Fake = Any
SCRIPT = ["/bin/bash", "-c", "# a script: with\n  odd text\necho 1.5 # yes\n"]


def stored(run: Run, fake: Fake, **spec: Any) -> str:
    """Let the fake have a job of which the newest request is this one. Return its name."""
    jid = str(run("job", "submit", "-q", "--", "true").out.strip())
    uid, sid, _ = jid.split("-")
    fields = {"uid": uid, "simulationId": sid, **spec}
    event = {"type": "RunRequested", "at": 1.0, "serial": 1, "spec": fields}
    fake.events[:] = [{"position": 1, "stream": f"job/{jid}", "version": 1, "event": event}]
    fake.requests.clear()
    return jid


def submitted(fake: Fake) -> Any:
    """Return the only submitted description."""
    bodies = [body["description"] for path, body in fake.requests if path == "run-description"]
    assert len(bodies) == 1
    return bodies[0]


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`editor(line, ...)`: each call of the editor performs the next of these shell lines on its
    file "$1". Return the folder with a copy of the file as each call found it.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "edited"))
    (tmp_path / "edited").mkdir()

    def editor(*lines: str) -> Path:
        seen = tmp_path / f"seen{len(list(tmp_path.iterdir()))}"
        seen.mkdir()
        cases = "\n".join(f"{n}) {line} ;;" for n, line in enumerate(lines, 1))
        script = seen / "editor"
        script.write_text(
            f'#!/bin/sh\nn=$(($(ls "{seen}" | wc -l)))\ncp "$1" "{seen}/$n"\ncase $n in\n{cases}\nesac\n'
        )
        script.chmod(0o700)
        monkeypatch.setenv("EDITOR", str(script))
        return seen

    return editor


def test_the_definition_is_submitted_with_its_origin_and_changes(run: Run, fake: Fake) -> None:
    jid = stored(run, fake, command=SCRIPT, env={"A": "1"}, simName="old", timeLimitSecs=5)
    ended = run("job", "clone", jid)
    assert ended.code == 0 and ended.out.strip() in fake.jobs, ended
    assert f"cloned from {jid}" in ended.err
    expected = {
        "name": "old",
        "command": SCRIPT[2],
        "env": {"A": "1"},
        "retry": {"platform": 0},
        "timeLimit": 5.0,
        "clonedFrom": jid,
    }
    assert submitted(fake) == expected
    fake.requests.clear()
    sets = ("env.A=2", "env.B=true", "timeLimit=null", "retry.count=1", "command=exit 1")
    options = [word for text in sets for word in ("--set", text)]
    ended = run("job", "clone", jid, "--name", "new", *options, "--json")
    assert ended.json()["clonedFrom"] == jid and len(ended.json()["items"]) == 1
    del expected["timeLimit"]
    assert submitted(fake) == {
        **expected,
        "name": "new",
        "command": "exit 1",
        "env": {"A": "2", "B": "true"},
        "retry": {"platform": 0, "count": 1},
    }
    for options_, said in (
        (("--set", "A"), "is not KEY=VALUE"),
        (("--set", "timeLimt=5"), "timeLimt: unknown key; right: `timeLimit`"),
        (("--set", "name.x=5"), "nothing at"),
    ):
        fake.requests.clear()
        ended = run("job", "clone", jid, *options_)
        assert ended.code != 0 and said in ended.err, ended
        assert not any(path.startswith("run-") for path, _ in fake.requests)


def test_secrets_are_named_and_asked_for(run: Run, fake: Fake) -> None:
    jid = stored(run, fake, command=["login", "--password", "hunter22", "x"])
    ended = run("job", "clone", jid)
    assert ended.code == 125 and "hunter22" not in ended.out + ended.err
    assert (
        "command[2]: a value of the earlier job that looks like a secret was not copied: password"
        in ended.err
    )
    assert "--set KEY=VALUE" in ended.err
    assert run("job", "clone", jid, "--set", "command.2=other").code == 0
    assert submitted(fake)["command"] == ["login", "--password", "other", "x"]


def test_a_job_of_another_user_is_not_cloned(run: Run, fake: Fake) -> None:
    jid = stored(run, fake, command=["true"])
    fake.jobs["Somebody" + jid[8:]] = fake.jobs[jid]
    ended = run("job", "clone", "Somebody" + jid[8:])
    assert ended.code == 125 and "only the user of a job can clone it" in ended.err
    assert not any(path == "job-story" for path, _ in fake.requests)
    # the user for whom the command line acts
    ended = run("--uid", "Somebody", "job", "clone", "Somebody" + jid[8:])
    assert ended.code == 0, ended


def test_the_file_is_opened_again_until_it_has_no_problem(
    run: Run, fake: Fake, editor: Any, tmp_path: Path
) -> None:
    jid = stored(run, fake, command=SCRIPT, env={"A": "yes", "B": "010", "C": "1e3"})
    seen = editor(
        'sed -i "s/^command:/comand:/; s/^retry:/retry: 5/" "$1"',
        'sed -i "s/^comand:/command:/; s/^retry: 5/timeLimt: 3/; /platform/d" "$1"',
        'sed -i "s/^timeLimt/timeLimit/" "$1"',
    )
    ended = run("job", "clone", jid, "--edit")
    assert ended.code == 0, ended
    data = submitted(fake)
    assert (data["command"], data["timeLimit"]) == (SCRIPT[2], 3)
    assert data["env"] == {"A": "yes", "B": "010", "C": "1e3"}
    first, again, third = ((seen / str(n)).read_text().splitlines() for n in (1, 2, 3))
    assert (
        first[0]
        == f"# A new job from {jid}. Save the file to submit it; all problems are shown first."
    )
    assert again[0].startswith("#! ") and "it is not YAML" in again[1]
    assert third[0].startswith("#! 1 problem; nothing was submitted yet")
    number = int(third[1].split("line ")[1].split(":")[0])
    assert third[number - 1] == "timeLimt: 3" and "right: `timeLimit`" in third[1]
    assert list((tmp_path / "edited").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (":", "was not changed"),
        ('echo "# nothing" > "$1"', "the file is empty"),
        ("exit 3", "the editor ended with exit code 3"),
        ('echo "x: 1" >> "$1"', "was not changed"),
    ],
)
def test_a_person_may_stop(run: Run, fake: Fake, editor: Any, line: str, said: str) -> None:
    jid = stored(run, fake, command=["true"])
    editor(line)
    ended = run("job", "clone", jid, "--edit")
    assert ended.code == 1 and said in ended.err and ended.out == "", ended
    assert not any(path.startswith("run-") for path, _ in fake.requests)


def test_the_text_is_kept_if_the_supervisor_refuses_it(
    run: Run, fake: Fake, editor: Any, tmp_path: Path
) -> None:
    jid = stored(run, fake, command=["true"])
    editor('echo "env: {X: 5}" >> "$1"')
    fake.fail("run-description", "quotaExceeded", "too much")
    ended = run("job", "clone", jid, "--edit")
    (kept,) = (tmp_path / "edited").iterdir()
    assert ended.code == 125 and f"your text is in {kept}" in ended.err, ended
    assert "env: {X: 5}" in kept.read_text() and kept.stat().st_mode & 0o777 == 0o600


def test_an_app_run_is_cloned_with_its_data(run: Run, fake: Fake) -> None:
    data = {"simulationId": "Wd3xLq8B", "models": {"a": {"x": 1}}}
    jid = stored(run, fake, command=[], simulationType="heat", computeModel="animation", data=data)
    ended = run("job", "clone", jid, "--set", "data.models.a.x=2", "--name", "n")
    assert ended.code == 0, ended
    (spec,) = fake.submitted()
    assert spec["data"] == {"simulationId": spec["simulationId"], "models": {"a": {"x": 2}}}
    assert (spec["clonedFrom"], spec["simName"], spec["simulationId"]) == (
        jid.replace("command", "animation"), "n", ended.out.strip().split("-")[1],
    )  # fmt: skip
    assert json.dumps(spec).count("Wd3xLq8B") == 0


def test_an_interrupt_belongs_to_the_editor(run: Run, fake: Fake, editor: Any) -> None:
    jid = stored(run, fake, command=["true"])
    editor('kill -INT $PPID; kill -QUIT $PPID; echo "env: {X: 5}" >> "$1"')
    assert run("job", "clone", jid, "--edit").code == 0
    assert submitted(fake)["env"] == {"X": 5}
