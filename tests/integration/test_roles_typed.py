"""Runs with roles at a terminal: the example of docs/roles.md, and a failed task that is held,
entered and released.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import supervisor_process
from supervisor_process import SupervisorProcess, until

import jobscribe

PAGE = (Path(jobscribe.__file__).parent / "docs/roles.md").read_text(encoding="utf-8")

KEPT = """
name: kept
debug: 1h
roles:
  main:
    tasks: 2
    env: {WHO: ann}
    command: |
      echo "step $PAI_TASK_INDEX"; echo 42 > answer.txt
      [ "$PAI_TASK_INDEX" = 0 ] || exit 3
"""


TWO = """
name: two
retry: {count: 1}
roles:
  slow:
    command: |
      trap 'echo "end $JOBSCRIBE_ATTEMPT"; exit' TERM
      echo "begin $JOBSCRIBE_ATTEMPT"
      while :; do sleep 0.05; done
  quick:
    command: while [ ! -e ../../go ]; do sleep 0.05; done; echo "a longer line than that of the other task"; exit 1
"""


class Person:
    """A user at a terminal, in a separate folder."""

    def __init__(self, site: SupervisorProcess) -> None:
        self.folder = site.place / "person"
        self.folder.mkdir()
        program = self.folder / "jobscribe"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(supervisor_process.PYTHON_PATH)} exec {shlex.quote(sys.executable)} -m jobscribe.cli "$@"\n'
        )
        program.chmod(0o755)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("JOBSCRIBE_")}
        self._env = clean | {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "JOBSCRIBE_ROOT": str(site.root),
        }

    def types(self, line: str, typed: str = "", code: int = 0) -> tuple[str, str]:
        """Run a shell line. Return its standard output and standard error."""
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.folder,
            env=self._env,
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, (line, done)
        return done.stdout, done.stderr

    def starts(self, line: str) -> "subprocess.Popen[str]":
        """Start a shell line. Its standard output is a pipe."""
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def site(make_site: Callable[..., SupervisorProcess]) -> SupervisorProcess:
    return make_site("resources.local_cpu=4").start()


def section() -> str:
    """Return the section of docs/roles.md with the example."""
    return PAGE.partition("\n## An example to type\n")[2].partition("\n## ")[0]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", section(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(180)
def test_the_example_of_the_page_does_what_it_says(site: SupervisorProcess) -> None:
    person = Person(site)
    (description,), (commands,) = blocks("yaml"), blocks("sh")
    (person.folder / "sums.yaml").write_text(description)
    said = {}
    for line in commands.splitlines():
        said[line.split("#")[0].strip()] = person.types(line)[0]
    plan, _, _, table, log = said.values()
    assert "PAI_TASK_ROLE_server_HOST_LIST" in plan and "task worker 1 on " in plan, plan
    rows = {line.split()[0]: line.split()[1] for line in table.splitlines()[3:]}
    assert rows == {
        "server/0": "stopped",
        "server/1": "stopped",
        "worker/0": "succeeded",
        "worker/1": "succeeded",
    }
    assert log == "worker 1: 5050\n"
    for line, promised in re.findall(
        r"^(jobscribe .*?) +# (worker 1: .*)$", commands, re.MULTILINE
    ):
        assert said[line].strip() == promised
    assert (
        "nothing was submitted" not in plan
        and person.types("jobscribe job list")[0].count("completed") == 1
    ), "the dry run submits nothing"


@pytest.mark.timeout(180)
def test_a_task_that_failed_is_entered_and_let_go(site: SupervisorProcess) -> None:
    person = Person(site)
    (person.folder / "kept.yaml").write_text(KEPT)
    jid = person.types("jobscribe job submit -q -f kept.yaml")[0].strip()
    until(
        lambda: "waiting   debug_hold" in person.types("jobscribe job status last")[0],
        "it is kept",
        pause=0.1,
    )
    state, hints = person.types("jobscribe job status last")
    assert "main/1 failed (exit code 3) and can be inspected, until " in state
    assert "main: 2 tasks, 1 held, 1 succeeded" in state
    why = person.types("jobscribe job why last")[0]
    assert (
        f"job {jid} running (debug_hold): held for debugging" in why
        and "exit code 3" in why
        and "\n  means " in why
    )
    # the printed commands can be typed unchanged
    (enter,), (release,) = (
        re.findall(rf"jobscribe job {verb} .*", hints) for verb in ("shell", "release")
    )
    assert (
        person.types(
            enter, "echo $WHO $PAI_TASK_INDEX of $PAI_JOB_TASK_COUNT; cat answer.txt; exit 5\n", 5
        )[0]
        == "ann 1 of 2\n42\n"
    )
    line = person.types("jobscribe job shell last --print")[0].strip()
    there = site.root / "user" / jid[:8] / "command" / jid[9:17] / "command" / "main" / "1"
    assert person.types(line, "pwd")[0] == f"{there}\n"
    assert person.types("jobscribe job logs last --role main --index 0 -f")[0] == "step 0\n"
    assert person.types("jobscribe job logs last --role main --index 1 -f")[0] == "step 1\n", (
        "who follows what is kept is not kept"
    )
    assert "released main/1" in person.types(release)[1]
    person.types("jobscribe job wait last", code=3)
    assert "main/1  failed" in person.types("jobscribe job tasks last --failed")[0]
    # a user can enter a finished hold, which changes nothing
    assert person.types(f"{enter.split('#')[0]} 2>/dev/null", "cat answer.txt")[0] == "42\n"
    assert "error" in person.types("jobscribe job status last")[0]


@pytest.mark.timeout(180)
def test_what_is_only_kept_cannot_be_canceled_any_more_and_that_is_said(
    site: SupervisorProcess,
) -> None:
    person = Person(site)
    (person.folder / "kept.yaml").write_text(
        KEPT.replace("tasks: 2", "tasks: 1").replace("|| exit", "&& exit")
    )
    person.types("jobscribe job submit -q -f kept.yaml")
    until(
        lambda: "debug_hold" in person.types("jobscribe job status last")[0],
        "it is kept",
        pause=0.1,
    )
    said = person.types("jobscribe job cancel last")[1]
    assert "it had failed before the cancel request; it keeps its exit" in said
    assert (
        "requested its end (cancel) while it was held for debugging"
        in person.types("jobscribe job why last")[0]
    )


@pytest.mark.timeout(180)
def test_who_follows_a_run_reads_one_task_of_one_attempt_to_its_end(
    site: SupervisorProcess,
) -> None:
    """Meanwhile another task becomes the representative task of the run, and a second attempt of
    the same task begins.
    """
    person = Person(site)
    (person.folder / "two.yaml").write_text(TWO)
    jid = person.types("jobscribe job submit -q -f two.yaml")[0].strip()
    with person.starts("jobscribe job logs -f --stdout last") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "begin 1\n"
        (site.root / "user" / jid[:8] / "command" / jid[9:17] / "command" / "go").touch()
        assert follower.stdout.read() == "end 1\n"
        assert follower.wait(30) == 0
    person.types("jobscribe job wait last", code=1)
    assert "attempt 2 of at most 5" in person.types("jobscribe job tasks last")[0]
    assert (
        person.types("jobscribe job logs last --stdout")[0]
        == "a longer line than that of the other task\n"
    )
    assert (
        person.types("jobscribe job logs last --stdout --role slow --attempt 1")[0]
        == "begin 1\nend 1\n"
    )
